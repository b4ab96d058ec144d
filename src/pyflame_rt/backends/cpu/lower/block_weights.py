"""Products of a few rows with weights of 4 or 8 bits, a scale for each block: what decoding a token does."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.backends.cpu.graph.op_support import BLOCK_PRODUCT
from pyflame_rt.backends.cpu.jit.target import host
from pyflame_rt.backends.cpu.kernels.block_gemv import BlockGemvKernel, block_words
from pyflame_rt.backends.cpu.lower.lowering import Lowering, NotNative, lowers
from pyflame_rt.backends.cpu.lower.tiled_products import as_rows
from pyflame_rt.backends.cpu.memory.constants import derived
from pyflame_rt.graph import DType

if TYPE_CHECKING:
    from pyflame_rt.backends.cpu.memory.buffer_views import View
    from pyflame_rt.opt.specialized_graph import SpecializedNode

__all__ = ["block_product"]

# Weights a thread must have to be worth waking.
GRAIN = 60_000
PIECES = 8
Array = np.ndarray[Any, Any]


@lowers(BLOCK_PRODUCT)
def block_product(low: Lowering, step: SpecializedNode) -> None:
    """MatMulNBits of a few rows; weights, scales and zero points are constant."""
    data, name, scale_name, zero_name, _, bias = (*step.node.inputs, "", "", "", "")[:6]
    array, scales = low.constant_of(name), low.constant_of(scale_name)
    zeros = low.constant_of(zero_name) if zero_name else None
    if array is None or scales is None or (zero_name and zeros is None):
        raise NotNative("weights that are not constant")
    given = step.attributes
    depth, columns, block, bits = given["K"], given["N"], given["block_size"], given["bits"]
    shape = low.concrete.shape(step.node.outputs[0])
    rows, lanes = math.prod(shape[:-1]), host().lanes(4)
    vectors = 4 if rows <= 2 and host().registers >= 32 else 2
    width, blocks = vectors * lanes, depth // block
    x = as_rows(low, low.strided(data), rows, depth)
    views = [x, _words(low, array, (columns, blocks, block), bits, width)]
    views.append(low.constant(_spread(scales.reshape(columns, blocks), width)))
    if zeros is not None:
        points = _points(zeros, columns, blocks, bits) - np.float32(1 << (bits - 1))
        views.append(low.constant(_spread(scales.reshape(columns, blocks) * points, width)))
    if bias:
        views.append(low.dense(bias))
    out = low.new((rows, columns), DType.Float32)
    panels = -(-columns // width)
    kernel = BlockGemvKernel(bits, block, rows, vectors, zeros is not None, bool(bias))
    params = [blocks, columns, x.strides[0], columns]
    grain = GRAIN // max(width * depth, 1)
    low.kernel(step.op.name, kernel, [*views, out], params, panels, grain, PIECES)
    low.places[step.node.outputs[0]] = out.reshaped(shape) or out


def _words(low: Lowering, array: Array, sizes: tuple[int, int, int], bits: int, width: int) -> View:
    """Packed weights, shared by all plans."""
    columns, blocks, block = sizes
    table = bits == 4 and host().lanes(4) == 16
    panels, words = -(-columns // width), block * bits // 32

    def fill(out: Array) -> None:
        np.copyto(out, block_words(_unpacked(array, sizes, bits), bits, width, table=table).view(np.uint8).reshape(-1))

    form = ("block words", bits, block, width, table)
    return low.constant(derived(array, form, 4 * panels * blocks * words * width, fill))


def _unpacked(array: Array, sizes: tuple[int, ...], bits: int) -> Array:
    """One number in each byte."""
    data = array.reshape(-1).view(np.uint8)
    if bits == 4:
        data = np.stack([data & 15, data >> 4], -1)
    return data.reshape(sizes)


def _points(zeros: Array, columns: int, blocks: int, bits: int) -> Array:
    """Zero points as floats [columns, blocks]; bytes hold two of 4 bits each, and begin anew for every column."""
    if zeros.dtype != np.uint8:
        return zeros.reshape(columns, blocks).astype(np.float32)
    each = 8 // bits
    data = zeros.reshape(columns, -1)
    numbers = _unpacked(np.ascontiguousarray(data), (columns, data.shape[1] * each), bits)
    return numbers[:, :blocks].astype(np.float32)


def _spread(values: Array, width: int) -> Array:
    """[columns, blocks] as [panels, blocks, width], zeros beyond the last column."""
    columns, blocks = values.shape
    panels = -(-columns // width)
    wide = np.zeros((panels * width, blocks), np.float32)
    wide[:columns] = values
    return np.ascontiguousarray(wide.reshape(panels, width, blocks).transpose(0, 2, 1))
