"""Operators that repeat, border or cut: each is a few copies of boxes."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.backends.cpu.graph.op_support import LOOP_TYPES
from pyflame_rt.backends.cpu.ir.kernel_program import FillKernel, Map, RowKernel, Store, apply, const, load
from pyflame_rt.backends.cpu.kernels.borders import BorderKernel
from pyflame_rt.backends.cpu.lower.lowering import Lowering, NotNative, lowers
from pyflame_rt.backends.cpu.lower.row_loops import FLAT_GRAIN, nest_of
from pyflame_rt.backends.cpu.memory.buffer_views import View, as_bits, contiguous_strides
from pyflame_rt.ops.onnx.arithmetic import SumTo
from pyflame_rt.ops.onnx.cast import BitCast
from pyflame_rt.ops.onnx.creation import ConstantOfShape, Trilu
from pyflame_rt.ops.onnx.slicing import Pad, Tile, pad_pairs
from pyflame_rt.opt.traced_sizes import most

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyflame_rt.opt.specialized_graph import SpecializedNode

__all__ = ["fill", "padded", "part", "put_inside"]

BORDER_GRAIN = 1 << 18  # bytes that are worth a thread
PIECES = 2
MOST_PLANES = 4  # that are laid side by side while they are copied


def fill(low: Lowering, value: View, out: View) -> None:
    """Every element of a dense value := the first element of another."""
    if value.dtype.itemsize == 16:
        raise NotNative("elements of 16 bytes")
    if out.count:
        low.kernel("fill", FillKernel(as_bits(out).dtype.label), [value, out], [0], out.count, FLAT_GRAIN)


def part(view: View, axis: int, start: int, count: int, step: int = 1) -> View:
    """A piece of one axis; a step of zero repeats the first element."""
    shape, strides = list(view.shape), list(view.strides)
    shape[axis], strides[axis] = count, view.strides[axis] * step
    return replace(view, shape=tuple(shape), strides=tuple(strides), offset=view.offset + start * view.strides[axis])


def padded(low: Lowering, view: View, pairs: Sequence[tuple[int, int]], value: Any) -> View:
    """The view with a border of one value."""
    shape = tuple(b + n + a for n, (b, a) in zip(view.shape, pairs, strict=True))
    out = low.in_order(low.new(shape, view.dtype), view)
    put_inside(low, view, out, pairs, low.constant(np.full(1, value, view.dtype.numpy)))
    return out


def put_inside(low: Lowering, view: View, out: View, pairs: Sequence[tuple[int, int]], value: View) -> None:
    """Copy a view into a fresh value with a border of the first element of another: in one step where lines allow."""
    if view.dtype.itemsize < 16 and view.count and _by_lines(low, view, out, pairs, value):
        return
    fill(low, value, out)
    inside = out
    for axis, (before, _) in enumerate(pairs):
        inside = part(inside, axis, before, view.shape[axis])
    if view.count:
        low.copied(view, inside)


def _by_lines(low: Lowering, view: View, out: View, pairs: Sequence[tuple[int, int]], value: View) -> bool:
    """A border around lines, and before and after the lines of an image; False where memory lies otherwise."""
    order = sorted(range(len(view.shape)), key=lambda k: -out.strides[k] if out.shape[k] != 1 else 0)
    order = [k for k in order if out.shape[k] != 1]
    wide = [i for i, k in enumerate(order) if any(pairs[k])]
    if (
        not wide
        or wide[0] < wide[-1] - 1
        or contiguous_strides(tuple(out.shape[k] for k in order)) != tuple(out.strides[k] for k in order)
    ):
        return False
    across, down = order[wide[-1]], order[wide[-1] - 1] if wide[-1] else -1
    inner, outer = order[wide[-1] :], order[: max(wide[-1] - 1, 0)]
    unit = math.prod(view.shape[k] for k in inner[1:])
    planes = 1
    if [view.strides[k] for k in inner] != list(contiguous_strides(tuple(view.shape[k] for k in inner))):
        planes, unit = unit, 1
        if planes > MOST_PLANES or len(inner) != 2 or view.strides[across] != 1:
            return False
    images, image = _as_one([(view.shape[k], view.strides[k]) for k in outer])
    if images == 0:
        return False
    height, line, (top, under) = (1, 0, (0, 0)) if down < 0 else (view.shape[down], view.strides[down], pairs[down])
    lines = top + height + under
    before, after = (unit * n for n in pairs[across])
    run = unit * view.shape[across]
    params = [lines, top, height, before, run, after, line, image, view.strides[inner[1]] if planes > 1 else 0]
    views = [as_bits(view), as_bits(value), as_bits(out)]
    grain = most(1, BORDER_GRAIN // most(1, planes * (before + run + after) * view.dtype.itemsize))
    low.kernel("border", BorderKernel(views[0].dtype.label, planes), views, params, images * lines, grain, PIECES)
    return True


def _as_one(axes: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """Axes from the outermost as one: its size, 0 where there is no such axis, and its stride."""
    count, stride = 1, 0
    for size, step in reversed(axes):
        if count == 1:
            stride = step
        elif step != stride * count:
            return 0, 0
        count *= size
    return count, stride


@lowers(Pad)
def pad(low: Lowering, step: SpecializedNode) -> None:
    """A border, or a smaller box where a width is negative."""
    view = low.strided(step.node.inputs[0])
    rank = len(view.shape)
    widths = low.constant_of(step.node.inputs[1])
    name = step.node.inputs[3] if len(step.node.inputs) > 3 else ""
    axes = low.constant_of(name) if name else None
    if widths is None or (name and axes is None):
        raise NotNative("the widths are not constant")
    pairs = pad_pairs(rank, widths.ravel().tolist(), None if axes is None else axes.ravel().tolist())
    for axis, (before, after) in enumerate(pairs):
        if min(before, after) < 0:
            first, last = max(0, -before), max(0, -after)
            view = part(view, axis, first, max(0, view.shape[axis] - first - last))
    wider = [(max(0, b), max(0, a)) for b, a in pairs]
    if step.attributes["mode"] == "constant":
        _pad_constant(low, step, view, wider)
        return
    if not view.count:
        raise NotNative("a border of nothing")
    for axis, pair in enumerate(wider):
        if any(pair):
            view = _mirrored(low, view, axis, pair, step.attributes["mode"])
    low.places[step.node.outputs[0]] = view


def _pad_constant(low: Lowering, step: SpecializedNode, view: View, pairs: Sequence[tuple[int, int]]) -> None:
    out = low.output_like(step, view)
    given = step.node.inputs[2] if len(step.node.inputs) > 2 else ""
    value = low.dense(given) if given else low.constant(np.zeros(1, view.dtype.numpy))
    if value.dtype is not view.dtype:
        raise NotNative("a padding value of another type")
    put_inside(low, view, out, pairs, value)


def _mirrored(low: Lowering, view: View, axis: int, pair: tuple[int, int], mode: str) -> View:
    """One axis with a border taken from the elements themselves: runs of places become copies."""
    places = np.pad(np.arange(view.shape[axis]), pair, mode)  # type: ignore[call-overload]
    shape = list(view.shape)
    shape[axis] = len(places)
    out = low.in_order(low.new(tuple(shape), view.dtype), view)
    for first, start, count, step in runs(places):
        low.copied(part(view, axis, start, count, step), part(out, axis, first, count))
    return out


def runs(places: np.ndarray[Any, Any]) -> list[tuple[int, int, int, int]]:
    """Split places into runs of one step: (first position, first place, length, step).

    Example:
        >>> runs(np.array([2, 1, 0, 1, 2, 2, 2]))
        [(0, 2, 3, -1), (3, 1, 2, 1), (5, 2, 2, 0)]
    """
    result, at = [], 0
    while at < len(places):
        step = int(places[at + 1] - places[at]) if at + 1 < len(places) else 1
        end = at + 1
        while end < len(places) and places[end] - places[end - 1] == step:
            end += 1
        result.append((at, int(places[at]), end - at, step))
        at = end
    return result


@lowers(Tile)
def tile(low: Lowering, step: SpecializedNode) -> None:
    """The whole repeated: every axis becomes a stretched one before itself."""
    view, counts = low.strided(step.node.inputs[0]), low.constant_of(step.node.inputs[1])
    if counts is None:
        raise NotNative("the repeats are not constant")
    out = low.output(step)
    if not out.count:
        return
    repeats = [int(c) for c in counts.ravel()]
    shape = tuple(n for pair in zip(repeats, view.shape, strict=True) for n in pair)
    strides = tuple(s for stride in view.strides for s in (0, stride))
    target = View(out.buffer, out.dtype, shape, contiguous_strides(shape))
    low.copied(replace(view, shape=shape, strides=strides), target)


@lowers(Trilu)
def trilu(low: Lowering, step: SpecializedNode) -> None:
    """One side of the diagonal, zeros on the other: numbers of rows and columns decide."""
    x = low.strided(step.node.inputs[0])
    name = step.node.inputs[1] if len(step.node.inputs) > 1 else ""
    given = low.constant_of(name) if name else np.zeros(1, np.int64)
    if given is None or x.dtype not in LOOP_TYPES:
        raise NotNative(f"the diagonal is not constant, or elements are {x.dtype.label}")
    out = low.output(step)
    if not out.count:
        return
    height, width = x.shape[-2:]
    row, column = (low.constant(np.arange(n, dtype=np.int64)) for n in (height, width))
    lead = len(x.shape) - 2
    rows = View(row.buffer, row.dtype, x.shape, (*[0] * lead, 1, 0))
    columns = View(column.buffer, column.dtype, x.shape, (*[0] * lead, 0, 1))
    nest = nest_of([x, rows, columns, out], x.shape)
    if nest is None:
        raise NotNative("too many axes for one loop")
    views = [x, rows, columns, out]
    operands = [nest.operand(i, v.dtype.label) for i, v in enumerate(views)]
    away = apply("sub", load(2, "int64"), load(1, "int64"))
    inside = apply("ge" if step.attributes["upper"] else "le", away, const(int(given.ravel()[0]), "int64"))
    value = apply("where", inside, load(0, x.dtype.label), const(0, x.dtype.label))
    kernel = RowKernel(len(nest.outer), tuple(operands[:-1]), (operands[-1],), (Map((Store(3, value),)),))
    low.row_kernel(Trilu.name, kernel, nest, views)


@lowers(ConstantOfShape)
def constant_of_shape(low: Lowering, step: SpecializedNode) -> None:
    """One value everywhere: a stretched constant, or filled where it is handed out."""
    shape = low.concrete.shape(step.node.outputs[0])
    given = step.attributes.get("value")
    array = np.zeros(1, np.float32) if given is None else np.asarray(given.raw()).reshape(-1)[:1]
    one = low.constant(np.ascontiguousarray(array))
    low.places[step.node.outputs[0]] = replace(one, shape=shape, strides=(0,) * len(shape))


@lowers(BitCast)
def bit_cast(low: Lowering, step: SpecializedNode) -> None:
    """The same bits under another type of that size."""
    name = step.node.outputs[0]
    view = low.strided(step.node.inputs[0])
    dtype = low.concrete.dtype(name)
    if dtype.itemsize != view.dtype.itemsize or low.concrete.shape(name) != view.shape:
        raise NotNative("elements of another size")
    low.places[name] = replace(view, dtype=dtype)


@lowers(SumTo)
def sum_to(low: Lowering, step: SpecializedNode) -> None:
    """Sums over the axes that broadcasting added or stretched."""
    from pyflame_rt.backends.cpu.lower.loop_nests import fold_axes

    x, shape = low.strided(step.node.inputs[0]), low.concrete.shape(step.node.outputs[0])
    extra = len(x.shape) - len(shape)
    axes = [*range(extra), *(extra + k for k, n in enumerate(shape) if n == 1 and x.shape[extra + k] != 1)]
    total = fold_axes(low, SumTo.name, "sum", x, axes) if axes else x
    result = total.reshaped(shape) or low.copied(total).reshaped(shape)
    assert result is not None
    low.places[step.node.outputs[0]] = result
