"""Hot reload: files of models are watched, and what changed is loaded again beside what serves (watchfiles)."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from watchfiles import watch

from pyflame_rt.graph.errors import PyFlameRTError
from pyflame_rt.serving.folders import CONFIG, SUFFIXES, find_models

if TYPE_CHECKING:
    from pyflame_rt.serving.config import ModelConfig
    from pyflame_rt.serving.registry import ModelRegistry

__all__ = ["Watcher"]

log = logging.getLogger("pyflame_rt.serving")
QUIET_MS = 200  # changes that come as close together are one
ROUND_MS = 1000  # how often files are looked at where nothing is told


class Watcher:
    """A thread that keeps a registry up to date with its files."""

    def __init__(self, registry: ModelRegistry) -> None:
        self._registry = registry
        self._end = threading.Event()  # of the thread
        self._again = threading.Event()  # of one round: there are other files to watch
        self._thread = threading.Thread(target=self._run, name="pyflame-rt-watch", daemon=True)
        self._watched: set[str] = set()

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def refresh(self) -> None:
        """There may be other files to watch."""
        if self._paths() != self._watched:
            self._again.set()

    def stop(self) -> None:
        """End."""
        self._end.set()
        self._again.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _paths(self) -> set[str]:
        folders, files = self._registry.watched()
        found = {str(Path(folder).absolute()) for folder in folders}
        found |= {str(Path(path).absolute().parent) for path in files.values()}
        return {path for path in found if Path(path).is_dir()}

    def _run(self) -> None:
        stamps = self._stamps()
        while not self._end.is_set():
            self._again.clear()
            self._watched = self._paths()
            if not self._watched:
                self._again.wait(ROUND_MS / 1e3)
                continue
            # The watch only wakes this thread up: what changed is told by the files, so that no change is missed before
            # it began, nor on file systems that tell of none.
            for _ in watch(
                *self._watched,
                stop_event=self._again,
                debounce=QUIET_MS,
                step=QUIET_MS // 4,
                rust_timeout=ROUND_MS,
                yield_on_timeout=True,
                raise_interrupt=False,
            ):
                before, stamps = stamps, self._stamps()
                changed = {path for path, _ in before.items() ^ stamps.items()}
                if changed:
                    self._apply(changed)
                if self._again.is_set():
                    break

    def _stamps(self) -> dict[Path, tuple[int, int, int]]:
        """Every file that may matter, with what changes when it is written."""
        folders, files = self._registry.watched()
        paths = {Path(path).absolute() for path in files.values()}
        for folder in folders:
            root = Path(folder).absolute()
            for depth in ("*", "*/*", "*/*/*"):
                paths |= {path for path in root.glob(depth) if path.suffix in SUFFIXES or path.name == CONFIG}
        found = {}
        for path in paths:
            try:
                facts = path.stat()
            except OSError:  # gone meanwhile
                continue
            found[path] = (facts.st_mtime_ns, facts.st_size, facts.st_ino)
        return found

    def _apply(self, changed: set[Path]) -> None:
        folders, files = self._registry.watched()
        handled = set()
        for folder in folders:
            handled |= self._scan(folder, changed, files)
        for key, path in files.items():
            if key not in handled and Path(path).absolute() in changed and Path(path).is_file():
                self._try(*key)

    def _scan(self, folder: str, changed: set[Path], files: dict[tuple[str, str], str]) -> set[tuple[str, str]]:
        """Models of a folder that are new, changed or gone."""
        seen = set()
        try:
            found = list(find_models(folder, self._registry.defaults))
        except PyFlameRTError as error:
            log.error("%s", error)
            return seen
        for config in found:
            if isinstance(config, Exception):
                log.error("%s", config)
                continue
            key = (config.name, config.version)
            seen.add(key)
            path = Path(config.model_path).absolute()
            near = {path, path.parent / CONFIG, path.parent.parent / CONFIG}
            if key not in files or near & changed:
                self._try(*key, config=config)
        root = Path(folder).absolute()
        for key, path in files.items():
            if key not in seen and root in Path(path).absolute().parents:
                self._registry.unload(*key)
        return seen

    def _try(self, name: str, version: str, config: ModelConfig | None = None) -> None:
        try:
            self._registry.replace(name, version, config)
        except (PyFlameRTError, OSError) as error:
            log.error("model %s:%s stays as it is: %s", name, version, error)
