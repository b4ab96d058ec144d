"""BinaryCache: models kept by key, as graphs that are mapped when used again.

Sessions keep what they compile by themselves (:mod:`pyflame_rt.cache.store`); this is for programs that keep graphs
of their own making: optimised, quantized, imported from elsewhere. Machine code of sessions goes to the same folder
with ``SessionOptions(cache=config.cache_dir)``, or for every session after :func:`set_global_cache_config`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
import threading
import time
import zlib
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyflame_rt._version import __version__
from pyflame_rt.cache.store import DEFAULT_LIMIT, default_folder, set_default_folder
from pyflame_rt.graph.errors import InputError, ModelNotFoundError, PyFlameRTError
from pyflame_rt.graph.locks import new_rlock
from pyflame_rt.graph.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyflame_rt.graph import Graph

__all__ = ["BinaryCache", "CacheConfig", "CacheInfo", "CacheKey", "global_cache", "set_global_cache_config"]

_FOLDER = "models"
_COMPRESSED = ".pfmz"
_KEY_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")


@dataclass(slots=True)
class CacheConfig:
    """Where models are kept, and how many.

    Attributes:
        cache_dir: the folder; the user's own cache folder unless given.
        max_size_bytes: of all models together; those used longest ago go first.
        max_entries: how many models; 0 is no limit.
        ttl: seconds after which an entry is no longer used; 0 is for ever.
        use_mmap: weights stay in the file until they are used; False reads them.
        compress: new entries are written compressed. They take less room and longer to read: all of one is in memory
            then, whatever `use_mmap` says. Entries of either kind are read.
        version: of what makes the entries, such as the program's own; those of another version are not used.
        thread_safe: threads may share the cache; False saves the locks of a program that has one thread.

    Example:
        >>> CacheConfig(max_entries=10).use_mmap
        True
    """

    cache_dir: Path = field(default_factory=default_folder)
    max_size_bytes: int = DEFAULT_LIMIT
    max_entries: int = 0
    ttl: float = 0.0
    use_mmap: bool = True
    compress: bool = False
    version: str = __version__
    thread_safe: bool = True


@dataclass(frozen=True, slots=True)
class CacheInfo:
    """One entry.

    Attributes:
        key: under which it is kept.
        size_bytes: of its file.
        is_valid: whether it would be used: complete, of this version, not too old.
        model_path: the file it was made from, where that is known.
        cache_path: its own file.
        version: of what wrote it (CacheConfig.version).
    """

    key: str
    size_bytes: int
    is_valid: bool
    model_path: str
    cache_path: Path
    version: str


class CacheKey:
    """Keys for models."""

    @staticmethod
    def compute(path: str | os.PathLike[str], options: Any = None) -> str:
        """A key for a file and options: another when either changes.

        Raises:
            ModelNotFoundError: There is no such file.

        Example:
            >>> CacheKey.compute(__file__) == CacheKey.compute(__file__) != CacheKey.compute(__file__, {"level": 2})
            True
        """
        try:
            found = os.stat(path)
        except OSError as error:
            raise ModelNotFoundError(f"there is no file {os.fspath(path)!r}") from error
        parts = [__version__, os.path.abspath(path), found.st_size, found.st_mtime_ns, found.st_ino, _settings(options)]
        return hashlib.sha256(repr(parts).encode("utf-8", "surrogateescape")).hexdigest()[:40]


def _settings(options: Any) -> Any:
    """Options as plain, ordered data."""
    if options is None or isinstance(options, (str, int, float, tuple, list)):
        return repr(options)
    if isinstance(options, dict):
        return sorted((str(k), repr(v)) for k, v in options.items())
    slots = [name for kind in type(options).__mro__ for name in getattr(kind, "__slots__", ())]
    return sorted((name, repr(getattr(options, name, None))) for name in {*slots, *getattr(options, "__dict__", ())})


class BinaryCache:
    """Graphs on disk, by key. Safe with many threads and processes: a file is there whole, or not at all.

    Args:
        config: where and how many; the defaults of CacheConfig when None.

    Example:
        >>> import tempfile
        >>> from pyflame_rt.graph import Graph
        >>> cache = BinaryCache(CacheConfig(cache_dir=Path(tempfile.mkdtemp())))
        >>> cache.put("mine", Graph("g"))
        >>> cache.has("mine"), cache.entry_count(), cache.get("mine").name
        (True, 1, 'g')
    """

    def __init__(self, config: CacheConfig | None = None) -> None:
        self.config = CacheConfig() if config is None else config
        self._lock = new_rlock() if self.config.thread_safe else contextlib.nullcontext()

    @property
    def folder(self) -> Path:
        """Where the entries are."""
        return Path(self.config.cache_dir) / _FOLDER

    # ------------------------------------------------------------------ entries

    def has(self, key: str) -> bool:
        """Whether :meth:`get` would give a graph."""
        return self.get(key) is not None

    def get(self, key: str) -> Graph | None:
        """The graph kept under a key; None when there is none, or it is damaged or too old."""
        from pyflame_rt.format import load_model, loads_model

        path, header = self._path(key), self._header(key)
        if header is None:
            return None
        try:
            if path.suffix == _COMPRESSED:
                graph = loads_model(_inflated(path.read_bytes(), int(header["inflated"])))
            else:
                graph = load_model(path) if self.config.use_mmap else loads_model(path.read_bytes())
        except (PyFlameRTError, OSError, zlib.error, KeyError, ValueError):
            return None
        with contextlib.suppress(OSError):
            os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))
        return graph

    def put(self, key: str, graph: Graph, model_path: str | os.PathLike[str] = "") -> None:
        """Keep a graph under a key, in place of what was there."""
        path = self._new_path(key)
        with self._lock:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.remove(key)
            inflated = _write(graph, path, compress=self.config.compress)
            header = {
                "version": self.config.version,
                "package": __version__,
                "model_path": os.fspath(model_path),
                "size": path.stat().st_size,
                "inflated": inflated,
            }
            # The header comes last: without it there is no entry.
            temporary = self._header_path(key).with_suffix(f".{os.getpid()}.{threading.get_ident()}.part")
            temporary.write_text(json.dumps(header), "utf-8")
            os.replace(temporary, self._header_path(key))
            self._evict(keep=key)

    def get_or_compile(self, path: str | os.PathLike[str], options: Any, make: Callable[[], Graph]) -> Graph:
        """The graph kept for a file and options, else the one ``make`` gives, which is kept."""
        key = CacheKey.compute(path, options)
        found = self.get(key)
        if found is None:
            found = make()
            self.put(key, found, path)
        return found

    def warmup(self, paths: Iterable[str | os.PathLike[str]], options: Any = None) -> list[str]:
        """Load models and keep those that are not there yet; the keys of all."""
        from pyflame_rt.loading import load_graph

        keys: list[str] = []
        for path in paths:
            self.get_or_compile(path, options, lambda path=path: load_graph(path)[0])
            keys.append(CacheKey.compute(path, options))
        return keys

    def remove(self, key: str) -> bool:
        """Forget an entry; whether there was one."""
        with self._lock:
            there = self._header_path(key).is_file()
            plain = self._plain_path(key)
            for path in (self._header_path(key), plain, plain.with_suffix(_COMPRESSED)):
                with contextlib.suppress(OSError):
                    path.unlink()
            return there

    # ------------------------------------------------------------------ all of them

    def list_entries(self) -> list[str]:
        """The keys of all entries, the one used longest ago first."""
        with contextlib.suppress(OSError):
            headers = [path.stem for path in self.folder.glob("*.json")]
            return sorted(headers, key=self._used)
        return []

    def entry_count(self) -> int:
        """How many entries there are."""
        return len(self.list_entries())

    def total_size(self) -> int:
        """Bytes of all entries."""
        return sum(self._size(key) for key in self.list_entries())

    def get_info(self, key: str) -> CacheInfo:
        """What is known of an entry.

        Raises:
            InputError: There is none under this key.
        """
        try:
            header = json.loads(self._header_path(key).read_text("utf-8"))
            made_by, source = str(header["version"]), str(header["model_path"])
        except FileNotFoundError:
            raise InputError(f"the cache has no entry {key!r}") from None
        except (OSError, ValueError, TypeError, KeyError):
            made_by = source = ""
        return CacheInfo(key, self._size(key), self.has(key), source, self._path(key), made_by)

    def clear(self) -> None:
        """Forget every entry."""
        for key in self.list_entries():
            self.remove(key)

    # ------------------------------------------------------------------ files

    def _plain_path(self, key: str) -> Path:
        if not key or not _KEY_CHARACTERS.issuperset(key) or len(key) > 128:
            raise InputError(f"a key is 1 to 128 letters, digits, '_' and '-', got {key!r}")
        return self.folder / f"{key}.pfm"

    def _new_path(self, key: str) -> Path:
        plain = self._plain_path(key)
        return plain.with_suffix(_COMPRESSED) if self.config.compress else plain

    def _path(self, key: str) -> Path:
        """Where an entry is, or would be."""
        plain = self._plain_path(key)
        compressed = plain.with_suffix(_COMPRESSED)
        return compressed if compressed.exists() else plain

    def _header_path(self, key: str) -> Path:
        return self._plain_path(key).with_suffix(".json")

    def _header(self, key: str) -> dict[str, Any] | None:
        """What was noted beside a file, where it fits the file, this version and the time it may be used."""
        path = self._path(key)
        try:
            header, found = json.loads(self._header_path(key).read_text("utf-8")), path.stat()
            wanted = (self.config.version, __version__, found.st_size)
            fits = (header["version"], header["package"], header["size"]) == wanted
        except (OSError, ValueError, TypeError, KeyError):
            return None
        old = 0 < self.config.ttl < time.time() - found.st_mtime
        return header if fits and not old else None

    def _size(self, key: str) -> int:
        try:
            return self._path(key).stat().st_size
        except OSError:
            return 0

    def _used(self, key: str) -> float:
        try:
            found = self._path(key).stat()
        except OSError:
            return 0.0
        return max(found.st_atime, found.st_mtime)

    def _evict(self, keep: str) -> None:
        entries = [key for key in self.list_entries() if key != keep]
        most, limit = self.config.max_entries, self.config.max_size_bytes
        total = self.total_size()
        while entries and (total > limit or (most and len(entries) + 1 > most)):
            total -= self._size(entries[0])
            self.remove(entries.pop(0))


def _write(graph: Graph, path: Path, *, compress: bool) -> int:
    """Write a file, all of it or nothing; returns the size of the model in it."""
    from pyflame_rt.format import dumps_model, save_model

    if not compress:
        save_model(graph, path)
        return path.stat().st_size
    data = dumps_model(graph)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(zlib.compress(data, 1))
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return len(data)


def _inflated(data: bytes, size: int) -> bytes:
    """What was compressed, never more than was noted."""
    return zlib.decompressobj().decompress(data, max(size, 1))


_global: list[BinaryCache] = []


def set_global_cache_config(config: CacheConfig) -> None:
    """Use this configuration for :func:`global_cache`, and its folder for what sessions compile from now on.

    ``PYFLAME_CACHE_DIR`` and ``SessionOptions.cache`` say so more loudly and are heard first.
    """
    _global[:] = [BinaryCache(config)]
    set_default_folder(config.cache_dir)


def global_cache() -> BinaryCache:
    """The cache that programs share.

    Example:
        >>> global_cache() is global_cache()
        True
    """
    if not _global:
        _global.append(BinaryCache())
    return _global[0]
