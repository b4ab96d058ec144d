"""Graphs and plans as bytes. Arrays that lie in a mapped file stay there: only their place is written."""

from __future__ import annotations

import copyreg
import io
import pickle
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.graph.pages import FileIdentity, file_of, identity_of, map_file

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["StaleError", "freeze", "place_of", "thaw"]

# Smaller arrays are written where they are used.
MIN_MAPPED = 256
_NUMPY = {"_reconstruct", "_frombuffer", "ndarray", "dtype", "scalar"}


class StaleError(Exception):
    """A file that something was made from is not what it was."""


def freeze(value: object, reducers: Mapping[type, Callable[[Any], Any]] | None = None) -> bytes:
    """The bytes of a value; ``reducers`` say how further types are written, as in a pickler's dispatch table.

    Raises:
        pickle.PicklingError: Part of it cannot be written.
    """
    out = io.BytesIO()
    pickler = pickle.Pickler(out, 5)
    pickler.dispatch_table = copyreg.dispatch_table | {np.ndarray: _reduce_array} | dict(reducers or {})
    try:
        pickler.dump(value)
    except (TypeError, AttributeError, ValueError, RecursionError) as error:
        raise pickle.PicklingError(str(error)) from error
    return out.getvalue()


def thaw(data: bytes) -> Any:
    """What :func:`freeze` wrote.

    Raises:
        StaleError: A file it depends on has changed.
        pickle.UnpicklingError: It names something that is no part of a graph or plan.
    """
    return _Reader(io.BytesIO(data)).load()


class _Reader(pickle.Unpickler):
    """Makes objects of this package and arrays, nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        own = module.startswith("pyflame_rt.")
        numeric = (module.startswith("numpy") and name in _NUMPY) or module == "ml_dtypes"
        if own or numeric or (module, name) in _PLAIN:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} is no part of a graph or plan")


_PLAIN = {("collections", "OrderedDict"), ("copyreg", "_reconstructor"), ("builtins", "object"), ("builtins", "slice")}


def _reduce_array(array: np.ndarray[Any, Any]) -> Any:
    place = place_of(array)
    return array.__reduce_ex__(5) if place is None else place


def place_of(array: np.ndarray[Any, Any]) -> tuple[Any, tuple[Any, ...]] | None:
    """How a pickler writes an array that lies in a mapped file; None for others, and for small ones."""
    found = file_of(array) if array.nbytes >= MIN_MAPPED else None
    if found is None:
        return None
    path, identity, offset = found
    return _mapped_array, (path, tuple(identity), offset, array.dtype, array.shape, array.strides)


def _mapped_array(
    path: str,
    identity: tuple[int, int, int, int],
    offset: int,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    strides: tuple[int, ...],
) -> np.ndarray[Any, Any]:
    try:
        mapped = _map_known(path, FileIdentity(*identity))
    except (OSError, ValueError) as error:
        raise StaleError(f"{path}: {error}") from error
    return np.ndarray(shape, dtype, mapped, offset, strides)


def _map_known(path: str, identity: FileIdentity) -> Any:
    if identity_of(path) != identity:
        raise StaleError(f"{path} has changed")
    return map_file(path)
