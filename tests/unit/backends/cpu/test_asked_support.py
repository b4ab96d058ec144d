"""Kernels are asked before a graph is lowered: a form they do not take is opened at once, nothing is done twice."""

import numpy as np
import pytest

from pyflame_rt import Graph, InferenceSession
from pyflame_rt.backends.cpu.run import plan as planning
from pyflame_rt.graph import DType

RNG = np.random.default_rng(0)


def graph_of(op, shape, dtype="float32", constants=(), outputs=("y",), **attributes):
    graph = Graph(op)
    graph.add_input("x", shape, DType.of(np.dtype(dtype)))
    names = [f"c{i}" for i in range(len(constants))]
    for name, array in zip(names, constants, strict=True):
        graph.add_initializer(name, array)
    graph.add_node("node", op, ["x", *names], list(outputs), attributes)
    for name in outputs:
        if name:
            kind = "int64" if name == "where" else "float32" if name in ("mean", "scale") else dtype
            graph.add_output(name, None, DType.of(np.dtype(kind)))
    return graph


def floats(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


CASES = {
    "softmax of another type": graph_of("Softmax", [2, 3], "float16"),
    "statistics of a normalisation": graph_of(
        "LayerNormalization", [2, 3], constants=[floats(3)], outputs=("y", "mean", "scale")
    ),
    "indices of maxima": graph_of("MaxPool", [1, 2, 6, 6], outputs=("y", "where"), kernel_shape=[2, 2]),
    "many sequences": graph_of(
        "LSTM", [3, 40, 4], constants=[floats(1, 32, 4), floats(1, 32, 8)], outputs=("y",), hidden_size=8
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_form_without_a_kernel_is_lowered_once(name, monkeypatch):
    graph, calls = CASES[name], []
    whole = planning.specialize
    monkeypatch.setattr(planning, "specialize", lambda *given: calls.append(1) or whole(*given))
    monkeypatch.setattr(planning, "_refused", set())
    feed = {"x": floats(*graph.inputs[0].shape).astype(graph.inputs[0].type.dtype.numpy)}
    made = InferenceSession(graph).run(None, feed)
    assert len(calls) == 1
    want = InferenceSession(graph, None, ["ReferenceExecutionProvider"]).run(None, feed)
    for a, b in zip(made, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-3 if a.dtype == np.float16 else 1e-5, atol=1e-6)
