"""``pyflame-rt quantize``: a model in fewer bits, with what that saves and what it costs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich.table import Table

from pyflame_rt.cli.calibration import batches_of, read_data, scorer
from pyflame_rt.cli.commands import AsJson, Model, app
from pyflame_rt.cli.outputs import Output, check_model_output, keep_sources
from pyflame_rt.cli.render import console, errors, print_json, size_text, status
from pyflame_rt.graph.errors import InputError
from pyflame_rt.graph.writing import replacing
from pyflame_rt.loading import load_graph, prepare_graph, write_model
from pyflame_rt.options import SessionOptions

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyflame_rt.graph import Graph
    from pyflame_rt.quantization import QuantConfig, QuantizationReport, QuantizationResult
    from pyflame_rt.quantization.sensitivity import LayerError

__all__ = ["quantize"]

Data = Annotated[list[str], typer.Option("--data", help="NAME=FILE.npy, FILE.npy or FILE.npz; a sample a row.")]
Mode = Annotated[str, typer.Option(help="fp16, bfloat16, dynamic-int8, static-int8 or weight-only.")]
Method = Annotated[str, typer.Option(help="Of calibration: minmax, entropy, percentile or mse.")]
Labels = Annotated[Path | None, typer.Option(help="FILE.npy with the right answer of each sample.")]
Budget = Annotated[
    float | None, typer.Option(min=0, max=1, help="Share of right answers (without labels: of equal ones) to lose.")
]
Names = Annotated[list[str], typer.Option("--exclude", help="A node that stays in float32; may be repeated.")]
Ops = Annotated[list[str], typer.Option("--exclude-op", help="An operator that stays in float32; may be repeated.")]
Channels = Annotated[bool, typer.Option("--per-channel/--per-tensor", help="A scale for each output channel.")]
Batch = Annotated[int, typer.Option(min=0, help="Samples of a batch; 0 for what the model says, or 32.")]
Bits = Annotated[int, typer.Option(help="Of a weight, with weight-only: 4 or 8.")]
Block = Annotated[int, typer.Option("--block-size", help="Weights that share a scale, with weight-only.")]
Page = Annotated[Path | None, typer.Option(help="Write a page about it to this file.")]
Smooth = Annotated[float, typer.Option(help="Move outliers of data into weights, 0 to 1.")]


@dataclass
class _Work:
    """One quantization: what goes in, and what came of it."""

    graph: Graph
    config: QuantConfig
    feeds: list[dict[str, Any]]
    score: Callable[[Graph], float] | None
    result: QuantizationResult | None = None
    baseline: float | None = None
    after: float | None = None
    ratio: float | None = None
    excluded: list[str] = field(default_factory=list)
    layers: list[LayerError] = field(default_factory=list)


@app.command()
def quantize(
    model: Model,
    output: Output,
    mode: Mode = "static-int8",
    data: Data = [],  # noqa: B006 - typer reads it, nobody changes it
    method: Method = "minmax",
    per_channel: Channels = True,
    symmetric: Annotated[bool, typer.Option(help="Zero in the middle of the integers.")] = True,
    exclude: Names = [],  # noqa: B006
    exclude_op: Ops = [],  # noqa: B006
    labels: Labels = None,
    budget: Budget = None,
    bias_correction: Annotated[bool, typer.Option("--bias-correction", help="Correct the mean errors.")] = False,
    equalize: Annotated[bool, typer.Option("--equalize", help="Balance consecutive layers first.")] = False,
    smooth: Smooth = 0.0,
    bits: Bits = 4,
    block_size: Block = 32,
    batch: Batch = 0,
    html: Page = None,
    json: AsJson = False,
) -> None:
    """Quantize a model; show what that saves, what it costs, and whether it is faster here."""
    read = [model, *data, *([] if labels is None else [labels])]
    check_model_output(output, *read)
    keep_sources(html, *read)
    config = _config(mode, method, per_channel)
    config.symmetric, config.bias_correction = symmetric, bias_correction
    config.exclude_nodes, config.exclude_ops = list(exclude), list(exclude_op)
    config.bits, config.block_size = bits, block_size
    graph, _ = load_graph(model)
    prepare_graph(graph, SessionOptions())
    arrays = read_data(graph, data)
    work = _Work(graph, config.check(), batches_of(graph, arrays, batch), scorer(graph, arrays, labels, batch))
    with status("quantizing"):
        _quantize(work, equalize=equalize, strength=smooth, budget=budget)
    assert work.result is not None
    if not work.result.success:
        raise InputError(work.result.error_message)
    write_model(work.result.quantized_graph, output)
    with status("measuring"):
        _measure(work, explain=html is not None)
    _show(work, output, html, as_json=json)


def _config(mode: str, method: str, per_channel: bool) -> QuantConfig:
    from pyflame_rt.quantization import CalibrationMethod, QuantConfig, QuantGranularity, QuantMode

    modes = {m.value.replace("_", "-"): m for m in QuantMode if m is not QuantMode.NONE}
    if mode not in modes:
        raise typer.BadParameter(f"{mode!r} is not one of {', '.join(modes)}", param_hint="--mode")
    methods = {m.value: m for m in CalibrationMethod}
    if method not in methods:
        raise typer.BadParameter(f"{method!r} is not one of {', '.join(methods)}", param_hint="--method")
    config = QuantConfig(mode=modes[mode], calibration_method=methods[method])
    config.granularity = QuantGranularity.PerChannel if per_channel else QuantGranularity.PerTensor
    config.symmetric_weights = config.mode is not QuantMode.WeightOnly
    return config


def _quantize(work: _Work, *, equalize: bool, strength: float, budget: float | None) -> None:
    from pyflame_rt import quantization as q

    if not work.feeds and (work.config.mode is q.QuantMode.StaticInt8 or strength or budget is not None):
        raise InputError("give representative data with --data: static-int8, --smooth and --budget need it")
    source = q.equalize(work.graph) if equalize else work.graph
    if strength:
        source = q.smooth(source, work.feeds, strength, len(work.feeds))
    if budget is None:
        work.result = q.Quantizer(work.config).apply(source, work.feeds or None, len(work.feeds) or None)
        return
    if work.score is None:
        raise InputError("--budget counts right answers: no output of the model has scores of classes")
    found = q.quantize_within(source, work.config, work.feeds, work.score, budget)
    work.result, work.excluded, work.layers = found.result, found.excluded, found.layers
    if not found.met:
        raise InputError(
            f"the budget does not hold: {found.baseline:.4f} before, {found.score:.4f} after, with "
            f"{len(found.excluded)} layers in float32. Try another --method, or a larger --budget"
        )


def _measure(work: _Work, *, explain: bool) -> None:
    """Scores and time before and after."""
    from pyflame_rt import quantization as q
    from pyflame_rt.feeds import random_feed

    assert work.result is not None
    made = work.result.quantized_graph
    if work.score is not None:
        work.baseline, work.after = work.score(work.graph), work.score(made)
    feed = work.feeds[0] if work.feeds else random_feed(work.graph.required_inputs)
    work.ratio = q.measured_ratio(work.graph, made, feed)
    integers = work.config.mode in (q.QuantMode.StaticInt8, q.QuantMode.DynamicInt8)
    if explain and integers and work.feeds and not work.layers:
        work.layers = q.sensitivity(work.graph, work.config, work.feeds)


def _figures(work: _Work) -> dict[str, tuple[str, str]]:
    assert work.result is not None
    stats = work.result.stats
    rows = {"constants": (size_text(stats.original_size_bytes), size_text(stats.quantized_size_bytes))}
    if work.baseline is not None and work.after is not None:
        rows["right or equal answers"] = (f"{work.baseline:.2%}", f"{work.after:.2%}")
    if work.ratio is not None:
        rows["time of a run here"] = ("1", f"{work.ratio:.2f}")
    return rows


def _report(work: _Work) -> QuantizationReport:
    from pyflame_rt.quantization import QuantizationReport

    assert work.result is not None
    notes = []
    if work.ratio is not None and work.ratio > 1:
        notes.append(f"slower than float32 on this machine: a run takes {work.ratio:.2f} times as long")
    return QuantizationReport.of(work.result.stats, work.result.mode, work.result.skipped, notes)


def _show(work: _Work, output: Path, html: Path | None, *, as_json: bool) -> None:
    report, figures = _report(work), _figures(work)
    if html is not None:
        from pyflame_rt.quantization.page import quantization_page

        with replacing(html) as file:
            file.write(quantization_page(work.graph.name, report, work.layers, figures, work.excluded).encode())
    if as_json:
        print_json(_document(work, report, output))
        return
    table = Table("", "before", "after")
    for what, (before, after) in figures.items():
        table.add_row(what, before, after)
    console.print(table)
    console.print(f"{output}: {replace(report, notes=[])}", highlight=False, markup=False)
    for name in work.excluded:
        console.print(f"{name} stays in float32 to hold the budget", highlight=False, markup=False)
    for note in report.notes:
        errors.print(f"[yellow]warning:[/] {note}", highlight=False)


def _document(work: _Work, report: QuantizationReport, output: Path) -> dict[str, Any]:
    return {
        "output": str(output), "mode": report.mode.value, "nodes_quantized": report.nodes_quantized,
        "nodes_total": report.nodes_total, "compression_ratio": float(report.compression_ratio),
        "before": work.baseline, "after": work.after, "time_ratio": work.ratio, "excluded": work.excluded,
        "skipped": report.skipped, "notes": report.notes,
        "layers": [{"name": layer.name, "error": float(np.float64(layer.error))} for layer in work.layers],
    }  # fmt: skip
