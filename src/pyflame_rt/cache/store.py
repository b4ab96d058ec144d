"""A folder of entries found by key: safe with many processes, bounded in size, never trusted blindly.

An entry is one file. It is written beside its place and renamed into it, so readers see all of it or nothing; no locks
are needed. Its header holds the digest of its key and of its contents: what does not fit is ignored and deleted. The
entries used longest ago go first when the folder grows beyond its limit; the time of use is the file's access time,
which reading sets, so that the time of writing stays what it was.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import mmap
import os
import struct
import sys
import time
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING

from pyflame_rt.cache.writer import Writer
from pyflame_rt.graph.errors import InputError
from pyflame_rt.graph.locks import new_lock
from pyflame_rt.graph.pages import note_mapping
from pyflame_rt.graph.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

__all__ = ["CacheEntry", "Store", "current_store", "default_folder", "set_default_folder", "use_store"]

DEFAULT_LIMIT = 4 << 30
HEADER = 128  # bytes before the contents, which so begin at a multiple of a cache line
_MAGIC = b"PyFlame1"
_HEAD = struct.Struct("<8sQ32s32s")
_TEMPORARY = ".part"
_SAMPLES = 8
_STALE_SECONDS = 3600.0  # a temporary file as old as this belongs to nobody
_TOUCH_SECONDS = 600.0  # the time of use need not be more exact than this
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}

log = logging.getLogger("pyflame_rt")


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """One file of the store."""

    path: Path
    size_bytes: int
    used: float  # seconds since the epoch


class Store:
    """Entries in a folder.

    Args:
        folder: made when first written to. One that everybody may write to is not used: machine code comes from here.
        max_bytes: limit of all entries together; 0 keeps nothing.

    Example:
        >>> import tempfile
        >>> store = Store(tempfile.mkdtemp())
        >>> store.put("example", "key", b"contents")
        True
        >>> store.get("example", "key")
        b'contents'
        >>> store.get("example", "other key") is None
        True
    """

    def __init__(self, folder: str | os.PathLike[str], max_bytes: int = DEFAULT_LIMIT) -> None:
        self.folder = Path(folder)
        self.max_bytes = max_bytes
        self.usable = max_bytes > 0 and _trusted(self.folder)
        self.writable = self.usable
        self.writer = Writer()
        self._lock = new_lock()
        self._known_size: int | None = None

    # ------------------------------------------------------------------ reading

    def get(self, kind: str, key: str) -> bytes | None:
        """The contents kept under a key, verified; None when there are none."""
        if not self.usable:
            return None
        path = self.path(kind, key)
        try:
            with path.open("rb") as file:
                data = file.read()
        except OSError:
            return None
        start = _checked(data[:HEADER], key, len(data))
        if start is None or hashlib.sha256(memoryview(data)[HEADER:]).digest() != start:
            self._discard(path)
            return None
        self._touch(path)
        return data[HEADER:]

    def open_map(self, kind: str, key: str) -> mmap.mmap | None:
        """A large entry mapped for reading, its contents from byte ``HEADER`` on; None when there is none.

        The header and samples of the contents are verified, not all of them: reading everything would take longer
        than making it anew.
        """
        if not self.usable:
            return None
        path = self.path(kind, key)
        try:
            with path.open("rb") as file:
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError):
            return None
        with memoryview(mapped) as whole, whole[HEADER:] as data:
            sound = _checked(mapped[:HEADER], key, len(mapped)) == _sampled(data)
        if not sound:
            mapped.close()
            self._discard(path)
            return None
        with contextlib.suppress(OSError):  # deleted meanwhile by somebody who needs the room
            note_mapping(mapped, path)
        self._touch(path)
        return mapped

    def path(self, kind: str, key: str) -> Path:
        """Where an entry is, or would be."""
        name = _digest(key).hex()[:40]
        return self.folder / kind / name[:2] / name[2:]

    def touch_all(self, paths: Iterable[str]) -> None:
        """Note that entries were used that were not read through the store."""
        for path in paths:
            self._touch(Path(path))

    def discard(self, kind: str, key: str) -> None:
        """Delete an entry that proved worthless."""
        self._discard(self.path(kind, key))

    def _touch(self, path: Path) -> None:
        with contextlib.suppress(OSError):
            found = path.stat()
            if time.time() - found.st_atime > _TOUCH_SECONDS:
                os.utime(path, ns=(time.time_ns(), found.st_mtime_ns))

    def _discard(self, path: Path) -> None:
        log.debug("cache entry %s is damaged and ignored", path)
        if self.writable:
            with contextlib.suppress(OSError):
                path.unlink()

    # ------------------------------------------------------------------ writing

    def put(self, kind: str, key: str, data: bytes) -> bool:
        """Keep contents under a key; False when they could not be written."""
        return self._write(kind, key, _head(key, len(data), hashlib.sha256(data).digest()), data)

    def put_large(self, kind: str, key: str, data: memoryview) -> bool:
        """Keep an entry for :meth:`open_map`; False when it could not be written, or would fill the store."""
        data = data.cast("B")
        if len(data) > self.max_bytes // 4:
            return False
        return self._write(kind, key, _head(key, len(data), _sampled(data)), data)

    def _write(self, kind: str, key: str, head: bytes, data: bytes | memoryview) -> bool:
        temporary = self._temporary(kind, key)
        if temporary is None:
            return False
        handle, name = temporary
        try:
            with open(handle, "wb") as file:
                file.write(head)
                file.write(data)
            os.replace(name, self.path(kind, key))
        except OSError as error:  # a full disk, most likely
            self._abandon(name, error)
            return False
        self._grow(len(data) + HEADER)
        return True

    def _temporary(self, kind: str, key: str) -> tuple[int, str] | None:
        if not self.writable:
            return None
        import tempfile

        folder = self.path(kind, key).parent
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            return tempfile.mkstemp(_TEMPORARY, dir=folder)
        except FileNotFoundError:  # somebody deleted the folder at this moment; the next entry makes it anew
            return None
        except OSError as error:
            self.writable = False
            log.info("the cache in %s cannot be written to: %s", self.folder, error)
            return None

    def _abandon(self, name: str, error: object) -> None:
        log.info("a cache entry was not written: %s", error)
        with contextlib.suppress(OSError):
            os.unlink(name)

    def later(self, kind: str, key: str, data: bytes | Callable[[], bytes], *, unless: str | None = None) -> None:
        """Keep contents under a key, in the background.

        Args:
            kind: of the entry.
            key: of the entry.
            data: its contents, or what makes them when they are written.
            unless: an entry of this kind under the same key makes this one worthless. Whoever puts that one discards
                this one; here it is seen to that it does not come back after that.
        """
        if self.writable:
            self.writer.submit(lambda: self._put_unless(kind, key, data, unless))

    def _put_unless(self, kind: str, key: str, data: bytes | Callable[[], bytes], unless: str | None) -> None:
        better = None if unless is None else self.path(unless, key)
        if better is not None and better.exists():
            return
        self.put(kind, key, data if isinstance(data, bytes) else data())
        if better is not None and better.exists():  # it came meanwhile
            self.discard(kind, key)

    def flush(self) -> None:
        """Wait for what is being written."""
        self.writer.wait()

    # ------------------------------------------------------------------ size

    def entries(self) -> list[CacheEntry]:
        """Every entry, the one used longest ago first."""
        found = [e for e in self._files() if e.path.suffix != _TEMPORARY]
        return sorted(found, key=lambda e: e.used)

    def total_size(self) -> int:
        """Bytes of all entries."""
        return sum(e.size_bytes for e in self.entries())

    def clear(self) -> None:
        """Delete every entry."""
        for entry in self._files():
            with contextlib.suppress(OSError):
                entry.path.unlink()
        with self._lock:
            self._known_size = None

    def _files(self) -> Iterator[CacheEntry]:
        for folder, _, names in os.walk(self.folder):
            for name in names:
                path = Path(folder, name)
                with contextlib.suppress(OSError):
                    found = path.stat()
                    yield CacheEntry(path, found.st_size, max(found.st_atime, found.st_mtime))

    def _grow(self, size: int) -> None:
        with self._lock:
            if self._known_size is not None:
                self._known_size += size
                if self._known_size <= self.max_bytes:
                    return
            self._known_size = self._evict()

    def _evict(self) -> int:
        """Delete what was used longest ago until a tenth of the limit is free; returns what is left."""
        now, kept = time.time(), []
        for entry in self._files():
            if entry.path.suffix != _TEMPORARY:
                kept.append(entry)
            elif now - entry.used > _STALE_SECONDS:
                with contextlib.suppress(OSError):
                    entry.path.unlink()
        total = sum(e.size_bytes for e in kept)
        if total <= self.max_bytes:
            return total
        for entry in sorted(kept, key=lambda e: e.used):
            if total <= self.max_bytes * 9 // 10:
                break
            with contextlib.suppress(OSError):
                entry.path.unlink()
                total -= entry.size_bytes
        return total


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


def _head(key: str, size: int, digest: bytes) -> bytes:
    return _HEAD.pack(_MAGIC, size, _digest(key), digest).ljust(HEADER, b"\0")


def _sampled(data: memoryview) -> bytes:
    """A digest of pages spread over the contents: a file that was never written whole does not pass."""
    digest, last = hashlib.sha256(), max(len(data) - mmap.PAGESIZE, 0)
    for i in range(_SAMPLES):
        start = last * i // (_SAMPLES - 1)
        digest.update(data[start : start + mmap.PAGESIZE])
    return digest.digest()


def _checked(head: bytes, key: str, size: int) -> bytes | None:
    """The digest of the contents, where the header fits the key and the file's size."""
    if len(head) < HEADER:
        return None
    magic, length, owner, digest = _HEAD.unpack_from(head)
    return digest if (magic, length, owner) == (_MAGIC, size - HEADER, _digest(key)) else None


