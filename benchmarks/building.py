"""What lazy graphs cost: recording an operator, evaluating a small one, memory over many; status 1 beyond the bounds.

usage: python benchmarks/building.py [--rounds 10000]
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
from typing import TYPE_CHECKING, Any

import numpy as np

import pyflame as pf

if TYPE_CHECKING:
    from collections.abc import Callable

BOUND = 12.0  # microseconds for recording an operator
GROWTH = 2.0  # megabytes over all rounds after the first tenth
CHAIN = 200
ROWS = np.array([0, 2])


def recorded() -> dict[str, tuple[int, Callable[[Any, Any], Any]]]:
    """Functions that record some operators, and how many."""
    return {
        "elementwise: relu(x + y) * 0.5": (3, lambda x, y: pf.relu(x + y) * 0.5),
        "with a number: x + 1.0": (1, lambda x, _: x + 1.0),
        "product: x @ y": (1, lambda x, y: x @ y),
        "slice: x[1:3]": (1, lambda x, _: x[1:3]),
        "element: x[0, 1]": (2, lambda x, _: x[0, 1]),
        "gather: x[[0, 2]]": (1, lambda x, _: x[[0, 2]]),
        "gather: x[:, [0, 2]]": (1, lambda x, _: x[:, [0, 2]]),
        "gather: x[array]": (1, lambda x, _: x[ROWS]),
        "elements: x[[0, 1], [1, 2]]": (1, lambda x, _: x[[0, 1], [1, 2]]),
        "sum of an axis": (1, lambda x, _: x.sum(dim=1)),
        "mean of all": (1, lambda x, _: x.mean()),
        "transpose and reshape": (2, lambda x, _: x.T.reshape([2, 8])),
        "softmax": (1, lambda x, _: pf.softmax(x, dim=-1)),
    }


def recording_cost(function: Callable[[Any, Any], Any], operators: int, *, gradients: bool) -> float:
    """Microseconds for an operator, the best of some rounds; nothing is evaluated."""
    x, y = (pf.tensor(np.ones((4, 4), np.float32), requires_grad=gradients) for _ in range(2))
    pf.eval(x, y)
    best = float("inf")
    for _ in range(15):
        start = time.perf_counter()
        kept = [function(x, y) for _ in range(CHAIN)]
        best = min(best, time.perf_counter() - start)
        del kept
    return best / CHAIN / operators * 1e6


def evaluated() -> dict[str, tuple[Callable[[], Any], Callable[[], Any], Callable[[], Any] | None]]:
    """Small work that is evaluated at once: here, in NumPy, and in torch where it is installed."""
    a, b = np.ones((4, 4), np.float32), np.full((4, 4), 2, np.float32)
    x, y = pf.tensor(a), pf.tensor(b)
    pf.eval(x, y)
    try:
        import torch
    except ModuleNotFoundError:
        return {"x + y": (lambda: pf.eval(x + y), lambda: a + b, None)}
    s, t = torch.from_numpy(a), torch.from_numpy(b)
    return {
        "x + y": (lambda: pf.eval(x + y), lambda: a + b, lambda: s + t),
        "x @ y": (lambda: pf.eval(x @ y), lambda: a @ b, lambda: s @ t),
        "x.sum()": (lambda: pf.eval(x.sum()), lambda: a.sum(), lambda: s.sum()),
        "relu(x * y + x).sum()": (
            lambda: pf.eval(pf.relu(x * y + x).sum()),
            lambda: np.maximum(a * b + a, 0).sum(),
            lambda: torch.relu(s * t + s).sum(),
        ),
    }


def microseconds(call: Callable[[], Any], number: int = 300) -> float:
    """The best round's time of one call."""
    best = float("inf")
    for _ in range(8):
        start = time.perf_counter()
        for _ in range(number):
            call()
        best = min(best, time.perf_counter() - start)
    return best / number * 1e6


def growth(rounds: int) -> tuple[float, int]:
    """Megabytes and objects that building, evaluating and dropping left behind, after the first tenth of the rounds."""
    rng = np.random.default_rng(0)
    w = pf.tensor(rng.normal(size=(16, 16)).astype(np.float32), requires_grad=True)
    before = (0.0, 0)
    for i in range(rounds):
        if i == rounds // 10:
            before = held()
        x = pf.tensor(rng.normal(size=(8, 16)).astype(np.float32))
        loss = (pf.tanh(x @ w) * float(rng.normal()) + i).sum()
        loss.backward()
        pf.eval(loss, w.grad)
        w.grad = None
        y = x[i % 8] + float(i)
        y[0] = loss.item()
        pf.eval(y)
    del x, y, loss
    after = held()
    return after[0] - before[0], after[1] - before[1]


def held() -> tuple[float, int]:
    """Megabytes this process holds, and objects the collector knows of."""
    gc.collect()
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20, len(gc.get_objects())


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10_000, help="of building, evaluating and dropping")
    rounds = parser.parse_args().rounds
    late = False
    print(f"{'recording':34} {'us/operator':>12} {'with gradients':>15} {'bound':>6}")
    for name, (operators, function) in recorded().items():
        plain, tracked = (recording_cost(function, operators, gradients=g) for g in (False, True))
        late |= max(plain, tracked) > BOUND
        print(f"{name:34} {plain:12.2f} {tracked:15.2f} {BOUND:6.0f}")
    print(f"\n{'evaluating, 4 x 4 numbers':34} {'us':>12} {'NumPy':>15} {'torch':>8}")
    for name, (ours, numpy, torch) in evaluated().items():
        other = "-" if torch is None else f"{microseconds(torch):.2f}"
        print(f"{name:34} {microseconds(ours):12.2f} {microseconds(numpy):15.2f} {other:>8}")
    megabytes, objects = growth(rounds)
    late |= megabytes > GROWTH
    left = f"{megabytes:+.2f} MB, {objects:+d} objects"
    print(f"\n{rounds} rounds of building, evaluating, dropping: {left} (bound {GROWTH} MB)")
    return int(late)


if __name__ == "__main__":
    sys.exit(main())
