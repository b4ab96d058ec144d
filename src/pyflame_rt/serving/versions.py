"""Versions in the order people count them: 9 before 10, v1.9 before v1.10."""

from __future__ import annotations

import re

__all__ = ["natural_key"]

_DIGITS = re.compile(r"(\d+)")


def natural_key(version: str) -> tuple[tuple[int, int, str], ...]:
    """A key to sort by.

    Example:
        >>> sorted(["v10", "v9", "v1.10", "v1.9"], key=natural_key)
        ['v1.9', 'v1.10', 'v9', 'v10']
    """
    parts = _DIGITS.split(version)
    return tuple((1, int(p), "") if p.isdecimal() and p.isascii() else (0, 0, p) for p in parts if p)
