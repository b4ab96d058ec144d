"""Offsets in one arena: buffers whose lives do not overlap share bytes."""

from __future__ import annotations

from bisect import insort
from typing import TYPE_CHECKING

from pyflame_rt.backends.cpu.memory.buffer_views import Buffer, Place

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["ALIGN", "assign_offsets"]

ALIGN = 64


def assign_offsets(buffers: Iterable[Buffer]) -> int:
    """Give every arena buffer an offset; returns the size of the arena.

    Largest first, each at the lowest gap among those alive at the same time.

    Example:
        >>> a, b, c = Buffer(64, first=0, last=1), Buffer(64, first=1, last=2), Buffer(64, first=2, last=3)
        >>> assign_offsets([a, b, c]), a.offset, b.offset, c.offset
        (128, 0, 64, 0)
    """
    placed: list[tuple[int, int, int, int]] = []  # offset, end, first and last step, by offset
    total = 0
    owned = [b for b in buffers if b.place is Place.ARENA]
    for buffer in sorted(owned, key=lambda b: (-b.nbytes, b.first)):
        size, first, last, at = max(buffer.nbytes + -buffer.nbytes % ALIGN, ALIGN), buffer.first, buffer.last, 0
        for offset, end, begun, done in placed:
            if begun <= last and first <= done:
                if at + size <= offset:
                    break
                if end > at:
                    at = end
        buffer.offset = at
        insort(placed, (at, at + size, first, last))
        total = max(total, at + size)
    return total
