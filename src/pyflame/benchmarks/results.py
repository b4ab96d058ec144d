"""What benchmarks found."""

from __future__ import annotations

import io
import json
import os
import platform
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["BenchmarkReport", "BenchmarkResult", "compare_results"]


@dataclass(frozen=True)
class BenchmarkResult:
    """Times of one thing with one batch size.

    Attributes:
        name: Of what was measured.
        batch_size: Samples of one call.
        latency_ms: Median time of one call.
        throughput: Samples in a second, by the median.
        std_dev_ms: Standard deviation of the times.
        min_ms: Shortest time.
        max_ms: Longest time.
        p90_ms: Nine of ten calls took less.
        memory_mb: By how much the process grew at most.
        iterations: How many calls were timed.
        metadata: Anything else.

    Example:
        >>> BenchmarkResult.of("f", 2, [1.0, 3.0, 2.0]).latency_ms
        2.0
    """

    name: str
    batch_size: int
    latency_ms: float
    throughput: float
    std_dev_ms: float
    min_ms: float
    max_ms: float
    p90_ms: float
    memory_mb: float = 0.0
    iterations: int = 0
    metadata: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls, name: str, batch_size: int, times_ms: Sequence[float], memory_mb: float = 0.0, **metadata: Any
    ) -> BenchmarkResult:
        """The result of these times."""
        if not times_ms:
            raise ValueError("no times were measured")
        times = np.asarray(times_ms, np.float64)
        middle = float(np.median(times))
        return cls(
            name,
            batch_size,
            middle,
            1e3 * batch_size / middle if middle else 0.0,
            float(times.std()),
            float(times.min()),
            float(times.max()),
            float(np.percentile(times, 90)),
            memory_mb,
            len(times),
            metadata,
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def _system() -> dict[str, Any]:
    from pyflame_rt._version import __version__

    return {
        "machine": platform.machine(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "pyflame": __version__,
    }


@dataclass
class BenchmarkReport:
    """Results with where and when they were measured.

    Example:
        >>> report = BenchmarkReport("mine", [BenchmarkResult.of("f", 1, [2.0])])
        >>> "2.000" in report.summary()
        True
    """

    title: str
    results: list[BenchmarkResult]
    system_info: dict[str, Any] = field(default_factory=_system)
    timestamp: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    notes: str = ""

    def summary(self) -> str:
        """A table."""
        from rich.console import Console
        from rich.table import Table

        table = Table(title=self.title, title_justify="left")
        for column in ("name", "batch", "median ms", "p90 ms", "min ms", "sd ms", "samples/s", "MB"):
            table.add_column(column, justify="left" if column == "name" else "right")
        for r in self.results:
            times = (f"{t:.3f}" for t in (r.latency_ms, r.p90_ms, r.min_ms, r.std_dev_ms))
            table.add_row(r.name, str(r.batch_size), *times, f"{r.throughput:.1f}", f"{r.memory_mb:.1f}")
        console = Console(file=io.StringIO(), width=120, no_color=True, highlight=False)
        with console.capture() as text:
            console.print(table)
        return text.get().rstrip()

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)

    def save_json(self, path: str | os.PathLike[str]) -> Path:
        """Write the report; `load_json` reads it."""
        target = Path(path)
        target.write_text(json.dumps(self.to_dict(), indent=1), "utf-8")
        return target

    @classmethod
    def load_json(cls, path: str | os.PathLike[str]) -> BenchmarkReport:
        """Read what `save_json` wrote; ValueError when the file is something else."""
        try:
            data = json.loads(Path(path).read_text("utf-8"))
            known = {f.name for f in fields(BenchmarkResult)}
            results = [BenchmarkResult(**{k: v for k, v in r.items() if k in known}) for r in data["results"]]
            return cls(data["title"], results, data["system_info"], data["timestamp"], data.get("notes", ""))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{str(path)!r} is no benchmark report: {error}") from error

    def __str__(self) -> str:
        return self.summary()


def compare_results(
    baseline: Sequence[BenchmarkResult],
    comparison: Sequence[BenchmarkResult],
    metric: Literal["latency_ms", "throughput", "memory_mb", "min_ms"] = "latency_ms",
) -> dict[str, dict[str, Any]]:
    """How results differ from earlier ones, by name and batch size; what only one side has is left out.

    Returns:
        For each "name/batch": both values, their ratio (comparison / baseline), and whether it became better.

    Example:
        >>> old, new = [BenchmarkResult.of("f", 1, [2.0])], [BenchmarkResult.of("f", 1, [1.0])]
        >>> compare_results(old, new)["f/1"]["ratio"]
        0.5
    """
    if metric not in ("latency_ms", "throughput", "memory_mb", "min_ms"):
        raise ValueError(f"metric must be latency_ms, min_ms, throughput or memory_mb. Received: {metric!r}")
    before = {(r.name, r.batch_size): float(getattr(r, metric)) for r in baseline}
    found: dict[str, dict[str, Any]] = {}
    for r in comparison:
        old, new = before.get((r.name, r.batch_size)), float(getattr(r, metric))
        if old is None:
            continue
        better = new > old if metric == "throughput" else new < old
        ratio = new / old if old else float("nan")
        found[f"{r.name}/{r.batch_size}"] = {"baseline": old, "comparison": new, "ratio": ratio, "better": better}
    return found
