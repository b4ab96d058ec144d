"""Passes over the host: the same program on one part of the tensors after the other.

Dimensions that run through a graph together, without meeting anything that mixes their elements, form a family: rows
of a batch, say, from the inputs to the outputs. Cutting a family into equal parts makes every tensor in it smaller.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.backends.wse.emit.scalar_csl import function_of
from pyflame_rt.backends.wse.plan.primitives import Flat
from pyflame_rt.ops.onnx.arithmetic import SumTo
from pyflame_rt.ops.onnx.matmul import MatMul
from pyflame_rt.ops.onnx.reduce import ReduceMax, ReduceMean, ReduceMin, ReduceProd, ReduceSum
from pyflame_rt.ops.onnx.shape import Expand, Reshape, Squeeze, Transpose, Unsqueeze
from pyflame_rt.ops.onnx.slicing import Concat, Pad, Slice, Tile

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyflame_rt.backends.wse.plan.primitives import PrimitiveCall

__all__ = ["Family", "Fold", "families", "folded"]

Place = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Family:
    """Dimensions that are cut together.

    Attributes:
        size: of the smallest of them.
        members: each dimension's size as a multiple of that.
    """

    size: int
    members: dict[Place, int]

    def of(self, name: str) -> list[tuple[int, int]]:
        """The dimensions of a value in it, with their multiples."""
        return [(dim, times) for (value, dim), times in self.members.items() if value == name]


@dataclass(frozen=True, slots=True)
class Fold:
    """How a program is run in passes.

    Pass ``n`` takes ``chunk`` of ``size`` from ``n * chunk`` on; the last one ends with the end. ``inputs`` and
    ``outputs`` say which dimension is cut, and its multiple.
    """

    passes: int
    chunk: int
    size: int
    inputs: dict[str, tuple[int, int]] = field(default_factory=dict)
    outputs: dict[str, tuple[int, int, tuple[int, ...]]] = field(default_factory=dict)

    def as_data(self) -> dict[str, Any]:
        """For the manifest."""
        return {
            "passes": self.passes,
            "chunk": self.chunk,
            "size": self.size,
            "inputs": {n: list(v) for n, v in self.inputs.items()},
            "outputs": {n: [dim, times, list(shape)] for n, (dim, times, shape) in self.outputs.items()},
        }


class _Families:
    """Which dimensions go together, and which cannot be cut."""

    def __init__(self, flat: Flat) -> None:
        self.flat = flat
        self.parent: dict[Place, tuple[Place, Fraction]] = {}
        self.mixed: set[Place] = set()

    def find(self, place: Place) -> tuple[Place, Fraction]:
        """The family's head and this dimension's size relative to it."""
        above = self.parent.get(place)
        if above is None:
            return place, Fraction(1)
        head, ratio = self.find(above[0])
        self.parent[place] = (head, ratio * above[1])
        return self.parent[place]

    def join(self, a: Place, b: Place) -> None:
        """Two dimensions are cut together, in proportion to their sizes."""
        size_a, size_b = self.flat.shape(a[0])[a[1]], self.flat.shape(b[0])[b[1]]
        (head_a, ratio_a), (head_b, ratio_b) = self.find(a), self.find(b)
        wanted = Fraction(size_a, size_b)
        if head_a == head_b:
            if ratio_a != wanted * ratio_b:
                self.mix(a)
            return
        self.parent[head_a] = (head_b, wanted * ratio_b / ratio_a)
        if head_a in self.mixed:
            self.mixed.add(head_b)

    def mix(self, place: Place) -> None:
        """A dimension whose elements meet."""
        self.mixed.add(self.find(place)[0])

    def mix_all(self, name: str, dims: Sequence[int]) -> None:
        for dim in dims:
            self.mix((name, dim))

    def aligned(self, name: str, out: str, skip: Sequence[int] = ()) -> None:
        """Dimensions counted from the back, as broadcasting does; sizes of 1 are every part's."""
        a, b = self.flat.shape(name), self.flat.shape(out)
        for back in range(1, min(len(a), len(b)) + 1):
            d, e = len(a) - back, len(b) - back
            if d not in skip and a[d] == b[e] and a[d] != 1:
                self.join((name, d), (out, e))


def families(flat: Flat) -> list[Family]:
    """What can be cut, the largest families first; ``flat`` has only steps with kernels or host moves."""
    found = _Families(flat)
    for step in flat.steps:
        _rule(step.op)(found, step)
    heads: dict[Place, dict[Place, Fraction]] = {}
    for name, (_, shape) in flat.types.items():
        for dim, size in enumerate(shape):
            if size > 1:
                head, ratio = found.find((name, dim))
                heads.setdefault(head, {})[name, dim] = ratio
    outputs = {value for _, value in flat.outputs}
    kept: list[Family] = []
    for head, ratios in heads.items():
        names = [name for name, _ in ratios]
        if found.find(head)[0] in found.mixed or len(set(names)) < len(names) or not outputs & set(names):
            continue
        least = min(ratios.values())
        if all((r / least).denominator == 1 for r in ratios.values()):
            place = min(ratios, key=lambda p: ratios[p])
            size = flat.shape(place[0])[place[1]]
            kept.append(Family(size, {p: int(r / least) for p, r in ratios.items()}))
    return sorted(kept, key=lambda f: -sum(math.prod(flat.shape(n)) for n, _ in f.members))


