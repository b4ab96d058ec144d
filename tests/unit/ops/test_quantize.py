"""Quantization: rounding and saturation, granularities, types, integer products, inference."""

import ml_dtypes
import numpy as np
import pytest

from pyflame_rt.graph import DType, Node, Shape, TensorType, symbol
from pyflame_rt.graph.errors import DTypeMismatchError, ShapeMismatchError
from pyflame_rt.ops import Context, Value, evaluate, get_op
from pyflame_rt.ops.core.evaluate import to_host, to_library
from pyflame_rt.ops.core.trace import infer_outputs

LIBRARIES = ("numpy", "torch", "mlx")


def run(op, *arrays, library="numpy", **attributes):
    context = Context.of(library)
    moved = [None if a is None else to_library(a, context.library) for a in arrays]
    made = evaluate(Node("n", op, ["x"] * len(arrays), ["y"], attributes), moved, context)
    return [to_host(r, context.library) for r in made]


def infer(op, *values, **attributes):
    found = get_op(op)
    return infer_outputs(found, values, found.signature.bind(attributes, op))[0].type


def scalar(value, dtype=np.float32):
    return np.array(value, dtype)


@pytest.mark.parametrize("library", LIBRARIES)
def test_rounds_to_even_then_adds_the_zero_point_then_saturates(library):
    x = np.array([0.5, 1.5, 2.5, -0.5, 1e9, -1e9, np.inf, -np.inf], np.float32)
    (y,) = run("QuantizeLinear", x, scalar(1.0), scalar(1, np.int8), library=library)
    assert y.dtype == np.int8
    assert y.tolist() == [1, 3, 3, 1, 127, -128, 127, -128]


@pytest.mark.parametrize("kind", [DType.Int4, DType.UInt4, DType.Int2, DType.UInt2, DType.Int16, DType.UInt16])
@pytest.mark.parametrize("library", LIBRARIES)
def test_every_integer_type_saturates_at_its_limits(kind, library):
    limits = ml_dtypes.iinfo(kind.numpy)
    x = np.array([-1e6, 0.0, 1.0, 1e6], np.float32)
    (y,) = run("QuantizeLinear", x, scalar(1.0), output_dtype=kind.onnx, library=library)
    assert y.dtype == kind.numpy
    assert y.astype(np.int64).tolist() == [limits.min, 0, 1, limits.max]
    (back,) = run("DequantizeLinear", y, scalar(0.5), library=library)
    assert back.tolist() == [limits.min * 0.5, 0.0, 0.5, limits.max * 0.5]


@pytest.mark.parametrize(("saturate", "expected"), [(1, 448.0), (0, np.nan)])
def test_float8_saturates_only_if_asked(saturate, expected):
    kind = DType.Float8E4M3FN
    (y,) = run(
        "QuantizeLinear", np.array([1e4, 1.0], np.float32), scalar(1.0), output_dtype=kind.onnx, saturate=saturate
    )
    assert y.dtype == kind.numpy
    np.testing.assert_equal(y.astype(np.float32), [expected, 1.0])


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.int32])
def test_every_input_type(dtype):
    (y,) = run("QuantizeLinear", np.array([2, 5, 7], dtype), scalar(2.0), scalar(0, np.uint8))
    assert y.tolist() == [1, 2, 4]


def test_precision_decides_how_the_division_is_done():
    x, scale = np.array([2049.0], np.float32), scalar(2.0)
    exact = run("QuantizeLinear", x, scale, output_dtype=DType.UInt16.onnx)[0]
    half = run("QuantizeLinear", x, scale, output_dtype=DType.UInt16.onnx, precision=DType.BFloat16.onnx)[0]
    assert exact.tolist() == [1024]  # 1024.5 to even
    assert half.tolist() == [1024]
    x = np.array([2055.0], np.float32)
    assert run("QuantizeLinear", x, scalar(1.0), output_dtype=4)[0].tolist() == [2055]
    assert run("QuantizeLinear", x, scalar(1.0), output_dtype=4, precision=DType.BFloat16.onnx)[0].tolist() == [2048]


def test_scales_of_powers_of_two_alone():
    scale = np.array([2.0, 4.0], ml_dtypes.float8_e8m0fnu)
    x = np.array([[8.0, 8.0]], np.float32)
    assert run("QuantizeLinear", x, scale, axis=1)[0].tolist() == [[4, 2]]
    y = run("DequantizeLinear", np.array([[4, 2]], np.int8), scale, axis=1, output_dtype=DType.Float16.onnx)[0]
    assert y.dtype == np.float16
    assert y.tolist() == [[8.0, 8.0]]


