"""Where each node of a graph runs, as a plan has it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyflame_rt.backends.base import Placement
from pyflame_rt.backends.cpu.jit.compiler import unfinished
from pyflame_rt.opt.specialize import named_apart

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyflame_rt.backends.cpu.graph.cost_model import StepFacts
    from pyflame_rt.graph import Graph, Node

__all__ = ["place_nodes"]


def place_nodes(graph: Graph, facts: Sequence[StepFacts]) -> list[Placement]:
    """One row for each node; steps that only move a value into another layout get rows of their own."""
    nodes = named_apart(graph.nodes)
    names = {node.name for node in nodes}
    own: dict[str, list[StepFacts]] = {}
    moves: dict[str, list[StepFacts]] = {}
    for fact in facts:
        there = moves if fact.label in ("reorder", "copy") else own
        for name in dict.fromkeys(_source(n, names) for n in fact.nodes):
            there.setdefault(name, []).append(fact)
    rows: list[Placement] = []
    seen: dict[int, str] = {}
    for node in nodes:
        rows += [_moved(node, fact) for fact in moves.get(node.name, ()) if _first(fact, node, seen)]
        rows.append(_placed(node, own.get(node.name, []), names, seen))
    return rows


def _first(fact: StepFacts, node: Node, seen: dict[int, str]) -> bool:
    return seen.setdefault(id(fact), node.name) == node.name


def _source(name: str, names: set[str]) -> str:
    """The node of the graph that a node of an opened body belongs to: names get suffixes there."""
    while name not in names and "%" in name:
        name = name.rpartition("%")[0]
    return name


def _moved(node: Node, fact: StepFacts) -> Placement:
    return Placement(
        node.name,
        fact.label,
        f"native: {fact.label}",
        "",
        (),
        layout=fact.layout,
        nbytes=fact.nbytes,
        seconds=fact.seconds,
        moves=True,
        steps=1,
    )


def _placed(node: Node, facts: list[StepFacts], names: set[str], seen: dict[int, str]) -> Placement:
    if not facts:
        return Placement(node.name, node.full_name, "folded or a view", "", node.outputs)
    last = facts[-1]
    mine = [fact for fact in facts if _first(fact, node, seen)]
    times = [fact.seconds for fact in mine if fact.seconds is not None]
    flops = sum(n for fact in facts for name, n in fact.flops_by_node.items() if _source(name, names) == node.name)
    host = next((fact for fact in facts if fact.kind == "reference"), None)
    quick = "quick code so far; better code is being compiled" if any(unfinished(f.kernel) for f in facts) else ""
    return Placement(
        node.name,
        node.full_name,
        "reference (host step)" if host is not None else f"native: {last.label}",
        quick if host is None else host.reason,
        node.outputs,
        host is not None,
        fused_with="" if mine else seen[id(last)],
        layout=last.layout,
        nbytes=sum(fact.nbytes for fact in mine),
        flops=flops,
        seconds=sum(times) if times else None,
        steps=len(mine),
    )