def folded(flat: Flat, family: Family, passes: int) -> tuple[Flat, Fold]:
    """The graph of one pass, and how passes make up the whole."""
    chunk = -(-family.size // passes)
    types = dict(flat.types)
    for (name, dim), times in family.members.items():
        dtype, shape = types[name]
        types[name] = (dtype, (*shape[:dim], chunk * times, *shape[dim + 1 :]))
    part = Flat(flat.inputs, flat.outputs, [_cut(s, types) for s in flat.steps], flat.constants, types)
    whole = Fold(-(-family.size // chunk), chunk, family.size)
    for name in (*flat.inputs, *flat.constants):
        for dim, times in family.of(name):
            whole.inputs[name] = (dim, times)
    for name, value in flat.outputs:
        for dim, times in family.of(value):
            whole.outputs[name] = (dim, times, flat.shape(value))
    return part, whole


def _cut(step: PrimitiveCall, types: dict[str, Any]) -> PrimitiveCall:
    if step.op != "Windows":
        return step
    out = list(types[step.output][1][: len(step.attributes["out"])])
    return replace(step, attributes={**step.attributes, "out": out})


# --- one rule for each kind of step -----------------------------------------------------------------------------------


def _elementwise(f: _Families, step: PrimitiveCall) -> None:
    for name in step.inputs[:1] if step.op == Expand.name else step.inputs:
        f.aligned(name, step.output)


def _reduction(f: _Families, step: PrimitiveCall) -> None:
    source, out = step.inputs[0], step.output
    shape, made = f.flat.shape(source), f.flat.shape(out)
    if step.op == SumTo.full_name:
        full = (1,) * (len(shape) - len(made)) + made
        gone = [d for d, (a, b) in enumerate(zip(shape, full, strict=True)) if a != b]
        f.aligned(source, out, gone)
        f.mix_all(source, gone)
        return
    named = step.inputs[1] if len(step.inputs) > 1 else ""
    given = [int(a) % len(shape) for a in np.ravel(f.flat.constants[named])] if named else []
    if not given and step.attributes.get("noop_with_empty_axes"):
        f.aligned(source, out)
        return
    gone = given or list(range(len(shape)))
    f.mix_all(source, gone)
    kept = [d for d in range(len(shape)) if d not in gone]
    for place, d in enumerate(kept):
        if shape[d] != 1:
            f.join((source, d), (out, d if len(made) == len(shape) else place))


def _product(f: _Families, step: PrimitiveCall) -> None:
    (a, b), out = step.inputs, step.output
    sa, sb, made = f.flat.shape(a), f.flat.shape(b), f.flat.shape(out)
    f.mix((a, len(sa) - 1))
    f.mix((b, max(0, len(sb) - 2)))
    rows, cols = len(sa) > 1, len(sb) > 1
    if rows and sa[-2] != 1:
        f.join((a, len(sa) - 2), (out, len(made) - 1 - cols))
    if cols and sb[-1] != 1:
        f.join((b, len(sb) - 1), (out, len(made) - 1))
    for name, shape in ((a, sa), (b, sb)):
        for back in range(3, len(shape) + 1):
            e = len(made) - back + (2 - rows - cols)
            if shape[-back] != 1 and shape[-back] == made[e]:
                f.join((name, len(shape) - back), (out, e))


def _transpose(f: _Families, step: PrimitiveCall) -> None:
    rank = len(f.flat.shape(step.output))
    order = step.attributes.get("perm") or range(rank)[::-1]
    for to, d in enumerate(order):
        f.join((step.inputs[0], d), (step.output, to))


def _reshape(f: _Families, step: PrimitiveCall) -> None:
    """Dimensions in groups of equal product: the first ones of both sides are cut in proportion."""
    source, out = step.inputs[0], step.output
    a = [(d, n) for d, n in enumerate(f.flat.shape(source)) if n != 1]
    b = [(d, n) for d, n in enumerate(f.flat.shape(out)) if n != 1]
    while a and b:
        left, right = [a.pop(0)], [b.pop(0)]
        while (p := math.prod(n for _, n in left)) != (q := math.prod(n for _, n in right)):
            (left if p < q else right).append((a if p < q else b).pop(0))
        if left[0][1] % right[0][1] == 0 or right[0][1] % left[0][1] == 0:
            f.join((source, left[0][0]), (out, right[0][0]))
        else:
            f.mix((source, left[0][0]))
            f.mix((out, right[0][0]))
        f.mix_all(source, [d for d, _ in left[1:]])
        f.mix_all(out, [d for d, _ in right[1:]])


def _same_sizes(f: _Families, step: PrimitiveCall, changed: Sequence[int], count: int = 1) -> None:
    """Views that leave all but some dimensions as they are."""
    for name in step.inputs[:count]:
        shape = f.flat.shape(name)
        for d, n in enumerate(shape):
            if d in changed:
                f.mix((name, d))
            elif n != 1:
                f.join((name, d), (step.output, d))
    f.mix_all(step.output, changed)


def _concat(f: _Families, step: PrimitiveCall) -> None:
    _same_sizes(f, step, [step.attributes["axis"] % len(f.flat.shape(step.output))], len(step.inputs))


def _resized(f: _Families, step: PrimitiveCall) -> None:
    """Slice, Pad and Tile: what has its size has its elements, unless a slice turns them round."""
    a, b = f.flat.shape(step.inputs[0]), f.flat.shape(step.output)
    changed = [d for d in range(len(a)) if a[d] != b[d]]
    if step.op == Pad.name:
        changed = _padded(f, step)
    if (
        step.op == Slice.name
        and len(step.inputs) > 4
        and step.inputs[4]
        and (f.flat.constants[step.inputs[4]] < 0).any()
    ):
        changed = list(range(len(a)))
    _same_sizes(f, step, changed)


def _padded(f: _Families, step: PrimitiveCall) -> list[int]:
    rank = len(f.flat.shape(step.output))
    named = [step.inputs[i] if len(step.inputs) > i else "" for i in (1, 3)]
    if any(n and n not in f.flat.constants for n in named):
        return list(range(rank))
    pads = np.ravel(f.flat.constants[named[0]])
    axes = [int(a) % rank for a in np.ravel(f.flat.constants[named[1]])] if named[1] else list(range(rank))
    return [axis for i, axis in enumerate(axes) if pads[i] or pads[len(axes) + i]]


def _windows(f: _Families, step: PrimitiveCall) -> None:
    source, out, given = step.inputs[0], step.output, step.attributes
    rank = len(f.flat.shape(source))
    for d in range(rank):
        plain = given["window"][d] == 1 and given["strides"][d] == 1 and not any(given["pads"][d])
        if plain:
            f.join((source, d), (out, d))
        else:
            f.mix((source, d))
            f.mix((out, d))
    f.mix_all(out, range(rank, 2 * rank))


def _indices(f: _Families, step: PrimitiveCall) -> None:
    several = len(step.attributes["sizes"]) > 1
    rank = len(f.flat.shape(step.inputs[0]))
    for d in range(rank - several):
        f.join((step.inputs[0], d), (step.output, d))
    if several:
        f.mix((step.inputs[0], rank - 1))


def _take(f: _Families, step: PrimitiveCall) -> None:
    (data, index), out = step.inputs, step.output
    axis, wide = step.attributes["axis"], len(f.flat.shape(index))
    f.mix((data, axis))
    for d, n in enumerate(f.flat.shape(data)):
        if d == axis:
            continue
        to = d if step.attributes["each"] or d < axis else d - 1 + wide
        if n != f.flat.shape(out)[to]:
            f.mix((data, d))
            f.mix((out, to))
        else:
            f.join((data, d), (out, to))
    for d in range(wide):
        f.join((index, d), (out, d if step.attributes["each"] else axis + d))


def _put(f: _Families, step: PrimitiveCall) -> None:
    (data, index, updates), out = step.inputs, step.output
    axis, each, wide = step.attributes["axis"], step.attributes["each"], len(f.flat.shape(index))
    f.mix_all(index, [axis] if each else range(wide))
    f.mix_all(updates, [axis] if each else range(axis, axis + wide))
    f.mix((data, axis))
    f.mix((out, axis))
    for d, n in enumerate(f.flat.shape(data)):
        if d == axis:
            continue
        f.join((data, d), (out, d))
        to = d if each or d < axis else d - 1 + wide
        if f.flat.shape(updates)[to] != n:
            f.mix((data, d))
            f.mix((updates, to))
        else:
            f.join((updates, to), (data, d))
        if each and f.flat.shape(index)[d] == n:
            f.join((index, d), (data, d))


_RULES: dict[str, Callable[[_Families, PrimitiveCall], None]] = {
    **dict.fromkeys(
        (ReduceSum.name, ReduceMean.name, ReduceMax.name, ReduceMin.name, ReduceProd.name, SumTo.full_name), _reduction
    ),
    **dict.fromkeys((Reshape.name, Squeeze.name, Unsqueeze.name), _reshape),
    **dict.fromkeys((Slice.name, Pad.name, Tile.name), _resized),
    Concat.name: _concat,
    Expand.name: _elementwise,
    "Indices": _indices,
    MatMul.name: _product,
    Transpose.name: _transpose,
    "Windows": _windows,
    "wse::Put": _put,
    "wse::Take": _take,
}


def _rule(op: str) -> Callable[[_Families, PrimitiveCall], None]:
    return _elementwise if function_of(op) else _RULES[op]
