"""What one walk over a function's tree tells: its size, the globals it names, its descriptors, whether it may wait."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from wsesim.csl.program import typed_tree as tree
from wsesim.csl.sema import types as t
from wsesim.csl.syntax.walk import nodes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from wsesim.csl.program.elaborated import Function

__all__ = ["Facts", "mark_stalls", "survey"]


@dataclass(frozen=True)
class Facts:
    """Facts about one function."""

    size: int
    symbols: tuple[str, ...]
    dsds: tuple[tree.DsdConst, ...]
    waits: bool


def survey(function: Function) -> Facts:
    """Walks a function once."""
    size, waits = 0, False
    symbols: dict[str, None] = {}
    dsds: dict[tree.DsdConst, None] = {}
    for node in nodes(function.body):
        size += 1
        kind = type(node)
        if kind is tree.GlobalAddr or kind is tree.ObjectRef:
            symbols[node.symbol] = None
        elif kind is tree.DsdConst:
            dsds[node] = None
            if node.base is not None:
                symbols[node.base] = None
        elif kind is tree.DsdOp or kind is tree.MapOp:
            waits = waits or _waits(node)
    return Facts(size, tuple(symbols), tuple(dsds), waits)


def _waits(node: tree.DsdOp | tree.MapOp) -> bool:
    """Whether an operation is synchronous and may touch the fabric (a DSR may hold a fabric DSD)."""
    if isinstance(node, tree.DsdOp):
        return not node.options.is_async and any(_touches(x.type) for x in (node.dest, *node.sources))
    return any(_touches(x.type) for x in (*node.inputs, *((node.output,) if node.output is not None else ())))


def _touches(kind: t.Type) -> bool:
    return (isinstance(kind, t.DsdType) and kind.is_fabric) or isinstance(kind, t.HandleType)


def mark_stalls(functions: Mapping[str, Function], facts: Mapping[str, Facts]) -> dict[str, Function]:
    """The functions again, with ``may_stall`` set, through calls as well."""
    stalling = {name for name in functions if facts[name].waits}
    grown = True
    while grown:
        more = {n for n, f in functions.items() if n not in stalling and any(c in stalling for c in f.calls)}
        stalling |= more
        grown = bool(more)
    return {n: replace(f, may_stall=True) if n in stalling else f for n, f in functions.items()}
