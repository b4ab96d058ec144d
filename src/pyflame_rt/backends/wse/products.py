"""How matrices are multiplied: what each way costs on a grid, and which one is taken."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pyflame_rt.backends.wse.kernels import MatMul
from pyflame_rt.graph.errors import InputError

if TYPE_CHECKING:
    from pyflame_rt.backends.wse.kernels import Buffer, Output, Phase
    from pyflame_rt.backends.wse.tiling import Grid

__all__ = ["can_shift", "chosen", "settled"]


def can_shift(grid: Grid) -> bool:
    """Whether blocks can go round rings: as many rows as columns, or a single line of PEs."""
    return grid.rows * grid.cols > 1 and (grid.rows == grid.cols or 1 in (grid.rows, grid.cols))


def chosen(kernel: MatMul, asked: str) -> MatMul:
    """The product by the way asked for, or by the cheaper one."""
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
    return kernel


def settled(phases: list[Phase], outputs: list[Output]) -> None:
    """Products whose operands nobody reads afterwards need not bring them home."""
    wanted: set[Buffer] = {b.root for output in outputs for b in output.reads}
    for phase in reversed(phases):
        for i in reversed(range(len(phase.kernels))):
            kernel = phase.kernels[i]
            if isinstance(kernel, MatMul):
                kept = {"keep_a": kernel.a.root in wanted, "keep_b": kernel.b.root in wanted}
                phase.kernels[i] = replace(kernel, **kept)
            wanted.update(b.root for b in kernel.reads())
        wanted.update(b.root for move in phase.moves for b in move.reads)