def _trusted(folder: Path) -> bool:
    """Whether nobody but its owner's group can put code there."""
    if os.name != "posix":
        return True
    try:
        mode = folder.stat().st_mode
    except FileNotFoundError:
        return True
    except OSError:
        return False
    if mode & 0o002:
        log.warning("the cache folder %s may be written to by everybody, so it is not used", folder)
        return False
    return True


# ---------------------------------------------------------------------- the store in use


_default: list[Path] = []


def set_default_folder(folder: str | os.PathLike[str] | None) -> None:
    """The folder to use where ``PYFLAME_CACHE_DIR`` names none; None is the user's folder for caches."""
    _default[:] = [] if folder is None else [Path(folder)]


def default_folder() -> Path:
    """``PYFLAME_CACHE_DIR``, else the folder a program has set, or the user's folder for caches."""
    given = os.environ.get("PYFLAME_CACHE_DIR")
    if given:
        return Path(given)
    if _default:
        return _default[0]
    if sys.platform == "darwin":
        return Path("~/Library/Caches/pyflame").expanduser()
    base = os.environ.get("LOCALAPPDATA" if os.name == "nt" else "XDG_CACHE_HOME")
    return Path(base) / "pyflame" if base else Path("~/.cache/pyflame").expanduser()


def _limit() -> int:
    """``PYFLAME_CACHE_SIZE`` in bytes, with a unit such as 500M or 2G; ``PYFLAME_CACHE=0`` is none."""
    if os.environ.get("PYFLAME_CACHE", "1").lower() in ("0", "off", "no", "false"):
        return 0
    text = os.environ.get("PYFLAME_CACHE_SIZE", "").strip().upper().removesuffix("B")
    if not text:
        return DEFAULT_LIMIT
    unit = text[-1] if text[-1] in _UNITS else ""
    number = text.removesuffix(unit)
    if not number.isdigit():
        raise InputError(f"PYFLAME_CACHE_SIZE is a number of bytes such as 500M or 2G, got {text!r}")
    return int(number) * _UNITS[unit]


_stores: dict[tuple[Path, int], Store] = {}
_stores_lock = new_lock()
_chosen: ContextVar[Path | None] = ContextVar("pyflame_cache", default=None)


def current_store() -> Store:
    """The store to use here: the folder given to :func:`use_store`, or the environment's."""
    limit, folder = _limit(), _chosen.get()
    place = (default_folder() if folder is None else folder) / "engine"
    with _stores_lock:
        store = _stores.get((place, limit))
        if store is None:
            try:
                store = Store(place, limit)
            except (OSError, RuntimeError):  # no home folder
                store = Store(place, 0)
            _stores[place, limit] = store
        return store


@contextlib.contextmanager
def use_store(folder: str | os.PathLike[str] | None) -> Iterator[None]:
    """Inside, keep things in another folder; None changes nothing."""
    if folder is None:
        yield
        return
    token = _chosen.set(Path(folder))
    try:
        yield
    finally:
        _chosen.reset(token)
