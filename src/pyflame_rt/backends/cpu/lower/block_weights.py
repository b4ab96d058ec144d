"""Products with weights of 4 or 8 bits, a scale for each block: rows as floats, a few of them, or in bytes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.backends.cpu.jit.target import host
from pyflame_rt.backends.cpu.kernels.block_bytes import RECORD, BlockBytesKernel
from pyflame_rt.backends.cpu.kernels.block_gemv import BlockGemvKernel, block_words
from pyflame_rt.backends.cpu.kernels.block_products import BlockProductKernel
from pyflame_rt.backends.cpu.kernels.tiles.block_dots import BlockDots, block_dots, block_tile, byte_words, padded
from pyflame_rt.backends.cpu.lower.block_sources import (
    BlockSource,
    bias_of,
    block_source,
    is_packed,
    unpacked,
)
from pyflame_rt.backends.cpu.lower.lowering import KernelStep, Lowering, NotNative, fuses, lowers
from pyflame_rt.backends.cpu.lower.tiled_products import as_rows, ending_of, label_of, row_operand
from pyflame_rt.backends.cpu.memory.constants import derived
from pyflame_rt.graph import DType
from pyflame_rt.ops.microsoft.block_weights import MatMulNBits, rounds_rows
from pyflame_rt.ops.pyflame.stored_blocks import MatMulStoredBlocks, format_of
from pyflame_rt.opt.traced_sizes import is_traced, least, most

if TYPE_CHECKING:
    from pyflame_rt.backends.cpu.graph.groups import Group
    from pyflame_rt.backends.cpu.kernels.tiles.register_tile import Tile
    from pyflame_rt.backends.cpu.memory.buffer_views import View
    from pyflame_rt.opt.specialized_graph import SpecializedGraph, SpecializedNode

__all__ = ["block_product", "blocks_and_loop"]

# Weights a thread must have to be worth waking; products of bytes, numbers to be put in bytes.
GRAIN = 60_000
BYTE_GRAIN = 400_000
QUANTIZE_GRAIN = 16_384
FEW_ROWS = 6  # of floats that are multiplied while weights are unpacked; for more they are floats too
LEAST_BLOCK = 16
ROW_BYTES = 1 << 18  # of rows that go together through all panels: part of a second-level cache
PIECES = 8
Array = np.ndarray[Any, Any]


def _refusal(graph: SpecializedGraph, step: SpecializedNode) -> str:
    """Why no kernel takes a MatMulNBits: they take rows of bytes, or a few of floats, and constant weights."""
    data, weights, scales, zeros, order, bias = (*step.node.inputs, "", "", "", "")[:6]
    constants, given = graph.constants, step.attributes
    if order or any(n not in constants for n in (weights, scales, zeros) if n):
        return "weights that are not constant, or whose order is told"
    if any(graph.dtype(n) is not DType.Float32 for n in (data, scales, bias) if n):
        return "numbers that are not float32"
    depth, columns, block, bits = (given[name] for name in ("K", "N", "block_size", "bits"))
    if bits not in (4, 8) or given["weight_prepacked"] or block % LEAST_BLOCK or block < LEAST_BLOCK:
        return "weights of a size that kernels do not unpack"
    blocks, sizes = -(-depth // block), graph.shape(data)
    counts = [constants[n].nbytes for n in (weights, scales)]
    if counts != [columns * blocks * block * bits // 8, 4 * columns * blocks]:
        return "weights or scales of another number than sizes say"
    if zeros and constants[zeros].size != columns * (_bytes(blocks, bits) if is_packed(constants[zeros]) else blocks):
        return "zero points of another number than blocks"
    if not sizes or sizes[-1] != depth or not all(isinstance(n, int) for n in sizes):
        return "rows of another length than weights, or of one that is not known"
    rows = math.prod(sizes[:-1])
    in_bytes = block_dots(host(), bits) is not None and _in_bytes(step)
    if rows < 1 or not (in_bytes or (rows <= FEW_ROWS and depth % block == 0)):
        return "rows that are multiplied as floats, and are many, or end within a block"
    return ""


def _in_bytes(step: SpecializedNode) -> bool:
    """Whether rows of float32 are to be multiplied in bytes."""
    if step.op is MatMulStoredBlocks:
        return True
    kind, given = DType.Float32, step.attributes
    return rounds_rows(kind, kind, given["bits"], given["block_size"], given["accuracy_level"], ordered=False)


def _stored_refusal(graph: SpecializedGraph, step: SpecializedNode) -> str:
    """Why no kernel takes a product with blocks of a file."""
    data, blocks, bias = (*step.node.inputs, "")[:3]
    if blocks not in graph.constants:
        return "weights that are not constant"
    if any(graph.dtype(n) is not DType.Float32 for n in (data, bias) if n):
        return "numbers that are not float32"
    sizes = graph.shape(data)
    if not sizes or not all(isinstance(n, int) for n in sizes) or math.prod(sizes[:-1]) < 1:
        return "rows of a number that is not known"
    form, held = format_of(step.attributes["format"]), graph.constants[blocks].shape
    if len(held) != 2 or not math.prod(held) or held[1] * form.weights != sizes[-1] * form.size:
        return "no blocks, or not as many as a row has numbers"
    if block_dots(host(), form.bits) is None:
        return "a machine without products of bytes"
    return ""


def _bytes(count: int, bits: int) -> int:
    return -(-count * bits // 8)


@lowers(MatMulStoredBlocks, refuses=_stored_refusal)
@lowers(MatMulNBits, refuses=_refusal)
def block_product(low: Lowering, step: SpecializedNode) -> None:
    """A product with blocks on its own."""
    weights = block_source(low, step)
    if _in_bytes(step):
        _by_bytes(low, step, weights, None)
        return
    out, shape = _by_floats(low, step, weights), low.concrete.shape(step.node.outputs[0])
    low.places[step.node.outputs[0]] = out.reshaped(shape) or out


def blocks_and_loop(low: Lowering, step: SpecializedNode, group: Group) -> View:
    """A product of rows in bytes, with the loop that alone reads it."""
    _by_bytes(low, step, block_source(low, step), group)
    return low.places[group.steps[-1].node.outputs[0]]


fuses(blocks_and_loop, MatMulNBits, MatMulStoredBlocks, when=lambda _low, step, _group: _in_bytes(step))


# ---------------------------------------------------------------------- rows in bytes


def _by_bytes(low: Lowering, step: SpecializedNode, weights: BlockSource, group: Group | None) -> None:
    dots = block_dots(host(), weights.bits)
    if dots is None:
        raise NotNative("a machine without products of bytes")
    columns, blocks, block = weights.sizes
    shape = low.concrete.shape(step.node.outputs[0])
    rows = math.prod(shape[:-1])
    bias = bias_of(step)
    ending = ending_of(low, step, group, bias, len(shape) - 1, single=True)
    tile = _tile(dots, rows, columns)
    factor = -1 if weights.point_type() else dots.offset - weights.zero
    views = [_records(low, step.node.inputs[0], rows, weights, factor), _byte_words(low, weights, dots)]
    steps = "float16" if host().half and weights.half_scales() else "float32"
    views.append(_of_blocks(low, weights, dots, "scales", steps))
    points = {"": "", "uint8": "int8" if dots.offset else "uint8", "float32": "float32"}[weights.point_type()]
    if points:
        views.append(_of_blocks(low, weights, dots, "points", points))
    operands = [
        row_operand(low, n, r, (rows, columns)) for n, r in zip(ending.names, ending.finish.operands, strict=True)
    ]
    results = [step.node.outputs[0]] if group is None else [group.steps[-1].node.outputs[0], *group.extra]
    outs = [low.new((rows, columns), DType.Float32) for _ in results]
    held = least(max(1, ROW_BYTES // (weights.depth * tile.rows)), -(-rows // tile.rows)) * tile.rows
    vectors = padded(columns, dots.lanes) // dots.lanes
    params = [rows, columns, blocks, held, vectors, outs[0].strides[0]]
    params += [v.strides[0] for v, r in zip(operands, ending.finish.operands, strict=True) if r == "full"]
    kernel = BlockProductKernel(dots, tile, block, steps, points, ending.finish)
    items = -(-rows // held) * (vectors // tile.vectors)
    grain = BYTE_GRAIN // most(least(held, rows) * weights.depth * tile.vectors * dots.lanes, 1)
    low.kernel(label_of(step, group), kernel, [*views, *operands, *outs], params, items, grain, PIECES)
    for name, out in zip(results, outs, strict=True):
        low.places[name] = out.reshaped(shape) or out


def _tile(dots: BlockDots, rows: Any, columns: int) -> Tile:
    return block_tile(host(), None if is_traced(rows) else rows, columns, dots.lanes)


def _records(low: Lowering, name: str, rows: Any, weights: BlockSource, factor: int) -> View:
    """Rows in bytes; products of the same rows, such as queries, keys and values, share them."""
    _, blocks, block = weights.sizes
    key = ("block bytes", name, block, factor)
    place, known = low.packs.get(key, (0, None))
    if known is not None and place < len(low.steps):
        step = low.steps[place]
        if isinstance(step, KernelStep) and step.views[-1] is known:
            return known
    x = as_rows(low, low.strided(name), rows, weights.depth)
    out = low.new((rows, blocks * (block + RECORD)), DType.UInt8)
    low.packs[key] = len(low.steps), out
    kernel = BlockBytesKernel(block, partial=weights.depth % block > 0)
    params = [weights.depth, x.strides[0], factor, blocks]
    low.kernel("quantize", kernel, [x, out], params, rows * blocks, QUANTIZE_GRAIN // block, 1)
    return out


def _byte_words(low: Lowering, weights: BlockSource, dots: BlockDots) -> View:
    """Packed weights, shared by all plans."""
    columns, blocks, block = weights.sizes
    size = padded(columns, dots.lanes) * blocks * block * dots.bits // 8

    def fill(out: Array) -> None:
        np.copyto(out, byte_words(weights.numbers(), dots).view(np.uint8).reshape(-1))

    form = ("block bytes", *weights.form, dots.kind, dots.lanes)
    return low.constant(derived(weights.array, form, size, fill))


def _of_blocks(low: Lowering, weights: BlockSource, dots: BlockDots, what: str, dtype: str) -> View:
    """Scales or points, one for each block, shared by all plans."""
    columns, blocks, _ = weights.sizes
    kind = np.dtype(dtype)
    size = padded(columns, dots.lanes) * blocks * kind.itemsize

    def fill(out: Array) -> None:
        if what == "scales":
            values = weights.scales()
        else:
            points = weights.points()
            assert points is not None
            values = points - np.float32(dots.offset)
        np.copyto(out, _lanes(values.astype(kind), dots.lanes).view(np.uint8).reshape(-1))

    form = ("block " + what, dtype, *weights.form, dots.lanes, dots.offset)
    return low.constant(derived(weights.known_by(what), form, size, fill).view(kind))


def _lanes(values: Array, lanes: int) -> Array:
    """[columns, blocks] as [vectors of columns, blocks, lanes], zeros beyond the last column."""
    columns, blocks = values.shape
    wide = np.zeros((padded(columns, lanes), blocks), values.dtype)
    wide[:columns] = values
    return np.ascontiguousarray(wide.reshape(-1, lanes, blocks).transpose(0, 2, 1))


# ---------------------------------------------------------------------- rows as floats


def _by_floats(low: Lowering, step: SpecializedNode, weights: BlockSource) -> View:
    columns, blocks, block = weights.sizes
    rows, lanes = math.prod(low.concrete.shape(step.node.outputs[0])[:-1]), host().lanes(4)
    bias = bias_of(step)
    vectors = 4 if rows <= 2 and host().registers >= 32 else 2
    width, bits = vectors * lanes, weights.bits
    x = as_rows(low, low.strided(step.node.inputs[0]), rows, weights.depth)
    views = [x, _words(low, weights.array, weights.sizes, bits, width)]
    views.append(low.constant(_spread(weights.scales(), width)))
    points = weights.points()
    if points is not None:
        views.append(low.constant(_spread(weights.scales() * (points - np.float32(1 << (bits - 1))), width)))
    if bias:
        views.append(low.dense(bias))
    out = low.new((rows, columns), DType.Float32)
    panels = -(-columns // width)
    kernel = BlockGemvKernel(bits, block, rows, vectors, points is not None, bool(bias))
    params = [blocks, columns, x.strides[0], columns]
    grain = GRAIN // max(width * weights.depth, 1)
    low.kernel(step.op.name, kernel, [*views, out], params, panels, grain, PIECES)
    return out


def _words(low: Lowering, array: Array, sizes: tuple[int, int, int], bits: int, width: int) -> View:
    """Packed weights, shared by all plans."""
    columns, blocks, block = sizes
    table = bits == 4 and host().lanes(4) == 16
    panels, words = -(-columns // width), block * bits // 32

    def fill(out: Array) -> None:
        np.copyto(out, block_words(unpacked(array, sizes, bits), bits, width, table=table).view(np.uint8).reshape(-1))

    form = ("block words", bits, block, width, table)
    return low.constant(derived(array, form, 4 * panels * blocks * words * width, fill))


def _spread(values: Array, width: int) -> Array:
    """[columns, blocks] as [panels, blocks, width], zeros beyond the last column."""
    columns, blocks = values.shape
    panels = -(-columns // width)
    wide = np.zeros((panels * width, blocks), np.float32)
    wide[:columns] = values
    return np.ascontiguousarray(wide.reshape(panels, width, blocks).transpose(0, 2, 1))
