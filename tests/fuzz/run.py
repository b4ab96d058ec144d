"""Damage many files and load each: ``python -m tests.fuzz.run --pfm 100000 --onnx 20000 --jobs 2``.

Run number i of a kind depends on nothing but i and --seed, so any finding can be had again with
``--only pfm:1234``. Files that crash, hang or raise an untyped error are kept in a folder.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from tests.fuzz.check import SECONDS, Hang, check, limit_process
from tests.fuzz.corpus import onnx_seeds, pfm_seeds
from tests.fuzz.mutate import mutate_onnx, mutate_pfm

if TYPE_CHECKING:
    from collections.abc import Iterator
from multiprocessing.connection import wait

Outcome = tuple[str, int, str, str]  # kind, number, outcome, message
_CHUNK = 200
# Alarms do not end native code: a process that is silent for so long is ended from outside.
_SILENCE = SECONDS + 10


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


def _work(kind: str, numbers: range, seed: int, folder: Path, results: Any) -> None:
    limit_process()
    for number in numbers:
        results.send((kind, number, *run_one(kind, number, seed, folder)))
    results.close()


class _Job:
    """A process at work on a range of runs; what it sends is the outcome of one run after the other."""

    def __init__(self, kind: str, numbers: range, seed: int, folder: Path) -> None:
        self.kind, self.numbers, self.seed, self.folder = kind, numbers, seed, folder
        self.receiver, sender = multiprocessing.Pipe(duplex=False)
        context = multiprocessing.get_context("fork")
        self.process = context.Process(target=_work, args=(kind, numbers, seed, folder, sender), daemon=True)
        self.process.start()
        sender.close()
        self.done, self.heard = 0, time.monotonic()

    def receive(self) -> Outcome | None:
        """The next outcome; None when the process has ended."""
        try:
            outcome = self.receiver.recv()
        except EOFError:
            return None
        self.done, self.heard = self.done + 1, time.monotonic()
        return outcome

    def finish(self) -> tuple[list[Outcome], list[_Job]]:
        """What is left to report, and a process for the rest of the range after one that died."""
        self.process.join(timeout=1)
        code = self.process.exitcode
        self.process.kill()
        if self.done == len(self.numbers):
            return [], []
        number, rest = self.numbers[self.done], self.numbers[self.done + 1 :]
        found: Outcome = (self.kind, number, "HANG" if code is None else "CRASH", f"exit code {code}")
        return [found], [_Job(self.kind, rest, self.seed, self.folder)] if rest else []


def fuzz(counts: dict[str, int], seed: int, jobs: int, folder: Path) -> Iterator[Outcome]:
    """The outcome of every run; a process that dies is a finding, too."""
    onnx_seeds(), pfm_seeds(1), pfm_seeds(2)  # once, before forking
    starts = [(kind, start) for kind, count in counts.items() for start in range(0, count, _CHUNK)]
    ranges = iter([(kind, range(start, min(start + _CHUNK, counts[kind]))) for kind, start in starts])
    running = [_Job(*item, seed, folder) for item in itertools.islice(ranges, jobs)]
    while running:
        ready = wait([job.receiver for job in running], timeout=1)
        for job in list(running):
            if job.receiver in ready:
                outcome = job.receive()
                if outcome is not None:
                    yield outcome
                    continue
            elif time.monotonic() - job.heard < _SILENCE:
                continue
            running.remove(job)
            found, more = job.finish()
            yield from found
            running += more or [_Job(*item, seed, folder) for item in itertools.islice(ranges, 1)]


def main(arguments: list[str] | None = None) -> int:
    """Run, print counts and findings; 1 when there are any."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pfm", type=int, default=0)
    parser.add_argument("--onnx", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--provider", default="ReferenceExecutionProvider")
    parser.add_argument("--only", help="one run, such as pfm:1234, with its traceback")
    given = parser.parse_args(arguments)
    os.environ["FUZZ_PROVIDER"] = given.provider
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
