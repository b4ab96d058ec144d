"""Products and convolutions of 8-bit integers: equal to the reference bit by bit, on every instruction set."""

import os
import subprocess
import sys

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import pyflame_rt
from pyflame_rt.backends.cpu.ir.kernel_program import apply, cast, load, walk
from pyflame_rt.backends.cpu.ir.whole_numbers import kept_whole
from pyflame_rt.backends.cpu.jit.compiler import call
from pyflame_rt.backends.cpu.jit.target import Host, host
from pyflame_rt.backends.cpu.kernels.tiles.integer_dots import Dots, dots_for, integer_tile, packed_weights
from pyflame_rt.backends.cpu.kernels.tiles.integer_finish import IntegerFinish, Operand
from pyflame_rt.backends.cpu.kernels.tiles.integer_products import IntegerKernel

pytestmark = pytest.mark.skipif(dots_for(host()) is None, reason="there are no kernels of integers here")

TYPES = {np.uint8: TensorProto.UINT8, np.int8: TensorProto.INT8}
BYTES = st.sampled_from([np.uint8, np.int8])


def ways():
    """The machine's own instructions, and those that every machine has."""
    found = dots_for(host())
    return [] if found is None else list(dict.fromkeys([found, Dots("pairs", host().lanes(4))]))


def numbers(rng, shape, kind, *, extreme=False):
    info = np.iinfo(kind)
    if extreme:
        return np.full(shape, info.max if rng.random() < 0.5 else info.min, kind)
    return rng.integers(info.min, info.max + 1, shape).astype(kind)


def padded(values, width):
    return np.pad(values, (0, -len(values) % width)).astype(np.int32)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 20),
    st.integers(1, 40),
    st.integers(1, 70),
    BYTES,
    st.sampled_from(ways()),
    st.booleans(),
    st.integers(0, 2**32 - 1),
)
def test_kernel_equals_integers(rows, depth, columns, kind, dots, shifted, seed):
    rng = np.random.default_rng(seed)
    x, w = numbers(rng, (rows, depth), kind, extreme=seed % 3 == 0), numbers(rng, (depth, columns), np.int8)
    if seed % 3 == 0:
        w[:] = -128
    zero = numbers(rng, (1,), kind, extreme=seed % 2 == 0)
    shifts = rng.integers(-128, 128, columns) if shifted else np.zeros(columns, int)
    tile = integer_tile(host(), dots, rows, columns, sums=shifted)
    width = tile.vectors * dots.lanes
    packed = packed_weights(w, width, 1, dots)
    sums = padded((w.astype(np.int64) - shifts).sum(0), width)
    given_shifts = [padded(shifts, width)] if shifted else []
    y = np.full((rows, columns + 3), 7, np.int32)
    block = -(-rows // tile.rows) * tile.rows
    call(
        IntegerKernel("rows", dots, tile, depth % 4, kind is np.int8, shifted),
        [a.ctypes.data for a in (x, packed, sums, zero, *given_shifts, y)],
        [rows, columns, depth // 4, block, columns + 3, depth],
        0,
        len(packed),
    )
    assert np.array_equal(y[:, :columns], (x.astype(np.int64) - int(zero[0])) @ (w.astype(np.int64) - shifts))
    assert (y[:, columns:] == 7).all()


def machine(size, registers, *features):
    names = ",".join(f"+{f}" for f in ("sse2", *features))
    return Host("any", names, size, fma=True, half=True, big_vectors=size == 64, registers=registers)


@pytest.mark.parametrize(
    ("host", "kind"),
    [
        (machine(64, 32, "avx2", "avx512f", "avx512vnni", "avx512vl"), "vnni"),
        (machine(64, 32, "avx2", "avx512f"), "pairs"),
        (machine(32, 16, "avx2", "avxvnni"), "vnni"),
        (machine(32, 16, "avx2"), "pairs"),
        (machine(16, 16), "pairs"),
    ],
)
def test_the_instruction_set_is_chosen_by_the_machine(host, kind):
    dots = dots_for(host)
    assert (dots.kind, dots.lanes) == (kind, host.vector_bytes // 4)
    tile = integer_tile(host, dots, 1000, 256)
    # Sums, a vector of each column, and a row: in registers.
    assert tile.rows * tile.vectors + tile.vectors + 2 <= host.registers
    text = IntegerKernel("rows", dots, tile).emit("f", host)
    assert ("vpdpbusd" in text) == (kind == "vnni")
    assert ("pmadd" in text) == (kind == "pairs")


def graph(nodes, x, outputs, arrays):
    made = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)],
        [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs.items()],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in arrays.items()],
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(made, opset_imports=opsets, ir_version=9).SerializeToString()


