"""``pyflame-rt partition``: how a model would be cut over devices, as a table and a picture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from pyflame_rt.cli.commands import AsJson, Model, Seed, Sizes, app
from pyflame_rt.cli.inputs import build_feed, check_sizes, parse_sizes
from pyflame_rt.cli.outputs import keep_sources
from pyflame_rt.cli.render import console, print_json, size_text, status
from pyflame_rt.differ import compare
from pyflame_rt.graph.writing import replacing
from pyflame_rt.loading import load_graph, prepare_graph
from pyflame_rt.options import SessionOptions

if TYPE_CHECKING:
    from pyflame_rt.partition import PartitionPlan

__all__ = ["partition"]

Parts = Annotated[int, typer.Option("--parts", "-n", min=1, help="How many devices.")]
Strategy = Annotated[str, typer.Option("--strategy", "-s", help="auto, data, model, pipeline or tensor.")]
Rows = Annotated[int, typer.Option(min=1, help="Rows of a request, where the model leaves that open.")]
Micro = Annotated[int, typer.Option(min=0, help="Rows that go through a pipeline together; 0 chooses.")]
Memory = Annotated[int, typer.Option(min=0, help="Bytes that a device may hold; 0 for no limit.")]
Measure = Annotated[
    bool, typer.Option("--measure", help="Measure the model here instead of assuming a typical machine.")
]
Picture = Annotated[Path | None, typer.Option("--svg", help="Write a picture of the plan to this file.")]
Run = Annotated[str, typer.Option("--run", help="Run it on random inputs on threads or processes, and compare.")]


@app.command()
def partition(
    model: Model,
    parts: Parts = 2,
    strategy: Strategy = "auto",
    batch: Rows = 32,
    micro_batch: Micro = 0,
    memory: Memory = 0,
    measure: Measure = False,
    size: Sizes = [],  # noqa: B006 - typer reads it, nobody changes it
    svg: Picture = None,
    run: Run = "",
    seed: Seed = 0,
    json: AsJson = False,
) -> None:
    """Cut a model over devices: who computes what, what crosses, and what that should take."""
    from pyflame_rt.partition import DeviceSpec, DeviceType, GraphPartitioner, PartitionConfig, PartitionStrategy

    keep_sources(svg, model)
    graph, _ = load_graph(model)
    prepare_graph(graph, SessionOptions())
    sizes = parse_sizes(size)
    check_sizes(graph, sizes)
    devices = [DeviceSpec(DeviceType.CPU, i, memory) for i in range(parts)]
    config = PartitionConfig(PartitionStrategy.of(strategy), devices, batch_size=batch, sizes=sizes)
    config.micro_batch_size = micro_batch
    partitioner = GraphPartitioner(config)
    if measure:
        with status("measuring"):
            partitioner.cost_model.calibrate(graph, batch_size=batch, sizes=sizes)
            partitioner.cost_model.calibrate_transfers(run or "threads")
    plan = partitioner.partition(graph)
    if svg is not None:
        with replacing(svg) as file:
            file.write(plan.svg().encode())
    checked = _checked(plan, run, seed, batch, sizes) if run else None
    if json:
        print_json({**plan.to_dict(), **({} if checked is None else {"check": checked})})
    else:
        _show(plan, checked)
    if checked is not None and not checked["equal"]:
        raise typer.Exit(1)


def _checked(plan: PartitionPlan, backend: str, seed: int, batch: int, sizes: dict[str, int]) -> dict[str, Any]:
    """The largest difference between the plan's outputs and those of the whole model."""
    from pyflame_rt.partition import PartitionedExecutor
    from pyflame_rt.partition.cost import concrete_graph
    from pyflame_rt.session import InferenceSession

    feed = build_feed(concrete_graph(plan.graph, sizes, batch), [], random=True, seed=seed, sizes={})
    with status("running"), InferenceSession(plan.graph) as session, PartitionedExecutor(plan, backend) as executor:
        whole, cut = session.run(None, feed), executor.execute(feed)
    found = [compare(a, b, 1e-5, 1e-5) for a, b in zip(whole, cut.values(), strict=True)]
    equal = not any(wrong or problem for _, _, wrong, _, problem in found)
    return {"backend": backend, "equal": equal, "max_abs": max((row[0] for row in found), default=0.0)}


def _show(plan: PartitionPlan, checked: dict[str, Any] | None) -> None:
    table = Table("part", "device", "nodes", "us", "memory", "reads", "gives")
    for p in plan.partitions:
        table.add_row(
            str(p.index), p.device.label, str(len(p.nodes)), f"{p.compute_us:,.1f}", size_text(p.memory_bytes),
            ", ".join(p.inputs), ", ".join(p.outputs),
        )  # fmt: skip
    console.print(table)
    for line in (str(plan).splitlines()[0], *(f"note: {note}" for note in plan.notes)):
        console.print(line, highlight=False, soft_wrap=True, markup=False)
    if checked is not None:
        verdict = "equals the whole model" if checked["equal"] else "DIFFERS from the whole model"
        told = f"on {checked['backend']} it {verdict}: largest difference {checked['max_abs']:.1e}"
        console.print(told, highlight=False)
