"""Reductions. MLX answers in other integer dtypes than the common rule, hence the casts."""

from collections.abc import Callable
from typing import Any

import mlx.core as mx

from emberharmony.backends.mlx.base import NATIVE, as_mlx, native, native_dtype
from emberharmony.backends.mlx.base import dtype as dtype_of
from emberharmony.dtypes import compute_dtype, sum_dtype
from emberharmony.guards.axes import reduced_axes
from emberharmony.guards.folds import kept_shape
from emberharmony.typing import ArrayLike, Axis, DTypeLike

Array = mx.array


def _summands(x: ArrayLike, dtype: DTypeLike) -> tuple[Array, mx.Dtype]:
    """An array in the dtype of its sums on the way, and the dtype of its sum. Integers have no gradients."""
    x = as_mlx(x)
    dtypes = sum_dtype(dtype_of(x), dtype)
    answer, inner = native_dtype(dtypes), native_dtype(compute_dtype(dtypes))
    return (x if mx.issubdtype(answer, mx.inexact) else mx.stop_gradient(x)).astype(inner), answer


def _reduced(function: Callable[..., Array], x: Array, axis: Axis, keepdims: bool, empty: Any) -> Array:
    """A reduction that never hands MLX an array without elements: its loops do not end on some of them."""
    axes = reduced_axes(axis, x.ndim)
    if x.size:
        return function(x, axis=axes, keepdims=keepdims)
    return mx.full(kept_shape(x.shape, axes, keepdims), empty, dtype=x.dtype)


def _fold(function: Callable[..., Array], empty: int) -> Callable[..., Array]:
    """A sum or product: integers in their dtype, half precision in float32."""

    def call(x: ArrayLike, axis: Axis = None, keepdims: bool = False, dtype: DTypeLike = None) -> Array:
        wide, answer = _summands(x, dtype)
        return _reduced(function, wide, axis, keepdims, empty).astype(answer)

    return call


def _extreme(function: Callable[..., Array]) -> Callable[..., Array]:
    def call(x: ArrayLike, axis: Axis = None, keepdims: bool = False) -> Array:
        x = as_mlx(x)
        return function(x, axis=reduced_axes(axis, x.ndim), keepdims=keepdims)

    return call


def _truth(function: Callable[..., Array], empty: bool) -> Callable[..., Array]:
    def call(x: ArrayLike, axis: Axis = None, keepdims: bool = False) -> Array:
        return _reduced(function, as_mlx(x) != 0, axis, keepdims, empty)

    return call


NATIVE.update({"sum": _fold(mx.sum, 0), "prod": _fold(mx.prod, 1)})
NATIVE.update({"max": _extreme(mx.max), "min": _extreme(mx.min)})
NATIVE.update({"all": _truth(mx.all, True), "any": _truth(mx.any, False)})


def _place(x: ArrayLike, axis: int | None, keepdims: bool, function: Callable[..., Any]) -> Array:
    x = as_mlx(x)
    if axis is None:
        found = function(x.reshape(-1), axis=0).astype(mx.int64)
        return found.reshape((1,) * x.ndim) if keepdims else found
    return function(x, axis=axis, keepdims=keepdims).astype(mx.int64)


@native
def argmax(x: ArrayLike, axis: int | None = None, keepdims: bool = False) -> Array:
    """Index of the largest, the first one on ties."""
    return _place(x, axis, keepdims, mx.argmax)


@native
def argmin(x: ArrayLike, axis: int | None = None, keepdims: bool = False) -> Array:
    """Index of the smallest, the first one on ties."""
    return _place(x, axis, keepdims, mx.argmin)


def _running(function: Callable[..., Array]) -> Callable[..., Array]:
    def call(x: ArrayLike, axis: int | None = None, dtype: DTypeLike = None) -> Array:
        wide, answer = _summands(x, dtype)
        wide = wide.reshape(-1) if axis is None else wide
        return function(wide, axis=0 if axis is None else axis).astype(answer)

    return call


NATIVE.update({"cumsum": _running(mx.cumsum), "cumprod": _running(mx.cumprod)})


def _running_extreme(function: Callable[..., Array], x: ArrayLike, axis: int | None) -> Array:
    """In half precision MLX takes NaN for 0."""
    x = as_mlx(x)
    wide = x.astype(native_dtype(compute_dtype(dtype_of(x))))
    wide = wide.reshape(-1) if axis is None else wide
    return function(wide, axis=0 if axis is None else axis).astype(x.dtype)


@native
def cummax(x: ArrayLike, axis: int | None = None) -> Array:
    """Running maximum."""
    return _running_extreme(mx.cummax, x, axis)


@native
def cummin(x: ArrayLike, axis: int | None = None) -> Array:
    """Running minimum."""
    return _running_extreme(mx.cummin, x, axis)
