"""Copies of model files of our own, so that weights need be neither in memory twice nor in a file others write to.

A model file is read into memory when it is loaded. When the first answer is out, its contents are written to the store,
and the pages of the copy take the place of the memory, at the same addresses and with the same contents: what was
packed need not stay in memory as it came. The next process maps the copy and reads of it what it needs.
"""

from __future__ import annotations

import ctypes
import os
import sys
import weakref
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.cache.blocks import BLOCK, block_digests, blocks_match
from pyflame_rt.cache.store import HEADER, current_store
from pyflame_rt.graph.pages import LEAD, held, held_in, hold_file, identity_of, note_remapped, only_in_memory, promised

if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable, Iterable

    from pyflame_rt.cache.store import Store
    from pyflame_rt.graph.pages import FileIdentity

__all__ = ["contents_of", "keep_copies"]

_KIND = "source"
_MIN = 1 << 20  # smaller files stay in memory
_PROT_READ, _MAP_PRIVATE, _MAP_FIXED = 1, 2, 16  # as Linux numbers them
assert LEAD == HEADER  # so that pages of the two lie alike


def contents_of(path: str, identity: FileIdentity) -> memoryview | None:
    """The contents of a model file as it was: from memory, from our own copy, or read now; None when it has changed.

    Those of our copy are not verified yet: :func:`pyflame_rt.graph.pages.verified` does so where they are used.

    Raises:
        OSError: The file is gone.
    """
    if identity_of(path) != identity:
        return None
    if promised():
        return hold_file(path)
    known = held(identity)
    if known is not None:
        return known
    found = current_store().open_parts(_KIND, _key(path, identity)) if identity.size >= _MIN else None
    if found is not None and found.size == identity.size:
        return held_in(found.mapped, path, identity, _Check(found.mapped, found.size, found.table))
    return hold_file(path)


def _key(path: str, identity: FileIdentity) -> str:
    return f"{path} {tuple(identity)}"


class _Check:
    """Looks at each block of a copy once."""

    def __init__(self, mapped: mmap.mmap, size: int, table: bytes) -> None:
        self.mapped = weakref.ref(mapped)
        self.size, self.table = size, table
        self.sound = bytearray(-(-size // BLOCK))

    def __call__(self, begin: int, end: int) -> bool:
        mapped = self.mapped()
        if mapped is None or not 0 <= begin <= end <= self.size:
            return False
        blocks = slice(begin // BLOCK, -(-end // BLOCK))
        if all(self.sound[blocks]):
            return True
        if not blocks_match(np.frombuffer(mapped, np.uint8, self.size, LEAD), self.table, begin, end):
            return False
        self.sound[blocks] = b"\1" * len(self.sound[blocks])
        return True


# ---------------------------------------------------------------------- writing


def keep_copies(arrays: Iterable[np.ndarray[Any, Any]], settled: Callable[[FileIdentity], bool]) -> None:
    """Have the model files that arrays lie in copied, and their memory replaced by the copies, in the background.

    Args:
        arrays: weights as they were loaded.
        settled: whether an identity tells a file's contents.
    """
    store = current_store()
    if not store.writable or sys.platform != "linux":
        return
    found = {id(place[0]): place for array in arrays if (place := only_in_memory(array)) is not None}
    for memory, path, identity in found.values():
        if identity.size >= _MIN and settled(identity):
            _later(store, weakref.ref(memory), _key(path, identity))


def _later(store: Store, memory: weakref.ref[mmap.mmap], key: str) -> None:
    def work() -> None:
        alive = memory()
        if alive is None or only_in_memory(np.frombuffer(alive, np.uint8)) is None:  # somebody was first
            return
        if _is_kept(store, alive, key) and _remap(store, alive, key):
            note_remapped(alive)

    store.writer.submit(work)


def _is_kept(store: Store, memory: mmap.mmap, key: str) -> bool:
    """Whether the store has what memory holds, perhaps from now on."""
    contents = np.frombuffer(memory, np.uint8, offset=LEAD)
    found = store.open_large(_KIND, key)
    if found is None:
        return store.put_large(_KIND, key, contents.data)
    same = len(found) == len(contents) and block_digests(found) == block_digests(contents)
    if not same:
        store.discard(_KIND, key)
    return same


def _remap(store: Store, memory: mmap.mmap, key: str) -> bool:
    """Put the pages of an entry in the place of memory that holds the same."""
    number = store.open_number(_KIND, key)
    if number is None:
        return False
    try:
        if os.fstat(number).st_size < len(memory):
            return False
        address = np.frombuffer(memory, np.uint8).__array_interface__["data"][0]
        found = _mmap()(address, len(memory), _PROT_READ, _MAP_PRIVATE | _MAP_FIXED, number, 0)
        return found == address
    finally:
        os.close(number)


@cache
def _mmap() -> Any:
    function = ctypes.CDLL(None, use_errno=True).mmap
    sizes, numbers = [ctypes.c_void_p, ctypes.c_size_t], [ctypes.c_int] * 3
    function.argtypes, function.restype = [*sizes, *numbers, ctypes.c_int64], ctypes.c_void_p
    return function
