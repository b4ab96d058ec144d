"""Files as memory: model files read into memory of our own, files that nobody writes to mapped.

A mapped file that somebody else truncates ends the process at the next look at it, and one that is written to changes
answers. So a model file is read (:func:`hold_file`), whole and once for all sessions. Mapped are only files that will
not change: entries of our own cache, and what the caller declares immutable (:func:`immutable_files`).
"""

from __future__ import annotations

import errno
import mmap
import os
import threading
import weakref
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pyflame_rt.graph.errors import InvalidModelError, MemoryLimitError
from pyflame_rt.graph.locks import new_lock

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

__all__ = [
    "LEAD",
    "FileIdentity",
    "file_memory",
    "file_of",
    "forget_pages",
    "held",
    "held_in",
    "hold_file",
    "identity_of",
    "immutable_files",
    "map_file",
    "mapping_of",
    "note_mapping",
    "note_remapped",
    "only_in_memory",
    "promised",
    "root_of",
    "verified",
]

LEAD = 128  # bytes before the contents of a held file: as many as come before the contents of an entry of the cache
_HUGE = 4 << 20  # from this size on, memory is asked for in large pages
_TRIES = 3  # to read a file that is being written to


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


class _Source(NamedTuple):
    """The file whose contents memory holds, from byte ``lead`` on."""

    path: str
    identity: FileIdentity
    lead: int
    clean: bool  # the pages are a file's, which has them when they are given back


_sources: weakref.WeakKeyDictionary[mmap.mmap, _Source] = weakref.WeakKeyDictionary()
_maps: weakref.WeakValueDictionary[FileIdentity, mmap.mmap] = weakref.WeakValueDictionary()
_held: weakref.WeakValueDictionary[FileIdentity, mmap.mmap] = weakref.WeakValueDictionary()
_checks: weakref.WeakKeyDictionary[mmap.mmap, Callable[[int, int], bool]] = weakref.WeakKeyDictionary()
_lock = new_lock()
_immutable: ContextVar[bool] = ContextVar("immutable", default=False)


@contextmanager
def immutable_files(promised: bool = True) -> Generator[None]:
    """Inside, files that are read as models are mapped: the caller promises that nobody writes to them."""
    token = _immutable.set(promised)
    try:
        yield
    finally:
        _immutable.reset(token)


def promised() -> bool:
    """Whether model files read here are immutable."""
    return _immutable.get()


# ---------------------------------------------------------------------- model files


def hold_file(path: str | os.PathLike[str]) -> memoryview:
    """The contents of a file, which stay what they are whatever becomes of the file; the same memory for everybody.

    Raises:
        OSError: It cannot be read.
        ValueError: It is empty.
        InvalidModelError: It is being written to.
    """
    if promised():
        return memoryview(map_file(path))
    for _ in range(_TRIES):
        with open(path, "rb", buffering=0) as file:
            identity = identity_of(file.fileno())
            memory = _find(_held, identity)
            if memory is None:
                memory = _read(file, identity.size)
                if memory is None or identity_of(file.fileno()) != identity:
                    continue
                memory = _keep(memory, _Source(os.path.abspath(path), identity, LEAD, clean=False))
        return memoryview(memory).toreadonly()[LEAD : LEAD + identity.size]
    raise InvalidModelError(f"{os.fspath(path)!r} was written to while it was read; try again when it is complete")


def _read(file: Any, size: int) -> mmap.mmap | None:
    """The contents of a file in memory of our own, after ``LEAD`` bytes; None when it ends early."""
    if not size:
        raise ValueError("the file is empty")
    try:
        memory = mmap.mmap(-1, LEAD + size, **_PRIVATE)
    except OSError as error:
        if error.errno != errno.ENOMEM:
            raise
        raise MemoryError(
            f"the system has no {size:,} bytes to read {file.name!r} into. Where nobody writes to the file, "
            f"SessionOptions(immutable_model=True) maps it instead"
        ) from error
    if size >= _HUGE and hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    with memoryview(memory) as whole, whole[LEAD:] as contents:
        return memory if _fill(contents, file.fileno()) else None


def _fill(contents: memoryview, number: int) -> bool:
    """Read a file into memory, the second half of a large one in a thread beside; False when it ends early."""
    half = len(contents) // 2
    if half < _HUGE or not hasattr(os, "preadv"):
        return _fill_from(contents, number, 0)
    done: list[bool | OSError] = []

    def beside() -> None:
        with contents[half:] as part:
            try:
                done.append(_fill_from(part, number, half))
            except OSError as error:
                done.append(error)

    thread = threading.Thread(target=beside, name="pyflame-read")
    thread.start()
    try:
        with contents[:half] as part:
            first = _fill_from(part, number, 0)
    finally:
        thread.join()
    if isinstance(done[0], OSError):
        raise done[0]
    return first and done[0]


def _fill_from(contents: memoryview, number: int, offset: int) -> bool:
    at = 0
    while at < len(contents):
        with contents[at:] as rest:
            if hasattr(os, "preadv"):
                count = os.preadv(number, [rest], offset + at)
            else:
                with open(number, "rb", buffering=0, closefd=False) as file:
                    count = file.readinto(rest) or 0
        if not count:
            return False
        at += count
    return True


_PRIVATE: dict[str, Any] = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}


def _find(known: weakref.WeakValueDictionary[FileIdentity, mmap.mmap], identity: FileIdentity) -> mmap.mmap | None:
    with _lock:
        memory = known.get(identity)
        return None if memory is None or memory.closed else memory


