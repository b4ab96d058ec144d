"""Sizes of exported programs: SymPy's notation of a polynomial, read by recursive descent."""

from __future__ import annotations

import math
import re

from pyflame_rt.graph.dim import Dim, DimLike, dim_from_text, symbol

__all__ = ["size_from_text"]

_MAX_POWER = 8
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
