"""Activations: against PyTorch, at extreme values, in half precision, and in older opsets."""

import ml_dtypes
import numpy as np
import onnx.helper as oh
import onnxruntime
import pytest
import torch
import torch.nn.functional as F

from pyflame_rt.graph import DType, Node, Shape, TensorType
from pyflame_rt.graph.errors import PyFlameRTError, ShapeMismatchError
from pyflame_rt.importers.onnx_importer import graph_from_bytes
from pyflame_rt.ops import Context, Program, Value, evaluate, get_op
from pyflame_rt.ops.core.trace import infer_outputs

LIBRARIES = ("numpy", "torch", "mlx")
CASES = {
    "Relu": ({}, F.relu),
    "LeakyRelu": ({"alpha": 0.1}, lambda x: F.leaky_relu(x, 0.1)),
    "Elu": ({"alpha": 2.0}, lambda x: F.elu(x, 2.0)),
    "Selu": ({}, F.selu),
    "Celu": ({"alpha": 2.0}, lambda x: F.celu(x, 2.0)),
    "Gelu": ({}, F.gelu),
    "HardSwish": ({}, F.hardswish),
    "HardSigmoid": ({"alpha": 1 / 6}, F.hardsigmoid),
    "Mish": ({}, F.mish),
    "Shrink": ({"bias": 0.5, "lambd": 0.5}, F.softshrink),
    "Sigmoid": ({}, torch.sigmoid),
    "Softplus": ({}, F.softplus),
    "Softsign": ({}, F.softsign),
    "Swish": ({}, F.silu),
    "Tanh": ({}, torch.tanh),
    "ThresholdedRelu": ({"alpha": 0.5}, lambda x: F.threshold(x, 0.5, 0.0)),
    "Softmax": ({}, lambda x: F.softmax(x, -1)),
    "LogSoftmax": ({}, lambda x: F.log_softmax(x, -1)),
}
X = np.array([[-200.0, -88, -3.1, -1, -0.25, -0.0], [0.0, 0.25, 1, 2.9, 88, 200]])


def run(op, *arrays, library="numpy", **attributes):
    context = Context.of(library)
    names = [f"i{i}" for i in range(len(arrays))]
    moved = [None if a is None else context.library.from_numpy(a) for a in arrays]
    (result,) = evaluate(Node("n", op, names, ["o"], attributes), moved, context)
    return context.library.to_numpy(result)


def value(dtype, shape):
    return Value("v", TensorType(dtype, None if shape is None else Shape(shape)))


def infer(op, *values, **attributes):
    found = get_op(op)
    return infer_outputs(found, values, found.signature.bind(attributes, op))[0]


def model_of(op, arrays, opset, **attributes):
    names = [f"i{i}" for i in range(len(arrays))]
    infos = [oh.make_tensor_value_info(n, 1, a.shape) for n, a in zip(names, arrays, strict=True)]
    out = oh.make_tensor_value_info("o", 1, None)
    graph = oh.make_graph([oh.make_node(op, names, ["o"], **attributes)], "g", infos, [out])
    return oh.make_model(graph, opset_imports=[oh.make_opsetid("", opset)], ir_version=8).SerializeToString()


def run_model(op, arrays, opset, **attributes):
    program = Program(graph_from_bytes(model_of(op, arrays, opset, **attributes)))
    return program.run(list(arrays), Context.of("numpy"))[0]


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("op", CASES)
def test_against_torch(op, library):
    attributes, oracle = CASES[op]
    x = X.astype(np.float32)
    expected = oracle(torch.from_numpy(X)).numpy()
    np.testing.assert_allclose(run(op, x, library=library, **attributes), expected, rtol=2e-6, atol=5e-7)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("op", CASES)
def test_half_precision_is_rounded_once(op, dtype, library):
    attributes, oracle = CASES[op]
    x = X.astype(dtype)
    expected = oracle(torch.from_numpy(x.astype(np.float32))).numpy().astype(dtype)
    result = run(op, x, library=library, **attributes)
    assert result.dtype == dtype
    step = float(ml_dtypes.finfo(dtype).eps)
    np.testing.assert_allclose(result.astype(np.float32), expected.astype(np.float32), rtol=step, atol=1e-6)


@pytest.mark.parametrize("library", LIBRARIES)
def test_gelu_by_tanh(library):
    x = X.astype(np.float32)
    expected = F.gelu(torch.from_numpy(x), approximate="tanh").numpy()
    np.testing.assert_allclose(run("Gelu", x, library=library, approximate="tanh"), expected, atol=1e-6)
    with pytest.raises(PyFlameRTError, match="approximate"):
        run("Gelu", x, approximate="fast")


