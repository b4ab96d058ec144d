"""What ``fast_math`` costs and gains: 3x3 convolutions by Winograd's transform, as sums, and by onnxruntime.

usage: python benchmarks/convolutions.py [--threads 2] [--rounds 7] [MODEL.onnx ...]

For layers of usual sizes: the time of each, and the error against float64 (root of the mean square, relative) on plain
inputs and beside one pixel 10,000 times as large. For models: the time of a run with and without.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from runtimes import feeds_of

import pyflame_rt

if TYPE_CHECKING:
    from collections.abc import Callable

LAYERS = [(16, 64, 64), (64, 64, 56), (128, 128, 28), (256, 256, 14), (512, 512, 7), (32, 32, 112), (64, 128, 40)]
LARGE = np.float32(1e4)


def layer(depth: int, columns: int, size: int) -> tuple[bytes, np.ndarray]:
    """A model of one convolution, and its weights."""
    weights = np.random.default_rng(0).standard_normal((columns, depth, 3, 3)).astype(np.float32)
    weights /= np.float32(math.sqrt(9 * depth))
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])],
        "layer",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, depth, size, size])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(weights, "w")],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    return made.SerializeToString(), weights


def exact(x: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The convolution in float64."""
    wide = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (1, 1), (1, 1)))
    size = x.shape[2]
    taps = [wide[0, :, i : i + size, j : j + size] for i in range(3) for j in range(3)]
    parts = [np.tensordot(weights[:, :, k // 3, k % 3].astype(np.float64), tap, 1) for k, tap in enumerate(taps)]
    return sum(parts)[None]


def runners(model: bytes | Path, threads: int) -> dict[str, Callable[[dict[str, np.ndarray]], np.ndarray]]:
    """Ways to run a model, by name."""
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = threads
    given = model if isinstance(model, bytes) else str(model)
    peer = onnxruntime.InferenceSession(given, settings, providers=["CPUExecutionProvider"])
    found = {"onnxruntime": lambda feeds: peer.run(None, feeds)[0]}
    for name, fast in (("sums", False), ("fast_math", True)):
        options = pyflame_rt.SessionOptions(num_threads=threads, fast_math=fast, quick_start=False)
        session = pyflame_rt.InferenceSession(model, options)
        found[name] = lambda feeds, session=session: session.run(None, feeds)[0]
    return found


def least(runs: dict[str, Callable[..., np.ndarray]], feeds: dict[str, np.ndarray], rounds: int) -> dict[str, float]:
    """Least milliseconds of each, rounds interleaved."""
    best = dict.fromkeys(runs, math.inf)
    for _ in range(rounds):
        for name, run in runs.items():
            run(feeds)
            end = time.perf_counter() + 0.1
            while time.perf_counter() < end:
                began = time.perf_counter()
                run(feeds)
                best[name] = min(best[name], (time.perf_counter() - began) * 1e3)
    return best


def far_error(found: np.ndarray, wanted: np.ndarray) -> float:
    """Relative error of outputs that do not see the middle of the image."""
    middle = wanted.shape[2] // 2
    seen = np.ones(wanted.shape[2:], bool)
    seen[middle - 1 : middle + 2, middle - 1 : middle + 2] = False
    difference, size = (found - wanted)[:, :, seen], wanted[:, :, seen]
    return float(np.sqrt((difference**2).mean() / (size**2).mean()))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args()
    print(f"{'case':28s} {'way':12s} {'ms':>8s} {'of ort':>7s} {'error':>9s} {'beside 1e4':>11s}")
    ratios: dict[str, list[float]] = {"sums": [], "fast_math": []}
    for depth, columns, size in LAYERS:
        model, weights = layer(depth, columns, size)
        runs = runners(model, given.threads)
        x = np.random.default_rng(1).standard_normal((1, depth, size, size)).astype(np.float32)
        spoiled = x.copy()
        spoiled[:, :, size // 2, size // 2] *= LARGE
        times = least(runs, {"x": x}, given.rounds)
        for name, run in runs.items():
            errors = [far_error(run({"x": image}), exact(image, weights)) for image in (x, spoiled)]
            show(f"{depth}->{columns} {size}x{size}", name, times, errors)
        for name, found in ratios.items():
            found.append(times[name] / times["onnxruntime"])
    for path in given.models:
        runs = runners(path, given.threads)
        wanted = [(i.name, i.shape, i.type[7:-1]) for i in onnxruntime.InferenceSession(str(path)).get_inputs()]
        times = least(runs, feeds_of(path, wanted), given.rounds)
        for name in runs:
            show(path.stem, name, times, [])
        for name, found in ratios.items():
            found.append(times[name] / times["onnxruntime"])
    for name, found in ratios.items():
        print(f"{name} / onnxruntime: geometric mean {math.exp(sum(map(math.log, found)) / len(found)):.3f}")


def show(case: str, name: str, times: dict[str, float], errors: list[float]) -> None:
    """One line."""
    cells = "".join(f" {error:10.1e}" for error in errors)
    print(f"{case:28s} {name:12s} {times[name]:8.3f} {times[name] / times['onnxruntime']:7.2f}{cells}")


if __name__ == "__main__":
    main()
