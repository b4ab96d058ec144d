"""Runs with a clock: the driver notes the time around every step."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from pyflame_rt.backends.cpu.llvm.driver import Plan as Segment
from pyflame_rt.backends.cpu.llvm.driver import clock

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyflame_rt.backends.base import Timeline
    from pyflame_rt.backends.cpu.plan.arena import Arena
    from pyflame_rt.backends.cpu.plan.facts import StepFacts
    from pyflame_rt.backends.cpu.plan.lower import HostStep

__all__ = ["StepClock", "report"]


class StepClock:
    """Times of one run of an arena's segments; a context manager, because segments point at its memory."""

    def __init__(self, arena: Arena) -> None:
        self.segments: Sequence[Segment | HostStep] = arena.segments
        self._stamps: dict[int, np.ndarray] = {}
        self._hosts: dict[int, tuple[int, int]] = {}

    def __enter__(self) -> StepClock:
        for i, segment in enumerate(self.segments):
            if isinstance(segment, Segment) and clock():
                stamps = self._stamps[i] = np.zeros((segment.nsteps + 1, 2), np.int64)
                segment.clock, segment.times = clock(), stamps.ctypes.data
        return self

    def __exit__(self, *_: object) -> None:
        for segment in self.segments:
            if isinstance(segment, Segment):
                segment.times = None

    def around(self, index: int, begin: int) -> None:
        """A host step, or a segment without a clock of its own, began at ``begin`` and ends now."""
        self._hosts[index] = (begin, time.perf_counter_ns())

    def spans(self) -> Iterator[tuple[int, int]]:
        """Begin and end of every step, in order, by ``time.perf_counter_ns``."""
        for i, segment in enumerate(self.segments):
            stamps = self._stamps.get(i)
            if stamps is not None:
                times = stamps[:, 0] * 1_000_000_000 + stamps[:, 1]
                yield from zip(times[:-1].tolist(), times[1:].tolist(), strict=True)
            elif isinstance(segment, Segment):
                begin, end = self._hosts[i]
                each = (end - begin) // max(segment.nsteps, 1)  # no clock: the segment's time in equal parts
                yield from ((begin + k * each, begin + (k + 1) * each) for k in range(segment.nsteps))
            else:
                yield self._hosts[i]


def report(clock: StepClock, facts: Sequence[StepFacts], timeline: Timeline) -> None:
    """Tell the timeline what every step took, and add it to the facts."""
    for fact, (begin, end) in zip(facts, clock.spans(), strict=True):
        fact.ns += end - begin
        fact.runs += 1
        timeline.step(fact, begin, end)
