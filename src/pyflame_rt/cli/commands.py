"""The commands."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich.table import Table

from pyflame_rt._version import __version__
from pyflame_rt.cli.inputs import build_feed, parse_shapes, parse_sizes
from pyflame_rt.cli.oracle import run_oracle
from pyflame_rt.cli.outputs import check_model_output, keep_sources
from pyflame_rt.cli.render import console, print_json, size_text, status, summary_tables, value_row
from pyflame_rt.differ import compare, diff
from pyflame_rt.graph.writing import replacing
from pyflame_rt.importers.base import ImportOptions
from pyflame_rt.importers.registry import import_model
from pyflame_rt.inspection import summarize
from pyflame_rt.loading import load_graph, prepare_graph, write_model
from pyflame_rt.options import SessionOptions
from pyflame_rt.session import InferenceSession
from pyflame_rt.tuning import tune_session

if TYPE_CHECKING:
    from pyflame_rt.graph import Graph

__all__ = ["app"]

app = typer.Typer(
    name="pyflame-rt",
    help="Look at, run, convert and check models.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)

Model = Annotated[Path, typer.Argument(help="A .onnx, .pfm or .gguf file, or a folder of a Hugging Face model.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
ProviderName = Annotated[str, typer.Option("--provider", "-p", help="Where to run.")]
Inputs = Annotated[list[str], typer.Option("--input", "-i", help="NAME=FILE.npy, NAME=FILE.npz or FILE.npz.")]
Sizes = Annotated[list[str], typer.Option("--size", help="Size of a symbolic dimension, NAME=NUMBER; 1 by default.")]
Seed = Annotated[int, typer.Option(help="Of the random inputs.")]
Rtol = Annotated[float, typer.Option(help="Relative tolerance.")]
Atol = Annotated[float, typer.Option(help="Absolute tolerance.")]
DEFAULT = "CPUExecutionProvider"


def _load(path: Path, shapes: dict[str, list[int | None]] | None = None) -> Graph:
    with status(f"loading {path.name}"):
        if shapes:
            graph = import_model(path, ImportOptions(input_shapes=shapes)).unwrap()
        else:
            graph, _ = load_graph(path)
        prepare_graph(graph, SessionOptions())
    return graph


def _session(graph: Graph, provider: str) -> InferenceSession:
    with status("compiling"):
        return InferenceSession(graph, providers=[provider])


def _version(wanted: bool) -> None:
    if wanted:
        console.print(__version__, highlight=False)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Look at, run, convert and check models."""
    del version


@app.command()
def info(model: Model, json: AsJson = False) -> None:
    """Show a model's inputs, outputs, opset, operators, parameters and memory."""
    summary = summarize(_load(model))
    size = model.stat().st_size
    if json:
        print_json({"file": str(model), "file_bytes": size, **summary.to_dict()})
        return
    console.print(*summary_tables(summary), sep="\n")
    console.print(f"file: {size_text(size)}", highlight=False)


