"""Fusions of com.microsoft against ONNX Runtime."""

import numpy as np
import pytest

from pyflame_rt.graph import DType, Node, Shape, TensorType
from pyflame_rt.graph.errors import InputError
from pyflame_rt.ops import evaluate, get_op
from pyflame_rt.ops.core.evaluate import bind_attributes
from pyflame_rt.ops.core.trace import infer_outputs
from pyflame_rt.ops.core.value import Value
from tests.tolerances import within

rng = np.random.default_rng(0)
MS = "com.microsoft"


def f32(*shape):
    return rng.standard_normal(shape).astype(np.float32)


def run(name, arrays, attributes=None, *, domain=MS, outputs=("y",)):
    """Our outputs of a node."""
    names = [f"x{i}" for i in range(len(arrays))]
    return evaluate(Node("n", name, names, outputs, attributes, domain), arrays)


@pytest.mark.parametrize(
    ("a", "b", "attributes"),
    [
        ((2, 3), (3, 4), {"alpha": 0.5}),
        ((2, 5, 3), (2, 3, 4), {}),
        ((2, 3, 5), (2, 3, 4), {"transA": 1}),
        ((2, 5, 3), (2, 4, 3), {"transB": 1, "alpha": 2.0}),
        ((5, 2, 3), (2, 3, 4), {"transBatchA": 1}),
        ((3, 2, 5), (2, 3, 4), {"transBatchA": 1, "transA": 1}),
        ((2, 5, 3), (4, 2, 3), {"transBatchB": 1, "transB": 1}),
        ((2, 5, 3), (3, 2, 4), {"transBatchB": 1}),
        ((5, 2, 7, 3), (2, 7, 3, 4), {"transBatchA": 1}),
        ((3,), (3, 4), {"transA": 1}),
    ],
)
def test_fused_matmul(agrees_with_onnxruntime, a, b, attributes):
    agrees_with_onnxruntime("FusedMatMul", [f32(*a), f32(*b)], attributes)


def test_transpose_matmul(agrees_with_onnxruntime):
    agrees_with_onnxruntime("TransposeMatMul", [f32(3, 2), f32(3, 4)], {"transA": 1, "alpha": 3.0})


@pytest.mark.parametrize(
    ("activation", "alpha", "beta"),
    [
        ("Relu", None, None),
        ("Tanh", None, None),
        ("Sigmoid", None, None),
        ("LeakyRelu", 0.2, None),
        ("HardSigmoid", 0.3, 0.4),
    ],
)
def test_fused_gemm(agrees_with_onnxruntime, activation, alpha, beta):
    attributes = {"activation": activation, "alpha": 0.5, "beta": 2.0, "transB": 1}
    attributes |= {} if alpha is None else {"activation_alpha": alpha}
    attributes |= {} if beta is None else {"activation_beta": beta}
    agrees_with_onnxruntime("FusedGemm", [f32(2, 3), f32(4, 3), f32(4)], attributes)


@pytest.mark.parametrize(
    ("activation", "params"),
    [
        ("Relu", []),
        ("Tanh", []),
        ("Sigmoid", []),
        ("LeakyRelu", [0.3]),
        ("Clip", [-0.5, 0.8]),
        ("HardSigmoid", [0.2, 0.5]),
    ],
)
def test_fused_conv(agrees_with_onnxruntime, activation, params):
    attributes = {"activation": activation, "pads": [1, 1, 1, 1], "strides": [2, 2], "group": 2}
    attributes |= {"activation_params": params} if params else {}
    agrees_with_onnxruntime("FusedConv", [f32(1, 4, 7, 7), f32(6, 2, 3, 3), f32(6)], attributes)


def test_fused_conv_adds_a_residual(agrees_with_onnxruntime):
    arrays = [f32(1, 2, 5, 5), f32(3, 2, 3, 3), f32(3), f32(1, 3, 3, 3)]
    agrees_with_onnxruntime("FusedConv", arrays, {"activation": "Relu", "kernel_shape": [3, 3]})


