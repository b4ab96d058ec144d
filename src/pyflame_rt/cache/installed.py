"""Whether installed packages declare entry points of ours, found without importlib.metadata, which loads slowly."""

from __future__ import annotations

import os
import sys
import time

from pyflame_rt.cache.models import SETTLED_NS

__all__ = ["is_declared"]

_LIST, _IN_EGG = "entry_points.txt", "EGG-INFO/entry_points.txt"
_PACKAGES = (".dist-info", ".egg-info", ".egg")
_seen: dict[str, tuple[int, frozenset[str]]] = {}  # of each folder, when it was written, and the groups


def is_declared(group: str) -> bool:
    """Whether a package on ``sys.path`` may declare entry points of a group, which importlib.metadata then lists.

    Example:
        >>> is_declared("pyflame_rt.no_such_group")
        False
    """
    finders = [finder for finder in sys.meta_path if hasattr(finder, "find_distributions")]
    if any(getattr(finder, "__name__", "") != "PathFinder" for finder in finders):
        return True
    for path in dict.fromkeys(os.fsdecode(path) for path in sys.path if isinstance(path, (str, os.PathLike))):
        if os.path.isfile(path):  # an archive
            return True
        if group in _groups(path or os.curdir):
            return True
    return False


def _groups(folder: str) -> frozenset[str]:
    """Groups of ours that packages in a folder declare, as this process saw them until packages come or go.

    They are not kept for other processes: an editable package's list is rewritten in place, and its folder stays as it
    is.
    """
    try:
        written = os.stat(folder).st_mtime_ns
        if folder in _seen and _seen[folder][0] == written:
            return _seen[folder][1]
        packages = [name for name in os.listdir(folder) if name.lower().endswith(_PACKAGES)]
    except (OSError, ValueError):  # not there, which is usual, or no name of a file
        return frozenset()
    lists = [f"{folder}/{name}/{_IN_EGG if name.lower().endswith('.egg') else _LIST}" for name in packages]
    if folder.lower().endswith(".egg"):
        lists.append(f"{folder}/{_IN_EGG}")
    groups = frozenset(group for path in lists for group in _declared(path))
    if os.path.isabs(folder) and time.time_ns() - written > SETTLED_NS:
        _seen[folder] = (written, groups)
    return groups


def _declared(path: str) -> list[str]:
    if not os.access(path, os.R_OK):  # most packages have none, and an error takes longer than a question
        return []
    try:
        with open(path, "rb") as file:
            text = file.read()
    except OSError:
        return []
    lines = map(bytes.strip, text.splitlines()) if b"[pyflame_rt." in text else ()
    return [line[1:-1].decode("utf-8", "replace") for line in lines if line.startswith(b"[pyflame_rt.")]
