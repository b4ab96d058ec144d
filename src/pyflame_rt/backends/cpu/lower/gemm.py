"""Products of two values that are both made at run time: one is packed into panels first, then tiles multiply.

This is what training needs: weights change from step to step, and gradients are products of transposed values. What
lies the other way round in memory is turned while it is packed; a result that is only read transposed is made so.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pyflame_rt.backends.cpu.graph.cost_model import views_of
from pyflame_rt.backends.cpu.ir.kernel_program import TransposeKernel
from pyflame_rt.backends.cpu.jit.target import host
from pyflame_rt.backends.cpu.kernels.tiles.packing import ColumnSumKernel, PackKernel, RowPackKernel
from pyflame_rt.backends.cpu.kernels.tiles.products import ProductKernel
from pyflame_rt.backends.cpu.kernels.tiles.register_tile import PLAIN, rows_together, tile_for
from pyflame_rt.backends.cpu.lower.lowering import PIECES, BetterApart, KernelStep, Lowering, NotNative
from pyflame_rt.backends.cpu.lower.tiled_products import (
    MAX_DEPTH,
    SHORT,
    as_rows,
    ending_of,
    label_of,
    nodes_of,
    packed_step,
    reach_of,
    row_operand,
)
from pyflame_rt.backends.cpu.memory.buffer_views import View
from pyflame_rt.graph import DType
from pyflame_rt.ops.onnx.matmul import Gemm
from pyflame_rt.ops.onnx.shape import Transpose
from pyflame_rt.opt.traced_sizes import is_traced

if TYPE_CHECKING:
    from pyflame_rt.backends.cpu.graph.groups import Group
    from pyflame_rt.opt.specialized_graph import SpecializedNode

__all__ = ["in_panels", "moving", "row_panels", "turned_alone"]

# Multiplications below which packing costs more than it saves.
LEAST_WORK = 1 << 18
MAX_FULL = 2  # values as large as the result that are read while it is stored
BLOCK_FLOATS = 16_384  # of the rows that share a panel: 5 % faster than blocks for constant panels, measured
PACK_GRAIN = 1 << 14  # floats to pack that are worth a thread
RECENT = 8  # steps for which packed rows are kept for another product
_READERS = (ColumnSumKernel, PackKernel, ProductKernel)  # their results are new values


def moving(low: Lowering, step: SpecializedNode, group: Group | None = None) -> View:
    """Rows of any value times a matrix that is no constant."""
    a, b, bias = _operands(low, step)
    shape = low.concrete.shape(step.node.outputs[0])
    rows, (depth, width) = math.prod(shape[:-1]), b.shape
    if rows * depth * width < LEAST_WORK or depth > MAX_DEPTH or rows < 4 or width < 4:
        raise NotNative("a product too small to be packed")
    reach = reach_of(low, bias, shape, len(shape) - 1) if bias else "column"
    label = label_of(step, group)
    ending = ending_of(low, step, group, bias, len(shape) - 1, bias_reach=reach)
    if ending.finish.operands.count("full") > MAX_FULL:
        raise BetterApart("a loop that reads so much is quicker on its own")
    case = f"{label} moving {rows}x{depth}x{width}"
    if low.choices.pick(case, ("tiles", "library"), *nodes_of(step, group)) == "library":
        raise low.left_to_library(step)
    if group is None and not bias and turned_alone(low, step):
        return _turned(low, label, a, b)
    x = _rows(low, a, rows, depth, width)
    operands = [
        row_operand(low, n, r, (rows, width)) for n, r in zip(ending.names, ending.finish.operands, strict=True)
    ]
    packed = _packed(low, b)
    out, *more = (low.new((rows, width), DType.Float32) for _ in range(1 + len(ending.finish.more)))
    packed_step(low, label, x, packed, operands, ending.finish, out, _block(rows, depth, width), more=more)
    for name, view in zip(group.extra if group is not None else (), more, strict=True):
        low.places[name] = view.reshaped(shape) or view
    return out.reshaped(shape) or out


def turned_alone(low: Lowering, step: SpecializedNode) -> bool:
    """Whether nobody reads a matrix but one step that swaps its axes."""
    name = step.node.outputs[0]
    reader = low.reader.get(name)
    if reader is None or len(low.concrete.shape(name)) != 2 or len(reader.steps) != 1:
        return False
    (only,) = reader.steps
    return only.op is Transpose and list(only.attributes["perm"] or (1, 0)) == [1, 0]


def _turned(low: Lowering, label: str, a: View, b: View) -> View:
    """The transposed product, as a view the right way round."""
    out = low.new((b.shape[1], a.shape[0]), DType.Float32)
    x = _rows(low, b.permuted([1, 0]), b.shape[1], b.shape[0], out.shape[1])
    packed = _packed(low, a.permuted([1, 0]))
    packed_step(low, label, x, packed, [], PLAIN, out, _block(out.shape[0], b.shape[0], out.shape[1]))
    return out.permuted([1, 0])


def _block(rows: int, depth: int, width: int) -> int:
    """Rows that share a panel: few, so that they stay in the cache next to it while all panels pass."""
    if rows <= SHORT:
        return 0
    step = 2 * tile_for(host(), width).rows
    wanted = max(2, BLOCK_FLOATS // (depth * step)) * step
    return -(-rows // (-(-rows // wanted) * step)) * step


def _operands(low: Lowering, step: SpecializedNode) -> tuple[View, View, str]:
    """Both operands, the second a matrix (depth, width), and the name of the bias."""
    first, second, *rest = step.node.inputs
    if any(low.concrete.dtype(n) is not DType.Float32 for n in (first, second)):
        raise NotNative("not a product of float32")
    sizes = low.concrete.shape(first), low.concrete.shape(second)
    if len(sizes[1]) != 2 or len(sizes[0]) < 2 or low.constant_of(second) is not None:
        raise NotNative("not rows times a matrix that is made at run time")
    bias = rest[0] if rest else ""
    a, b = low.strided(first), low.strided(second)
    if step.op is Gemm:
        given = step.attributes
        if given["alpha"] != 1.0 or (bias and given["beta"] != 1.0):
            raise NotNative("a scaled product")
        a = a.permuted([1, 0]) if given["transA"] else a
        b = b.permuted([1, 0]) if given["transB"] else b
    return a, b, bias


def _rows(low: Lowering, view: View, rows: int, depth: int, width: int) -> View:
    """The left operand: rows as they lie, or in panels where their elements do not lie together but rows do."""
    flat = view.reshaped((rows, depth))
    if flat is not None and flat.strides[1] != 1 and depth != 1:
        if flat.strides[0] != 1:
            return low.copied(flat)
        return row_panels(low, flat.permuted([1, 0]), rows_together(tile_for(host(), width)))
    return as_rows(low, view, rows, depth)


def row_panels(low: Lowering, matrix: View, wide: int) -> View:
    """Panels of the left operand, which comes as (depth, rows) with rows next to each other."""
    depth, rows = matrix.shape
    numbers = matrix.offset, *matrix.shape, *matrix.strides
    key = None if any(map(is_traced, numbers)) else (id(matrix.buffer), wide, *numbers)
    known = low.packs.get(key)
    if known is not None and _still_packed(low, matrix, *known):
        return known[1]
    out = low.new((-(-rows // wide), depth, wide), DType.Float32)
    if key is not None:
        low.packs[key] = len(low.steps), out
    groups, grain = -(-depth // RowPackKernel.ROWS), PACK_GRAIN // (RowPackKernel.ROWS * rows)
    low.kernel("pack", RowPackKernel(wide), [matrix, out], [depth, rows, matrix.strides[0]], groups, grain, PIECES)
    return out


def _still_packed(low: Lowering, matrix: View, place: int, packed: View) -> bool:
    """Whether the step at that place packs a matrix, a product or two ago, and nobody has written to it since."""
    steps = low.steps[place:]
    if not 0 < len(steps) <= RECENT or not isinstance(steps[0], KernelStep) or steps[0].views[-1] is not packed:
        return False
    between = [step for step in steps[1:] if any(view.buffer is matrix.buffer for view in views_of(step))]
    return all(isinstance(step, KernelStep) and isinstance(step.kernel, _READERS) for step in between)


def _packed(low: Lowering, matrix: View) -> View:
    """The right operand, in panels."""
    return in_panels(low, matrix, tile_for(host(), matrix.shape[1]).vectors * host().lanes(4))


def in_panels(low: Lowering, matrix: View, columns: int) -> View:
    """Panels of columns; zeros or whatever was there beyond the last column, which nobody stores."""
    depth, width = matrix.shape
    count = -(-width // columns)
    out = low.new((count, depth, columns), DType.Float32)
    if matrix.strides[0] == 1 and matrix.strides[1] != 1 and width > 1:
        _pack_turned(low, matrix, out)
        return out
    if matrix.strides[1] != 1 and width != 1:
        matrix = low.copied(matrix)
    kernel = PackKernel(columns // host().lanes(4))
    groups, grain = -(-depth // PackKernel.ROWS), PACK_GRAIN // (PackKernel.ROWS * width)
    low.kernel("pack", kernel, [matrix, out], [depth, width, matrix.strides[0]], groups, grain, PIECES)
    return out


def _pack_turned(low: Lowering, matrix: View, out: View) -> None:
    """Columns lie next to each other: whole panels by a blocked transpose, and one more for the rest."""
    (depth, width), columns, step = matrix.shape, out.shape[2], matrix.strides[1]
    blocks, grain = -(-depth // TransposeKernel.BLOCK), PACK_GRAIN // (TransposeKernel.BLOCK * columns)
    whole, rest = divmod(width, columns)
    for first, panels, wide in ((0, whole, columns), (whole, 1, rest)):
        if not panels or not wide:
            continue
        source = View(
            matrix.buffer, DType.Float32, matrix.shape, matrix.strides, matrix.offset + first * columns * step
        )
        target = View(out.buffer, DType.Float32, out.shape, out.strides, out.offset + first * depth * columns)
        params = [depth, wide, step, columns, panels, columns * step, depth * columns]
        low.kernel("pack", TransposeKernel(1), [source, target], params, panels * blocks, grain, PIECES)
