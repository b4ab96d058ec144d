"""Latency against load: closed-loop clients, more of them at each point, through a batcher."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.batching.batcher import DynamicBatcher
from pyflame_rt.graph.errors import InputError
from pyflame_rt.graph.named_arguments import names_arguments
from pyflame_rt.graph.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyflame_rt.batching.config import BatchConfig
    from pyflame_rt.session import InferenceSession

__all__ = ["LoadPoint", "load_curve"]


@dataclass(frozen=True, slots=True)
class LoadPoint:
    """What so many clients saw, each of which asks again as soon as it is answered.

    Attributes:
        clients: how many.
        requests: that were answered.
        requests_per_second: of all clients together.
        p50_ms: half of the requests took at most this.
        p99_ms: 99 of 100 did.
        rows_per_run: how many rows were run together, on average.
    """

    clients: int
    requests: int
    requests_per_second: float
    p50_ms: float
    p99_ms: float
    rows_per_run: float


@names_arguments
def load_curve(
    session: InferenceSession,
    feed: Mapping[str, Any],
    clients: int,
    *,
    seconds: float = 1.0,
    config: BatchConfig | None = None,
    progress: Callable[[str], object] = str,
) -> list[LoadPoint]:
    """Ask with 1, 2, 4, ... and so many clients at once, for so many seconds each.

    Args:
        session: the model.
        feed: what every request brings.
        clients: the most at once.
        seconds: of a point, after every size of a run was met once.
        config: of the batcher.
        progress: told what is being measured.

    Raises:
        InputError: ``clients`` or ``seconds`` is below what can be measured, or rows cannot be put together.

    Example:
        >>> import pyflame_rt
        >>> g = pyflame_rt.Graph("g")
        >>> _ = g.add_input("x", ["N", 2]), g.add_node("n", "Neg", ["x"], ["y"]), g.add_output("y", ["N", 2])
        >>> points = load_curve(pyflame_rt.InferenceSession(g), {"x": np.ones((1, 2), np.float32)}, 2, seconds=0.02)
        >>> [point.clients for point in points], all(point.p50_ms <= point.p99_ms for point in points)
        ([1, 2], True)
    """
    if clients < 1 or not 0 < seconds < float("inf"):
        raise InputError(f"clients must be at least 1 and seconds above 0, got {clients} and {seconds}")
    points = []
    with DynamicBatcher(session, config) as batcher:
        progress("preparing runs of every size")
        batcher.warmup(feed, [batcher.layout.read(feed).length])
        for count in _counts(clients):
            progress(f"{count} client{'s' if count > 1 else ''}")
            points.append(_point(batcher, feed, count, seconds))
    return points


def _counts(most: int) -> list[int]:
    return sorted({2**i for i in range(most.bit_length()) if 2**i <= most} | {most})


def _point(batcher: DynamicBatcher, feed: Mapping[str, Any], clients: int, seconds: float) -> LoadPoint:
    before, failures = batcher.get_stats(), []
    taken: list[list[float]] = [[] for _ in range(clients)]
    together = threading.Barrier(clients + 1)

    def ask(number: int) -> None:
        try:
            together.wait()
        except threading.BrokenBarrierError:
            return
        end, now = time.perf_counter() + seconds, time.perf_counter()
        try:
            while now < end:
                begin = now
                batcher.infer(feed, caller=number)
                now = time.perf_counter()
                taken[number].append(now - begin)
        except Exception as error:  # noqa: BLE001 - raised again by whoever waits
            failures.append(error)

    threads = [threading.Thread(target=ask, args=(number,), daemon=True) for number in range(clients)]
    try:
        for thread in threads:
            thread.start()
    except RuntimeError as error:
        together.abort()  # those that wait for the others end
        raise InputError(f"the system has no threads for {clients} clients: {error}") from error
    together.wait()
    begin = time.perf_counter()
    for thread in threads:
        thread.join()
    took = time.perf_counter() - begin
    if failures:
        raise failures[0]
    after, times = batcher.get_stats(), np.concatenate([np.asarray(each) for each in taken]) * 1e3
    runs = after.total_batches - before.total_batches
    rows = after.total_rows - before.total_rows
    p50, p99 = np.percentile(times, [50, 99])
    return LoadPoint(clients, len(times), len(times) / took, float(p50), float(p99), rows / max(runs, 1))
