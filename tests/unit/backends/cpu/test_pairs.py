"""Products of 8-bit integers by pairs of 16 bits: equal to the reference bit by bit, in every size and type."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import pyflame_rt
from pyflame_rt.backends.cpu.jit.compiler import call
from pyflame_rt.backends.cpu.jit.target import host
from pyflame_rt.backends.cpu.kernels.tiles.products import ProductKernel
from pyflame_rt.backends.cpu.kernels.tiles.register_tile import Tile, multiplies_pairs
from pyflame_rt.backends.cpu.memory.packed_weights import pair_panels
from pyflame_rt.backends.cpu.onednn import library

pytestmark = pytest.mark.skipif(not library.available(), reason="oneDNN is not installed")


@pytest.mark.skipif(not multiplies_pairs(host()), reason="the machine does not multiply pairs")
@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 20),
    st.integers(1, 40),
    st.integers(1, 70),
    st.sampled_from([Tile(6, 2), Tile(4, 3)]),
    st.integers(0, 2**32 - 1),
)
def test_kernel_equals_integers(rows, pairs, width, tile, seed):
    rng = np.random.default_rng(seed)
    x, w = (rng.integers(-255, 256, size) for size in ((rows, 2 * pairs), (2 * pairs, width)))
    if seed % 2:
        x[:], w[:] = 255, -255
    columns = tile.vectors * host().lanes(4)
    short, packed = x.astype(np.int16), pair_panels(w.astype(np.float32), columns)
    y = np.full((rows, width + 3), 7, np.float32)
    block = -(-rows // tile.rows) * tile.rows
    call(
        ProductKernel("rows", tile, pairs=True),
        [a.ctypes.data for a in (short, packed, y)],
        [rows, width, pairs, block, 1, pairs, width + 3],
        0,
        len(packed),
    )
    assert np.array_equal(y[:, :width].astype(np.int64), x @ w)
    assert (y[:, width:] == 7).all()


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
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", depth])],
        [helper.make_tensor_value_info(n, t, None) for n, t in (("y", TensorProto.FLOAT), ("p", TensorProto.INT32))],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in arrays.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]).SerializeToString()


@pytest.mark.parametrize("dynamic_scale", [False, True])
@pytest.mark.parametrize("kind", [np.int8, np.uint8])
@pytest.mark.parametrize(
    ("rows", "depth", "width"), [(2, 2, 1), (7, 64, 33), (13, 66, 48), (130, 384, 96), (5, 65, 40)]
)
def test_quantized_layers_equal_the_reference(rows, depth, width, kind, dynamic_scale):
    data = layer(depth, width, kind, dynamic_scale=dynamic_scale)
    x = np.random.default_rng(1).standard_normal((rows, depth)).astype(np.float32)
    native, oracle = (
        pyflame_rt.InferenceSession(data, providers=[p]) for p in ("CPUExecutionProvider", "ReferenceExecutionProvider")
    )
    got, want = native.run(None, {"x": x}), oracle.run(None, {"x": x})
    assert np.array_equal(got[1], want[1])
    np.testing.assert_allclose(got[0], want[0], rtol=1e-6, atol=1e-6)
    assert native.explain().host_step_count == 0
