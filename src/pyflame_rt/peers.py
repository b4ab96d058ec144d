"""Runtimes measured beside each other: each in a process of its own, in turns, on the same file and inputs."""

from __future__ import annotations

import importlib
import importlib.util
import multiprocessing
import resource
import statistics
import sys
import time
import traceback
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.graph.errors import BackendError, InputError, MissingExtra
from pyflame_rt.graph.records import dataclass
from pyflame_rt.threads import available_threads

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from multiprocessing.connection import Connection

__all__ = ["PEERS", "Measured", "installed_peers", "measure_peers"]

PEERS = ("onnxruntime", "openvino")
_LEAST_RUNS = 5


@dataclass(frozen=True, slots=True)
class Measured:
    """What one runtime did with a model.

    Attributes:
        name: of the runtime.
        load_ms: from the file to a session, without the import of the runtime.
        first_ms: the first run.
        times_ms: of the runs that count, in order.
        memory_bytes: the most its process held, which has imported this package too.
        difference: the largest difference of an output from the first runtime's, relative to its largest element.
    """

    name: str
    load_ms: float
    first_ms: float
    times_ms: tuple[float, ...]
    memory_bytes: int
    difference: float

    @property
    def median_ms(self) -> float:
        """The time of a usual run."""
        return statistics.median(self.times_ms)

    @property
    def p90_ms(self) -> float:
        """Nine of ten runs take at most this."""
        return float(np.percentile(self.times_ms, 90))


def installed_peers() -> list[str]:
    """Peers that can be measured here.

    Example:
        >>> set(installed_peers()) <= {"onnxruntime", "openvino"}
        True
    """
    return [name for name in PEERS if importlib.util.find_spec(name) is not None]


def measure_peers(
    path: str,
    feed: Mapping[str, np.ndarray[Any, Any]],
    names: Sequence[str],
    *,
    rounds: int = 5,
    seconds: float = 0.5,
    threads: int = 0,
    progress: Callable[[str], object] = str,
) -> list[Measured]:
    """Measure this runtime and others in turns.

    Args:
        path: the model.
        feed: inputs.
        names: of the others.
        rounds: turns of each.
        seconds: of a turn.
        threads: of each runtime; 0 for as many as the process may use.
        progress: is told what is done now.

    Raises:
        MissingExtra: a runtime is not installed.
        BackendError: one failed; the text has what it said.
    """
    for name in names:
        if name not in PEERS:
            raise InputError(f"{name!r} is no runtime that can be measured: {', '.join(PEERS)}")
        if importlib.util.find_spec(name) is None:
            raise MissingExtra(f"measuring {name} needs it: pip install {name}")
    count = threads or available_threads()
    context = multiprocessing.get_context("spawn")
    workers = [_Worker(context, name, path, dict(feed), count) for name in ("pyflame", *names)]
    try:
        for worker in workers:
            progress(f"{worker.name}: loading and running once")
            worker.start()
        for turn in range(rounds):
            for worker in workers:
                progress(f"{worker.name}: round {turn + 1} of {rounds}")
                worker.times += worker.ask("run", seconds)
        return [worker.measured(workers[0].outputs) for worker in workers]
    finally:
        for worker in workers:
            worker.stop()


class _Worker:
    """A process that holds one runtime."""

    def __init__(self, context: Any, name: str, path: str, feed: dict[str, Any], threads: int) -> None:
        self.name = name
        self.times: list[float] = []
        self.outputs: list[Any] = []
        self.load_ms = self.first_ms = 0.0
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=_work, args=(other, name, path, feed, threads), daemon=True)

    def start(self) -> None:
        self.process.start()
        self.load_ms, self.first_ms, self.outputs = self.ask("load", 0.0)

    def ask(self, what: str, seconds: float) -> Any:
        self.pipe.send((what, seconds))
        while not self.pipe.poll(1.0):
            if not self.process.is_alive() and not self.pipe.poll(0):
                raise BackendError(f"{self.name} ended its process (exit code {self.process.exitcode})")
        done, answer = self.pipe.recv()
        if not done:
            raise BackendError(f"{self.name} failed: {answer}")
        return answer

    def measured(self, wanted: Sequence[Any]) -> Measured:
        memory = self.ask("memory", 0.0)
        return Measured(
            self.name, self.load_ms, self.first_ms, tuple(self.times), memory, _difference(self.outputs, wanted)
        )

    def stop(self) -> None:
        if self.process.pid is not None:
            self.process.terminate()
            self.process.join()
        self.pipe.close()


def _difference(found: Sequence[Any], wanted: Sequence[Any]) -> float:
    worst = 0.0
    for a, b in zip(found, wanted, strict=True):
        if np.shape(a) != np.shape(b):
            return float("inf")
        if np.size(b) and np.asarray(b).dtype.kind in "fiub":
            x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
            scale = float(np.abs(y[np.isfinite(y)]).max(initial=0.0)) or 1.0
            gap = np.abs(x - y)[~((x == y) | (np.isnan(x) & np.isnan(y)))]
            worst = max(worst, float(gap.max(initial=0.0)) / scale)
    return worst


# ---------------------------------------------------------------------- in the process


def _work(pipe: Connection, name: str, path: str, feed: dict[str, Any], threads: int) -> None:
    run: Any = None
    while True:
        try:
            what, seconds = pipe.recv()
        except EOFError:
            return
        try:
            if what == "load":
                _MAKERS[name](None, feed, threads)  # the import of the runtime is not part of loading
                begin = time.perf_counter()
                run = _MAKERS[name](path, feed, threads)
                loaded = time.perf_counter()
                outputs = [np.asarray(value) for value in run()]
                answer: Any = ((loaded - begin) * 1e3, (time.perf_counter() - loaded) * 1e3, outputs)
            elif what == "memory":
                answer = _peak()
            else:
                answer = _timed(run, seconds)
            pipe.send((True, answer))
        except Exception as error:  # noqa: BLE001 - whatever a runtime raises is told
            last = traceback.format_exception_only(error)[-1].strip()
            pipe.send((False, last))


def _timed(run: Any, seconds: float) -> list[float]:
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < _LEAST_RUNS or time.perf_counter() < end:
        begin = time.perf_counter()
        run()
        times.append((time.perf_counter() - begin) * 1e3)
    return times


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _pyflame(path: str | None, feed: dict[str, Any], threads: int) -> Any:
    import pyflame_rt

    if path is None:
        return None
    session = pyflame_rt.InferenceSession(path, pyflame_rt.SessionOptions(num_threads=threads))
    return lambda: session.run(None, feed)


def _onnxruntime(path: str | None, feed: dict[str, Any], threads: int) -> Any:
    import onnxruntime

    if path is None:
        return None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, feed)


def _openvino(path: str | None, feed: dict[str, Any], threads: int) -> Any:
    openvino: Any = importlib.import_module("openvino")
    if path is None:
        return None
    settings = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32"}
    compiled = openvino.Core().compile_model(path, "CPU", settings)
    request = compiled.create_infer_request()

    def run() -> list[Any]:
        found = request.infer(feed, share_inputs=True)
        return [found[output] for output in compiled.outputs]

    return run


_MAKERS: dict[str, Callable[[str | None, dict[str, Any], int], Any]] = {
    "pyflame": _pyflame,
    "onnxruntime": _onnxruntime,
    "openvino": _openvino,
}
