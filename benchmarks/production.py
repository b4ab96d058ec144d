"""What must hold of batching and memory in production: throughput, latency, fairness, answers, allocations.

usage: python benchmarks/production.py [--filter REGEX] [--quick] [--callers 64]

Prints a line for each bound and ends with status 1 where one is not kept. Figures mean something on a quiet machine
only; `--quick` takes small models and few requests, to see that it works.
"""

from __future__ import annotations

import argparse
import gc
import queue
import random
import re
import statistics
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from zoo import language, vision

import pyflame_rt
from pyflame_rt.batching import BatchConfig, DynamicBatcher
from pyflame_rt.memory import global_pool

if TYPE_CHECKING:
    import concurrent.futures
    from collections.abc import Callable, Iterator, Sequence

SIZES = [1, 2, 4, 8, 16, 32]
BUCKETS = [16, 32, 48, 64, 96, 128]
Feed = dict[str, np.ndarray]


@dataclass
class Result:
    """A figure and its bound."""

    name: str
    figure: float
    bound: float
    at_least: bool
    note: str = ""

    @property
    def kept(self) -> bool:
        """Whether the bound holds."""
        return self.figure >= self.bound if self.at_least else self.figure <= self.bound

    def __str__(self) -> str:
        sign = ">=" if self.at_least else "<="
        verdict = "ok  " if self.kept else "FAIL"
        return f"{verdict} {self.name:42} {self.figure:10.4g} {sign} {self.bound:<8.4g} {self.note}"


@dataclass
class Model:
    """A session, requests of one row for it, and what hand-made batches of them reach."""

    name: str
    session: pyflame_rt.InferenceSession
    requests: list[Feed]
    config: BatchConfig
    seconds: dict[int, float] = field(default_factory=dict)  # of a run, by rows
    rate: float = 0.0  # rows a second in batches of the best size
    best: int = 1


# ---------------------------------------------------------------------- models


def resnet(quick: bool, count: int) -> Model:
    """Images of one size."""
    size = 32 if quick else 224
    built = vision.resnet("resnet18", (1, 1) if quick else (2, 2, 2, 2), bottleneck=False, size=size)
    graph = _graph(built)
    graph.inputs[0].shape = ["batch", 3, size, size]
    graph.outputs[0].shape = ["batch", 1000]
    session = pyflame_rt.InferenceSession(graph, pyflame_rt.SessionOptions(plan_cache_size=64))
    name = graph.inputs[0].name
    rng = np.random.default_rng(0)
    pictures = [rng.standard_normal((1, 3, size, size)).astype(np.float32) for _ in range(16)]
    return Model("resnet18", session, [{name: pictures[i % 16]} for i in range(count)], _config())