def test_unknown_activation_is_named():
    with pytest.raises(InputError, match="'Softsignish'"):
        evaluate(Node("n", "FusedGemm", ["a", "b"], ["y"], {"activation": "Softsignish"}, MS), [f32(2, 3), f32(3, 2)])


@pytest.mark.parametrize(
    ("name", "arrays", "attributes"),
    [
        ("Gelu", [f32(3, 4)], {}),
        ("FastGelu", [f32(3, 4)], {}),
        ("FastGelu", [f32(3, 4), f32(4)], {}),
        ("QuickGelu", [f32(3, 4)], {}),
        ("QuickGelu", [f32(3, 4)], {"alpha": 0.5}),
        ("BiasGelu", [f32(2, 3, 4), f32(4)], {}),
        ("Inverse", [f32(2, 4, 4) + 3 * np.eye(4, dtype=np.float32)], {}),
    ],
)
def test_activations(agrees_with_onnxruntime, name, arrays, attributes):
    agrees_with_onnxruntime(name, arrays, attributes)


@pytest.mark.parametrize("axis", [-1, 1])
def test_layer_normalizations(agrees_with_onnxruntime, axis):
    x, scale = f32(2, 3, 8), f32(*((8,) if axis == -1 else (3, 8)))
    agrees_with_onnxruntime(
        "SimplifiedLayerNormalization", [x, scale], {"axis": axis, "epsilon": 1e-3}, domain="", outputs=["y", "inverse"]
    )


def test_older_layer_normalization_of_the_standard_domain(agrees_with_onnxruntime):
    agrees_with_onnxruntime("LayerNormalization", [f32(2, 3, 8), f32(8), f32(8)], {"axis": -1}, domain="", opset=12)


def test_microsoft_domain_has_the_same_normalizations():
    x, scale = f32(2, 8), f32(8)
    for name, arrays in (("SimplifiedLayerNormalization", [x, scale]), ("LayerNormalization", [x, scale, scale])):
        theirs = run(name, arrays)[0]
        np.testing.assert_array_equal(theirs, run(name, arrays, domain="")[0])


@pytest.mark.parametrize("skip", [(2, 3, 8), (1, 3, 8), (3, 8)])
@pytest.mark.parametrize("bias", [False, True])
def test_skip_layer_normalization(agrees_with_onnxruntime, skip, bias):
    arrays = [f32(2, 3, 8), f32(*skip), f32(8), f32(8), *([f32(8)] if bias else [])]
    agrees_with_onnxruntime("SkipLayerNormalization", arrays, {"epsilon": 1e-5}, outputs=["y", "", "", "sum"])


def test_skip_simplified_layer_normalization(agrees_with_onnxruntime):
    arrays = [f32(2, 3, 8), f32(2, 3, 8), f32(8), f32(8)]
    agrees_with_onnxruntime("SkipSimplifiedLayerNormalization", arrays, {"epsilon": 1e-5}, outputs=["y", "", "", "sum"])


