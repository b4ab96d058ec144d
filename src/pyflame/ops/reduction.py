"""Reductions over dimensions, and what accumulates along one."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from pyflame.dtypes import DType, get_default_dtype, to_dtype
from pyflame.ops import arithmetic as ar
from pyflame.ops.core import (
    Handle,
    as_tensor,
    axes_of,
    axis_of,
    call,
    call_many,
    cast,
    const,
    dim_argument,
    floating,
    real_only,
    remembered,
    rounded_once,
    scalar,
)
from pyflame_rt.graph.named_arguments import names_arguments
from pyflame_rt.ops.onnx.cast import Identity
from pyflame_rt.ops.onnx.index import GatherElements, TopK
from pyflame_rt.ops.onnx.reduce import (
    ArgMax,
    ArgMin,
    CumProd,
    CumSum,
    ReduceL2,
    ReduceLogSumExp,
    ReduceMax,
    ReduceMean,
    ReduceMin,
    ReduceProd,
    ReduceSum,
)
from pyflame_rt.ops.pyflame.slopes import FlatRoot

if TYPE_CHECKING:
    from pyflame.tensors import Tensor
    from pyflame_rt.ops.core.registry import Op


def _reduce(op: Op, x: Tensor, dim: Any, keepdim: bool) -> Tensor:
    axes = axes_of(dim, x.ndim)
    if not axes:
        return call(Identity, x)
    return call(op, x, axes, keepdims=int(keepdim))


def _keep(keepdim: bool, keepdims: bool | None) -> bool:
    return keepdim if keepdims is None else keepdims


@remembered
def sum(
    input: Any,
    dim: Any = None,
    keepdim: bool = False,
    *,
    axis: Any = None,
    keepdims: bool | None = None,
    dtype: Any = None,
) -> Tensor:
    """Sum over dimensions, over all when none is named."""
    x = as_tensor(input)
    kind = to_dtype(dtype) if dtype is not None else (x.dtype if x.dtype.is_inexact else DType.int64)
    return _reduce(ReduceSum, cast(x, kind), dim_argument(dim, axis), _keep(keepdim, keepdims))


@remembered
def mean(
    input: Any,
    dim: Any = None,
    keepdim: bool = False,
    *,
    axis: Any = None,
    keepdims: bool | None = None,
    dtype: Any = None,
) -> Tensor:
    """Mean over dimensions, over all when none is named."""
    x = as_tensor(input)
    x = x if dtype is None else cast(x, to_dtype(dtype))
    if not x.dtype.is_inexact:
        x = cast(x, get_default_dtype())
    axes = axes_of(dim_argument(dim, axis), x.ndim)
    if x.numel == 0:
        count = math.prod(x.shape[a] for a in axes)
        return ar.div(sum(x, axes, _keep(keepdim, keepdims)), count)
    return _reduce(ReduceMean, x, axes, _keep(keepdim, keepdims)) if axes else call(Identity, x)


def prod(
    input: Any,
    dim: Any = None,
    keepdim: bool = False,
    *,
    axis: Any = None,
    keepdims: bool | None = None,
    dtype: Any = None,
) -> Tensor:
    """Product over dimensions, over all when none is named."""
    x = as_tensor(input)
    kind = to_dtype(dtype) if dtype is not None else (x.dtype if x.dtype.is_inexact else DType.int64)
    inner = DType.uint8 if kind is DType.bool else kind
    whole = cast(cast(x, kind), inner)
    return cast(_reduce(ReduceProd, whole, dim_argument(dim, axis), _keep(keepdim, keepdims)), kind)


def _extreme(op: Op, x: Tensor, dim: Any, keepdim: bool) -> Tensor:
    if x.numel == 0 and 0 in [x.shape[a] for a in axes_of(dim, x.ndim)]:
        raise IndexError(f"there is no largest or smallest of no elements: shape {x.shape}, dim {dim}")
    if x.dtype is DType.bool:
        return cast(_reduce(op, cast(x, DType.uint8), dim, keepdim), DType.bool)
    return _reduce(op, x, dim, keepdim)


def max(
    input: Any,
    dim: Any = None,
    keepdim: bool = False,
    *,
    other: Any = None,
    axis: Any = None,
    keepdims: bool | None = None,
) -> Any:
    """The largest element; with ``dim`` a pair: the largest along it, and where they are. See amax for values alone.

    Example:
        >>> import pyflame as pf
        >>> values, places = pf.max(pf.tensor([[1.0, 7.0], [5.0, 2.0]]), dim=1)
        >>> values.tolist(), places.tolist()
        ([7.0, 5.0], [1, 0])
    """
    if other is not None or isinstance(dim, Handle):
        return ar.maximum(input, dim if other is None else other)
    return _largest(ReduceMax, ArgMax, as_tensor(input), dim_argument(dim, axis), _keep(keepdim, keepdims))


def min(
    input: Any,
    dim: Any = None,
    keepdim: bool = False,
    *,
    other: Any = None,
    axis: Any = None,
    keepdims: bool | None = None,
) -> Any:
    """The smallest element; with ``dim`` a pair: the smallest along it, and where they are. See amin for values."""
    if other is not None or isinstance(dim, Handle):
        return ar.minimum(input, dim if other is None else other)
    return _largest(ReduceMin, ArgMin, as_tensor(input), dim_argument(dim, axis), _keep(keepdim, keepdims))


def _largest(op: Op, places: Op, x: Tensor, dim: Any, keepdim: bool) -> Any:
    """The extreme of all elements, or values and places along one dimension; the gradient goes to those places."""
    if dim is None:
        return _extreme(op, x, None, keepdim)
    if isinstance(dim, (tuple, list)):
        raise TypeError(f"max and min go along one dimension, got {tuple(dim)}; amax and amin take several")
    along = axis_of(dim, x.ndim)
    if x.ndim == 0:
        return Ordered(call(Identity, x), ar.mul(cast(x, DType.int64), 0))
    if x.shape[along] == 0:
        raise IndexError(f"there is no largest or smallest of no elements: shape {x.shape}, dim {dim}")
    where = _arg(places, x, along, True)
    values = call(GatherElements, x, where, axis=along)
    return Ordered(values, where) if keepdim else Ordered(values.squeeze(along), where.squeeze(along))


def amax(input: Any, dim: Any = None, keepdim: bool = False) -> Tensor:
    """The largest element along dimensions."""
    return _extreme(ReduceMax, as_tensor(input), dim, keepdim)


def amin(input: Any, dim: Any = None, keepdim: bool = False) -> Tensor:
    """The smallest element along dimensions."""
    return _extreme(ReduceMin, as_tensor(input), dim, keepdim)


def aminmax(input: Any, *, dim: Any = None, keepdim: bool = False) -> Extremes:
    """The smallest and the largest element."""
    return Extremes(amin(input, dim, keepdim), amax(input, dim, keepdim))


def _arg(op: Op, input: Any, dim: Any, keepdim: bool) -> Tensor:
    x = as_tensor(input)
    if x.dtype is DType.bool:
        x = cast(x, DType.uint8)
    if dim is None:
        flat = call(op, x.reshape((-1,)), axis=0, keepdims=0)
        return flat.reshape((1,) * x.ndim) if keepdim else flat
    if x.ndim == 0:
        axis_of(dim, 0)
        return call(op, x.reshape((1,)), axis=0, keepdims=0)
    return call(op, x, axis=axis_of(dim, x.ndim), keepdims=int(keepdim))


def argmax(input: Any, dim: int | None = None, keepdim: bool = False, *, axis: int | None = None) -> Tensor:
    """Where the largest element is: the first one, in the flattened tensor or along a dimension."""
    return _arg(ArgMax, input, dim_argument(dim, axis), keepdim)


def argmin(input: Any, dim: int | None = None, keepdim: bool = False, *, axis: int | None = None) -> Tensor:
    """Where the smallest element is: the first one, in the flattened tensor or along a dimension."""
    return _arg(ArgMin, input, dim_argument(dim, axis), keepdim)


def all(input: Any, dim: Any = None, keepdim: bool = False, *, axis: Any = None) -> Tensor:
    """Whether all elements are true (not zero); of bytes as a byte."""
    return _truth(ReduceMin, input, dim_argument(dim, axis), keepdim)


def any(input: Any, dim: Any = None, keepdim: bool = False, *, axis: Any = None) -> Tensor:
    """Whether an element is true (not zero); of bytes as a byte."""
    return _truth(ReduceMax, input, dim_argument(dim, axis), keepdim)


def _truth(op: Op, input: Any, dim: Any, keepdim: bool) -> Tensor:
    x = as_tensor(input)
    found = _reduce(op, cast(cast(x, DType.bool), DType.uint8), dim, keepdim)
    return found if x.dtype is DType.uint8 else cast(found, DType.bool)


def count_nonzero(input: Any, dim: Any = None) -> Tensor:
    """How many elements are not zero."""
    return sum(cast(as_tensor(input), DType.bool), dim)


@rounded_once
def var_mean(
    input: Any, dim: Any = None, unbiased: bool = True, keepdim: bool = False, *, correction: float | None = None
) -> tuple[Tensor, Tensor]:
    """Variance and mean; the variance is divided by ``n - correction``, 1 unless told otherwise."""
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    x = floating(input)
    axes = axes_of(dim, x.ndim)
    count = math.prod(x.shape[a] for a in axes)
    less = (1 if unbiased else 0) if correction is None else correction
    centre = mean(x, axes, True) if axes else x
    off = ar.sub(x, centre)
    square = ar.square(ar.abs(off) if x.dtype.is_complex else off)
    squares = sum(square, axes, keepdim) if axes else square
    left = count - less
    variance = ar.div(squares, float(left) if left > 0 else 0.0)
    return variance, centre if keepdim else centre.reshape(variance.shape)


@rounded_once
def var(
    input: Any, dim: Any = None, unbiased: bool = True, keepdim: bool = False, *, correction: float | None = None
) -> Tensor:
    """Variance, divided by ``n - 1`` unless told otherwise."""
    return var_mean(input, dim, unbiased, keepdim, correction=correction)[0]


@rounded_once
def std(
    input: Any, dim: Any = None, unbiased: bool = True, keepdim: bool = False, *, correction: float | None = None
) -> Tensor:
    """Standard deviation, the root of :func:`var`; where nothing deviates, its gradient is 0."""
    return call(FlatRoot, var(input, dim, unbiased, keepdim, correction=correction))


@rounded_once
def std_mean(
    input: Any, dim: Any = None, unbiased: bool = True, keepdim: bool = False, *, correction: float | None = None
) -> tuple[Tensor, Tensor]:
    """Standard deviation and mean."""
    variance, centre = var_mean(input, dim, unbiased, keepdim, correction=correction)
    return call(FlatRoot, variance), centre


def logsumexp(input: Any, dim: Any, keepdim: bool = False) -> Tensor:
    """``log(sum(exp(input)))`` without overflow."""
    return _reduce(ReduceLogSumExp, floating(input), dim, keepdim)


def nansum(input: Any, dim: Any = None, keepdim: bool = False) -> Tensor:
    """Sum without NaN."""
    x = real_only("nansum", input)
    return sum(ar.where(ar.isnan(x), 0, x), dim, keepdim)


@rounded_once
def nanmean(input: Any, dim: Any = None, keepdim: bool = False) -> Tensor:
    """Mean without NaN."""
    x = floating(input)
    there = cast(ar.logical_not(ar.isnan(x)), x.dtype)
    return ar.div(nansum(x, dim, keepdim), sum(there, dim, keepdim))


def cumsum(input: Any, dim: int, *, dtype: Any = None) -> Tensor:
    """Running sum along a dimension."""
    x = as_tensor(input)
    kind = to_dtype(dtype) if dtype is not None else (x.dtype if x.dtype.is_inexact else DType.int64)
    x = cast(x, kind)
    along = axis_of(dim, x.ndim)
    return call(Identity, x) if x.ndim == 0 else call(CumSum, x, const(along))


def cumprod(input: Any, dim: int, *, dtype: Any = None) -> Tensor:
    """Running product along a dimension."""
    x = as_tensor(input)
    kind = to_dtype(dtype) if dtype is not None else (x.dtype if x.dtype.is_inexact else DType.int64)
    x = cast(x, kind)
    along = axis_of(dim, x.ndim)
    return call(Identity, x) if x.ndim == 0 else call(CumProd, x, const(along))


class Ordered(NamedTuple):
    """Elements picked along a dimension, and where they were."""

    values: Tensor
    indices: Tensor


class Extremes(NamedTuple):
    """The smallest and the largest element."""

    min: Tensor
    max: Tensor


def sort(input: Any, dim: int = -1, descending: bool = False, stable: bool = False) -> Ordered:
    """Elements in order along a dimension, and where they were; equal ones keep their order."""
    del stable  # always
    x = as_tensor(input)
    along = axis_of(dim, x.ndim)
    if x.ndim == 0:
        return Ordered(x, ar.mul(cast(x, DType.int64), 0))
    return topk(x, x.shape[along], along, largest=descending)


def argsort(input: Any, dim: int = -1, descending: bool = False, stable: bool = False) -> Tensor:
    """The places of elements in order along a dimension."""
    return sort(input, dim, descending, stable)[1]


@names_arguments
def topk(input: Any, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Ordered:
    """The ``k`` largest (or smallest) elements along a dimension, and where they are.

    Example:
        >>> import pyflame as pf
        >>> pf.topk(pf.tensor([3.0, 9.0, 5.0]), 2).indices.tolist()
        [1, 2]
    """
    x = as_tensor(input)
    along = axis_of(dim, x.ndim)
    if x.ndim == 0:
        return Ordered(x, ar.mul(cast(x, DType.int64), 0))
    if not 0 <= k <= x.shape[along]:
        raise ValueError(f"k={k} is out of range for dimension {dim} of size {x.shape[along]}")
    wide = cast(x, DType.uint8) if x.dtype is DType.bool else x
    values, places = call_many(TopK, wide, (int(k),), axis=along, largest=int(largest), sorted=int(sorted))
    return Ordered(cast(values, x.dtype), places)


def kthvalue(input: Any, k: int, dim: int = -1, keepdim: bool = False) -> Ordered:
    """The k-th smallest element along a dimension, and where it is."""
    x = as_tensor(input)
    if x.ndim == 0:
        return topk(x, 1, dim)
    values, places = topk(x, k, dim, largest=False)
    along = axis_of(dim, x.ndim)
    picked = Ordered(values.narrow(along, k - 1, 1), places.narrow(along, k - 1, 1))
    return picked if keepdim else Ordered(picked.values.squeeze(along), picked.indices.squeeze(along))


def median(input: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    """The middle element, the lower of two; with ``dim``, values and places along it."""
    x = as_tensor(input)
    if dim is None:
        flat = x.reshape((-1,))
        return kthvalue(flat, (flat.numel + 1) // 2, 0)[0]
    return kthvalue(x, (x.shape[axis_of(dim, x.ndim)] + 1) // 2 if x.ndim else 1, dim, keepdim)


@rounded_once
@names_arguments
def norm(input: Any, p: Any = 2, dim: Any = None, keepdim: bool = False) -> Tensor:
    """The p-norm over dimensions: ``(sum |x|**p) ** (1/p)``; where all is zero, its gradient is 0."""
    x = floating(input)
    if x.dtype.is_complex:
        x = ar.abs(x)
    if p in ("fro", None):
        p = 2
    size = ar.abs(x)
    if p == math.inf:
        return amax(size, dim, keepdim)
    if p == -math.inf:
        return amin(size, dim, keepdim)
    if p == 0:
        # A count has no slope, but it depends on x.
        return sum(ar.where(ar.ne(x, 0), ar.add(ar.mul(x.sign(), 0.0), 1.0), ar.mul(x.sign(), 0.0)), dim, keepdim)
    if p == 1:
        return sum(size, dim, keepdim)
    if p == 2:
        return _reduce(ReduceL2, x, dim, keepdim) if x.ndim else size
    if 0 < p < 1:  # slopes there are infinite at 0
        absent = ar.eq(size, 0)
        powers = ar.where(absent, 0.0, ar.pow(ar.where(absent, 1.0, size), p))
    else:
        powers = ar.pow(size, p)
    total = sum(powers, dim, keepdim)
    nothing = ar.eq(total, 0)
    return ar.where(nothing, total, ar.pow(ar.where(nothing, 1.0, total), 1.0 / p))


def zero_of(x: Tensor) -> Tensor:
    """A zero of the tensor's type."""
    return scalar(0, x.dtype)
