"""Graphs between DequantizeLinear and QuantizeLinear: integers all the way, one step from the reference at most."""

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper

import pyflame_rt
from pyflame_rt.backends.cpu.ir.kernel_program import apply, cast, load, structure_of
from pyflame_rt.backends.cpu.ir.whole_numbers import kept_whole


class Graph:
    """Collects nodes and constants."""

    def __init__(self):
        self.nodes, self.arrays, self.count = [], {}, 0

    def constant(self, value):
        self.arrays[f"c{len(self.arrays)}"] = np.asarray(value)
        return f"c{len(self.arrays) - 1}"

    def node(self, op, *inputs, **attributes):
        self.count += 1
        self.nodes.append(helper.make_node(op, inputs, [f"v{self.count}"], f"n{self.count}", **attributes))
        return f"v{self.count}"

    def dequantized(self, x, scale, zero, **attributes):
        return self.node("DequantizeLinear", x, self.constant(scale), self.constant(zero), **attributes)

    def quantized(self, x, scale, zero):
        return self.node("QuantizeLinear", x, self.constant(np.float32(scale)), self.constant(zero))

    def model(self, x, *outputs):
        info = helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        made = helper.make_graph(
            self.nodes, "g", [info],
            [onnx.ValueInfoProto(name=o) for o in outputs],
            [numpy_helper.from_array(a, n) for n, a in self.arrays.items()],
        )  # fmt: skip
        return helper.make_model(made, opset_imports=[helper.make_opsetid("", 20)], ir_version=9).SerializeToString()


def run(data, x, provider="CPUExecutionProvider", **options):
    session = pyflame_rt.InferenceSession(data, pyflame_rt.SessionOptions(**options), providers=[provider])
    return session, session.run(None, {"x": x})


def integer_kernels(session):
    return [row for row in session.explain().rows if "Integer" in row.runs_on]


def within_one_step(got, want):
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    away = np.abs(got.astype(int) - want.astype(int))
    assert away.max(initial=0) <= 1
    assert (away > 0).mean() < 0.02


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from([np.uint8, np.int8]),
    st.sampled_from([np.uint8, np.int8]),
    st.booleans(),
    st.sampled_from(["", "integer", "float"]),
    st.sampled_from(["", "Relu", "Clip", "both"]),
    st.integers(0, 2**32 - 1),
)
def test_convolution(kind, weights, per_channel, bias, activation, seed):
    rng, g = np.random.default_rng(seed), Graph()
    info = np.iinfo(kind)
    x = rng.integers(info.min, info.max + 1, (2, 5, 7, 6)).astype(kind)
    w = rng.integers(np.iinfo(weights).min, np.iinfo(weights).max + 1, (12, 5, 3, 3)).astype(weights)
    scales = rng.uniform(0.001, 0.01, 12).astype(np.float32) if per_channel else np.float32(0.004)
    zeros = np.full(np.shape(scales), 128 if weights is np.uint8 else 0, weights)
    inputs = [
        g.dequantized("x", np.float32(0.03), kind(info.min + 100)),
        g.dequantized(g.constant(w), scales, zeros, axis=0),
    ]
    if bias == "integer":
        numbers = rng.integers(-3000, 3000, 12).astype(np.int32)
        factor = np.broadcast_to(np.float32(0.03) * scales, 12).astype(np.float32)
        inputs.append(g.dequantized(g.constant(numbers), factor, np.zeros(12, np.int32), axis=0))
    elif bias:
        inputs.append(g.constant(rng.standard_normal(12).astype(np.float32)))
    y = g.node("Conv", *inputs, pads=[1, 0, 1, 2], strides=[1, 2])
    if activation in ("Relu", "both"):
        y = g.node("Relu", y)
    if activation in ("Clip", "both"):
        y = g.node("Clip", y, g.constant(np.float32(-1.7)), g.constant(np.float32(4.3)))
    last = g.quantized(y, 0.05, kind(info.min + 77))
    data = g.model(x, last)
    session, (got,) = run(data, x)
    _, (want,) = run(data, x, "ReferenceExecutionProvider")
    within_one_step(got, want)
    assert len(integer_kernels(session)) == 1


