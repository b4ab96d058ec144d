"""Memory in which every buffer ends at a page that nobody may touch."""

from __future__ import annotations

import ctypes
import mmap
import os
from functools import cache
from typing import Any

import numpy as np

from pyflame_rt.graph.errors import BackendError

__all__ = ["Guarded", "GuardedRegion"]

PAGE = mmap.PAGESIZE
ALIGN = 64
CANARY = 0xA5
POISON = 0xFF  # not a number as a float of any width, -1 as an integer
MAX_BUFFERS = 30_000  # each takes two mappings, of which a process has 65,530
_NONE, _READ, _WRITE = 0, 1, 2


class GuardedRegion:
    """One buffer: its bytes, and the bytes around it that must keep their canaries."""

    __slots__ = ("_after", "_before", "address", "data", "nbytes")

    def __init__(self, page: int, pages: int, nbytes: int) -> None:
        end = page + pages * PAGE
        self.nbytes = nbytes
        self.address = end - (nbytes + -nbytes % ALIGN)
        self.data = _bytes(self.address, nbytes)
        self._before = _bytes(page, self.address - page)
        self._after = _bytes(self.address + nbytes, end - self.address - nbytes)
        self._before[:] = CANARY
        self._after[:] = CANARY

    def poison(self) -> None:
        """Make whatever is read from it wrong."""
        self.data[:] = POISON

    def damage(self) -> str:
        """Where the bytes around it were changed; "" when they were not."""
        if (self._after != CANARY).any():
            return f"{int(np.argmax(self._after != CANARY))} bytes behind its end"
        if (self._before != CANARY).any():
            return f"{len(self._before) - int(np.argmax(self._before != CANARY))} bytes before its begin"
        return ""


def _bytes(address: int, count: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    if count == 0:
        return np.zeros(0, np.uint8)
    return np.frombuffer(memoryview((ctypes.c_uint8 * count).from_address(address)), np.uint8)


class Guarded:
    """One mapping with room for several buffers, each between pages without access."""

    def __init__(self, sizes: list[int]) -> None:
        if os.name != "posix":
            raise BackendError("checked mode needs pages without access, which only POSIX systems give")
        if len(sizes) > MAX_BUFFERS:
            raise BackendError(f"checked mode guards at most {MAX_BUFFERS} buffers, the model has {len(sizes)}")
        pages = [-(-max(size, 1) // PAGE) for size in sizes]
        self._size = (sum(pages) + len(pages) + 1) * PAGE
        self._base = _map(self._size)
        self.regions: list[GuardedRegion] = []
        at = self._base + PAGE
        for size, count in zip(sizes, pages, strict=True):
            _protect(at, count * PAGE, _READ | _WRITE)
            self.regions.append(GuardedRegion(at, count, size))
            at += (count + 1) * PAGE

    @staticmethod
    def freeze(region: GuardedRegion) -> None:
        """Let nobody write to a buffer any more."""
        first = region.address - region.address % PAGE
        begin = first - (len(region._before) // PAGE) * PAGE
        _protect(begin, region.address + region.nbytes + len(region._after) - begin, _READ)

    def close(self) -> None:
        """Give the memory back."""
        if self._base:
            self.regions = []
            _libc().munmap(self._base, self._size)
            self._base = 0

    def __del__(self) -> None:
        if getattr(self, "_base", 0):
            self.close()


@cache
def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    pointer, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    libc.mmap.argtypes, libc.mmap.restype = (pointer, size, number, number, number, ctypes.c_long), pointer
    libc.mprotect.argtypes, libc.mprotect.restype = (pointer, size, number), number
    libc.munmap.argtypes, libc.munmap.restype = (pointer, size), number
    return libc


def _map(size: int) -> int:
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    address = _libc().mmap(None, size, _NONE, flags, -1, 0)
    if address is None or address == ctypes.c_void_p(-1).value:
        raise BackendError(f"checked mode cannot map {size} bytes: {os.strerror(ctypes.get_errno())}")
    return address


def _protect(address: int, size: int, rights: int) -> None:
    if _libc().mprotect(address, size, rights):
        raise BackendError(f"checked mode cannot guard memory: {os.strerror(ctypes.get_errno())}")
