"""Indices: integers, within the axis, negative ones counted from the end.

NumPy looks at every index itself: it is asked first, and its refusal is put into our words. torch takes some indices
for others, and MLX reads and writes whatever memory one points at, so theirs are looked at before. Where nobody can
(inside `mx.compile` and `mx.vmap`, where arrays have no values yet) they are limited to the axis.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from emberharmony.dtypes import BOOL, INTEGER, int64, kind
from emberharmony.guards.axes import plain_axis
from emberharmony.guards.table import guard

if TYPE_CHECKING:
    from collections.abc import Callable

    from emberharmony.library import Library
    from emberharmony.typing import Array, ArrayLike

__all__ = ["index_put", "safe_key", "take", "take_along_axis", "within"]

MODES = ("add", "mul", "max", "min")


def _known(lib: Library, indices: ArrayLike) -> np.ndarray[Any, Any] | None:
    """The indices on the host, None where they have no values yet."""
    return lib.values(indices) if lib.is_array(indices) else np.asarray(indices)


def _integers(lib: Library, indices: ArrayLike) -> ArrayLike:
    """The indices as an array of integers, of NumPy's or the library's."""
    if not lib.is_array(indices):
        held = isinstance(indices, (list, tuple)) and any(lib.is_array(v) for v in indices)
        indices = lib.as_array(indices) if held else np.asarray(indices)
    dtype = indices.dtype if isinstance(indices, np.ndarray) else lib.dtype(indices)
    if kind(dtype) not in (INTEGER, BOOL):
        raise TypeError(f"indices are integers, received {dtype}")
    return indices


def _refuse(low: int, high: int, length: int) -> None:
    if low < -length or high >= length:
        wrong = low if low < -length else high
        raise IndexError(f"index {wrong} is out of range for an axis of size {length}")


def _look(host: np.ndarray[Any, Any], length: int) -> bool:
    """Refuse an index out of range; whether one counts from the end."""
    if not host.size:
        return False
    low = int(host.min())
    _refuse(low, int(host.max()), length)
    return low < 0


def within(lib: Library, indices: ArrayLike, length: int) -> Array:
    """Indices from 0 that lie within an axis, as an int64 array of the library.

    >>> from emberharmony.library import library
    >>> within(library("numpy"), np.array([-1, 0]), 3)
    array([2, 0])
    """
    indices = _integers(lib, indices)
    host = _known(lib, indices)
    if host is None:
        return _limited(lib, indices, length)
    from_end = _look(host, length)
    if lib.is_array(indices) and not from_end:
        return lib.cast(indices, int64)
    host = host.astype(np.int64)
    return lib.from_numpy(np.where(host < 0, host + length, host) if from_end else host)


def _limited(lib: Library, indices: Array, length: int) -> Array:
    if not length and math.prod(indices.shape):
        raise IndexError("an axis of size 0 has no index")
    indices = lib.cast(indices, int64)
    counted = lib.where(lib.less(indices, 0), lib.add(indices, length), indices)
    return lib.clip(counted, 0, max(length - 1, 0))


def _indexed(lib: Library, indices: ArrayLike, length: int, run: Callable[[ArrayLike], Array], *, empty: bool) -> Array:
    """Call a function with indices into an axis of that length, having made sure of them.

    NumPy does not look when there is nothing to take.
    """
    if not lib.looks_at_indices or empty:
        return run(within(lib, indices, length))
    indices = _integers(lib, indices)
    try:
        return run(indices)
    except IndexError:
        host = _known(lib, indices)
        if host is not None:
            _look(host, length)
        raise


@guard
def take(
    lib: Library, native: Callable[..., Array], x: ArrayLike, indices: ArrayLike, axis: int | None = None
) -> Array:
    """Elements at indices along an axis, of the flattened array without one."""
    x = lib.as_array(x)
    along = None if axis is None else plain_axis(axis, len(x.shape))
    length = math.prod(x.shape) if along is None else x.shape[along]
    return _indexed(lib, indices, length, lambda places: native(x, places, along), empty=0 in x.shape)


@guard
def take_along_axis(
    lib: Library, native: Callable[..., Array], x: ArrayLike, indices: ArrayLike, axis: int | None = None
) -> Array:
    """Elements that an index array of equal rank points at."""
    x = lib.as_array(x)
    along = None if axis is None else plain_axis(axis, len(x.shape))
    length = math.prod(x.shape) if along is None else x.shape[along]
    indices = _integers(lib, indices)
    if len(indices.shape) != (1 if along is None else len(x.shape)):
        raise ValueError(f"indices of {len(indices.shape)} axes for an array of shape {tuple(x.shape)}")
    return _indexed(lib, indices, length, lambda places: native(x, places, along), empty=0 in x.shape)


@guard
def index_put(
    lib: Library,
    native: Callable[..., Array],
    x: ArrayLike,
    indices: ArrayLike,
    values: ArrayLike,
    mode: str | None = None,
) -> Array:
    """Rows replaced or combined, in a copy."""
    if mode is not None and mode not in MODES:
        raise ValueError(f"mode is None, {', '.join(MODES)}, received {mode!r}")
    x = lib.as_array(x)
    if not x.shape:
        raise IndexError("a 0-d array has no rows")
    places = lib.ravel(within(lib, indices, x.shape[0]))
    shape = lib.shape(indices)
    new = lib.broadcast_to(lib.as_array(values, lib.dtype(x)), (*shape, *x.shape[1:]))
    new = lib.reshape(new, (places.shape[0], *x.shape[1:]))
    # NumPy writes in order, and has no gradients.
    last = None if mode is not None or lib.looks_at_indices else _last(lib, places, x.shape[0])
    if last is not None:
        places, new = (lib.take(v, lib.from_numpy(last), axis=0) for v in (places, new))
    return native(x, places, new, mode)


def _last(lib: Library, places: Array, length: int) -> np.ndarray[Any, Any] | None:
    """Where each place is named for the last time; None if none is named twice, or nobody can look.

    The rows written over are left out: they are no part of the answer, and no gradient goes to them.
    """
    host = lib.values(places)
    if host is None:
        return None
    winner = np.full(length, -1)
    winner[host] = np.arange(host.size)
    kept = winner[winner >= 0]
    return np.sort(kept) if kept.size < host.size else None


# ---------------------------------------------------------------------- keys of `x[key]`


def safe_key(lib: Library, x: Array, key: Any) -> Any:
    """A key for `x[key]` with every index within its axis and masks as indices.

    >>> from emberharmony.library import library
    >>> safe_key(library("numpy"), np.zeros((2, 3)), (0, -1))
    (0, 2)
    """
    parts = list(key) if isinstance(key, tuple) else [key]
    masks = [_mask(lib, part) for part in parts]
    used = sum(0 if p is None or p is ... else 1 if m is None else m.ndim for p, m in zip(parts, masks, strict=True))
    rank = len(x.shape)
    if used > rank:
        raise IndexError(f"{used} indices are out of range for {rank} axes")
    made: list[Any] = []
    axis = 0
    for part, mask in zip(parts, masks, strict=True):
        if part is ...:
            axis += rank - used
        if part is None or part is ...:
            made.append(part)
        elif mask is not None:
            made.extend(_of_mask(lib, mask, x.shape[axis : axis + mask.ndim]))
            axis += mask.ndim
        else:
            made.append(_part(lib, part, x.shape[axis]))
            axis += 1
    return tuple(made)


def _mask(lib: Library, part: Any) -> np.ndarray[Any, Any] | None:
    """The values of a key that is an array of bools."""
    if part is None or part is ... or isinstance(part, (slice, int)):
        return None
    dtype = lib.dtype(part) if lib.is_array(part) else np.asarray(part).dtype
    if kind(dtype) != BOOL:
        return None
    return lib.on_host(part) if lib.is_array(part) else np.asarray(part)


def _of_mask(lib: Library, mask: np.ndarray[Any, Any], sizes: Any) -> list[Array]:
    if mask.shape != tuple(sizes):
        raise IndexError(f"a mask of shape {mask.shape} does not fit axes of sizes {tuple(sizes)}")
    return [lib.from_numpy(part) for part in mask.nonzero()]


def _part(lib: Library, part: Any, length: int) -> Any:
    if isinstance(part, slice):
        if part.step == 0:
            raise ValueError("a slice has no step of 0")
        return part
    if isinstance(part, (int, np.integer)):
        _refuse(int(part), int(part), length)
        return int(part) % length
    return within(lib, part, length)
