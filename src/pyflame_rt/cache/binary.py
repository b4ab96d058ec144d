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
from collections import Counter
from dataclasses import field
from datetime import timedelta
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyflame_rt._version import __version__
from pyflame_rt.cache.folders import make_folder, open_own, read_own, usable_folder
from pyflame_rt.cache.store import DEFAULT_LIMIT, default_folder, set_default_folder
from pyflame_rt.graph.arguments import expect, number_problems
from pyflame_rt.graph.errors import InputError, ModelNotFoundError, PyFlameRTError
from pyflame_rt.graph.locks import new_rlock
from pyflame_rt.graph.pages import immutable_files
from pyflame_rt.graph.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pyflame_rt.graph import Graph

__all__ = [
    "BinaryCache",
    "CacheConfig",
    "CacheInfo",
    "CacheKey",
    "CacheStats",
    "global_cache",
    "set_global_cache_config",
]

_FOLDER = "models"
_COMPRESSED = ".pfmz"
_KEY_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")


@dataclass(slots=True)
class CacheConfig:
    """Where models are kept, and how many.

    Attributes:
        cache_dir: the folder; the user's own cache folder unless given.
        max_size_bytes: of all models together; those used longest ago go first, and one that is larger is not kept.
        max_entries: how many models; 0 is no limit.
        ttl: seconds, or a timedelta, after which an entry is no longer used; 0 is for ever.
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
    ttl: float | timedelta = 0.0
    use_mmap: bool = True
    compress: bool = False
    version: str = __version__
    thread_safe: bool = True

    @property
    def ttl_seconds(self) -> float:
        """``ttl`` in seconds."""
        return self.ttl.total_seconds() if isinstance(self.ttl, timedelta) else float(self.ttl)

    def validate(self) -> list[str]:
        """What is wrong with the settings; empty when nothing is."""
        problems = number_problems(self, {"max_size_bytes": 0, "max_entries": 0}, {})
        if not isinstance(self.ttl, (timedelta, Real)) or not self.ttl_seconds >= 0:
            problems.append(f"ttl must be seconds or a timedelta, not below 0, got {self.ttl!r}")
        if not isinstance(self.cache_dir, (str, os.PathLike)) or "\0" in os.fspath(self.cache_dir):
            problems.append(f"cache_dir must be the path of a folder, got {self.cache_dir!r}")
        return problems

    def checked(self) -> CacheConfig:
        """These settings.

        Raises:
            InputError: They are not valid.
        """
        if problems := self.validate():
            raise InputError("invalid cache settings: " + "; ".join(problems))
        return self


@dataclass(frozen=True, slots=True)
class CacheStats:
    """How useful a cache was to this process.

    Attributes:
        hits: entries that were asked for and used.
        misses: those that were asked for and not there, damaged, or too old.
        evictions: those that went for lack of room, or because of their age.
        entries: that are there now.
        total_size: their bytes.

    Example:
        >>> CacheStats().hit_rate(), CacheStats(hits=3, misses=1).hit_rate()
        (0.0, 0.75)
    """

    hits: int = 0
    misses: int = 0
    evictions: int = 0
    entries: int = 0
    total_size: int = 0

    def hit_rate(self) -> float:
        """Hits among what was asked for; 0.0 when nothing was."""
        return self.hits / (self.hits + self.misses) if self.hits + self.misses else 0.0


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
        True
        >>> cache.has("mine"), cache.entry_count(), cache.get("mine").name
        (True, 1, 'g')
    """

    def __init__(self, config: CacheConfig | None = None) -> None:
        chosen = CacheConfig() if config is None else config
        expect(chosen, CacheConfig, "the config of the cache")
        self.config = chosen.checked()
        expect(self.config, CacheConfig, "the config of a cache")
        self._lock = new_rlock() if self.config.thread_safe else contextlib.nullcontext()
        self._counts: Counter[str] = Counter()

    @property
    def folder(self) -> Path:
        """Where the entries are: below ``cache_dir`` where that is this user's alone, else in a private folder.

        Raises:
            InputError: There is no folder that nobody else may write to.
        """
        given = Path(self.config.cache_dir) / _FOLDER
        found = usable_folder(given)
        if found is None:
            raise InputError(
                f"the cache folder {str(given)!r} is not this user's alone, and no private one can be made"
            )
        return given if found == given else found / _FOLDER

    # ------------------------------------------------------------------ entries

    def has(self, key: str) -> bool:
        """Whether :meth:`get` would give a graph."""
        return self._load(key) is not None

    def get(self, key: str) -> Graph | None:
        """The graph kept under a key; None when there is none, or it is damaged or too old."""
        graph = self._load(key)
        with self._lock:
            self._counts["misses" if graph is None else "hits"] += 1
        return graph

    def _load(self, key: str) -> Graph | None:
        from pyflame_rt.format import load_model, loads_model

        path, header = self._path(key), self._header(key)
        if header is None:
            return None
        try:
            if path.suffix == _COMPRESSED:
                graph = loads_model(_inflated(read_own(path), int(header["inflated"])), verify=True)
            elif self.config.use_mmap:
                os.close(open_own(path))
                with immutable_files():  # it is ours: replaced, never written to
                    graph = load_model(path, verify=True)
            else:
                graph = loads_model(read_own(path), verify=True)
        except (PyFlameRTError, OSError, zlib.error, KeyError, ValueError):
            return None
        with contextlib.suppress(OSError):
            os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))
        return graph

    def put(self, key: str, graph: Graph, model_path: str | os.PathLike[str] = "") -> bool:
        """Keep a graph under a key, in place of what was there; False when it alone is larger than the cache may be."""
        path = self._new_path(key)
        with self._lock:
            make_folder(self.folder)
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
            temporary.write_text(json.dumps({**header, "sha256": _digest(header)}), "utf-8")
            os.chmod(temporary, 0o600)
            os.chmod(path, 0o600)
            os.replace(temporary, self._header_path(key))
            self._evict(keep=key)
            return self._header_path(key).is_file()

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
            header = _read_header(self._header_path(key))
            made_by, source = str(header["version"]), str(header["model_path"])
        except FileNotFoundError:
            raise InputError(f"the cache has no entry {key!r}") from None
        except _HEADER_FAULTS:
            made_by = source = ""
        return CacheInfo(key, self._size(key), self.has(key), source, self._path(key), made_by)

    def get_stats(self) -> CacheStats:
        """Hits, misses and evictions since this object was made, and what is there."""
        keys = self.list_entries()
        with self._lock:
            counts = dict(self._counts)
        return CacheStats(**counts, entries=len(keys), total_size=sum(map(self._size, keys)))

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
            header, found = _read_header(self._header_path(key)), path.stat()
            wanted = (self.config.version, __version__, found.st_size)
            fits = (header["version"], header["package"], header["size"]) == wanted
        except _HEADER_FAULTS:
            return None
        return header if fits and not self._expired(found.st_mtime) else None

    def _expired(self, written: float) -> bool:
        return 0 < self.config.ttl_seconds < time.time() - written

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
        """Let go of what is too old, then of what was used longest ago, the newest last."""
        entries = [key for key in self.list_entries() if key != keep]
        most, limit = self.config.max_entries, self.config.max_size_bytes
        gone = [key for key in entries if self._expired(self._written(key))]
        left = [*(key for key in entries if key not in gone), keep]
        total = sum(map(self._size, left))
        while left and (total > limit or (most and len(left) > most)):
            total -= self._size(left[0])
            gone.append(left.pop(0))
        for key in gone:
            self.remove(key)
        self._counts["evictions"] += len(gone)

    def _written(self, key: str) -> float:
        try:
            return self._path(key).stat().st_mtime
        except OSError:
            return 0.0


_HEADER_FAULTS = (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError)


def _read_header(path: Path) -> dict[str, Any]:
    header = json.loads(read_own(path))
    if header.pop("sha256") != _digest(header):
        raise ValueError("the header is damaged")
    return header


def _digest(header: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(header, sort_keys=True).encode()).hexdigest()


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
    expect(config, CacheConfig, "the config of the cache")
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
