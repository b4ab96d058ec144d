"""LSTM and GRU layers as generated kernels: odd sizes, directions, states, thread counts."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import pyflame_rt

RNG = np.random.default_rng(3)


def layer(kind, direction, sizes, *, states, bias=True, reset=1):
    depth, hidden = sizes
    directions, gates = 2 if direction == "bidirectional" else 1, 4 if kind == "LSTM" else 3
    made = {"w": (directions, gates * hidden, depth), "r": (directions, gates * hidden, hidden)}
    if bias:
        made["b"] = (directions, 2 * gates * hidden)
    weights = [numpy_helper.from_array((RNG.standard_normal(s) * 0.3).astype(np.float32), n) for n, s in made.items()]
    inputs = ["x", "w", "r", "b" if bias else "", ""]
    infos = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["T", "N", depth])]
    for name in ("h", "c")[: (2 if kind == "LSTM" else 1) if states else 0]:
        inputs.append(name)
        infos.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, [directions, "N", hidden]))
    outputs = ["y", "yh", "yc"][: 3 if kind == "LSTM" else 2]
    extra = {"linear_before_reset": reset} if kind == "GRU" else {}
    node = helper.make_node(kind, inputs, outputs, hidden_size=hidden, direction=direction, **extra)
    results = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs]
    graph = helper.make_graph([node], "g", infos, results, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]).SerializeToString(), directions


def feed(directions, sizes, shape, *, states, kind):
    steps, batch = shape
    depth, hidden = sizes
    values = {"x": RNG.standard_normal((steps, batch, depth)).astype(np.float32)}
    for name in ("h", "c")[: (2 if kind == "LSTM" else 1) if states else 0]:
        values[name] = RNG.standard_normal((directions, batch, hidden)).astype(np.float32)
    return values


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize(
    ("sizes", "shape"), [((3, 1), (1, 1)), ((5, 16), (4, 1)), ((7, 33), (9, 3)), ((64, 40), (2, 4)), ((8, 12), (3, 7))]
)
@pytest.mark.parametrize("states", [False, True])
def test_layers_equal_the_reference(kind, direction, sizes, shape, states):
    data, directions = layer(kind, direction, sizes, states=states, bias=sizes[0] != 5)
    values = feed(directions, sizes, shape, states=states, kind=kind)
    native, oracle = (
        pyflame_rt.InferenceSession(data, providers=[p]) for p in ("CPUExecutionProvider", "ReferenceExecutionProvider")
    )
    for got, want in zip(native.run(None, values), oracle.run(None, values), strict=True):
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-6)
    assert native.explain().host_step_count == 0


def test_a_gru_that_resets_before_its_product_keeps_to_the_reference():
    data, directions = layer("GRU", "bidirectional", (6, 20), states=True, reset=0)
    values = feed(directions, (6, 20), (5, 2), states=True, kind="GRU")
    native, oracle = (
        pyflame_rt.InferenceSession(data, providers=[p]) for p in ("CPUExecutionProvider", "ReferenceExecutionProvider")
    )
    for got, want in zip(native.run(None, values), oracle.run(None, values), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-6)


def test_threads_do_not_change_a_bit():
    data, directions = layer("LSTM", "bidirectional", (32, 48), states=False)
    values = feed(directions, (32, 48), (20, 2), states=False, kind="LSTM")
    results = []
    for threads in (1, 2, 4):
        options = pyflame_rt.SessionOptions()
        options.num_threads = threads
        results.append(pyflame_rt.InferenceSession(data, options).run(None, values))
    for other in results[1:]:
        assert all(np.array_equal(a, b) for a, b in zip(results[0], other, strict=True))
