"""How the engine behaves where machines are not ideal: one core, a busy neighbour, forks, many threads, long use.

Prints one line for each figure, with the bound it should keep; ends with status 1 when one is not kept. See README.md.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import re
import statistics
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich.console import Console
from zoo import language, vision
from zoo.builder import Builder

import pyflame_rt

if TYPE_CHECKING:
    from collections.abc import Callable

THREADS = 2
MODELS: dict[str, Callable[[], Builder]] = {
    "mlp": vision.mlp,
    "convnet": lambda: vision.resnet("convnet", (1, 1, 1), bottleneck=False, size=112),
    "encoder": lambda: language.encoder("encoder", width=256, layers=3, heads=4, words=1000, length=128),
}
_fork = multiprocessing.get_context("fork")
_spawn = multiprocessing.get_context("spawn")


def session_of(name: str, threads: int = 0) -> tuple[pyflame_rt.InferenceSession, dict[str, np.ndarray]]:
    """A session and its feed."""
    made = MODELS[name]()
    options = pyflame_rt.SessionOptions(num_threads=threads)
    return pyflame_rt.InferenceSession(made.model().SerializeToString(), options), made.feeds


def once(session: Any, feed: dict[str, np.ndarray], seconds: float) -> float:
    """Median time of a run, over so many seconds."""
    times: list[float] = []
    while sum(times) < seconds or len(times) < 9:
        start = time.perf_counter()
        session.run(None, feed)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def in_process(context: Any, work: Callable[..., None], *args: Any, seconds: float = 120) -> Any:
    """The result of work in another process; an error when it hangs."""
    queue = context.Queue()
    child = context.Process(target=work, args=(queue, *args))
    child.start()
    try:
        return queue.get(timeout=seconds)
    finally:
        child.join(timeout=5)
        if child.is_alive():
            child.kill()
            child.join()


# ---------------------------------------------------------------------- one core


def _on_one_core(queue: Any, name: str, seconds: float) -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    single, feed = session_of(name, 1)
    default, _ = session_of(name)
    for session in (single, default):
        once(session, feed, seconds / 4)
    pairs = [(once(default, feed, seconds / 4), once(single, feed, seconds / 4)) for _ in range(5)]
    queue.put(statistics.median(a / b for a, b in pairs))


def one_core(name: str, seconds: float) -> float:
    """Default threads over one thread, on one core."""
    return in_process(_spawn, _on_one_core, name, seconds)


# ---------------------------------------------------------------------- a busy neighbour


def _spin(ready: Any) -> None:
    ready.set()
    while True:
        sum(range(10_000))


def neighbour(name: str, seconds: float) -> float:
    """Time beside a process that computes without end, over time without it."""
    session, feed = session_of(name, THREADS)
    once(session, feed, seconds / 4)
    ratios = []
    for _ in range(3):
        quiet = once(session, feed, seconds / 2)
        ready = _spawn.Event()
        busy = _spawn.Process(target=_spin, args=(ready,), daemon=True)
        busy.start()
        ready.wait(60)
        ratios.append(once(session, feed, seconds) / quiet)
        busy.kill()
        busy.join()
    return statistics.median(ratios)


# ---------------------------------------------------------------------- forks


def _forked(queue: Any, session: Any, feed: Any, wanted: Any, seconds: float) -> None:
    right = np.allclose(session.run(None, feed)[0], wanted, rtol=1e-4, atol=1e-4)
    once(session, feed, seconds / 4)
    queue.put((right, once(session, feed, seconds)))


def after_fork(name: str, seconds: float) -> float:
    """Time in a forked child over time in its parent; infinite when the answer is wrong."""
    session, feed = session_of(name, THREADS)
    wanted = session.run(None, feed)[0]
    once(session, feed, seconds / 4)
    ratios = []
    for _ in range(3):
        before = once(session, feed, seconds / 2)
        right, child = in_process(_fork, _forked, session, feed, wanted, seconds / 2)
        ratios.append(child / before if right else float("inf"))
    return statistics.median(ratios)


# ---------------------------------------------------------------------- several runs at once


def _throughput(session: Any, feed: Any, callers: int, seconds: float) -> float:
    done = [0] * callers
    stop = time.perf_counter() + seconds

    def work(k: int) -> None:
        while time.perf_counter() < stop:
            session.run(None, feed)
            done[k] += 1

    workers = [threading.Thread(target=work, args=(k,)) for k in range(callers)]
    start = time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return sum(done) / (time.perf_counter() - start)


def crowd(name: str, seconds: float) -> float:
    """Time of a run with one caller over that with eight at once, by throughput: below one, sharing pays."""
    session, feed = session_of(name, THREADS)
    once(session, feed, seconds / 4)
    pairs = [(_throughput(session, feed, 1, seconds / 2), _throughput(session, feed, 8, seconds / 2)) for _ in range(3)]
    return statistics.median(alone / many for alone, many in pairs)


def crowd_beside(name: str, seconds: float) -> float:
    """Time of a run with eight callers at once over onnxruntime's, by throughput."""
    import onnxruntime

    (session, feed), options = session_of(name, THREADS), onnxruntime.SessionOptions()
    options.intra_op_num_threads = THREADS
    data = MODELS[name]().model().SerializeToString()
    other = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    for each in (session, other):
        once(each, feed, seconds / 4)
    pairs = [(_throughput(other, feed, 8, seconds / 2), _throughput(session, feed, 8, seconds / 2)) for _ in range(3)]
    return statistics.median(theirs / ours for theirs, ours in pairs)