@pytest.mark.parametrize("form", ["MatMul", "Gemm", "Gemm turned"])
@pytest.mark.parametrize("quantizes", [True, False])
def test_product(form, quantizes):
    rng, g = np.random.default_rng(0), Graph()
    x = rng.integers(0, 256, (9, 30)).astype(np.uint8)
    turned = form == "Gemm turned"
    w = rng.integers(-128, 128, (18, 30) if turned else (30, 18)).astype(np.int8)
    scales = rng.uniform(0.001, 0.01, 18).astype(np.float32)
    inputs = [
        g.dequantized("x", np.float32(0.03), np.uint8(100)),
        g.dequantized(g.constant(w), scales, np.zeros(18, np.int8), axis=0 if turned else 1),
    ]
    if form != "MatMul":
        inputs.append(g.constant(rng.standard_normal(18).astype(np.float32)))
    y = g.node(form.split()[0], *inputs, **({"transB": 1} if turned else {}))
    last = g.quantized(y, 0.2, np.uint8(120)) if quantizes else y
    data = g.model(x, last)
    session, (got,) = run(data, x)
    _, (want,) = run(data, x, "ReferenceExecutionProvider")
    assert integer_kernels(session)
    if quantizes:
        within_one_step(got, want)
    else:
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-4)


def test_values_in_between_can_be_asked_for():
    rng, g = np.random.default_rng(0), Graph()
    x = rng.integers(0, 256, (1, 8, 6, 6)).astype(np.uint8)
    w = rng.integers(-128, 128, (8, 8, 1, 1)).astype(np.int8)
    real = g.dequantized("x", np.float32(0.03), np.uint8(100))
    y = g.node("Conv", real, g.dequantized(g.constant(w), np.float32(0.01), np.int8(0)))
    last = g.quantized(g.node("Relu", y), 0.1, np.uint8(0))
    data = g.model(x, last, y, real)
    for got, want in zip(run(data, x)[1], run(data, x, "ReferenceExecutionProvider")[1], strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1.0 if got.dtype == np.uint8 else 1e-4)


def test_strict_math_computes_what_is_written():
    rng, g = np.random.default_rng(0), Graph()
    x = rng.integers(0, 256, (1, 8, 6, 6)).astype(np.uint8)
    w = rng.integers(-128, 128, (8, 8, 1, 1)).astype(np.int8)
    y = g.node(
        "Conv",
        g.dequantized("x", np.float32(0.03), np.uint8(100)),
        g.dequantized(g.constant(w), np.float32(0.01), np.int8(0)),
    )
    session, _ = run(g.model(x, g.quantized(y, 0.1, np.uint8(0))), x, strict_math_mode=True)
    assert not integer_kernels(session)


MOVES = {
    "MaxPool": {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]},
    "Transpose": {"perm": [0, 2, 3, 1]},
    "Flatten": {"axis": 1},
    "GlobalMaxPool": {},
}


@pytest.mark.parametrize("op", MOVES)
@pytest.mark.parametrize("same", [True, False])
def test_moves_are_of_bytes_where_scales_stay(op, same):
    rng, g = np.random.default_rng(0), Graph()
    x = rng.integers(0, 256, (2, 4, 6, 6)).astype(np.uint8)
    y = g.node(op, g.dequantized("x", np.float32(0.03), np.uint8(100)), **MOVES[op])
    data = g.model(x, g.quantized(y, 0.03 if same else 0.05, np.uint8(100)))
    session, (got,) = run(data, x)
    assert np.array_equal(got, run(data, x, "ReferenceExecutionProvider")[1][0])
    if same:
        assert not any("Div" in row.runs_on for row in session.explain().rows)


def test_a_resize_that_writes_a_number_of_its_own_is_of_floats():
    rng, g = np.random.default_rng(0), Graph()
    x = rng.integers(0, 256, (1, 2, 6, 6)).astype(np.uint8)
    region = g.constant(np.float32([0, 0, -0.2, 0, 1, 1, 1.3, 1]))
    y = g.node(
        "Resize", g.dequantized("x", np.float32(0.03), np.uint8(100)), region,
        g.constant(np.float32([1, 1, 2, 1])), mode="nearest", coordinate_transformation_mode="tf_crop_and_resize",
        extrapolation_value=1.5,
    )  # fmt: skip
    data = g.model(x, g.quantized(y, 0.03, np.uint8(100)))
    assert np.array_equal(run(data, x)[1][0], run(data, x, "ReferenceExecutionProvider")[1][0])


@pytest.mark.parametrize("reach", [5000, 2**31 - 1])
def test_sums_with_a_bias_never_leave_32_bits(reach):
    rng, g = np.random.default_rng(0), Graph()
    x = rng.integers(0, 256, (5, 30)).astype(np.uint8)
    w = rng.integers(-128, 128, (30, 6)).astype(np.int8)
    bias = g.dequantized(g.constant(np.int32([reach, -reach] * 3)), np.float32(0.0003), np.int32(0))
    inputs = [
        g.dequantized("x", np.float32(0.03), np.uint8(100)),
        g.dequantized(g.constant(w), np.float32(0.01), np.int8(0)),
    ]
    data = g.model(x, g.quantized(g.node("Gemm", *inputs, bias), 0.2, np.uint8(120)))
    within_one_step(run(data, x)[1][0], run(data, x, "ReferenceExecutionProvider")[1][0])


