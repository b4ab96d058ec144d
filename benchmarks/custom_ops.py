"""Custom operators stated as functions, against the built-in operator that computes the same.

python benchmarks/custom_ops.py
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from pyflame_rt import Graph, InferenceSession, custom
from pyflame_rt.ops import get_op

if TYPE_CHECKING:
    from pyflame_rt.ops.core.value import Value

SHAPE = (1024, 1024)
ROUNDS, RUNS = 9, 20


def hard_swish(x: Value) -> Value:
    """As HardSwish."""
    return x * get_op("Clip")(x * (1 / 6) + 0.5, 0.0, 1.0)


def swish(x: Value) -> Value:
    """As Swish."""
    return x * get_op("Sigmoid")(x)


def session(op: str, domain: str = "") -> InferenceSession:
    """One node of the operator."""
    graph = Graph("g")
    graph.add_input("x", SHAPE)
    graph.add_node("n", op, ["x"], ["y"], domain=domain)
    graph.add_output("y", None)
    return InferenceSession(graph)


def main() -> None:
    """Print microseconds of both, best of rounds taken in turn."""
    x = np.random.default_rng(0).standard_normal(SHAPE, np.float32)
    for built_in, function in (("HardSwish", hard_swish), ("Swish", swish)):
        custom.register_custom_op(f"My{built_in}", function=function)
        both = [session(built_in), session(f"My{built_in}", "custom")]
        answers = [s.run(None, {"x": x})[0] for s in both]
        best = [np.inf, np.inf]
        for _ in range(ROUNDS):
            for i, s in enumerate(both):
                start = time.perf_counter()
                for _ in range(RUNS):
                    s.run(None, {"x": x})
                best[i] = min(best[i], (time.perf_counter() - start) / RUNS * 1e6)
        steps = both[1].explain().host_step_count
        print(
            f"{built_in}: built in {best[0]:.0f} us, custom {best[1]:.0f} us, ratio {best[1] / best[0]:.2f}, "
            f"{steps} host steps, largest difference {np.abs(answers[0] - answers[1]).max():.1e}"
        )


if __name__ == "__main__":
    main()
