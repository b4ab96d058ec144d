"""What a batcher did, in numbers."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import field
from typing import TYPE_CHECKING

from pyflame_rt.graph.records import dataclass

if TYPE_CHECKING:
    from pyflame_rt.batching.requests import InferenceResponse

__all__ = ["BatchStats", "Tally"]

RECENT = 4096  # latencies that percentiles are taken of


@dataclass(frozen=True, slots=True)
class BatchStats:
    """What a batcher did since it was made.

    Attributes:
        total_requests: that were taken.
        completed_requests: answered with outputs.
        failed_requests: answered with an error of their run.
        timed_out_requests: answered because time was up.
        cancelled_requests: taken back by their callers, or by ``stop(drain=False)``.
        dropped_requests: refused because the queue was full.
        total_batches: runs.
        total_rows: rows of requests in them.
        padded_rows: rows that were added to reach a preferred size.
        batch_sizes: how many runs of each size, padding included.
        avg_batch_size: rows of requests in a run, on average.
        avg_latency_us: from the call to the answer, of completed requests.
        avg_queue_time_us: from the call to the run.
        throughput_rps: completed requests a second, from the first call to the last answer.
        queue_depth: requests that wait now.

    Example:
        >>> BatchStats().avg_batch_size, BatchStats(recent_us=(1.0, 2.0, 9.0)).latency_us(0.5)
        (0.0, 2.0)
    """

    total_requests: int = 0
    completed_requests: int = 0
    failed_requests: int = 0
    timed_out_requests: int = 0
    cancelled_requests: int = 0
    dropped_requests: int = 0
    total_batches: int = 0
    total_rows: int = 0
    padded_rows: int = 0
    batch_sizes: dict[int, int] = field(default_factory=dict)
    avg_batch_size: float = 0.0
    avg_latency_us: float = 0.0
    avg_queue_time_us: float = 0.0
    throughput_rps: float = 0.0
    queue_depth: int = 0
    recent_us: tuple[float, ...] = ()

    def latency_us(self, quantile: float) -> float:
        """A quantile of the latencies of recent requests, 0.5 for the median; 0.0 when there were none."""
        if not self.recent_us:
            return 0.0
        ordered = sorted(self.recent_us)
        return ordered[min(int(quantile * len(ordered)), len(ordered) - 1)]


class Tally:
    """Counts what happens. Not safe with threads: its owner has a lock."""

    def __init__(self) -> None:
        self.requests = self.dropped = self.completed = self.batches = self.rows = self.padded = 0
        self.ended: Counter[str] = Counter()  # requests without outputs, by kind
        self.sizes: Counter[int] = Counter()
        self._latency = self._queued = 0.0
        self._recent: deque[float] = deque(maxlen=RECENT)
        self._first: float | None = None
        self._last = 0.0

    def came(self, now: float) -> None:
        """A request was taken."""
        self.requests += 1
        if self._first is None:
            self._first = now

    def ran(self, rows: int, size: int) -> None:
        """A run was made."""
        self.batches += 1
        self.rows += rows
        self.padded += size - rows
        self.sizes[size] += 1

    def answered(self, response: InferenceResponse, now: float) -> None:
        """A request was answered with outputs."""
        self.completed += 1
        self._latency += response.latency_us
        self._queued += response.queue_time_us
        self._recent.append(response.latency_us)
        self._last = now

    def alone(self, rows: int, latency_us: float, now: float) -> None:
        """A request came, was run by its caller and answered."""
        self.requests += 1
        if self._first is None:
            self._first = now
        self.batches += 1
        self.rows += rows
        self.sizes[rows] += 1
        self.completed += 1
        self._latency += latency_us
        self._recent.append(latency_us)
        self._last = now

    def stats(self, depth: int) -> BatchStats:
        """As of now."""
        done = max(self.completed, 1)
        span = 0.0 if self._first is None else self._last - self._first
        return BatchStats(
            total_requests=self.requests,
            completed_requests=self.completed,
            failed_requests=self.ended["failed"],
            timed_out_requests=self.ended["timed out"],
            cancelled_requests=self.ended["cancelled"],
            dropped_requests=self.dropped,
            total_batches=self.batches,
            total_rows=self.rows,
            padded_rows=self.padded,
            batch_sizes=dict(sorted(self.sizes.items())),
            avg_batch_size=self.rows / max(self.batches, 1),
            avg_latency_us=self._latency / done,
            avg_queue_time_us=self._queued / done,
            throughput_rps=self.completed / span if span > 0 else 0.0,
            queue_depth=depth,
            recent_us=tuple(self._recent),
        )
