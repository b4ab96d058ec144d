"""Load + first run after import, cold (an empty cache folder) and warm, beside onnxruntime and openvino.

usage: python benchmarks/start.py [MODEL.onnx ...] [--rounds 3] [--threads 2] [--filter EXPRESSION]

Every figure is the least of its rounds, each measured in a process of its own. A warm start is the one after a cold
start that ended right after its first run, so the background work of the cold one is as good as never done.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from runtimes import RUNTIMES, installed, prepare

PEERS = ("onnxruntime", "openvino")


def measure(runtime: str, path: Path, threads: int) -> float:
    """Seconds from the file to the first result, in this process."""
    importlib.import_module("pyflame_rt.ort" if runtime == "pyflame" else RUNTIMES[runtime])
    began = time.perf_counter()
    prepare(runtime, path, threads)()
    return time.perf_counter() - began


def started(runtime: str, path: Path, threads: int, cache: str | None = None) -> float:
    """The same in a process of its own."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    if cache is not None:
        environment["PYFLAME_CACHE_DIR"] = cache
    command = [sys.executable, __file__, "--child", runtime, str(path), "--threads", str(threads)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)
    if done.returncode:
        raise SystemExit(f"{runtime} on {path.name}: {done.stderr.strip().splitlines()[-1]}")
    return json.loads(done.stdout)


def figures(path: Path, runtimes: list[str], rounds: int, threads: int) -> dict[str, float]:
    """Least seconds of each start."""
    least: dict[str, float] = {}
    for _ in range(rounds):
        with tempfile.TemporaryDirectory(prefix="pyflame-start-", ignore_cleanup_errors=True) as folder:
            starts = [(peer, peer, None) for peer in PEERS if peer in runtimes]
            for name, runtime, cache in [*starts, ("cold", "pyflame", folder), ("warm", "pyflame", folder)]:
                took = started(runtime, path, threads, cache)
                least[name] = min(took, least.get(name, took))
    return least


def line(name: str, row: dict[str, float]) -> str:
    """One line of the table: seconds, then ratios of the cold and warm start to each peer."""
    cells = [f"{name:26s}", *(f"{row[n]:8.3f}" for n in row)]
    cells += [f"{row[ours] / row[peer]:6.2f}" for peer in PEERS if peer in row for ours in ("cold", "warm")]
    return " ".join(cells)


def summary(rows: dict[str, dict[str, float]]) -> list[str]:
    """Geometric means and worst ratios."""
    lines = []
    for peer in PEERS:
        for ours in ("cold", "warm"):
            ratios = {name: row[ours] / row[peer] for name, row in rows.items() if peer in row}
            if ratios:
                mean = math.exp(sum(map(math.log, ratios.values())) / len(ratios))
                worst = max(ratios, key=lambda name: ratios[name])
                lines.append(f"{ours} / {peer}: geometric mean {mean:.2f}, worst {ratios[worst]:.2f} ({worst})")
    return lines


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--filter", default="", help="a regular expression on the names")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        print(json.dumps(measure(given.child, given.models[0], given.threads)))
        return
    models = given.models or sorted(Path("build/zoo").glob("*.onnx"))
    models = [path for path in models if re.search(given.filter, path.stem)]
    if not models:
        raise SystemExit("no model: name some, or run `make bench` once, which builds the zoo")
    rows: dict[str, dict[str, float]] = {}
    runtimes = installed()
    for path in models:
        rows[path.stem] = row = figures(path, runtimes, given.rounds, given.threads)
        if len(rows) == 1:
            ratios = [f"{ours}/{peer[:3]}" for peer in PEERS if peer in row for ours in ("cold", "warm")]
            print(" ".join([f"{'seconds':26s}", *(f"{n[:8]:>8s}" for n in row), *ratios]))
        print(line(path.stem, row), flush=True)
    print("\n".join(summary(rows)))


if __name__ == "__main__":
    main()
