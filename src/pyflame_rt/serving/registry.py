"""Models by name and version: loaded, replaced and unloaded while requests go on."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import random
import threading
from typing import TYPE_CHECKING, Any

from pyflame_rt.graph.errors import InputError, MemoryLimitError, PyFlameRTError
from pyflame_rt.serving.config import ModelConfig
from pyflame_rt.serving.errors import RequestError
from pyflame_rt.serving.folders import find_models, stamps_in, stamps_of
from pyflame_rt.serving.hot_reload import Watcher
from pyflame_rt.serving.instance import ModelInstance
from pyflame_rt.serving.metrics import MetricsRegistry
from pyflame_rt.serving.sources import open_session
from pyflame_rt.serving.versions import natural_key

if TYPE_CHECKING:
    from collections.abc import Callable
    from os import PathLike
    from pathlib import Path

    from pyflame_rt.serving.folders import Stamp

__all__ = ["ModelRegistry", "ModelVersion"]

log = logging.getLogger("pyflame_rt.serving")
_loads = itertools.count(1)


@dataclasses.dataclass(frozen=True)
class ModelVersion:
    """One version of a model, as lists show it.

    Attributes:
        name: of the model.
        version: of the model.
        path: where it came from; "" for a model that came from the program.
        ready: whether it answers.
        reason: why not.
    """

    name: str
    version: str
    path: str
    ready: bool
    reason: str = ""


class _Entry:
    """A version that is known, loaded or not."""

    def __init__(self, config: ModelConfig, source: Any) -> None:
        self.config, self.source = config, source
        self.example: Any = None
        self.instance: ModelInstance | None = None
        self.reason = "not loaded"
        self.evicted = False
        self.number = next(_loads)
        self.loading = threading.Lock()

    @property
    def ready(self) -> bool:
        return self.instance is not None or self.evicted

    def shown(self) -> ModelVersion:
        reason = "" if self.ready else self.reason
        return ModelVersion(self.config.name, self.config.version, self.config.model_path, self.ready, reason)


class ModelRegistry:
    """Models by name and version. Safe with threads; a model that is replaced answers what it was asked.

    Args:
        max_memory: bytes of weights; when more are needed, the versions that were asked longest ago are let go, and
            come back when they are asked for. 0 for no limit.

    Example:
        >>> import pyflame_rt
        >>> g = pyflame_rt.Graph("g")
        >>> _ = g.add_input("x", ["N"]), g.add_node("n", "Neg", ["x"], ["y"]), g.add_output("y", ["N"])
        >>> registry = ModelRegistry()
        >>> _ = registry.add_model("m", g, "v9"), registry.add_model("m", g, "v10")
        >>> registry.get_latest("m").version, [v.version for v in registry.list_versions("m")]
        ('v10', ['v9', 'v10'])
        >>> registry.unload_all()
    """

    def __init__(self, max_memory: int = 0) -> None:
        self.max_memory = max_memory
        self.defaults = ModelConfig()
        self._lock = threading.RLock()
        self._models: dict[str, dict[str, _Entry]] = {}
        self._folders: list[str] = []
        self._callback: Callable[[str, str], Any] | None = None
        self._watcher: Watcher | None = None
        self.seen: dict[Path, Stamp] = {}  # files before they were loaded: later changes count, watched yet or not
        self._random = random.Random()
        self._current: dict[tuple[str, str | None], _Entry] = {}  # who answers, until something changes

    # ------------------------------------------------------------------ loading

    def register_model(self, config: ModelConfig) -> ModelInstance:
        """Load the model that a record names; one of the same name and version is replaced.

        Raises:
            PyFlameRTError: The settings are not valid, or the model cannot be loaded.
        """
        problems = config.validate()
        if problems:
            raise InputError("; ".join(problems))
        return self._put(dataclasses.replace(config), config.model_path)

    def load_from_path(self, name: str, path: str | PathLike[str], version: str = "1") -> ModelInstance:
        """Load a model file under a name and a version."""
        return self.register_model(dataclasses.replace(self.defaults, name=name, model_path=str(path), version=version))

    def load_from_directory(self, folder: str | PathLike[str]) -> list[ModelVersion]:
        """Load every model of a folder; one that cannot be loaded is listed with the reason, and the others serve.

        Raises:
            ModelNotFoundError: There is no such folder.
        """
        found = []
        self.seen.update(stamps_in(folder))
        for config in find_models(folder, self.defaults):
            if isinstance(config, Exception):
                log.error("%s", config)
                continue
            try:
                self.register_model(config)
            except PyFlameRTError as error:
                log.error("model %s:%s was not loaded: %s", config.name, config.version, error)
            with self._lock:
                found.append(self._models[config.name][config.version].shown())
        if str(folder) not in self._folders:
            self._folders.append(str(folder))
        return found

    def add_model(
        self, name: str, model: Any, version: str = "1", *, example: Any = None, config: ModelConfig | None = None
    ) -> ModelInstance:
        """Load a model of the program: a path, a Graph, bytes, a session, or a PyFlame module with an example."""
        base = dataclasses.replace(self.defaults if config is None else config, name=name, version=version)
        problems = base.validate(needs_path=False)
        if problems:
            raise InputError("; ".join(problems))
        return self._put(base, model, example)

    def _put(self, config: ModelConfig, source: Any, example: Any = None) -> ModelInstance:
        with self._lock:
            versions = self._models.setdefault(config.name, {})
            entry = versions.get(config.version)
            if entry is None:
                entry = versions[config.version] = _Entry(config, source)
                self._current.clear()
        with entry.loading:
            entry.example = example
            return self._load(entry, config, source)

    def _load(self, entry: _Entry, config: ModelConfig, source: Any) -> ModelInstance:
        """Load, warm up, then swap: requests see the one or the other."""
        if config.model_path:
            self.seen.update(stamps_of([config.model_path]))
        try:
            session, owned = open_session(source, config, entry.example)
            fresh = ModelInstance(config, session, str(config.model_path), owned=owned)
            self._make_room(fresh, entry)
        except (PyFlameRTError, OSError, TypeError) as error:
            with self._lock:
                if entry.instance is None:
                    entry.reason = str(error)
            raise
        fresh.warm_up()
        with self._lock:
            self._current.clear()
            old, entry.instance = entry.instance, fresh
            entry.config, entry.source, entry.evicted, entry.number = config, source, False, next(_loads)
            known = self._models.get(config.name, {}).get(config.version) is entry
        if not known:  # unloaded meanwhile
            entry.instance = None
            fresh.retire()
        MetricsRegistry.instance().model_loaded(config.name, config.version, known)
        if old is not None:
            old.retire()
        if self._watcher is not None:
            self._watcher.refresh()
        return fresh

    def _make_room(self, fresh: ModelInstance, keep: _Entry) -> None:
        if not self.max_memory:
            return
        if fresh.weight_bytes > self.max_memory:
            fresh.close()
            raise MemoryLimitError(
                f"model {fresh.name}:{fresh.version} has {fresh.weight_bytes} bytes of weights, max_memory allows "
                f"{self.max_memory}"
            )
        while self.memory_used() - self._size(keep) + fresh.weight_bytes > self.max_memory:
            with self._lock:
                idle = [
                    e for e in self._entries() if e.instance is not None and e is not keep and not e.instance.in_use
                ]
                if not idle:
                    break  # all of them are at work; memory is freed when they are asked no more
                oldest = min(idle, key=lambda e: e.instance.last_used if e.instance is not None else 0.0)
                self._current.clear()
                gone, oldest.instance, oldest.evicted = oldest.instance, None, True
            assert gone is not None
            log.info("model %s:%s was evicted", gone.name, gone.version)
            MetricsRegistry.instance().model_loaded(gone.name, gone.version, False)
            gone.retire()

    def _size(self, entry: _Entry) -> int:
        return 0 if entry.instance is None else entry.instance.weight_bytes

    def reload(self, name: str, version: str | None = None) -> ModelInstance:
        """Load a version again from where it came; until that is done, and when it fails, the old one answers.

        Raises:
            PyFlameRTError: There is no such version, or it cannot be loaded.
        """
        entry = self._entry(name, version)
        with entry.loading:
            fresh = self._load(entry, entry.config, entry.source)
        callback = self._callback
        if callback is not None:
            callback(name, entry.config.version)
        return fresh

    def load(self, name: str) -> list[ModelVersion]:
        """Load a model by its name: again where it is known, else from the folders that were loaded.

        Raises:
            PyFlameRTError: It cannot be loaded.
            RequestError: There is no such model.
        """
        found = [c for folder in list(self._folders) for c in find_models(folder, self.defaults)]
        mine = [c for c in found if isinstance(c, ModelConfig) and c.name == name]
        if mine:
            for config in mine:
                self.register_model(config)
        else:
            for version in self.list_versions(name) or [self._entry(name, None).shown()]:
                self.reload(name, version.version)
        return self.list_versions(name)

    def replace(self, name: str, version: str, config: ModelConfig | None = None) -> None:
        """Load a version anew after its files changed, with other settings where they changed, too."""
        if config is None:
            self.reload(name, version)
            return
        self.register_model(config)
        if self._callback is not None:
            self._callback(name, version)

    def unload(self, name: str, version: str | None = None) -> None:
        """Let a version go, or all of a model; requests under way are answered.

        Raises:
            RequestError: There is no such model or version.
        """
        with self._lock:
            self._entry(name, version)
            self._current.clear()
            versions = self._models[name]
            gone = [versions.pop(v) for v in ([version] if version is not None else list(versions))]
            if not versions:
                del self._models[name]
        for entry in gone:
            if entry.instance is not None:
                MetricsRegistry.instance().model_loaded(name, entry.config.version, False)
                entry.instance.retire()

    def unload_all(self) -> None:
        """Let everything go, and watch no more files."""
        self.enable_hot_reload(False)
        for name in self.list_models():
            self.unload(name)

    # ------------------------------------------------------------------ asking

    def acquire(self, name: str, version: str | None = None) -> ModelInstance:
        """An instance that stays until it is released; one that was evicted is loaded first, which takes a while.

        Raises:
            RequestError: There is no such model or version, or it cannot be loaded.
        """
        while (instance := self.take(name, version)) is None:
            with self._lock:
                entry = self._chosen(name, version)
            with entry.loading:
                if entry.instance is None or not entry.instance.is_ready():
                    self._load(entry, entry.config, entry.source)
        return instance

    def take(self, name: str, version: str | None = None) -> ModelInstance | None:
        """The same as :meth:`acquire` where nothing has to be loaded, else None.

        Raises:
            RequestError: There is no such model or version, or it cannot be loaded.
        """
        with self._lock:
            entry = self._current.get((name, version)) or self._chosen(name, version)
            instance = entry.instance
            if instance is not None and instance.acquire():
                return instance
            if instance is None and not entry.evicted:
                raise RequestError(503, "ModelNotReady", f"model {name!r} is not ready: {entry.reason}")
            return None

    def get(self, name: str, version: str) -> ModelInstance | None:
        """A version that is loaded; None when it is not."""
        with self._lock:
            entry = self._models.get(name, {}).get(version)
            return None if entry is None else entry.instance

    def get_latest(self, name: str) -> ModelInstance | None:
        """The greatest version that is loaded; None when there is none."""
        with self._lock:
            entries = [e for e in self._models.get(name, {}).values() if e.instance is not None]
            return _latest(entries).instance if entries else None

    def has(self, name: str, version: str | None = None) -> bool:
        """Whether a version (or any) is there and answers."""
        with self._lock:
            versions = self._models.get(name, {})
            found = versions.values() if version is None else [e for v, e in versions.items() if v == version]
            return any(entry.ready for entry in found)

    def list_models(self) -> list[str]:
        """Names, in order."""
        with self._lock:
            return sorted(self._models)

    def list_versions(self, name: str) -> list[ModelVersion]:
        """Versions of a model, the latest last."""
        with self._lock:
            entries = sorted(self._models.get(name, {}).values(), key=_order)
            return [entry.shown() for entry in entries]

    def config(self, name: str, version: str | None = None) -> ModelConfig:
        """The settings of a version."""
        return self._entry(name, version).config

    def set_weight(self, name: str, version: str, weight: float | None) -> None:
        """Change the share of requests without a version that one gets.

        Raises:
            InputError: It is no number from 0 on.
            RequestError: There is no such version.
        """
        with self._lock:
            entry = self._entry(name, version)
            changed = dataclasses.replace(entry.config, weight=weight)
            problems = changed.validate(needs_path=False)
            if problems:
                raise InputError("; ".join(problems))
            entry.config = changed
            self._current.clear()

    def memory_used(self) -> int:
        """Bytes of the weights that are loaded."""
        with self._lock:
            return sum(self._size(entry) for entry in self._entries())

    def get_stats(self) -> dict[str, Any]:
        """Statistics of everything that is loaded, by name and version."""
        with self._lock:
            loaded = [entry.instance for entry in self._entries() if entry.instance is not None]
        found: dict[str, Any] = {}
        for instance in loaded:
            found.setdefault(instance.name, {})[instance.version] = instance.get_stats()
        return found

    def _entries(self) -> list[_Entry]:
        return [entry for versions in self._models.values() for entry in versions.values()]

    def _entry(self, name: str, version: str | None) -> _Entry:
        with self._lock:
            versions = self._models.get(name)
            if not versions:
                known = ", ".join(map(repr, sorted(self._models)[:8])) or "none"
                raise RequestError(404, "ModelNotFound", f"there is no model {name!r}. Models: {known}")
            if version is None:
                return _latest(list(versions.values()))
            if version not in versions:
                known = ", ".join(map(repr, sorted(versions, key=natural_key)[:8]))
                raise RequestError(
                    404, "ModelNotFound", f"model {name!r} has no version {version!r}. Versions: {known}"
                )
            return versions[version]

    def _chosen(self, name: str, version: str | None) -> _Entry:
        """The version that answers: the one named, one by weight, else the latest that is ready."""
        if version is None:
            ready = [e for e in self._models.get(name, {}).values() if e.ready]
            weighted = [e for e in ready if e.config.weight]
            if weighted:
                return self._random.choices(weighted, [e.config.weight or 0.0 for e in weighted])[0]
            found = _latest(ready) if ready else self._entry(name, None)
        else:
            found = self._entry(name, version)
        self._current[name, version] = found
        return found

    # ------------------------------------------------------------------ watching files

    def enable_hot_reload(self, on: bool = True) -> None:
        """Watch files of models, and folders that were loaded: what changes is loaded again, what is new is added."""
        if not on:
            watcher, self._watcher = self._watcher, None
            if watcher is not None:
                watcher.stop()
        elif self._watcher is None:
            self._watcher = Watcher(self)
            self._watcher.start()

    def set_reload_callback(self, callback: Callable[[str, str], Any] | None) -> None:
        """Have ``callback(name, version)`` called after each reload."""
        self._callback = callback

    def watched(self) -> tuple[list[str], dict[tuple[str, str], str]]:
        """Folders that were loaded, and the file of every version."""
        with self._lock:
            files = {(e.config.name, e.config.version): e.config.model_path for e in self._entries()}
            return list(self._folders), {key: path for key, path in files.items() if path}


def _order(entry: _Entry) -> tuple[Any, int]:
    return natural_key(entry.config.version), entry.number


def _latest(entries: list[_Entry]) -> _Entry:
    return max(entries, key=_order)
