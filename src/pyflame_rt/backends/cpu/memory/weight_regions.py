"""Memory for weights: packed one after the other in regions of large pages, which are read faster than small ones."""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
import weakref
from typing import Any

import numpy as np

from pyflame_rt.backends.cpu.memory.ledger import current_ledger
from pyflame_rt.memory.pool import Account, global_pool

__all__ = ["SMALL", "weights_empty"]

REGION = 64 << 20
SMALL = 32 << 10  # what is smaller gains nothing
_ALIGN = 64

_lock = threading.Lock()
_current: list[Any] = [None, 0, 0]  # the region, bytes of it in use, the process it belongs to


def weights_empty(size: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """``size`` bytes for weights, their address a multiple of a cache line; memory nobody asked for is never touched.

    A region goes when the last of its arrays does.
    """
    account = current_ledger().packed
    if size < SMALL or not hasattr(mmap, "MADV_HUGEPAGE"):
        return _lent(size, account)
    if size > REGION // 4:
        region = _region(size)
        return _lent(size, account) if region is None else _booked(region, 0, size, account)
    with _lock:
        region, used, process = _current
        if region is None or used + size > REGION or process != os.getpid():
            region, used = _region(REGION), 0
            if region is None:
                return _lent(size, account)
        _current[:] = [region, used + size + -size % _ALIGN, os.getpid()]
        return _booked(region, used, size, account)


def _lent(size: int, account: Account) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return global_pool().lend(size, account, exact=True)[:size]


def _booked(region: Any, begin: int, size: int, account: Account) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """A part of a region, which the pool counts until the region goes."""
    global_pool().charge(size, account)
    weakref.finalize(region.base, global_pool().discharge, size, account).atexit = False
    return region[begin : begin + size]


def _region(size: int) -> np.ndarray[Any, np.dtype[np.uint8]] | None:
    try:
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.madvise(mmap.MADV_HUGEPAGE)
    except (OSError, ValueError, MemoryError):
        return None
    # Through ctypes, so that nobody takes it for a mapped file whose pages may be given back.
    owner: Any = (ctypes.c_ubyte * size).from_buffer(memory)
    return np.frombuffer(owner, np.uint8)
