"""Latency of models on this runtime and on its peers, side by side. See README.md."""

from __future__ import annotations

import json
import os
import platform
import re
import statistics
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from report import chart, markdown, remarks, table
from rich.console import Console
from rich.progress import Progress
from runtimes import RUNTIMES, installed
from zoo import make

HERE = Path(__file__).resolve().parent
TIMEOUT = 900  # seconds for one runtime on one model, compilation included


def one_round(path: Path, runtime: str, threads: int, seconds: float) -> dict[str, Any]:
    """Measure in a process of its own."""
    command = [sys.executable, str(HERE / "runtimes.py"), runtime, str(path), str(threads), str(seconds)]
    env = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=env, check=False, timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        return {"error": f"took longer than {TIMEOUT} s"}
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1][:200]}
    return json.loads(done.stdout.splitlines()[-1])


def together(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """The medians of several rounds; the error when every round failed."""
    good = [row for row in rounds if "median" in row]
    if not good:
        return rounds[0]
    numbers = [key for key, value in good[0].items() if isinstance(value, (int, float))]
    return {**good[0], **{key: statistics.median(row[key] for row in good) for key in numbers}}


def measure(
    paths: list[Path], runtimes: list[str], rounds: int, threads: int, seconds: float, console: Console
) -> dict[str, dict[str, dict[str, Any]]]:
    """Rounds are interleaved, so that what disturbs the machine disturbs every runtime alike."""
    found: dict[str, dict[str, list[dict[str, Any]]]] = {p.stem: {r: [] for r in runtimes} for p in paths}
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("measuring", total=len(paths) * len(runtimes) * rounds)
        for path in paths:
            for _ in range(rounds):
                for runtime in runtimes:
                    progress.update(task, description=f"{path.stem} on {runtime}")
                    found[path.stem][runtime].append(one_round(path, runtime, threads, seconds))
                    progress.advance(task)
    return {name: {r: together(rows) for r, rows in by.items()} for name, by in found.items()}


def models_of(given: list[Path], only: str, folder: Path, *, quick: bool) -> list[Path]:
    """The files named, those of the folders named, or the models built here."""
    if not given:
        folder.mkdir(parents=True, exist_ok=True)
        return make(folder, only, quick=quick)
    files = [f for path in given for f in (sorted(path.glob("*.onnx")) if path.is_dir() else [path])]
    return [f.resolve() for f in files if re.search(only, f.stem)]


def chosen(names: str, *, quick: bool) -> list[str]:
    """Runtimes to measure; compiling with torch takes long, so not when it has to be quick."""
    there = installed()
    if not names:
        return [name for name in there if not (quick and name == "torch.compile")]
    wanted = names.split(",")
    missing = [name for name in wanted if name not in there]
    if missing:
        raise typer.BadParameter(f"{missing[0]!r} is not installed, or not one of {', '.join(RUNTIMES)}")
    return wanted


def processor() -> str:
    """The processor's name."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def main(
    models: Annotated[list[Path] | None, typer.Argument(help="ONNX files, or folders of them.")] = None,
    only: Annotated[str, typer.Option("--filter", help="Only models whose name matches this expression.")] = "",
    quick: Annotated[bool, typer.Option("--quick", help="Few models, one short round, no torch.compile.")] = False,
    rounds: Annotated[int, typer.Option(min=1, help="Interleaved rounds.")] = 3,
    threads: Annotated[int, typer.Option(min=1, help="Threads of every runtime.")] = 2,
    seconds: Annotated[float, typer.Option(help="Time of one measurement.")] = 1.0,
    runtimes: Annotated[str, typer.Option(help="Only these, with commas between.")] = "",
    folder: Annotated[Path, typer.Option(help="Where the models built here are kept.")] = Path("build/zoo"),
    out: Annotated[Path, typer.Option(help="Where results.md, .json and .svg go.")] = Path("build/bench"),
) -> None:
    """Run the benchmark."""
    console = Console(width=None if sys.stdout.isatty() else 160)
    names = chosen(runtimes, quick=quick)
    paths = models_of(models or [], only, folder.resolve(), quick=quick)
    if not paths:
        raise typer.BadParameter("no model matches")
    if quick:
        rounds, seconds = 1, min(seconds, 0.3)
    results = measure(paths, names, rounds, threads, seconds, console)
    about = {
        "processor": processor(),
        "threads": threads,
        "rounds": f"{rounds} of {seconds:g} s",
        "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "python": platform.python_version(),
    }
    console.print(table(results, names), *remarks(results), sep="\n")
    out.mkdir(parents=True, exist_ok=True)
    (out / "results.json").write_text(json.dumps({"about": about, "results": results}, indent=1), "utf-8")
    (out / "results.md").write_text(markdown(results, names, about), "utf-8")
    (out / "results.svg").write_text(chart(results, names), "utf-8")
    console.print(f"written: {out / 'results.md'}, .json and .svg", highlight=False)


if __name__ == "__main__":
    typer.run(main)