@pytest.mark.parametrize("segments", [False, True])
@pytest.mark.parametrize("positions", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_embed_layer_normalization(agrees_with_onnxruntime, segments, positions, masked):
    ids = rng.integers(0, 10, (2, 4)).astype(np.int32)
    arrays = [
        ids,
        rng.integers(0, 2, (2, 4)).astype(np.int32) if segments else None,
        f32(10, 8),
        f32(6, 8),
        f32(2, 8) if segments else None,
        f32(8),
        f32(8),
        np.array([[1, 1, 1, 0], [1, 1, 0, 0]], np.int32) if masked else None,
        np.array([[1, 0, 3, 2], [5, 4, 3, 2]], np.int32) if positions else None,
    ]
    while arrays[-1] is None:
        arrays.pop()
    agrees_with_onnxruntime("EmbedLayerNormalization", arrays, {"epsilon": 1e-6}, outputs=["y", "lengths"])


def test_bias_softmax_is_over_the_flattened_axes():
    x, bias = f32(2, 3, 4), f32(1, 3, 4)
    (y,) = evaluate(Node("n", "BiasSoftmax", ["x", "b"], ["y"], {"axis": 1, "is_inner_broadcast": 0}, MS), [x, bias])
    e = np.exp((x + bias).reshape(2, 12))
    np.testing.assert_allclose(y.reshape(2, 12), e / e.sum(1, keepdims=True), rtol=1e-5)


def test_operators_only_gpus_have_in_onnxruntime():
    x = f32(2, 3, 8)
    (y,) = run("BiasAdd", [x, f32(8), x])
    assert y.shape == x.shape
    (left_right,) = run("BiasSplitGelu", [x, np.zeros(8, np.float32)])
    gelu = run("Gelu", [x[..., 4:]])[0]
    np.testing.assert_allclose(left_right, x[..., :4] * gelu, rtol=1e-6)
    product = run("GemmFastGelu", [f32(2, 3), f32(3, 4), f32(4)])[0]
    assert product.shape == (2, 4)


def test_group_norm_channels_last_and_first_agree():
    x, gamma, beta = f32(2, 5, 6, 8), f32(8), f32(8)
    attributes = {"groups": 4, "activation": 1}
    (last,) = run("GroupNorm", [x, gamma, beta], attributes)
    turned = np.moveaxis(x, 3, 1)
    (first,) = run("GroupNorm", [turned, gamma, beta], {**attributes, "channels_last": 0})
    np.testing.assert_allclose(np.moveaxis(first, 1, 3), last, **within("elements"))
    grouped = x.reshape(2, 30, 4, 2)
    normal = (grouped - grouped.mean((1, 3), keepdims=True)) / np.sqrt(grouped.var((1, 3), keepdims=True) + 1e-5)
    affine = normal.reshape(x.shape) * gamma + beta
    np.testing.assert_allclose(last, affine / (1 + np.exp(-affine)), **within("sums"))
    skip, bias = f32(2, 8), f32(8)
    y, total = run("SkipGroupNorm", [x, gamma, beta, skip, bias], attributes, outputs=["y", "s"])
    np.testing.assert_allclose(total, x + skip[:, None, None] + bias, **within("elements"))
    np.testing.assert_allclose(y, run("GroupNorm", [total, gamma, beta], attributes)[0], rtol=1e-5)


def test_shapes_are_inferred_with_symbolic_sizes():
    kind = TensorType(DType.Float32, Shape(["B", "S", 8]))
    node = Node("n", "SkipLayerNormalization", ["a", "b", "c"], ["y"], {}, MS)
    op = get_op("SkipLayerNormalization", MS)
    vector = TensorType(DType.Float32, Shape([8]))
    y, *_ = infer_outputs(op, [Value("a", kind), Value("b", kind), Value("c", vector)], bind_attributes(node, op))
    assert str(y.type) == "float32[B, S, 8]"
    ids = Value("ids", TensorType(DType.Int32, Shape(["B", "S"])))
    tables = [
        Value("w", TensorType(DType.Float32, Shape([100, 8]))),
        Value("p", TensorType(DType.Float32, Shape([64, 8]))),
    ]
    op = get_op("EmbedLayerNormalization", MS)
    inputs = [ids, None, *tables, None, Value("g", vector), Value("h", vector)]
    y, lengths, _ = infer_outputs(op, inputs, op.signature.bind({}, "n"))
    assert y.type.shape[0] == ids.type.shape[0]
    assert y.type.shape[2] == 8
    assert lengths.type.dtype is DType.Int32


def test_half_precision():
    x = f32(2, 8).astype(np.float16)
    (y,) = run("Gelu", [x])
    assert y.dtype == np.float16
    (y, _) = run("SimplifiedLayerNormalization", [x, np.ones(8, np.float16)], domain="")
    assert y.dtype == np.float16
