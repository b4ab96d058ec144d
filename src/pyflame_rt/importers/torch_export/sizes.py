"""Sizes of exported programs: SymPy's notation of a polynomial, read by recursive descent, and their bounds."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

from pyflame_rt.graph.dim import Dim, DimLike, dim_from_text, symbol

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["size_bounds", "size_from_text"]

_MAX_POWER = 8
# torch traces with sizes of 2 and more, and runs with 0 and 1, too.
_TRACED_LEAST = 2
# A symbol with what is assumed of it, a number, the beginning of a sum, product or power, or its end.
_TOKEN = re.compile(
    r"\s*(?:Symbol\('(?P<name>[^']+)'[^)]*\)|Integer\((?P<number>-?\d+)\)|(?P<head>Add|Mul|Pow)\(|(?P<end>[,)]))"
)


def size_from_text(text: str) -> DimLike:
    """A size from the text torch.export writes; what is no polynomial is a size of its own.

    Example:
        >>> size_from_text("Add(Mul(Integer(2), Symbol('s77', positive=True, integer=True)), Integer(-1))")
        2*s77 - 1
    """
    tokens = list(_TOKEN.finditer(text))
    if "".join(token.group() for token in tokens) != text.strip():
        return dim_from_text(text)
    try:
        value, at = _read(tokens, 0)
    except (ValueError, IndexError, RecursionError):
        return symbol(text)
    return value if at == len(tokens) else symbol(text)


def _read(tokens: list[re.Match[str]], at: int) -> tuple[int | Dim, int]:
    """An expression that begins at a token, and where the next one is."""
    token = tokens[at]
    if token["name"] or token["number"]:
        return symbol(token["name"]) if token["name"] else int(token["number"]), at + 1
    if not token["head"]:
        raise ValueError(token.group())
    parts: list[int | Dim] = []
    while not parts or tokens[at].group().strip() == ",":
        part, at = _read(tokens, at + 1)
        parts.append(part)
    if tokens[at].group().strip() != ")":
        raise ValueError(tokens[at].group())
    return _combined(token["head"], parts), at + 1


def _combined(head: str, parts: list[int | Dim]) -> int | Dim:
    if head == "Add":
        return sum(parts, start=0)
    if head == "Mul":
        return math.prod(parts, start=1)
    base, power = parts
    if not isinstance(power, int) or not 0 <= power <= _MAX_POWER:
        raise ValueError("no polynomial")
    return math.prod([base] * power, start=1)


def size_bounds(constraints: Mapping[str, Mapping[str, Any]]) -> dict[str, tuple[int, int | None]]:
    """Bounds that a program has for its named sizes; without those that torch assumes itself or works out of others.

    Example:
        >>> room = {"min_val": 4, "max_val": 64}
        >>> size_bounds({"s0": room, "2*s0": room, "s1": {"min_val": 2, "max_val": None}})
        {'s0': (4, 64)}
    """
    found = {}
    for name, room in constraints.items():
        low, high = room["min_val"], room["max_val"]
        low = int(low) if low is not None and low > _TRACED_LEAST else 0
        if name.isidentifier() and (low or high is not None):
            found[name] = (low, None if high is None else int(high))
    return found
