"""A folder of entries found by key: safe with many processes, bounded in size, never trusted blindly.

An entry is one file. It is written beside its place and renamed into it, so readers see all of it or nothing; no locks
are needed. Its header holds the digest of its key and of its contents: what does not fit is ignored and deleted. Large
entries, which are mapped, end in digests of their blocks (:mod:`.blocks`), and the header holds the digest of these.
The entries used longest ago go first when the folder grows beyond its limit; the time of use is the file's access time,
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
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pyflame_rt.cache.blocks import block_digests, blocks_match, table_size
from pyflame_rt.cache.folders import fault_inside, fault_of_folder, make_folder, open_own, usable_folder
from pyflame_rt.cache.writer import CacheWriter
from pyflame_rt.graph.errors import InputError
from pyflame_rt.graph.locks import new_lock
from pyflame_rt.graph.named_arguments import names_arguments
from pyflame_rt.graph.pages import file_of, identity_of, mapping_of, note_mapping
from pyflame_rt.graph.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = [
    "CacheEntry",
    "LargeEntry",
    "MappedEntry",
    "Store",
    "current_store",
    "default_folder",
    "place_in_store",
    "set_default_folder",
    "use_store",
]

DEFAULT_LIMIT = 4 << 30
HEADER = 128  # bytes before the contents, which so begin at a multiple of a cache line
_MAGIC = b"PyFlame3"
_HEAD = struct.Struct("<8sQ32s32s")
_TEMPORARY = ".part"
_ALIGN = 64
_KIND_LETTERS, _NAME_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyz"), frozenset("0123456789abcdef")
Bytes = np.ndarray[Any, np.dtype[np.uint8]]
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


class LargeEntry(NamedTuple):
    """A mapped entry: its contents are ``size`` bytes after ``HEADER``, ``table`` the digests of their blocks."""

    mapped: mmap.mmap
    size: int
    table: bytes


class MappedEntry(NamedTuple):
    """A mapped entry: its contents, and what tells whether every byte of them is as it was written."""

    contents: Bytes
    verify: Callable[[], bool]


class Store:
    """Entries in a folder.

    Args:
        folder: made when first written to. Used only where it is this user's alone (:mod:`.folders`): machine code
            comes from here.
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

    @names_arguments
    def __init__(self, folder: str | os.PathLike[str], max_bytes: int = DEFAULT_LIMIT) -> None:
        self.folder = Path(folder).absolute()  # entries are written later, perhaps from another working directory
        self._place = str(self.folder)
        self.max_bytes = max_bytes
        self.usable = max_bytes > 0 and self._trusts(self.folder)
        self.writable = self.usable
        self.writer = CacheWriter()
        self._lock = new_lock()
        self._known_size: int | None = None
        self._sound: set[str] = set()  # folders that were looked at

    # ------------------------------------------------------------------ reading

    def get(self, kind: str, key: str) -> bytes | None:
        """The contents kept under a key, every byte verified; None when there are none."""
        path = self._path(kind, key)
        number = self._open(path)
        if number is None:
            return None
        with open(number, "rb") as file:
            data = file.read()
        start = _checked(data[:HEADER], _digest(key), len(data))
        if start is None or hashlib.sha256(memoryview(data)[HEADER:]).digest() != start:
            self._discard(path)
            return None
        self._touch(path)
        return data[HEADER:]

    def open_large(self, kind: str, key: str) -> Bytes | None:
        """The contents of a large entry, mapped for reading, every byte verified; None when there are none."""
        return self._mapped(self._path(kind, key), _digest(key))

    def open_place(self, place: str) -> MappedEntry | None:
        """An entry that :func:`place_in_store` names, for the caller to verify; None when there is none."""
        path = self.path_of(place)
        return None if path is None else self._map(path, place.partition("/")[2])

    def open_parts(self, kind: str, key: str) -> LargeEntry | None:
        """A large entry whose contents are not verified yet, with the digests to do that; None when there is none."""
        path = self._path(kind, key)
        number = self._open(path)
        if number is None:
            return None
        try:
            mapped = mmap.mmap(number, 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError):  # empty
            mapped = None
        finally:
            os.close(number)
        table = None if mapped is None else _table(mapped, _digest(key))
        if mapped is None or table is None:
            self._discard(path)
            return None
        self._touch(path)
        return LargeEntry(mapped, _HEAD.unpack_from(mapped)[1], table)

    def open_number(self, kind: str, key: str) -> int | None:
        """The number of an entry's open file, for the caller to close; None when there is none."""
        return self._open(self._path(kind, key))

    def _mapped(self, path: str, owner: bytes | str) -> Bytes | None:
        found = self._map(path, owner)
        return None if found is None or not found.verify() else found.contents

    def _map(self, path: str, owner: bytes | str) -> MappedEntry | None:
        number = self._open(path)
        if number is None:
            return None
        try:
            identity = identity_of(number)
            known = mapping_of(identity)
            if known is not None:  # verified when it was mapped
                return MappedEntry(_contents(known), lambda: True)
            mapped = mmap.mmap(number, 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError):  # empty
            self._discard(path)
            return None
        finally:
            os.close(number)
        table = _table(mapped, owner)
        if table is None:
            self._discard(path)
            return None

        def verify() -> bool:
            if not blocks_match(_contents(mapped), table):
                self._discard(path)
                return False
            note_mapping(mapped, path, identity)
            self._touch(path)
            return True

        return MappedEntry(_contents(mapped), verify)

    def _open(self, path: str) -> int | None:
        """An entry's file, where it and its folders are this user's alone."""
        if not self.usable:
            return None
        folder = os.path.dirname(path)
        if folder not in self._sound and (not os.path.exists(folder) or not self._trusts_all(folder)):
            return None
        try:
            return open_own(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            log.warning("a cache entry is ignored: %s", error)
            return None

    def _trusts_all(self, folder: str) -> bool:
        """Whether the folder of an entry, the one of its kind and the store's own are this user's alone."""
        if folder in self._sound:
            return True
        if self._place not in self._sound:  # with all that it lies in
            if not self._trusts(self.folder) or not self.folder.is_dir():
                return False
            self._sound.add(self._place)
        for one in (os.path.dirname(folder), folder):
            if one not in self._sound:
                if fault := fault_inside(one):
                    return self._refuse(one, fault)
                self._sound.add(one)
        return True

    def _trusts(self, folder: Path) -> bool:
        fault = fault_of_folder(folder)
        return self._refuse(folder, fault) if fault else True

    def _refuse(self, folder: str | Path, fault: str) -> bool:
        log.warning("the cache folder %s is not used, since %s", folder, fault)
        self.usable = self.writable = False
        return False

    def path(self, kind: str, key: str) -> Path:
        """Where an entry is, or would be."""
        return Path(self._path(kind, key))

    def _path(self, kind: str, key: str) -> str:
        """The same as a text: a start asks for hundreds, and a Path takes long to make."""
        return self._named(kind, _digest(key).hex()[:40])

    def _named(self, kind: str, name: str) -> str:
        return os.path.join(self._place, kind, name[:2], name[2:])

    def path_of(self, place: str) -> str | None:
        """The same of an entry that :func:`place_in_store` names; None when that is no such name."""
        kind, _, name = place.partition("/")
        named = kind and _KIND_LETTERS.issuperset(kind) and len(name) == 40 and _NAME_LETTERS.issuperset(name)
        return self._named(kind, name) if named else None

    def discard(self, kind: str, key: str) -> None:
        """Delete an entry that proved worthless."""
        self._discard(self._path(kind, key))

    def _touch(self, path: str) -> None:
        with contextlib.suppress(OSError):
            found = os.stat(path)
            if time.time() - found.st_atime > _TOUCH_SECONDS:
                os.utime(path, ns=(time.time_ns(), found.st_mtime_ns))

    def _discard(self, path: str) -> None:
        log.debug("cache entry %s is damaged and ignored", path)
        if self.writable:
            with contextlib.suppress(OSError):
                os.unlink(path)

    # ------------------------------------------------------------------ writing

    def put(self, kind: str, key: str, data: bytes) -> bool:
        """Keep contents under a key; False when they could not be written."""
        return self._write(kind, key, _head(key, len(data), hashlib.sha256(data).digest()), data)

    def put_large(self, kind: str, key: str, data: memoryview) -> bool:
        """Keep an entry for :meth:`open_large`; False when it could not be written, or would fill the store."""
        contents = np.frombuffer(data.cast("B"), np.uint8)
        if len(contents) > self.max_bytes // 4:
            return False
        table = block_digests(contents)
        head = _head(key, len(contents), hashlib.sha256(_digest(key) + table).digest())
        return self._write(kind, key, head, contents.data, bytes(-len(contents) % _ALIGN) + table)

    def _write(self, kind: str, key: str, head: bytes, data: bytes | memoryview, tail: bytes = b"") -> bool:
        temporary = self._temporary(kind, key)
        if temporary is None:
            return False
        handle, name = temporary
        try:
            with open(handle, "wb") as file:
                file.write(head)
                file.write(data)
                file.write(tail)
            os.replace(name, self._path(kind, key))
        except OSError as error:  # a full disk, most likely
            self._abandon(name, error)
            return False
        self._grow(HEADER + len(data) + len(tail))
        return True

    def _temporary(self, kind: str, key: str) -> tuple[int, str] | None:
        if not self.writable:
            return None
        import tempfile

        folder = os.path.dirname(self._path(kind, key))
        try:
            make_folder(Path(folder))
            if not self._trusts_all(folder):
                return None
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
        better = None if unless is None else self._path(unless, key)
        if better is not None and os.path.exists(better):
            return
        self.put(kind, key, data if isinstance(data, bytes) else data())
        if better is not None and os.path.exists(better):  # it came meanwhile
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


def _checked(head: bytes, owner: bytes | str, size: int) -> bytes | None:
    """The digest of the contents, where the header fits the key's digest, or its name, and the file's size."""
    if len(head) < HEADER or any(head[_HEAD.size :]):
        return None
    magic, length, found, digest = _HEAD.unpack_from(head)
    is_owner = found.hex().startswith(owner) if isinstance(owner, str) else found == owner
    return digest if is_owner and (magic, length) == (_MAGIC, size - HEADER) else None


def _table(mapped: mmap.mmap, owner: bytes | str) -> bytes | None:
    """The digests of the blocks of a large entry, where it belongs to a key; they are as they were written."""
    size = _HEAD.unpack_from(mapped)[1] if len(mapped) >= HEADER else -1
    if len(mapped) != HEADER + size + -size % _ALIGN + table_size(size):
        return None
    table, padding = mapped[len(mapped) - table_size(size) :], mapped[HEADER + size : HEADER + size + -size % _ALIGN]
    digest, key = _checked(mapped[:HEADER], owner, HEADER + size), _HEAD.unpack_from(mapped)[2]
    return table if digest == hashlib.sha256(key + table).digest() and not any(padding) else None


def _contents(mapped: mmap.mmap) -> Bytes:
    return np.frombuffer(mapped, np.uint8, _HEAD.unpack_from(mapped)[1], HEADER)


def place_in_store(array: np.ndarray[Any, Any], store: Store) -> tuple[str, int] | None:
    """The entry of a store that an array was mapped from, and where in its contents the array begins."""
    found = file_of(array)
    if found is None:
        return None
    parts = Path(found[0]).parts
    if Path(*parts[:-3]) != Path(os.path.abspath(store.folder)):
        return None
    return f"{parts[-3]}/{parts[-2]}{parts[-1]}", found[2] - HEADER


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
_latest: list[tuple[Any, Store]] = []  # what the store in use was chosen by, and the store
_stores_lock = new_lock()
_chosen: ContextVar[Path | None] = ContextVar("pyflame_cache", default=None)
_VARIABLES = ("PYFLAME_CACHE", "PYFLAME_CACHE_SIZE", "PYFLAME_CACHE_DIR", "XDG_CACHE_HOME", "LOCALAPPDATA", "HOME")


def current_store() -> Store:
    """The store to use here: the folder given to :func:`use_store`, or the environment's."""
    folder = _chosen.get()
    asked = (folder, *_default, *map(os.environ.get, _VARIABLES))
    known = _latest[0] if _latest else None
    if known is not None and known[0] == asked:
        return known[1]
    store = _store_at((default_folder() if folder is None else folder) / "engine", _limit())
    _latest[:] = [(asked, store)]
    return store


def _store_at(place: Path, limit: int) -> Store:
    with _stores_lock:
        store = _stores.get((place, limit))
        if store is None:
            usable = usable_folder(place) if limit else None
            if usable is None:
                store = Store(place, 0)
            else:
                store = Store(place if usable == place else usable / "engine", limit)
            _stores[place, limit] = store
        return store


@contextlib.contextmanager
def use_store(folder: str | os.PathLike[str] | None) -> Iterator[None]:
    """Inside, keep things in another folder; None changes nothing."""
    if folder is None:
        yield
        return
    token = _chosen.set(Path(folder).absolute())
    try:
        yield
    finally:
        _chosen.reset(token)
