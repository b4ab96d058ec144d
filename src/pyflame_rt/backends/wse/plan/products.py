"""How matrices are multiplied: what each way costs on a grid, and which one is taken."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pyflame_rt.backends.wse.emit.shifted_products import words_of
from pyflame_rt.backends.wse.plan.kernels import MatMul
from pyflame_rt.graph.errors import InputError

if TYPE_CHECKING:
    from pyflame_rt.backends.wse.plan.kernels import KeptWeights, Output, PeBuffer, Phase
    from pyflame_rt.backends.wse.plan.tiling import Grid

__all__ = ["broadcast_cycles", "can_shift", "chosen", "dense_cycles", "listed_cycles", "settled", "shift_cycles"]

# Cycles, from a least squares fit to what the analytic model says of products on 2 x 2, 4 x 4 and 8 x 8 PEs, within 4 %
# of it. A step of either way is a block of K; a word costs one cycle on its way in both.
_BROADCAST = 690.0  # a step: two broadcasts, and the tasks around them
_PACK = 14.0  # the owner of a block lays out an element of the left operand before it sends
_RINGS = 230.0  # enter and leave the rings
_SHIFT = 300.0  # a step in which blocks go on and nothing is multiplied
_STEP = 520.0  # a step in which they are multiplied meanwhile
_FACTOR, _ELEMENT = 13.0, 0.9  # of a product: each factor of the left operand, and each element it is multiplied with
_LISTED, _PLACED = 19.0, 22.0  # the same for a factor whose row is looked up, and for a weight with row and column


def can_shift(grid: Grid) -> bool:
    """Whether blocks can go round rings: as many rows as columns, or a single line of PEs."""
    return grid.rows * grid.cols > 1 and (grid.rows == grid.cols or 1 in (grid.rows, grid.cols))


def _product(kernel: MatMul) -> float:
    """Cycles of the product of two blocks."""
    rows, inner = kernel.a.tiling.tile[-2:]
    deep, cols = kernel.b.tiling.tile[-2:]
    return kernel.repeat * rows * min(inner, deep) * (_FACTOR + _ELEMENT * cols)


def broadcast_cycles(kernel: MatMul) -> float:
    """What a product costs when its blocks are sent along rows and columns: every one is packed, sent, multiplied."""
    grid = kernel.out.tiling.grid
    rows, inner = kernel.a.tiling.tile[-2:]
    deep, cols = kernel.b.tiling.tile[-2:]
    depth, block = kernel.a.tiling.shape[-1], min(inner, deep)
    sent = max(rows * block if grid.cols > 1 else 0, block * cols if grid.rows > 1 else 0)
    packed = _PACK * rows * block if grid.cols > 1 else 0.0
    steps = kernel.repeat * -(-depth // block)
    return steps * (_BROADCAST + sent + packed + _product(kernel) / kernel.repeat)


def shift_cycles(kernel: MatMul) -> float:
    """What it costs when blocks go round: skewing them, then products while the next ones come."""
    return _round_cycles(kernel, words_of(kernel.b), _product(kernel))


def _round_cycles(kernel: MatMul, words_of_b: int, product: float) -> float:
    grid = kernel.out.tiling.grid
    size = max(grid.rows, grid.cols)
    words = max(words_of(kernel.a) if grid.cols > 1 else 0, words_of_b if grid.rows > 1 else 0)
    skewed = size - 1 if grid.rows == grid.cols else 0
    step = max(_STEP + product, _SHIFT + words)
    return _RINGS + skewed * (_SHIFT + words) + size * step


def listed_cycles(kernel: MatMul, kept: KeptWeights) -> float:
    """What it costs when lists of weights go round in place of tiles."""
    rows = kernel.a.tiling.tile[-2]
    each = rows * (_LISTED + _ELEMENT * kept.cols) if kept.by == "rows" else _PLACED + _ELEMENT * rows
    return _round_cycles(kernel, kept.words, kernel.repeat * kept.room * each)


def dense_cycles(kernel: MatMul, asked: str) -> float:
    """What it costs with tiles, by the way that would be taken."""
    return shift_cycles(kernel) if chosen(kernel, asked).how == "shift" else broadcast_cycles(kernel)


def chosen(kernel: MatMul, asked: str) -> MatMul:
    """The product by the way asked for, or by the cheaper one."""
    if kernel.how != "summa":
        return kernel
    grid = kernel.out.tiling.grid
    apart = kernel.a.root is not kernel.b.root
    if asked == "broadcast" or grid.rows * grid.cols == 1:
        return kernel
    shifted = replace(kernel, how="shift")
    if asked == "shift":
        if not can_shift(grid):
            raise InputError(
                f"node {kernel.label!r}: products='shift' needs as many rows of PEs as columns, or one line of them; "
                f"the grid is {grid}. Use products='auto'"
            )
        return shifted if apart else kernel
    if not apart or not can_shift(grid) or shift_cycles(kernel) >= broadcast_cycles(kernel):
        return kernel
    return shifted


def settled(phases: list[Phase], outputs: list[Output], asked: str) -> None:
    """Takes a way for every product, now that it is known which operands somebody reads afterwards."""
    wanted: set[PeBuffer] = {b.root for output in outputs for b in output.reads}
    for phase in reversed(phases):
        for i in reversed(range(len(phase.kernels))):
            kernel = phase.kernels[i]
            if isinstance(kernel, MatMul):
                kept = {"keep_a": kernel.a.root in wanted, "keep_b": kernel.b.root in wanted}
                kernel = phase.kernels[i] = chosen(replace(kernel, **kept), asked)
            wanted.update(b.root for b in kernel.reads())
        wanted.update(b.root for move in phase.moves for b in move.reads)
