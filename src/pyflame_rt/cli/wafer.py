"""``pyflame-rt wafer``: what a model costs on grids of the wafer, predicted and checked."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pyflame_rt.cli.commands import AsJson, Model, Sizes, app
from pyflame_rt.cli.inputs import check_sizes, parse_sizes
from pyflame_rt.cli.outputs import keep_sources
from pyflame_rt.cli.render import console, status
from pyflame_rt.feeds import random_feed
from pyflame_rt.graph.errors import InputError
from pyflame_rt.graph.writing import replacing
from pyflame_rt.loading import load_graph, prepare_graph
from pyflame_rt.options import SessionOptions

__all__ = ["parse_grid", "wafer"]

Grids = Annotated[list[str], typer.Option("--grid", "-g", help="ROWSxCOLS of PEs; may be given several times.")]
Target = Annotated[str, typer.Option(help="wse2 or wse3.")]
Simulate = Annotated[int, typer.Option(help="Also simulate grids of at most so many PEs; 0 for none.")]
Chart = Annotated[Path | None, typer.Option("--svg", help="Write a chart of predicted against simulated cycles.")]


def parse_grid(text: str) -> tuple[int, int]:
    """``ROWSxCOLS`` as numbers.

    >>> parse_grid("4x16")
    (4, 16)
    """
    rows, _, cols = text.lower().partition("x")
    if not (rows.isdigit() and cols.isdigit()):
        raise InputError(f"a grid is written ROWSxCOLS, for example 4x16; got {text!r}")
    return int(rows), int(cols)


@app.command()
def wafer(
    model: Model,
    grid: Grids = ["2x2", "4x4", "8x8", "32x32", "128x128", "750x750"],  # noqa: B006 - typer copies it
    target: Target = "wse3",
    simulate: Simulate = 64,
    size: Sizes = [],  # noqa: B006
    json: AsJson = False,
    svg: Chart = None,
) -> None:
    """Predict cycles, memory and wavelets on the wafer, up to all of it; small grids are checked in the simulator."""
    from pyflame_rt.backends.wse.plan.predict import predict_scale

    grids = [parse_grid(text) for text in grid]
    keep_sources(svg, model)
    graph, _ = load_graph(model)
    prepare_graph(graph, SessionOptions())
    open_ones = [i for i in graph.required_inputs if not getattr(getattr(i.type, "shape", None), "is_static", False)]
    sizes = parse_sizes(size)
    check_sizes(graph, sizes)
    shapes = {name: a.shape for name, a in random_feed(open_ones, seed=0, sizes=sizes).items()}
    with status("predicting"):
        report = predict_scale(graph, grids, target=target, shapes=shapes or None, simulate_up_to=simulate)
    if svg is not None:
        if not report.grids:
            raise InputError(f"no chart for {str(svg)!r}: the model fits none of the grids {', '.join(grid)}")
        with replacing(svg) as file:
            file.write(report.svg().encode())
    console.print(report.json() if json else report.text(), highlight=False, markup=False, soft_wrap=True, end="")
