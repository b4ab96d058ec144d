"""Reductions along axes, places of extremes, and running sums."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.graph import DimLike, DType, Node, Shape, TensorType
from pyflame_rt.graph.errors import InputError, UnsupportedOperatorError
from pyflame_rt.ops.core.flop_counts import flops_per_input
from pyflame_rt.ops.core.guards import has_rank, length_of, same_size
from pyflame_rt.ops.core.registry import get_op, operator, primitive
from pyflame_rt.ops.core.size_arithmetic import known_ints
from pyflame_rt.ops.core.type_rules import normalize_axes, normalize_axis, same
from pyflame_rt.ops.core.upgrade import Upgrade, upgrade
from pyflame_rt.ops.core.value import Value, constant
from pyflame_rt.ops.onnx.arithmetic import Abs, runtime_shape
from pyflame_rt.ops.onnx.cast import Cast, CastLike
from pyflame_rt.ops.onnx.logic import Equal, Where
from pyflame_rt.ops.onnx.math import Exp, Log, Sqrt
from pyflame_rt.ops.pyflame.complex_numbers import conjugated

if TYPE_CHECKING:
    from collections.abc import Callable

# ------------------------------------------------------------------ types


def _reduced_type(
    data: Value, axes: Value | None = None, /, *, keepdims: int = 1, noop_with_empty_axes: int = 0
) -> TensorType:
    shape = data.tensor_type.shape
    if shape is None:
        return TensorType(data.dtype)
    count = _axis_count(axes)
    if count == 0 and noop_with_empty_axes:
        return data.tensor_type
    if count == 0:
        return TensorType(data.dtype, Shape([1] * len(shape) if keepdims else ()))
    if axes is None or axes.known is None:
        return TensorType(data.dtype, _unknown_axes(len(shape), count, keepdims))
    gone = normalize_axes(axes.ints(), len(shape))
    return TensorType(data.dtype, _without(shape, gone, keepdims))


def _axis_count(axes: Value | None) -> DimLike:
    """How many axes are named; None when that is only known when running."""
    if axes is None:
        return 0
    if axes.known is not None:
        return len(axes.ints())
    shape = axes.tensor_type.shape
    return shape[0] if shape is not None and len(shape) == 1 and isinstance(shape[0], int) else None


def _unknown_axes(rank: int, count: DimLike, keepdims: int) -> Shape | None:
    if keepdims:
        return Shape([None] * rank)
    return Shape([None] * (rank - count)) if isinstance(count, int) else None


def _without(shape: Shape, axes: list[int], keepdims: int) -> Shape:
    if keepdims:
        return Shape(1 if i in axes else d for i, d in enumerate(shape))
    return Shape(d for i, d in enumerate(shape) if i not in axes)


# ------------------------------------------------------------------ gradients


def _restored(value: Value, axes: Value | None, keepdims: int) -> Value:
    """A reduced value with its axes of size 1 put back, so that it broadcasts against ``x``."""
    # Without axes nothing was reduced, or everything: a scalar broadcasts as it is.
    if keepdims or axes is None or _axis_count(axes) == 0:
        return value
    return get_op("Unsqueeze")(value, axes)


def _sum_vjp(
    g: Value, y: Value, x: Value, axes: Value | None = None, *, keepdims: int, noop_with_empty_axes: int
) -> tuple[Value, ...]:
    spread = _restored(g, axes, keepdims)
    return (get_op("Expand")(spread, runtime_shape(x)),)


def _mean_vjp(g: Value, y: Value, x: Value, *rest: Any, **attributes: Any) -> tuple[Value, ...]:
    size = get_op("Size")
    before, after = x.tensor_type.shape, y.tensor_type.shape
    if before is not None and after is not None and before.is_static and after.is_static:
        total, parts = before.num_elements or 0, after.num_elements or 0
        share = constant(total / parts if parts else 1.0, g)
    else:
        share = Cast(size(x) / size(y), to=g.dtype)
    return _sum_vjp(g / share, y, x, *rest, **attributes)


def _extreme_vjp(
    g: Value, y: Value, x: Value, axes: Value | None = None, *, keepdims: int, noop_with_empty_axes: int
) -> tuple[Value, ...]:
    """To the elements that are the extreme, in equal parts."""
    noop = noop_with_empty_axes
    won = CastLike(Equal(x, _restored(y, axes, keepdims)), x)
    count = ReduceSum(won, axes, keepdims=1, noop_with_empty_axes=noop)
    return (won * (_restored(g, axes, keepdims) / count),)


def _prod_vjp(
    g: Value, y: Value, x: Value, axes: Value | None = None, *, keepdims: int, noop_with_empty_axes: int
) -> tuple[Value, ...]:
    """The product of all others; with a zero among them only that zero's is not 0."""
    options = {"keepdims": 1, "noop_with_empty_axes": noop_with_empty_axes}
    zero = Equal(x, 0.0)
    filled = Where(zero, 1.0, x)
    zeros = ReduceSum(CastLike(zero, x), axes, **options)
    product = ReduceProd(filled, axes, **options)
    others = Where(zero, Where(Equal(zeros, 1.0), product, 0.0), Where(Equal(zeros, 0.0), product, 0.0))
    return (_restored(g, axes, keepdims) * conjugated(others / filled),)


