"""Walks over syntax and typed trees."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

from wsesim.csl import syntax as s

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["addressed_names", "nodes"]


def nodes(root: Any) -> Iterator[Any]:
    """Every dataclass inside ``root``, parents first; tuples are looked through.

    >>> from wsesim.csl.parser import parse_text
    >>> [n.id for n in nodes(parse_text("const x = a + b;")) if isinstance(n, s.Name)]
    ['a', 'b']
    """
    stack = [root]
    while stack:
        item = stack.pop()
        if isinstance(item, tuple | list):
            stack.extend(reversed(item))
        elif is_dataclass(item) and not isinstance(item, type):
            yield item
            stack.extend(reversed([getattr(item, f) for f in _field_names(type(item))]))


_NAMES: dict[type, tuple[str, ...]] = {}


def _field_names(kind: type) -> tuple[str, ...]:
    if kind not in _NAMES:
        _NAMES[kind] = tuple(
            f.name for f in fields(kind) if f.name != "pos" and (f.name != "type" or kind.__module__ == s.__name__)
        )
    return _NAMES[kind]


_ADDRESSED: dict[int, tuple[s.Block, frozenset[str]]] = {}


def addressed_names(block: s.Block) -> frozenset[str]:
    """Names under a ``&`` in a function body: locals of these names must live in memory."""
    known = _ADDRESSED.get(id(block))
    if known is not None and known[0] is block:
        return known[1]
    found = set()
    for node in nodes(block):
        if isinstance(node, s.Unary) and node.op == "&":
            root = node.operand
            while isinstance(root, s.Index | s.Field):
                root = root.base
            if isinstance(root, s.Name):
                found.add(root.id)
    names = frozenset(found)
    if len(_ADDRESSED) > 5000:
        _ADDRESSED.clear()
    _ADDRESSED[id(block)] = (block, names)
    return names
