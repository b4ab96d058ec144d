"""How large anything in a .pfm file may be; readers refuse more before allocating it."""

from __future__ import annotations

__all__ = ["MAX_ATTRIBUTES", "MAX_DEPTH", "MAX_DIM", "MAX_ELEMENTS", "MAX_ITEMS", "MAX_NODES", "MAX_RANK", "MAX_STRING"]

MAX_STRING = 10 * 1024 * 1024
MAX_ITEMS = 1_000_000
MAX_NODES = 1_000_000
MAX_ATTRIBUTES = 1_000
MAX_RANK = 16
MAX_DIM = 100_000_000
MAX_ELEMENTS = 1_000_000_000
MAX_DEPTH = 32
