"""Layers that oneDNN takes where it is there, by generated kernels alone: run with PYFLAME_ONEDNN=0."""

import sys

import numpy as np

from pyflame_rt import Graph, InferenceSession
from pyflame_rt.backends.cpu.onednn import library
from tests.tolerances import within


def layers():
    """Layers that the library takes where it is there: name, operator, sizes of input and weights, attributes."""
    yield "seven", "Conv", (2, 3, 31, 30), (8, 3, 7, 7), {"strides": [2, 2], "pads": [3, 3, 3, 3]}
    yield "strided", "Conv", (1, 16, 14, 14), (32, 16, 3, 3), {"strides": [2, 2], "pads": [1, 1, 1, 1]}
    yield "dilated", "Conv", (1, 16, 14, 14), (24, 16, 3, 3), {"dilations": [2, 2], "pads": [2, 2, 2, 2]}
    yield "groups", "Conv", (2, 12, 9, 9), (8, 3, 3, 3), {"group": 4, "pads": [1, 1, 1, 1]}
    yield "one pixel", "Conv", (1, 16, 3, 3), (8, 16, 3, 3), {}
    yield "line", "Conv", (2, 6, 40), (10, 6, 5), {"pads": [2, 2], "strides": [2]}
    yield "volume", "Conv", (1, 4, 6, 7, 8), (5, 4, 3, 3, 3), {"pads": [1] * 6}
    yield "transposed", "ConvTranspose", (1, 6, 7, 8), (6, 4, 3, 3), {"strides": [2, 2], "pads": [1, 1, 1, 1]}
    yield "transposed groups", "ConvTranspose", (1, 6, 7, 8), (6, 2, 2, 2), {"strides": [2, 2], "group": 2}
    yield (
        "transposed by three",
        "ConvTranspose",
        (2, 5, 6, 4),
        (5, 3, 2, 4),
        {"strides": [3, 2], "output_padding": [1, 1]},
    )
    yield "transposed apart", "ConvTranspose", (1, 4, 5, 5), (4, 3, 3, 3), {"strides": [2, 2], "dilations": [2, 3]}
    yield "transposed and cut", "ConvTranspose", (1, 4, 5, 6), (4, 6, 4, 4), {"strides": [2, 2], "pads": [3, 1, 0, 4]}
    yield "transposed line", "ConvTranspose", (2, 6, 9), (6, 4, 4), {"strides": [2], "pads": [1, 1]}
    yield "transposed volume", "ConvTranspose", (1, 3, 4, 3, 2), (3, 2, 3, 2, 3), {"strides": [2, 2, 2]}
    yield "groups of four", "Conv", (2, 16, 9, 10), (16, 4, 3, 3), {"group": 4, "pads": [1, 1, 1, 1]}
    yield "groups of two", "Conv", (1, 8, 7, 7), (8, 2, 5, 5), {"group": 4, "strides": [2, 2], "pads": [2, 2, 2, 2]}
    yield "groups of eight", "Conv", (1, 32, 8, 5), (32, 8, 3, 3), {"group": 4, "pads": [1, 0, 1, 2]}
    yield "own filters", "Conv", (2, 6, 9, 9), (6, 1, 3, 3), {"group": 6, "dilations": [2, 2], "pads": [2, 2, 2, 2]}
    yield "product", "MatMul", (3, 5, 40), (3, 40, 7), {}
    yield "wide product", "MatMul", (2, 3, 29, 40), (3, 40, 70), {}


def pools():
    """Means of windows, likewise; there are no weights."""
    yield "inside", "AveragePool", (2, 3, 9, 8), None, {"kernel_shape": [3, 2], "strides": [2, 2]}
    yield "bordered", "AveragePool", (1, 5, 7, 7), None, {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
    given = {"kernel_shape": [3, 3], "pads": [1, 0, 1, 2], "count_include_pad": 1}
    yield "all counted", "AveragePool", (1, 5, 7, 7), None, given
    given = {"kernel_shape": [2, 3], "strides": [3, 2], "dilations": [2, 1], "ceil_mode": 1}
    yield "to the end", "AveragePool", (2, 4, 8, 8), None, given
    given = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1], "count_include_pad": 1}
    yield "short lines", "AveragePool", (1, 40, 14, 14), None, given
    yield "short lines of few", "AveragePool", (2, 3, 14, 14), None, given
    yield "line", "AveragePool", (2, 4, 18), None, {"kernel_shape": [5], "pads": [2, 2]}
    yield "volume", "AveragePool", (1, 2, 5, 6, 4), None, {"kernel_shape": [2, 3, 2], "pads": [1, 0, 0, 0, 1, 1]}


def differs(name, op, x, w, attributes, *, constant):
    """What is wrong with a layer; empty where its result is the reference's and nothing ran on the host."""
    graph = Graph(name)
    rng = np.random.default_rng(7)
    feeds = {"x": rng.standard_normal(x).astype(np.float32)}
    graph.add_input("x", list(x))
    weights = None if w is None else rng.standard_normal(w).astype(np.float32)
    if weights is not None and constant:
        graph.add_initializer("w", weights)
    elif weights is not None:
        graph.add_input("w", list(w))
        feeds["w"] = weights
    graph.add_node("layer", op, ["x"] if w is None else ["x", "w"], ["y"], attributes)
    graph.add_output("y", None)
    session = InferenceSession(graph)
    (found,) = session.run(None, feeds)
    (wanted,) = InferenceSession(graph, providers=["ReferenceExecutionProvider"]).run(None, feeds)
    if found.shape != wanted.shape or not np.allclose(found, wanted, **within("layers")):
        return f"{found.shape}, {wanted.shape}, {np.abs(found - wanted).max() if found.shape == wanted.shape else ''}"
    return "" if "0 host steps" in str(session.explain()) else str(session.explain())


def main():
    assert not library.available()
    cases = [(layer, constant) for layer in layers() for constant in (True, False)]
    cases += [(layer, True) for layer in pools()]
    wrong = {(layer[0], constant): differs(*layer, constant=constant) for layer, constant in cases}
    wrong = {case: why for case, why in wrong.items() if why}
    for case, why in wrong.items():
        print(case, why)  # noqa: T201 - read by the test
    print(f"{len(cases)} layers, {len(wrong)} differ")  # noqa: T201 - read by the test
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
