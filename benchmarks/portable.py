"""What ``pyflame-rt optimize --portable`` makes of models: onnxruntime's answers before and after, and its times.

usage: python benchmarks/portable.py [MODEL.onnx ...] [--filter EXPRESSION] [--seconds 0.5]

Without models, those of the zoo. Random inputs are used where no .npz stands beside a model. Levels are compared with
no optimisation on the way. The exit code says whether an answer differs by more than 1e-4 of the largest number.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from zoo import make

from pyflame_rt import InferenceSession, OptLevel, SessionOptions
from pyflame_rt.cli.optimize import rewrite
from pyflame_rt.feeds import random_feed
from pyflame_rt.loading import load_graph, prepare_graph, write_model

LEVELS = (OptLevel.BASIC, OptLevel.EXTENDED, OptLevel.ALL)
LIMIT = 1e-4


class Refused(Exception):
    """onnxruntime does not take the made-up inputs."""


def feed_of(path: Path, graph: Any) -> dict[str, Any]:
    """Inputs from beside the model, or random ones."""
    beside = path.with_suffix(".npz")
    if not beside.exists():
        return random_feed(graph.required_inputs, seed=0)
    with np.load(beside) as arrays:
        return {key.removeprefix("in/"): arrays[key] for key in arrays if key.startswith("in/")}


def peer(path: Path) -> onnxruntime.InferenceSession:
    """A session of onnxruntime as it comes, with two threads."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 2, 3
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def difference(before: list[Any], after: list[Any]) -> float:
    """The largest difference, in parts of the largest number of its output."""
    worst = 0.0
    for a, b in zip(before, after, strict=True):
        if a.dtype.kind not in "fiu":
            worst = max(worst, float(not np.array_equal(a, b)))
            continue
        x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
        if x.shape != y.shape or not np.array_equal(np.isfinite(x), np.isfinite(y)):
            return float("inf")
        fine = np.isfinite(x)
        largest = max(float(np.abs(x[fine]).max(initial=0.0)), 1e-6)
        worst = max(worst, float(np.abs(x[fine] - y[fine]).max(initial=0.0)) / largest)
    return worst


def fastest(sessions: list[Any], feed: dict[str, Any], seconds: float) -> list[float]:
    """Least milliseconds of each session, in turns."""
    least = [float("inf")] * len(sessions)
    end = time.perf_counter() + seconds * len(sessions)
    while time.perf_counter() < end:
        for i, session in enumerate(sessions):
            started = time.perf_counter()
            session.run(None, feed)
            least[i] = min(least[i], (time.perf_counter() - started) * 1e3)
    return least


def at_levels(path: Path, feed: dict[str, Any]) -> float:
    """The largest difference that a level makes to no optimisation in a session."""
    answers = []
    for level in (OptLevel.NONE, *LEVELS):
        with InferenceSession(str(path), SessionOptions(optimization_level=level)) as session:
            answers.append([np.array(a) for a in session.run(None, feed)])
    return max(difference(answers[0], other) for other in answers[1:])


def compare(path: Path, seconds: float) -> tuple[float, list[float], float]:
    """Difference and times of onnxruntime before and after, and what levels change here."""
    graph, _ = load_graph(path)
    prepare_graph(graph, SessionOptions())
    feed = feed_of(path, graph)
    better, _ = rewrite(graph, OptLevel.ALL, portable=True)
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / "better.onnx"
        write_model(better, written)
        first = peer(path)
        try:
            before = first.run(None, feed)
        except Exception as error:  # a type of onnxruntime's own for each kind of refusal
            raise Refused(str(error).splitlines()[0]) from error
        sessions = [first, peer(written)]
        after = sessions[1].run(None, feed)
        return difference(before, after), fastest(sessions, feed, seconds), at_levels(path, feed)


def main() -> None:
    """Print one line for each model."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--filter", default="")
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--folder", type=Path, default=Path("build/zoo"))
    given = parser.parse_args()
    paths = [p for p in given.models if re.search(given.filter, p.name)] or make(given.folder, given.filter)
    wrong = []
    for path in paths:
        try:
            off, (before, after), levels = compare(path, given.seconds)
        except Refused as reason:
            print(f"{path.stem:28} random inputs do not suit it: {reason}"[:150], flush=True)
            continue
        times = f"{before:9.3f} ms {after:9.3f} ms {after / before:.3f}"
        print(f"{path.stem:28} off {off:.1e} levels {levels:.1e}  {times}", flush=True)
        wrong += [path.stem] * (max(off, levels) > LIMIT)
    if wrong:
        sys.exit(f"answers differ: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
