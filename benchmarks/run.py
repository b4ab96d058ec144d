"""Latency of models on this runtime and on its peers, side by side. See README.md."""

from __future__ import annotations

import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from models import MODELS
from rich.console import Console
from rich.progress import track
from rich.table import Table

RUNTIMES = {"pyflame": "pyflame_rt", "onnxruntime": "onnxruntime", "openvino": "openvino"}


def feeds_of(path: Path, names: list[str], shapes: list[list[object]]) -> dict[str, np.ndarray]:
    """Inputs beside the model, or random ones for its declared shapes."""
    beside = path.with_suffix(".npz")
    if beside.exists():
        data = np.load(beside)
        return {n: data[f"in/{n}"] if f"in/{n}" in data.files else data[n] for n in names}
    rng = np.random.default_rng(0)
    sizes = [[d if isinstance(d, int) else 1 for d in shape] for shape in shapes]
    return {n: rng.standard_normal(s).astype(np.float32) for n, s in zip(names, sizes, strict=True)}


def prepare(runtime: str, path: Path, threads: int):  # noqa: ANN201
    """A function that runs the model once."""
    if runtime == "openvino":
        import openvino as ov

        config = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": threads}
        compiled = ov.Core().compile_model(str(path), "CPU", config)
        names = [next(iter(i.names)) for i in compiled.inputs]
        feed = feeds_of(path, names, [[1] for _ in names])
        request = compiled.create_infer_request()
        return lambda: [request.infer(feed, share_inputs=True, share_outputs=True)[o] for o in compiled.outputs]
    if runtime == "onnxruntime":
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    else:
        import pyflame_rt

        options = pyflame_rt.SessionOptions()
        options.num_threads = threads
        session = pyflame_rt.InferenceSession(str(path), options)
    feed = feeds_of(path, [i.name for i in session.get_inputs()], [list(i.shape) for i in session.get_inputs()])
    return lambda: session.run(None, feed)


def child(runtime: str, path: Path, threads: int, seconds: float) -> None:
    """Measure in this process and print JSON."""
    importlib.import_module(RUNTIMES[runtime])
    start = time.perf_counter()
    run = prepare(runtime, path, threads)
    outputs = run()
    first = time.perf_counter() - start
    times: list[float] = []
    while sum(times) < seconds or len(times) < 5:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    digest = [float(np.abs(np.asarray(o, np.float64)).sum()) for o in outputs]
    print(json.dumps({"median": statistics.median(times), "first": first, "digest": digest}))


def measure(path: Path, runtimes: list[str], rounds: int, threads: int, seconds: float) -> dict[str, dict]:
    """The best median of interleaved rounds, for each runtime."""
    best: dict[str, dict] = {}
    for _ in range(rounds):
        for runtime in runtimes:
            command = [
                sys.executable,
                __file__,
                "--child",
                runtime,
                "--threads",
                str(threads),
                "--seconds",
                str(seconds),
            ]
            env = {**os.environ, "OMP_NUM_THREADS": str(threads)}
            done = subprocess.run([*command, str(path)], capture_output=True, text=True, env=env, check=False)
            if done.returncode:
                best.setdefault(runtime, {"error": (done.stderr.strip().splitlines() or ["?"])[-1]})
                continue
            row = json.loads(done.stdout.splitlines()[-1])
            if "median" not in best.get(runtime, {}) or row["median"] < best[runtime]["median"]:
                best[runtime] = row
    return best


def show(results: dict[str, dict[str, dict]], runtimes: list[str]) -> None:
    """Print the table."""
    table = Table("model", *(f"{r} ms (first s)" for r in runtimes), "ratio to best peer")
    for name, rows in results.items():
        cells = [
            f"{rows[r]['median'] * 1e3:.3f} ({rows[r]['first']:.2f})" if "median" in rows[r] else rows[r]["error"][:60]
            for r in runtimes
        ]
        peers = [rows[r]["median"] for r in runtimes if r != "pyflame" and "median" in rows[r]]
        ours = rows["pyflame"].get("median")
        table.add_row(name, *cells, f"{ours / min(peers):.2f}" if peers and ours else "-")
    Console().print(table)


def main(
    models: Annotated[list[Path] | None, typer.Argument(help="ONNX files; the built-in models when none.")] = None,
    only: Annotated[str, typer.Option("--filter", help="Only models whose name contains this.")] = "",
    rounds: Annotated[int, typer.Option(help="Interleaved rounds.")] = 3,
    threads: Annotated[int, typer.Option(help="Threads for every runtime.")] = 2,
    seconds: Annotated[float, typer.Option(help="Time per measurement.")] = 1.0,
    json_file: Annotated[Path | None, typer.Option("--json", help="Also write the figures here.")] = None,
    child_of: Annotated[str, typer.Option("--child", hidden=True)] = "",
) -> None:
    """Run the benchmark."""
    if child_of:
        child(child_of, (models or [])[0], threads, seconds)
        return
    runtimes = [name for name, module in RUNTIMES.items() if importlib.util.find_spec(module)]
    with tempfile.TemporaryDirectory() as folder:
        paths = list(models or [make(Path(folder)) for make in MODELS.values()])
        chosen = [p for p in paths if only in p.name]
        results = {p.stem: measure(p.resolve(), runtimes, rounds, threads, seconds) for p in track(chosen, "measuring")}
    show(results, runtimes)
    if json_file is not None:
        json_file.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    typer.run(main)
