"""Mesh layouts: how tensors lie on a grid of processing elements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyflame.lazy import Expr, Val

__all__ = ["MeshLayout", "PECoord", "place", "redistribute"]


@dataclass(frozen=True, slots=True)
class PECoord:
    """A processing element by row and column."""

    row: int
    col: int


@dataclass(frozen=True, slots=True)
class MeshLayout:
    """A tiling request."""

    type: str
    pe_rows: int = 1
    pe_cols: int = 1

    @staticmethod
    def single_pe() -> MeshLayout:
        """Everything on one element."""
        return MeshLayout("single_pe")

    @staticmethod
    def row_partition(n: int) -> MeshLayout:
        """Dimension 0 split over ``n`` elements."""
        return MeshLayout("row_partition", n, 1)

    @staticmethod
    def col_partition(n: int) -> MeshLayout:
        """Dimension 1 split over ``n`` elements."""
        return MeshLayout("col_partition", 1, n)

    @staticmethod
    def grid(rows: int, cols: int) -> MeshLayout:
        """Dimensions 0 and 1 split."""
        return MeshLayout("grid", rows, cols)

    def for_shape(self, shape: Any) -> MeshLayout | None:
        """The layout a value of this shape keeps."""
        del shape
        return None if self.type == "single_pe" else self


def place(out: Val, expr: Expr) -> Val:
    """Give a result its layout."""
    out.layout = next((v.layout for v in expr.inputs if v is not None and v.layout is not None), None)
    return out


def redistribute(v: Val, layout: MeshLayout) -> Val:
    """The value in another layout."""
    raise NotImplementedError
