"""Random numbers from keys: the engine's are the reference's, bit for bit."""

import ml_dtypes
import numpy as np
import pytest

import pyflame_rt
from pyflame_rt.graph import DType, Graph

KEYS = [(1, 2), (0, 0), (0xFFFFFFFF, 0x80000001), (-1, 1 << 40)]


def graph(op, sizes, kind=DType.Int32, **attributes):
    made = Graph("random")
    made.add_input("key", [2], DType.Int64)
    made.add_initializer("sizes", np.array(sizes, np.int64))
    made.add_node("draw", op, inputs=["sizes", "key"], outputs=["y"], attrs=attributes, domain="pyflame")
    made.add_output("y", list(sizes), kind)
    return made


def both(made, key):
    feeds = {"key": np.array(key)}
    for provider in ("CPUExecutionProvider", "ReferenceExecutionProvider"):
        session = pyflame_rt.InferenceSession(made, providers=[provider])
        yield session.run(None, feeds)[0]
        assert "reference (host" not in str(session.explain())


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("sizes", [(7,), (3, 5, 2), (40_000,), (1,), (0,)], ids=str)
def test_words(sizes, key):
    for bits, stream in ((31, 0), (24, 1), (8, 3), (1, 0)):
        ours, reference = both(graph("KeyedBits", sizes, bits=bits, stream=stream), key)
        np.testing.assert_array_equal(ours, reference)
        assert ours.min(initial=0) >= 0


@pytest.mark.parametrize("dtype", [DType.Float32, DType.Float64, DType.Float16, DType.BFloat16])
def test_uniform_numbers(dtype):
    ours, reference = both(graph("KeyedUniform", (64, 257), dtype, dtype=dtype.onnx), KEYS[0])
    np.testing.assert_array_equal(ours.astype(np.float64), reference.astype(np.float64))
    assert ours.astype(np.float64).max() < 1


@pytest.mark.parametrize("dtype", [DType.Float32, DType.Float64, DType.Float16, DType.BFloat16])
def test_normal_numbers(dtype):
    ours, reference = both(graph("KeyedNormal", (64, 257), dtype, dtype=dtype.onnx), KEYS[0])
    eps = float(ml_dtypes.finfo(dtype.numpy).eps)
    np.testing.assert_allclose(ours.astype(np.float64), reference.astype(np.float64), rtol=8 * eps, atol=8e-7)
