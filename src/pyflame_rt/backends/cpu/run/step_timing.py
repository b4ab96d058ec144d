"""Runs with a clock: the driver notes the time around every step."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from pyflame_rt.backends.cpu.driver.native_driver import clock
from pyflame_rt.backends.cpu.lower.lowering import HostStep

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyflame_rt.backends.base import Timeline
    from pyflame_rt.backends.cpu.graph.cost_model import StepFacts
    from pyflame_rt.backends.cpu.memory.arena import Arena

__all__ = ["StepClock", "report"]


class StepClock:
    """Times of one run of an arena's steps; a context manager, because native plans point at its memory."""

    def __init__(self, arena: Arena) -> None:
        self._tracks = arena.tracks
        self._stamps: list[np.ndarray] = []
        self._hosts: list[tuple[int, int]] = []
        self._host_numbers = [i for i, step in enumerate(arena.lowered.steps) if isinstance(step, HostStep)]

    def __enter__(self) -> StepClock:
        for track in self._tracks if clock() else ():
            stamps = np.zeros((track.plan.nsteps + 1, 2), np.int64)
            self._stamps.append(stamps)
            track.plan.clock, track.plan.times = clock(), stamps.ctypes.data
        return self

    def __exit__(self, *_: object) -> None:
        for track in self._tracks:
            track.plan.times = None

    def host(self, begin: int) -> None:
        """A host step began at ``begin`` and ends now."""
        self._hosts.append((begin, time.perf_counter_ns()))

    def spans(self) -> Iterator[tuple[int, int, int, int]]:
        """Number of every step, the lane it ran in, its begin and its end by ``time.perf_counter_ns``."""
        for track, stamps in zip(self._tracks, self._stamps, strict=False):
            times = (stamps[:, 0] * 1_000_000_000 + stamps[:, 1]).tolist()
            for k, number in enumerate(track.numbers):
                if number is not None:
                    yield number, track.lane, times[k], times[k + 1]
        for number, (begin, end) in zip(self._host_numbers, self._hosts, strict=True):
            yield number, 0, begin, end


def report(clock: StepClock, facts: Sequence[StepFacts], timeline: Timeline) -> None:
    """Tell the timeline what every step took, and add it to the facts."""
    for number, lane, begin, end in sorted(clock.spans()):
        fact = facts[number]
        fact.measured(end - begin)
        timeline.step(fact, begin, end, lane)
