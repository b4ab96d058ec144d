"""Mesh layouts: how tensors lie on a grid of processing elements.

A layout is a request for tiling. It never changes values: evaluation on the CPU carries it along, code generation
follows it. Where operands lie differently, a ``pyflame::LayoutTransform`` node of the graph says what must move.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyflame_rt.graph.errors import InputError
from pyflame_rt.ops.onnx.shape import Transpose
from pyflame_rt.ops.pyflame.markers import LayoutTransform

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyflame.lazy import Expr, Val
    from pyflame.tensors import Tensor

__all__ = ["MemoryReport", "MeshLayout", "PECoord", "memory_report", "place", "redistribute"]

SRAM_BYTES = 48 * 1024


@dataclass(frozen=True, slots=True, order=True)
class PECoord:
    """A processing element by row and column.

    Example:
        >>> PECoord(1, 2).col
        2
    """

    row: int
    col: int


@dataclass(frozen=True, slots=True)
class MeshLayout:
    """How a tensor is cut into tiles, one for each processing element.

    Dimension 0 is cut into ``pe_rows`` pieces and dimension 1 into ``pe_cols``, each of the size rounded up; the last
    pieces may be smaller or empty. A vector has only dimension 0: a column partition cuts that one.

    Attributes:
        type: "single_pe", "row_partition", "col_partition", "grid" or "replicated".
        pe_rows: rows of elements.
        pe_cols: columns of elements.

    Example:
        >>> layout = MeshLayout.grid(2, 2)
        >>> layout.total_pes(), layout.tile_shape(PECoord(1, 1), [5, 4]), layout.memory_per_pe([5, 4], 4)
        (4, (2, 2), 24)
    """

    type: str
    pe_rows: int = 1
    pe_cols: int = 1

    def __post_init__(self) -> None:
        for name, count in (("rows", self.pe_rows), ("columns", self.pe_cols)):
            if not isinstance(count, int) or isinstance(count, bool) or count < 1:
                raise InputError(f"a layout needs a positive number of {name} of processing elements, got {count!r}")

    @staticmethod
    def single_pe() -> MeshLayout:
        """Everything on one element: the layout of tensors that ask for none."""
        return MeshLayout("single_pe")

    @staticmethod
    def row_partition(n: int) -> MeshLayout:
        """Dimension 0 cut into ``n`` pieces."""
        return MeshLayout("row_partition", n, 1)

    @staticmethod
    def col_partition(n: int) -> MeshLayout:
        """Dimension 1 cut into ``n`` pieces (dimension 0 of a vector)."""
        return MeshLayout("col_partition", 1, n)

    @staticmethod
    def grid(rows: int, cols: int) -> MeshLayout:
        """Dimension 0 cut into ``rows`` pieces and dimension 1 into ``cols``."""
        return MeshLayout("grid", rows, cols)

    @staticmethod
    def replicated(rows: int, cols: int) -> MeshLayout:
        """A copy on each element of a grid."""
        return MeshLayout("replicated", rows, cols)

    def total_pes(self) -> int:
        """Number of processing elements."""
        return self.pe_rows * self.pe_cols

    def elements(self) -> Iterator[PECoord]:
        """All processing elements, row by row."""
        return (PECoord(r, c) for r in range(self.pe_rows) for c in range(self.pe_cols))

    def _cuts(self, rank: int) -> list[int]:
        """Into how many pieces each dimension is cut."""
        if self.type in ("single_pe", "replicated") or rank == 0:
            return [1] * rank
        if rank == 1:
            return [self.pe_rows * self.pe_cols]
        return [self.pe_rows, self.pe_cols, *[1] * (rank - 2)]

    def _piece(self, pe: PECoord, rank: int) -> list[int]:
        """Which piece of each dimension an element has."""
        if self.type in ("single_pe", "replicated") or rank == 0:
            return [0] * rank
        if rank == 1:
            return [pe.row * self.pe_cols + pe.col]
        return [pe.row, pe.col, *[0] * (rank - 2)]

    def tile_of(self, pe: PECoord, shape: Sequence[int]) -> tuple[slice, ...]:
        """The part of a tensor that an element holds, as an index.

        Example:
            >>> MeshLayout.row_partition(2).tile_of(PECoord(1, 0), [5])
            (slice(3, 5, None),)
        """
        if not (0 <= pe.row < self.pe_rows and 0 <= pe.col < self.pe_cols):
            raise InputError(f"{pe} is outside of a grid of {self.pe_rows} x {self.pe_cols} elements")
        parts = []
        for size, cuts, piece in zip(shape, self._cuts(len(shape)), self._piece(pe, len(shape)), strict=True):
            step = -(-size // cuts)
            parts.append(slice(min(piece * step, size), min((piece + 1) * step, size)))
        return tuple(parts)

    def tile_shape(self, pe: PECoord, shape: Sequence[int]) -> tuple[int, ...]:
        """Sizes of the part that an element holds."""
        return tuple(part.stop - part.start for part in self.tile_of(pe, shape))

    def memory_per_pe(self, shape: Sequence[int], element_bytes: int) -> int:
        """Bytes of the largest tile."""
        return math.prod(-(-s // c) for s, c in zip(shape, self._cuts(len(shape)), strict=True)) * element_bytes

    def compatible_with(self, other: MeshLayout) -> bool:
        """Whether operands in the two layouts meet without moving: equal ones do, and one element's meets any."""
        return self == other or "single_pe" in (self.type, other.type)

    def for_shape(self, shape: Sequence[int]) -> MeshLayout | None:
        """What a value of this shape keeps: None stands for a single element."""
        del shape
        return None if self.type == "single_pe" else self

    def __str__(self) -> str:
        match self.type:
            case "row_partition":
                return f"row_partition({self.pe_rows})"
            case "col_partition":
                return f"col_partition({self.pe_cols})"
            case "single_pe":
                return "single_pe"
            case _:
                return f"{self.type}({self.pe_rows}, {self.pe_cols})"


