"""Channels of an image scaled before a 1x1 convolution: the scales go into the weights where those are fewer."""

import json
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import pyflame_rt


def network(shape, columns, *, tail=(), scales="squeezed", outputs=("y",), turned=False, **attributes):
    """A squeeze-and-excite block: a depthwise convolution, its mean through two layers, the product, a convolution."""
    rng = np.random.default_rng(columns)
    channels = shape[1]
    sizes = {
        "d": (channels, 1, 3, 3),
        "f": (4, channels, 1, 1),
        "g": (channels, 4, 1, 1),
        "w": (columns, channels, 1, 1),
    }
    sizes |= {"b": (columns,), "one": (1, channels, 1, 1)}
    weights = [numpy_helper.from_array((rng.standard_normal(s) * 0.3).astype(np.float32), n) for n, s in sizes.items()]
    factors = {"squeezed": "s", "constant": "one", "own": "x"}[scales]
    nodes = [
        helper.make_node("Conv", ["x", "d"], ["c"], group=channels, pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["a"]),
        helper.make_node("GlobalAveragePool", ["a"], ["m"]),
        helper.make_node("Conv", ["m", "f"], ["e"]),
        helper.make_node("Relu", ["e"], ["r"]),
        helper.make_node("Conv", ["r", "g"], ["h"]),
        helper.make_node("HardSigmoid", ["h"], ["s"]),
        helper.make_node("Mul", [factors, "a"] if turned else ["a", factors], ["p"]),
        helper.make_node("Conv", ["p", "w", "b"], ["z"], **attributes),
        *(tail or [helper.make_node("Identity", ["z"], ["y"])]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]).SerializeToString()


def results(data, shape, folder):
    """Shapes that products have written, in a model whose results equal the reference's."""
    x = np.random.default_rng(3).standard_normal(shape).astype(np.float32)
    options = pyflame_rt.SessionOptions(enable_profiling=True, profile_file_prefix=str(folder / "p"))
    options.optimization_level = pyflame_rt.OptLevel.NONE  # rows are looked for by the names of the model
    oracle = pyflame_rt.InferenceSession(data, providers=["ReferenceExecutionProvider"]).run(None, {"x": x})
    with pyflame_rt.InferenceSession(data, options) as native:
        for got, want in zip(native.run(None, {"x": x}), oracle, strict=True):
            np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)
        explained = native.explain()
        trace = json.loads(Path(native.end_profiling()).read_text())
    assert explained.host_step_count == 0
    assert {"c", "p", "z"} <= {name for row in explained.rows for name in row.outputs}
    steps = [e["args"] for e in trace["traceEvents"] if "kernel" in e.get("args", {})]
    return {step["op_name"]: step["bytes"] for step in steps}


TAILS = {
    "alone": (),
    "residual": [helper.make_node("Conv", ["x", "w"], ["o"]), helper.make_node("Add", ["z", "o"], ["y"])],
    "silu": [helper.make_node("Sigmoid", ["z"], ["q"]), helper.make_node("Mul", ["z", "q"], ["y"])],
}


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(("channels", "columns"), [(8, 5), (24, 17), (72, 40)])
def test_scales_go_into_the_weights(tail, turned, channels, columns, tmp_path):
    shape = (1, channels, 14, 11)
    moved = results(network(shape, columns, tail=TAILS[tail], turned=turned), shape, tmp_path)
    assert moved["Mul"] < 4 * channels * 14 * 11


@pytest.mark.parametrize(
    "form",
    [
        {"outputs": ("y", "p")},
        {"scales": "constant"},
        {"scales": "own"},
        {"strides": [2, 2]},
        {"pads": [0, 1, 0, 1]},
        {"tail": [helper.make_node("Add", ["z", "z"], ["t"]), helper.make_node("Concat", ["t", "p"], ["y"], axis=1)]},
    ],
)
def test_images_that_cannot_be_left_alone_are_scaled(form, tmp_path):
    shape = (1, 8, 12, 10)
    assert results(network(shape, 6, **form), shape, tmp_path)


@pytest.mark.parametrize(("shape", "columns"), [((2, 8, 9, 9), 5), ((1, 16, 3, 3), 24)])
def test_batches_and_small_images_are_scaled(shape, columns, tmp_path):
    assert results(network(shape, columns), shape, tmp_path)["Mul"] >= 2 * 4 * np.prod(shape)
