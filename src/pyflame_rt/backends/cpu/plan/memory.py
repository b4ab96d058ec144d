"""Offsets in one arena: buffers whose lives do not overlap share bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyflame_rt.backends.cpu.plan.views import Buffer, Place

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
    placed: list[Buffer] = []
    total = 0
    owned = [b for b in buffers if b.place is Place.ARENA]
    for buffer in sorted(owned, key=lambda b: (-b.nbytes, b.first)):
        buffer.offset = _lowest_gap(buffer, placed)
        placed.append(buffer)
        total = max(total, buffer.offset + _rounded(buffer.nbytes))
    return total


def _rounded(nbytes: int) -> int:
    return max(nbytes + -nbytes % ALIGN, ALIGN)


def _lowest_gap(buffer: Buffer, placed: list[Buffer]) -> int:
    size, at = _rounded(buffer.nbytes), 0
    neighbours = [b for b in placed if b.first <= buffer.last and buffer.first <= b.last]
    for other in sorted(neighbours, key=lambda b: b.offset):
        if at + size <= other.offset:
            break
        at = max(at, other.offset + _rounded(other.nbytes))
    return at