def test_a_bias_for_each_row_is_not_one_for_each_column():
    rng, g = np.random.default_rng(0), Graph()
    x = rng.integers(0, 256, (6, 30)).astype(np.uint8)
    w = rng.integers(-128, 128, (30, 6)).astype(np.int8)
    bias = g.dequantized(g.constant(np.arange(6, dtype=np.int32)[:, None] * 9000), np.float32(0.0003), np.int32(0))
    inputs = [
        g.dequantized("x", np.float32(0.03), np.uint8(100)),
        g.dequantized(g.constant(w), np.float32(0.01), np.int8(0)),
    ]
    data = g.model(x, g.quantized(g.node("Gemm", *inputs, bias), 0.2, np.uint8(120)))
    within_one_step(run(data, x)[1][0], run(data, x, "ReferenceExecutionProvider")[1][0])


@pytest.mark.parametrize(
    ("first", "second", "last"), [(1e30, 1e10, 1e38), (1e-30, 1e-8, 1e-38), (1e20, 1e15, 1e-30), (0.0, 0.1, 0.1)]
)
def test_scales_beyond_what_floats_multiply(first, second, last):
    """Zeros and ones, whose products are exact in every way to compute them."""
    g, x = Graph(), np.uint8([[100, 100, 101], [101, 101, 101]])
    w = np.int8([[1, 0], [0, 1], [0, 0]])
    inputs = [
        g.dequantized("x", np.float32(first), np.uint8(100)),
        g.dequantized(g.constant(w), np.float32(second), np.int8(0)),
    ]
    data = g.model(x, g.quantized(g.node("MatMul", *inputs), last, np.uint8(120)))
    assert np.array_equal(run(data, x)[1][0], run(data, x, "ReferenceExecutionProvider")[1][0])


def test_a_sum_with_an_image_of_fewer_axes():
    """One image of three axes is added to one of four: as many numbers, other axes."""
    rng, g = np.random.default_rng(0), Graph()
    x = rng.integers(0, 256, (1, 8, 6, 6)).astype(np.uint8)
    w = rng.integers(-128, 128, (8, 8, 1, 1)).astype(np.int8)
    real = g.dequantized("x", np.float32(0.03), np.uint8(100))
    y = g.node("Conv", real, g.dequantized(g.constant(w), np.float32(0.01), np.int8(0)))
    flat = g.node("Reshape", real, g.constant(np.array([8, 6, 6])))
    added = g.node("Add", g.dequantized(g.quantized(y, 0.1, np.uint8(128)), np.float32(0.1), np.uint8(128)), flat)
    data = g.model(x, g.quantized(added, 0.1, np.uint8(128)))
    within_one_step(run(data, x)[1][0], run(data, x, "ReferenceExecutionProvider")[1][0])


def test_concatenation_and_a_pair_that_does_nothing():
    rng, g = np.random.default_rng(0), Graph()
    x = rng.integers(-128, 128, (2, 4, 6)).astype(np.int8)
    real = g.dequantized("x", np.float32(0.03), np.int8(-3))
    again = g.dequantized(g.quantized(real, 0.03, np.int8(-3)), np.float32(0.03), np.int8(-3))
    data = g.model(x, g.quantized(g.node("Concat", real, again, axis=1), 0.03, np.int8(-3)))
    session, (got,) = run(data, x)
    assert np.array_equal(got, np.concatenate([x, x], 1))
    assert not any("Div" in row.runs_on for row in session.explain().rows)


@settings(max_examples=50, deadline=None)
@given(st.integers(-200, 300), st.integers(-200, 300), st.sampled_from(["uint8", "int8"]), st.booleans())
def test_whole_numbers_stay_floats_where_they_fit(zero, less, dtype, clipped):
    low, high = (0.0, 255.0) if dtype == "uint8" else (-128.0, 127.0)
    whole = apply("add", apply("round", load(0, "float32")), float(zero))
    if clipped:
        whole = apply("min", apply("max", whole, low), high)
    again = cast(apply("sub", cast(cast(whole, dtype), "int32"), less), "float32")
    (made,) = kept_whole([again])
    assert ("int" not in structure_of(made)) == clipped  # a byte that may wrap is made
    for value in (-1e9, -300.5, -1.5, 0.5, 2.5, 1000.0):
        if clipped:
            exact = min(max(float(np.round(value)) + zero, low), high) - less
            assert evaluate(made, value) == exact


def evaluate(node, value):
    args = [evaluate(a, value) for a in node.args]
    table = {"add": lambda a, b: a + b, "sub": lambda a, b: a - b, "max": max, "min": min, "round": np.round}
    return value if node.op == "load" else node.value if node.op == "const" else table[node.op](*args)