def _log_sum_exp_vjp(
    g: Value, y: Value, x: Value, axes: Value | None = None, *, keepdims: int, noop_with_empty_axes: int
) -> tuple[Value, ...]:
    """To each element by its share of the sum."""
    share = Exp(x - _restored(y, axes, keepdims))
    return (_restored(g, axes, keepdims) * share,)


def _length_vjp(
    g: Value, y: Value, x: Value, axes: Value | None = None, *, keepdims: int, noop_with_empty_axes: int
) -> tuple[Value, ...]:
    """Along the vector, over its length; a vector of length 0 has no direction, and no slope."""
    length, wide = _restored(y, axes, keepdims), _restored(g, axes, keepdims)
    nowhere = Equal(length, 0.0)
    return (x * Where(nowhere, 0.0, wide / Where(nowhere, 1.0, length)),)


# ------------------------------------------------------------------ primitives


# What all reductions over given axes say of themselves.
_composed = partial(operator, infer=_reduced_type, types="T int64 > T", kind="reduce", known=(1,))
_fold = partial(
    primitive, infer=_reduced_type, types="T int64 > T", kind="reduce", known=(1,), flops=flops_per_input(1)
)


def _axes_of(ops: Any, axes: Any, rank: int, noop: int) -> tuple[int, ...]:
    given = [] if axes is None else [int(a) for a in ops.to_numpy(axes).ravel()]
    if not given:
        return () if noop else tuple(range(rank))
    return tuple(sorted(normalize_axes(given, rank)))


def _is_empty(data: Any, axes: tuple[int, ...]) -> bool:
    return any(data.shape[a] == 0 for a in axes)


def _filled(ops: Any, data: Any, axes: tuple[int, ...], keepdims: int, value: Any) -> Any:
    """What a reduction over nothing gives."""
    kept = [1 if i in axes else n for i, n in enumerate(data.shape) if keepdims or i not in axes]
    return ops.full(tuple(kept), value, dtype=ops.dtype(data))


