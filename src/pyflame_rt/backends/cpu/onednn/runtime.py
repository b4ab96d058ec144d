"""Native handles and who owns them: the engine of this process, streams, accounting, and what a fork does."""

from __future__ import annotations

import ctypes
import os
import threading
from typing import TYPE_CHECKING, Self

from pyflame_rt.backends.cpu.onednn import api

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Handle", "Stream", "engine", "generation", "live_handles", "on_fork"]

PRIMITIVE_CACHE_CAPACITY = 256  # compiled primitives the library itself keeps for reuse

_lock = threading.RLock()  # the collector may free handles on the thread that holds it
_live = 0
_generation = 0
_engine: int | None = None
_fork_hooks: list[Callable[[], None]] = []


class Handle:
    """One native object: freed by :meth:`close`, by a ``with`` block, or when the last reference goes.

    In a forked child the objects of the parent are abandoned, not freed: a thread that does not
    exist there may have held the library's locks.
    """

    _destroy = ""  # the C function that frees it

    def __init__(self, handle: int) -> None:
        self._handle: int | None = handle
        self._generation = _generation
        _count(1)

    @property
    def handle(self) -> int:
        """The native pointer."""
        if self._handle is None:
            raise ValueError(f"{type(self).__name__} is closed")
        return self._handle

    @property
    def closed(self) -> bool:
        """Whether the native object is gone."""
        return self._handle is None

    def close(self) -> None:
        """Free the native object now; harmless when repeated."""
        handle, self._handle = self._handle, None
        if handle is None or self._generation != _generation:
            return
        _count(-1)
        getattr(api.lib(), self._destroy)(handle)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None:
            self.close()


class Stream(Handle):
    """An in-order execution queue; one per arena."""

    _destroy = "dnnl_stream_destroy"

    def __init__(self) -> None:
        out = ctypes.c_void_p()
        api.lib().dnnl_stream_create(ctypes.byref(out), engine(), api.STREAM_DEFAULT)
        super().__init__(out.value or 0)

    def wait(self) -> None:
        """Wait for everything submitted; CPU streams have nothing outstanding after execute returns."""
        api.lib().dnnl_stream_wait(self.handle)


def engine() -> int:
    """The CPU engine of this process, made on first use; it lives as long as the process."""
    global _engine
    with _lock:
        if _engine is None:
            lib = api.lib()
            lib.dnnl_set_primitive_cache_capacity(PRIMITIVE_CACHE_CAPACITY)
            out = ctypes.c_void_p()
            lib.dnnl_engine_create(ctypes.byref(out), api.ENGINE_CPU, 0)
            _engine = out.value or 0
        return _engine


def live_handles() -> int:
    """How many native objects this process holds (the engine not counted)."""
    return _live


def generation() -> int:
    """How many forks lie between the first process and this one; objects of another generation are dead."""
    return _generation


def on_fork(hook: Callable[[], None]) -> None:
    """Call ``hook`` in every forked child, after the binding has dropped the parent's objects."""
    _fork_hooks.append(hook)


def _count(change: int) -> None:
    global _live
    with _lock:
        _live += change


def _after_fork() -> None:
    global _lock, _live, _generation, _engine
    _lock = threading.RLock()
    _live, _engine = 0, None
    _generation += 1
    for hook in _fork_hooks:
        hook()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
