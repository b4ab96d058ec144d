"""Operators that ONNX took back: against onnxruntime, which still runs them."""

import numpy as np
import onnx.helper as oh
import onnxruntime
import pytest

import pyflame_rt
from pyflame_rt import InvalidModelError

X = np.random.default_rng(0).standard_normal((2, 3, 5, 4)).astype(np.float32)


def model(op, opset, attributes):
    node = oh.make_node(op, ["x"], ["y"], name="old", **attributes)
    x, y = oh.make_tensor_value_info("x", 1, X.shape), oh.make_tensor_value_info("y", 1, None)
    graph = oh.make_graph([node], "g", [x], [y])
    return oh.make_model(graph, opset_imports=[oh.make_opsetid("", opset)], ir_version=8).SerializeToString()


@pytest.mark.parametrize("opset", [1, 9])
@pytest.mark.parametrize(
    ("op", "attributes"),
    [
        ("Affine", {"alpha": 2.0, "beta": 0.5}),
        ("Affine", {}),
        ("Scale", {"scale": 2.5}),
        ("Scale", {}),
        ("ScaledTanh", {"alpha": 2.0, "beta": 0.5}),
        ("ParametricSoftplus", {"alpha": 2.0, "beta": 0.5}),
        ("ImageScaler", {"scale": 2.0, "bias": [1.0, 2.0, 3.0]}),
        ("ImageScaler", {"bias": [1.0, 2.0, 3.0]}),
        ("Crop", {"border": [1, 2, 1, 0]}),
        ("Crop", {"border": [1, 2, 0, 0], "scale": [2, 3]}),
    ],
)
def test_as_onnxruntime(op, attributes, opset):
    file = model(op, opset, attributes)
    (theirs,) = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"]).run(None, {"x": X})
    (ours,) = pyflame_rt.InferenceSession(file).run(None, {"x": X})
    np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("op", "attributes", "said"),
    [
        ("ScaledTanh", {"alpha": 1.0}, "'old' .ScaledTanh. has no attribute 'beta'"),
        ("ImageScaler", {}, "'old' .ImageScaler. has no attribute 'bias'"),
        ("Crop", {"border": [1, 2]}, "border takes four numbers"),
        ("Crop", {"border": [1, 2, 0, -1]}, "border takes four numbers"),
    ],
)
def test_what_they_need(op, attributes, said):
    with pytest.raises(InvalidModelError, match=said):
        pyflame_rt.InferenceSession(model(op, 7, attributes))


def test_gone_since_version_10():
    with pytest.raises(pyflame_rt.UnsupportedOperatorError, match="ImageScaler"):
        pyflame_rt.InferenceSession(model("ImageScaler", 10, {"bias": [1.0, 2.0, 3.0]}))
