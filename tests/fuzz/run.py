"""Damage many files and load each: ``python -m tests.fuzz.run --pfm 100000 --onnx 20000 --jobs 2``.

Run number i of a kind depends on nothing but i and --seed, so any finding can be had again with
``--only pfm:1234``. Files that crash, hang or raise an untyped error are kept in a folder.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import multiprocessing.connection
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from tests.fuzz.check import Hang, check, limit_process
from tests.fuzz.corpus import onnx_seeds, pfm_seeds
from tests.fuzz.mutate import mutate_onnx, mutate_pfm

if TYPE_CHECKING:
    from collections.abc import Iterator

_CHUNK = 200
_CHUNK_SECONDS = 300


def make(kind: str, number: int, seed: int) -> bytes:
    """The damaged file of one run."""
    rng = Random(f"{seed}:{kind}:{number}")
    if kind == "onnx":
        return mutate_onnx(rng, rng.choice(onnx_seeds()), onnx_seeds())
    corpus = pfm_seeds(1 if rng.random() < 0.3 else 2)
    return mutate_pfm(rng, rng.choice(corpus), corpus)


def run_one(kind: str, number: int, seed: int, folder: Path) -> tuple[str, str]:
    """Outcome and, for a finding, what happened."""
    data = make(kind, number, seed)
    file = folder / f"{kind}_{seed}_{number}.{kind}"
    # In place before loading: a crash of the process leaves it behind.
    file.write_bytes(data)
    try:
        outcome = check(data)
    except Hang:
        return "HANG", _place()
    except BaseException as error:  # noqa: BLE001 - every untyped error is a finding
        return "UNTYPED", f"{type(error).__name__}: {str(error)[:160]} {_place()}"
    file.unlink()
    return outcome, ""


def _place() -> str:
    frames = traceback.extract_tb(sys.exc_info()[2])
    ours = [f for f in frames if "/src/" in f.filename] or list(frames)
    return f"at {Path(ours[-1].filename).name}:{ours[-1].lineno} ({ours[-1].name})"


def _work(chunk: tuple[str, range, int, str], results: Any) -> None:
    limit_process()
    kind, numbers, seed, folder = chunk
    for number in numbers:
        results.send((kind, number, *run_one(kind, number, seed, Path(folder))))
    results.close()


def _start(chunk: tuple[str, range, int, str]) -> tuple[Any, Any, tuple[str, range, int, str], float]:
    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=_work, args=(chunk, sender), daemon=True)
    process.start()
    sender.close()
    return process, receiver, chunk, time.monotonic()


def fuzz(counts: dict[str, int], seed: int, jobs: int, folder: Path) -> Iterator[tuple[str, int, str, str]]:
    """(kind, number, outcome, message) of every run; a process that dies is a finding, too."""
    onnx_seeds(), pfm_seeds(1), pfm_seeds(2)  # once, before forking
    chunks = iter(
        [
            (kind, range(start, min(start + _CHUNK, count)), seed, str(folder))
            for kind, count in counts.items()
            for start in range(0, count, _CHUNK)
        ]
    )
    running = [_start(chunk) for chunk in itertools.islice(chunks, jobs)]
    while running:
        ready = multiprocessing.connection.wait([r for _, r, _, _ in running], timeout=5)
        for job in list(running):
            process, receiver, (kind, numbers, *_), started = job
            if receiver not in ready and time.monotonic() - started < _CHUNK_SECONDS:
                continue
            try:
                if receiver not in ready:
                    raise EOFError
                yield receiver.recv()
                continue
            except EOFError:
                running.remove(job)
            process.join(timeout=1)
            if process.exitcode != 0:
                process.kill()
                left = sorted(folder.glob(f"{kind}_{seed}_*"), key=lambda f: f.stat().st_mtime)
                number = int(left[-1].stem.split("_")[-1]) if left else numbers[0]
                yield kind, number, "CRASH", f"exit code {process.exitcode}"
                if number + 1 < numbers.stop:
                    running.append(_start((kind, range(number + 1, numbers.stop), seed, str(folder))))
                    continue
            running += [_start(chunk) for chunk in itertools.islice(chunks, 1)]


def main(arguments: list[str] | None = None) -> int:
    """Run, print counts and findings; 1 when there are any."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pfm", type=int, default=0)
    parser.add_argument("--onnx", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", help="one run, such as pfm:1234, with its traceback")
    given = parser.parse_args(arguments)
    if given.only:
        kind, number = given.only.split(":")
        limit_process()
        sys.stdout.write(check(make(kind, int(number), given.seed)) + "\n")
        return 0
    folder = Path(tempfile.mkdtemp(prefix="fuzz_"))
    started, outcomes, findings = time.perf_counter(), Counter(), 0
    for kind, number, outcome, message in fuzz({"pfm": given.pfm, "onnx": given.onnx}, given.seed, given.jobs, folder):
        outcomes[kind, outcome] += 1
        if message:
            findings += 1
            sys.stdout.write(f"{kind}:{number} {outcome} {message}\n")
    seconds = time.perf_counter() - started
    for (kind, outcome), count in sorted(outcomes.items()):
        sys.stdout.write(f"{kind:5} {outcome:26} {count}\n")
    sys.stdout.write(f"{outcomes.total()} runs in {seconds:.0f} s, {findings} findings, kept in {folder}\n")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