@app.command()
def run(
    model: Model,
    inputs: Inputs = [],  # noqa: B006 - typer reads it, nobody changes it
    random: Annotated[bool, typer.Option("--random", help="Make up inputs that are not given.")] = False,
    seed: Seed = 0,
    size: Sizes = [],  # noqa: B006
    provider: ProviderName = DEFAULT,
    repeat: Annotated[int, typer.Option(min=0, help="Then run so many times more and show the best time.")] = 1,
    save: Annotated[Path | None, typer.Option(help="Write the outputs to this .npz file.")] = None,
    json: AsJson = False,
) -> None:
    """Run a model and show its outputs, what the first run took, and the best time of further ones."""
    keep_sources(save, model, *inputs)
    graph = _load(model)
    feed = build_feed(graph, inputs, random=random, seed=seed, sizes=parse_sizes(size))
    session = _session(graph, provider)
    results, times = _timed(session, feed, 1 + repeat)
    first, best = times[0] * 1e3, min(times[1:], default=None)
    names = [arg.name for arg in session.get_outputs()]
    if save is not None:
        arrays: dict[str, Any] = {n: r for n, r in zip(names, results, strict=True) if isinstance(r, np.ndarray)}
        with replacing(save) as file:
            np.savez(file, **arrays)
    rows = [value_row(name, result) for name, result in zip(names, results, strict=True)]
    if json:
        times_ms = {"first_milliseconds": first, "milliseconds": None if best is None else best * 1e3}
        print_json({"provider": session.get_providers()[0], **times_ms, "outputs": rows})
        return
    table = Table("output", "type", "shape", "min", "max", "mean")
    for row in rows:
        numbers = [f"{row[k]:.6g}" if k in row else "" for k in ("min", "max", "mean")]
        table.add_row(row["name"], row["type"], str(row.get("shape", row.get("length"))), *numbers)
    console.print(table)
    warm = "" if best is None else f"; then {best * 1e3:.3f} ms (best of {repeat})"
    where = f"on {session.get_providers()[0]}"
    console.print(f"first run, compiling included: {first:.1f} ms{warm} {where}", highlight=False)


def _timed(session: InferenceSession, feed: dict[str, Any], count: int) -> tuple[list[Any], list[float]]:
    """Results of the last of so many runs, and the seconds of each."""
    times, results = [], []
    with status("running"):
        for _ in range(count):
            started = time.perf_counter()
            results = session.run(None, feed)
            times.append(time.perf_counter() - started)
    return results, times


@app.command()
def convert(
    source: Annotated[
        Path, typer.Argument(help="A model: .onnx, .pfm, TorchScript .pt, .pt2, or a Hugging Face folder.")
    ],
    target: Annotated[Path, typer.Argument(help="The .pfm or .onnx file to write.")],
    shape: Annotated[list[str], typer.Option(help="Shape of an input, NAME=2,3,?; ? stays open.")] = [],  # noqa: B006
    json: AsJson = False,
) -> None:
    """Convert a model to .onnx or .pfm."""
    check_model_output(target, source)
    graph = _load(source, parse_shapes(shape))
    with status(f"writing {target.name}"):
        write_model(graph, target)
    sizes = {"source_bytes": _bytes(source), "target_bytes": target.stat().st_size}
    if json:
        print_json({"source": str(source), "target": str(target), "nodes": len(graph.nodes), **sizes})
        return
    console.print(f"{target}: {len(graph.nodes)} nodes, {size_text(sizes['target_bytes'])}", highlight=False)


def _bytes(source: Path) -> int:
    """What a model takes on disk."""
    files = source.iterdir() if source.is_dir() else [source]
    return sum(file.stat().st_size for file in files if file.is_file())


@app.command()
def verify(
    model: Model,
    inputs: Inputs = [],  # noqa: B006
    seed: Seed = 0,
    size: Sizes = [],  # noqa: B006
    provider: ProviderName = DEFAULT,
    rtol: Rtol = 1e-3,
    atol: Atol = 1e-4,
    json: AsJson = False,
) -> None:
    """Compare outputs with ONNX Runtime (or ONNX's reference where that is not installed)."""
    graph = _load(model)
    feed = build_feed(graph, inputs, random=True, seed=seed, sizes=parse_sizes(size))
    ours, _ = _timed(_session(graph, provider), feed, 1)
    with status("running the other implementation"):
        against, theirs = run_oracle(graph, model, feed)
    names = ("max_abs", "max_rel", "mismatched", "total", "problem")
    rows = [
        {"output": o.name, **dict(zip(names, compare(b, a, rtol, atol), strict=True))}
        for o, a, b in zip(graph.outputs, ours, theirs, strict=True)
    ]
    agree = not any(row["mismatched"] or row["problem"] for row in rows)
    if json:
        print_json({"agree": agree, "against": against, "provider": provider, "outputs": rows})
    else:
        _print_verdict(rows, agree, against)
    if not agree:
        raise typer.Exit(1)


