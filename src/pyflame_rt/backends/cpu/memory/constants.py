"""Constants in the layouts kernels want: made once for all plans and sessions that share their source."""

from __future__ import annotations

import mmap
import os
import sys
import weakref
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.backends.cpu.jit.thread_pool import HELPERS, PoolTask, do_all
from pyflame_rt.backends.cpu.memory.weight_regions import SMALL, weights_empty
from pyflame_rt.backends.cpu.onednn import packing
from pyflame_rt.backends.cpu.onednn.api import cpu_isa, version
from pyflame_rt.cache.folders import make_folder
from pyflame_rt.cache.models import is_settled
from pyflame_rt.cache.places import place_of
from pyflame_rt.cache.signature import code_signature
from pyflame_rt.cache.store import current_store
from pyflame_rt.graph.budget import current_budget
from pyflame_rt.graph.locks import new_rlock
from pyflame_rt.graph.pages import file_memory, file_of, forget_pages, root_of
from pyflame_rt.graph.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyflame_rt.backends.cpu.onednn.memory import MemDesc
    from pyflame_rt.cache.encoding import Kinded
    from pyflame_rt.cache.store import Store

__all__ = ["Resident", "derived", "do_beside", "pack", "packed_place", "packing_beside", "resident", "sharing"]

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
# What is smaller is packed faster than a file is opened.
MIN_FILE = 1 << 16

_made: weakref.WeakValueDictionary[tuple[Any, ...], np.ndarray[Any, Any]] = weakref.WeakValueDictionary()
_spots: dict[tuple[Any, ...], slice] = {}  # where in the array of `_made` a result lies
_guarded: set[int] = set()  # owners of memory whose end is watched
_lock = new_rlock()
_filling: dict[int, PoolTask[None]] = {}  # address -> what fills the memory there
_scope: ContextVar[object | None] = ContextVar("weights", default=None)
_beside: ContextVar[list[PoolTask[None]] | None] = ContextVar("packing", default=None)


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


@contextmanager
def packing_beside() -> Iterator[None]:
    """What is packed inside may be packed by other threads meanwhile; all of it is there at the end."""
    tasks: list[PoolTask[None]] = []
    token = _beside.set(tasks)
    try:
        yield
    except BaseException:
        for task in tasks:
            task.wait()  # its memory may be shared with plans that need it
        raise
    finally:
        _beside.reset(token)
    do_all(tasks)


def _do(task: PoolTask[None], *, beside: bool = True) -> None:
    """Have something packed: now, or by whoever is free before the plan is complete."""
    tasks = _beside.get()
    if tasks is None or not beside:
        task.result()
        return
    tasks.append(task)
    # Whoever plans meets packing at the end, when it can share it; code it would wait for.
    HELPERS.submit(task, last=True)


def do_beside(work: Callable[[], None]) -> None:
    """Work that must be done at the end of :func:`packing_beside`, there by any thread; at once outside of it."""
    _do(PoolTask(work))


def derived(
    source: np.ndarray[Any, Any],
    form: tuple[Any, ...],
    size: int,
    fill: Callable[[Bytes], None],
    *,
    beside: bool = True,
) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """A constant in another form, shared by everybody who asks for the same form of the same memory.

    What comes from a mapped file is written to disk too, after the first answer, and mapped the next time. Pages of the
    source are given back when they were read: what is packed is not needed a second time.

    Args:
        source: the constant; its memory tells it from others.
        form: names the result.
        size: bytes of the result.
        fill: writes the result into memory.
        beside: it may do so on another thread, until the end of :func:`packing_beside`.
    """
    owner, scope = root_of(source), _scope.get()
    mapped = isinstance(owner, mmap.mmap) and not source.flags.writeable
    if not mapped and scope is None:
        result = weights_empty(size)
        _do(PoolTask(lambda: fill(result)), beside=beside)
        return result
    key = (source.ctypes.data, source.shape, source.strides, source.dtype.str, form, None if mapped else id(scope))
    with _lock:
        found = _made.get(key)
        if found is not None:
            result = found[_spots[key]]
            if (task := _filling.get(result.ctypes.data)) is not None:
                _do(task, beside=beside)
            return result
    result, work = (_on_disk(source, form, size, fill) if mapped and size >= MIN_FILE else None) or (None, None)
    if result is None:
        result = memory = weights_empty(size)
        work = lambda: fill(memory)  # noqa: E731
    if work is None:
        return _known(key, owner, result, size)
    address, work = result.ctypes.data, work
    task = PoolTask(lambda: _pack(work, source, key, address))
    with _lock:
        _filling[address] = task
        _known(key, owner, result, size)
    _do(task, beside=beside)
    return result


def _known(key: tuple[Any, ...], owner: Any, result: Bytes, size: int) -> Bytes:
    """Let others find a result."""
    with _lock:
        if _watch(owner):
            anchor = _anchor(result)
            start = result.ctypes.data - anchor.ctypes.data
            _made[key], _spots[key] = anchor, slice(start, start + size)
    return result


def _anchor(array: Bytes) -> Bytes:
    """What views of an array keep: the memory's owner, not the array itself."""
    return array.base if isinstance(array.base, np.ndarray) else array


