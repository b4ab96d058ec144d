"""Checkpoints that are whole or absent, whenever the process ends."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path
from typing import Any

from pyflame.serialization import load, save

__all__ = ["latest_checkpoint", "prune_checkpoints", "read_checkpoint", "write_whole"]

NAME = re.compile(r"checkpoint-(\d+)\.pf$")
PARTS = ("model", "optimizer", "callbacks", "scaler", "pending", "metrics", "position", "history", "steps")


def write_whole(obj: Any, path: str | Path) -> None:
    """Write a file beside its place, then move it there: a reader sees the old file or the new one, never a part."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=target.suffix or ".pf", dir=target.parent)
    os.close(handle)
    try:
        save(obj, name)
        with Path(name).open("rb") as file:
            os.fsync(file.fileno())
        Path(name).replace(target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """The contents of a checkpoint; a typed error for anything else."""
    found = load(path)
    if not isinstance(found, dict) or "model" not in found or "position" not in found:
        raise ValueError(f"{path} holds no checkpoint of a Trainer")
    missing = [part for part in PARTS if part not in found]
    if missing:
        raise ValueError(f"{path} is a checkpoint without {', '.join(missing)}: another version wrote it")
    return found


def _numbered(folder: str | Path) -> list[tuple[int, Path]]:
    files = Path(folder).glob("checkpoint-*.pf") if Path(folder).is_dir() else ()
    return sorted((int(match[1]), path) for path in files if (match := NAME.search(path.name)))


def latest_checkpoint(folder: str | Path) -> Path | None:
    """The newest checkpoint in a folder, or None.

    Example:
        >>> from pyflame.training import latest_checkpoint
        >>> latest_checkpoint("no-such-folder") is None
        True
    """
    found = _numbered(folder)
    return found[-1][1] if found else None


def prune_checkpoints(folder: str | Path, keep: int) -> None:
    """Remove all but the newest checkpoints."""
    for _, path in _numbered(folder)[:-keep]:
        path.unlink(missing_ok=True)
