"""Products of many matrices by tiles that read the right one as it lies."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyflame_rt.backends.cpu.jit.compiler import call
from pyflame_rt.backends.cpu.jit.target import Host, host
from pyflame_rt.backends.cpu.kernels.tiles.batched_products import BatchedKernel, batched_tile
from pyflame_rt.backends.cpu.kernels.tiles.register_tile import Tile
from tests.tolerances import within


@settings(max_examples=50, deadline=None)
@given(
    st.sampled_from(["float32", "float64"]),
    st.tuples(st.integers(1, 2), st.integers(1, 3)),
    st.integers(1, 30),
    st.integers(1, 70),
    st.integers(1, 9),
    st.integers(1, 20),
    st.integers(0, 2**32 - 1),
)
def test_kernel_equals_numpy(dtype, batch, rows, columns, depth, block, seed):
    rng = np.random.default_rng(seed)
    a = rng.standard_normal((*batch, rows, depth)).astype(dtype)
    b = rng.standard_normal((*batch, depth, columns)).astype(dtype)
    y = np.full((*batch, rows, columns + 2), 7, dtype)
    tile = batched_tile(host(), a.itemsize, rows, columns)
    blocks = -(-rows // block)
    params = [
        rows, columns, depth, block, blocks, depth, columns, columns + 2,
        batch[1] * rows * depth, batch[1] * depth * columns, batch[1] * rows * (columns + 2),
        batch[1], rows * depth, depth * columns, rows * (columns + 2),
    ]  # fmt: skip
    items = batch[0] * batch[1] * blocks
    for begin, end in ((0, items // 2), (items // 2, items)):
        call(BatchedKernel(dtype, tile), [v.ctypes.data for v in (a, b, y)], params, begin, end)
    np.testing.assert_allclose(y[..., :columns], a @ b, **within("sums", dtype))
    assert (y[..., columns:] == 7).all()


@pytest.mark.parametrize(
    ("rows", "columns", "tile"),
    [(128, 128, Tile(10, 2)), (16, 16, Tile(16, 1)), (1, 64, Tile(1, 2)), (None, 512, Tile(8, 3))],
)
def test_tiles_hold_no_more_rows_than_there_are(rows, columns, tile):
    wide = Host("any", "+avx512f", 64, fma=True, half=True, big_vectors=True, registers=32)
    assert batched_tile(wide, 4, rows, columns) == tile
