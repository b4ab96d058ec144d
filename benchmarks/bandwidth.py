"""Work bound by memory: ten arithmetic operators over 2^24 numbers, softmax, normalisation; status 1 beyond the bounds.

Every call is repeated for a moment before it is timed: with an empty cache the first answers come from code that was
compiled quickly, and better code takes its place while they are given.

usage: python benchmarks/bandwidth.py [--seconds 0.3]
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

import pyflame_rt

if TYPE_CHECKING:
    from collections.abc import Callable

COUNT = 1 << 24
WARM = 0.3  # seconds
SOFTMAX = ((1, 12, 128, 128), (64, 1000), (4096, 64), (16, 50257), (8, 4096), (1024, 1024), (1, 50257))
NORMALIZED = ((1, 128, 384), (8, 512, 768), (4096, 64), (2048, 1024), (1, 1, 768))


def session(nodes: list[Any], shape: tuple[int, ...], weights: list[Any]) -> Any:
    """A model with input x and output y."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, list(shape))
    graph = helper.make_graph(nodes, "g", [x], [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)], weights)
    return pyflame_rt.InferenceSession(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]).SerializeToString()
    )


def chain() -> Any:
    """Ten operators, one after the other."""
    names = ["x", *(f"t{i}" for i in range(9)), "y"]
    kinds = ("Mul", "Add", "Sub", "Mul", "Add", "Mul", "Sub", "Add", "Mul", "Add")
    nodes = [helper.make_node(k, [names[i], f"c{i}"], [names[i + 1]]) for i, k in enumerate(kinds)]
    weights = [numpy_helper.from_array(np.array(1 + i / 100, np.float32), f"c{i}") for i in range(10)]
    return session(nodes, (COUNT,), weights)


def milliseconds(call: Callable[[], object], seconds: float) -> float:
    """The best time of a call that was repeated for a while before."""
    best, started = float("inf"), time.perf_counter()
    warm = started + WARM
    while started < warm + seconds:
        call()
        ended = time.perf_counter()
        if started > warm:
            best = min(best, ended - started)
        started = ended
    return best * 1e3


def report(name: str, ours: float, theirs: float, bound: float) -> bool:
    """Print a line; True when the bound is kept."""
    print(f"{name:34} {ours:9.3f} ms {theirs:9.3f} ms {ours / theirs:6.2f} (at most {bound})")
    return ours <= bound * theirs


def against_copies(seconds: float) -> bool:
    """The chain into memory that is bound, and into a fresh result."""
    x = np.random.default_rng(0).random(COUNT, dtype=np.float32)
    y, model = np.zeros_like(x), chain()
    model.run(None, {"x": x})
    binding = model.io_binding()
    binding.bind_cpu_input("x", x)
    binding.bind_output("y", "cpu", 0, np.float32, [COUNT], y.ctypes.data)
    bound = milliseconds(lambda: model.run_with_iobinding(binding), seconds)
    fresh = milliseconds(lambda: model.run(None, {"x": x}), seconds)
    return report("chain, bound, over np.copyto", bound, milliseconds(lambda: np.copyto(y, x), seconds), 1.1) & report(
        "chain, fresh, over x.copy()", fresh, milliseconds(x.copy, seconds), 1.1
    )


def against_torch(seconds: float) -> bool:
    """Softmax and LayerNormalization."""
    try:
        import torch
    except ModuleNotFoundError:
        print("torch is not installed: softmax and normalisation are not compared")
        return True
    torch.set_num_threads(2)
    good = True
    for shape in SOFTMAX:
        x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
        model, tensor = session([helper.make_node("Softmax", ["x"], ["y"])], shape, []), torch.from_numpy(x)
        ours = milliseconds(lambda m=model, x=x: m.run(None, {"x": x}), seconds)
        good &= report(f"softmax {shape}", ours, milliseconds(lambda t=tensor: t.softmax(-1), seconds), 1.0)
    for shape in NORMALIZED:
        x = np.random.default_rng(2).standard_normal(shape).astype(np.float32)
        w = np.ones(shape[-1], np.float32)
        weights = [numpy_helper.from_array(w, n) for n in "wb"]
        model = session([helper.make_node("LayerNormalization", ["x", "w", "b"], ["y"])], shape, weights)
        tensor, scale = torch.from_numpy(x), torch.from_numpy(w)
        ours = milliseconds(lambda m=model, x=x: m.run(None, {"x": x}), seconds)
        other = torch.nn.functional.layer_norm
        theirs = milliseconds(lambda t=tensor, s=scale, f=other: f(t, s.shape, s, s), seconds)
        good &= report(f"LayerNormalization {shape}", ours, theirs, 1.0)
    return good


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=0.3)
    seconds = parser.parse_args().seconds
    copies = against_copies(seconds)
    return int(not (against_torch(seconds) and copies))


if __name__ == "__main__":
    sys.exit(main())
