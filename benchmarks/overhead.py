"""What a call costs: one node on 16 numbers and a small network, here and in onnxruntime; status 1 beyond the bounds.

usage: python benchmarks/overhead.py [--rounds 5]
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


def one_node() -> bytes:
    """A Relu."""
    return _model([helper.make_node("Relu", ["x"], ["y"])], [16], [16], [])


def network() -> bytes:
    """784 numbers, 256 hidden units, 10 results."""
    rng = np.random.default_rng(0)
    shapes = {"w": (256, 784), "b": (256,), "v": (10, 256), "c": (10,)}
    weights = [numpy_helper.from_array(rng.standard_normal(s).astype(np.float32), n) for n, s in shapes.items()]
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["h"], transB=1),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Gemm", ["r", "v", "c"], ["y"], transB=1),
    ]
    return _model(nodes, [1, 784], [1, 10], weights)


def _model(nodes: list[Any], shape: list[int], out: list[int], weights: list[Any]) -> bytes:
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", shape), ("y", out))]
    graph = helper.make_graph(nodes, "g", infos[:1], infos[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()


def microseconds(call: Callable[[], object], rounds: int, number: int = 2000) -> float:
    """The best round's time of one call."""
    best = float("inf")
    for _ in range(rounds + 1):
        started = time.perf_counter()
        for _ in range(number):
            call()
        best = min(best, (time.perf_counter() - started) / number)
    return best * 1e6


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    try:
        import onnxruntime
    except ModuleNotFoundError:
        onnxruntime = None
    late = False
    print(f"{'model':12} {'pyflame us':>11} {'onnxruntime us':>15} {'ratio':>6} {'bound':>6}")
    for name, data, shape, bound in (("one node", one_node(), (16,), 0.5), ("network", network(), (1, 784), 0.8)):
        feed = {"x": np.random.default_rng(1).standard_normal(shape).astype(np.float32)}
        ours = pyflame_rt.InferenceSession(data)
        mine = microseconds(lambda s=ours, f=feed: s.run(None, f), rounds)
        if onnxruntime is None:
            print(f"{name:12} {mine:11.2f}")
            continue
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 2
        other = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        theirs = microseconds(lambda s=other, f=feed: s.run(None, f), rounds)
        late |= mine > bound * theirs
        print(f"{name:12} {mine:11.2f} {theirs:15.2f} {mine / theirs:6.2f} {bound:6.2f}")
    return int(late)


if __name__ == "__main__":
    sys.exit(main())
