"""This checkout beside another one of the same project: time of a run, cold and warm start, with geometric means.

usage: python benchmarks/against.py CHECKOUT [MODEL.onnx ...] [--rounds 3] [--seconds 1] [--filter EXPRESSION]

Both checkouts measure with their own scripts, in turn, each in a process of its own with a cache folder of its own, on
memory that is ready: a virtual machine may have given it back, and who comes second finds what the first left. A ratio
is this checkout's figure over the other's: below one is faster. Runs are medians over rounds, starts the least.
`--environment NAME=VALUE` is for this checkout alone, as `PYFLAME_FAST_MATH=1` where the other knows no other way.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parents[1]
FIGURES = {"run": statistics.median, "cold": min, "warm": min}


READY = 1 << 30  # bytes


def have_memory_ready() -> None:
    """Touch memory and free it: where the host had it, a first touch takes 1.5 ms for 1 MB, and 0.06 after that."""
    np.ones(READY, np.uint8)


def asked(checkout: Path, script: str, arguments: list[str], environment: dict[str, str]) -> object:
    """What one of a checkout's own scripts prints, as JSON."""
    command = [sys.executable, str(checkout / "benchmarks" / script), *arguments]
    environment = {**os.environ, "PYTHONPATH": str(checkout / "src"), **environment}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # modules would be compiled at every start
    have_memory_ready()
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=900, check=False)
    if done.returncode:
        raise SystemExit(f"{checkout} {script} {' '.join(arguments)}: {done.stderr.strip().splitlines()[-1]}")
    return json.loads(done.stdout.splitlines()[-1])


def one_round(checkout: Path, path: Path, threads: int, seconds: float, extra: dict[str, str]) -> dict[str, float]:
    """Seconds of a cold start, the warm one after it, and a run."""
    with tempfile.TemporaryDirectory(prefix="pyflame-against-", ignore_cleanup_errors=True) as folder:
        environment = {"PYFLAME_CACHE_DIR": folder, "OMP_NUM_THREADS": str(threads), **extra}
        start = ["--child", "pyflame", str(path), "--threads", str(threads)]
        cold = asked(checkout, "start.py", start, environment)
        warm = asked(checkout, "start.py", start, environment)
        run = asked(checkout, "runtimes.py", ["pyflame", str(path), str(threads), str(seconds)], environment)
        return {"run": run["median"], "cold": cold, "warm": warm}  # type: ignore[index,dict-item] - the scripts' JSON


def ratios_of(ours: list[dict[str, float]], theirs: list[dict[str, float]]) -> dict[str, float]:
    """Ours over theirs for each figure."""
    return {
        name: pick([row[name] for row in ours]) / pick([row[name] for row in theirs]) for name, pick in FIGURES.items()
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--filter", default="", help="a regular expression on the names")
    parser.add_argument("--environment", action="append", default=[], metavar="NAME=VALUE")
    given = parser.parse_args()
    extra = dict(pair.split("=", 1) for pair in given.environment)
    models = given.models or sorted(Path("build/zoo").glob("*.onnx"))
    models = [path.resolve() for path in models if re.search(given.filter, path.stem)]
    if not models:
        raise SystemExit("no model: name some, or run `make bench` once, which builds the zoo")
    print(f"{'ours over theirs':26s} {'run':>6s} {'cold':>6s} {'warm':>6s}   ms of a run: ours, theirs")
    table: list[dict[str, float]] = []
    for path in models:
        ours, theirs = [], []
        for _ in range(given.rounds):
            ours.append(one_round(HERE, path, given.threads, given.seconds, extra))
            theirs.append(one_round(given.checkout.resolve(), path, given.threads, given.seconds, {}))
        table.append(ratios_of(ours, theirs))
        times = [1e3 * statistics.median(row["run"] for row in rows) for rows in (ours, theirs)]
        print(
            f"{path.stem:26s}",
            *(f"{table[-1][n]:6.3f}" for n in FIGURES),
            f"  {times[0]:.3f} {times[1]:.3f}",
            flush=True,
        )
    means = {n: math.exp(statistics.fmean(math.log(row[n]) for row in table)) for n in FIGURES}
    print(f"{'geometric mean':26s}", *(f"{mean:6.3f}" for mean in means.values()))


if __name__ == "__main__":
    main()
