"""Weights packed by panels of columns; plans that need the same panels share them."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.backends.cpu.llvm.tiles.winograd import filter_matrix
from pyflame_rt.backends.cpu.onednn.primitive import aligned_empty
from pyflame_rt.graph.locks import new_lock

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["panels", "winograd_panels"]

Array = np.ndarray[Any, Any]


class _Packed(np.ndarray[Any, Any]):
    """Packed weights; ``source`` keeps the address they were packed from their own."""

    source: Any = None


_lock = new_lock()
_known: weakref.WeakValueDictionary[Any, _Packed] = weakref.WeakValueDictionary()


def _shared(array: Array, how: tuple[Any, ...], make: Callable[[], Array]) -> Array:
    key = (array.ctypes.data, array.shape, array.strides, *how)
    with _lock:
        found = _known.get(key)
        if found is None:
            found = make().view(_Packed)
            found.source = array
            _known[key] = found
        return found


def _empty(shape: tuple[int, ...]) -> Array:
    return aligned_empty(4 * int(np.prod(shape))).view(np.float32).reshape(shape)


def panels(matrix: Array, width: int) -> Array:
    """A matrix [depth, columns] as [panels, depth, width], zeros beyond the last column."""
    return _shared(matrix, ("panels", width), lambda: _panels(matrix, width))


def _panels(matrix: Array, width: int) -> Array:
    depth, columns = matrix.shape
    count, rest = divmod(columns, width)
    result = _empty((count + bool(rest), depth, width))
    whole = matrix[:, : count * width].reshape(depth, count, width) if count else None
    if whole is not None:
        np.copyto(result[:count], whole.transpose(1, 0, 2))
    if rest:
        result[count, :, :rest] = matrix[:, count * width :]
        result[count, :, rest:] = 0.0
    return result


def winograd_panels(weights: Array, edge: int, width: int) -> Array:
    """Filters [out, in, 3, 3] as [panels, products, in, width], transformed in float64."""
    return _shared(weights, ("winograd", edge, width), lambda: _winograd(weights, edge, width))


def _winograd(weights: Array, edge: int, width: int) -> Array:
    columns, depth = weights.shape[:2]
    spread = filter_matrix(edge)
    result = _empty((-(-columns // width), len(spread), depth, width))
    for panel, first in enumerate(range(0, columns, width)):
        part = weights[first : first + width].reshape(-1, depth * 9)
        given = len(part)
        taps = np.zeros((9, depth, width))
        taps[:, :, :given] = part.reshape(given, depth, 9).transpose(2, 1, 0)
        result[panel] = (spread @ taps.reshape(9, -1)).reshape(result.shape[1:])
    return result
