"""Which library makes new arrays.

Chosen in this order: `use_backend` around the call, `set_backend`, the environment variable
`EMBERHARMONY_BACKEND`, else the first installed of MLX, PyTorch and NumPy.
"""

import functools
import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from emberharmony.library import Library, library

VARIABLE = "EMBERHARMONY_BACKEND"
_local: ContextVar[str | None] = ContextVar("emberharmony_backend", default=None)
_process: list[str] = []


class BackendName(str):
    """The name of a backend, through which its operations can be called too.

    >>> BackendName("numpy").add(1, 2)
    array(3)
    """

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        return getattr(library(self), name)


@functools.cache
def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _default() -> str:
    chosen = os.environ.get(VARIABLE)
    if chosen:
        return library(chosen).name
    if _installed("mlx.core"):
        return "mlx"
    return "torch" if _installed("torch") else "numpy"


def _current() -> str:
    local = _local.get()
    if local is not None:
        return local
    if not _process:
        _process.append(_default())
    return _process[0]


def current_library() -> Library:
    """The library of the current backend.

    >>> with use_backend("numpy"):
    ...     current_library()
    library('numpy')
    """
    return library(_current())


def get_backend() -> BackendName:
    """Name of the backend that makes new arrays: "numpy", "torch" or "mlx".

    >>> with use_backend("numpy"):
    ...     get_backend()
    'numpy'
    """
    return BackendName(_current())


def set_backend(name: str) -> None:
    """Choose the backend, for the process or, inside `use_backend`, until that ends.

    Raises:
        UnknownBackendError: No such backend.
        MissingExtra: Its library is not installed.

    >>> before = get_backend()
    >>> set_backend("numpy"); set_backend(before)
    """
    chosen = library(name).name
    if _local.get() is not None:
        _local.set(chosen)
    else:
        _process[:] = [chosen]


@contextmanager
def use_backend(name: str) -> Iterator[Library]:
    """Choose the backend inside a `with` block, for this thread or task only.

    >>> with use_backend("numpy") as lib:
    ...     lib.name
    'numpy'
    """
    chosen = library(name)
    token = _local.set(chosen.name)
    try:
        yield chosen
    finally:
        _local.reset(token)


__all__ = ["BackendName", "current_library", "get_backend", "set_backend", "use_backend"]