@_fold(
    since=13,
    shape_math=True,
    vjp=_sum_vjp,
    fold="sum",
    complex=True,
)
def ReduceSum(ops: Any, data: Any, axes: Any = None, /, *, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Any:
    """Sum."""
    along = _axes_of(ops, axes, len(data.shape), noop_with_empty_axes)
    return ops.sum(data, axis=along, keepdims=bool(keepdims)) if along else data


@_fold(
    since=18,
    shape_math=True,
    vjp=_prod_vjp,
    fold="prod",
    complex=True,
)
def ReduceProd(ops: Any, data: Any, axes: Any = None, /, *, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Any:
    """Product."""
    along = _axes_of(ops, axes, len(data.shape), noop_with_empty_axes)
    return ops.prod(data, axis=along, keepdims=bool(keepdims)) if along else data


@_fold(
    since=18,
    vjp=_mean_vjp,
    fold="mean",
    complex=True,
)
def ReduceMean(ops: Any, data: Any, axes: Any = None, /, *, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Any:
    """Mean; of integers rounded towards zero."""
    along = _axes_of(ops, axes, len(data.shape), noop_with_empty_axes)
    if not along:
        return data
    kind = DType.of(ops.dtype(data))
    if kind.is_float or kind.is_complex:
        return ops.mean(data, axis=along, keepdims=bool(keepdims))
    count = int(np.prod([data.shape[a] for a in along]))
    total = ops.sum(data, axis=along, keepdims=bool(keepdims))
    return ops.truncate_divide(total, ops.full_like(total, count))


@_fold(
    since=20,
    shape_math=True,
    vjp=_extreme_vjp,
    fold="max",
)
def ReduceMax(ops: Any, data: Any, axes: Any = None, /, *, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Any:
    """Largest element; of nothing the smallest value of the type."""
    along = _axes_of(ops, axes, len(data.shape), noop_with_empty_axes)
    if _is_empty(data, along):
        return _filled(ops, data, along, keepdims, _limit(ops.dtype(data), "min"))
    return ops.max(data, axis=along, keepdims=bool(keepdims)) if along else data


@_fold(
    since=20,
    shape_math=True,
    vjp=_extreme_vjp,
    fold="min",
)
def ReduceMin(ops: Any, data: Any, axes: Any = None, /, *, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Any:
    """Smallest element; of nothing the largest value of the type."""
    along = _axes_of(ops, axes, len(data.shape), noop_with_empty_axes)
    if _is_empty(data, along):
        return _filled(ops, data, along, keepdims, _limit(ops.dtype(data), "max"))
    return ops.min(data, axis=along, keepdims=bool(keepdims)) if along else data


def _limit(dtype: np.dtype[Any], end: str) -> Any:
    kind = DType.of(dtype)
    if kind.is_float:
        return float("-inf") if end == "min" else float("inf")
    if kind is DType.Bool:
        return end == "max"
    return int(getattr(np.iinfo(dtype), end))


# ------------------------------------------------------------------ compositions


def _in_float64(x: Value, body: Callable[[Value], Value]) -> Value:
    """Roots and logarithms of integers are rounded towards zero, as older opsets had them."""
    if not x.dtype.is_integer:
        return body(x)
    return Cast(body(Cast(x, to=DType.Float64)), to=x.dtype)


def _in_float32(x: Value, body: Callable[[Value], Value]) -> Value:
    if x.dtype not in (DType.Float16, DType.BFloat16):
        return _in_float64(x, body)
    return Cast(body(Cast(x, to=DType.Float32)), to=x.dtype)


@_composed(since=18)
def ReduceL1(data: Value, axes: Value | None = None, /, *, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Value:
    """Sum of absolute values."""
    return ReduceSum(Abs(data), axes, keepdims=keepdims, noop_with_empty_axes=noop_with_empty_axes)


@_composed(since=18)
def ReduceSumSquare(
    data: Value, axes: Value | None = None, /, *, keepdims: int = 1, noop_with_empty_axes: int = 0
) -> Value:
    """Sum of squares."""
    options = {"keepdims": keepdims, "noop_with_empty_axes": noop_with_empty_axes}
    if data.dtype.is_integer:
        return ReduceSum(data * data, axes, **options)
    return _in_float32(data, lambda x: ReduceSum(x * x, axes, **options))


@_composed(since=18, vjp=_length_vjp)
def ReduceL2(data: Value, axes: Value | None = None, /, *, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Value:
    """Root of the sum of squares."""
    options = {"keepdims": keepdims, "noop_with_empty_axes": noop_with_empty_axes}
    return _in_float32(data, lambda x: Sqrt(ReduceSum(x * x, axes, **options)))


@_composed(since=28)
def ReduceLogSum(
    data: Value, axes: Value | None = None, /, *, keepdims: int = 1, noop_with_empty_axes: int = 0
) -> Value:
    """Logarithm of the sum."""
    options = {"keepdims": keepdims, "noop_with_empty_axes": noop_with_empty_axes}
    return _in_float32(data, lambda x: Log(ReduceSum(x, axes, **options)))


@_composed(since=28, vjp=_log_sum_exp_vjp)
def ReduceLogSumExp(
    data: Value, axes: Value | None = None, /, *, keepdims: int = 1, noop_with_empty_axes: int = 0
) -> Value:
    """Logarithm of the sum of exponentials, without overflow."""
    noop = noop_with_empty_axes

    def body(x: Value) -> Value:
        top = ReduceMax(x, axes, keepdims=1, noop_with_empty_axes=noop)
        # An infinite maximum would be subtracted from itself.
        top = Where(Equal(top - top, 0.0), top, 0.0)
        total = ReduceSum(Exp(x - top), axes, keepdims=1, noop_with_empty_axes=noop)
        result = Log(total) + top
        if keepdims:
            return result
        # The axes have size 1 by now: a sum takes them away, whichever they are.
        return ReduceSum(result, axes, keepdims=0, noop_with_empty_axes=noop)

    return _in_float32(data, body)


# ------------------------------------------------------------------ places


def _place_type(data: Value, /, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> TensorType:
    shape = data.tensor_type.shape
    if shape is None:
        return TensorType(DType.Int64)
    return TensorType(DType.Int64, _without(shape, [normalize_axis(axis, len(shape))], keepdims))


def _place(ops: Any, find: Any, data: Any, axis: int, keepdims: int, last: int) -> Any:
    along = normalize_axis(axis, len(data.shape))
    if data.shape[along] == 0:
        raise InputError(f"axis {axis} is empty: there is no element to choose")
    if not last:
        return find(data, axis=along, keepdims=bool(keepdims))
    found = find(ops.flip(data, along), axis=along, keepdims=bool(keepdims))
    return ops.subtract(data.shape[along] - 1, found)


@primitive(since=13, infer=_place_type, types="T > int64", kind="reduce")
def ArgMax(ops: Any, data: Any, /, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Any:
    """Index of the largest element along an axis."""
    return _place(ops, ops.argmax, data, axis, keepdims, select_last_index)


@primitive(since=13, infer=_place_type, types="T > int64", kind="reduce")
def ArgMin(ops: Any, data: Any, /, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Any:
    """Index of the smallest element along an axis."""
    return _place(ops, ops.argmin, data, axis, keepdims, select_last_index)


# ------------------------------------------------------------------ running


def _running(ops: Any, run: Any, x: Any, axis: Any, start: int, exclusive: int, reverse: int) -> Any:
    along = normalize_axis(int(ops.to_numpy(axis).item()), len(x.shape))
    dtype = ops.dtype(x)
    x = ops.flip(x, along) if reverse else x
    if exclusive and x.shape[along]:
        # Each element sees those before it: all move on by one, the last falls out.
        sizes = list(x.shape)
        stops = [n - 1 if i == along else n for i, n in enumerate(sizes)]
        kept = ops.slice(x, [0] * len(sizes), stops)
        first = ops.full(tuple(1 if i == along else n for i, n in enumerate(sizes)), start, dtype)
        x = ops.concatenate([first, kept], axis=along)
    result = run(x, axis=along, dtype=dtype)
    return ops.flip(result, along) if reverse else result


def _running_needs(x: Value, axis: Value, /, **_: Any) -> None:
    same_size("the length of axis", length_of(axis), 1, "one number")
    has_rank("axis", axis, 0, 1)
    known = known_ints(axis)
    if known is not None and known:
        normalize_axis(known[0], x.rank)


def _cumsum_vjp(g: Value, y: Value, x: Value, axis: Value, *, exclusive: int, reverse: int) -> tuple[Value, None]:
    return CumSum(g, axis, exclusive=exclusive, reverse=0 if reverse else 1), None


@primitive(
    since=14,
    infer=same,
    shape_math=True,
    vjp=_cumsum_vjp,
    requires=_running_needs,
    types="T T2 > T",
    kind="reduce",
    known=(1,),
    complex=True,
)
def CumSum(ops: Any, x: Any, axis: Any, /, *, exclusive: int = 0, reverse: int = 0) -> Any:
    """Running sum along an axis."""
    return _running(ops, ops.cumsum, x, axis, 0, exclusive, reverse)


def _cumprod_vjp(
    g: Value, y: Value, x: Value, axis: Value, *, exclusive: int, reverse: int
) -> tuple[Value | None, ...]:
    """Before the first zero by division; at the first zero from the products without it; nothing reaches beyond."""
    from pyflame_rt.ops.onnx.cast import CastLike
    from pyflame_rt.ops.onnx.logic import And, Equal, Where

    if exclusive:
        raise UnsupportedOperatorError("CumProd with exclusive=1 has no gradient")
    back = {"reverse": 1 - reverse}
    zero = Equal(x, 0.0)
    count = CumSum(CastLike(zero, x), axis, reverse=reverse)
    first = And(zero, Equal(count, 1.0))
    without = CumProd(Where(first, 1.0, x), axis, reverse=reverse)
    before = CumSum(g * y, axis, **back) / Where(zero, 1.0, x)
    at = CumSum(Where(Equal(count, 1.0), g * without, 0.0), axis, **back)
    return Where(Equal(count, 0.0), before, Where(first, at, 0.0)), None


@primitive(
    since=26, infer=same, shape_math=True, vjp=_cumprod_vjp, requires=_running_needs, types="T T2 > T", known=(1,)
)
def CumProd(ops: Any, x: Any, axis: Any, /, *, exclusive: int = 0, reverse: int = 0) -> Any:
    """Running product along an axis."""
    return _running(ops, ops.cumprod, x, axis, 1, exclusive, reverse)


# ------------------------------------------------------------------ older forms


@upgrade("ReduceSum", to=13)
@upgrade(
    [
        "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax",
        "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSumSquare",
    ],
    to=18,
)  # fmt: skip
def axes_became_an_input(node: Node, up: Upgrade) -> Node:
    """Axes were an attribute."""
    kept = {k: v for k, v in node.attributes.items() if k != "axes"}
    axes = node.get_attr("axes")
    if axes:
        return node.replace(inputs=[*node.inputs, up.constant(axes, np.int64, "axes")], attributes=kept)
    return node.replace(attributes=kept)
