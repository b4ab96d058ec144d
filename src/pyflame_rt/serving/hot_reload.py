"""Hot reload: files of models are watched, and what changed is loaded again beside what serves (watchfiles)."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from watchfiles import watch

from pyflame_rt.graph.errors import PyFlameRTError
from pyflame_rt.serving.folders import CONFIG, find_models, stamps_in, stamps_of

if TYPE_CHECKING:
    from pyflame_rt.serving.config import ModelConfig
    from pyflame_rt.serving.folders import Stamp
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
        self._complaint = ""

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
        while not self._end.is_set():
            self._again.clear()
            self._watched = self._paths()
            if not self._watched:
                self._again.wait(ROUND_MS / 1e3)
                continue
            try:
                self._watch()
            except OSError as error:  # a folder went just now, or there are too many to be told of
                self._complain(error)
                self._look()
                self._again.wait(ROUND_MS / 1e3)

    def _watch(self) -> None:
        """Look whenever something changes, until there are other files.

        The watch only wakes this thread up: what changed is told by the files, so that no change is missed before it
        began, nor on file systems that tell of none.
        """
        for _ in watch(
            *self._watched,
            stop_event=self._again,
            debounce=QUIET_MS,
            step=QUIET_MS // 4,
            rust_timeout=ROUND_MS,
            yield_on_timeout=True,
            raise_interrupt=False,
        ):
            self._look()
            if self._again.is_set():
                break

    def _complain(self, error: OSError) -> None:
        """Say once what is wrong."""
        if str(error) != self._complaint:
            log.error("models are looked for again: %s", error)
        self._complaint = str(error)

    def _look(self) -> None:
        """Act on what is not as it was when it was loaded, or when it was last looked at."""
        now, seen = self._stamps(), self._registry.seen
        changed = {path for path, _ in seen.copy().items() ^ now.items()}  # others load, too
        for path in changed:
            if path in now:
                seen[path] = now[path]
            else:
                seen.pop(path, None)
        if not changed:
            return
        try:
            self._apply(changed)
        except OSError as error:  # a folder changed while it was read: once more in the next round
            for path in changed:
                seen.pop(path, None)
            self._complain(error)

    def _stamps(self) -> dict[Path, Stamp]:
        folders, files = self._registry.watched()
        found: dict[Path, Stamp] = {}
        for folder in folders:
            found.update(stamps_in(folder))
        known = {str(path) for path in found}
        return found | stamps_of(path for path in files.values() if path not in known)

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
