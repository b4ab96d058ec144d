"""``pyflame-rt bench``: time, memory, start and accuracy of a model beside the runtimes that are installed."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from pyflame_rt.cli.commands import AsJson, Inputs, Model, Seed, Sizes, app
from pyflame_rt.cli.inputs import build_feed, parse_sizes
from pyflame_rt.cli.load import show_load
from pyflame_rt.cli.outputs import keep_sources
from pyflame_rt.cli.render import console, print_json, status
from pyflame_rt.graph.writing import replacing
from pyflame_rt.loading import load_graph, prepare_graph, write_model
from pyflame_rt.options import SessionOptions
from pyflame_rt.peers import installed_peers, measure_peers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyflame_rt.peers import Measured

__all__ = ["bars", "bench"]

Against = Annotated[str, typer.Option("--against", help="onnxruntime,openvino; what is installed by default.")]
Rounds = Annotated[int, typer.Option(min=1, help="Turns of each runtime.")]
Seconds = Annotated[float, typer.Option(min=0.0, help="Of a turn.")]
Threads = Annotated[int, typer.Option(min=0, help="Of each runtime; 0 for all this process may use.")]
Clients = Annotated[
    int, typer.Option(min=0, help="Measure latency against load instead: up to so many callers of a batcher at once.")
]
Picture = Annotated[Path | None, typer.Option("--svg", help="Write a picture of the times to this file.")]


@app.command()
def bench(
    model: Model,
    against: Against = "",
    inputs: Inputs = [],  # noqa: B006 - typer reads it, nobody changes it
    seed: Seed = 0,
    size: Sizes = [],  # noqa: B006
    rounds: Rounds = 5,
    seconds: Seconds = 0.5,
    threads: Threads = 0,
    clients: Clients = 0,
    svg: Picture = None,
    json: AsJson = False,
) -> None:
    """Time a model here and in other runtimes, in turns, each in a process of its own; or under load, by clients."""
    keep_sources(svg, model, *inputs)
    graph, _ = load_graph(model)
    prepare_graph(graph, SessionOptions())
    feed = build_feed(graph, inputs, random=True, seed=seed, sizes=parse_sizes(size))
    if clients:
        if against:
            raise typer.BadParameter("the load is this runtime's alone: leave --against or --clients out")
        show_load(graph, feed, clients, seconds=seconds * rounds, threads=threads, svg=svg, json=json)
        return
    names = [name for name in against.split(",") if name] if against else installed_peers()
    with tempfile.TemporaryDirectory() as folder, status("measuring") as shown:
        path = model
        if names and model.suffix.lower() != ".onnx":  # the others read nothing else
            path = Path(folder) / "model.onnx"
            write_model(graph, path)
        found = measure_peers(
            str(path), feed, names, rounds=rounds, seconds=seconds, threads=threads, progress=shown.update
        )
    if svg is not None:
        with replacing(svg) as file:
            file.write(bars(model.name, found).encode())
    if json:
        print_json([_row(one, found[0]) for one in found])
        return
    console.print(_table(found))
    told = "ms; start: load and first run; ratio: this runtime's median to theirs; differs: of the largest element"
    console.print(told, style="dim", highlight=False)


def _row(one: Measured, ours: Measured) -> dict[str, object]:
    return {
        "runtime": one.name,
        "median_ms": one.median_ms,
        "p90_ms": one.p90_ms,
        "runs_per_second": 1e3 / one.median_ms,
        "runs": len(one.times_ms),
        "load_ms": one.load_ms,
        "first_run_ms": one.first_ms,
        "memory_bytes": one.memory_bytes,
        "difference": one.difference,
        "ratio": ours.median_ms / one.median_ms,
    }


def _table(found: Sequence[Measured]) -> Table:
    table = Table("runtime", "median", "p90", "runs/s", "ratio", "start", "memory", "differs")
    table.columns[0].no_wrap = True
    for one in found:
        ratio = "" if one is found[0] else f"{found[0].median_ms / one.median_ms:.2f}"
        difference = "" if one is found[0] else f"{one.difference:.1e}"
        table.add_row(
            one.name,
            f"{one.median_ms:.3f}",
            f"{one.p90_ms:.3f}",
            f"{1e3 / one.median_ms:.1f}",
            ratio,
            f"{one.load_ms + one.first_ms:.1f}",
            f"{one.memory_bytes / 2**20:.0f} MiB",
            difference,
        )
    return table


def bars(title: str, found: Sequence[Measured]) -> str:
    """A picture of the medians, with a line to where nine of ten runs end."""
    from html import escape

    wide, high, left = 640, 36, 130
    most = max(one.p90_ms for one in found) or 1.0
    lines = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide}" height="{high * len(found) + 60}" '
            f'font-family="sans-serif" font-size="13"><rect width="100%" height="100%" fill="white"/>'
            f'<text x="12" y="24" font-size="15">{escape(title)}: median of a run, ms</text>'
        )
    ]
    for i, one in enumerate(found):
        y, scale = 44 + i * high, (wide - left - 90) / most
        end, far = left + one.median_ms * scale, left + one.p90_ms * scale
        colour = "#d9480f" if i == 0 else "#868e96"
        lines.append(
            f'<text x="12" y="{y + 17}">{escape(one.name)}</text>'
            f'<rect x="{left}" y="{y}" width="{end - left:.1f}" height="{high - 12}" fill="{colour}"/>'
            f'<line x1="{end:.1f}" x2="{far:.1f}" y1="{y + 12}" y2="{y + 12}" stroke="black"/>'
            f'<text x="{far + 8:.1f}" y="{y + 17}">{one.median_ms:.3f}</text>'
        )
    return "\n".join([*lines, "</svg>\n"])