def _pack(work: Callable[[], None], source: np.ndarray[Any, Any], key: tuple[Any, ...], address: int) -> None:
    try:
        work()
        forget_pages(source)
    except BaseException:
        _made.pop(key, None)
        raise
    finally:
        _filling.pop(address, None)


def _on_disk(
    source: np.ndarray[Any, Any], form: tuple[Any, ...], size: int, fill: Callable[[Bytes], None]
) -> tuple[Bytes, Callable[[], None] | None] | None:
    """The result as an entry of the store, or what makes it and writes it there later; None where it is not kept."""
    found = file_of(source)
    if found is None:
        return None
    if not is_settled(found[1]):
        return (_in_file(size, fill), None) if current_budget().in_files else None
    _, identity, offset = found
    store = current_store()
    key = f"{_build()} {tuple(identity)} {offset} {source.shape} {source.strides} {source.dtype.str} {form}"
    kept = store.open_large("weights", key)
    if kept is not None and len(kept) == size:
        return kept, None
    if current_budget().in_files:
        out = _in_file(size, fill)
        kept = store.open_large("weights", key) if store.put_large("weights", key, out.data) else None
        return (out if kept is None else kept), None
    if not store.writable:
        return None
    out = weights_empty(size)
    packed = _note(out, key)

    def work() -> None:
        fill(out)
        store.writer.submit(write)

    def write() -> None:
        packed.written = store.put_large("weights", key, out.data)

    return out, work


def _in_file(size: int, fill: Callable[[Bytes], None]) -> Bytes:
    """The result in a file of this process alone."""
    store, folder = current_store(), None
    if store.writable:
        with suppress(OSError):
            make_folder(store.folder)
            folder = store.folder
    out = file_memory(size, folder)
    fill(out)
    return out


@dataclass(slots=True)
class _Packed:
    """Memory that was packed for an entry of the store, which is written later."""

    owner: weakref.ref[Any]
    size: int
    key: str
    written: bool = False


_packed: dict[int, _Packed] = {}  # by address
_many = 64  # of them before those that are gone are looked for


def _note(out: Bytes, key: str) -> _Packed:
    global _many
    with _lock:
        if len(_packed) >= _many:
            for address in [a for a, packed in _packed.items() if packed.owner() is None]:
                del _packed[address]
            _many = max(64, 2 * len(_packed))
        packed = _packed[out.ctypes.data] = _Packed(weakref.ref(_anchor(out)), out.nbytes, key)
    return packed


def _packed_at(array: np.ndarray[Any, Any]) -> _Packed | None:
    packed = _packed.get(array.ctypes.data)
    return None if packed is None or packed.owner() is None or packed.size < array.nbytes else packed


def packed_place(array: np.ndarray[Any, Any], store: Store) -> Kinded | None:
    """What stands for an array that was packed in memory and is in the store too; None for others."""
    packed = _packed_at(array)
    if packed is None or not packed.written or not array.flags.c_contiguous:
        return None
    kept = store.open_large("weights", packed.key)
    if kept is None:  # somebody needed the room
        return None
    return place_of(kept[: array.nbytes].view(array.dtype).reshape(array.shape), store)


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
    if array.nbytes < SMALL or isinstance(array, Resident) or current_budget().in_files:
        return array
    if not isinstance(root_of(array), mmap.mmap):
        return array if _packed_at(array) is None else _marked(array)
    key = (array.ctypes.data, array.shape, array.dtype.str)
    with _lock:
        found = _residents.get(key)
        if found is None:
            found = weights_empty(array.nbytes).view(array.dtype).reshape(array.shape).view(Resident)
            found.source = array
            _residents[key] = found
            task = _filling[found.ctypes.data] = PoolTask(lambda: _copy(array, found, key))
        else:
            task = _filling.get(found.ctypes.data)
    if task is not None:
        _do(task)
    return found


def _marked(array: np.ndarray[Any, Any]) -> Resident:
    """The same memory: it is no file's now, but will be when a plan that reads it comes from the store."""
    found = array.view(Resident)
    found.source = array
    return found


def _copy(array: np.ndarray[Any, Any], out: np.ndarray[Any, Any], key: tuple[Any, ...]) -> None:
    try:
        if (task := _filling.get(array.ctypes.data)) is not None:
            task.result()
        np.copyto(out, array)
        forget_pages(array)
    except BaseException:
        _residents.pop(key, None)
        raise
    finally:
        _filling.pop(out.ctypes.data, None)


def _after_fork() -> None:
    """In the child: what other threads were packing is nobody's."""
    for address in list(_filling):
        for key in [
            k for k, spot in list(_spots.items()) if (a := _made.get(k)) is None or a[spot].ctypes.data == address
        ]:
            _made.pop(key, None)
        for key in [k for k, r in list(_residents.items()) if r.ctypes.data == address]:
            _residents.pop(key, None)
    _filling.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def pack(array: np.ndarray[Any, Any], target: MemDesc) -> Bytes:
    """The bytes of a constant in a layout of the library."""
    if target.layout == "opaque" or target.layout.endswith("+"):
        return packing.pack(array, target)  # its name does not say everything
    form = (target.dims, target.padded_dims, target.dtype, target.layout, target.offset, target.size)
    # A reorder divides its work itself, among the threads of whoever asks for it.
    return derived(array, form, target.size, lambda out: packing.pack_into(array, target, out), beside=False)
