"""Products of rows with rows by register tiles, in the types the library has no products for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyflame_rt.backends.cpu.kernels.tiles.dot_products import DotKernel
from pyflame_rt.graph import DType

if TYPE_CHECKING:
    from pyflame_rt.backends.cpu.lower.lowering import Lowering
    from pyflame_rt.backends.cpu.memory.buffer_views import View

__all__ = ["dot_products", "takes_dots"]

# Rows and columns of a piece of work, and the multiplications worth a thread.
PIECE_ROWS, PIECE_COLUMNS = 64, 48
GRAIN = 100_000


def takes_dots(*views: View) -> bool:
    """Whether operands [batch, batch, rows, depth] can be multiplied so: float64, unit steps along the depth."""
    return all(v.dtype is DType.Float64 and len(v.shape) == 4 and (v.strides[3] == 1 or v.shape[3] == 1) for v in views)


def dot_products(low: Lowering, label: str, left: View, right: View, result: View) -> None:
    """Result[i, j, row, column] = the sum over k of left[i, j, row, k] * right[i, j, column, k]."""
    slow, fast, rows, depth = left.shape
    columns = right.shape[2]
    if not slow * fast * rows * columns:
        return  # nothing to write
    blocks, panels = -(-rows // PIECE_ROWS), -(-columns // PIECE_COLUMNS)
    params = [
        rows, columns, depth, blocks, panels, left.strides[2], right.strides[2], result.strides[2], result.strides[3],
        left.strides[0], right.strides[0], result.strides[0],
        fast, left.strides[1], right.strides[1], result.strides[1],
    ]  # fmt: skip
    work = -(-rows // blocks) * -(-columns // panels) * depth
    kernel = DotKernel(left.dtype.label)
    low.kernel(label, kernel, [left, right, result], params, slow * fast * blocks * panels, GRAIN // max(work, 1))
