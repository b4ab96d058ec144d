"""Which functions may wait for the fabric."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from wsesim.csl import tree
from wsesim.csl import types as t
from wsesim.csl.walk import nodes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from wsesim.csl.program import Function

__all__ = ["mark_stalls"]


def _waits(node: object) -> bool:
    """Whether an operation is synchronous and may touch the fabric (a DSR may hold a fabric DSD)."""
    if isinstance(node, tree.DsdOp):
        operands = (node.dest, *node.sources)
    elif isinstance(node, tree.MapOp):
        operands = (*node.inputs, *((node.output,) if node.output is not None else ()))
    else:
        return False
    if isinstance(node, tree.DsdOp) and node.options.is_async:
        return False
    return any(_touches(x.type) for x in operands)


def _touches(kind: t.Type) -> bool:
    return (isinstance(kind, t.DsdType) and kind.is_fabric) or isinstance(kind, t.HandleType)


def mark_stalls(functions: Mapping[str, Function]) -> dict[str, Function]:
    """The functions again, with ``may_stall`` set, through calls as well."""
    stalling = {name for name, f in functions.items() if any(_waits(n) for n in nodes(f.body))}
    grown = True
    while grown:
        more = {n for n, f in functions.items() if n not in stalling and any(c in stalling for c in f.calls)}
        stalling |= more
        grown = bool(more)
    return {n: replace(f, may_stall=True) if n in stalling else f for n, f in functions.items()}
