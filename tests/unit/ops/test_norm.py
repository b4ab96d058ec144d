"""Normalisations: against ONNX Runtime or NumPy, precision, statistics, gradients, older opsets."""

import ml_dtypes
import numpy as np
import onnx.helper as oh
import onnxruntime
import pytest

from pyflame_rt.graph import DType, Node, Shape, TensorType, symbol
from pyflame_rt.graph.errors import InputError, ShapeMismatchError, UnsupportedOperatorError
from pyflame_rt.importers.onnx_importer import graph_from_bytes
from pyflame_rt.ops import Context, Program, Value, evaluate, get_op
from pyflame_rt.ops.core.trace import infer_outputs
from tests.tolerances import within

RNG = np.random.default_rng(17)
N, C, H = symbol("N"), symbol("C"), symbol("H")
LIBRARIES = ("numpy", "torch", "mlx")


def f32(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def run(op, *arrays, library="numpy", outputs=("y",), **attributes):
    context = Context.of(library)
    moved = [None if a is None else context.library.from_numpy(a) for a in arrays]
    results = evaluate(Node("n", op, ["x"] * len(arrays), outputs, attributes), moved, context)
    return [context.library.to_numpy(r) for r in results]


def infer(op, *shapes, dtype=DType.Float32, **attributes):
    found = get_op(op)
    values = [Value("v", TensorType(dtype, None if s is None else Shape(s))) for s in shapes]
    return [v.type for v in infer_outputs(found, values, found.signature.bind(attributes, op))]


def old_model(opset, op, arrays, outputs, **attributes):
    info = [
        oh.make_tensor_value_info(f"x{i}", oh.np_dtype_to_tensor_dtype(a.dtype), a.shape) for i, a in enumerate(arrays)
    ]
    node = oh.make_node(op, [i.name for i in info], outputs, **attributes)
    graph = oh.make_graph([node], "g", info, [oh.make_tensor_value_info(o, 1, None) for o in outputs])
    return oh.make_model(graph, opset_imports=[oh.make_opsetid("", opset)], ir_version=8).SerializeToString()


def run_old(opset, op, arrays, outputs=("y",), **attributes):
    return Program(graph_from_bytes(old_model(opset, op, arrays, outputs, **attributes))).run(arrays, Context.of())


def batch_norm_inputs(*shape):
    channels = shape[1]
    return [f32(*shape), f32(channels), f32(channels), f32(channels), np.abs(f32(channels)) + 0.1]


@pytest.mark.parametrize("shape", [(4, 3), (2, 3, 5), (2, 3, 4, 5), (1, 2, 3, 2, 2)])
def test_batch_normalization(agrees_with_onnxruntime, shape):
    agrees_with_onnxruntime("BatchNormalization", batch_norm_inputs(*shape), {"epsilon": 1e-2}, domain="", opset=15)


@pytest.mark.parametrize("library", LIBRARIES)
def test_batch_normalization_while_training(library):
    x, scale, bias, mean, var = batch_norm_inputs(4, 3, 5)
    y, new_mean, new_var = run(
        "BatchNormalization", x, scale, bias, mean, var, training_mode=1, momentum=0.7, library=library
    )
    wide = x.astype(float)
    m, v = wide.mean((0, 2)), wide.var((0, 2))
    expected = (wide - m[:, None]) / np.sqrt(v[:, None] + 1e-5) * scale[:, None] + bias[:, None]
    np.testing.assert_allclose(y, expected, **within("sums"))
    np.testing.assert_allclose(new_mean, 0.7 * mean + 0.3 * m, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(new_var, 0.7 * var + 0.3 * v, rtol=1e-4, atol=1e-6)


def test_batch_normalization_of_mixed_types():
    x, scale, bias, mean, var = batch_norm_inputs(4, 3, 5)
    y, new_mean, _ = run("BatchNormalization", x.astype(np.float16), scale.astype(ml_dtypes.bfloat16),
                         bias.astype(ml_dtypes.bfloat16), mean, var, training_mode=1)  # fmt: skip
    assert (y.dtype, new_mean.dtype) == (np.float16, np.float32)
    shapes = [t.shape for t in infer("BatchNormalization", [N, C, H], [C], [C], [C], [C], training_mode=1)]
    assert shapes[0] == [N, C, H]
    assert len(shapes) == 3


def test_batch_normalization_gradient(gradients_match):
    arrays = [RNG.normal(size=s) for s in ((3, 2, 2), (2,), (2,), (2,))] + [np.array([0.5, 1.5])]
    gradients_match("BatchNormalization", arrays)


@pytest.mark.parametrize("opset", [1, 6, 7, 8])
def test_old_batch_normalization_for_inference(opset):
    arrays = batch_norm_inputs(2, 3, 4)
    extra = {1: {"is_test": 1, "consumed_inputs": [0] * 5}, 6: {"is_test": 1}}.get(opset, {"spatial": 1})
    np.testing.assert_allclose(
        run_old(opset, "BatchNormalization", arrays, **extra)[0], run("BatchNormalization", *arrays)[0]
    )


def test_batch_normalization_without_spatial():
    x = f32(4, 2, 3)
    scale, bias, mean, var = f32(2, 3), f32(2, 3), f32(2, 3), np.abs(f32(2, 3)) + 0.5
    (y,) = run_old(7, "BatchNormalization", [x, scale, bias, mean, var], spatial=0)
    np.testing.assert_allclose(y, (x - mean) / np.sqrt(var + 1e-5) * scale + bias, rtol=1e-5, atol=1e-5)
    with pytest.raises(UnsupportedOperatorError, match="spatial=0"):
        run_old(7, "BatchNormalization", [x, scale, bias, mean, var], list("yabcd"), spatial=0)


@pytest.mark.parametrize("opset", [6, 7, 9])
def test_old_batch_normalization_for_training(opset):
    arrays = batch_norm_inputs(4, 3, 5)
    y, mean, var, saved_mean, saved_var = run_old(opset, "BatchNormalization", arrays, list("yabcd"))
    expected = run("BatchNormalization", *arrays, training_mode=1)
    for got, want in zip((y, mean, var), expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)
    np.testing.assert_allclose(saved_mean, arrays[0].mean((0, 2)), **within("elements"))
    np.testing.assert_allclose(saved_var, arrays[0].var((0, 2)), rtol=1e-5)


@pytest.mark.parametrize("shape", [(2, 3, 5), (2, 3, 4, 5)])
def test_instance_normalization(agrees_with_onnxruntime, shape):
    agrees_with_onnxruntime("InstanceNormalization", [f32(*shape), f32(3), f32(3)], domain="", atol=1e-4)
    (old,) = run_old(1, "InstanceNormalization", [f32(2, 3, 4), f32(3), f32(3)], consumed_inputs=[0, 0, 0])
    assert old.shape == (2, 3, 4)


@pytest.mark.parametrize("axis", [-1, 1, 2])
@pytest.mark.parametrize("bias", [False, True])
def test_layer_normalization(agrees_with_onnxruntime, axis, bias):
    shape = (2, 3, 4, 5)[axis:]
    arrays = [f32(2, 3, 4, 5), f32(*shape), *([f32(*shape)] if bias else [])]
    agrees_with_onnxruntime(
        "LayerNormalization", arrays, {"axis": axis}, domain="", outputs=("y", "m", "i"), opset=17, atol=1e-4
    )


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("dtype", ["float16", ml_dtypes.bfloat16])
def test_layer_normalization_computes_in_the_stash_type(library, dtype):
    x = (RNG.normal(size=(2, 64)) * 100 + 300).astype(dtype)
    y, mean, inverse = run("LayerNormalization", x, np.ones(64, dtype), library=library, outputs=("y", "m", "i"))
    wide = x.astype(np.float64)
    assert (y.dtype, mean.dtype, inverse.dtype) == (np.dtype(dtype), np.float32, np.float32)
    np.testing.assert_allclose(mean, wide.mean(1, keepdims=True), rtol=1e-5)
    np.testing.assert_allclose(inverse, 1 / wide.std(1, keepdims=True), rtol=1e-4)
    assert np.abs(y.astype(float)).max() < 10


def test_layer_normalization_shapes_and_gradient(gradients_match):
    kinds = infer("LayerNormalization", [N, H, 8], [8], dtype=DType.Float16)
    assert [str(k) for k in kinds] == ["float16[N, H, 8]", "float32[N, H, 1]", "float32[N, H, 1]"]
    with pytest.raises(ShapeMismatchError, match="axis 3"):
        infer("LayerNormalization", [N, H, 8], [8], axis=3)
    arrays = [RNG.normal(size=s) for s in ((2, 4), (4,), (4,))]
    gradients_match("LayerNormalization", arrays, {"stash_type": 11})


@pytest.mark.parametrize("library", LIBRARIES)
def test_rms_normalization(library):
    x, scale = f32(2, 3, 4).astype(np.float16), f32(3, 4)
    (y,) = run("RMSNormalization", x, scale, axis=1, library=library)
    wide = x.astype(float)
    expected = wide / np.sqrt((wide**2).mean((1, 2), keepdims=True) + 1e-5) * scale
    assert y.dtype == np.float32  # that of the scale
    np.testing.assert_allclose(y, expected, rtol=2e-3, atol=1e-3)


@pytest.mark.parametrize("library", LIBRARIES)
def test_group_normalization(library):
    x, scale, bias = f32(2, 6, 4, 3), f32(6), f32(6)
    (y,) = run("GroupNormalization", x, scale, bias, num_groups=3, library=library)
    grouped = x.reshape(2, 3, -1)
    plain = (grouped - grouped.mean(2, keepdims=True)) / np.sqrt(grouped.var(2, keepdims=True) + 1e-5)
    expected = plain.reshape(x.shape) * scale[:, None, None] + bias[:, None, None]
    np.testing.assert_allclose(y, expected, **within("sums"))
    with pytest.raises(ShapeMismatchError, match="groups"):
        run("GroupNormalization", x, scale, bias, num_groups=4)


def test_group_normalization_18_scales_groups():
    x, scale, bias = f32(2, 6, 4), f32(3), f32(3)
    (y,) = run_old(18, "GroupNormalization", [x, scale, bias], num_groups=3)
    (expected,) = run("GroupNormalization", x, np.repeat(scale, 2), np.repeat(bias, 2), num_groups=3)
    np.testing.assert_array_equal(y, expected)
    session = onnxruntime.InferenceSession(old_model(18, "GroupNormalization", [x, scale, bias], ["y"], num_groups=3))
    np.testing.assert_allclose(y, session.run(None, {"x0": x, "x1": scale, "x2": bias})[0], **within("sums"))


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("axis", [-1, 0])
def test_lp_normalization(agrees_with_onnxruntime, p, axis):
    x = f32(3, 4)
    x[0] = 0  # a row without length stays as it is
    agrees_with_onnxruntime("LpNormalization", [x], {"p": p, "axis": axis}, domain="")
    with pytest.raises(InputError, match="p must be"):
        run("LpNormalization", x, p=3)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_lrn(size):
    x = f32(2, 5, 3, 3)
    squares = np.zeros_like(x)
    for c in range(5):
        low, high = max(0, c - (size - 1) // 2), min(4, c + -(-(size - 1) // 2))
        squares[:, c] = (x[:, low : high + 1] ** 2).sum(1)
    for library in LIBRARIES:
        (y,) = run("LRN", x, size=size, alpha=0.2, beta=0.6, bias=2.0, library=library)
        np.testing.assert_allclose(y, x / (2 + 0.2 / size * squares) ** 0.6, rtol=1e-5)


def test_lrn_gradient_and_symbolic_shape(gradients_match):
    gradients_match("LRN", [RNG.normal(size=(1, 4, 2))], {"size": 3, "alpha": 0.5})
    assert infer("LRN", [N, 4, H], size=3)[0].shape == [N, 4, H]


@pytest.mark.parametrize("axes", [[0, 2, 3], [1], [-1, 0]])
def test_mean_variance_normalization(agrees_with_onnxruntime, axes):
    x = f32(2, 3, 4, 5)
    (y,) = run("MeanVarianceNormalization", x, axes=axes)
    axis = tuple(axes)
    expected = (x - x.mean(axis, keepdims=True)) / x.std(axis, keepdims=True)
    np.testing.assert_allclose(y, expected, **within("sums"))
    agrees_with_onnxruntime("MeanVarianceNormalization", [x], {"axes": [0, 2, 3]}, domain="", atol=1e-4)
