"""Drawn models under valgrind: no read or write outside of what was allocated, no answer from memory nobody wrote.

``python -m tests.generated.valgrind --count 100`` draws models of `tests.generated.differential`, spread over all of
them; each is run at several sizes and with a wrong feed, natively and by the reference. Valgrind sees generated code
with ``--smc-check=all-non-file``, and Python's objects one by one with ``PYTHONMALLOC=malloc``.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.generated.differential import cases, check_case

ROOT = Path(__file__).parents[2]
TOOL = ["--smc-check=all-non-file", "--error-limit=no", "--leak-check=no", "--num-callers=16", "--read-var-info=no"]
SECONDS = 3600  # of one process


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def run_under(numbers: list[int], log: Path, cache: str) -> str:
    """What valgrind found while these models ran, or how the process ended; "" when all is well."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment = dict(os.environ, PYTHONMALLOC="malloc", PYFLAME_CACHE_DIR=cache, OMP_NUM_THREADS="1", PYTHONPATH=path)
    supplied = Path(__file__).with_suffix(".supp")
    command = ["valgrind", *TOOL, f"--suppressions={supplied}", f"--log-file={log}", sys.executable, "-W", "ignore"]
    command += ["-m", "tests.generated.valgrind", "--work", *map(str, numbers)]
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=SECONDS
    )
    found = log.read_text("utf-8", "replace")
    summary = re.findall(r"ERROR SUMMARY: (\d+) errors", found)
    if done.returncode or not summary:
        return f"exit status {done.returncode}: {done.stdout.strip()}\n{done.stderr[-2000:]}"
    return "" if summary[-1] == "0" else found


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100, help="models to draw")
    parser.add_argument("--first", type=int, default=0, help="number of the first of them")
    parser.add_argument("--chunk", type=int, default=10, help="models of one process")
    parser.add_argument("--work", type=int, nargs="*", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work is not None:
        said = [f"model {n}: {text}" for n in given.work if (text := check_case(cases()[n]))]
        _say("\n".join(said))
        return int(bool(said))
    if shutil.which("valgrind") is None:
        _say("valgrind is not installed here")
        return 2
    step = max(1, len(cases()) // max(given.count, 1))
    numbers = [(given.first + i * step) % len(cases()) for i in range(given.count)]
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        for i in range(0, len(numbers), given.chunk):
            part = numbers[i : i + given.chunk]
            found = run_under(part, Path(folder, "log"), folder)
            wrong += bool(found)
            _say(f"models {', '.join(map(str, part))}: {found or 'nothing found'}")
    _say(f"{len(numbers)} models, {wrong} processes with findings")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