def place(out: Val, expr: Expr) -> Val:
    """Give a result the layout of its first operand that has one; operands that lie otherwise are moved first."""
    first = next(v.layout for v in expr.inputs if v is not None and v.layout is not None)
    expr.inputs = tuple(
        v if v is None or v.layout is None or v.layout == first else redistribute(v, first) for v in expr.inputs
    )
    out.layout = _result_layout(first, out, expr)
    return out


def _result_layout(layout: MeshLayout, out: Val, expr: Expr) -> MeshLayout | None:
    """The layout of what an operator gives: dimensions that are gone are not cut, swapped ones swap."""
    name, rank = expr.rule.op.name, len(out.spec.shape)
    if rank == 0:
        return None
    if name == Transpose.name and layout.type != "replicated" and rank == 2:
        return _swapped(layout) if list(expr.rule.bound.get("perm") or [1, 0]) == [1, 0] else layout
    if name.startswith(("Reduce", "Arg")):
        return _reduced(layout, expr, rank)
    return layout


def _swapped(layout: MeshLayout) -> MeshLayout:
    names = {"row_partition": "col_partition", "col_partition": "row_partition"}
    return MeshLayout(names.get(layout.type, layout.type), layout.pe_cols, layout.pe_rows)


def _reduced(layout: MeshLayout, expr: Expr, rank: int) -> MeshLayout | None:
    """A reduction over a cut dimension leaves the other cut."""
    source = expr.inputs[0]
    assert source is not None
    before = len(source.spec.shape)
    if "axis" in expr.rule.bound:
        axes = [expr.rule.bound["axis"] % before]
    else:
        given = expr.inputs[1] if len(expr.inputs) > 1 else None
        axes = (
            list(range(before)) if given is None or given.array is None else [a % before for a in given.array.tolist()]
        )
    if layout.type == "replicated":
        return layout
    rows = 1 if 0 in axes else layout.pe_rows
    cols = 1 if 1 in axes else layout.pe_cols
    if rows * cols == 1:
        return None
    if 0 in axes and rank < before:
        rows, cols = cols, 1  # what was dimension 1 is dimension 0 now
    if cols == 1:
        return MeshLayout.row_partition(rows)
    return MeshLayout.col_partition(cols) if rows == 1 else MeshLayout.grid(rows, cols)


def redistribute(v: Val, layout: MeshLayout) -> Val:
    """The value in another layout, by a node that says so."""
    from pyflame.lazy import apply

    have = v.layout or MeshLayout.single_pe()
    if have == layout:
        return v
    source = v.layout
    v.layout = None  # moving is not an operation in either layout
    try:
        moved = apply(LayoutTransform, (v,), (("source", str(have)), ("target", str(layout))))
    finally:
        v.layout = source
    moved.layout = layout.for_shape(v.spec.shape)
    return moved


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """Where the memory of a tensor's graph would be on the mesh.

    Attributes:
        layout: of the tensor.
        tensor_bytes: of the tensor.
        tile_bytes: of its largest tile.
        total_bytes: of all values of the graph.
        bytes_per_pe: of the tiles of all values that one element would hold, were none of them to share memory.
        limit: bytes one element has.
        rows: for each value its operator, shape, layout and bytes of the largest tile.
    """

    layout: MeshLayout
    tensor_bytes: int
    tile_bytes: int
    total_bytes: int
    bytes_per_pe: int
    limit: int
    rows: tuple[tuple[str, tuple[int, ...], MeshLayout, int], ...]

    @property
    def fits(self) -> bool:
        """Whether the tensor's largest tile fits into the memory of one element."""
        return self.tile_bytes <= self.limit

    def __str__(self) -> str:
        head = (
            f"tensor: {self.tensor_bytes} bytes as {self.layout}, largest tile {self.tile_bytes} of {self.limit} bytes"
            f" ({'fits' if self.fits else 'does not fit'})\n"
            f"graph: {self.total_bytes} bytes, {self.bytes_per_pe} on one element without sharing"
        )
        return "\n".join([head, *[f"  {op} {list(shape)} {layout}: {size}" for op, shape, layout, size in self.rows]])


def memory_report(tensor: Tensor) -> MemoryReport:
    """How much memory a tensor and its graph need, in all and on each processing element.

    Example:
        >>> import pyflame as pf
        >>> x = pf.zeros([1000, 1000], layout=pf.MeshLayout.grid(10, 10))
        >>> report = pf.memory_report(x)
        >>> report.tensor_bytes, report.tile_bytes, report.fits
        (4000000, 40000, True)
    """
    from pyflame.inspection import get_graph

    rows = []
    for node in get_graph(tensor).nodes:
        shape = tuple(node.output_shape)
        size = node.spec.layout.memory_per_pe(shape, node.output_dtype.itemsize)
        rows.append((node.op_type, shape, node.spec.layout, size))
    layout = tensor.layout
    total = sum(math.prod(n.output_shape) * n.output_dtype.itemsize for n in get_graph(tensor).nodes)
    tile = layout.memory_per_pe(tuple(tensor.shape), tensor.dtype.itemsize)
    return MemoryReport(layout, tensor.nbytes, tile, total, sum(r[3] for r in rows), SRAM_BYTES, tuple(rows))
