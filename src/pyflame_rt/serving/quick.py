"""Requests whose run takes less time than waking a thread for it: found by trying, and run by whoever asks."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from pyflame_rt.graph.errors import PyFlameRTError
from pyflame_rt.graph.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyflame_rt.session import InferenceSession

__all__ = ["QuickRuns"]

SHORT = 100e-6  # seconds: batching saves less, and a thread takes as long to wake
LONGEST = 2 * SHORT  # that one run counts for: one that others interrupted says nothing of the next
SEEN = 16  # requests of the same shapes before these are tried
TRIALS = 5
KEPT = 64  # kinds of requests that are remembered
KEEP = 0.9  # of a running mean when a value is added

Signature = tuple[tuple[str, tuple[int, ...], Any], ...]


@dataclass(slots=True)
class _Kind:
    """Requests of the same names, shapes and types."""

    seen: int = 0
    quick: bool = False
    seconds: float = 0.0


class QuickRuns:
    """Runs requests in the calling thread where that was measured to be quick; an event loop may do that.

    A kind of request that came often is tried in a thread of its own, several times, as it came. Where how long a run
    takes may depend on values, nothing is quick: the owner asks only for models of which that is not so.

    Args:
        session: the model.

    Example:
        >>> import numpy as np, pyflame_rt
        >>> g = pyflame_rt.Graph("g")
        >>> _ = g.add_input("x", ["N"]), g.add_node("n", "Neg", ["x"], ["y"]), g.add_output("y", ["N"])
        >>> runs = QuickRuns(pyflame_rt.InferenceSession(g))
        >>> runs.run({"x": np.ones(2, np.float32)}) is None  # it is not known to be quick
        True
    """

    def __init__(self, session: InferenceSession, clock: Callable[[], float] = time.perf_counter) -> None:
        self._session = session
        self._clock = clock
        self._kinds: dict[Signature, _Kind] = {}

    def run(self, inputs: Mapping[str, Any]) -> tuple[list[Any], float, float] | None:
        """The outputs, the seconds they took and when that was; None where they are not known to be quick.

        Raises:
            PyFlameRTError: The run failed.
        """
        kind = self._kinds.get(_signature(inputs))
        if kind is None or not kind.quick:
            return None
        begun = self._clock()
        outputs = self._session.run(None, inputs)
        now = self._clock()
        seconds = now - begun
        kind.seconds = KEEP * kind.seconds + (1 - KEEP) * min(seconds, LONGEST)
        if kind.seconds > SHORT:
            kind.quick, kind.seen = False, 0
        return outputs, seconds, now

    def saw(self, inputs: Mapping[str, Any]) -> threading.Thread | None:
        """Note a request that a batcher has run; one that came often is tried, by a thread that is returned."""
        signature = _signature(inputs)
        kind = self._kinds.get(signature)
        if kind is None:
            if len(self._kinds) >= KEPT:
                del self._kinds[next(iter(self._kinds))]
            kind = self._kinds[signature] = _Kind()
        kind.seen += 1
        if kind.seen != SEEN:  # once: what was slow then is not asked about again
            return None
        thread = threading.Thread(target=self._try, args=(kind, inputs), name="pyflame-rt-trial", daemon=True)
        thread.start()
        return thread

    def _try(self, kind: _Kind, inputs: Mapping[str, Any]) -> None:
        try:
            self._session.run(None, inputs)  # the first run of a shape prepares it
            times = [self._timed(inputs) for _ in range(TRIALS)]
        except PyFlameRTError:  # such as without a batch axis, which the batcher adds; or it is being closed
            return
        kind.seconds = min(times)
        kind.quick = kind.seconds < SHORT

    def _timed(self, inputs: Mapping[str, Any]) -> float:
        begun = self._clock()
        self._session.run(None, inputs)
        return self._clock() - begun


def _signature(inputs: Mapping[str, Any]) -> Signature:
    return tuple([(name, value.shape, value.dtype) for name, value in inputs.items()])
