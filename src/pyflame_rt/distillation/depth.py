"""Fewer layers: blocks that keep the shape of what passes through them are taken out, evenly spaced."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

import numpy as np

from pyflame_rt.graph.records import dataclass
from pyflame_rt.opt.editor import Editor
from pyflame_rt.pruning.scores import prunable_weights

if TYPE_CHECKING:
    from pyflame_rt.graph import Graph, Node

__all__ = ["Block", "blocks_of", "data_nodes", "drop_blocks"]


@dataclass(frozen=True, slots=True)
class Block:
    """Nodes between two values of one type that everything passes through."""

    start: str
    end: str
    nodes: tuple[Node, ...]

    @property
    def operators(self) -> tuple[str, ...]:
        """What it does."""
        return tuple(node.full_name for node in self.nodes)


def data_nodes(graph: Graph) -> list[Node]:
    """Nodes that depend on what is fed, in running order."""
    reached = {info.name for info in graph.required_inputs}
    found = []
    for node in graph.topological_sort():
        if reached.intersection(node.inputs):
            reached.update(filter(None, node.outputs))
            found.append(node)
    return found


def _cuts(graph: Graph, nodes: list[Node]) -> list[tuple[int, str]]:
    """Values that are the only ones alive after a node."""
    last: dict[str, int] = {info.name: len(nodes) for info in graph.outputs}
    for i, node in enumerate(nodes):
        for name in node.inputs:
            last[name] = max(last.get(name, -1), i)
    alive = {info.name for info in graph.required_inputs}
    found = [(-1, next(iter(alive)))] if len(alive) == 1 else []
    for i, node in enumerate(nodes):
        alive.update(filter(None, node.outputs))
        alive = {name for name in alive if last.get(name, -1) > i}
        if len(alive) == 1:
            found.append((i, next(iter(alive))))
    return found


def blocks_of(graph: Graph) -> list[Block]:
    """What could be taken out: blocks with weights, whose output has the shape of their input.

    Example:
        >>> from pyflame_rt.graph import Graph
        >>> g = Graph("g")
        >>> _ = g.add_input("x", ["N", 2]), g.add_initializer("w", np.eye(2, dtype=np.float32))
        >>> _ = g.add_node("a", "MatMul", ["x", "w"], ["h"]), g.add_node("b", "Relu", ["h"], ["r"])
        >>> _ = g.add_node("c", "MatMul", ["r", "w"], ["y"]), g.add_output("y", ["N", 2])
        >>> [(block.start, block.end) for block in blocks_of(g)]
        [('x', 'r')]
    """
    nodes, editor = data_nodes(graph), Editor(graph.copy())
    layers = {name for readers in prunable_weights(graph).values() for name in readers}
    units: list[tuple[str, str, list[Node]]] = []
    cuts = _cuts(graph, nodes)
    for (before, start), (after, end) in itertools.pairwise(cuts):
        part = nodes[before + 1 : after + 1]
        if any(node.name in layers for node in part) or not units or not _same(editor, start, end):
            units.append((start, end, part))
        else:
            first, _, earlier = units[-1]
            units[-1] = (first, end, [*earlier, *part])
    outputs = {info.name for info in graph.outputs}
    kept = [
        Block(start, end, tuple(part))
        for start, end, part in units
        if end not in outputs and _same(editor, start, end) and any(node.name in layers for node in part)
    ]
    return _merged(kept)


def _same(editor: Editor, a: str, b: str) -> bool:
    one, two = editor.type(a), editor.type(b)
    return one is not None and two is not None and one.shape is not None and str(one) == str(two)


def _merged(blocks: list[Block]) -> list[Block]:
    """Blocks that repeat in a pattern (attention, then a feed-forward part) as one each."""
    joined = all(a.end == b.start for a, b in itertools.pairwise(blocks))
    for period in range(2, len(blocks) // 2 + 1) if joined else ():
        if len(blocks) % period or len({b.operators for b in blocks}) == 1:
            continue
        if all(a.operators == b.operators for a, b in zip(blocks[:-period], blocks[period:], strict=True)):
            groups = [blocks[i : i + period] for i in range(0, len(blocks), period)]
            return [Block(g[0].start, g[-1].end, tuple(n for b in g for n in b.nodes)) for g in groups]
    return blocks


def drop_blocks(graph: Graph, ratio: float) -> Graph:
    """A copy with so much of its blocks, evenly spaced; at least one stays."""
    blocks = blocks_of(graph)
    keep = math.ceil(ratio * len(blocks) - 1e-9)
    if keep >= len(blocks):
        return graph.copy()
    stay = set(np.round(np.linspace(0, len(blocks) - 1, max(keep, 1))).astype(int).tolist())
    gone = [block for i, block in enumerate(blocks) if i not in stay]
    dropped = {id(node) for block in gone for node in block.nodes}
    source = {block.end: block.start for block in gone}
    twin = graph.copy()
    twin.origin = None
    twin.nodes = [
        node.replace(inputs=[_first(name, source) for name in node.inputs])
        for node in graph.topological_sort()
        if id(node) not in dropped
    ]
    small = twin.needed_for([info.name for info in twin.outputs])
    used = {name for node in small.nodes for name in node.inputs} | {info.name for info in small.outputs}
    small.initializers = {name: tensor for name, tensor in small.initializers.items() if name in used}
    return small


def _first(name: str, source: dict[str, str]) -> str:
    while name in source:
        name = source[name]
    return name