def minilm(quick: bool, count: int) -> Model:
    """Sentences of 16 to 128 tokens."""
    layers, width = (1, 48) if quick else (6, 384)
    built = language.encoder("minilm", width=width, layers=layers, heads=12, words=3000, length=128)
    session = pyflame_rt.InferenceSession(_graph(built), pyflame_rt.SessionOptions(plan_cache_size=64))
    rng = np.random.default_rng(0)
    requests = []
    for length in rng.integers(16, 129, count):
        ids = rng.integers(0, 3000, (1, length))
        requests.append({"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)})
    return Model("minilm", session, requests, _config(length_buckets=BUCKETS))


def _graph(built: Any) -> pyflame_rt.Graph:
    with tempfile.TemporaryDirectory() as folder:
        return pyflame_rt.InferenceSession(built.save(Path(folder))).graph().copy()


def _config(**settings: Any) -> BatchConfig:
    return BatchConfig(max_batch_size=32, preferred_sizes=SIZES, queue_capacity=100_000, **settings)


def measure_by_hand(model: Model) -> None:
    """What sorted, hand-made batches of each size reach; the best of them is what the batcher is held to."""
    layout = DynamicBatcher(model.session, model.config).layout
    ordered = sorted((layout.read(feed) for feed in model.requests), key=lambda rows: rows.length)
    from pyflame_rt.batching.layout import Piece

    for size in SIZES:
        groups = [ordered[i : i + size] for i in range(0, len(ordered) - size + 1, size)]
        some = groups[:: max(len(groups) // 64, 1)]  # of all lengths alike
        feeds = [layout.gather([Piece(r, 0, 1) for r in g], size, max(r.bucket for r in g)) for g in some]
        for feed in feeds:
            model.session.run(None, feed)
        started = time.perf_counter()
        for feed in feeds:
            model.session.run(None, feed)
        spent = time.perf_counter() - started
        model.seconds[size] = spent / len(feeds)
        if size * len(feeds) / spent > model.rate:
            model.rate, model.best = size * len(feeds) / spent, size


# ---------------------------------------------------------------------- batching


def closed_loop(batcher: DynamicBatcher, model: Model, callers: int) -> tuple[float, list[int]]:
    """Callers that ask again as soon as they are answered: requests a second, and how many each had answered."""
    todo: queue.SimpleQueue[Feed] = queue.SimpleQueue()
    for feed in model.requests:
        todo.put(feed)
    served = [0] * callers

    def ask(number: int) -> None:
        while True:
            try:
                feed = todo.get_nowait()
            except queue.Empty:
                return
            batcher.infer(feed)
            served[number] += 1

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(callers)]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(model.requests) / (time.perf_counter() - started), served


def open_loop(batcher: DynamicBatcher, model: Model, rate: float, count: int) -> list[float]:
    """Requests at random times, so many a second on average: seconds that each took."""
    rng = random.Random(1)
    futures = []
    due = time.perf_counter()
    for i in range(count):
        due += rng.expovariate(rate)
        time.sleep(max(due - time.perf_counter(), 0.0))
        futures.append(batcher.submit(model.requests[i % len(model.requests)]))
    return sorted(future.result().latency_us / 1e6 for future in futures)


def check_batcher(make: Callable[[bool, int], Model], quick: bool, callers: int) -> Iterator[Result]:
    """Throughput, latency at low and at high load, and shares."""
    model = make(quick, 256 if quick else 2048)
    measure_by_hand(model)
    batcher = DynamicBatcher(model.session, model.config)
    batcher.warmup(model.requests[-1])
    with batcher:
        closed_loop(batcher, model, callers)
        rate, served = closed_loop(batcher, model, callers)
        stats = batcher.get_stats()
        note = f"{rate:.0f} of {model.rate:.0f} rows/s, {stats.avg_batch_size:.1f} rows a run"
        yield Result(f"{model.name}: throughput / by hand", rate / model.rate, 0.95, at_least=True, note=note)
        jain = sum(served) ** 2 / (len(served) * sum(n * n for n in served))
        yield Result(f"{model.name}: Jain's index of callers", jain, 0.95, at_least=True)
        bare = _bare(model, 30 if quick else 200)
        alone = open_loop(batcher, model, 0.1 / bare, 30 if quick else 200)
        note = f"{statistics.median(alone) * 1e3:.2f} ms, run alone {bare * 1e3:.2f} ms"
        yield Result(
            f"{model.name}: p50 at 10 % load", statistics.median(alone) / bare, 1.05, at_least=False, note=note
        )
        busy = open_loop(batcher, model, 0.8 * model.rate, 100 if quick else 2000)
        p99, batch = busy[int(0.99 * len(busy))], model.seconds[model.best]
        note = f"{p99 * 1e3:.1f} ms, a run of {model.best} takes {batch * 1e3:.1f} ms"
        yield Result(f"{model.name}: p99 at 80 % load, in runs", p99 / batch, 3.0, at_least=False, note=note)


def _bare(model: Model, count: int) -> float:
    """Median seconds of a run of one request, padded as the batcher pads it, at random times at a tenth of the load."""
    layout = DynamicBatcher(model.session, model.config).layout
    from pyflame_rt.batching.layout import Piece

    rng = random.Random(1)
    times = []
    for feed in model.requests[:count]:
        rows = layout.read(feed)
        ready = layout.gather([Piece(rows, 0, 1)], 1, rows.bucket)
        time.sleep(rng.expovariate(0.1 / model.seconds[1]))
        started = time.perf_counter()
        model.session.run(None, ready)
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def check_answers(quick: bool) -> Iterator[Result]:
    """Random cancels, timeouts and failures: every request is answered exactly once, and right."""
    graph = pyflame_rt.Graph("lookup")
    graph.add_input("i", ["N"], pyflame_rt.DType.Int64)
    graph.add_initializer("table", 3 * np.arange(1000, dtype=np.float32))
    graph.add_node("gather", "Gather", ["table", "i"], ["y"])
    graph.add_output("y", ["N"])
    count, answered, wrong = 2000 if quick else 100_000, [0], [0]
    lock = threading.Lock()

    def told(future: concurrent.futures.Future[Any], values: np.ndarray) -> None:
        right = True
        if not future.cancelled() and future.result().success:
            right = np.array_equal(future.result()["y"], 3 * values)
        with lock:
            answered[0] += 1
            wrong[0] += not right

    def ask(seed: int) -> None:
        rng = random.Random(seed)
        recent: list[Any] = []
        for _ in range(count // 8):
            # An index out of range makes a whole run fail.
            values = np.array(
                [rng.randrange(1000) if rng.random() > 0.02 else 5000 for _ in range(rng.choice([1, 1, 3]))]
            )
            try:
                future = batcher.submit({"i": values}, timeout_ms=rng.choice([None, None, 0.05, 1e6]))
            except pyflame_rt.RunTimeoutError:  # the queue was full for so long
                with lock:
                    answered[0] += 1
                continue
            future.add_done_callback(lambda done, values=values: told(done, values))
            recent = [*recent[-3:], future]
            if rng.random() < 0.2:
                rng.choice(recent).cancel()

    config = BatchConfig(max_batch_size=16, preferred_sizes=[1, 4, 16], num_workers=2, when_full="wait")
    with DynamicBatcher(pyflame_rt.InferenceSession(graph), config) as batcher:
        threads = [threading.Thread(target=ask, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    stats = batcher.get_stats()
    note = f"{stats.completed_requests} done, {stats.failed_requests} failed, {stats.timed_out_requests} late"
    note += f", {stats.cancelled_requests} cancelled"
    yield Result("answers: requests not answered once", abs(answered[0] - count), 0, at_least=False, note=note)
    yield Result("answers: wrong", wrong[0], 0, at_least=False)


# ---------------------------------------------------------------------- memory


def check_pool(quick: bool) -> Iterator[Result]:
    """Steady runs take nothing from the system; many shapes end with the memory of few; limits hold."""
    small = [vision.mlp, lambda: language.encoder("e", width=48, layers=1, heads=4, words=99, length=64)]
    large = [lambda: vision.resnet("r", (2, 2, 2, 2), bottleneck=False), vision.mobilenet_v2, vision.unet]
    worst = 0
    for build in small if quick else [*small, *large]:
        built = build()
        session = pyflame_rt.InferenceSession(_graph(built))
        for _ in range(5):
            session.run(None, built.feeds)
        before = global_pool().get_stats().system_allocations
        for _ in range(50):
            session.run(None, built.feeds)
        worst = max(worst, global_pool().get_stats().system_allocations - before)
    yield Result("pool: allocations in steady state", worst, 0, at_least=False)
    yield _many_shapes(quick)
    yield from _limits()


def _many_shapes(quick: bool) -> Result:
    built = language.encoder("e", width=48, layers=1, heads=4, words=99, length=64)
    session = pyflame_rt.InferenceSession(_graph(built))
    runs, early = 300 if quick else 10_000, 0
    for i in range(runs):
        length = 1 + i * 7 % 100
        ids = np.zeros((1, length), np.int64)
        session.run(None, {"input_ids": ids, "attention_mask": ids + 1, "token_type_ids": ids})
        if i == runs // 20:
            gc.collect()
            early = _resident()
    gc.collect()
    return Result("pool: memory after many shapes / few", _resident() / early, 1.05, at_least=False)


def _resident() -> int:
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * 4096


def _limits() -> Iterator[Result]:
    graph, x = pyflame_rt.Graph("products"), np.ones((600, 512), np.float32)
    graph.add_input("x", ["N", 512])
    for i, name in enumerate(("h", "y")):
        graph.add_initializer(f"w{i}", np.full((512, 512), 1 / 512, np.float32))
        graph.add_node(f"n{i}", "MatMul", ["x" if not i else "h", f"w{i}"], [name])
    graph.add_output("y", ["N", 512])
    free = pyflame_rt.InferenceSession(graph)
    kept = free.run(None, {"x": x})
    held = free.memory_stats()
    need = held["arenas"] + held["packed_bytes"] + held["output_bytes"]
    del kept
    for part, wanted in ((1.02, 1), (0.98, 0)):
        session = pyflame_rt.InferenceSession(graph, pyflame_rt.SessionOptions(memory_limit=int(need * part)))
        try:
            session.run(None, {"x": x})
            ran = 1
        except pyflame_rt.MemoryLimitError:
            ran = 0
        yield Result(f"memory_limit of {part:.0%} of the need holds", int(ran == wanted), 1, at_least=True)


CHECKS: dict[str, Callable[[bool, int], Iterator[Result]]] = {
    "resnet18": lambda quick, callers: check_batcher(resnet, quick, callers),
    "minilm": lambda quick, callers: check_batcher(minilm, quick, callers),
    "answers": lambda quick, _: check_answers(quick),
    "pool": lambda quick, _: check_pool(quick),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Check what was asked for; 1 where a bound is not kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--filter", default="", help="a regular expression on the names: " + ", ".join(CHECKS))
    parser.add_argument("--quick", action="store_true", help="small models, few requests")
    parser.add_argument("--callers", type=int, default=64)
    options = parser.parse_args(arguments)
    failed = 0
    for name, check in CHECKS.items():
        if re.search(options.filter, name):
            for result in check(options.quick, options.callers):
                print(result, flush=True)
                failed += not result.kept
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
