"""A batcher's decisions in virtual time: its own queue, costs and window, runs that take what a table says."""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass, field
from types import SimpleNamespace

from pyflame_rt.batching.queueing import FairQueue, chosen_rows
from pyflame_rt.batching.window import Costs, Window

SIZES = [1, 2, 4, 8, 16, 32]
BUCKETS = [16, 32, 48, 64, 96, 128]
BESIDE_RUN, BESIDE_ROW = 2e-4, 5e-5  # seconds that a run and each of its rows take outside of the engine

# Seconds of resnet18's runs by rows, half of what one thread of the processor takes.
IMAGES = {1: 9.5e-3, 2: 17.7e-3, 4: 34.9e-3, 8: 68.8e-3, 16: 137e-3, 32: 267e-3}


def images(_length: int, size: int) -> float:
    return IMAGES[size]


def sentences(length: int, size: int) -> float:
    """Of minilm's runs: a fixed part, so much a token, and 3 % more where a run outgrows the caches."""
    tokens = length * size
    return (0.7 + 0.0495 * tokens * (1 + 0.03 * min(max((tokens - 600) / 1000, 0), 1))) / 1e3


def bucket(length: int) -> int:
    return next((bucket for bucket in BUCKETS if bucket >= length), length) if length else 0


def by_hand(seconds, lengths: list[int]) -> tuple[float, float]:
    """Rows a second in sorted batches of the best size, and the mean seconds of such a batch."""
    rates, ordered = {}, sorted(lengths)
    for size in SIZES:
        groups = [ordered[i : i + size] for i in range(0, len(ordered) - size + 1, size)]
        rates[size] = size * len(groups) / sum(seconds(bucket(group[-1]), size) for group in groups)
    best = max(rates, key=rates.__getitem__)
    return rates[best], best / rates[best]


@dataclass
class Scene:
    """Requests of one row, each of some length, and a batcher with one worker."""

    seconds: object
    lengths: list[int]
    noise: float = 0.0
    now: float = 0.0
    taken: list[float] = field(default_factory=list)  # seconds that requests took
    waits: dict[int, float] = field(default_factory=dict)  # longest of them, by length
    runs: list[tuple[int, int, float]] = field(default_factory=list)  # rows, size and seconds

    def __post_init__(self) -> None:
        self.queue, self.costs, self.window = FairQueue(128), Costs(SIZES), Window(0.001, 1)
        self.rng = random.Random(7)
        for length in {bucket(n) for n in self.lengths}:
            for size in SIZES:
                for _ in range(3):
                    self.costs.saw(size, length, self._took(length, size))

    def _took(self, length: int, size: int) -> float:
        return self.seconds(length, size) * (1 + self.rng.expovariate(1 / self.noise) if self.noise else 1)

    def callers(self, count: int) -> list[int]:
        """Each asks again as soon as it is answered, until all lengths were asked for: answers of each."""
        todo, served = list(self.lengths), [0] * count

        def more(caller: int | None) -> tuple[float, int] | None:
            if caller is not None:
                served[caller] += 1
            return (self.now + 1e-4, todo.pop()) if todo else None

        first = [(0.0, number, number, todo.pop()) for number in range(min(count, len(todo)))]
        self._play(first, more)
        return served

    def arrivals(self, rate: float, seed: int) -> None:
        """Requests at random times, so many a second on average, whoever was answered."""
        rng, due, events = random.Random(seed), 0.0, []
        for number, length in enumerate(self.lengths):
            due += rng.expovariate(rate)
            events.append((due, number, 0, length))
        self._play(events, lambda _: None)

    def _play(self, events: list[tuple[float, int, int, int]], more) -> None:
        heapq.heapify(events)
        number, run = len(events), None
        while events or run or len(self.queue):
            again = None if run else self._begin()
            if isinstance(again, tuple):
                run = again
                continue
            times = [run[0]] if run else [] if again is None else [again]
            self.now = max(self.now, min(times + ([events[0][0]] if events else [])))
            while events and events[0][0] <= self.now:
                _, _, caller, length = heapq.heappop(events)
                self._come(caller, length)
            if run and run[0] <= self.now:
                for ticket in self._end(*run):
                    if (next_one := more(ticket.caller)) is not None:
                        number += 1
                        heapq.heappush(events, (next_one[0], number, ticket.caller, next_one[1]))
                run = None

    def _come(self, caller: int, length: int) -> None:
        rows = SimpleNamespace(count=1, family=(), bucket=bucket(length), length=length)
        ticket = SimpleNamespace(rows=rows, waiting=1, caller=caller, priority=0, submitted=self.now)
        self.queue.push(ticket)
        self.window.came(self.now, 1)

    def _begin(self) -> tuple | float | None:
        """A run with its end, the time to look again, or None where nothing waits."""
        found = self.queue.first()
        if found is None:
            return None
        group, head = found
        waiting = self.queue.rows(group)
        hold = 0.0
        if waiting < SIZES[-1]:
            hold = self.window.hold(self.now, head.submitted, waiting, group[1], self.costs)
        if hold > 0:
            return self.now + hold
        taken, size = chosen_rows(self.queue, self.costs, group, waiting, padding=True)
        took = self._took(group[1], size)
        return self.now + took + BESIDE_RUN + BESIDE_ROW * len(taken), [t for t, _, _ in taken], size, group[1], took

    def _end(self, _: float, tickets: list, size: int, length: int, took: float) -> list:
        self.costs.saw(size, length, took)
        self.window.answered(self.now, took)
        self.runs.append((len(tickets), size, took))
        for ticket in tickets:
            spent = self.now - ticket.submitted
            self.taken.append(spent)
            self.waits[ticket.rows.length] = max(self.waits.get(ticket.rows.length, 0.0), spent)
        return tickets

    def p99(self) -> float:
        return sorted(self.taken)[int(0.99 * len(self.taken))]
