"""Small facts kept as JSON beside the entries: what was measured on this machine."""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pyflame_rt.cache.folders import make_folder, read_own
from pyflame_rt.cache.store import current_store

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["note_path", "read_note", "write_note"]


def note_path(name: str) -> Path | None:
    """Where a note is, or would be; None where nothing is kept."""
    store = current_store()
    return store.folder.parent / f"{name}.json" if store.usable else None


def read_note(path: Path) -> dict[str, Any]:
    """The contents of a note; one that is damaged, or could be somebody else's, counts as empty."""
    try:
        found = json.loads(read_own(path))
        contents, digest = found["contents"], found["sha256"]
    except (OSError, ValueError, TypeError, LookupError, RecursionError):
        return {}
    return contents if isinstance(contents, dict) and digest == _digest(contents) else {}


def write_note(path: Path, contents: Mapping[str, Any]) -> bool:
    """Keep a note, whole or not at all; False when it cannot be written."""
    import tempfile

    with suppress(OSError):
        make_folder(path.parent)
        number, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}")
        with open(number, "w", encoding="utf-8") as file:
            json.dump({"sha256": _digest(contents), "contents": contents}, file, indent=0, sort_keys=True)
        os.replace(name, path)
        return True
    return False


def _digest(contents: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(contents, sort_keys=True).encode()).hexdigest()
