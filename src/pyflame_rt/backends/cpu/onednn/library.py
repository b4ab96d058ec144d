"""Finding and loading libdnnl."""

from __future__ import annotations

import ctypes
import glob
import os
import sys

from pyflame_rt.backends.cpu.run.gomp import find_library, load_gomp
from pyflame_rt.graph.errors import BackendError
from pyflame_rt.graph.locks import new_rlock

__all__ = ["OneDnnUnavailable", "available", "load"]

DISTRIBUTION = "onednn-cpu-gomp"

_NAMES = ("libdnnl.so.3", "libdnnl.3.dylib", "dnnl.dll")
_lock = new_rlock()
_library: ctypes.CDLL | None = None
_failure: str | None = None


class OneDnnUnavailable(BackendError):
    """oneDNN cannot be loaded on this machine."""


def available() -> bool:
    """Whether oneDNN can be loaded; tries once per process and remembers."""
    try:
        load()
    except OneDnnUnavailable:
        return False
    return True


def load() -> ctypes.CDLL:
    """The loaded libdnnl, its functions undeclared (:mod:`.api` declares them).

    Raises:
        OneDnnUnavailable: the library is absent or does not load.
    """
    global _library, _failure
    with _lock:
        if _library is not None:
            return _library
        if _failure is None:
            try:
                _library = _open(_find())
            except OneDnnUnavailable as e:
                _failure = str(e)
            else:
                return _library
        raise OneDnnUnavailable(_failure)


def _find() -> str:
    if os.environ.get("PYFLAME_ONEDNN") == "0":
        raise OneDnnUnavailable("PYFLAME_ONEDNN=0 leaves oneDNN out")
    for path in _installed():
        if os.path.exists(path):
            return path
    found = find_library("dnnl")
    if found is None:
        raise OneDnnUnavailable(f"the cpu backend needs oneDNN 3: pip install {DISTRIBUTION}")
    return found


def _installed() -> list[str]:
    """Where the distribution's own file list says it put the library."""
    # The list is read as importlib.metadata would, whose import takes longer than everything else here.
    name = DISTRIBUTION.replace("-", "_")
    found: list[str] = []
    for folder in filter(os.path.isdir, sys.path):
        for record in glob.glob(os.path.join(glob.escape(folder), f"{name}-*.dist-info", "RECORD")):
            with open(record, encoding="utf-8") as lines:
                listed = [line.split(",", 1)[0].strip('"') for line in lines]
            found += [os.path.normpath(os.path.join(folder, p)) for p in listed if os.path.basename(p) in _NAMES]
    return found or _listed()


def _listed() -> list[str]:
    """The same for distributions that are installed in unusual ways."""
    import importlib.metadata

    try:
        files = importlib.metadata.files(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return []
    return [os.path.normpath(str(f.locate())) for f in files or [] if f.name in _NAMES]


def _open(path: str) -> ctypes.CDLL:
    load_gomp()
    try:
        return ctypes.CDLL(path)
    except OSError as e:
        raise OneDnnUnavailable(f"oneDNN was found at {path} but does not load: {e}") from e
