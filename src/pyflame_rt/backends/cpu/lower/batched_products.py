"""Products of many matrices by register tiles: of rows with rows where these lie so and are few, else with columns."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.backends.cpu.jit.target import host
from pyflame_rt.backends.cpu.kernels.tiles.batched_products import BatchedKernel, batched_tile
from pyflame_rt.backends.cpu.lower.dot_products import dot_products
from pyflame_rt.backends.cpu.lower.lowering import PIECES
from pyflame_rt.opt.traced_sizes import is_traced, least, most

if TYPE_CHECKING:
    from pyflame_rt.backends.cpu.lower.lowering import Lowering
    from pyflame_rt.backends.cpu.memory.buffer_views import View

__all__ = ["batched_product"]

GRAIN = 200_000  # multiplications that are worth a thread
BLOCK = 48  # rows of an item, at least
HELD = 1 << 22  # bytes of a right matrix whose rows are read as they lie: larger ones do not stay in any cache
FEW = 4  # rows or columns that are multiplied along the depth where both operands lie so


def batched_product(low: Lowering, label: str, a: View, b: View) -> View:
    """[.., rows, depth] times [.., depth, columns], of float32 or float64, over a batch of at most two axes."""
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    rows, depth, columns = *a.shape[-2:], b.shape[-1]
    a = _unit(a if _together(a) else low.copied(a))
    lead = (*(1,) * (2 - len(batch)), *batch)
    out = low.new((*lead, rows, columns), a.dtype)
    left = a.broadcast((*lead, rows, depth))
    turned = b.permuted([*range(len(b.shape) - 2), len(b.shape) - 1, len(b.shape) - 2])
    few = _together(turned) and (rows < FEW or columns < FEW)
    if few or depth * columns * a.dtype.itemsize > HELD:
        turned = turned if _together(turned) else low.copied(turned)
        dot_products(low, label, left, _unit(turned).broadcast((*lead, columns, depth)), out)
    else:
        b = _unit(b if _together(b) else low.copied(b))
        _columns(low, label, left, b.broadcast((*lead, depth, columns)), out)
    result = out.reshaped((*batch, rows, columns))
    assert result is not None  # contiguous
    return result


def _together(view: View) -> bool:
    """Whether elements of a row lie together."""
    return view.strides[-1] == 1 or view.shape[-1] == 1


def _unit(view: View) -> View:
    """Rows of one element have no step of their own."""
    return view if view.strides[-1] == 1 else replace(view, strides=(*view.strides[:-1], 1))


def _columns(low: Lowering, label: str, left: View, right: View, out: View) -> None:
    slow, fast, rows, depth = left.shape
    columns = right.shape[3]
    many: Any = rows
    tile = batched_tile(host(), left.dtype.itemsize, None if is_traced(many) else rows, columns)
    held = -(-BLOCK // tile.rows) * tile.rows
    block = least(held, -(-rows // tile.rows) * tile.rows)
    blocks = -(-rows // block)
    params = [
        rows, columns, depth, block, blocks, left.strides[2], right.strides[2], out.strides[2],
        left.strides[0], right.strides[0], out.strides[0], fast, left.strides[1], right.strides[1], out.strides[1],
    ]  # fmt: skip
    grain = GRAIN // most(least(block, rows) * columns * depth, 1)
    low.kernel(
        label,
        BatchedKernel(left.dtype.label, tile),
        [left, right, out],
        params,
        math.prod((slow, fast, blocks)),
        grain,
        PIECES,
    )
