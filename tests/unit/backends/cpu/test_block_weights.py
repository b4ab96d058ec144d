"""Products with weights in blocks: as the reference has them, rows in bytes or as floats, and exact sums."""

import os
import subprocess
import sys

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import pyflame_rt


def model(rows, depth, columns, block, bits, *, zeros, bias, lead=(), level=0, after=()):
    rng = np.random.default_rng(depth + columns)
    blocks = -(-depth // block)
    arrays = {
        "w": rng.integers(0, 256, (columns, blocks, block * bits // 8)).astype(np.uint8),
        "s": rng.uniform(0.001, 0.02, (columns, blocks)).astype(np.float32),
    }
    inputs = ["x", "w", "s", "", "", ""]
    if zeros:
        arrays["z"] = rng.integers(0, 256, (columns, -(-blocks * bits // 8))).astype(np.uint8)
        inputs[3] = "z"
    if bias:
        arrays["b"] = rng.standard_normal(columns).astype(np.float32)
        inputs[5] = "b"
    while not inputs[-1]:
        inputs.pop()
    given = {"K": depth, "N": columns, "block_size": block, "bits": bits, "accuracy_level": level}
    node = helper.make_node("MatMulNBits", inputs, ["p" if after else "y"], "n", domain="com.microsoft", **given)
    graph = helper.make_graph(
        [node, *after], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [*lead, rows, depth])],
        [onnx.ValueInfoProto(name="y")],
        [numpy_helper.from_array(a, n) for n, a in arrays.items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    x = rng.standard_normal((*lead, rows, depth)).astype(np.float32)
    return helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString(), x


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(("zeros", "bias"), [(False, False), (True, True)])
@pytest.mark.parametrize(
    ("rows", "depth", "columns", "block"),
    [(1, 64, 33, 32), (1, 256, 200, 128), (2, 96, 64, 16), (3, 96, 5, 32), (6, 128, 130, 64), (20, 64, 40, 32)],
)
def test_blocks_of_weights(rows, depth, columns, block, bits, zeros, bias):
    data, x = model(rows, depth, columns, block, bits, zeros=zeros, bias=bias)
    native = pyflame_rt.InferenceSession(data)
    oracle = pyflame_rt.InferenceSession(data, providers=["ReferenceExecutionProvider"])
    (got,), (want,) = native.run(None, {"x": x}), oracle.run(None, {"x": x})
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5 * np.abs(want).max())
    assert native.explain().host_step_count == 0
    whole = any(row.runs_on == "native: MatMulNBits" for row in native.explain().rows)
    assert whole == (rows <= 6)


def test_leading_axes_and_blocks_that_are_not_whole():
    for depth in (64, 72):
        data, x = model(2, depth, 24, 32, 4, zeros=False, bias=False, lead=(1, 2))
        want = pyflame_rt.InferenceSession(data, providers=["ReferenceExecutionProvider"]).run(None, {"x": x})[0]
        got = pyflame_rt.InferenceSession(data).run(None, {"x": x})[0]
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5 * np.abs(want).max())


# ---------------------------------------------------------------------- rows in bytes


def in_bytes(x, block):
    """Steps and scales of rows by blocks, as the operator defines them."""
    blocks = -(-x.shape[-1] // block)
    wide = np.zeros((len(x), blocks * block), np.float32)
    wide[:, : x.shape[-1]] = x
    parts = wide.reshape(len(x), blocks, block)
    largest = np.abs(parts).max(-1, keepdims=True)
    inverse = np.where(largest > 0, np.float32(127) / np.where(largest > 0, largest, 1), 0).astype(np.float32)
    return np.rint(parts * inverse).astype(np.int64), (largest[..., 0] / np.float32(127)).astype(np.float64)


def exact(data, x):
    """What the operator means at level 4: integer sums of blocks, scaled and added up in float64."""
    graph = onnx.load_from_string(data).graph
    arrays = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    given = {a.name: a.i for a in graph.node[0].attribute}
    columns, block, bits = given["N"], given["block_size"], given["bits"]
    steps, scales = in_bytes(x, block)
    blocks = steps.shape[1]

    def numbers(packed):
        return packed if bits == 8 else np.stack([packed & 15, packed >> 4], -1).reshape(*packed.shape[:-1], -1)

    weights = numbers(arrays["w"].reshape(columns, -1)).reshape(columns, blocks, block).astype(np.int64)
    zeros = np.full((columns, blocks), 1 << (bits - 1))
    if "z" in arrays:
        zeros = numbers(arrays["z"])[:, :blocks].astype(np.int64)
    sums = np.einsum("rkb,ckb->rck", steps, weights - zeros[..., None])
    y = (sums * arrays["s"].astype(np.float64) * scales[:, None]).sum(-1)
    return y + arrays["b"] if "b" in arrays else y


SHAPES = [
    (1, 64, 33, 32), (1, 256, 200, 128), (2, 96, 64, 16), (3, 96, 5, 32), (5, 512, 48, 256), (6, 128, 130, 64),
    (20, 64, 40, 32), (7, 72, 40, 32), (130, 160, 70, 32),
]  # fmt: skip


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(("zeros", "bias"), [(False, False), (True, True)])
@pytest.mark.parametrize(("rows", "depth", "columns", "block"), SHAPES)
def test_rows_in_bytes(rows, depth, columns, block, bits, zeros, bias):
    data, x = model(rows, depth, columns, block, bits, zeros=zeros, bias=bias, level=4)
    x[0, :block] = 0
    x[-1, -1] *= 100
    want = exact(data, x)
    native = pyflame_rt.InferenceSession(data)
    got = native.run(None, {"x": x})[0]
    assert [row.runs_on for row in native.explain().rows] == ["native: MatMulNBits"]
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6 * np.abs(want).max())
    oracle = pyflame_rt.InferenceSession(data, providers=["ReferenceExecutionProvider"]).run(None, {"x": x})[0]
    np.testing.assert_allclose(oracle, want, rtol=1e-6, atol=1e-6 * np.abs(want).max())


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("rows", [1, 9])
def test_rows_in_bytes_are_those_of_onnxruntime(bits, zeros, rows):
    onnxruntime = pytest.importorskip("onnxruntime")
    data, x = model(rows, 256, 80, 32, bits, zeros=zeros, bias=True, level=4)
    got, want = (
        s.run(None, {"x": x})[0] for s in (pyflame_rt.InferenceSession(data), onnxruntime.InferenceSession(data))
    )
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6 * np.abs(want).max())


@pytest.mark.parametrize("bits", [4, 8])
def test_the_largest_sums_are_exact(bits):
    """All weights and bytes at their ends: nothing saturates, and float32 holds the sums."""
    data, x = model(2, 256, 40, 256, bits, zeros=True, bias=False, level=4)
    proto = onnx.load_from_string(data)
    for tensor in proto.graph.initializer:
        fill = {"w": 255, "z": 0, "s": 1.0}[tensor.name]
        tensor.CopyFrom(numpy_helper.from_array(np.full_like(numpy_helper.to_array(tensor), fill), tensor.name))
    x[0], x[1] = 127, -127
    got = pyflame_rt.InferenceSession(proto.SerializeToString()).run(None, {"x": x})[0]
    np.testing.assert_array_equal(got, np.outer([1, -1], np.full(40, 256 * 127 * (2**bits - 1))).astype(np.float32))


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_rows_that_are_no_numbers(odd):
    data, x = model(3, 64, 20, 32, 4, zeros=True, bias=False, level=4)
    x[1, 40] = odd
    for providers in (None, ["ReferenceExecutionProvider"]):
        got = pyflame_rt.InferenceSession(data, providers=providers).run(None, {"x": x})[0]
        assert np.isnan(got[1]).all()
        assert np.isfinite(got[[0, 2]]).all()


def test_next_to_nothing_is_nothing():
    data, x = model(1, 64, 20, 32, 4, zeros=False, bias=False, level=4)
    for providers in (None, ["ReferenceExecutionProvider"]):
        got = pyflame_rt.InferenceSession(data, providers=providers).run(None, {"x": x * np.float32(1e-39)})[0]
        np.testing.assert_array_equal(got, 0)


def test_what_follows_is_part_of_the_product():
    """Two readers of one product, and an activation: one step, besides the one that makes bytes."""
    after = [
        helper.make_node("Relu", ["p"], ["r"], "relu"),
        helper.make_node("Add", ["r", "x"], ["y"], "add"),
    ]
    data, x = model(5, 64, 64, 32, 4, zeros=False, bias=True, level=4, after=after)
    native = pyflame_rt.InferenceSession(data)
    got = native.run(None, {"x": x})[0]
    assert {row.runs_on for row in native.explain().rows} == {"native: MatMulNBits+Relu+Add"}
    oracle = pyflame_rt.InferenceSession(data, providers=["ReferenceExecutionProvider"]).run(None, {"x": x})[0]
    np.testing.assert_allclose(got, oracle, rtol=1e-6, atol=1e-6 * np.abs(oracle).max())


def test_rows_of_open_sizes():
    data, _ = model(2, 64, 48, 32, 4, zeros=True, bias=False, level=4)
    proto = onnx.load_from_string(data)
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "rows"
    native = pyflame_rt.InferenceSession(proto.SerializeToString())
    for rows in (1, 2, 5, 40, 300):
        x = np.random.default_rng(rows).standard_normal((rows, 64)).astype(np.float32)
        want = exact(data, x)
        np.testing.assert_allclose(native.run(None, {"x": x})[0], want, rtol=1e-6, atol=1e-6 * np.abs(want).max())


@pytest.mark.parametrize("isa", ["avx2", "avx512"])
def test_lesser_machines(tmp_path, isa):
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", __file__, "-k", "not lesser"]
    env = {**os.environ, "PYFLAME_ISA": isa, "PYFLAME_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
