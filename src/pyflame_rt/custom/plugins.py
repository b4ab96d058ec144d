"""Operators that installed packages bring, by entry points of the group ``pyflame_rt.operators``."""

from __future__ import annotations

import importlib.metadata

from pyflame_rt.graph.errors import BackendError
from pyflame_rt.graph.locks import new_rlock

__all__ = ["GROUP", "load_plugins"]

GROUP = "pyflame_rt.operators"
_loaded: dict[str, str] = {}
_lock = new_rlock()


def load_plugins() -> list[str]:
    """Load what installed packages register, each once; gives the names of all that are loaded.

    An entry point is a module that registers operators when it is imported, or a function that does when it is called.
    Sessions call this by themselves before they refuse an operator that nobody declared.

    Raises:
        BackendError: a package's code failed; the message names it.
    """
    with _lock:
        for point in importlib.metadata.entry_points(group=GROUP):
            if _loaded.get(point.name) == point.value:
                continue
            try:
                found = point.load()
                if callable(found):
                    found()
            except Exception as error:
                package = "a package" if point.dist is None else f"package {point.dist.name!r}"
                told = f"{package}: operators {point.name!r} ({point.value}) do not load: {error}"
                raise BackendError(told) from error
            _loaded[point.name] = point.value
        return sorted(_loaded)
