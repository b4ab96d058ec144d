"""Finding and loading libgomp, whose threads our own kernels and oneDNN share."""

from __future__ import annotations

import contextlib
import ctypes
import os
from typing import TYPE_CHECKING

from pyflame_rt.graph.locks import new_rlock

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["find_library", "load_gomp", "loaded_gomp"]

SPIN_COUNT = "2000"  # 20 to 50 us of spinning before a waiting thread sleeps

_lock = new_rlock()
_gomp: ctypes.CDLL | None = None


def load_gomp() -> ctypes.CDLL | None:
    """GNU OpenMP, loaded before libdnnl so that both see one copy; None where the system has none."""
    global _gomp
    with _lock:
        if _gomp is None:
            with _bounded_spinning():
                _gomp = _open_gomp()
        return _gomp


def loaded_gomp() -> ctypes.CDLL | None:
    """GNU OpenMP if this process has it already, whoever loaded it."""
    if _gomp is not None or not hasattr(os, "RTLD_NOLOAD"):
        return _gomp
    with contextlib.suppress(OSError):
        return ctypes.CDLL("libgomp.so.1", mode=os.RTLD_NOW | os.RTLD_NOLOAD)
    return None


def _open_gomp() -> ctypes.CDLL | None:
    with contextlib.suppress(OSError):
        return ctypes.CDLL("libgomp.so.1", mode=ctypes.RTLD_GLOBAL)
    name = find_library("gomp")
    if name is not None:
        with contextlib.suppress(OSError):
            return ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
    return None


def find_library(name: str) -> str | None:
    """What the system's own search says, which may start a compiler to ask it."""
    import ctypes.util

    return ctypes.util.find_library(name)


@contextlib.contextmanager
def _bounded_spinning() -> Iterator[None]:
    """Set GOMP_SPINCOUNT while libgomp reads its environment, unless the user has chosen how threads wait.

    Only the C environment changes, so ``os.environ`` and child processes never see it.
    """
    if os.name != "posix" or "GOMP_SPINCOUNT" in os.environ or "OMP_WAIT_POLICY" in os.environ:
        yield
        return
    libc = ctypes.CDLL(None)
    libc.setenv.argtypes, libc.setenv.restype = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int), ctypes.c_int
    libc.unsetenv.argtypes, libc.unsetenv.restype = (ctypes.c_char_p,), ctypes.c_int
    libc.setenv(b"GOMP_SPINCOUNT", SPIN_COUNT.encode(), 1)
    try:
        yield
    finally:
        libc.unsetenv(b"GOMP_SPINCOUNT")
