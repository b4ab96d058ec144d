"""``pyflame-rt optimize``: a model rewritten by the passes, with what that saves."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from pyflame_rt.cli.commands import AsJson, Inputs, Model, Seed, Sizes, app
from pyflame_rt.cli.inputs import build_feed, parse_sizes
from pyflame_rt.cli.outputs import Output, check_model_output, keep_sources
from pyflame_rt.cli.render import console, print_json, size_text, status
from pyflame_rt.explain import in_units
from pyflame_rt.graph.writing import replacing
from pyflame_rt.loading import load_graph, prepare_graph, write_model
from pyflame_rt.options import OptLevel, SessionOptions
from pyflame_rt.session import InferenceSession

if TYPE_CHECKING:
    from pyflame_rt.graph import Graph
    from pyflame_rt.opt import PassResult

__all__ = ["measure", "optimize", "rewrite"]

Level = Annotated[str, typer.Option(help="basic, extended or all.")]
Portable = Annotated[bool, typer.Option("--portable", help="Only operators of ONNX that other runtimes have.")]
Page = Annotated[Path | None, typer.Option(help="Write a page with both graphs to this file.")]
Repeat = Annotated[int, typer.Option(min=1, help="Runs to measure; the best counts.")]


def rewrite(graph: Graph, level: OptLevel, *, portable: bool) -> tuple[Graph, PassResult]:
    """A copy of a graph after the passes of a level; ``portable`` for operators of ONNX alone."""
    from pyflame_rt.opt import FusionConfig, OperatorFusionPass, PassManager

    twin = graph.copy()
    manager = PassManager.create_default(level)
    manager.replace_pass(OperatorFusionPass(FusionConfig(portable=portable)))
    return twin, manager.run_until_fixed_point(twin)


def measure(graph: Graph, feed: dict[str, Any], repeat: int) -> dict[str, float]:
    """Nodes, steps that the CPU engine executes, bytes of constants, arithmetic, and the best time of a run."""
    options = SessionOptions(optimization_level=OptLevel.NONE, enable_profiling=True)
    with InferenceSession(graph, options) as session:
        session.run(None, feed)
        explained = session.explain()
    # The code that stays, not the first quick one.
    with InferenceSession(graph, SessionOptions(optimization_level=OptLevel.NONE, quick_start=False)) as session:
        session.run(None, feed)
        best = min(_seconds(session, feed) for _ in range(repeat))
    return {
        "nodes": len(graph.nodes),
        "steps": explained.steps,
        "bytes": sum(tensor.size_bytes for tensor in graph.initializers.values()),
        "flops": sum(row.flops for row in explained.rows),
        "milliseconds": best * 1e3,
    }


def _seconds(session: InferenceSession, feed: dict[str, Any]) -> float:
    started = time.perf_counter()
    session.run(None, feed)
    return time.perf_counter() - started


def _text(name: str, value: float) -> str:
    match name:
        case "bytes":
            return size_text(int(value))
        case "flops":
            return in_units(value, "") or "0"
        case "milliseconds":
            return f"{value:.3f}"
        case _:
            return f"{value:.0f}"


@app.command()
def optimize(
    model: Model,
    output: Output,
    level: Level = "all",
    portable: Portable = False,
    inputs: Inputs = [],  # noqa: B006 - typer reads it, nobody changes it
    seed: Seed = 0,
    size: Sizes = [],  # noqa: B006
    repeat: Repeat = 5,
    html: Page = None,
    json: AsJson = False,
) -> None:
    """Rewrite a model with the passes, and show what that saves."""
    check_model_output(output, model, *inputs)
    keep_sources(html, model, *inputs)
    chosen = OptLevel.of(level)
    graph, _ = load_graph(model)
    prepare_graph(graph, SessionOptions())
    with status("optimising"):
        better, result = rewrite(graph, chosen, portable=portable)
        write_model(better, output)
    feed = build_feed(graph, inputs, random=True, seed=seed, sizes=parse_sizes(size))
    with status("measuring"):
        before, after = measure(graph, feed, repeat), measure(better, feed, repeat)
    figures = [(name, _text(name, before[name]), _text(name, after[name])) for name in before]
    if html is not None:
        from pyflame_rt.opt.page import comparison_page

        with replacing(html) as file:
            file.write(comparison_page(graph, better, result, figures).encode())
    if json:
        stats = {name: getattr(result.stats, name) for name in ("nodes_removed", "nodes_added", "nodes_fused")}
        print_json({"output": str(output), "before": before, "after": after, **stats, "warnings": result.warnings})
        return
    table = Table("", "before", "after")
    for row in figures:
        table.add_row(*row)
    console.print(table)
    console.print(f"{output}: {result.stats}", highlight=False)
