"""Constants in the layouts kernels want: made once for all plans and sessions that share their source."""

from __future__ import annotations

import mmap
import sys
import weakref
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.backends.cpu.onednn import packing
from pyflame_rt.backends.cpu.onednn.api import cpu_isa, version
from pyflame_rt.backends.cpu.onednn.regions import SMALL, weights_empty
from pyflame_rt.cache.models import is_settled
from pyflame_rt.cache.signature import code_signature
from pyflame_rt.cache.store import HEADER, current_store
from pyflame_rt.graph.locks import new_rlock
from pyflame_rt.graph.pages import file_of, forget_pages, root_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyflame_rt.backends.cpu.onednn.memory import MemDesc

__all__ = ["Resident", "derived", "pack", "resident", "sharing"]

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
# What is smaller is packed faster than a file is opened.
MIN_FILE = 1 << 16

_made: weakref.WeakValueDictionary[tuple[Any, ...], np.ndarray[Any, Any]] = weakref.WeakValueDictionary()
_spots: dict[tuple[Any, ...], slice] = {}  # where in the array of `_made` a result lies
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
    source: np.ndarray[Any, Any], form: tuple[Any, ...], size: int, fill: Callable[[Bytes], None]
) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """A constant in another form, shared by everybody who asks for the same form of the same memory.

    What comes from a mapped file is kept on disk too, and mapped the next time. Pages of the source are given back when
    they were read: what is packed is not needed a second time.

    Args:
        source: the constant; its memory tells it from others.
        form: names the result.
        size: bytes of the result.
        fill: writes the result into memory.
    """
    owner, scope = root_of(source), _scope.get()
    mapped = isinstance(owner, mmap.mmap) and not source.flags.writeable
    if not mapped and scope is None:
        return _filled(weights_empty(size), fill)
    key = (source.ctypes.data, source.shape, source.strides, source.dtype.str, form, None if mapped else id(scope))
    with _lock:
        found = _made.get(key)
        if found is not None:
            return found[_spots[key]]
    result = _on_disk(source, form, size, fill) if mapped and size >= MIN_FILE else None
    if result is None:
        result = _filled(weights_empty(size), fill)
    forget_pages(source)
    with _lock:
        if _watch(owner):
            # A view of the result keeps the memory's owner, not the result itself: the owner is what must be known.
            anchor = result.base if isinstance(result.base, np.ndarray) else result
            start = result.ctypes.data - anchor.ctypes.data
            _made[key], _spots[key] = anchor, slice(start, start + size)
    return result


def _filled(out: Bytes, fill: Callable[[Bytes], None]) -> Bytes:
    fill(out)
    return out


def _on_disk(
    source: np.ndarray[Any, Any], form: tuple[Any, ...], size: int, fill: Callable[[Bytes], None]
) -> Bytes | None:
    """The result as an entry of the store, made now if it is not there; None where it cannot be kept."""
    found = file_of(source)
    if found is None or not is_settled(found[1]):
        return None
    _, identity, offset = found
    store = current_store()
    key = f"{_build()} {tuple(identity)} {offset} {source.shape} {source.strides} {source.dtype.str} {form}"
    mapped = store.open_map("weights", key)
    if mapped is not None and len(mapped) == HEADER + size:
        return np.frombuffer(mapped, np.uint8, offset=HEADER)
    draft = store.reserve("weights", key, size)
    if draft is None:
        return None
    try:
        out = _filled(np.frombuffer(draft.mapped, np.uint8, offset=HEADER), fill)
    except BaseException:
        draft.drop()
        raise
    draft.keep()
    return out


@cache
def _build() -> str:
    """Everything a packed form depends on besides its source and name."""
    return f"{version()} {cpu_isa()} {sys.byteorder} {code_signature('backends/cpu')}"


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
    for key in [k for k in list(_spots) if low <= k[0] < high]:
        _made.pop(key, None)
        _spots.pop(key, None)


class Resident(np.ndarray[Any, Any]):
    """A copy of mapped memory; ``source`` keeps the address it is known by from being used again."""

    source: Any = None


_residents: weakref.WeakValueDictionary[tuple[Any, ...], Resident] = weakref.WeakValueDictionary()


def resident(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Weights that every run reads whole, taken out of a mapped file: its small pages are slower to read."""
    if not isinstance(root_of(array), mmap.mmap) or array.nbytes < SMALL:
        return array
    key = (array.ctypes.data, array.shape, array.dtype.str)
    with _lock:
        found = _residents.get(key)
        if found is None:
            found = weights_empty(array.nbytes).view(array.dtype).reshape(array.shape).view(Resident)
            np.copyto(found, array)
            found.source = array
            forget_pages(array)
            _residents[key] = found
        return found


def pack(array: np.ndarray[Any, Any], target: MemDesc) -> Bytes:
    """The bytes of a constant in a layout of the library."""
    if target.layout == "opaque" or target.layout.endswith("+"):
        return packing.pack(array, target)  # its name does not say everything
    form = (target.dims, target.padded_dims, target.dtype, target.layout, target.offset, target.size)
    return derived(array, form, target.size, lambda out: packing.pack_into(array, target, out))
