"""Cases in processes of their own: one that ends a process is a finding, and the rest goes on.

``python -m tests.generated.pool sweep --jobs 2`` checks all cases of a kind, ``--only NUMBER`` one of them,
``--share 50`` each fiftieth.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

__all__ = ["Findings", "main", "run_cases"]

Findings = dict[int, tuple[str, str]]
ROOT = Path(__file__).parents[2]
# A case that is silent for so long is ended.
PATIENCE = 120
# Seconds of CPU time that no case needs.
SLOW = 20
# Address space of a process: what takes more is refused by the system.
MEMORY = 8 << 30


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _work(kind: str, numbers: list[int], options: dict[str, Any]) -> None:
    """In the process of its own: say which case begins, and what came of it."""
    module = importlib.import_module(f"tests.generated.{kind}")
    listed = module.cases()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    for number in numbers:
        _say(json.dumps([number, "begin"]))
        begin = time.process_time()
        said = module.check_case(listed[number], **options)
        _say(json.dumps([number, "end", said, time.process_time() - begin]))


def _run(kind: str, numbers: list[int], options: dict[str, Any], cache: str) -> tuple[list[Any], int, str]:
    """What a process said of the cases, up to the one that ended it (or -1)."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    # A fault of the engine is a finding, also where another way would be taken.
    faults = {"PYFLAME_RAISE_FAULTS": "1"}
    environment = dict(os.environ, PYFLAME_CACHE_DIR=cache, OMP_NUM_THREADS="1", PYTHONPATH=path, **faults)
    command = [sys.executable, "-W", "ignore", "-m", "tests.generated.pool", kind, "--work", json.dumps(options)]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
        env=environment,
    )  # fmt: skip
    out, err, silent = _said(process, json.dumps(numbers))
    how = f"exit status {process.returncode}: {err.strip().splitlines()[-1:] or ''}" if process.returncode else ""
    how = f"no answer within {PATIENCE} s" if silent else how
    rows = [json.loads(line) for line in out.splitlines() if line.startswith("[")]
    open_ = {row[0] for row in rows if row[1] == "begin"} - {row[0] for row in rows if row[1] == "end"}
    return [row for row in rows if row[1] == "end"], min(open_, default=-1), how


def _collect(stream: IO[str], into: list[str]) -> None:
    for line in stream:
        into.append(line)  # noqa: PERF402 - others count the lines meanwhile


def _said(process: subprocess.Popen[str], given: str) -> tuple[str, str, bool]:
    """What a process wrote, and whether it was ended because it was silent for too long."""
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    lines: list[str] = []
    errors: list[str] = []
    readers = [
        threading.Thread(target=_collect, args=(stream, into), daemon=True)
        for stream, into in ((process.stdout, lines), (process.stderr, errors))
    ]
    for reader in readers:
        reader.start()
    process.stdin.write(given)
    process.stdin.close()
    heard, last, silent = -1, time.monotonic(), False
    while process.poll() is None and not silent:
        time.sleep(0.02)
        if len(lines) != heard:
            heard, last = len(lines), time.monotonic()
        silent = time.monotonic() - last > PATIENCE
    if silent:
        process.kill()
    process.wait()
    for reader in readers:
        reader.join()
    process.stdout.close()
    process.stderr.close()
    return "".join(lines), "".join(errors), silent


def run_cases(kind: str, numbers: list[int], *, jobs: int = 1, chunk: int = 100, **options: Any) -> Findings:
    """Findings by the number of the case: (its name, what happened)."""
    listed = importlib.import_module(f"tests.generated.{kind}").cases()
    found: Findings = {}

    def take(part: list[int]) -> None:
        with tempfile.TemporaryDirectory() as cache:
            while part:
                rows, ended, how = _run(kind, part, options, cache)
                for number, _, answered, took in rows:
                    said = answered or (f"took {took:.0f} s" if took > SLOW else "")
                    if said:
                        found[number] = (str(listed[number]), said)
                        sys.stderr.write(f"{number} {listed[number]}\n    {said}\n")  # at once: a long run may be cut
                done = {row[0] for row in rows} | {ended}
                if ended >= 0:
                    found[ended] = (str(listed[ended]), f"ENDED THE PROCESS, {how}")
                elif len(done) == 1:
                    raise RuntimeError(f"the worker said nothing: {how}")
                part = [n for n in part if n not in done]

    parts = [numbers[i : i + chunk] for i in range(0, len(numbers), chunk)]
    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(take, parts))
    return found


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=["sweep", "differential", "varied"])
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--share", type=int, default=1)
    parser.add_argument("--chunk", type=int, default=100, help="cases of one process")
    parser.add_argument("--only", type=int, nargs="*")
    parser.add_argument("--grep", default="", help="cases whose name has this in it")
    parser.add_argument("--option", nargs="*", default=[], help="session options, as name=value in JSON")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work is not None:
        _work(given.kind, json.load(sys.stdin), json.loads(given.work))
        return 0
    listed = importlib.import_module(f"tests.generated.{given.kind}").cases()
    options = {name: json.loads(value) for name, _, value in (item.partition("=") for item in given.option)}
    numbers = given.only or [i for i in range(0, len(listed), given.share) if given.grep in str(listed[i])]
    found = run_cases(given.kind, numbers, jobs=given.jobs, chunk=given.chunk, **options)
    for number, (name, said) in sorted(found.items(), key=lambda item: item[1]):
        _say(f"{number} {name}\n    {said}")
    _say(f"{len(numbers)} cases, {len(found)} findings")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
