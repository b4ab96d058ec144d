"""Files mapped into memory: one mapping for each file, and pages given back when they were read."""

from __future__ import annotations

import mmap
import os
import weakref
from typing import Any

import numpy as np

from pyflame_rt.graph.locks import new_lock

__all__ = ["forget_pages", "map_file", "root_of"]

_maps: weakref.WeakValueDictionary[tuple[int, ...], mmap.mmap] = weakref.WeakValueDictionary()
_lock = new_lock()


def map_file(path: str | os.PathLike[str]) -> mmap.mmap:
    """A file mapped for reading; the same object for everybody as long as the file does not change.

    Raises:
        OSError: It cannot be opened.
        ValueError: It is empty.
    """
    with open(path, "rb") as file:
        found = os.fstat(file.fileno())
        key = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, os.getpid())
        with _lock:
            mapped = _maps.get(key)
            if mapped is None or mapped.closed:
                mapped = _maps[key] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            return mapped


def root_of(array: np.ndarray[Any, Any]) -> Any:
    """The object that owns an array's memory: an array, a mapping, or whatever gave its buffer."""
    owner: Any = array
    while True:
        # Arrays made by as_strided are owned by an object of NumPy's that has a base as arrays do.
        following: Any = getattr(owner, "obj" if isinstance(owner, memoryview) else "base", None)
        if following is None:
            return owner
        owner = following


def forget_pages(array: np.ndarray[Any, Any]) -> None:
    """Give the memory of an array in a mapped file back to the system; it is read again when needed."""
    root = root_of(array)
    if not isinstance(root, mmap.mmap) or root.closed or not hasattr(root, "madvise"):
        return
    low, high = np.lib.array_utils.byte_bounds(array)
    start = low - np.frombuffer(root, dtype=np.uint8).ctypes.data
    # Only pages that lie inside: the neighbours may be in use.
    first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
    count = (start + high - low) // mmap.PAGESIZE * mmap.PAGESIZE - first
    if count > 0:
        root.madvise(mmap.MADV_DONTNEED, first, count)
