"""What was measured on this machine, in a file: for each case the kernel that was fastest.

Nothing in it changes unless a measurement is asked for, so that repeated runs give the same bits.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from pyflame_rt.backends.cpu.jit.target import host
from pyflame_rt.cache.notes import note_path, read_note, write_note

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["keep_ways", "measured_ways"]

_read: dict[tuple[str, int], dict[str, Any]] = {}


def _machine(threads: int) -> str:
    name = f"{host().cpu} {host().features}"
    return f"{hashlib.sha256(name.encode()).hexdigest()[:16]} {threads}"


def _contents(path: Path) -> dict[str, Any]:
    """The file as it is now; one that is damaged counts as empty."""
    try:
        key = (str(path), path.stat().st_mtime_ns)
    except OSError:
        return {}
    if key not in _read:
        _read.clear()
        _read[key] = read_note(path)
    return _read[key]


def measured_ways(threads: int) -> dict[str, str]:
    """Case -> way, for this machine and so many threads."""
    path = note_path("tuning")
    found = {} if path is None else _contents(path).get(_machine(threads))
    if not isinstance(found, dict):
        return {}
    return {str(case): way for case, way in found.items() if isinstance(way, str)}


def keep_ways(threads: int, ways: Mapping[str, str]) -> bool:
    """Add measurements to the file, whole or not at all; False when it cannot be written."""
    path = note_path("tuning")
    if path is None:
        return False
    known = dict(_contents(path))
    known[_machine(threads)] = {**measured_ways(threads), **ways}
    return write_note(path, known)
