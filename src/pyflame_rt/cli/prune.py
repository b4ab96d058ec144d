"""``pyflame-rt prune``: a model with fewer weights or channels, with what that saves."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from pyflame_rt.cli.commands import AsJson, Inputs, Model, Seed, Sizes, app
from pyflame_rt.cli.inputs import build_feed, parse_sizes
from pyflame_rt.cli.optimize import Repeat, measure
from pyflame_rt.cli.outputs import Output, check_model_output
from pyflame_rt.cli.render import console, print_json, size_text, status
from pyflame_rt.explain import in_units
from pyflame_rt.loading import load_graph, prepare_graph, write_model
from pyflame_rt.options import SessionOptions

if TYPE_CHECKING:
    from pathlib import Path

    from pyflame_rt.pruning import PruningConfig, PruningStats

__all__ = ["prune"]

Share = Annotated[float, typer.Option("--sparsity", "-s", help="Share of weights, channels or blocks to take away.")]
Granularity = Annotated[str, typer.Option(help="unstructured, structured, block or nm.")]
Criterion = Annotated[str, typer.Option(help="magnitude, lamp or random.")]
Block = Annotated[str, typer.Option(help="Rows x columns of a block, such as 4x4.")]
Pattern = Annotated[str, typer.Option(help="How many stay of how many, such as 2:4.")]
Exclude = Annotated[list[str], typer.Option(help="A layer to leave as it is; may be repeated.")]
Layer = Annotated[list[str], typer.Option(help="A layer's own share, NAME=SHARE; may be repeated.")]
RoundTo = Annotated[int, typer.Option(min=1, help="Keep a multiple of so many channels.")]


@app.command()
def prune(
    model: Model,
    output: Output,
    sparsity: Share = 0.5,
    granularity: Granularity = "structured",
    criterion: Criterion = "magnitude",
    block: Block = "4x4",
    pattern: Pattern = "2:4",
    exclude: Exclude = [],  # noqa: B006 - typer reads it, nobody changes it
    layer: Layer = [],  # noqa: B006
    round_to: RoundTo = 1,
    inputs: Inputs = [],  # noqa: B006
    seed: Seed = 0,
    size: Sizes = [],  # noqa: B006
    repeat: Repeat = 5,
    json: AsJson = False,
) -> None:
    """Take weights, channels or blocks away from a model, and show what that saves."""
    from pyflame_rt.pruning import PruningConfig, PruningCriterion, PruningWarning, WeightPruner

    check_model_output(output, model, *inputs)
    config = PruningConfig(target_sparsity=sparsity, criterion=_member(PruningCriterion, criterion, "--criterion"))
    _shape(config, granularity, block, pattern)
    config.exclude_layers, config.per_layer_sparsity = list(exclude), _layers(layer)
    config.round_to, config.seed = round_to, seed
    graph, _ = load_graph(model)
    prepare_graph(graph, SessionOptions())
    with status("pruning"), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", PruningWarning)
        pruner = WeightPruner(config)
        smaller = pruner.prune(graph)
        write_model(smaller, output)
    feed = build_feed(graph, inputs, random=True, seed=seed, sizes=parse_sizes(size))
    with status("measuring"):
        before, after = measure(graph, feed, repeat), measure(smaller, feed, repeat)
    notes = [str(entry.message) for entry in caught]
    if json:
        print_json(_document(output, pruner.get_stats(), before, after, notes))
    else:
        _show(output, pruner.get_stats(), before, after, notes)


def _document(
    output: Path, stats: PruningStats, before: dict[str, float], after: dict[str, float], notes: list[str]
) -> dict[str, Any]:
    return {
        "output": str(output),
        "sparsity": stats.actual_sparsity(),
        "compression_ratio": stats.compression_ratio(),
        "layers": stats.per_layer_sparsity,
        "removed_channels": {name: list(counts) for name, counts in stats.removed_channels.items()},
        "before": before,
        "after": after,
        "warnings": notes,
    }


def _show(
    output: Path, stats: PruningStats, before: dict[str, float], after: dict[str, float], notes: list[str]
) -> None:
    table = Table("layer", "pruned")
    for name, share in stats.per_layer_sparsity.items():
        table.add_row(name, f"{share:.1%}")
    console.print(table)
    totals = Table("", "before", "after")
    totals.add_row("weights", str(stats.total_params), str(stats.total_params - stats.pruned_params))
    totals.add_row("bytes", size_text(stats.original_size_bytes), size_text(stats.pruned_size_bytes))
    totals.add_row("flops", in_units(before["flops"], "") or "0", in_units(after["flops"], "") or "0")
    totals.add_row("milliseconds", f"{before['milliseconds']:.3f}", f"{after['milliseconds']:.3f}")
    console.print(totals)
    for note in notes:
        console.print(f"warning: {note}", highlight=False, markup=False)
    console.print(f"{output}: {stats.actual_sparsity():.1%} of the weights are gone or zero", highlight=False)


def _member(kind: Any, text: str, option: str) -> Any:
    try:
        return kind(text.lower())
    except ValueError:
        known = ", ".join(member.value for member in kind)
        raise typer.BadParameter(f"{text!r} is not one of {known}", param_hint=option) from None


def _shape(config: PruningConfig, granularity: str, block: str, pattern: str) -> None:
    from pyflame_rt.pruning import PruningGranularity

    config.granularity = _member(PruningGranularity, granularity, "--granularity")
    config.block_size = _two(block, "x", "--block")
    config.n_value, config.m_value = _two(pattern, ":", "--pattern")


def _two(text: str, between: str, option: str) -> list[int]:
    parts = text.split(between)
    if len(parts) != 2 or not all(part.isdigit() for part in parts):
        raise typer.BadParameter(f"{text!r} is not of the form 4{between}4", param_hint=option)
    return [int(part) for part in parts]


def _layers(texts: list[str]) -> dict[str, float]:
    shares: dict[str, float] = {}
    for text in texts:
        name, equals, number = text.rpartition("=")
        try:
            shares[name] = float(number)
        except ValueError:
            equals = ""
        if not equals:
            raise typer.BadParameter(f"{text!r} is not of the form NAME=SHARE", param_hint="--layer")
    return shares