def check(data, x):
    """Native and reference give the same bits, and nothing is left to the reference."""
    native = pyflame_rt.InferenceSession(data)
    oracle = pyflame_rt.InferenceSession(data, providers=["ReferenceExecutionProvider"])
    got, want = native.run(None, {"x": x}), oracle.run(None, {"x": x})
    for mine, theirs in zip(got, want, strict=True):
        assert mine.dtype == theirs.dtype
        assert np.array_equal(mine, theirs)
    assert native.explain().host_step_count == 0
    return native


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from([(1, 1), (1, 6), (2, 3), (3, 1)]),
    st.sampled_from([1, 3, 4, 5, 16, 67]),
    st.sampled_from([1, 7, 32, 50]),
    BYTES,
    BYTES,
    st.booleans(),
    st.integers(0, 2**32 - 1),
)
def test_matmul_integer(lead, depth, columns, kind, weights, per_column, seed):
    rng = np.random.default_rng(seed)
    x, w = numbers(rng, (*lead, depth), kind), numbers(rng, (depth, columns), weights)
    arrays = {"w": w, "xz": numbers(rng, (), kind), "wz": numbers(rng, (columns,) if per_column else (), weights)}
    nodes = [helper.make_node("MatMulInteger", ["x", "w", "xz", "wz"], ["y"])]
    check(graph(nodes, x, {"y": TensorProto.INT32}, arrays), x)


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from([(1, 3, 8), (4, 4, 9), (8, 8, 32), (16, 12, 33), (64, 32, 1)]),
    st.sampled_from([1, 2]),
    st.tuples(*[st.integers(1, 3)] * 2),
    st.tuples(*[st.integers(1, 2)] * 4),
    st.tuples(*[st.integers(0, 2)] * 4),
    BYTES,
    BYTES,
    st.integers(0, 2**32 - 1),
)
def test_quantized_convolution(sizes, images, kernel, steps, pads, kind, weights, seed):
    rng, (channels, _, columns) = np.random.default_rng(seed), sizes
    x, w = numbers(rng, (images, channels, 9, 7), kind), numbers(rng, (columns, channels, *kernel), weights)
    arrays = {
        "w": w, "xs": np.float32(0.02), "xz": numbers(rng, (), kind, extreme=seed % 2 == 0),
        "ws": rng.random(columns).astype(np.float32) * 0.01, "wz": numbers(rng, (columns,), weights),
        "ys": np.float32(0.4), "yz": numbers(rng, (), kind), "b": rng.integers(-5000, 5000, columns).astype(np.int32),
    }  # fmt: skip
    attributes = {"pads": pads, "strides": steps[:2], "dilations": steps[2:]}
    nodes = [
        helper.make_node("QLinearConv", ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz", "b"], ["y"], **attributes),
        helper.make_node("ConvInteger", ["x", "w", "xz", "wz"], ["i"], **attributes),
    ]
    check(graph(nodes, x, {"y": TYPES[kind], "i": TensorProto.INT32}, arrays), x)


@pytest.mark.parametrize("groups", [2, 4])
def test_groups_of_channels(groups):
    rng = np.random.default_rng(groups)
    x, w = numbers(rng, (2, 40, 6, 5), np.uint8), numbers(rng, (groups * 18, 40 // groups, 3, 3), np.int8)
    nodes = [helper.make_node("ConvInteger", ["x", "w", "z"], ["y"], group=groups, pads=[1, 1, 1, 1])]
    check(graph(nodes, x, {"y": TensorProto.INT32}, {"w": w, "z": np.uint8(255)}), x)


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from([2, 5, 16, 24, 33]),
    st.tuples(st.sampled_from([1, 2, 3, 5, 7]), st.sampled_from([1, 2, 3, 4, 5])),
    st.tuples(*[st.integers(1, 2)] * 2),
    st.tuples(*[st.integers(0, 2)] * 4),
    BYTES,
    BYTES,
    st.integers(0, 2**32 - 1),
)
def test_channels_each_on_its_own(channels, kernel, strides, pads, kind, weights, seed):
    rng = np.random.default_rng(seed)
    extreme = seed % 3 == 0
    x, w = (
        numbers(rng, (2, channels, 8, 11), kind, extreme=extreme),
        numbers(rng, (channels, 1, *kernel), weights, extreme=extreme),
    )
    arrays = {
        "w": w, "xs": np.float32(0.02), "xz": numbers(rng, (), kind, extreme=seed % 2 == 0),
        "ws": rng.random(channels).astype(np.float32) * 0.1, "wz": numbers(rng, (channels,), weights, extreme=extreme),
        "ys": np.float32(0.4), "yz": numbers(rng, (), kind),
    }  # fmt: skip
    given = {"pads": pads, "strides": strides, "group": channels}
    nodes = [
        helper.make_node("QLinearConv", ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz"], ["y"], **given),
        helper.make_node("ConvInteger", ["x", "w", "xz", "wz"], ["i"], **given),
    ]
    check(graph(nodes, x, {"y": TYPES[kind], "i": TensorProto.INT32}, arrays), x)


def test_a_residual_block_is_two_kernels():
    """Sum, requantization, the other branch and Relu are the end of the second convolution."""
    rng = np.random.default_rng(0)
    x = numbers(rng, (1, 32, 8, 8), np.uint8)
    scales = {"s": np.float32(0.05), "z": np.uint8(120), "ws": np.float32(0.01), "wz": np.int8(0)}
    arrays = {**scales, "a": numbers(rng, (32, 32, 3, 3), np.int8), "b": numbers(rng, (32, 32, 1, 1), np.int8)}
    nodes = [
        helper.make_node("QLinearConv", ["x", "s", "z", "a", "ws", "wz", "s", "z"], ["h"], pads=[1, 1, 1, 1]),
        helper.make_node("QLinearConv", ["h", "s", "z", "b", "ws", "wz", "s", "z"], ["g"]),
        helper.make_node("QLinearAdd", ["g", "s", "z", "x", "s", "z", "s", "z"], ["y"], domain="com.microsoft"),
    ]
    native = check(graph(nodes, x, {"y": TensorProto.UINT8}, arrays), x)
    rows = [row for row in native.explain().rows if not row.moves]
    assert len({row.fused_with or row.node for row in rows}) == 2


def layer(depth, width, kind, *, dynamic_scale=True):
    rng = np.random.default_rng(depth * 1000 + width)
    low, high = (-127, 128) if kind is np.int8 else (0, 256)
    arrays = {
        "w": rng.integers(low, high, (depth, width)).astype(kind),
        "wz": np.array((low + high) // 2, kind),
        "ws": np.float32(0.01),
        "b": rng.normal(size=width).astype(np.float32),
    }
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        helper.make_node("MatMulInteger", ["q", "w", "z", "wz"], ["p"]),
        helper.make_node("Cast", ["p"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["s" if dynamic_scale else "ws", "ws"], ["factor"]),
        helper.make_node("Mul", ["f", "factor"], ["m"]),
        helper.make_node("Add", ["m", "b"], ["n"]),
        helper.make_node("Relu", ["n"], ["y"]),
    ]
    return nodes, arrays


@pytest.mark.parametrize("dynamic_scale", [False, True])
@pytest.mark.parametrize("kind", [np.int8, np.uint8])
@pytest.mark.parametrize(("rows", "depth", "width"), [(1, 64, 33), (2, 2, 1), (7, 64, 33), (130, 384, 96), (5, 65, 40)])
def test_dynamically_quantized_layers(rows, depth, width, kind, dynamic_scale):
    nodes, arrays = layer(depth, width, kind, dynamic_scale=dynamic_scale)
    x = np.random.default_rng(1).standard_normal((rows, depth)).astype(np.float32)
    check(graph(nodes, x, {"y": TensorProto.FLOAT, "p": TensorProto.INT32}, arrays), x)


def test_rows_of_any_number_share_a_plan():
    nodes, arrays = layer(64, 40, np.int8)
    x = np.random.default_rng(1).standard_normal((9, 64)).astype(np.float32)
    data = graph(nodes, x, {"y": TensorProto.FLOAT}, arrays)
    model = onnx.load_from_string(data)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "N"
    native = pyflame_rt.InferenceSession(model.SerializeToString())
    oracle = pyflame_rt.InferenceSession(model.SerializeToString(), providers=["ReferenceExecutionProvider"])
    for rows in (9, 1, 3, 14, 25, 2):
        feed = {"x": np.resize(x, (rows, 64))}
        assert np.array_equal(native.run(None, feed)[0], oracle.run(None, feed)[0])


@pytest.mark.parametrize("isa", ["avx2", "avx512"])
def test_lesser_machines(isa, tmp_path):
    """The same tests in a process that is told to have fewer instructions."""
    chosen = "kernel_equals or quantized_convolution or residual or dynamically or groups or channels"
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", __file__, "-k", chosen]
    env = {**os.environ, "PYFLAME_ISA": isa, "PYFLAME_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]


def test_an_unknown_machine_is_refused():
    code = "from pyflame_rt.backends.cpu.jit.target import host; host()"
    env = {**os.environ, "PYFLAME_ISA": "pentium"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert "PYFLAME_ISA is 'pentium': it may be avx2 or avx512" in done.stderr


@pytest.mark.parametrize("kind", ["uint8", "int8"])
@pytest.mark.parametrize("dots", ways())
def test_bytes_are_rounded_to_even_and_limited(dots, kind):
    """Sums times a scale for each column: halves, numbers beyond 32 bits, and infinities."""
    low, high = np.iinfo(kind).min, np.iinfo(kind).max
    rounded = apply("round", apply("mul", cast(load(0, "int32"), "float32"), load(1, "float32")))
    byte = cast(apply("min", apply("max", rounded, float(low)), float(high)), kind)
    finish = IntegerFinish(kept_whole([byte]), (kind,), (Operand("column", "float32"),))
    assert {node.op for node in walk(finish.values)}.isdisjoint({"round"})
    scales = np.array([0.5, -0.5, 1.5, 0.25, 1e12, -1e12, 3e38, 1e-30, 0.0, np.inf], np.float32)
    x = np.arange(-128, 128).astype(np.int8).reshape(-1, 1)
    w = np.ones((1, len(scales)), np.int8)
    tile = integer_tile(host(), dots, len(x), len(scales))
    width = tile.vectors * dots.lanes
    packed = packed_weights(w, width, 1, dots)
    y, zero = np.zeros((len(x), len(scales)), kind), np.zeros(1, np.int8)
    arrays = (x, packed, padded(w.sum(0), width), zero, np.pad(scales, (0, width)), y)
    kernel = IntegerKernel("rows", dots, tile, 1, signed=True, finish=finish)
    call(kernel, [a.ctypes.data for a in arrays], [len(x), len(scales), 0, 300, len(scales), 1], 0, len(packed))
    with np.errstate(invalid="ignore", over="ignore"):
        exact = np.clip(np.rint(x.astype(np.float32) * scales), low, high)
    there = ~np.isnan(exact)  # zero times infinity is no number
    assert np.array_equal(y[there], exact[there].astype(kind))
