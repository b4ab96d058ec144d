"""Products of one row with constant weights: odd sizes, epilogues, thread counts."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import pyflame_rt
from pyflame_rt.backends.cpu.jit.compiler import call
from pyflame_rt.backends.cpu.jit.target import host
from pyflame_rt.backends.cpu.kernels.gemv import GemvKernel
from pyflame_rt.backends.cpu.memory.packed_weights import panels


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 70), st.integers(1, 200), st.sampled_from([1, 2, 3]), st.integers(0, 2**32 - 1))
def test_kernel_equals_numpy(depth, width, vectors, seed):
    rng = np.random.default_rng(seed)
    x, w = rng.standard_normal(depth, dtype=np.float32), rng.standard_normal((depth, width), dtype=np.float32)
    columns = vectors * host().lanes(4)
    packed, y = panels(w, columns), np.full(width + 3, 7, np.float32)
    buffers = [a.ctypes.data for a in (x, packed, y)]
    call(GemvKernel(columns), buffers, [depth, width], 0, len(packed))
    np.testing.assert_allclose(y[:width], x @ w, rtol=1e-5, atol=1e-5)
    assert (y[width:] == 7).all()


def network(depth, width, *, transposed, bias, tail):
    rng = np.random.default_rng(depth * 1000 + width)
    shape = (width, depth) if transposed else (depth, width)
    weights = [numpy_helper.from_array((rng.standard_normal(shape) * 0.2).astype(np.float32), "w")]
    weights += [numpy_helper.from_array(rng.standard_normal((1, width)).astype(np.float32), "r")]
    inputs = ["x", "w"]
    if bias:
        weights.append(numpy_helper.from_array(rng.standard_normal(width).astype(np.float32), "b"))
        inputs.append("b")
    first = (
        helper.make_node("Gemm", inputs, ["z"], transB=int(transposed))
        if transposed or bias
        else helper.make_node("MatMul", inputs, ["z"])
    )
    graph = helper.make_graph(
        [first, *tail],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", depth])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]).SerializeToString()


TAILS = {
    "none": [helper.make_node("Identity", ["z"], ["y"])],
    "relu": [helper.make_node("Relu", ["z"], ["y"])],
    "residual": [helper.make_node("Add", ["r", "z"], ["y"])],
    "silu times row": [
        helper.make_node("Sigmoid", ["z"], ["s"]),
        helper.make_node("Mul", ["z", "s"], ["m"]),
        helper.make_node("Mul", ["m", "r"], ["y"]),
    ],
    "to integers": [helper.make_node("Cast", ["z"], ["y"], to=TensorProto.INT32)],
    "widened": [helper.make_node("Transpose", ["r"], ["t"]), helper.make_node("Add", ["z", "t"], ["y"])],
}


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize(("transposed", "bias"), [(False, False), (True, True), (True, False)])
@pytest.mark.parametrize(("depth", "width"), [(1, 1), (5, 3), (64, 48), (33, 130)])
def test_layers_equal_the_reference(tail, transposed, bias, depth, width):
    data = network(depth, width, transposed=transposed, bias=bias, tail=TAILS[tail])
    x = np.random.default_rng(1).standard_normal((1, depth)).astype(np.float32)
    native, oracle = (
        pyflame_rt.InferenceSession(data, providers=[p]) for p in ("CPUExecutionProvider", "ReferenceExecutionProvider")
    )
    got, want = native.run(None, {"x": x})[0], oracle.run(None, {"x": x})[0]
    assert got.shape == want.shape
    assert got.dtype == want.dtype
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=1 if got.dtype == np.int32 else 2e-5)
    assert native.explain().host_step_count == 0


def test_threads_do_not_change_a_bit():
    data = network(1024, 700, transposed=False, bias=True, tail=TAILS["relu"])
    x = np.random.default_rng(2).standard_normal((1, 1024)).astype(np.float32)
    results = []
    for threads in (1, 2, 3, 7):
        options = pyflame_rt.SessionOptions()
        options.num_threads = threads
        results.append(pyflame_rt.InferenceSession(data, options).run(None, {"x": x})[0])
    assert all(np.array_equal(results[0], r) for r in results)


def pixel_convolution(depth, width, tail, *, kernel=(1, 1), **attributes):
    rng = np.random.default_rng(depth * 1000 + width)
    taps = (rng.standard_normal((width, depth, *kernel)) * 0.2).astype(np.float32)
    weights = [numpy_helper.from_array(taps, "w")]
    weights += [numpy_helper.from_array(rng.standard_normal(width).astype(np.float32), "b")]
    weights += [numpy_helper.from_array(rng.standard_normal((1, width, 1, 1)).astype(np.float32), "r")]
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w", "b"], ["z"], **attributes), *tail],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", depth, "H", "W"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]).SerializeToString()


def kernels(data, x, folder):
    """The kernels of a model whose results equal the reference's."""
    options = pyflame_rt.SessionOptions(enable_profiling=True, profile_file_prefix=str(folder / "p"))
    oracle = pyflame_rt.InferenceSession(data, providers=["ReferenceExecutionProvider"])
    with pyflame_rt.InferenceSession(data, options) as native:
        got, want = native.run(None, {"x": x})[0], oracle.run(None, {"x": x})[0]
        assert native.explain().host_step_count == 0
        trace = json.loads(Path(native.end_profiling()).read_text())
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)
    return {e["args"]["kernel"] for e in trace["traceEvents"] if "kernel" in e.get("args", {})}


PIXEL_TAILS = {name: TAILS[name] for name in ("none", "relu", "residual", "silu times row")}
PIXEL_TAILS["hard sigmoid"] = [helper.make_node("HardSigmoid", ["z"], ["y"])]


@pytest.mark.parametrize("tail", PIXEL_TAILS)
@pytest.mark.parametrize(("depth", "width"), [(1, 1), (7, 3), (72, 24), (33, 130)])
def test_convolutions_of_one_pixel_are_row_products(tail, depth, width, tmp_path):
    x = np.random.default_rng(1).standard_normal((1, depth, 1, 1)).astype(np.float32)
    assert kernels(pixel_convolution(depth, width, PIXEL_TAILS[tail]), x, tmp_path) == {"llvm"}


@pytest.mark.parametrize(
    ("shape", "form"),
    [
        ((1, 8, 1, 1), {"pads": [1, 1, 0, 0], "strides": [2, 2]}),
        ((1, 8, 1, 1), {"pads": [0, 0, 1, 1], "strides": [2, 2]}),
        ((1, 8, 1, 1), {"pads": [1, 1, 1, 1], "kernel": (3, 3)}),
        ((1, 8, 2, 2), {"kernel": (2, 2)}),
        ((1, 8, 2, 2), {"strides": [2, 2]}),
        ((2, 8, 1, 1), {}),
    ],
)
def test_convolutions_near_one_pixel_equal_the_reference(shape, form, tmp_path):
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    assert kernels(pixel_convolution(8, 12, TAILS["relu"], **form), x, tmp_path)
