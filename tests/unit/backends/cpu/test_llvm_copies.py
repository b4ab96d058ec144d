"""Transpose, gather and fill."""

import ml_dtypes
import numpy as np
import pytest

from pyflame_rt.backends.cpu.ir.kernel_program import FillKernel, GatherKernel, TransposeKernel
from pyflame_rt.backends.cpu.jit.compiler import call


@pytest.mark.parametrize("rows", [1, 7, 8, 9, 24, 65])
@pytest.mark.parametrize("columns", [1, 7, 8, 9, 24, 65])
def test_transpose(rows, columns):
    source = np.arange(rows * columns, dtype="f").reshape(rows, columns)
    out = np.full((columns + 1, rows), -1, "f")
    blocks = -(-columns // TransposeKernel.BLOCK)
    for begin, end in ((0, blocks // 2), (blocks // 2, blocks)):
        call(TransposeKernel(), [source.ctypes.data, out.ctypes.data], [columns, rows, columns, rows], begin, end)
    np.testing.assert_array_equal(out[:-1], source.T)
    assert (out[-1] == -1).all()


@pytest.mark.parametrize("shape", [(2, 3, 10, 17), (1, 4, 8, 8), (3, 1, 1, 5)])
def test_batched_transpose(shape):
    """Attention's (batch, length, heads, width) to (batch, heads, width, length)."""
    b, length, h, w = shape
    source = np.random.default_rng(0).integers(0, 99, shape).astype("i4")
    out = np.zeros((b, h, w, length), "i4")
    params = [w, length, h * w, length, b, h, length * h * w, w, h * w * length, w * length]
    call(TransposeKernel(2), [source.ctypes.data, out.ctypes.data], params, 0, b * h * -(-w // TransposeKernel.BLOCK))
    np.testing.assert_array_equal(out, source.transpose(0, 2, 3, 1))


@pytest.mark.parametrize("index_dtype", ["int32", "int64"])
@pytest.mark.parametrize("dtype", ["float32", "int64", "bool", "bfloat16"])
def test_gather(dtype, index_dtype):
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    table = np.random.default_rng(0).integers(0, 99, (3, 10, 5)).astype(kind)
    indices = np.array([0, 9, -1, -10, 3, 3], index_dtype)
    out, flag = np.zeros((3, 6, 5), kind), np.zeros(1, "i8")
    buffers = [a.ctypes.data for a in (table, indices, out, flag)]
    call(GatherKernel(dtype, index_dtype), buffers, [5, 6, 10, 50, 5], 0, 18)
    np.testing.assert_array_equal(out, np.take(table, indices, axis=1))
    assert flag[0] == 0


@pytest.mark.parametrize("bad", [10, -11, 2**40, -(2**40), 2**63 - 1, -(2**63)])
def test_gather_out_of_range_reads_nothing(bad):
    table, indices = np.ones((10, 4), "f"), np.array([1, bad, 2], "i8")
    out, flag = np.full((3, 4), 7, "f"), np.zeros(1, "i8")
    call(GatherKernel("float32"), [a.ctypes.data for a in (table, indices, out, flag)], [4, 3, 10, 0, 4], 0, 3)
    np.testing.assert_array_equal(out, [[1] * 4, [0] * 4, [1] * 4])
    assert flag[0] == 2


def test_gather_of_nothing():
    table, indices, out, flag = np.ones(1, "f"), np.full(1, 99, "i8"), np.full(1, 7, "f"), np.zeros(1, "i8")
    call(GatherKernel("float32"), [a.ctypes.data for a in (table, indices, out, flag)], [4, 0, 10, 0, 4], 0, 0)
    assert (out[0], flag[0]) == (7, 0)  # nothing was read, nothing written


@pytest.mark.parametrize("n", [0, 1, 31, 33, 1000])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bool", "int16"])
def test_fill(dtype, n):
    value, out = np.array([1], dtype), np.zeros(n + 2, dtype)
    call(FillKernel(dtype), [value.ctypes.data, out.ctypes.data], [], 1, n + 1)
    np.testing.assert_array_equal(out, [0] + [1] * n + [0])
