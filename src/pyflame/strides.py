"""Strides and offsets: where the elements of a view lie in its storage."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Geometry", "row_major", "view_strides"]


class Geometry:
    """Where the elements of a view are in its storage.

    Attributes:
        shape: its sizes.
        strides: steps between neighbours along each dimension, in elements.
        offset: of the first element.
    """

    __slots__ = ("offset", "shape", "strides")

    def __init__(self, shape: Sequence[int], strides: Sequence[int] | None = None, offset: int = 0) -> None:
        self.shape = tuple(shape)
        self.strides = row_major(self.shape) if strides is None else tuple(strides)
        self.offset = offset

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements lie row by row."""
        expected = 1
        for size, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if size != 1:
                if stride != expected:
                    return math.prod(self.shape) == 0
                expected *= size
        return True

    @property
    def is_dense(self) -> bool:
        """Whether the elements fill a piece of memory, each once, in whatever order of dimensions."""
        expected = 1
        for stride, size in sorted(p for p in zip(self.strides, self.shape, strict=True) if p[1] != 1):
            if stride != expected:
                return False
            expected *= size
        return True

    def crosses(self, other: Geometry) -> bool:
        """Whether some elements are those of another view at other places, as far as torch looks."""
        count, others = math.prod(self.shape), math.prod(other.shape)
        if not count or not others or not self.is_dense or not other.is_dense:
            return False
        if self.offset == other.offset and count == others:
            return self._steps() != other._steps()
        return self.offset < other.offset + others and other.offset < self.offset + count

    def _steps(self) -> list[int]:
        """The strides along which there are several elements."""
        return [stride for size, stride in zip(self.shape, self.strides, strict=True) if size > 1]

    @property
    def overlaps(self) -> bool:
        """Whether several elements are one in memory."""
        pairs = zip(self.shape, self.strides, strict=True)
        return any(size > 1 and stride == 0 for size, stride in pairs) and 0 not in self.shape


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of elements that lie row by row.

    Example:
        >>> row_major((2, 3, 4))
        (12, 4, 1)
    """
    return tuple(math.prod(max(size, 1) for size in shape[i + 1 :]) for i in range(len(shape)))


def view_strides(shape: Sequence[int], strides: Sequence[int], new: Sequence[int]) -> tuple[int, ...] | None:
    """The strides of the same elements in another shape; None where they do not lie so.

    Example:
        >>> view_strides((2, 3), (3, 1), (6,)), view_strides((3, 2), (1, 3), (6,))
        ((1,), None)
    """
    if math.prod(shape) <= 1:
        return row_major(new)
    result = [0] * len(new)
    at, base, have, made = len(new) - 1, strides[-1], 1, 1
    for d in range(len(shape) - 1, -1, -1):
        have *= shape[d]
        if d and (shape[d - 1] == 1 or strides[d - 1] == have * base):
            continue
        while at >= 0 and (made < have or new[at] == 1):
            result[at] = made * base
            made *= new[at]
            at -= 1
        if made != have:
            return None
        if d:
            base, have, made = strides[d - 1], 1, 1
    return tuple(result) if at < 0 else None
