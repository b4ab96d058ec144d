"""How channels pass through operators that move elements: reshape, transpose, slice, split, concatenation."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.graph.dim import Dim
from pyflame_rt.ops.onnx.resize import Resize, Upsample
from pyflame_rt.ops.onnx.shape import Expand, Flatten, Reshape, Squeeze, Transpose, Unsqueeze
from pyflame_rt.ops.onnx.slicing import Concat, Pad, Slice, Split, Tile
from pyflame_rt.pruning.coupling import Axes, Coupling, Labels, NotFollowed
from pyflame_rt.pruning.coupling_rules import rule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyflame_rt.graph import Node

__all__ = ["regroup"]


def _told(node: Node) -> str:
    return f"{node.full_name} {node.name!r} needs their number"


@rule(Transpose)
def _transpose(c: Coupling, node: Node) -> None:
    axes = c.of(node.inputs[0])
    perm = node.get_attr("perm") or list(range(len(axes)))[::-1]
    c.give(node.outputs[0], [axes[p] for p in perm])


@rule(Squeeze)
def _squeeze(c: Coupling, node: Node) -> None:
    axes = c.of(node.inputs[0])
    if any(node.inputs[1:]):
        gone = {axis % len(axes) for axis in c.ints(node.inputs[1])}
    else:
        gone = {i for i in range(len(axes)) if c.size(node.inputs[0], i) == 1}
    c.give(node.outputs[0], [a for i, a in enumerate(axes) if i not in gone])


@rule(Unsqueeze)
def _unsqueeze(c: Coupling, node: Node) -> None:
    axes, named = c.of(node.inputs[0]), c.ints(node.inputs[1])
    rank = len(axes) + len(named)
    new = {axis % rank for axis in named}
    rest = iter(axes)
    c.give(node.outputs[0], [None if i in new else next(rest) for i in range(rank)])


@rule(Concat)
def _concat(c: Coupling, node: Node) -> None:
    given = [c.of(name) for name in node.inputs]
    axis = node.get_attr("axis") % len(given[0])
    result: Axes = list(given[0])
    for i in range(len(result)):
        if i == axis:
            result[i] = _joined(c, node, [axes[i] for axes in given])
        else:
            for other in given[1:]:
                result[i] = c.unify(result[i], other[i], _told(node))
    c.give(node.outputs[0], result)


def _joined(c: Coupling, node: Node, parts: list[Labels | None]) -> Labels | None:
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        c.fix(parts, _told(node))
        return None
    return np.concatenate(known)


@rule(Split)
def _split(c: Coupling, node: Node) -> None:
    axes = c.of(node.inputs[0])
    axis = node.get_attr("axis", 0) % len(axes)
    labels = axes[axis]
    if labels is None:
        parts: list[Labels | None] = [None] * len(node.outputs)
    else:
        sizes = [c.size(name, axis) for name in node.outputs]
        if not all(isinstance(size, int) for size in sizes):
            raise NotFollowed(f"the parts of {node.name!r} are only known when running")
        pieces = np.split(labels, np.cumsum(sizes)[:-1])
        parts = list(pieces)
        c.adjust.append(lambda edit: edit.split(node, [edit.count(piece) for piece in pieces]))
    for name, part in zip(node.outputs, parts, strict=True):
        c.give(name, [part if i == axis else a for i, a in enumerate(axes)])


@rule(Slice)
def _slice(c: Coupling, node: Node) -> None:
    axes = list(c.of(node.inputs[0]))
    starts, ends = c.ints(node.inputs[1]), c.ints(node.inputs[2])
    rest = [c.ints(name) if name else None for name in [*node.inputs[3:], "", ""][:2]]
    over = [a % len(axes) for a in rest[0]] if rest[0] else list(range(len(starts)))
    steps = rest[1] or [1] * len(starts)
    moved: dict[int, tuple[Labels, int, int]] = {}
    for i, (axis, start, end, step) in enumerate(zip(over, starts, ends, steps, strict=True)):
        labels = axes[axis]
        if labels is None:
            continue
        first, last, _ = slice(start, end, step).indices(len(labels))
        if step != 1:
            c.fix([labels], _told(node))
            axes[axis] = None
        else:
            axes[axis] = labels[first:last]
            moved[i] = (labels, first, max(first, last))
    c.give(node.outputs[0], axes)
    if moved or not all(c.editor.ints(name) for name in node.inputs[1:3]):  # a run would work out others
        c.adjust.append(lambda edit: _moved(edit, node, starts, ends, moved))


def _moved(
    edit: Any, node: Node, starts: list[int], ends: list[int], moved: dict[int, tuple[Labels, int, int]]
) -> None:
    for i, (labels, first, last) in moved.items():
        starts[i], ends[i] = edit.count(labels[:first]), edit.count(labels[:last])
    edit.constant(node, 1, starts)
    edit.constant(node, 2, ends)


@rule(Pad)
def _pad(c: Coupling, node: Node) -> None:
    axes = list(c.of(node.inputs[0]))
    pads = c.ints(node.inputs[1])
    named = next((c.ints(name) for name in node.inputs[3:4] if name), list(range(len(axes))))
    for i, axis in enumerate(named):
        if pads[i] or pads[i + len(named)]:
            c.fix([axes[axis]], _told(node))
            axes[axis] = None
    c.give(node.outputs[0], axes)


@rule(Resize, Upsample)
def _resize(c: Coupling, node: Node) -> None:
    axes = list(c.of(node.inputs[0]))
    if any(node.inputs[3:4]):
        raise NotFollowed(f"{node.name!r} resizes to given sizes")
    for i, labels in enumerate(axes):
        if labels is not None and c.size(node.inputs[0], i) != c.size(node.outputs[0], i):
            c.fix([labels], _told(node))
            axes[i] = None
    c.give(node.outputs[0], axes)


@rule(Flatten)
def _flatten(c: Coupling, node: Node) -> None:
    rank = len(c.of(node.inputs[0]))
    axis = node.get_attr("axis", 1)
    axis += rank if axis < 0 else 0
    groups = [(list(range(axis)), [0]), (list(range(axis, rank)), [1])]
    c.give(node.outputs[0], _regrouped(c, node, groups, 2))


@rule(Tile)
def _tile(c: Coupling, node: Node) -> None:
    times = c.ints(node.inputs[1])
    axes = c.of(node.inputs[0])
    c.give(node.outputs[0], [a if a is None or n == 1 else np.tile(a, n) for a, n in zip(axes, times, strict=True)])


@rule(Expand)
def _expand(c: Coupling, node: Node) -> None:
    before, after = c.editor.shape(node.inputs[0]), c.editor.shape(node.outputs[0])
    if before is None or after is None:
        raise NotFollowed(f"the sizes of {node.name!r} are only known when running")
    new = len(after) - len(before)
    made, before = [*[None] * new, *c.of(node.inputs[0])], (*[1] * new, *before)
    _to_size(c, node, made, [1 if _same(a, b) else b for a, b in zip(before, after, strict=True)])


@rule(Reshape)
def _reshape(c: Coupling, node: Node) -> None:
    before, after = c.editor.shape(node.inputs[0]), c.editor.shape(node.outputs[0])
    if before is None or after is None:
        raise NotFollowed(f"the sizes of {node.name!r} are only known when running")
    made: Axes = [None] * len(after)
    if any(axis is not None for axis in c.of(node.inputs[0])):
        made = _regrouped(c, node, regroup(before, after), len(after))
    _to_size(c, node, made, [0 if i < len(before) and _same(before[i], d) else d for i, d in enumerate(after)])


def _same(a: Any, b: Any) -> bool:
    """Whether two sizes are one that a run tells."""
    return isinstance(a, Dim) and a == b


def _to_size(c: Coupling, node: Node, made: Axes, sizes: Sequence[Any]) -> None:
    """A node that is told the sizes of its output: those of the axes that carry channels are told anew.

    Args:
        c: the labels.
        node: its second input is the sizes.
        made: the axes of the output.
        sizes: how the second input could be written, if it is worked out from other sizes.
    """
    changing = [i for i, labels in enumerate(made) if labels is not None]
    parts = _parts(c, node, sizes, changing)
    c.give(node.outputs[0], made)
    if parts is None and changing:
        raise NotFollowed(f"the shape {node.inputs[1]!r} is only known when running")
    if parts is not None:
        c.adjust.append(lambda edit: edit.target(node, parts, {i: edit.count(made[i]) for i in changing}))


def _parts(c: Coupling, node: Node, sizes: Sequence[Any], changing: Sequence[int]) -> dict[str, list[int]] | None:
    """The sizes that a target asks for, by the constant they are written in or the value that works them out.

    A run works some sizes out from shapes, such as width / heads. It would find others once channels are gone, and so
    those that are numbers here are written down. None where that cannot be done.
    """
    name = node.inputs[1]
    written = c.editor.ints(name)
    if written is not None:
        return {name: written}
    found = _joined_parts(c, node, changing)
    if found is not None:
        return found
    open_ = [i for i, size in enumerate(sizes) if not isinstance(size, int)]
    if len(open_) > (node.op_type == Reshape.name) or node.get_attr("allowzero", 0):
        return None
    return {name: [-1 if i in open_ else size for i, size in enumerate(sizes)]}


def _joined_parts(c: Coupling, node: Node, changing: Sequence[int]) -> dict[str, list[int]] | None:
    """The sizes by the parts that a Concat joins; None where that does not tell them."""
    maker, after = c.editor.maker(node.inputs[1]), c.editor.shape(node.outputs[0]) or ()
    if maker is None or maker.op_type != Concat.name:
        return None
    found: dict[str, list[int]] = {}
    at = 0
    for part in maker.inputs:
        (length,) = c.sizes(part)
        sizes = c.editor.ints(part) or [size for size in after[at : at + length] if isinstance(size, int)]
        if len(sizes) == length:
            if found.get(part, sizes) != sizes:
                return None  # one part twice, for different sizes
            found[part] = sizes
        elif any(at <= i < at + length for i in changing):
            return None
        at += length
    return found


def regroup(before: Sequence[Any], after: Sequence[Any]) -> list[tuple[list[int], list[int]]]:
    """Axes of a reshape that hold the same elements, group by group.

    Example:
        >>> regroup([2, 12, 5], [2, 3, 4, 5])
        [([0], [0]), ([1], [1, 2]), ([2], [3])]
    """
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(before) or j < len(after):
        if i < len(before) and j < len(after) and before[i] is not None and before[i] == after[j]:
            ends = i + 1, j + 1
        else:
            ends = _where_equal(before, after, i, j)
        groups.append((list(range(i, ends[0])), list(range(j, ends[1]))))
        i, j = ends
    return groups


def _where_equal(before: Sequence[Any], after: Sequence[Any], i: int, j: int) -> tuple[int, int]:
    """The next places on both sides up to which there are as many elements."""
    lefts, rights = _products(before[i:]), _products(after[j:])
    places = [(a, b) for a, n in enumerate(lefts) for b, m in enumerate(rights) if (a or b) and n == m]
    if not places:
        raise NotFollowed(f"a reshape from {list(before)} to {list(after)} mixes sizes that are not known")
    a, b = min(places, key=lambda at: (0 in at, sum(at)))  # sizes of 1 at the end may stand alone
    return i + a, j + b


def _products(sizes: Sequence[Any]) -> list[Any]:
    """How many elements the first 0, 1, 2, ... axes have, as far as that is known."""
    found: list[Any] = [1]
    for size in sizes:
        if size is None:
            break
        found.append(found[-1] * size)
    return found


def _regrouped(c: Coupling, node: Node, groups: list[tuple[list[int], list[int]]], rank: int) -> Axes:
    axes, result = c.of(node.inputs[0]), [None] * rank
    made: Axes = list(result)
    for left, right in groups:
        merged = _merged(c, node, left, [axes[i] for i in left])
        if merged is None:
            continue
        wide = [j for j in right if c.size(node.outputs[0], j) != 1]
        if len(wide) == 1:
            made[wide[0]] = merged
        elif wide:
            sizes = [int(c.size(node.outputs[0], j)) for j in wide]
            made[wide[-2]] = _heads(c, node, merged, sizes)
    return made


def _merged(c: Coupling, node: Node, places: list[int], parts: list[Labels | None]) -> Labels | None:
    """The labels of several axes as one; of two that have some, the first may go on."""
    carrying = [k for k, labels in enumerate(parts) if labels is not None]
    if not carrying:
        return None
    first = carrying[0]
    c.fix([parts[k] for k in carrying[1:]], _told(node))
    if len(parts) == 1:
        return parts[0]
    sizes = [c.size(node.inputs[0], place) for place in places]
    if not all(isinstance(size, int) for size in sizes):
        c.fix([parts[first]], _told(node))
        return None
    labels: Any = parts[first]
    shaped = labels.reshape([-1 if k == first else 1 for k in range(len(parts))])
    return np.ascontiguousarray(np.broadcast_to(shaped, sizes)).reshape(-1)


def _heads(c: Coupling, node: Node, labels: Labels, sizes: list[int]) -> Labels | None:
    """An axis is split: what stands last but one (the heads of [..., heads, size]) may go, the rest stays."""
    if math.prod(sizes) != len(labels):
        c.fix([labels], _told(node))
        return None
    at = len(sizes) - 2
    table = np.moveaxis(labels.reshape(sizes), at, 0).reshape(sizes[at], -1)
    heads = np.ascontiguousarray(table[:, 0])
    c.unify(np.repeat(heads, table.shape[1]), np.ascontiguousarray(table.reshape(-1)), _told(node))
    c.head(heads)
    return heads
