"""Operators on integers: ONNX Runtime's answers bit for bit, on every backend."""

import ml_dtypes
import numpy as np
import pytest

import pyflame_rt
from pyflame_rt.exporters.onnx import onnx_model
from pyflame_rt.graph import DType, Graph

BACKENDS = ["CPUExecutionProvider", "ReferenceExecutionProvider", "TorchExecutionProvider", "MLXExecutionProvider"]


def one_node(op, arrays, output, domain="pyflame", fixed=(), **attributes):
    graph = Graph(op)
    for name, array in arrays.items():
        if name in fixed:
            graph.add_initializer(name, array)
        else:
            graph.add_input(name, list(array.shape), DType.of(array.dtype))
    graph.add_node("n", op, list(arrays), ["y"], domain=domain, attrs=attributes)
    graph.add_output("y", None, output)
    return graph, {name: a for name, a in arrays.items() if name not in fixed}


def ours(graph, feed, provider):
    if provider not in pyflame_rt.get_available_providers():
        pytest.skip(f"{provider} is not here")
    return pyflame_rt.InferenceSession(graph, providers=[provider]).run(None, feed)[0]


def theirs(graph, feed):
    onnxruntime = pytest.importorskip("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    model = onnx_model(graph, opset=21).SerializeToString()
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"]).run(None, feed)[0]


def draw(seed, signed):
    rng = np.random.default_rng(seed)
    kind = np.int8 if signed else np.uint8
    limits = np.iinfo(kind)

    def integers(*shape):
        return rng.integers(limits.min, limits.max + 1, shape).astype(kind)

    return rng, integers, kind


def parameters(rng, kind, name, scale):
    zero = rng.integers(np.iinfo(kind).min, np.iinfo(kind).max + 1)
    return {f"{name}_scale": np.asarray(scale, np.float32), f"{name}_zero": np.asarray(zero, kind)}


@pytest.mark.parametrize("provider", BACKENDS)
@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize("channels", [True, False])
@pytest.mark.parametrize("signed", [True, False])
def test_products(provider, signed, channels, constant):
    rng, integers, kind = draw(1, signed)
    b_scale = rng.uniform(0.01, 0.1, 33).astype(np.float32) if channels else 0.02
    zeros = np.zeros(33, np.int8) if channels else np.int8(3)
    b = {
        "b": rng.integers(-128, 128, (70, 33)).astype(np.int8),
        "b_scale": np.asarray(b_scale, np.float32),
        "b_zero": np.asarray(zeros),
    }
    arrays = {"a": integers(19, 70), **parameters(rng, kind, "a", 0.03), **b, **parameters(rng, kind, "y", 0.9)}
    fixed = set(arrays) - {"a"} if constant else set()
    kind_of = DType.of(np.dtype(kind))
    graph, feed = one_node("QuantizedMatMul", arrays, kind_of, fixed=fixed)
    oracle, _ = one_node("QLinearMatMul", arrays, kind_of, "", fixed=fixed)
    np.testing.assert_array_equal(ours(graph, feed, provider), theirs(oracle, feed))


def test_a_bias_of_products_is_added_to_the_sums():
    rng, integers, kind = draw(2, signed=True)
    arrays = {
        "a": integers(4, 6),
        **parameters(rng, kind, "a", 0.1),
        "b": integers(6, 5),
        **parameters(rng, kind, "b", 0.1),
    }
    arrays |= {**parameters(rng, kind, "y", 2.0), "bias": rng.integers(-4000, 4000, 5).astype(np.int32)}
    graph, feed = one_node("QuantizedMatMul", arrays, DType.Int8)
    sums = (arrays["a"].astype(int) - arrays["a_zero"]) @ (arrays["b"].astype(int) - arrays["b_zero"]) + arrays["bias"]
    steps = np.float32(0.1) * np.float32(0.1) / np.float32(2.0)
    expected = np.clip(np.rint(sums.astype(np.float32) * steps) + arrays["y_zero"], -128, 127)
    for provider in ("CPUExecutionProvider", "ReferenceExecutionProvider"):
        np.testing.assert_array_equal(ours(graph, feed, provider), expected)


@pytest.mark.parametrize("provider", BACKENDS)
@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("form", ["plain", "grouped", "strided", "bias"])
def test_convolutions(provider, signed, form):
    rng, integers, kind = draw(3, signed)
    group = 4 if form == "grouped" else 1
    attributes = {"pads": [1, 1, 1, 1], "group": group, "strides": [2, 2] if form == "strided" else [1, 1]}
    arrays = {"x": integers(2, 8, 9, 9), **parameters(rng, kind, "x", 0.03)}
    arrays |= {"w": rng.integers(-127, 128, (12, 8 // group, 3, 3)).astype(np.int8)}
    arrays |= {"w_scale": rng.uniform(0.01, 0.1, 12).astype(np.float32), "w_zero": np.zeros(12, np.int8)}
    arrays |= parameters(rng, kind, "y", 0.8)
    if form == "bias":
        arrays["bias"] = rng.integers(-3000, 3000, 12).astype(np.int32)
    fixed = set(arrays) - {"x"}
    graph, feed = one_node("QuantizedConv", arrays, DType.of(np.dtype(kind)), fixed=fixed, **attributes)
    oracle, _ = one_node("QLinearConv", arrays, DType.of(np.dtype(kind)), "", fixed=fixed, **attributes)
    np.testing.assert_array_equal(ours(graph, feed, provider), theirs(oracle, feed))


@pytest.mark.parametrize("provider", BACKENDS)
def test_sums(provider):
    rng, integers, kind = draw(4, signed=True)
    arrays = {
        "a": integers(40, 5),
        **parameters(rng, kind, "a", 0.03),
        "b": integers(5),
        **parameters(rng, kind, "b", 0.05),
    }
    arrays |= parameters(rng, kind, "y", 0.07)
    graph, feed = one_node("QuantizedAdd", arrays, DType.Int8)
    real = (arrays["a"].astype(np.float32) - arrays["a_zero"]) * np.float32(0.03)
    real = real + (arrays["b"].astype(np.float32) - arrays["b_zero"]) * np.float32(0.05)
    expected = np.clip(np.rint(real / np.float32(0.07)) + arrays["y_zero"], -128, 127)
    np.testing.assert_array_equal(ours(graph, feed, provider), expected)


@pytest.mark.parametrize("provider", BACKENDS)
def test_steps_and_back(provider):
    rng, _, kind = draw(5, signed=False)
    x = rng.standard_normal((6, 7)).astype(np.float32) * 4
    given = parameters(rng, kind, "x", 0.05)
    graph, feed = one_node("Quantize", {"x": x, **given}, DType.UInt8)
    oracle, _ = one_node("QuantizeLinear", {"x": x, **given}, DType.UInt8, "")
    steps = ours(graph, feed, provider)
    np.testing.assert_array_equal(steps, theirs(oracle, feed))
    graph, feed = one_node("Dequantize", {"x": steps, **given}, DType.Float32)
    np.testing.assert_array_equal(
        ours(graph, feed, provider), (steps.astype(np.float32) - given["x_zero"]) * given["x_scale"]
    )
    graph, feed = one_node("Quantize", {"x": x, "scale": np.float32([0.05]).reshape(())}, DType.Int8)
    assert ours(graph, feed, provider).dtype == np.int8  # without a zero point


@pytest.mark.parametrize("provider", BACKENDS)
@pytest.mark.parametrize(("name", "kind"), [("FP16", np.float16), ("BF16", ml_dtypes.bfloat16)])
def test_casts(provider, name, kind):
    x = np.float32([0.1, -3.14, 1e-8, 65504, 0, 2.5e-6])
    graph, feed = one_node(f"CastTo{name}", {"x": x}, DType.of(np.dtype(kind)))
    narrow = ours(graph, feed, provider)
    np.testing.assert_array_equal(narrow.astype(np.float32), x.astype(kind).astype(np.float32))
    graph, feed = one_node(f"CastFrom{name}", {"x": x.astype(kind)}, DType.Float32)
    np.testing.assert_array_equal(ours(graph, feed, provider), x.astype(kind).astype(np.float32))
