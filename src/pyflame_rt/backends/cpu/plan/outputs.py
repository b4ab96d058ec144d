"""Arrays to hand out: large ones in memory that an earlier result gave back, which is warm and needs no page faults."""

from __future__ import annotations

import math
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.graph.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["fresh", "held_bytes", "makers", "release_outputs"]

LARGE = 1 << 18  # a smaller one the C library keeps warm itself,
TRIMMED = 1 << 17  # unless the results of a run together have so many bytes: these it gives back to the system,
SMALL = 1 << 15  # and for those from here on page faults cost more than a loan
KEPT = 128 << 20  # bytes of given-back memory to keep at most

# By size, rounded up. Nothing here takes a lock: results may be given back while any lock is held.
_free: dict[int, deque[_Storage]] = {}


class _Storage(np.ndarray[Any, Any]):
    """Bytes that are lent to one result after the other."""


class _Loan(np.ndarray[Any, Any]):
    """Stands between a result (and every view of it) and its storage; when it dies, the storage is free again."""

    def __del__(self) -> None:
        storage = self.base
        # Views that NumPy makes of a loan are loans of no storage.
        if type(storage) is _Storage and held_bytes() + storage.nbytes <= KEPT:
            _free.setdefault(storage.nbytes, deque()).append(storage)


def makers(types: Sequence[tuple[tuple[int, ...], np.dtype[Any]]]) -> list[Callable[[], np.ndarray[Any, Any]]]:
    """What makes each of the results of a run."""
    sizes = [math.prod(shape) * dtype.itemsize for shape, dtype in types]
    least = SMALL if sum(sizes) >= TRIMMED else LARGE
    return [
        partial(fresh, shape, dtype, least) if size >= least else partial(np.empty, shape, dtype)
        for (shape, dtype), size in zip(types, sizes, strict=True)
    ]


def fresh(shape: tuple[int, ...], dtype: np.dtype[Any], least: int = LARGE) -> np.ndarray[Any, Any]:
    """An array nobody else has, its contents undefined; from ``least`` bytes on in memory that is lent."""
    size = math.prod(shape) * dtype.itemsize
    try:
        if size < least:
            return np.empty(shape, dtype)
        return np.ndarray(shape, dtype, _storage(size).view(_Loan))
    except (MemoryError, ValueError) as error:
        raise BackendError(f"an output of shape {list(shape)} does not fit into memory") from error


def _storage(size: int) -> _Storage:
    room = rounded_up(size)
    try:
        return _free[room].pop()
    except LookupError:
        return np.ndarray.__new__(_Storage, (room,), np.uint8)


def rounded_up(size: int) -> int:
    """The next size with three bits that are not zero: results of like sizes share memory, at most a quarter is spare.

    Example:
        >>> [rounded_up(n) for n in (8, 9, 1000, 1024, 1025)]
        [8, 10, 1024, 1024, 1280]
    """
    shift = max(size.bit_length() - 3, 0)
    return -(-size >> shift) << shift


def held_bytes() -> int:
    """Bytes kept for results to come."""
    return sum(size * len(kept) for size, kept in list(_free.items()))


def release_outputs() -> None:
    """Forget the memory kept for results to come."""
    _free.clear()
