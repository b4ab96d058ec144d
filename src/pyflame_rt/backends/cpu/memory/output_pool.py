"""Arrays to hand out: large ones in memory of the pool, which an earlier result gave back: it is warm."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from pyflame_rt.graph.errors import BackendError, MemoryLimitError
from pyflame_rt.memory.pool import global_pool

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyflame_rt.memory.pool import Account

__all__ = ["fresh", "held_bytes", "makers", "release_outputs", "room_of"]

LARGE = 1 << 18  # a smaller one the C library keeps warm itself,
TRIMMED = 1 << 17  # unless the results of a run together have so many bytes: these it gives back to the system,
SMALL = 1 << 15  # and for those from here on page faults cost more than a loan

Types: TypeAlias = "Sequence[tuple[tuple[int, ...], np.dtype[Any]]]"


def makers(types: Types, account: Account | None = None) -> list[Callable[[], np.ndarray[Any, Any]]]:
    """What makes each of the results of a run."""
    sizes, least = _sizes(types)
    return [
        partial(fresh, shape, dtype, least, account) if size >= least else partial(np.empty, shape, dtype)
        for (shape, dtype), size in zip(types, sizes, strict=True)
    ]


def room_of(types: Types) -> int:
    """Bytes that the results of a run take, with what rounding adds."""
    sizes, least = _sizes(types)
    room = global_pool().config.room
    return sum(room(size) if size >= least else size for size in sizes)


def _sizes(types: Types) -> tuple[list[int], int]:
    sizes = [math.prod(shape) * dtype.itemsize for shape, dtype in types]
    return sizes, SMALL if sum(sizes) >= TRIMMED else LARGE


def fresh(
    shape: tuple[int, ...], dtype: np.dtype[Any], least: int = LARGE, account: Account | None = None
) -> np.ndarray[Any, Any]:
    """An array nobody else has, its contents undefined; from ``least`` bytes on in memory that is lent."""
    size = math.prod(shape) * dtype.itemsize
    try:
        if size < least:
            return np.empty(shape, dtype)
        return np.ndarray(shape, dtype, global_pool().lend(size, account))
    except MemoryLimitError:
        raise
    except (MemoryError, ValueError, BackendError) as error:
        raise BackendError(f"an output of shape {list(shape)} does not fit into memory") from error


def held_bytes() -> int:
    """Bytes kept for results to come."""
    return global_pool().get_stats().cached_bytes


def release_outputs() -> None:
    """Give the memory kept for results to come back to the system."""
    global_pool().trim()
