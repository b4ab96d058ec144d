"""Constants in the layouts kernels want: made once for all plans and sessions that share their source."""

from __future__ import annotations

import mmap
import weakref
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.backends.cpu.onednn import packing
from pyflame_rt.graph.locks import new_rlock
from pyflame_rt.graph.pages import forget_pages, root_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyflame_rt.backends.cpu.onednn.memory import MemDesc

__all__ = ["derived", "pack", "sharing"]

_made: weakref.WeakValueDictionary[tuple[Any, ...], np.ndarray[Any, Any]] = weakref.WeakValueDictionary()
_guarded: set[int] = set()  # owners of memory whose end is watched
_lock = new_rlock()
_scope: ContextVar[object | None] = ContextVar("weights", default=None)


@contextmanager
def sharing(scope: object) -> Iterator[None]:
    """Plans made inside share what they make of constants in memory with others of the same scope.

    What comes from a mapped file is shared by all: nobody can change it. Arrays in memory are the caller's, who may
    change them between one session and the next.
    """
    token = _scope.set(scope)
    try:
        yield
    finally:
        _scope.reset(token)


def derived(
    source: np.ndarray[Any, Any], form: tuple[Any, ...], make: Callable[[], np.ndarray[Any, Any]]
) -> np.ndarray[Any, Any]:
    """What ``make`` gives for a constant, shared by everybody who asks for the same form of the same memory.

    Pages of a mapped file are given back when they were read: what is packed is not needed a second time.

    Args:
        source: the constant; its memory tells it from others.
        form: names the result.
        make: works it out.
    """
    owner, scope = root_of(source), _scope.get()
    mapped = isinstance(owner, mmap.mmap) and not source.flags.writeable
    if not mapped and scope is None:
        return make()
    key = (source.ctypes.data, source.shape, source.strides, source.dtype.str, form, None if mapped else id(scope))
    with _lock:
        found = _made.get(key)
    if found is not None:
        return found
    result = make()
    forget_pages(source)
    with _lock:
        if _watch(owner):
            result = _made.setdefault(key, result)
    return result


def _watch(owner: Any) -> bool:
    """Forget what was made from memory that goes away; False when its end cannot be seen."""
    if id(owner) in _guarded:
        return True
    try:
        weakref.finalize(owner, _forget, id(owner), _extent(owner)).atexit = False
    except (TypeError, ValueError, BufferError):
        return False
    _guarded.add(id(owner))
    return True


def _extent(owner: Any) -> tuple[int, int]:
    if isinstance(owner, np.ndarray):
        return np.lib.array_utils.byte_bounds(owner)
    return np.lib.array_utils.byte_bounds(np.frombuffer(owner, np.uint8))


def _forget(number: int, extent: tuple[int, int]) -> None:
    # Collected inside `derived`, on the thread that holds the lock, this must not wait for it.
    _guarded.discard(number)
    low, high = extent
    for key in [k for k in list(_made.keys()) if low <= k[0] < high]:
        _made.pop(key, None)


def pack(array: np.ndarray[Any, Any], target: MemDesc) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The bytes of a constant in a layout of the library."""
    if target.layout == "opaque" or target.layout.endswith("+"):
        return packing.pack(array, target)  # its name does not say everything
    form = (target.dims, target.padded_dims, target.dtype, target.layout, target.offset, target.size)
    return derived(array, form, lambda: packing.pack(array, target))
