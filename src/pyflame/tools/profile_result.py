"""What a profile found: events, tables, and a trace for Chrome's viewer."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pyflame_rt.explain import in_units

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable

__all__ = ["OperationStats", "ProfileEvent", "ProfileResult"]

SortKey = Literal["total_ms", "count", "mean_ms", "flops", "bytes"]


@dataclass(frozen=True, slots=True)
class ProfileEvent:
    """One thing that took time.

    Attributes:
        name: the operator, or what the caller named.
        category: "operator", "run", or what the caller said.
        start_us: microseconds since the profile began.
        duration_us: microseconds it took.
        thread_id: where.
        module: path of the module that recorded it; "" for none.
        flops: arithmetic, an estimate.
        bytes: read and written.
        args: anything else: nodes, kernel, shapes.
    """

    name: str
    category: str
    start_us: float
    duration_us: float
    thread_id: int = 0
    module: str = ""
    flops: int = 0
    bytes: int = 0
    args: dict[str, Any] = field(default_factory=dict)

    @property
    def duration_ms(self) -> float:
        """Milliseconds it took."""
        return self.duration_us / 1e3

    def to_chrome_trace(self, process: int = 0) -> dict[str, Any]:
        """The event as Chrome's trace viewer reads it."""
        extra = {"module": self.module, "flops": self.flops, "bytes": self.bytes}
        return {
            "name": self.name,
            "cat": self.category,
            "ph": "X",
            "ts": self.start_us,
            "dur": self.duration_us,
            "pid": process,
            "tid": self.thread_id,
            "args": {**self.args, **{k: v for k, v in extra.items() if v}},
        }


@dataclass(frozen=True, slots=True)
class OperationStats:
    """What all executions of one operator, or all operators of one module, took together.

    Example:
        >>> OperationStats("Relu", 2, 3.0, 1.0, 2.0, flops=6_000_000).gflops
        2.0
    """

    name: str
    count: int
    total_ms: float
    min_ms: float
    max_ms: float
    flops: int = 0
    bytes: int = 0

    @property
    def mean_ms(self) -> float:
        """Time of one execution."""
        return self.total_ms / self.count if self.count else 0.0

    @property
    def gflops(self) -> float:
        """Thousand million operations in a second."""
        return self.flops / self.total_ms / 1e6 if self.total_ms else 0.0

    @property
    def gb_per_s(self) -> float:
        """Thousand million bytes in a second."""
        return self.bytes / self.total_ms / 1e6 if self.total_ms else 0.0


def _sums(named: Iterable[tuple[str, ProfileEvent]]) -> dict[str, OperationStats]:
    groups: dict[str, list[ProfileEvent]] = {}
    for name, event in named:
        groups.setdefault(name, []).append(event)
    made = {}
    for name, events in groups.items():
        times = [e.duration_ms for e in events]
        made[name] = OperationStats(
            name,
            len(events),
            sum(times),
            min(times),
            max(times),
            sum(e.flops for e in events),
            sum(e.bytes for e in events),
        )
    return dict(sorted(made.items(), key=lambda item: -item[1].total_ms))


@dataclass(slots=True)
class ProfileResult:
    """A finished profile; prints as a table.

    Attributes:
        events: in the order in which they ended.
        total_time: seconds from start to stop.
        memory_stats: bytes the process held at the start, at the end, and at most; empty when not asked for.
        dropped: events that were not kept because there were too many.

    Example:
        >>> result = ProfileResult([ProfileEvent("Relu", "operator", 0.0, 1000.0, flops=10)], 0.002)
        >>> result.operation_stats["Relu"].total_ms
        1.0
    """

    events: list[ProfileEvent] = field(default_factory=list)
    total_time: float = 0.0
    memory_stats: dict[str, int] = field(default_factory=dict)
    dropped: int = 0

    @property
    def operators(self) -> list[ProfileEvent]:
        """The events that are operators."""
        return [event for event in self.events if event.category == "operator"]

    @property
    def runs(self) -> list[ProfileEvent]:
        """The evaluations: eager ones and replayed steps."""
        return [event for event in self.events if event.category == "run"]

    @property
    def operation_stats(self) -> dict[str, OperationStats]:
        """Times by operator (fused ones together), the costliest first."""
        return _sums((event.name, event) for event in self.operators)

    @property
    def module_stats(self) -> dict[str, OperationStats]:
        """Times by the module that recorded the operators, the costliest first; "" is outside of modules."""
        return _sums((event.module, event) for event in self.operators)

    def get_top_operations(self, n: int = 10, sort_by: SortKey = "total_ms") -> list[OperationStats]:
        """The costliest operators."""
        if sort_by not in ("total_ms", "count", "mean_ms", "flops", "bytes"):
            raise ValueError(f"sort_by must be total_ms, count, mean_ms, flops or bytes. Received: {sort_by!r}")
        return sorted(self.operation_stats.values(), key=lambda s: -getattr(s, sort_by))[:n]

    def summary(self, n: int = 30, sort_by: SortKey = "total_ms") -> str:
        """A table of the costliest operators, and how much of the time they are."""
        from rich.console import Console
        from rich.table import Table

        spent = sum(event.duration_ms for event in self.operators)
        inside = sum(event.duration_ms for event in self.runs)
        table = Table(title="operators", title_justify="left")
        for column in ("operator", "calls", "total ms", "mean ms", "%", "FLOP", "bytes", "GFLOP/s", "GB/s"):
            table.add_column(column, justify="left" if column == "operator" else "right", overflow="fold")
        for s in self.get_top_operations(n, sort_by):
            table.add_row(*_cells(s, spent))
        console = Console(file=io.StringIO(), width=140, no_color=True, highlight=False)
        with console.capture() as text:
            console.print(table)
            console.print(
                f"{self.total_time * 1e3:.3f} ms in all; {len(self.runs)} runs took {inside:.3f} ms, "
                f"their operators {spent:.3f} ms"
            )
            if self.memory_stats:
                held = ", ".join(f"{k} {in_units(v, 'B')}" for k, v in self.memory_stats.items())
                console.print(f"memory: {held}")
        return text.get().rstrip()

    def to_chrome_trace(self) -> dict[str, Any]:
        """Everything for chrome://tracing or Perfetto."""
        import os

        return {
            "displayTimeUnit": "ms",
            "traceEvents": [event.to_chrome_trace(os.getpid()) for event in self.events],
            "metadata": {"total_time_s": self.total_time, "dropped_events": self.dropped, **self.memory_stats},
        }

    def save_chrome_trace(self, path: str | os.PathLike[str]) -> Path:
        """Write the trace as JSON; returns the path."""
        target = Path(path)
        target.write_text(json.dumps(self.to_chrome_trace()), "utf-8")
        return target

    def __str__(self) -> str:
        return self.summary()


def _cells(s: OperationStats, spent: float) -> tuple[str, ...]:
    return (
        s.name,
        str(s.count),
        f"{s.total_ms:.3f}",
        f"{s.mean_ms:.4f}",
        f"{100 * s.total_ms / spent:.1f}" if spent else "",
        in_units(s.flops, ""),
        in_units(s.bytes, "B"),
        f"{s.gflops:.1f}" if s.flops else "",
        f"{s.gb_per_s:.1f}" if s.bytes else "",
    )
