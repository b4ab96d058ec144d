"""Files that are open already: copied beside the others to be read, and told apart by their first bytes."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyflame_rt.graph.errors import UnsupportedFormatError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["is_open", "sniffed", "spooled"]


def is_open(path: Any) -> bool:
    """Whether this is a file object rather than a path."""
    return hasattr(path, "write") or hasattr(path, "read")


@contextlib.contextmanager
def spooled(file: Any) -> Iterator[Path]:
    """What is left in an open file, as a file that has a path."""
    with tempfile.TemporaryDirectory(prefix="pyflame-") as folder:
        copy = Path(folder) / "open file"
        with copy.open("wb") as sink:
            shutil.copyfileobj(file, sink)
        yield copy


def sniffed(path: Path) -> str:
    """The format that the first bytes of a file tell."""
    with path.open("rb") as file:
        head = file.read(9)
    if head.startswith(b"PYFLAME"):
        return "pf"
    if head.startswith(b"PK") and zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
        return "npz" if names and all(name.endswith(".npy") for name in names) else "torch"
    if head[8:] == b"{":
        return "safetensors"
    if head.startswith(b"\x80"):
        return "torch"  # as torch wrote them before 1.6
    raise UnsupportedFormatError(
        f"{path.name!r}: neither its name nor its first bytes say what the format is; pass format="
    )