@pytest.mark.parametrize("library", LIBRARIES)
def test_clip_where_bounds_cross_or_lack(library):
    x, low, high = np.int32([-5, 0, 5]), np.array(3, np.int32), np.array(1, np.int32)
    assert run("Clip", x, low, high, library=library).tolist() == [1, 1, 1]
    assert run("Clip", x, None, high, library=library).tolist() == [-5, 0, 1]
    assert run("Clip", x, low, library=library).tolist() == [3, 3, 5]
    assert run("Clip", x, library=library).tolist() == [-5, 0, 5]
    assert np.isnan(run("Clip", np.float32([np.nan]), np.float32(0), library=library)).all()


@pytest.mark.parametrize("library", LIBRARIES)
def test_hardmax_takes_the_first_of_equals(library):
    x = np.float32([[1, 3, 3], [2, 2, 2]])
    assert run("Hardmax", x, library=library).tolist() == [[0, 1, 0], [1, 0, 0]]
    assert run("Hardmax", x, library=library, axis=0).tolist() == [[0, 1, 1], [1, 0, 0]]


def test_shrink_of_integers_compares_with_the_fraction():
    x = np.array([-2, -1, 0, 1, 2], np.int8)
    assert run("Shrink", x, lambd=1.5, bias=1.0).tolist() == [-1, 0, 0, 0, 1]


def test_prelu_of_unsigned_integers():
    x = np.array([1, 2], np.uint32)
    assert run("PRelu", x, x).tolist() == [1, 2]


def test_infer():
    x = value(DType.Float32, ["N", None])
    assert infer("Softmax", x, axis=-2).type == x.type
    assert infer("Gelu", value(DType.Float32, None)).type == TensorType(DType.Float32)
    with pytest.raises(ShapeMismatchError, match="axis 2"):
        infer("Softmax", x, axis=2)
    with pytest.raises(ShapeMismatchError, match="slope"):
        infer("PRelu", value(DType.Float32, [3]), value(DType.Float32, [2, 1]))
    with pytest.raises(ShapeMismatchError, match="one shape"):
        infer("SwiGLU", value(DType.Float32, [3]), value(DType.Float32, [1]))


def test_swiglu_does_not_broadcast():
    with pytest.raises(ShapeMismatchError, match="node 'n'"):
        run("SwiGLU", np.ones((2, 3), np.float32), np.ones((1, 3), np.float32))


@pytest.mark.parametrize("axis", [0, 1, 2, -1, None])
@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax", "Hardmax"])
def test_axes_used_to_be_flattened(op, axis):
    x = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
    given = {} if axis is None else {"axis": axis}
    session = onnxruntime.InferenceSession(model_of(op, [x], 11, **given), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(run_model(op, [x], 11, **given), session.run(None, {"i0": x})[0], atol=1e-6)


@pytest.mark.parametrize("opset", [1, 6, 10])
def test_clip_bounds_used_to_be_attributes(opset):
    x = np.float32([-3, 0, 3])
    assert run_model("Clip", [x], opset, min=-1.0, max=2.0).tolist() == [-1, 0, 2]
    assert run_model("Clip", [x], opset, max=2.0).tolist() == [-3, 0, 2]
    assert run_model("Clip", [x], opset).tolist() == [-3, 0, 3]


@pytest.mark.parametrize("opset", [1, 6])
def test_prelu_slope_used_to_belong_to_channels(opset):
    x = -np.ones((2, 3, 4, 4), np.float32)
    slope = np.float32([1, 2, 3])
    expected = np.broadcast_to(-slope[:, None, None], x.shape)
    np.testing.assert_array_equal(run_model("PRelu", [x, slope], opset), expected)
    np.testing.assert_array_equal(run_model("PRelu", [x, slope[1:2]], opset), 2 * x)


def test_selu_had_fewer_digits():
    (result,) = run_model("Selu", [np.float32([1])], 1, consumed_inputs=[0])
    assert result == np.float32(1.0507)


@pytest.mark.parametrize("op", ["Relu", "LeakyRelu", "Elu", "HardSigmoid", "Sigmoid", "Tanh", "Exp"])
def test_consumed_inputs_are_forgotten(op):
    x = np.float32([-1, 1])
    np.testing.assert_array_equal(run_model(op, [x], 1, consumed_inputs=[0]), run(op, x))
