"""Points and rectangles on the grid of PEs."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["IntRectangle", "IntVector"]


@dataclass(frozen=True)
class IntVector:
    """A place: column ``x``, row ``y``.

    >>> IntVector(1, 2) + IntVector(3, 4)
    IntVector(x=4, y=6)
    """

    x: int
    y: int

    def __add__(self, other: IntVector) -> IntVector:
        return IntVector(self.x + other.x, self.y + other.y)


@dataclass(frozen=True)
class IntRectangle:
    """The places from ``lower`` up to, not including, ``upper``."""

    lower: IntVector
    upper: IntVector

    def points(self) -> list[IntVector]:
        """Its places, row by row."""
        xs, ys = range(self.lower.x, self.upper.x), range(self.lower.y, self.upper.y)
        return [IntVector(x, y) for y in ys for x in xs]
