"""Walks over syntax and typed trees."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

from wsesim.csl.syntax import nodes as s

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["addressed_names", "nodes"]


def nodes(root: Any) -> Iterator[Any]:
    """Every dataclass inside ``root``, parents first; tuples are looked through.

    >>> from wsesim.csl.syntax.parser import parse_text
    >>> [n.id for n in nodes(parse_text("const x = a + b;")) if isinstance(n, s.Name)]
    ['a', 'b']
    """
    stack = [root]
    pop, names = stack.pop, _NAMES
    while stack:
        item = pop()
        kind = type(item)
        if kind is tuple or kind is list:
            stack.extend(reversed(item))
            continue
        inner = names.get(kind)
        if inner is None:
            inner = names[kind] = _field_names(kind)
        if inner is not _LEAF:
            yield item
            for name in inner:
                stack.append(getattr(item, name))  # noqa: PERF401 - a comprehension costs more for so few


_LEAF = ("",)  # marks types that are no nodes
_NAMES: dict[type, tuple[str, ...]] = {}


def _field_names(kind: type) -> tuple[str, ...]:
    """Fields that may hold nodes, last first (the stack turns them round)."""
    if not is_dataclass(kind):
        return _LEAF
    skipped = ("pos",) if kind.__module__ == s.__name__ else ("pos", "type", "types", "elem")
    plain = ("str", "int", "bool", "str | None", "int | None", "bytes")
    found = [f.name for f in fields(kind) if f.name not in skipped and f.type not in plain]
    return tuple(reversed(found))


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
