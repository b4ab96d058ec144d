"""Joining, turning and windows: axes that exist, widths that fit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from emberharmony.guards.axes import axis_tuple, plain_axes, plain_axis
from emberharmony.guards.table import guard

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from emberharmony.library import Library
    from emberharmony.typing import Array, ArrayLike, Axis

__all__ = ["concatenate", "flip", "sliding_window_view"]


@guard
def concatenate(lib: Library, native: Callable[..., Array], xs: Sequence[ArrayLike], axis: int | None = 0) -> Array:
    """Arrays with at least one axis, unless they are flattened."""
    arrays = [lib.as_array(x) for x in xs]
    if not arrays:
        raise ValueError("there is nothing to join")
    if axis is None:
        return native([lib.ravel(a) for a in arrays], 0)
    if not arrays[0].shape:
        raise ValueError("arrays without axes cannot be joined: give axis=None, or stack them")
    return native(arrays, plain_axis(axis, len(arrays[0].shape)))


@guard
def flip(lib: Library, native: Callable[..., Array], x: ArrayLike, axis: Axis = None) -> Array:
    """Axes that exist."""
    x = lib.as_array(x)
    return native(x, plain_axes(axis, len(x.shape)))


@guard
def sliding_window_view(
    lib: Library,
    native: Callable[..., Array],
    x: ArrayLike,
    window_shape: int | Sequence[int],
    axis: int | Sequence[int] | None = None,
) -> Array:
    """Windows along axes that exist, none longer than its axis."""
    x = lib.as_array(x)
    windows = axis_tuple(window_shape)
    axes = plain_axes(range(len(windows)) if axis is None else axis, len(x.shape))
    if len(axes) != len(windows):
        raise ValueError(f"{len(windows)} windows for {len(axes)} axes")
    for width, along in zip(windows, axes, strict=True):
        if not 0 <= width <= x.shape[along]:
            raise ValueError(f"a window of {width} does not fit axis {along} of size {x.shape[along]}")
    return native(x, windows, axes)
