"""Reductions."""

from collections.abc import Callable
from typing import Any

import torch

from emberharmony.backends.torch.base import NATIVE, as_tensor, native, native_dtype
from emberharmony.backends.torch.base import dtype as dtype_of
from emberharmony.dtypes import compute_dtype, sum_dtype
from emberharmony.guards.axes import reduced_axes
from emberharmony.typing import ArrayLike, Axis, DTypeLike

Tensor = torch.Tensor


def _summands(x: ArrayLike, dtype: DTypeLike) -> tuple[Tensor, torch.dtype, torch.dtype]:
    """An array, the dtype of its sum and that of its sums on the way. Integers have no gradients."""
    x = as_tensor(x)
    dtypes = sum_dtype(dtype_of(x), dtype)
    answer, inner = native_dtype(dtypes), native_dtype(compute_dtype(dtypes))
    return x if answer.is_floating_point or answer.is_complex else x.detach(), answer, inner


@native
def sum_(x: ArrayLike, axis: Axis = None, keepdims: bool = False, dtype: DTypeLike = None) -> Tensor:
    """Sum; integers in their dtype, half precision in float32."""
    x, answer, inner = _summands(x, dtype)
    axes = reduced_axes(axis, x.ndim)
    # torch reads an empty list of axes as all of them.
    return (torch.sum(x, axes, keepdims, dtype=inner) if axes else x).to(answer)


@native
def prod(x: ArrayLike, axis: Axis = None, keepdims: bool = False, dtype: DTypeLike = None) -> Tensor:
    """Product; torch takes one axis at a time."""
    x, answer, inner = _summands(x, dtype)
    for a in sorted(reduced_axes(axis, x.ndim), reverse=True):
        x = torch.prod(x, a, keepdims, dtype=inner)
    return x.to(answer)


def _folded(function: Callable[..., Any]) -> Callable[..., Tensor]:
    def call(x: ArrayLike, axis: Axis = None, keepdims: bool = False) -> Tensor:
        x = as_tensor(x)
        axes = reduced_axes(axis, x.ndim)
        return function(x, axes, keepdims) if axes else x

    return call


def _truth(function: Callable[..., Any]) -> Callable[..., Tensor]:
    folded = _folded(function)

    def call(x: ArrayLike, axis: Axis = None, keepdims: bool = False) -> Tensor:
        return folded(as_tensor(x).to(torch.bool), axis, keepdims)

    return call


NATIVE.update({"max": _folded(torch.amax), "min": _folded(torch.amin)})
NATIVE.update({"all": _truth(torch.all), "any": _truth(torch.any)})


def _place(x: ArrayLike, axis: int | None, keepdims: bool, function: Callable[..., Any]) -> Tensor:
    x = as_tensor(x)
    x = x.to(torch.uint8) if x.dtype is torch.bool else x
    flat, along = (x.reshape(-1), 0) if axis is None else (x, axis)
    if x.device.type == "cpu":
        found = function(flat, along, keepdim=True)
    else:
        found = _first_place(flat, along, torch.amax if function is torch.argmax else torch.amin)
    if axis is None:
        return torch.reshape(found, (1,) * x.ndim if keepdims else ())
    return found if keepdims else found.squeeze(along)


def _first_place(x: Tensor, axis: int, extreme: Callable[..., Tensor]) -> Tensor:
    """Other devices answer with any of the equal elements: take the lowest index."""
    best = extreme(x, axis, keepdim=True)
    shape = [1] * x.ndim
    shape[axis] = -1
    places = torch.arange(x.shape[axis], device=x.device).reshape(shape)
    hit = (x == best) | (x != x)
    return torch.where(hit, places, x.shape[axis]).amin(axis, keepdim=True)


@native
def argmax(x: ArrayLike, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """Index of the largest, the first one on ties."""
    return _place(x, axis, keepdims, torch.argmax)


@native
def argmin(x: ArrayLike, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """Index of the smallest, the first one on ties."""
    return _place(x, axis, keepdims, torch.argmin)


def _running(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def call(x: ArrayLike, axis: int | None = None, dtype: DTypeLike = None) -> Tensor:
        x, answer, inner = _summands(x, dtype)
        x = x.reshape(-1) if axis is None else x
        return function(x, 0 if axis is None else axis, dtype=inner).to(answer)

    return call


NATIVE.update({"cumsum": _running(torch.cumsum), "cumprod": _running(torch.cumprod)})


@native
def cummax(x: ArrayLike, axis: int | None = None) -> Tensor:
    """Running maximum."""
    x = as_tensor(x)
    return torch.cummax(x.reshape(-1) if axis is None else x, 0 if axis is None else axis).values


@native
def cummin(x: ArrayLike, axis: int | None = None) -> Tensor:
    """Running minimum."""
    x = as_tensor(x)
    return torch.cummin(x.reshape(-1) if axis is None else x, 0 if axis is None else axis).values
