"""Reductions."""

from collections.abc import Callable
from typing import Any

import numpy as np

from emberharmony.backends.numpy.base import NATIVE, as_array, boxed, is_small, native
from emberharmony.dtypes import FLOAT, compute_dtype, float32, kind, sum_dtype
from emberharmony.typing import ArrayLike, Axis, DTypeLike


def axes(axis: Axis) -> int | tuple[int, ...] | None:
    """The axis in the form NumPy takes."""
    if axis is None or isinstance(axis, int):
        return axis
    return int(axis) if isinstance(axis, np.integer) else tuple(int(a) for a in axis)


def _fold(ufunc: np.ufunc) -> Callable[..., np.ndarray]:
    """A sum or product: integers in their dtype, half precision in float32."""

    def call(x: ArrayLike, axis: Axis = None, keepdims: bool = False, dtype: DTypeLike = None) -> np.ndarray:
        x = as_array(x)
        answer = sum_dtype(x.dtype, dtype)
        inner = compute_dtype(answer)
        with np.errstate(all="ignore"):
            out = ufunc.reduce(x.astype(inner, copy=False), axis=axes(axis), dtype=inner, keepdims=keepdims)
        return boxed(out, inner).astype(answer, copy=False)

    return call


def _extreme(ufunc: np.ufunc) -> Callable[..., np.ndarray]:
    def call(x: ArrayLike, axis: Axis = None, keepdims: bool = False) -> np.ndarray:
        x = as_array(x)
        with np.errstate(all="ignore"):
            return boxed(ufunc.reduce(x, axis=axes(axis), keepdims=keepdims), x.dtype)

    return call


def _truth(ufunc: np.ufunc) -> Callable[..., np.ndarray]:
    def call(x: ArrayLike, axis: Axis = None, keepdims: bool = False) -> np.ndarray:
        x = as_array(x).astype(bool, copy=False)
        return boxed(ufunc.reduce(x, axis=axes(axis), keepdims=keepdims))

    return call


def _place(function: Callable[..., Any]) -> Callable[..., np.ndarray]:
    def call(x: ArrayLike, axis: int | None = None, keepdims: bool = False) -> np.ndarray:
        x = as_array(x)
        wide = x.astype(float32) if is_small(x.dtype) else x
        return boxed(function(wide, axis=axis, keepdims=keepdims)).astype(np.int64, copy=False)

    return call


def _running(ufunc: np.ufunc) -> Callable[..., np.ndarray]:
    def call(x: ArrayLike, axis: int | None = None, dtype: DTypeLike = None) -> np.ndarray:
        x = as_array(x)
        answer = sum_dtype(x.dtype, dtype)
        inner = compute_dtype(answer)
        x = (x.ravel() if axis is None else x).astype(inner, copy=False)
        with np.errstate(all="ignore"):
            out = ufunc.accumulate(x, axis=0 if axis is None else axis, dtype=inner)
            return out.astype(answer, copy=False)

    return call


NATIVE.update({"sum": _fold(np.add), "prod": _fold(np.multiply)})
NATIVE.update({"max": _extreme(np.maximum), "min": _extreme(np.minimum)})
NATIVE.update({"all": _truth(np.logical_and), "any": _truth(np.logical_or)})
NATIVE.update({"argmax": _place(np.argmax), "argmin": _place(np.argmin)})
NATIVE.update({"cumsum": _running(np.add), "cumprod": _running(np.multiply)})


def _running_extreme(x: ArrayLike, axis: int | None, ufunc: np.ufunc) -> np.ndarray:
    x = as_array(x)
    x = x.ravel() if axis is None else x
    with np.errstate(all="ignore"):
        return ufunc.accumulate(x, axis=0 if axis is None else axis)


@native
def cummax(x: ArrayLike, axis: int | None = None) -> np.ndarray:
    """Running maximum."""
    return _running_extreme(x, axis, np.maximum)


@native
def cummin(x: ArrayLike, axis: int | None = None) -> np.ndarray:
    """Running minimum."""
    return _running_extreme(x, axis, np.minimum)


def sortable(x: np.ndarray) -> np.ndarray:
    """ml_dtypes floats as float32, whose order NumPy sorts with NaN last."""
    return x.astype(float32) if kind(x.dtype) == FLOAT and is_small(x.dtype) else x
