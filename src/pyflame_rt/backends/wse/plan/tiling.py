"""Tiles: which part of a tensor each PE of a rectangle holds."""

from __future__ import annotations

import math

from pyflame_rt.graph.records import dataclass

__all__ = ["Grid", "Tiling"]


@dataclass(frozen=True, slots=True)
class Grid:
    """A rectangle of PEs.

    Example:
        >>> Grid(2, 3).cuts("x"), Grid(2, 3).cuts("yx"), Grid(2, 3).cuts("")
        (3, 6, 1)
    """

    rows: int
    cols: int

    def cuts(self, axes: str) -> int:
        """Into how many pieces a dimension along these axes is cut."""
        return (self.rows if "y" in axes else 1) * (self.cols if "x" in axes else 1)

    def __str__(self) -> str:
        return f"{self.rows} x {self.cols}"


@dataclass(frozen=True, slots=True)
class Tiling:
    """How a tensor lies on a grid: for each dimension the axes that cut it, in pieces of equal size.

    ``y`` cuts along the rows of PEs, ``x`` along the columns, ``yx`` along all of them, row by row. Along an axis that
    cuts nothing every PE has a copy. The last pieces may reach beyond the tensor; what is there counts for nothing.

    Example:
        >>> t = Tiling((5, 4), ("y", "x"), Grid(2, 2))
        >>> t.tile, t.elements
        ((3, 2), 6)
    """

    shape: tuple[int, ...]
    axes: tuple[str, ...]
    grid: Grid

    @property
    def tile(self) -> tuple[int, ...]:
        """Sizes of a piece."""
        return tuple(-(-size // self.grid.cuts(a)) for size, a in zip(self.shape, self.axes, strict=True))

    @property
    def elements(self) -> int:
        """Elements of a piece."""
        return math.prod(self.tile)

    def same_tiles(self, other: Tiling) -> bool:
        """Whether an element is at the same place of the same PE in both."""
        return self.tile == other.tile and self.axes == other.axes and self.shape == other.shape
