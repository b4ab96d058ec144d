"""Sparse weights on the wafer: PEs hold and pass on lists of what was not pruned, where that takes fewer cycles.

There are two kinds of lists. By rows: the rows of a tile that are not all zero, as blocks of weights leave them; each
is multiplied as a row of a dense tile is. By elements: every weight that is not zero, as N:M patterns leave them, with
its row and column; each is multiplied with a column of the left operand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from pyflame_rt.backends.wse.emit.hostrun import evaluate
from pyflame_rt.backends.wse.plan.kernels import KeptWeights
from pyflame_rt.backends.wse.plan.products import dense_cycles, listed_cycles
from pyflame_rt.backends.wse.plan.views import host_view
from pyflame_rt.ops.onnx.slicing import Concat

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyflame_rt.backends.wse.plan.kernels import MatMul
    from pyflame_rt.backends.wse.plan.primitives import Flat, PrimitiveCall
    from pyflame_rt.backends.wse.plan.tiling import Tiling

__all__ = ["FoundLists", "kept_lists", "known", "pack", "zeros_note"]

Array = np.ndarray[Any, Any]
_DENSE = 0.75  # weights with more than this share other than zero are not looked at
_BYTE = 256  # rows and columns of an element are 8 bits each
_PAYS = 1.05  # lists must promise this much: the fit is no better


class FoundLists(NamedTuple):
    """Lists for every PE ``[rows, cols, words]`` and their form, or None for tiles; and what is to be said of it."""

    kept: KeptWeights | None
    lists: Array
    note: str


def known(name: str, flat: Flat, views: Mapping[str, PrimitiveCall]) -> Array | None:
    """The contents of a constant, or of a view of constants; None where inputs decide, or passes cut what is viewed."""
    found = flat.constants.get(name)
    step = views.get(name)
    if found is not None or step is None:
        return found
    sources = step.inputs if step.op == Concat.name else step.inputs[:1]
    arrays = {n: known(n, flat, views) for n in sources}
    if any(a is None or a.shape != flat.shape(n) for n, a in arrays.items()):
        return None
    return np.asarray(evaluate(host_view(step, flat, [["input", n] for n in sources]), arrays, None))


def kept_lists(kernel: MatMul, array: Array, asked: str) -> FoundLists | None:
    """Lists in place of the tiles of a constant right operand; None when it has too few zeros to look.

    Args:
        kernel: the product with tiles.
        array: the right operand.
        asked: how matrices are to be multiplied.
    """
    said = zeros_note(array)
    if not said:
        return None
    why = _refusal(kernel, array.shape, asked)
    if why:
        return FoundLists(None, array, f"{said}, stored and sent all the same: {why}")
    tiling = kernel.b.tiling
    matrix = array.reshape(tiling.shape[-2:])
    cycles = dense_cycles(kernel, asked)
    forms = [_form(matrix, tiling, "rows"), _form(matrix, tiling, "elements")]
    costs = {form: listed_cycles(kernel, form) for form in forms if form is not None}
    best = min(costs, key=costs.__getitem__)
    if costs[best] * _PAYS >= cycles or best.words >= tiling.elements:
        text = f"lists of what is kept would take {costs[best]:,.0f} cycles and {best.words * 4:,} bytes of a PE"
        return FoundLists(
            None, array, f"{said}, taken as dense: {text}, tiles {cycles:,.0f} and {4 * tiling.elements:,}"
        )
    note = f"{said}: lists by {best.by} hold {best.share:.0%}, {cycles / costs[best]:.1f} times fewer cycles expected"
    return FoundLists(best, pack(matrix, tiling, best), note)


def zeros_note(array: Array) -> str:
    """How much of a weight is zero; empty when that is too little to look.

    Example:
        >>> zeros_note(np.eye(4)), zeros_note(np.ones(4))
        ('75% of the weights are zero', '')
    """
    share = np.count_nonzero(array) / max(array.size, 1)
    return "" if share > _DENSE else f"{1 - share:.0%} of the weights are zero"


def _refusal(kernel: MatMul, shape: tuple[int, ...], asked: str) -> str:
    """Why there are no lists for a product; empty when there are."""
    grid = kernel.out.tiling.grid
    if shape != kernel.b.tiling.shape:
        return "the program runs in passes, each on a part of them"
    if kernel.how == "reduce":
        return "a product with a vector sends no weights, and multiplies each of them once"
    if kernel.b.dtype != "f32":
        return "only float32 weights are listed"
    if asked == "broadcast":
        return "lists go from neighbour to neighbour, and products='broadcast' was asked for or needs less memory"
    if grid.rows * grid.cols == 1 or grid.rows not in (grid.cols, grid.rows * grid.cols):
        return f"lists go round rings of a square of PEs, or of one column; the grid is {grid}"
    if kernel.b_step:
        return "each matrix of the left operand has weights of its own"
    return ""


def _tiles(matrix: Array, tiling: Tiling) -> Iterator[tuple[int, int, Array]]:
    """The tile of every PE, without what lies beyond the matrix."""
    deep, cols = tiling.tile[-2:]
    for row in range(tiling.grid.rows):
        for col in range(tiling.grid.cols):
            yield row, col, matrix[row * deep : (row + 1) * deep, col * cols : (col + 1) * cols]


def _form(matrix: Array, tiling: Tiling, by: Literal["rows", "elements"]) -> KeptWeights | None:
    """The lists' form; None when places do not fit 8 bits."""
    deep, cols = tiling.tile[-2:]
    if by == "elements" and max(deep, cols) > _BYTE:
        return None
    counts = [
        np.count_nonzero(tile.any(axis=1)) if by == "rows" else np.count_nonzero(tile)
        for _, _, tile in _tiles(matrix, tiling)
    ]
    sent = sum(counts) * (cols if by == "rows" else 1)
    return KeptWeights(by, max(1, *map(int, counts)), deep, cols, float(sent / matrix.size))


def pack(matrix: Array, tiling: Tiling, kept: KeptWeights) -> Array:
    """The lists of all PEs, ``[rows, cols, words]`` of 32 bits.

    Example:
        >>> from pyflame_rt.backends.wse.plan.tiling import Grid, Tiling
        >>> matrix = np.array([[0, 0], [0, 3.0]], np.float32)
        >>> lists = pack(matrix, Tiling((2, 2), ("y", "x"), Grid(2, 1)), KeptWeights("elements", 2, 1, 2))
        >>> lists[:, 0].view(np.uint16)[:, :4].tolist(), lists[:, 0, 2:].view(np.float32).tolist()
        ([[2, 0, 0, 0], [1, 0, 1, 0]], [[0.0, 0.0], [3.0, 0.0]])
    """
    grid = tiling.grid
    lists = np.zeros((grid.rows, grid.cols, kept.words), np.uint32)
    for row, col, tile in _tiles(matrix, tiling):
        if kept.by == "rows":
            places = np.flatnonzero(tile.any(axis=1))
            values = np.zeros((kept.room, kept.cols), np.float32)
            values[: len(places), : tile.shape[1]] = tile[places]
        else:
            across, down = np.nonzero(tile.T)  # by columns, so that sums stay where they are for a while
            places = down << 8 | across
            values = np.zeros(kept.room, np.float32)
            values[: len(places)] = tile[down, across]
        numbers = np.zeros(2 * kept.first_value, np.uint16)
        numbers[0] = kept.room - len(places)
        numbers[2 : 2 + len(places)] = places
        lists[row, col, : kept.first_value] = numbers.view(np.uint32)
        lists[row, col, kept.first_value :] = values.reshape(-1).view(np.uint32)
    return lists
