"""Files mapped into memory: one mapping for each file, and pages given back when they were read."""

from __future__ import annotations

import mmap
import os
import weakref
from typing import Any, NamedTuple

import numpy as np

from pyflame_rt.graph.locks import new_lock

__all__ = ["FileIdentity", "file_of", "forget_pages", "identity_of", "map_file", "note_mapping", "root_of"]


class FileIdentity(NamedTuple):
    """What tells a file from every other, and from itself after it was written to."""

    device: int
    inode: int
    size: int
    modified_ns: int


def identity_of(file: int | str | os.PathLike[str]) -> FileIdentity:
    """The identity of a file that is open, or at a path."""
    found = os.stat(file)
    return FileIdentity(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


_files: weakref.WeakKeyDictionary[mmap.mmap, tuple[str, FileIdentity]] = weakref.WeakKeyDictionary()
_maps: weakref.WeakValueDictionary[FileIdentity, mmap.mmap] = weakref.WeakValueDictionary()
_lock = new_lock()


def map_file(path: str | os.PathLike[str]) -> mmap.mmap:
    """A file mapped for reading; the same object for everybody as long as the file does not change.

    Raises:
        OSError: It cannot be opened.
        ValueError: It is empty.
    """
    with open(path, "rb") as file:
        identity = identity_of(file.fileno())
        with _lock:
            mapped = _maps.get(identity)
            if mapped is None or mapped.closed:
                mapped = _maps[identity] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                _files[mapped] = os.path.abspath(path), identity
            return mapped


def note_mapping(mapped: mmap.mmap, path: str | os.PathLike[str]) -> None:
    """Let :func:`file_of` know a mapping that was made elsewhere, of a file that will not change."""
    identity = identity_of(path)
    with _lock:
        _files[mapped] = os.path.abspath(path), identity
        _maps.setdefault(identity, mapped)


def file_of(array: np.ndarray[Any, Any]) -> tuple[str, FileIdentity, int] | None:
    """The file an array was mapped from with :func:`map_file`, and where in it the array begins; None for others."""
    root = root_of(array)
    found = _files.get(root) if isinstance(root, mmap.mmap) and not root.closed else None
    if found is None:
        return None
    return *found, array.ctypes.data - np.frombuffer(root, dtype=np.uint8).ctypes.data


def root_of(array: np.ndarray[Any, Any]) -> Any:
    """The object that owns an array's memory: an array, a mapping, or whatever gave its buffer."""
    owner: Any = array
    following: Any = array
    while following is not None:
        owner = following
        # Arrays made by as_strided are owned by an object of NumPy's that has a base as arrays do.
        following = getattr(owner, "obj" if type(owner) is memoryview else "base", None)
    return owner


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