def _print_verdict(rows: list[dict[str, Any]], agree: bool, against: str) -> None:
    table = Table("output", "max abs", "max rel", "outside")
    for row in rows:
        outside = row["problem"] or f"{row['mismatched']}/{row['total']}"
        table.add_row(row["output"], f"{row['max_abs']:.2e}", f"{row['max_rel']:.2e}", outside)
    console.print(table)
    console.print(f"{'agrees' if agree else 'DIFFERS'} ({against})", highlight=False)


@app.command()
def explain(
    model: Model,
    inputs: Inputs = [],  # noqa: B006
    seed: Seed = 0,
    size: Sizes = [],  # noqa: B006
    provider: ProviderName = DEFAULT,
    html: Annotated[Path | None, typer.Option(help="Write a page to this file.")] = None,
    json: AsJson = False,
) -> None:
    """Run a model with a clock, and show which node runs where, why, and what it takes."""
    keep_sources(html, model, *inputs)
    graph = _load(model)
    feed = build_feed(graph, inputs, random=True, seed=seed, sizes=parse_sizes(size))
    chosen = SessionOptions(enable_profiling=True, quick_start=False)  # the code that stays, not the first quick one
    with status("compiling"):
        session = InferenceSession(graph, chosen, providers=[provider])
    _timed(session, feed, 9)
    explanation = session.explain()
    if html is not None:
        with replacing(html) as file:
            file.write(explanation.to_html().encode())
        console.print(f"{html}: {len(explanation.nodes)} nodes", highlight=False)
    elif json:
        print_json(explanation.to_dict())
    else:
        console.print(explanation)


@app.command()
def tune(
    model: Model,
    inputs: Inputs = [],  # noqa: B006
    seed: Seed = 0,
    size: Sizes = [],  # noqa: B006
    threads: Annotated[int, typer.Option(help="Threads of a run; 0 asks the machine.")] = 0,
    again: Annotated[bool, typer.Option("--again", help="Measure also what was measured before.")] = False,
    json: AsJson = False,
) -> None:
    """Time the kernels that can do each product and convolution; the fastest are remembered for this machine."""
    graph = _load(model)
    feed = build_feed(graph, inputs, random=True, seed=seed, sizes=parse_sizes(size))
    with status("measuring"):
        rows = [
            {"case": t.case, "chosen": t.way, "microseconds": {w: round(s * 1e6, 1) for w, s in t.seconds.items()}}
            for t in tune_session(graph, feed, threads=threads, again=again)
        ]
    if json:
        print_json({"measured": rows})
        return
    table = Table("case", "chosen", "microseconds")
    for row in rows:
        table.add_row(row["case"], row["chosen"], "  ".join(f"{w} {t:g}" for w, t in row["microseconds"].items()))
    console.print(table if rows else "nothing to measure: everything was measured before, or has one kernel only")


@app.command(name="diff")
def compare_providers(
    model: Model,
    provider_a: Annotated[str, typer.Argument()] = "ReferenceExecutionProvider",
    provider_b: Annotated[str, typer.Argument()] = DEFAULT,
    inputs: Inputs = [],  # noqa: B006
    seed: Seed = 0,
    size: Sizes = [],  # noqa: B006
    rtol: Rtol = 1e-4,
    atol: Atol = 1e-5,
    json: AsJson = False,
) -> None:
    """Compare two providers value by value."""
    graph = _load(model)
    feed = build_feed(graph, inputs, random=True, seed=seed, sizes=parse_sizes(size))
    with status("running both"):
        result = diff(graph, provider_a, provider_b, feed, rtol=rtol, atol=atol)
    if json:
        print_json(result.to_dict())
    else:
        console.print(result)
    if not result.equal:
        raise typer.Exit(1)