# ---------------------------------------------------------------------- long use


def held_mb() -> float:
    """Memory this process holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / 2**20


def _soak_model() -> bytes:
    b = Builder("soak")
    x = b.input("x", b.normal(1, 3, 32, 32), ["batch", 3, 32, 32])
    x = b.node("Relu", b.conv(x, 3, 16, 3, stride=2))
    x = b.node("Relu", b.conv(x, 16, 32, 3, stride=2))
    x = b.node("Flatten", b.node("GlobalAveragePool", x))
    b.output(b.node("Softmax", b.dense(x, 32, 10)), "y")
    return b.model().SerializeToString()


LEAST = 3  # runs of each caller, however slow the machine


def soak(seconds: float, callers: int = 8, largest: int = 24) -> dict[str, float]:
    """Callers on one session with random batch sizes: wrong answers, growth of memory in percent, handles left."""
    from pyflame_rt.backends.cpu.onednn import live_handles

    gc.collect()
    handles, data = live_handles(), _soak_model()
    reference = pyflame_rt.InferenceSession(data, providers=["ReferenceExecutionProvider"])
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal((n, 3, 32, 32)).astype(np.float32) for n in range(1, largest + 1)]
    wanted = [reference.run(None, {"x": x})[0] for x in inputs]
    session = pyflame_rt.InferenceSession(data, pyflame_rt.SessionOptions(num_threads=THREADS))
    runs, wrong, faults = [0] * callers, [0] * callers, []
    stop = time.perf_counter() + seconds

    def work(k: int) -> None:
        choose = np.random.default_rng(k)
        try:
            while runs[k] < LEAST or time.perf_counter() < stop:
                i = int(choose.integers(len(inputs)))
                got = session.run(None, {"x": inputs[i]})[0]
                wrong[k] += not np.allclose(got, wanted[i], rtol=1e-4, atol=1e-5)
                runs[k] += 1
        except Exception as error:  # noqa: BLE001 - counted and told
            faults.append(repr(error))

    workers = [threading.Thread(target=work, args=(k,)) for k in range(callers)]
    for worker in workers:
        worker.start()
    time.sleep(seconds * 0.3)  # warm: every size was met, every caller has its arena
    gc.collect()
    warm = held_mb()
    for worker in workers:
        worker.join()
    gc.collect()
    grown = held_mb() / warm - 1
    session.close()
    return {
        "runs": sum(runs),
        "wrong": sum(wrong) + len(faults),
        "grown_percent": 100 * grown,
        "handles_left": live_handles() - handles,
    }


# ---------------------------------------------------------------------- all of it


BOUNDS = {"one core": (one_core, 1.1), "neighbour": (neighbour, 2.5), "fork": (after_fork, 2.0), "crowd": (crowd, 1.1)}
# Calls of some microseconds: with more callers than cores, what handing the interpreter's lock from thread to thread
# costs is most of the time, whoever computes. So these are measured beside another runtime that gives the lock up, too.
BESIDE = {"crowd: mlp": (crowd_beside, 1.0)}


def figures(only: str, seconds: float, long: float) -> list[tuple[str, float, float]]:
    """(name, figure, bound) of everything that matches."""
    found = []
    for kind, usual in BOUNDS.items():
        for model in MODELS:
            name = f"{kind}: {model}"
            measure, bound = BESIDE.get(name, usual)
            if re.search(only, name):
                found.append((name, measure(model, seconds), bound))
    if re.search(only, "soak"):
        result = soak(long)
        bounds = {"wrong": 0.0, "grown_percent": 10.0, "handles_left": 0.0}
        found += [(f"soak: {key}, {result['runs']:.0f} runs", result[key], bound) for key, bound in bounds.items()]
    return found


def main(
    only: Annotated[str, typer.Option("--filter", help="Only figures whose name matches this expression.")] = "",
    seconds: Annotated[float, typer.Option(help="Time of one measurement.")] = 1.0,
    long: Annotated[float, typer.Option(help="Time of the soak.")] = 60.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure and compare with the bounds."""
    found = figures(only, seconds, long)
    if as_json:
        print(json.dumps([{"name": name, "figure": figure, "bound": bound} for name, figure, bound in found]))
    else:
        for name, figure, bound in found:
            verdict = "ok" if figure <= bound else "TOO MUCH"
            Console().print(f"{name:40} {figure:8.3f}  at most {bound:g}  {verdict}", highlight=False)
    sys.exit(any(figure > bound for _, figure, bound in found))


if __name__ == "__main__":
    typer.run(main)
