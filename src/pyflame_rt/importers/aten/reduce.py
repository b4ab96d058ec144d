"""Reductions and scans of aten."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from pyflame_rt.graph import DType
from pyflame_rt.importers.aten.table import aten
from pyflame_rt.importers.aten.values import axis, cast, floated, number, promoted, refuse, static, torch_dtype
from pyflame_rt.ops.core.value import Value, constant
from pyflame_rt.ops.onnx import logic
from pyflame_rt.ops.onnx import math as maths
from pyflame_rt.ops.onnx import reduce as reductions
from pyflame_rt.ops.onnx.arithmetic import Abs, Max, Min, Pow
from pyflame_rt.ops.onnx.shape import Reshape, Shape, Size, Squeeze, Transpose, Unsqueeze
from pyflame_rt.ops.pyflame.complex_numbers import ComplexAbs
from pyflame_rt.ops.pyflame.decompositions import SVD

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["axes_of", "mean", "summed"]


def axes_of(dim: Any, rank: int) -> list[int]:
    """Axes from the front; all of them for None or none."""
    if dim is None or (isinstance(dim, (list, tuple)) and not dim):
        return list(range(rank))
    listed = dim if isinstance(dim, (list, tuple)) else [dim]
    return [axis(d, rank) for d in listed]


def _reduced(op: Callable[..., Value], x: Value, dim: Any, keepdim: bool) -> Value:
    along = axes_of(dim, x.rank)
    return op(x, along, keepdims=int(keepdim)) if x.rank else x


def _widened(x: Value, dtype: Any) -> Value:
    if dtype is not None:
        return cast(x, torch_dtype(dtype))
    return x if x.dtype.is_float or x.dtype.is_complex else cast(x, DType.Int64)


@aten("nansum")
def _nansum(x: Value, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Value:
    return summed(_without_nan(x), dim, keepdim, dtype=dtype)


@aten("nanmean")
def _nanmean(x: Value, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Value:
    there = cast(logic.Not(maths.IsNaN(x)), x.dtype)
    return summed(_without_nan(x), dim, keepdim, dtype=dtype) / summed(there, dim, keepdim, dtype=dtype)


def _without_nan(x: Value) -> Value:
    return logic.Where(maths.IsNaN(x), constant(0.0, x), x) if x.dtype.is_float else x


@aten("sum")
def summed(x: Value, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Value:
    """Sums; integers add up to int64."""
    return _reduced(reductions.ReduceSum, _widened(x, dtype), dim, keepdim)


@aten("mean")
def mean(x: Value, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Value:
    """Averages."""
    return _reduced(reductions.ReduceMean, _widened(x, dtype), dim, keepdim)


@aten("prod")
def _prod(x: Value, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Value:
    return _reduced(reductions.ReduceProd, _widened(x, dtype), dim, keepdim)


@aten("amax")
def _amax(x: Value, dim: Any = (), keepdim: bool = False) -> Value:
    return _reduced(reductions.ReduceMax, x, dim, keepdim)


@aten("amin")
def _amin(x: Value, dim: Any = (), keepdim: bool = False) -> Value:
    return _reduced(reductions.ReduceMin, x, dim, keepdim)


def _extreme(reduce: Callable[..., Value], arg: Callable[..., Value], pair: Callable[..., Value]) -> Any:
    def extreme(x: Value, dim: Any = None, keepdim: bool = False) -> Any:
        if isinstance(dim, Value):
            return pair(*promoted(x, dim))
        if dim is None:
            return _reduced(reduce, x, None, False)
        if x.rank == 0:
            return x, number(0, DType.Int64)
        return _reduced(reduce, x, dim, keepdim), arg(x, axis=axis(dim, x.rank), keepdims=int(keepdim))

    return extreme


aten("max")(_extreme(reductions.ReduceMax, reductions.ArgMax, Max))
aten("min")(_extreme(reductions.ReduceMin, reductions.ArgMin, Min))


@aten("aminmax")
def _aminmax(x: Value, *, dim: Any = None, keepdim: bool = False) -> Any:
    return _amin(x, [] if dim is None else dim, keepdim), _amax(x, [] if dim is None else dim, keepdim)


def _place(op: Callable[..., Value]) -> Any:
    def placed(x: Value, dim: Any = None, keepdim: bool = False) -> Value:
        if x.rank == 0:
            return number(0, DType.Int64)
        if dim is None:
            found = op(Reshape(x, [-1]), axis=0, keepdims=0)
            return Reshape(found, [1] * x.rank) if keepdim else found
        return op(x, axis=axis(dim, x.rank), keepdims=int(keepdim))

    return placed


aten("argmax")(_place(reductions.ArgMax))
aten("argmin")(_place(reductions.ArgMin))


@aten("any")
def _any(x: Value, dim: Any = None, keepdim: bool = False) -> Value:
    ones = cast(cast(x, DType.Bool), DType.Int32)
    return cast(_reduced(reductions.ReduceMax, ones, dim, keepdim), DType.Bool)


@aten("all")
def _all(x: Value, dim: Any = None, keepdim: bool = False) -> Value:
    ones = cast(cast(x, DType.Bool), DType.Int32)
    return cast(_reduced(reductions.ReduceMin, ones, dim, keepdim), DType.Bool)


@aten("count_nonzero")
def _count_nonzero(x: Value, dim: Any = None) -> Value:
    return _reduced(reductions.ReduceSum, cast(cast(x, DType.Bool), DType.Int64), dim, False)


@aten("logsumexp", "special_logsumexp")
def _logsumexp(x: Value, dim: Any, keepdim: bool = False) -> Value:
    value = floated(x)
    most = _reduced(reductions.ReduceMax, value, dim, True)
    safe = logic.Where(maths.IsInf(most), constant(0.0, value), most)
    total = maths.Log(_reduced(reductions.ReduceSum, maths.Exp(value - safe), dim, True)) + safe
    along = axes_of(dim, x.rank)
    return total if keepdim or not x.rank else Squeeze(total, along)


@aten("norm", "linalg_vector_norm", "frobenius_norm")
def _norm(x: Value, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Value:
    value = floated(x) if dtype is None else cast(x, torch_dtype(dtype))
    size = ComplexAbs(value) if value.dtype.is_complex else Abs(value)
    order = 2.0 if ord in (None, "fro") else float(static(ord, "the order of a norm"))
    if order == 2:
        return maths.Sqrt(_reduced(reductions.ReduceSum, size * size, dim, keepdim))
    if order == 1:
        return _reduced(reductions.ReduceSum, size, dim, keepdim)
    if math.isinf(order):
        return _reduced(reductions.ReduceMax if order > 0 else reductions.ReduceMin, size, dim, keepdim)
    if order == 0:
        there = cast(cast(size, DType.Bool), size.dtype)
        return _reduced(reductions.ReduceSum, there, dim, keepdim)
    total = _reduced(reductions.ReduceSum, Pow(size, constant(order, size)), dim, keepdim)
    return Pow(total, constant(1 / order, size))


@aten("linalg_norm")
def _any_norm(x: Value, ord: Any = None, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Value:
    """Of matrices where an order is given for two axes, else of vectors."""
    both = dim if isinstance(dim, (list, tuple)) else [0, 1] if dim is None and x.rank == 2 else []
    if ord is not None and len(both) == 2:
        return _matrix_norm(x, ord, list(both), keepdim, dtype=dtype)
    return _norm(x, ord, dim, keepdim, dtype=dtype)


@aten("linalg_matrix_norm")
def _matrix_norm(x: Value, ord: Any = "fro", dim: Any = (-2, -1), keepdim: bool = False, *, dtype: Any = None) -> Value:
    value = floated(x) if dtype is None else cast(x, torch_dtype(dtype))
    rows, columns = (axis(d, x.rank) for d in dim)
    if ord == "fro":
        return _norm(value, 2, [rows, columns], keepdim)
    order = 2.0 if ord == "nuc" else float(static(ord, "the order of a norm"))
    if ord == "nuc" or abs(order) == 2:
        return _spectral(value, ord, rows, columns, keepdim)
    first, second = (rows, columns) if abs(order) == 1 else (columns, rows)
    if abs(order) != 1 and not math.isinf(order):
        raise refuse(f"the norm of matrices of order {ord}")
    totals = reductions.ReduceSum(Abs(value), [first], keepdims=1)
    made = (reductions.ReduceMax if order > 0 else reductions.ReduceMin)(totals, [second], keepdims=1)
    return made if keepdim else Squeeze(made, [rows, columns])


def _spectral(value: Value, order: Any, rows: int, columns: int, keepdim: bool) -> Value:
    """Norms that singular values tell."""
    rest = [i for i in range(value.rank) if i not in (rows, columns)]
    values = SVD(Transpose(value, perm=[*rest, rows, columns]))[1]
    by = reductions.ReduceSum if order == "nuc" else reductions.ReduceMax if float(order) > 0 else reductions.ReduceMin
    made = by(values, [-1], keepdims=0)
    return Unsqueeze(made, sorted([rows, columns])) if keepdim else made


def _moments(x: Value, dim: Any, correction: Any, keepdim: bool) -> tuple[Value, Value]:
    value = floated(x)
    centre = _reduced(reductions.ReduceMean, value, dim, True)
    away = value - centre
    square = _reduced(reductions.ReduceSum, away * away, dim, keepdim)
    along = axes_of(dim, x.rank)
    count = cast(reductions.ReduceProd(_dims_at(x, along), [0], keepdims=0), value.dtype)
    degrees = Max(count - number(float(correction), value.dtype), constant(0.0, value))
    plain = centre if keepdim or not x.rank else Squeeze(centre, along)
    return square / degrees, plain


def _dims_at(x: Value, along: list[int]) -> Value:
    from pyflame_rt.ops.onnx.index import Gather

    return Gather(Shape(x), constant(along, DType.Int64)) if x.rank else Reshape(Size(x), [1])


def _correction(dim: Any, unbiased: Any, correction: Any) -> tuple[Any, float]:
    """The overloads differ in what comes second: whether the estimate is unbiased, or the axes."""
    if isinstance(dim, bool):
        return None, float(dim)
    if unbiased is not None:
        return dim, float(unbiased)
    return dim, 1.0 if correction is None else float(correction)


@aten("var")
def _var(x: Value, dim: Any = None, unbiased: Any = None, keepdim: bool = False, *, correction: Any = None) -> Value:
    along, less = _correction(dim, unbiased, correction)
    return _moments(x, along, less, keepdim)[0]


@aten("std")
def _std(x: Value, dim: Any = None, unbiased: Any = None, keepdim: bool = False, *, correction: Any = None) -> Value:
    return maths.Sqrt(_var(x, dim, unbiased, keepdim, correction=correction))


@aten("var_mean")
def _var_mean(x: Value, dim: Any = None, unbiased: Any = None, keepdim: bool = False, *, correction: Any = None) -> Any:
    along, less = _correction(dim, unbiased, correction)
    return _moments(x, along, less, keepdim)


@aten("std_mean")
def _std_mean(x: Value, dim: Any = None, unbiased: Any = None, keepdim: bool = False, *, correction: Any = None) -> Any:
    variance, centre = _var_mean(x, dim, unbiased, keepdim, correction=correction)
    return maths.Sqrt(variance), centre


@aten("cumsum")
def _cumsum(x: Value, dim: int, *, dtype: Any = None) -> Value:
    value = _widened(x, dtype)
    return reductions.CumSum(value, constant(axis(dim, x.rank), DType.Int64)) if x.rank else value


@aten("cumprod")
def _cumprod(x: Value, dim: int, *, dtype: Any = None) -> Value:
    value = _widened(x, dtype)
    return reductions.CumProd(value, constant(axis(dim, x.rank), DType.Int64)) if x.rank else value
