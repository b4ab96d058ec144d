"""Checkpoints that are whole or absent, whenever the process ends."""

from __future__ import annotations

import os
import re
import secrets
from pathlib import Path
from typing import Any

from pyflame.serialization import load, save
from pyflame_rt.graph.named_arguments import names_arguments
from pyflame_rt.graph.writing import remove_abandoned

__all__ = ["latest_checkpoint", "prune_checkpoints", "read_checkpoint", "write_whole"]

NAME = re.compile(r"checkpoint-(\d+)\.pf$")
PARTS = ("model", "optimizer", "callbacks", "scaler", "pending", "metrics", "position", "history", "steps")


def write_whole(obj: Any, path: str | Path) -> None:
    """Write a file beside its place, then move it there: a reader sees the old file or the new one, never a part.

    What writers that were killed left beside it is removed.

    Raises:
        OSError: the disk is full, or the like; what was there before is as it was.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    # Also what was left of files of other numbers: the next checkpoint has another name.
    remove_abandoned(target.parent, re.sub(r"\d+", r"\\d+", re.escape(target.name)))
    scratch = target.with_name(f".{target.name}.{os.getpid()}.{secrets.token_hex(4)}{target.suffix or '.pf'}")
    try:
        save(obj, scratch)
        _to_disk(scratch)
        scratch.replace(target)
    except OSError as error:
        scratch.unlink(missing_ok=True)
        cause = error.__cause__ if isinstance(error.__cause__, OSError) else error
        raise OSError(
            cause.errno, f"{cause.strerror or cause}: could not write it, files written before are whole", str(target)
        ) from error
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise
    if os.name == "posix":
        _to_disk(target.parent)  # the new name, too


def _to_disk(path: Path) -> None:
    """Wait until a file, or a folder's list of names, is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


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


@names_arguments
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
    """Remove all but the newest checkpoints, and what processes that were killed left unfinished."""
    for _, path in _numbered(folder)[:-keep]:
        path.unlink(missing_ok=True)
    remove_abandoned(Path(folder), r"checkpoint-\d+\.pf")
