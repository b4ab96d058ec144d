"""Finding and loading libdnnl and the OpenMP runtime it shares with our own kernels."""

from __future__ import annotations

import contextlib
import ctypes
import glob
import os
import sys
from typing import TYPE_CHECKING

from pyflame_rt.graph.errors import BackendError
from pyflame_rt.graph.locks import new_rlock

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["OneDnnUnavailable", "available", "load", "load_gomp", "loaded_gomp"]

DISTRIBUTION = "onednn-cpu-gomp"
SPIN_COUNT = "2000"  # 20 to 50 us of spinning before a waiting thread sleeps

_NAMES = ("libdnnl.so.3", "libdnnl.3.dylib", "dnnl.dll")
_lock = new_rlock()
_library: ctypes.CDLL | None = None
_gomp: ctypes.CDLL | None = None
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


def load_gomp() -> ctypes.CDLL | None:
    """GNU OpenMP, loaded before libdnnl so that both see one copy; None where the system has none."""
    global _gomp
    with _lock:
        if _gomp is None:
            with _bounded_spinning():
                _gomp = _open_gomp()
        return _gomp


def loaded_gomp() -> ctypes.CDLL | None:
    """GNU OpenMP if this process has it already, whoever loaded it."""
    if _gomp is not None or not hasattr(os, "RTLD_NOLOAD"):
        return _gomp
    with contextlib.suppress(OSError):
        return ctypes.CDLL("libgomp.so.1", mode=os.RTLD_NOW | os.RTLD_NOLOAD)
    return None


def _open_gomp() -> ctypes.CDLL | None:
    with contextlib.suppress(OSError):
        return ctypes.CDLL("libgomp.so.1", mode=ctypes.RTLD_GLOBAL)
    name = _found("gomp")
    if name is not None:
        with contextlib.suppress(OSError):
            return ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
    return None


def _found(name: str) -> str | None:
    """What the system's own search says, which may start a compiler to ask it."""
    import ctypes.util

    return ctypes.util.find_library(name)


def _find() -> str:
    for path in _installed():
        if os.path.exists(path):
            return path
    found = _found("dnnl")
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


@contextlib.contextmanager
def _bounded_spinning() -> Iterator[None]:
    """Set GOMP_SPINCOUNT while libgomp reads its environment, unless the user has chosen how threads wait.

    Only the C environment changes, so ``os.environ`` and child processes never see it.
    """
    if os.name != "posix" or "GOMP_SPINCOUNT" in os.environ or "OMP_WAIT_POLICY" in os.environ:
        yield
        return
    libc = ctypes.CDLL(None)
    libc.setenv.argtypes, libc.setenv.restype = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int), ctypes.c_int
    libc.unsetenv.argtypes, libc.unsetenv.restype = (ctypes.c_char_p,), ctypes.c_int
    libc.setenv(b"GOMP_SPINCOUNT", SPIN_COUNT.encode(), 1)
    try:
        yield
    finally:
        libc.unsetenv(b"GOMP_SPINCOUNT")
