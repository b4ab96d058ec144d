"""What holding weights costs: start and memory with model files read into memory, and declared immutable and mapped.

usage: python benchmarks/holding.py MODEL.onnx ... [--rounds 3] [--threads 2]

Each start is a process of its own: cold (an empty cache folder), then warm. Seconds are from the file to the first
result, after import, the least of the rounds; memory is what the process holds beyond what it held after import, in
megabytes: anonymous and of files, after the first run and when the background work is done, and the most it held.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from runtimes import feeds_of

KEYS = ("RssAnon", "RssFile", "VmHWM")


def held() -> dict[str, float]:
    """Megabytes by kind, as the system counts them."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    return {key: int(lines[key].split()[0]) / 1024 for key in KEYS}


def child(path: Path, threads: int, immutable: bool) -> dict[str, object]:
    """Start once, in this process."""
    import pyflame_rt
    from pyflame_rt.cache.store import current_store

    before = held()
    began = time.perf_counter()
    options = pyflame_rt.SessionOptions(num_threads=threads, immutable_model=immutable)
    session = pyflame_rt.InferenceSession(path, options)
    wanted = [(i.name, list(i.shape or []), i.type[7:-1]) for i in session.get_inputs()]
    session.run(None, feeds_of(path, wanted))
    seconds = time.perf_counter() - began
    first = held()
    current_store().flush()
    after = held()
    grown = [{key: round(now[key] - before[key], 1) for key in KEYS} for now in (first, after)]
    return {"seconds": seconds, "first": grown[0], "after": grown[1]}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--child", choices=("held", "mapped"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        print(json.dumps(child(given.models[0], given.threads, given.child == "mapped")))
        return
    titles = ("seconds", "anon", "files", "later", "most", "file")
    print(f"{'model':24s} {'way':7s} {'start':5s}", *(f"{title:>8s}" for title in titles))
    for path in given.models:
        for way in ("held", "mapped"):
            for name, found in starts(path, way, given.rounds, given.threads).items():
                first, after = found["first"], found["after"]
                cells = [first["RssAnon"], first["RssFile"], after["RssAnon"], after["VmHWM"]]
                numbers = [*cells, path.stat().st_size / 2**20]
                print(f"{path.stem:24s} {way:7s} {name:5s} {found['seconds']:8.3f}", *(f"{n:8.1f}" for n in numbers))


def starts(path: Path, way: str, rounds: int, threads: int) -> dict[str, dict]:
    """The quickest cold and warm start."""
    best: dict[str, dict] = {}
    for _ in range(rounds):
        with tempfile.TemporaryDirectory(prefix="pyflame-holding-", ignore_cleanup_errors=True) as folder:
            for name in ("cold", "warm"):
                env = {**os.environ, "PYFLAME_CACHE_DIR": folder}
                command = [sys.executable, __file__, str(path), "--threads", str(threads), "--child", way]
                done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
                found = json.loads(done.stdout)
                if name not in best or found["seconds"] < best[name]["seconds"]:
                    best[name] = found
    return best


if __name__ == "__main__":
    main()
