"""Products with weights in blocks: as the reference has them, in few rows by a kernel, in many as floats."""

import os
import subprocess
import sys

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import pyflame_rt
from pyflame_rt.backends.cpu.onednn import library

pytestmark = pytest.mark.skipif(not library.available(), reason="oneDNN is not installed")


def model(rows, depth, columns, block, bits, *, zeros, bias, lead=()):
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
    given = {"K": depth, "N": columns, "block_size": block, "bits": bits}
    node = helper.make_node("MatMulNBits", inputs, ["y"], "n", domain="com.microsoft", **given)
    graph = helper.make_graph(
        [node], "g",
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


def test_lesser_machines(tmp_path):
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", __file__, "-k", "blocks"]
    env = {**os.environ, "PYFLAME_ISA": "avx2", "PYFLAME_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
