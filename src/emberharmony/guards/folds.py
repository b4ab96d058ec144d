"""Reductions, running forms and orders: which axes, and what an axis without elements gives."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from emberharmony.dtypes import int64
from emberharmony.guards.axes import plain_axis, reduced_axes
from emberharmony.guards.table import FOREIGN, GUARDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from emberharmony.library import Library
    from emberharmony.typing import Array, ArrayLike, Axis

__all__ = ["kept_shape"]


def kept_shape(shape: Any, axes: tuple[int, ...], keepdims: bool) -> tuple[int, ...]:
    """The shape after a reduction.

    >>> kept_shape((2, 3), (1,), True), kept_shape((2, 3), (1,), False)
    ((2, 1), (2,))
    """
    return tuple([1 if i in axes else n for i, n in enumerate(shape) if keepdims or i not in axes])


def _of_nothing(lib: Library, name: str, shape: tuple[int, ...], dtype: Any) -> Array:
    if math.prod(shape):
        raise ValueError(f"{name} of no elements: they have no largest or smallest")
    return lib.zeros(shape, dtype)


def _extreme(name: str) -> Callable[..., Array]:
    def guard(
        lib: Library, native: Callable[..., Array], x: ArrayLike, axis: Axis = None, keepdims: bool = False
    ) -> Array:
        """The largest of no elements is refused, unless no answer is asked for."""
        x = lib.as_array(x)
        axes = reduced_axes(axis, len(x.shape))
        if 0 in x.shape:
            return _of_nothing(lib, name, kept_shape(x.shape, axes, keepdims), lib.dtype(x))
        return native(x, axes, keepdims)

    return guard


def _place(name: str) -> Callable[..., Array]:
    def guard(
        lib: Library, native: Callable[..., Array], x: ArrayLike, axis: int | None = None, keepdims: bool = False
    ) -> Array:
        """As for the largest; a 0-d array has its one element at place 0."""
        x = lib.as_array(x)
        rank = len(x.shape)
        axes = reduced_axes(axis, rank)
        if 0 in x.shape:
            return _of_nothing(lib, name, kept_shape(x.shape, axes, keepdims), int64)
        return native(x, None if axis is None or not rank else axes[0], keepdims)

    return guard


def _along(lib: Library, native: Callable[..., Array], x: ArrayLike, axis: int | None = None, *rest: Any) -> Array:
    """A running form along one axis, of the flattened array without one."""
    x = lib.as_array(x)
    return native(x, None if axis is None else plain_axis(axis, len(x.shape)), *rest)


def _running(
    lib: Library, native: Callable[..., Array], x: ArrayLike, axis: int | None = None, dtype: Any = None
) -> Array:
    """A running form with a dtype of its own."""
    return _along(lib, native, x, axis, dtype)


def _order(
    lib: Library, native: Callable[..., Array], x: ArrayLike, axis: int | None = -1, descending: bool = False
) -> Array:
    """An order along the last axis, unless another is given."""
    return _along(lib, native, x, axis, descending)


GUARDS.update({name: _extreme(name) for name in ("max", "min")})
GUARDS.update({name: _place(name) for name in ("argmax", "argmin")})
GUARDS.update(dict.fromkeys(("cummax", "cummin"), _along))
GUARDS.update(dict.fromkeys(("cumsum", "cumprod"), _running))
GUARDS.update(dict.fromkeys(("sort", "argsort"), _order))
FOREIGN.update(("max", "min", "argmax", "argmin"))