@pytest.mark.parametrize("library", LIBRARIES)
def test_blocks_repeat_their_scale(library):
    x = np.arange(10, dtype=np.float32).reshape(1, 10)
    scale = np.array([[1.0, 2.0, 4.0]], np.float32)
    (y,) = run("QuantizeLinear", x, scale, axis=1, block_size=4, library=library)
    expected = np.rint(x / np.repeat(scale, 4, axis=1)[:, :10])
    np.testing.assert_array_equal(y, expected.astype(np.uint8))


def test_what_does_not_fit_is_refused():
    x = np.zeros((2, 4), np.float32)
    with pytest.raises(ShapeMismatchError, match="block_size"):
        run("QuantizeLinear", x, np.ones((2, 2), np.float32))
    with pytest.raises(ShapeMismatchError, match="2 blocks of 2"):
        run("QuantizeLinear", x, np.ones((2, 3), np.float32), block_size=2)
    with pytest.raises(DTypeMismatchError, match="output_dtype"):
        run("QuantizeLinear", x, scalar(1.0), scalar(0, np.int8), output_dtype=DType.UInt8.onnx)
    with pytest.raises(DTypeMismatchError, match="not a type to quantize to"):
        run("QuantizeLinear", x, scalar(1.0), output_dtype=DType.Float32.onnx)


def test_inference_knows_symbols_and_types():
    n = symbol("N")
    x = Value("x", TensorType(DType.Float32, Shape([n, 3])))
    scale = Value("s", TensorType(DType.Float16, Shape([])))
    assert infer("QuantizeLinear", x, scale) == TensorType(DType.UInt8, Shape([n, 3]))
    assert infer("QuantizeLinear", x, scale, output_dtype=DType.Int4.onnx).dtype is DType.Int4
    q = Value("q", TensorType(DType.Int8))
    assert infer("DequantizeLinear", q, scale) == TensorType(DType.Float16, None)


@pytest.mark.parametrize("library", LIBRARIES)
def test_dynamic_range_of_nothing_but_zeros(library):
    y, scale, zero = run("DynamicQuantizeLinear", np.zeros(3, np.float32), library=library)
    assert (y.tolist(), scale.item(), zero.item()) == ([0, 0, 0], 1.0, 0)


def test_against_onnxruntime(agrees_with_onnxruntime):
    rng = np.random.default_rng(0)
    a = rng.integers(0, 100, (2, 3, 4)).astype(np.uint8)
    b = rng.integers(0, 100, (4, 5)).astype(np.uint8)
    zero = rng.integers(0, 9, 5).astype(np.uint8)
    scale = rng.uniform(0.1, 1, 5).astype(np.float32)
    inputs = [a, scalar(0.1), scalar(5, np.uint8), b, scale, zero, scalar(3.0), scalar(9, np.uint8)]
    agrees_with_onnxruntime("QLinearMatMul", inputs, domain="", opset=10, steps=1)
    x = rng.integers(0, 100, (2, 4, 6, 7)).astype(np.int8)
    w = rng.integers(0, 100, (6, 2, 3, 3)).astype(np.int8)
    inputs = [
        x, scalar(0.1), scalar(5, np.int8), w, rng.uniform(0.01, 0.1, 6).astype(np.float32), np.full(6, 7, np.int8),
        scalar(3.0), scalar(9, np.int8), rng.integers(-1000, 1000, 6).astype(np.int32),
    ]  # fmt: skip
    attributes = {"group": 2, "strides": [1, 2], "pads": [1, 0, 0, 1]}
    agrees_with_onnxruntime("QLinearConv", inputs, attributes, domain="", opset=10, steps=1)
    x = rng.standard_normal(50).astype(np.float32)
    agrees_with_onnxruntime("DynamicQuantizeLinear", [x], domain="", outputs=["y", "s", "z"], steps=1)


def test_products_of_float8():
    kind = ml_dtypes.float8_e4m3fn
    a, b = np.array([[1, 2]], kind), np.array([[3], [4]], kind)
    zero, one = scalar(0, kind), scalar(1.0)
    (y,) = run("QLinearMatMul", a, one, zero, b, one, zero, one, zero)
    assert y.dtype == kind
    assert y.astype(np.float32).tolist() == [[11.0]]
