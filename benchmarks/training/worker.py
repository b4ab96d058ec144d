"""Trains one model in one way and measures it: the program that run.py starts, a process for each measurement."""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from runtimes import forget_peak, peak_mb

if TYPE_CHECKING:
    from collections.abc import Callable

WAYS = ("pyflame", "torch", "torch.compile")
WARM = 3  # steps before the clock runs: two traces (without and with old gradients), one to settle
QUICK: dict[str, dict[str, Any]] = {  # sizes of tiny models
    "mlp": {"sizes": [32, 64, 64, 10], "batch": 16},
    "resnet18": {"batch": 2, "size": 16},
    "gpt": {"vocab": 64, "length": 16, "size": 32, "layers": 1, "heads": 2, "batch": 2},
    "lstm": {"vocab": 40, "size": 16, "layers": 1, "length": 6, "batch": 2},
}


def prepare_ours(name: str, sizes: dict[str, Any]) -> tuple[Callable[[], float], Callable[[], None]]:
    """Our compiled step, and the same without reading the loss."""
    import twins

    import pyflame as pf

    twin = twins.TWINS[name](sides="ours", **sizes)
    x, y = pf.from_numpy(twin.inputs), pf.from_numpy(twin.targets)
    step = twins.our_step(twin.ours, pf.optim.Adam(twin.ours.parameters(), lr=1e-3))
    return lambda: step(x, y).item(), lambda: step(x, y)


def prepare_torch(name: str, sizes: dict[str, Any], *, compiled: bool) -> tuple[Callable[[], float], Callable[[], Any]]:
    """Torch's step: model and loss compiled where asked for, the optimizer as it comes."""
    import torch
    import twins

    twin = twins.TWINS[name](sides="theirs", **sizes)
    x, y = torch.from_numpy(twin.inputs), torch.from_numpy(twin.targets)
    model = torch.compile(twin.theirs) if compiled else twin.theirs
    step = twins.their_step(model, torch.optim.Adam(twin.theirs.parameters(), lr=1e-3))
    return lambda: step(x, y).item(), lambda: step(x, y)


def measure(way: str, name: str, threads: int, seconds: float, sizes: dict[str, Any]) -> dict[str, Any]:
    """Compile, train a few steps, then train for so many seconds."""
    if way == "pyflame":
        import pyflame  # noqa: F401
    else:
        import torch

        torch.set_num_threads(threads)
        import twins

        twins.peers()
    held = peak_mb()
    start = time.perf_counter()
    step, quiet = prepare_ours(name, sizes) if way == "pyflame" else prepare_torch(name, sizes, compiled="." in way)
    losses = [step()]
    first = time.perf_counter() - start
    losses += [step() for _ in range(WARM - 1)]
    forget_peak()
    losses += [step() for _ in range(3)]
    memory = peak_mb() - held
    times: list[float] = []
    while sum(times) < seconds or len(times) < 5:
        start = time.perf_counter()
        quiet()
        times.append(time.perf_counter() - start)
    return {
        "median": statistics.median(times),
        "best": min(times),
        "first": first,
        "peak_mb": memory,
        "runs": len(times),
        "losses": losses,
    }


def main() -> None:
    """``worker.py WAY MODEL THREADS SECONDS SIZES``: prints a line of JSON."""
    way, name, threads, seconds, sizes = sys.argv[1:]
    print(json.dumps(measure(way, name, int(threads), float(seconds), json.loads(sizes))))


if __name__ == "__main__":
    main()
