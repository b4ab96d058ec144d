"""What an entry depends on besides its key: our own code, as it is installed."""

from __future__ import annotations

import hashlib
import os
from functools import cache

from pyflame_rt._version import __version__

__all__ = ["code_signature"]


@cache
def code_signature(*folders: str) -> str:
    """A digest of the sources in folders of this package: their names, sizes and times of writing.

    Example:
        >>> code_signature("graph") == code_signature("graph") != code_signature("ops")
        True
    """
    digest = hashlib.sha256(__version__.encode())
    home = os.path.dirname(os.path.dirname(__file__))
    for folder in folders:
        digest.update(_sources(os.path.join(home, *folder.split("/"))))
    return digest.hexdigest()[:16]


@cache
def _sources(folder: str) -> bytes:
    return "".join(sorted(_files(folder))).encode("utf-8", "surrogateescape")


def _files(folder: str) -> list[str]:
    lines: list[str] = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.endswith(".py"):
                    found = entry.stat()
                    lines.append(f"{entry.name} {found.st_size} {found.st_mtime_ns}\n")
                elif "." not in entry.name and entry.name != "__pycache__" and entry.is_dir():
                    lines += [f"{entry.name}/{line}" for line in _files(entry.path)]
    except OSError:  # not a folder of files: an archive, whose version must do
        return lines
    return lines