def _keep(memory: mmap.mmap, source: _Source) -> mmap.mmap:
    with _lock:
        known = _held.get(source.identity)
        if known is not None and not known.closed:  # another thread was first
            return known
        _held[source.identity], _sources[memory] = memory, source
        return memory


def held(identity: FileIdentity) -> memoryview | None:
    """The contents of a model file that is in memory; None when it is not."""
    memory = _find(_held, identity)
    return None if memory is None else memoryview(memory).toreadonly()[LEAD : LEAD + identity.size]


def held_in(mapped: mmap.mmap, path: str, identity: FileIdentity, check: Callable[[int, int], bool]) -> memoryview:
    """Let a mapping of our own copy of a model file stand for the file; ``LEAD`` bytes come before the contents.

    Args:
        mapped: an entry of the cache.
        path: of the model file.
        identity: of the model file when it was copied.
        check: whether some bytes, from one to another, are as they were written; asked by :func:`verified`.
    """
    memory = _keep(mapped, _Source(os.path.abspath(path), identity, LEAD, clean=True))
    if memory is mapped:
        _checks[memory] = check
    return memoryview(memory)[LEAD : LEAD + identity.size]


def verified(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """An array of a held file, whose bytes were checked; where they are damaged, it is read from the file again.

    Raises:
        InvalidModelError: They are damaged, and the file is not what it was.
    """
    root = root_of(array)
    check = _checks.get(root) if isinstance(root, mmap.mmap) else None
    if check is None:
        return array
    path, identity, lead, _ = _sources[root]
    low, high = np.lib.array_utils.byte_bounds(array)
    base = _address(root) + lead
    if check(low - base, high - base):
        return array
    with _lock:
        if _held.get(identity) is root:
            del _held[identity]
    try:
        again = hold_file(path) if identity_of(path) == identity else None
    except (OSError, ValueError):
        again = None
    if again is None:
        raise InvalidModelError(f"our copy of {path!r} is damaged, and the file is not what it was; load it again")
    start = array.__array_interface__["data"][0] - base
    return np.ndarray(array.shape, array.dtype, again, start, array.strides)


def only_in_memory(array: np.ndarray[Any, Any]) -> tuple[mmap.mmap, str, FileIdentity] | None:
    """The memory of a held file that an array lies in, where no file of our own has its pages; None for others."""
    root = root_of(array)
    found = _sources.get(root) if isinstance(root, mmap.mmap) else None
    return None if found is None or found.clean else (root, found.path, found.identity)


def note_remapped(memory: mmap.mmap) -> None:
    """The pages of held memory are now those of a file of our own."""
    with _lock:
        _sources[memory] = _sources[memory]._replace(clean=True)


# ---------------------------------------------------------------------- files that do not change


def map_file(path: str | os.PathLike[str]) -> mmap.mmap:
    """A file mapped for reading, which nobody writes to; the same object for everybody.

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
                _sources[mapped] = _Source(os.path.abspath(path), identity, 0, clean=True)
            return mapped


def file_memory(size: int, folder: str | os.PathLike[str] | None = None) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Memory in a file that has no name and goes with it: the system writes its pages there where memory is short.

    Args:
        size: bytes.
        folder: on a disk; None for the system's temporary one.

    Raises:
        MemoryLimitError: The disk has no room, or no file can be made there.
    """
    import tempfile

    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            if hasattr(os, "posix_fallocate"):  # a write to a page without a block would end the process
                os.posix_fallocate(file.fileno(), 0, size)
            file.truncate(size)
            mapped = mmap.mmap(file.fileno(), size)
    except OSError as error:
        place = "the system's temporary folder" if folder is None else repr(os.fspath(folder))
        raise MemoryLimitError(f"{size} bytes of weights do not fit on the disk of {place}: {error}") from error
    if hasattr(mapped, "madvise"):
        mapped.madvise(mmap.MADV_SEQUENTIAL)  # every run reads it from begin to end
    return np.frombuffer(mapped, np.uint8)


def mapping_of(identity: FileIdentity) -> mmap.mmap | None:
    """The mapping of a file, where there is one."""
    return _find(_maps, identity)


def note_mapping(mapped: mmap.mmap, path: str | os.PathLike[str], identity: FileIdentity) -> None:
    """Let :func:`file_of` know a mapping that was made elsewhere, of a file that will not change."""
    with _lock:
        _sources[mapped] = _Source(os.path.abspath(path), identity, 0, clean=True)
        _maps.setdefault(identity, mapped)


# ---------------------------------------------------------------------- arrays


def file_of(array: np.ndarray[Any, Any]) -> tuple[str, FileIdentity, int] | None:
    """The file an array's memory holds, and where in it the array begins; None for other arrays."""
    root = root_of(array)
    found = _sources.get(root) if isinstance(root, mmap.mmap) and not root.closed else None
    if found is None:
        return None
    return found.path, found.identity, array.ctypes.data - _address(root) - found.lead


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
    found = _sources.get(root) if isinstance(root, mmap.mmap) and not root.closed else None
    if found is None or not found.clean or not hasattr(root, "madvise"):
        return
    low, high = np.lib.array_utils.byte_bounds(array)
    start = low - _address(root)
    # Only pages that lie inside: the neighbours may be in use.
    first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
    count = (start + high - low) // mmap.PAGESIZE * mmap.PAGESIZE - first
    if count > 0:
        root.madvise(mmap.MADV_DONTNEED, first, count)


def _address(memory: mmap.mmap) -> int:
    return np.frombuffer(memory, dtype=np.uint8).__array_interface__["data"][0]
