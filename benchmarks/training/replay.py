"""What a replayed step costs in Python: the time of a call less the time in machine code; status 1 beyond the bound.

With --torch: the same of each model's forward at batch 1, against the whole of torch's eager forward in the same run.

usage: python benchmarks/training/replay.py [--quick] [--torch] [--filter gpt,lstm] [--seconds 4]
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import sys
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import twins
from worker import QUICK

import pyflame as pf
from pyflame import models
from pyflame_rt.backends.cpu.driver.entry import enter
from pyflame_rt.backends.cpu.jit.compiler import address_of
from pyflame_rt.backends.cpu.run import fast_path as fast

if TYPE_CHECKING:
    from collections.abc import Callable

BOUND = 50.0  # microseconds
SHARE = 0.5  # of torch's eager forward
WARM = 6  # calls before the clock runs: traces without and with old gradients, and two to settle
LEAST = 10  # calls that are timed, however long they take

# Nanoseconds that machine code took.
_native = ctypes.c_int64()


class Case(NamedTuple):
    """A compiled function with what it is called with."""

    call: Callable[[], Any]
    functions: list[Any]
    tensors: int


def watch_entries() -> None:
    """Time all machine code from now on, by machine code: whatever else a call takes counts as Python."""
    inner, clock = (
        ctypes.cast(enter(), ctypes.c_void_p).value,
        ctypes.cast(ctypes.CDLL(None).clock_gettime, ctypes.c_void_p).value,
    )
    text = f"""
define i64 @timed_enter(ptr %way, ptr %places) {{
  %a = alloca [2 x i64]
  %b = alloca [2 x i64]
  %clock = inttoptr i64 {clock} to ptr
  %inner = inttoptr i64 {inner} to ptr
  %sum = inttoptr i64 {ctypes.addressof(_native)} to ptr
  %first = call i32 %clock(i32 1, ptr %a)
  %status = call i64 %inner(ptr %way, ptr %places)
  %last = call i32 %clock(i32 1, ptr %b)
  %a0 = load i64, ptr %a
  %b0 = load i64, ptr %b
  %a1p = getelementptr i64, ptr %a, i64 1
  %b1p = getelementptr i64, ptr %b, i64 1
  %a1 = load i64, ptr %a1p
  %b1 = load i64, ptr %b1p
  %s = sub i64 %b0, %a0
  %sn = mul i64 %s, 1000000000
  %n = sub i64 %b1, %a1
  %d = add i64 %sn, %n
  %before = load i64, ptr %sum
  %after = add i64 %before, %d
  store i64 %after, ptr %sum
  ret i64 %status
}}"""
    address = address_of("timed_enter", text)
    timed = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_void_p] * 2)(address)
    fast.enter = lambda: timed  # type: ignore[assignment]


def training(twin: Any) -> Case:
    """Forward, backward, Adam."""
    x, y = pf.from_numpy(twin.inputs), pf.from_numpy(twin.targets)
    optimizer = pf.optim.Adam(twin.ours.parameters(), lr=1e-3)
    step = twins.our_step(twin.ours, optimizer)
    return Case(lambda: step(x, y), [step], 4 * len(list(twin.ours.parameters())))


def inference(twin: Any) -> Case:
    """The model alone."""
    model, x = twin.ours.eval(), pf.from_numpy(twin.inputs)
    step = pf.compile(lambda x: model(x))

    pf.set_grad_enabled(False)  # until the case is measured
    return Case(lambda: step(x), [step], len(list(model.parameters())))


def accumulating(twin: Any, parts: int = 2) -> Case:
    """Gradients of several batches are added up before they are used: two compiled functions in turn."""
    model, x, y = twin.ours, pf.from_numpy(twin.inputs), pf.from_numpy(twin.targets)
    optimizer = pf.optim.Adam(model.parameters(), lr=1e-3)

    def backward(x: Any, y: Any) -> Any:
        scores = model(x)
        loss = pf.nn.functional.cross_entropy(scores.reshape([-1, scores.shape[-1]]), y.flatten()) / parts
        loss.backward()
        return loss

    def update() -> None:
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)

    functions = [pf.compile(backward), pf.compile(update)]
    turn = [0]

    def call() -> Any:
        turn[0] = (turn[0] + 1) % (parts + 1)
        return functions[1]() if turn[0] == 0 else functions[0](x, y)

    return Case(call, functions, 4 * len(list(model.parameters())))


def alternating(*cases: Case) -> Case:
    """One after the other."""
    turn = [0]

    def call() -> Any:
        turn[0] = (turn[0] + 1) % len(cases)
        return cases[turn[0]].call()

    return Case(call, [f for case in cases for f in case.functions], sum(case.tensors for case in cases))


def dropout(sizes: dict[str, Any]) -> Case:
    """The GPT with dropout."""
    twin = twins.gpt(sides="ours", **sizes)
    chosen = {"vocab": 4096, "length": 128, "size": 384, "layers": 6, "heads": 6} | sizes
    config = models.GPT2Config(*(chosen[k] for k in ("vocab", "length", "size", "layers", "heads")), dropout=0.1)
    return training(twin._replace(ours=models.GPT2(config)))


def training_and_inference(twin: Any) -> Case:
    """A training step and the model's answers, in turn, in training mode both: batches of validation in between."""
    model = twin.ours
    answers = pf.compile(lambda x: model(x))
    x = pf.from_numpy(twin.inputs)

    def ask() -> Any:
        with pf.no_grad():
            return answers(x)

    return alternating(training(twin), Case(ask, [answers], 0))


