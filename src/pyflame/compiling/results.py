"""Results of a replay, made before it runs: what is left to do after it is to hand them out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame.compiling.trees import unflatten
from pyflame.dtypes import to_dtype
from pyflame.lazy import Val, leaf
from pyflame.ops.core import Handle, wrap

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Results"]

# Results of at most so many bytes are made so many at once: after a long run nothing of Python is left in the caches,
# and many take little more time than one.
SMALL, AHEAD = 1 << 14, 32


class Results:
    """Makes results.

    Args:
        trace: what is replayed.
        makers: make arrays for the outputs.
        fresh: the outputs that get new ones.
        positions: where among the arguments each tensor is.

    Attributes:
        ready: results that were made ahead, each with the arrays its contents are to be written into.
        size: bytes of one.
    """

    __slots__ = ("_ahead", "_makers", "_number", "_positions", "_sources", "_structure", "ready", "size")

    def __init__(self, trace: Any, makers: Sequence[Callable[[], Any]], fresh: list[int], positions: list[int]) -> None:
        self._makers = [makers[i] for i in fresh]
        self._number = {out: k for k, out in enumerate(fresh)}
        self._sources: list[tuple[str, Any, Any, bool, bool]] = [
            (kind, i, trace.specs[i] if kind == "output" else None, needs and spent, spent)
            for (kind, i), needs, spent in zip(trace.results, trace.needs_grad, trace.spent, strict=True)
        ]
        self._structure, self._positions = trace.structure, positions
        self.size = sum(trace.specs[i].numel * trace.specs[i].dtype.itemsize for i in fresh)
        handed_on = any(kind == "argument" for kind, _ in trace.results)
        self._ahead = 1 if handed_on or self.size > SMALL else AHEAD
        self.ready: list[tuple[Any, list[Any]]] = []

    def make(self, arguments: tuple[Any, ...]) -> tuple[Any, list[Any]]:
        """A result with its arrays; some more for the next calls."""
        for _ in range(self._ahead - 1):
            self.ready.append(self.one(arguments))
        return self.one(arguments)

    def unused(self, result: Any, arrays: list[Any]) -> None:
        """A result was not needed after all."""
        if self._ahead > 1:
            self.ready.append((result, arrays))

    def one(self, arguments: tuple[Any, ...]) -> tuple[Any, list[Any]]:
        """A single result with its arrays."""
        arrays = [make() for make in self._makers]
        parts: list[Any] = []
        for kind, i, spec, needs, spent in self._sources:
            if kind == "output":
                value = Val(spec, None, 0, arrays[self._number[i]])
                value.needs_grad, value.spent = needs, spent
                parts.append(wrap(value))
            else:
                parts.append(_tensor(arguments[self._positions[i]]) if kind == "argument" else wrap(i))
        return unflatten(self._structure, iter(parts)), arrays


def _tensor(given: Any) -> Any:
    """An argument that is handed on."""
    return given if isinstance(given, Handle) else wrap(leaf(np.ascontiguousarray(given), to_dtype(given.dtype)))
