"""Arrays that lie in files: a document names their place, not their bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.cache.encoding import DecodeError, Kinded
from pyflame_rt.cache.sources import contents_of
from pyflame_rt.cache.store import current_store, place_in_store
from pyflame_rt.graph.dtype import DType
from pyflame_rt.graph.errors import DTypeMismatchError, PyFlameRTError
from pyflame_rt.graph.pages import FileIdentity, file_of, verified

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyflame_rt.cache.store import MappedEntry, Store

__all__ = ["MAKERS", "held_makers", "makers_beside", "place_of"]

# Smaller arrays are written where they are used.
MIN_MAPPED = 256
# Smaller ones are verified faster than another thread is asked to.
MIN_BESIDE = 1 << 18


def place_of(array: np.ndarray[Any, Any], store: Store) -> Kinded | None:
    """What stands for an array that lies in a model's file or in an entry of the store; None for others."""
    found = file_of(array) if array.nbytes >= MIN_MAPPED else None
    if found is None:
        return None
    try:
        form = (DType.of(array.dtype).label, list(array.shape), list(array.strides))
    except DTypeMismatchError:
        return None
    entry = place_in_store(array, store)
    if entry is not None:
        return Kinded("entry", (*entry, *form))
    path, identity, offset = found
    return Kinded("file", (path, list(identity), offset, *form))


def makers_beside(do: Callable[[Callable[[], None]], None]) -> dict[str, Callable[..., Any]]:
    """``MAKERS`` whose large arrays are verified by what is given to ``do``, perhaps later and by another thread.

    It raises a DecodeError for one that is damaged. Nothing may be computed from the document before all of it is done.
    """
    store = current_store()
    opened: dict[str, MappedEntry] = {}

    def in_entry(place: str, offset: int, *form: Any) -> np.ndarray[Any, Any]:
        entry = opened.get(place)
        if entry is None:
            entry = opened[place] = _entry(place, store)
            if entry.contents.nbytes < MIN_BESIDE:
                _verify(place, entry)
            else:
                do(lambda: _verify(place, entry))
        return _view(entry.contents, offset, *form)

    def in_file(path: str, *place: Any) -> np.ndarray[Any, Any]:
        array = _in_file(path, *place)
        if array.nbytes < MIN_BESIDE:
            return _verified(array)
        do(lambda: _refuse_damaged(array, path))
        return array

    return {"entry": in_entry, "file": in_file}


def held_makers(contents: Mapping[Any, memoryview]) -> dict[str, Callable[..., Any]]:
    """Arrays in the contents of model files, by path and identity; not verified: whoever uses one does so."""
    return {"file": lambda path, identity, *form: _view(contents[path, tuple(identity)], *form)}


def _in_entry(place: str, offset: int, *form: Any) -> np.ndarray[Any, Any]:
    entry = _entry(place, current_store())
    _verify(place, entry)
    return _view(entry.contents, offset, *form)


def _entry(place: str, store: Store) -> MappedEntry:
    found = store.open_place(place)
    if found is None:
        raise DecodeError(f"the entry {place} is gone")
    return found


def _verify(place: str, entry: MappedEntry) -> None:
    if not entry.verify():
        raise DecodeError(f"the entry {place} is damaged")


def _in_file(
    path: str, identity: list[int], offset: int, label: str, shape: list[int], strides: list[int]
) -> np.ndarray[Any, Any]:
    """The array as it lies in memory or in our copy of the file, where it is not verified."""
    try:
        contents = contents_of(path, FileIdentity(*identity))
    except (OSError, ValueError, PyFlameRTError) as error:
        raise DecodeError(f"{path}: {error}") from error
    if contents is None:
        raise DecodeError(f"{path} has changed")
    return _view(contents, offset, label, shape, strides)


def _in_file_verified(*place: Any) -> np.ndarray[Any, Any]:
    return _verified(_in_file(*place))


def _refuse_damaged(array: np.ndarray[Any, Any], path: str) -> None:
    if _verified(array) is not array:
        raise DecodeError(f"our copy of {path} is damaged")


def _verified(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    try:
        return verified(array)
    except PyFlameRTError as error:
        raise DecodeError(str(error)) from error


def _view(memory: Any, offset: int, label: str, shape: list[int], strides: list[int]) -> np.ndarray[Any, Any]:
    return np.ndarray(tuple(shape), _TYPES[label], memory, offset, tuple(strides))


_TYPES = {dtype.label: dtype.numpy for dtype in DType if dtype is not DType.String}
MAKERS: dict[str, Callable[..., Any]] = {"entry": _in_entry, "file": _in_file_verified}
