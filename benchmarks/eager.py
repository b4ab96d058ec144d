"""Uncompiled work here and in torch's eager mode, in one process and in turns. See README.md.

Every program is written once, for a library that is passed in. CPU time counts (one thread each), of the best round.
"""

from __future__ import annotations

import math
import os
import statistics
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import typer
from rich.console import Console
from rich.table import Table

import pyflame

if TYPE_CHECKING:
    from collections.abc import Callable

    Program = Callable[[Any], Callable[[], Any]]


def mlp_step(lib: Any) -> Callable[[], Any]:
    """A step of a perceptron, 784-256-10, batch 64."""
    nn = lib.nn
    net = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))
    return _step(lib, net, lib.randn(64, 784), lib.zeros(64, dtype=lib.int64), nn.CrossEntropyLoss())


def transformer_step(lib: Any) -> Callable[[], Any]:
    """A step of one transformer block, width 64, 4 heads, 4 sequences of 16."""
    block = lib.nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
    return _step(lib, block, lib.randn(4, 16, 64), lib.zeros(4, 16, 64), lib.nn.MSELoss())


def lstm_step(lib: Any) -> Callable[[], Any]:
    """A step of an LSTM of two layers, width 64, 8 sequences of 16."""
    lstm = lib.nn.LSTM(32, 64, 2, batch_first=True)
    x, y, loss_fn = lib.randn(8, 16, 32), lib.zeros(8, 16, 64), lib.nn.MSELoss()
    optimizer = lib.optim.SGD(lstm.parameters(), lr=0.01)

    def step() -> None:
        optimizer.zero_grad()
        loss = loss_fn(lstm(x)[0], y)
        loss.backward()
        optimizer.step()
        loss.item()

    return step


def _step(lib: Any, net: Any, x: Any, y: Any, loss_fn: Any) -> Callable[[], Any]:
    optimizer = lib.optim.SGD(net.parameters(), lr=0.01)

    def step() -> None:
        optimizer.zero_grad()
        loss = loss_fn(net(x), y)
        loss.backward()
        optimizer.step()
        loss.item()

    return step


def forward(lib: Any) -> Callable[[], Any]:
    """A perceptron of three layers at batch 1, without gradients."""
    nn = lib.nn
    net, x = (
        nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)),
        lib.randn(1, 32),
    )

    def run() -> None:
        with lib.no_grad():
            net(x).sum().item()

    return run


def element_updates(lib: Any) -> Callable[[], Any]:
    """50 updates of one element."""

    def run() -> None:
        x = lib.zeros(100)
        for i in range(50):
            x[i] = x[i] + 1.0
        x.sum().item()

    return run


def small_sum(lib: Any) -> Callable[[], Any]:
    """(x + 1).sum().item() of 100 numbers."""
    x = lib.randn(100)
    return lambda: (x + 1).sum().item()


PROGRAMS: dict[str, Program] = {
    "MLP step": mlp_step,
    "transformer block step": transformer_step,
    "LSTM step": lstm_step,
    "forward, batch 1": forward,
    "50 element updates": element_updates,
    "(x + 1).sum().item()": small_sum,
}


def manual_updates(steps: int) -> Callable[[], float]:
    """Updates without an optimizer: seconds for so many of them, after as many."""
    p, ema = pyflame.ones([10]), pyflame.ones([10])
    state = {"x": pyflame.zeros([10])}

    def run() -> float:
        begin = time.process_time()
        for _ in range(steps):
            with pyflame.no_grad():
                p.sub_(p * 0.001)
                p.data.add_(0.001)
                ema.mul_(0.9).add_(p * 0.1)
            state["x"] = state["x"] + 1
        return time.process_time() - begin

    return run


def timed(run: Callable[[], Any], seconds: float) -> float:
    """CPU seconds of one run, by as many as fit into some time."""
    count, begin = 0, time.process_time()
    while True:
        run()
        count += 1
        spent = time.process_time() - begin
        if spent >= seconds:
            return spent / count


def measure(names: list[str], rounds: int, seconds: float) -> dict[str, tuple[float, float]]:
    """Best CPU seconds here and in torch, by program; rounds are interleaved."""
    found = {}
    for name in names:
        runs = [PROGRAMS[name](lib) for lib in (pyflame, torch)]
        for run in runs:
            run(), run(), run()
        times = [[timed(run, seconds) for run in runs] for _ in range(rounds)]
        found[name] = (min(t[0] for t in times), min(t[1] for t in times))
    return found


def growth(rounds: int) -> float:
    """How much longer 500 manual updates take after 10,000 than at the beginning."""
    run = manual_updates(500)
    run()
    early = min(run() for _ in range(rounds))
    manual_updates(10_000)()
    for _ in range(20):
        run()
    return min(run() for _ in range(rounds)) / early


def main(
    programs: Annotated[str, typer.Option(help="names, comma-separated; all by default")] = "",
    rounds: Annotated[int, typer.Option(help="rounds of each")] = 7,
    seconds: Annotated[float, typer.Option(help="CPU seconds for one measurement")] = 0.2,
    check: Annotated[bool, typer.Option(help="fail above 1.0 in the mean, 1.5 in one, 1.3 in growth")] = False,
) -> None:
    """Compare uncompiled work with torch's."""
    torch.set_num_threads(1)
    names = [name.strip() for name in programs.split(",")] if programs else list(PROGRAMS)
    table = Table("program", "pyflame µs", "torch µs", "ratio")
    ratios = []
    for name, (ours, theirs) in measure(names, rounds, seconds).items():
        ratios.append(ours / theirs)
        table.add_row(name, f"{ours * 1e6:.1f}", f"{theirs * 1e6:.1f}", f"{ours / theirs:.2f}")
    mean = math.exp(statistics.fmean(map(math.log, ratios)))
    grown = growth(rounds) if not programs else 1.0
    console = Console()
    console.print(table)
    console.print(
        f"geometric mean {mean:.2f}, worst {max(ratios):.2f}; updates after 10,000 others take {grown:.2f} of the time"
    )
    if check and (mean > 1.0 or max(ratios) > 1.5 or grown > 1.3):
        sys.exit(1)


if __name__ == "__main__":
    typer.run(main)
