"""Training steps of four models here and in torch, side by side. See ../README.md."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from report import Results, chart, geometric_mean, ratio  # noqa: E402
from run import processor, together  # noqa: E402
from worker import QUICK, WAYS  # noqa: E402

MODELS = ("mlp", "resnet18", "gpt", "lstm")
TIMEOUT = 900  # seconds for one measurement, compilation included


def one_round(way: str, model: str, threads: int, seconds: float, sizes: dict[str, Any]) -> dict[str, Any]:
    """Measure in a process of its own."""
    command = [sys.executable, str(HERE / "worker.py"), way, model, str(threads), str(seconds), json.dumps(sizes)]
    env = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=env, check=False, timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        return {"error": f"took longer than {TIMEOUT} s"}
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1][:200]}
    return json.loads(done.stdout.splitlines()[-1])


def usable(wanted: str) -> tuple[list[str], list[str]]:
    """Ways to train that can be measured here, and a line for each that cannot."""
    names = wanted.split(",") if wanted else list(WAYS)
    unknown = [name for name in names if name not in WAYS]
    if unknown:
        raise typer.BadParameter(f"{unknown[0]!r} is not one of {', '.join(WAYS)}")
    reasons = []
    if importlib.util.find_spec("torch") is None:
        reasons += [f"{name} is left out: torch is not installed" for name in names if name != "pyflame"]
        names = [name for name in names if name == "pyflame"]
    compilers = [os.environ.get("CXX", ""), "c++", "g++", "clang++"]
    if "torch.compile" in names and not any(shutil.which(c) for c in compilers if c):
        names.remove("torch.compile")
        reasons.append(
            "torch.compile is left out: it needs a C++ compiler (c++, g++, clang++ or $CXX), and there is none"
        )
    return names, reasons


def measure(
    models: list[str], ways: list[str], rounds: int, threads: int, seconds: float, console: Console, *, quick: bool
) -> Results:
    """Rounds are interleaved, so that what disturbs the machine disturbs every way alike."""
    found: dict[str, dict[str, list[dict[str, Any]]]] = {m: {w: [] for w in ways} for m in models}
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("measuring", total=len(models) * len(ways) * rounds)
        for model in models:
            for _ in range(rounds):
                for way in ways:
                    progress.update(task, description=f"{model} by {way}")
                    sizes = QUICK[model] if quick else {}
                    found[model][way].append(one_round(way, model, threads, seconds, sizes))
                    progress.advance(task)
    return {model: {way: together(rows) for way, rows in by.items()} for model, by in found.items()}


def memory_ratio(rows: dict[str, dict[str, Any]]) -> float | None:
    """Our most memory over that of torch as it comes."""
    ours, theirs = (rows.get(way, {}).get("peak_mb") for way in ("pyflame", "torch"))
    return ours / theirs if ours and theirs else None


def columns(ways: list[str]) -> list[str]:
    """Titles of the table."""
    return ["model", *(f"{w} ms" for w in ways), "ratio", "first step, s", "memory, MB", "memory ratio"]


def cells(model: str, rows: dict[str, dict[str, Any]], ways: list[str]) -> list[str]:
    """One line of the table."""

    def cell(way: str, key: str, scale: float, digits: int) -> str:
        row = rows.get(way, {})
        return f"{row[key] * scale:.{digits}f}" if key in row else "-"

    found, held = ratio(rows), memory_ratio(rows)
    return [
        model,
        *(cell(w, "median", 1e3, 2) for w in ways),
        "-" if found is None else f"{found:.2f}",
        " / ".join(cell(w, "first", 1.0, 1) for w in ways),
        " / ".join(cell(w, "peak_mb", 1.0, 0) for w in ways),
        "-" if held is None else f"{held:.2f}",
    ]


def table(results: Results, ways: list[str]) -> Table:
    """For the terminal."""
    shown = Table(title=f"first step and memory: {' / '.join(ways)}", title_justify="left")
    for i, title in enumerate(columns(ways)):
        shown.add_column(title, justify="left" if i == 0 else "right")
    for model, rows in results.items():
        shown.add_row(*cells(model, rows, ways))
    return shown


def remarks(results: Results) -> list[str]:
    """The mean, and what failed."""
    mean = geometric_mean(results)
    lines = [] if mean is None else [f"geometric mean of the ratios: {mean:.3f}"]
    for model, rows in results.items():
        lines += [f"{model}: {way} failed: {row['error']}" for way, row in rows.items() if "error" in row]
    return lines


def markdown(results: Results, ways: list[str], about: dict[str, Any], reasons: list[str]) -> str:
    """For a file."""
    titles = columns(ways)
    lines = ["# Training benchmark", "", *(f"- {key}: {value}" for key, value in about.items())]
    lines += [f"- {line}" for line in (*remarks(results), *reasons)]
    lines += ["", f"Columns of several figures: {' / '.join(ways)}.", "", "| " + " | ".join(titles) + " |"]
    lines.append("|" + "|".join(["---", *["---:"] * (len(titles) - 1)]) + "|")
    lines += ["| " + " | ".join(cells(model, rows, ways)) + " |" for model, rows in results.items()]
    return "\n".join([*lines, "", "![times](results.svg)", ""])


def main(
    only: Annotated[str, typer.Option("--filter", help="Only these models, with commas between.")] = "",
    quick: Annotated[bool, typer.Option("--quick", help="Tiny models, one short round: to see that it works.")] = False,
    rounds: Annotated[int, typer.Option(min=1, help="Interleaved rounds.")] = 3,
    threads: Annotated[int, typer.Option(min=1, help="Threads of every way.")] = 2,
    seconds: Annotated[float, typer.Option(help="Time of one measurement.")] = 3.0,
    ways: Annotated[str, typer.Option(help="Only these of pyflame, torch and torch.compile.")] = "",
    out: Annotated[Path, typer.Option(help="Where results.md, .json and .svg go.")] = Path("build/bench-training"),
) -> None:
    """Run the benchmark."""
    console = Console(width=None if sys.stdout.isatty() else 160)
    models = only.split(",") if only else list(MODELS)
    unknown = [m for m in models if m not in MODELS]
    if unknown:
        raise typer.BadParameter(f"{unknown[0]!r} is not one of {', '.join(MODELS)}")
    names, reasons = usable(ways)
    if quick:
        rounds, seconds = 1, min(seconds, 0.2)
    results = measure(models, names, rounds, threads, seconds, console, quick=quick)
    about = {
        "processor": processor(),
        "threads": threads,
        "rounds": f"{rounds} of {seconds:g} s",
        "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "python": platform.python_version(),
    }
    console.print(table(results, names), *remarks(results), *reasons, sep="\n")
    out.mkdir(parents=True, exist_ok=True)
    (out / "results.json").write_text(json.dumps({"about": about, "results": results}, indent=1), "utf-8")
    (out / "results.md").write_text(markdown(results, names, about, reasons), "utf-8")
    (out / "results.svg").write_text(chart(results, names), "utf-8")
    console.print(f"written: {out / 'results.md'}, .json and .svg", highlight=False)


if __name__ == "__main__":
    typer.run(main)
