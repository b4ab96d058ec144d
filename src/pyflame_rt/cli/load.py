"""``pyflame-rt bench --clients``: latency against load, as a table, JSON and curves."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.table import Table

from pyflame_rt.batching import BatchConfig, load_curve
from pyflame_rt.batching.layout import Layout
from pyflame_rt.cli.render import console, print_json, status
from pyflame_rt.curves import draw
from pyflame_rt.graph.writing import replacing
from pyflame_rt.options import SessionOptions
from pyflame_rt.session import InferenceSession

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pyflame_rt.batching import LoadPoint
    from pyflame_rt.graph import Graph

__all__ = ["show_load"]


def show_load(
    graph: Graph,
    feed: Mapping[str, Any],
    clients: int,
    *,
    seconds: float,
    threads: int,
    svg: Path | None,
    json: bool,
) -> None:
    """Measure, and print or write what was seen."""
    config = BatchConfig()
    problem = Layout(graph, config).problem
    if problem:
        config.max_batch_size = 1
    options = SessionOptions(num_threads=threads) if threads else SessionOptions()
    with status("measuring") as shown, InferenceSession(graph, options) as session:
        points = load_curve(session, feed, clients, seconds=seconds, config=config, progress=shown.update)
    if svg is not None:
        with replacing(svg) as file:
            file.write(_picture(points).encode())
    if json:
        print_json([asdict(point) for point in points])
        return
    console.print(_table(points))
    told = "each client asks again when it is answered; ms from the call to the answer; rows run together, on average"
    console.print(told, style="dim", highlight=False)
    if problem:
        console.print(f"requests ran one after the other: {problem}", style="dim", highlight=False)


def _table(points: Sequence[LoadPoint]) -> Table:
    table = Table("clients", "requests/s", "p50", "p99", "rows a run")
    for point in points:
        times = (f"{point.p50_ms:.3f}", f"{point.p99_ms:.3f}")
        table.add_row(str(point.clients), f"{point.requests_per_second:.1f}", *times, f"{point.rows_per_run:.1f}")
    return table


def _picture(points: Sequence[LoadPoint]) -> str:
    """Median and 99th percentile over requests a second; a fall to the left at the end is overload."""
    curves = {
        "p50, ms": [(point.requests_per_second, point.p50_ms) for point in points],
        "p99, ms": [(point.requests_per_second, point.p99_ms) for point in points],
    }
    return draw(curves, across="requests a second")
