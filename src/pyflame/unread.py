"""Tensors that are written in place again and again, and read by nobody: an average of weights, until it is used.

What their contents are computed from would stay in memory all that time, so they are evaluated now and then.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from pyflame.lazy import modes

if TYPE_CHECKING:
    from pyflame.lazy import Val

__all__ = ["AGAIN_AND_AGAIN", "ENOUGH_BYTES", "ENOUGH_WRITES", "Unread", "unread"]

# Contents count once they were written so often; a layer that works in place writes what it was given once or twice.
AGAIN_AND_AGAIN = 8
ENOUGH_WRITES = 1_000
ENOUGH_BYTES = 64 << 20
# A write may be one of many of a step, which are best evaluated together: there it takes more of them.
_PATIENCE = 4


class Unread:
    """Writes over contents that were not evaluated themselves.

    Attributes:
        depths: how often in a row contents were written over pending ones.
        writes: how many such writes count.
        held: how many bytes those wrote.
    """

    __slots__ = ("_most", "depths", "held", "writes")

    def __init__(self) -> None:
        self.depths: dict[weakref.ref[Val], int] = {}
        self.writes = self.held = 0
        self._most = ENOUGH_WRITES

    def add(self, old: Val, value: Val) -> None:
        """Contents were written over others that are pending."""
        if modes.tracer is not None or value.array is not None or (value.needs_grad and value.leaf is None):
            return
        depths = self.depths
        depth = depths[weakref.ref(value)] = depths.get(weakref.ref(old), 0) + 1
        if depth >= AGAIN_AND_AGAIN:
            self.writes += 1
            self.held += value.spec.numel * value.spec.dtype.itemsize
            if self.enough(_PATIENCE):
                from pyflame.evaluation import evaluate

                evaluate(self.take())
        elif len(depths) > self._most:
            self._forget()

    def enough(self, times: int = 1) -> bool:
        """Whether they are so many, or so large, that it is time to evaluate them."""
        return self.held > times * ENOUGH_BYTES or self.writes >= times * ENOUGH_WRITES

    def take(self) -> list[Val]:
        """What was written often and belongs to a tensor; counting begins anew."""
        self._forget()
        self.writes = self.held = 0
        found = [(seen(), depth) for seen, depth in list(self.depths.items())]
        return [v for v, depth in found if v is not None and depth >= AGAIN_AND_AGAIN]

    def _forget(self) -> None:
        """Leave out what was evaluated, or written over."""
        kept = {}
        for seen, depth in list(self.depths.items()):
            value = seen()
            if value is not None and value.array is None and value.handles:
                kept[seen] = depth
        self.depths = kept
        self._most = 2 * len(kept) + ENOUGH_WRITES


unread = Unread()
