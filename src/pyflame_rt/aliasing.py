"""Results that belong to the caller: copies only where memory is shared with something else."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.array_utils import byte_bounds

from pyflame_rt.graph.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["AliasGuard"]


class AliasGuard:
    """Knows where the weights of a model lie, and copies results that lie there too.

    Example:
        >>> weight = np.ones(3)
        >>> guard = AliasGuard([weight])
        >>> guard.own([weight[1:]], [])[0].base is None
        True
    """

    __slots__ = ("_ends", "_owners", "_starts", "_weights")

    def __init__(self, weights: Iterable[np.ndarray[Any, Any]]) -> None:
        self._weights = [w for w in weights if w.size]
        self._owners = {id(w) for w in self._weights}
        spans = sorted(byte_bounds(w) for w in self._weights if w.dtype != object)
        self._starts = [low for low, _ in spans]
        self._ends = [high for _, high in spans]

    def own(self, results: Iterable[Any], feeds: Iterable[Any]) -> list[Any]:
        """The results, each in memory that nothing else uses, in C order and writable."""
        taken = [f for f in feeds if isinstance(f, np.ndarray)]
        return [self._own(result, taken) for result in results]

    def _own(self, result: Any, taken: list[np.ndarray[Any, Any]]) -> Any:
        if isinstance(result, list):
            return [self._own(item, taken) for item in result]
        if not isinstance(result, np.ndarray):
            return result
        if not result.flags.c_contiguous or not result.flags.writeable or self._shared(result, taken):
            result = _copied(result)
        taken.append(result)
        return result

    def _shared(self, result: np.ndarray[Any, Any], taken: list[np.ndarray[Any, Any]]) -> bool:
        if result.flags.owndata:  # memory of its own is shared only with itself and its views
            return id(result) in self._owners or any(result is o or o.base is result for o in taken)
        if not result.size:
            return False
        if any(np.may_share_memory(result, other) for other in taken):
            return True
        low, high = byte_bounds(result)
        i = bisect_right(self._starts, low)
        return (i > 0 and self._ends[i - 1] > low) or (i < len(self._starts) and self._starts[i] < high)


def _copied(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A copy; an array may be a broadcast view of far less memory than it stands for."""
    try:
        return np.array(array, order="C", copy=True, subok=False)
    except MemoryError as error:
        raise BackendError(f"an output of shape {list(array.shape)} does not fit into memory") from error
