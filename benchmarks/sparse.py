"""Layers pruned in blocks or N of 4, against the same layers dense: milliseconds, ratio, and what was chosen.

Run it with ``python benchmarks/sparse.py``. Blocks are 32 outputs high, as panels of weights are on AVX-512.
"""

from __future__ import annotations

import time

import numpy as np

from pyflame_rt import Graph, InferenceSession, SessionOptions
from pyflame_rt.pruning import PruningConfig, WeightPruner

ROUNDS, SECONDS = 7, 0.03
SIZES = [(256, 256), (512, 512), (1024, 1024), (768, 3072)]
PATTERNS = {
    **{f"{share:.0%} in blocks": PruningConfig.block_pruning(share, (32, 1)) for share in (0.5, 0.75, 0.9)},
    **{f"{n}:4": PruningConfig.nm_sparsity(n, 4) for n in (1, 2)},
}


def layer(kind: str, rows: int, depth: int, width: int) -> Graph:
    """One product, or a convolution of one pixel, with weights of a normal distribution."""
    graph, rng = Graph(kind), np.random.default_rng(0)
    if kind == "Gemm":
        graph.add_input("x", [rows, depth])
        graph.add_initializer("w", rng.standard_normal((width, depth), np.float32))
        graph.add_node("n", "Gemm", ["x", "w"], ["y"], {"transB": 1})
    else:
        edge = round(rows**0.5)
        graph.add_input("x", [1, depth, edge, edge])
        graph.add_initializer("w", rng.standard_normal((width, depth, 1, 1), np.float32))
        graph.add_node("n", "Conv", ["x", "w"], ["y"])
    graph.add_output("y", None)
    return graph


def best(sessions: list[InferenceSession], x: np.ndarray) -> list[float]:
    """The best seconds of each, in turn."""
    for s in sessions:
        s.run(None, {"x": x})
    found = [np.inf] * len(sessions)
    for _ in range(ROUNDS):
        for i, s in enumerate(sessions):
            start, count = time.perf_counter(), 0
            while time.perf_counter() - start < SECONDS:
                s.run(None, {"x": x})
                count += 1
            found[i] = min(found[i], (time.perf_counter() - start) / count)
    return found


def main() -> None:
    """Print one line for each layer and pattern."""
    options = SessionOptions()
    options.intra_op_num_threads = 1
    for kind in ("Gemm", "Conv"):
        for depth, width in SIZES:
            for rows in (16, 196):
                dense = layer(kind, rows, depth, width)
                edge = round(rows**0.5)
                shape = (rows, depth) if kind == "Gemm" else (1, depth, edge, edge)
                x = np.random.default_rng(1).standard_normal(shape, np.float32)
                for name, config in PATTERNS.items():
                    pruned = WeightPruner(config).prune(dense)
                    both = [InferenceSession(g, options) for g in (dense, pruned)]
                    slow, fast = best(both, x)
                    where = both[1].explain().nodes[0].runs_on
                    text = f"{kind} {rows}x{depth}x{width} {name}: {slow * 1e3:.3f} -> {fast * 1e3:.3f} ms"
                    print(f"{text}, {slow / fast:.2f}x, {where}", flush=True)


if __name__ == "__main__":
    main()
