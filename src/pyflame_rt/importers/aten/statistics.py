"""Order statistics, counts, running extremes and differences of aten."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from pyflame_rt.graph import DType
from pyflame_rt.graph.errors import ShapeMismatchError, UndeterminedError
from pyflame_rt.importers.aten.creation import filled
from pyflame_rt.importers.aten.indexing import index_added
from pyflame_rt.importers.aten.shaping import joined, sliced
from pyflame_rt.importers.aten.table import aten
from pyflame_rt.importers.aten.values import Num, axis, cast, number, refuse, shape_value, sizes, static, wrap
from pyflame_rt.ops.core.value import Value, constant
from pyflame_rt.ops.onnx import logic
from pyflame_rt.ops.onnx import math as maths
from pyflame_rt.ops.onnx.arithmetic import Max
from pyflame_rt.ops.onnx.index import Gather, GatherElements, TopK, Unique
from pyflame_rt.ops.onnx.reduce import ReduceMax
from pyflame_rt.ops.onnx.shape import Expand, Reshape, Shape, Squeeze, Unsqueeze

__all__: list[str] = []

_INTERPOLATIONS = ("linear", "lower", "higher", "midpoint", "nearest")


# ------------------------------------------------------------------ order


@aten("median")
def _median(x: Value, dim: Any = None, keepdim: bool = False) -> Any:
    if x.rank == 0:
        return x if dim is None else (x, number(0, DType.Int64))
    value = Reshape(x, [-1]) if dim is None else x
    along = 0 if dim is None else axis(dim, x.rank)
    count = value.shape[along]
    if not isinstance(count, int):
        raise UndeterminedError("median over an axis whose size is only known when running")
    # The lower of the two in the middle: the last of the smallest half.
    values, places = TopK(value, [(count + 1) // 2], axis=along, largest=0)
    last = constant((count + 1) // 2 - 1, DType.Int64)
    found, place = (Gather(v, last, axis=along) for v in (values, places))
    if dim is None:
        return found
    return (Unsqueeze(found, [along]), Unsqueeze(place, [along])) if keepdim else (found, place)


def _quantiles(x: Value, q: Any, dim: Any, keepdim: bool, interpolation: str) -> Value:
    if interpolation not in _INTERPOLATIONS:
        raise refuse(f"quantile with interpolation={interpolation!r}")
    flat = dim is None or x.rank == 0
    value, along = (Reshape(x, [-1]), 0) if flat else (x, axis(dim, x.rank))
    count = sizes(value)[along]
    ordered = TopK(value, shape_value([count]), axis=along, largest=0, sorted=1)[0]
    shares = number(q, x.dtype)
    row = Reshape(shares, [-1 if i == along else 1 for i in range(value.rank)])
    place = row * (number(count, x.dtype) - constant(1.0, x))
    low, high = maths.Floor(place), maths.Ceil(place)
    if interpolation == "nearest":
        low = high = maths.Round(place)
    elif interpolation != "linear" and interpolation != "midpoint":
        low = high = low if interpolation == "lower" else high
    weight = constant(0.5, x) if interpolation == "midpoint" else place - low
    first, second = (Gather(ordered, cast(Reshape(p, [-1]), DType.Int64), axis=along) for p in (low, high))
    found = logic.Where(logic.Equal(low, high), first, first + (second - first) * weight)
    bad = ReduceMax(cast(maths.IsNaN(value), DType.Int32), [along], keepdims=1)
    found = logic.Where(cast(bad, DType.Bool), constant(math.nan, x), found)
    return _arranged(found, along, shares.rank == 0, x.rank if flat else None, keepdim)


def _arranged(found: Value, along: int, single: bool, flat_rank: int | None, keepdim: bool) -> Value:
    """Several shares come first; the axis stays with size one where that is asked for."""
    from pyflame_rt.ops.onnx.shape import Transpose

    order = [along, *[i for i in range(found.rank) if i != along]]
    made = Transpose(found, perm=order) if order != sorted(order) else found
    if keepdim:
        more = list(range(1, flat_rank + 1)) if flat_rank is not None else [along + 1]
        made = Unsqueeze(made, more) if more else made
    return Squeeze(made, [0]) if single else made


@aten("quantile")
def _quantile(
    x: Value, q: Any, dim: Any = None, keepdim: bool = False, *, interpolation: str = "linear"
) -> Value:  # fmt: skip
    return _quantiles(x, q, dim, keepdim, interpolation)


def _running(x: Value, dim: int, least: bool) -> tuple[Value, Value]:
    """The extreme so far and where it is, the last of equal ones; doubling how far back is looked."""
    if x.rank == 0:
        return x, number(0, DType.Int64)
    along = axis(dim, x.rank)
    size = int(static(sizes(x)[along], "the size of a running extreme's axis"))
    values = cast(x, DType.UInt8) if x.dtype is DType.Bool else x
    counted = constant(np.arange(size).reshape([-1 if i == along else 1 for i in range(x.rank)]), DType.Int64)
    places, step = Expand(counted, Shape(x)), 1
    while step < size:
        before, there = (_moved_back(v, along, step) for v in (values, places))
        wins = logic.Or(values < before if least else values > before, logic.Equal(values, before))
        if x.dtype.is_float:
            wins = logic.Or(maths.IsNaN(values), logic.And(wins, logic.Not(maths.IsNaN(before))))
        values, places = logic.Where(wins, values, before), logic.Where(wins, places, there)
        step *= 2
    return GatherElements(x, places, axis=along), places


def _moved_back(x: Value, along: int, step: int) -> Value:
    """Each element is the one some places before it, the first one at the beginning."""
    first = sliced(x, along, 0, 1)
    return joined([*[first] * step, sliced(x, along, 0, -step)], along)


@aten("cummax")
def _cummax(x: Value, dim: int) -> tuple[Value, Value]:
    return _running(x, dim, least=False)


@aten("cummin")
def _cummin(x: Value, dim: int) -> tuple[Value, Value]:
    return _running(x, dim, least=True)


@aten("msort")
def _msort(x: Value) -> Value:
    return TopK(x, shape_value([sizes(x)[0]]), axis=0, largest=0, sorted=1)[0] if x.rank else x


@aten("_unique2", "unique_dim")
def _unique(x: Value, *args: Any, **named: Any) -> tuple[Value, Value, Value]:
    """Unique elements in order, where each element is among them, and how often each comes."""
    if named.get("dim") is not None or (args and not isinstance(args[0], bool)):
        raise refuse("unique along an axis")
    made, _, places, counts = Unique(Reshape(x, [-1]), sorted=1)
    return made, Reshape(places, Shape(x)), counts


# ------------------------------------------------------------------ counts and differences


@aten("bincount")
def _bincount(x: Value, weights: Value | None = None, minlength: int = 0) -> Value:
    kind = DType.Int64 if weights is None else weights.dtype if weights.dtype is DType.Float32 else DType.Float64
    least = constant(int(minlength), DType.Int64)
    longest = Max(ReduceMax(joined([cast(x, DType.Int64), constant([-1], DType.Int64)]), [0], keepdims=0) + 1, least)
    each = Expand(constant(1, kind), Shape(x)) if weights is None else cast(weights, kind)
    count = wrap(longest, int)
    start = filled([count if isinstance(count, Num) else int(count)], 0, kind)
    return index_added(start, 0, cast(x, DType.Int64), each)


@aten("diff")
def _diff(x: Value, n: int = 1, dim: int = -1, prepend: Value | None = None, append: Value | None = None) -> Value:
    if x.rank == 0:
        raise ShapeMismatchError("diff takes a tensor with axes, got a scalar")
    along = axis(dim, x.rank)
    value = joined([p for p in (prepend, x, append) if p is not None], along)
    for _ in range(int(static(n, "how often differences are taken"))):
        after, before = sliced(value, along, 1, None), sliced(value, along, 0, -1)
        value = logic.Xor(after, before) if value.dtype is DType.Bool else after - before
    return value
