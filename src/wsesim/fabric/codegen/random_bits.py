"""The shift register behind ``@random16`` and ``<random>``."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wsesim.fabric.pe import PE

__all__ = ["next16"]


def next16(pe: PE) -> int:
    """Low 16 bits of the documented register (x^23 + x^18 + 1), which then moves on by 128 steps."""
    state = pe.prng & 0x7FFFFF or 1
    value = state & 0xFFFF
    for _ in range(128):
        bit = (state >> 22 ^ state >> 17) & 1
        state = (state << 1 | bit) & 0x7FFFFF
    pe.prng = state
    return value
