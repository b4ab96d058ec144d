"""Profiles: what every node of every run took, for Chrome's trace viewer."""

from __future__ import annotations

import json
import os
import threading
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from pyflame_rt.arrays import host_array, library_of
from pyflame_rt.graph.locks import new_lock

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyflame_rt.graph import Node

__all__ = ["Profiler", "RunProfile"]

MAX_EVENTS = 1_000_000


class Profiler:
    """Events of one session, written as JSON when it is asked for.

    Example:
        >>> profiler = Profiler("CPUExecutionProvider")
        >>> profiler.record("model_run", "Session", 0, 1_000_000)
        >>> profiler.document()["events"][0]["duration_us"]
        1000.0
    """

    def __init__(self, provider: str, peaks: Callable[[], Mapping[str, float] | None] = lambda: None) -> None:
        """Begin a profile.

        Args:
            provider: who runs the model.
            peaks: called when the profile is written: ``gflops`` and ``gb_per_s`` that the machine
                reaches, or None where nobody knows.
        """
        self.provider = provider
        self._peaks = peaks
        self.start_ns = time.perf_counter_ns()
        self.dropped = 0
        self._events: list[dict[str, Any]] = []
        self._lock = new_lock()

    def record(self, name: str, category: str, start_ns: int, end_ns: int, **details: Any) -> None:
        """Add one event; times are of ``time.perf_counter_ns``."""
        event = {
            "name": name,
            "category": category,
            "start_us": (start_ns - self.start_ns) / 1e3,
            "duration_us": (end_ns - start_ns) / 1e3,
            "thread": threading.get_ident(),
            **details,
        }
        with self._lock:
            if len(self._events) < MAX_EVENTS:
                self._events.append(event)
            else:
                self.dropped += 1

    def begin_run(self, tag: str | None) -> RunProfile:
        """Start recording one run."""
        return RunProfile(self, tag)

    def document(self) -> dict[str, Any]:
        """Everything recorded: plain ``events``, and Chrome's ``traceEvents``."""
        with self._lock:
            events = list(self._events)
        peaks = self._peaks() if any("gflops" in event for event in events) else None
        if peaks:
            events = [_against(event, peaks) for event in events]
        return {
            "provider": self.provider,
            "machine_peaks": dict(peaks or {}),
            "start_time_ns": self.start_ns,
            "dropped_events": self.dropped,
            "displayTimeUnit": "ms",
            "events": events,
            "traceEvents": [_chrome(event) for event in events],
        }

    def write(self, prefix: str, *, plain_list: bool = False) -> str:
        """Write a file whose name begins with ``prefix``; returns its name.

        With ``plain_list`` it holds just the list of Chrome events, as ONNX Runtime's does.
        """
        stamp = datetime.now().strftime("%Y-%m-%d_%H-%M-%S_%f")
        path = Path(f"{prefix}{'' if prefix.endswith('_') else '_'}{stamp}.json")
        document = self.document()
        path.write_text(json.dumps(document["traceEvents"] if plain_list else document), "utf-8")
        return str(path)


def _against(event: dict[str, Any], peaks: Mapping[str, float]) -> dict[str, Any]:
    """The event with its rates as parts of what the machine reaches."""
    parts = {f"{name}_of_peak": round(event[name] / peak, 4) for name, peak in peaks.items() if peak and name in event}
    return event | parts


def _chrome(event: dict[str, Any]) -> dict[str, Any]:
    known = ("name", "category", "start_us", "duration_us", "thread")
    return {
        "cat": event["category"],
        "pid": os.getpid(),
        "tid": event["thread"],
        "ts": event["start_us"],
        "dur": event["duration_us"],
        "ph": "X",
        "name": event["name"],
        "args": {key: value for key, value in event.items() if key not in known},
    }


class StepCost(Protocol):
    """What a compiled step says of itself."""

    label: str
    kind: str
    nodes: tuple[str, ...]
    flops: int
    nbytes: int
    layout: str
    inputs: list[tuple[str, tuple[int, ...]]]
    outputs: list[tuple[str, tuple[int, ...]]]


class RunProfile:
    """Records one run: compiled steps by :meth:`step`, single nodes by :meth:`check` and :meth:`observe`."""

    __slots__ = ("_profiler", "_starts", "_tag", "begin_ns")

    def __init__(self, profiler: Profiler, tag: str | None) -> None:
        self._profiler = profiler
        self._tag = tag
        # A stack: nodes of a loop's body start and end inside the loop's own node.
        self._starts: list[int] = []
        self.begin_ns = time.perf_counter_ns()

    def check(self) -> None:
        """A node starts."""
        self._starts.append(time.perf_counter_ns())

    def observe(self, node: Node, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """A node has ended."""
        for array in outputs:
            if library_of(array) == "mlx":  # lazy: time the work, not its recording
                host_array(array)
        end = time.perf_counter_ns()
        start = self._starts.pop() if self._starts else end
        self._profiler.record(
            f"{node.name or node.op_type}_kernel_time",
            "Node",
            start,
            end,
            op_name=node.full_name,
            provider=self._profiler.provider,
            tag=self._tag,
            input_type_shape=[_shape(a) for a in inputs],
            output_type_shape=[_shape(a) for a in outputs],
        )

    def step(self, facts: StepCost, begin_ns: int, end_ns: int, lane: int = 0) -> None:
        """A compiled step, which may do several nodes at once, has run."""
        seconds = max(end_ns - begin_ns, 1) / 1e9
        self._profiler.record(
            f"{'+'.join(facts.nodes) or facts.label}_kernel_time",
            "Node",
            begin_ns,
            end_ns,
            thread=threading.get_ident() + lane,
            op_name=facts.label,
            provider=self._profiler.provider,
            tag=self._tag,
            kernel=facts.kind,
            nodes=list(facts.nodes),
            layout=facts.layout,
            flops=facts.flops,
            bytes=facts.nbytes,
            gflops=round(facts.flops / seconds / 1e9, 3),
            gb_per_s=round(facts.nbytes / seconds / 1e9, 3),
            input_type_shape=[{kind: list(shape)} for kind, shape in facts.inputs],
            output_type_shape=[{kind: list(shape)} for kind, shape in facts.outputs],
        )

    def finish(self) -> None:
        """The run has ended."""
        end = time.perf_counter_ns()
        self._profiler.record("model_run", "Session", self.begin_ns, end, tag=self._tag)


def _shape(array: Any) -> dict[str, list[int]]:
    if not hasattr(array, "shape"):
        return {}
    return {str(array.dtype).rpartition(".")[2]: [int(d) for d in array.shape]}
