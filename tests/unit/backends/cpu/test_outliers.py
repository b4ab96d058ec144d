"""An output of a convolution depends on what it reads and on nothing else, unless ``fast_math`` allows it."""

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import pyflame_rt

RNG = np.random.default_rng(3)


def model(op, weights, shape, **attributes):
    node = helper.make_node(op, ["x", "w"], ["y"], "conv", **attributes)
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(weights, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10).SerializeToString()


def run(data, x, **options):
    session = pyflame_rt.InferenceSession(data, pyflame_rt.SessionOptions(num_threads=1, **options))
    return session.run(None, {"x": x})[0]


def normal(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


CASES = {
    "3x3": ("Conv", (16, 16, 3, 3), (1, 16, 20, 20), {"pads": [1, 1, 1, 1]}),
    "3x3 uneven": ("Conv", (40, 24, 3, 3), (2, 24, 13, 9), {"pads": [1, 0, 1, 1]}),
    "3x3 no border": ("Conv", (16, 16, 3, 3), (1, 16, 20, 20), {}),
    "3x3 stride": ("Conv", (16, 16, 3, 3), (1, 16, 20, 20), {"pads": [1, 1, 1, 1], "strides": [2, 2]}),
    "3x3 dilated": ("Conv", (16, 16, 3, 3), (1, 16, 20, 20), {"pads": [2, 2, 2, 2], "dilations": [2, 2]}),
    "5x5": ("Conv", (16, 16, 5, 5), (1, 16, 20, 20), {"pads": [2, 2, 2, 2]}),
    "depthwise": ("Conv", (16, 1, 3, 3), (1, 16, 20, 20), {"pads": [1, 1, 1, 1], "group": 16}),
    "groups": ("Conv", (16, 8, 3, 3), (1, 16, 20, 20), {"pads": [1, 1, 1, 1], "group": 2}),
    "1d": ("Conv", (16, 16, 3), (1, 16, 40), {"pads": [1, 1]}),
    "3d": ("Conv", (16, 16, 3, 3, 3), (1, 16, 6, 7, 8), {"pads": [1] * 6}),
    "transposed": ("ConvTranspose", (16, 16, 3, 3), (1, 16, 20, 20), {"pads": [1, 1, 1, 1]}),
    "transposed stride": ("ConvTranspose", (16, 16, 4, 4), (1, 16, 10, 10), {"pads": [1, 1, 1, 1], "strides": [2, 2]}),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_value_reaches_only_the_outputs_that_see_it(case, bad):
    op, weights, shape, attributes = CASES[case]
    x, spot = normal(*shape), (0, 1, *[n // 2 for n in shape[2:]])
    data = model(op, normal(*weights), shape, **attributes)
    plain = run(data, x)
    x[spot] = bad
    seen = np.zeros_like(x)
    seen[spot] = 1
    sees = run(model(op, np.ones(weights, np.float32), shape, **attributes), seen) != 0
    found = run(data, x)
    np.testing.assert_array_equal(np.isfinite(found), ~sees)
    np.testing.assert_array_equal(found[~sees], plain[~sees])


def test_a_nan_reaches_144_outputs_of_16_channels():
    data = model("Conv", normal(16, 16, 3, 3), (1, 16, 20, 20), pads=[1, 1, 1, 1])
    x = normal(1, 16, 20, 20)
    x[0, 3, 9, 9] = np.nan
    assert np.isnan(run(data, x)).sum() == 144
    assert np.isnan(run(data, x, fast_math=True)).sum() > 144


@pytest.mark.parametrize("depth", [32, 256, 512])
@pytest.mark.parametrize("size", [1.0, 1e3, 1e4, 1e6, 1e8])
def test_outliers_cost_no_more_than_elsewhere(size, depth):
    """Against float64, at most four times the error of onnxruntime, far from the outlier and near it."""
    w, x = normal(32, depth, 3, 3), normal(1, depth, 20, 20)
    x[0, :, 10, 10] *= np.float32(size)
    data = model("Conv", w, x.shape, pads=[1, 1, 1, 1])
    wide = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (1, 1), (1, 1)))
    views = np.lib.stride_tricks.sliding_window_view(wide, (3, 3), axis=(2, 3))
    exact = np.tensordot(views, w.astype(np.float64), ([1, 4, 5], [1, 2, 3])).transpose(0, 3, 1, 2)
    theirs = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]
    near = np.zeros(exact.shape, bool)
    near[:, :, 9:12, 9:12] = True
    errors = {name: np.abs(found - exact) for name, found in (("ours", run(data, x)), ("theirs", theirs))}
    for where in (near, ~near):
        assert errors["ours"][where].max() <= 4 * errors["theirs"][where].max()
        assert errors["ours"][where].mean() <= 4 * errors["theirs"][where].mean()


def test_gradients_see_what_they_read():
    """The gradient towards the input of one output's window only, and towards the weights of finite parts."""
    import pyflame as pf

    x = pf.tensor(normal(1, 16, 20, 20), requires_grad=True)
    w = pf.tensor(normal(16, 16, 3, 3), requires_grad=True)
    y = pf.nn.functional.conv2d(x, w, padding=1)
    g = np.zeros((1, 16, 20, 20), np.float32)
    g[0, 2, 9, 9] = np.nan
    y.backward(pf.tensor(g))
    bad = np.isnan(x.grad.numpy())
    assert bad[:, :, 8:11, 8:11].all()
    assert bad.sum() == 144
    bad = np.isnan(w.grad.numpy())
    assert bad[2].all()
    assert bad.sum() == 144


def test_training_takes_the_transform_where_it_is_allowed(monkeypatch):
    import pyflame as pf

    monkeypatch.setenv("PYFLAME_FAST_MATH", "1")
    x = normal(1, 16, 21, 21)
    x[0, 3, 9, 9] = np.nan
    y = pf.nn.functional.conv2d(pf.tensor(x), pf.tensor(normal(16, 16, 3, 3)), padding=1)
    assert np.isnan(y.numpy()).sum() > 144