def cases(quick: bool) -> dict[str, Callable[[], Case]]:
    """What is measured, by name."""
    sizes = QUICK if quick else {name: {} for name in QUICK}

    def twin(name: str) -> Any:
        return twins.TWINS[name](sides="ours", **sizes[name])

    return {
        "mlp": lambda: training(twin("mlp")),
        "gpt": lambda: training(twin("gpt")),
        "resnet18": lambda: training(twin("resnet18")),
        "lstm": lambda: training(twin("lstm")),
        "mlp inference": lambda: inference(twin("mlp")),
        "gpt inference": lambda: inference(twin("gpt")),
        "gpt dropout": lambda: dropout(sizes["gpt"]),
        "mlp accumulating": lambda: accumulating(twin("mlp")),
        "gpt accumulating": lambda: accumulating(twin("gpt")),
        "gpt training, inference": lambda: training_and_inference(twin("gpt")),
        "two mlps": lambda: alternating(training(twin("mlp")), training(twin("mlp"))),
    }


def measure(case: Case, seconds: float) -> tuple[list[float], list[float]]:
    """Microseconds in Python and in machine code, of each call."""
    for _ in range(WARM * len(case.functions) + 4):
        case.call()
    python, native = [], []
    clock, until = time.perf_counter_ns, time.perf_counter() + seconds
    while len(python) < LEAST or (time.perf_counter() < until and len(python) < 5000):
        _native.value = 0
        start = clock()
        case.call()
        whole = clock() - start
        if not _native.value:
            raise RuntimeError("the call did not enter machine code by the short way")
        python.append((whole - _native.value) / 1e3)
        native.append(_native.value / 1e3)
    return python, native


def forward_of_torch(twin: Any, seconds: float) -> float:
    """Microseconds of torch's eager forward."""
    import torch

    torch.set_num_threads(1)
    model, x, times = twin.theirs.eval(), torch.from_numpy(twin.inputs), []
    until = time.perf_counter() + seconds
    with torch.no_grad():
        while len(times) < LEAST or time.perf_counter() < until:
            start = time.perf_counter_ns()
            model(x)
            times.append((time.perf_counter_ns() - start) / 1e3)
    return statistics.median(times)


def against_torch(quick: bool, wanted: list[str], seconds: float) -> int:
    """A replay's own cost against torch's eager forward, at batch 1."""
    print(f"{'forward, batch 1':24} {'python us':>10} {'torch us':>10} {'share':>6} {'bound':>6}")
    late = False
    for name, sizes in QUICK.items():
        if not any(part in name for part in wanted):
            continue
        twin = twins.TWINS[name](**{**(sizes if quick else {}), "batch": 1})
        python = statistics.median(measure(inference(twin), seconds)[0])
        pf.set_grad_enabled(True)
        theirs = forward_of_torch(twin, seconds)
        late |= python > SHARE * theirs
        print(f"{name:24} {python:10.1f} {theirs:10.1f} {python / theirs:6.2f} {SHARE:6.2f}", flush=True)
    return int(late)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="tiny models")
    parser.add_argument("--torch", action="store_true", help="compare with torch's eager forward at batch 1")
    parser.add_argument("--filter", default="", help="names, or parts of them, with commas between them")
    parser.add_argument("--seconds", type=float, default=4.0, help="for each of them")
    options = parser.parse_args()
    watch_entries()
    wanted = options.filter.split(",")
    if options.torch:
        return against_torch(options.quick, wanted, options.seconds)
    late = False
    head = f"{'step':24} {'tensors':>8} {'calls':>6} {'native ms':>10}"
    print(f"{head} {'python us':>10} {'90 %':>7} {'bound':>6}")
    known = cases(options.quick)
    for name, make in known.items():
        if not any(part == name or (part not in known and part in name) for part in wanted):
            continue
        case = make()
        python, native = measure(case, options.seconds)
        pf.set_grad_enabled(True)
        middle, most = statistics.median(python), statistics.quantiles(python, n=10)[-1]
        late |= middle > BOUND
        head = f"{name:24} {case.tensors:8} {len(python):6} {statistics.median(native) / 1e3:10.2f}"
        print(f"{head} {middle:10.1f} {most:7.1f} {BOUND:6.0f}", flush=True)
        del case
    return int(late)


if __name__ == "__main__":
    sys.exit(main())
