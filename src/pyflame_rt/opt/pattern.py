"""Patterns by hand: nodes, edges between them, and where they occur in a graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyflame_rt.graph.errors import InputError
from pyflame_rt.graph.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyflame_rt.graph import Graph, Node

__all__ = ["Pattern", "PatternEdge", "PatternMatch", "PatternMatcher", "PatternNode"]

ANY = "*"


@dataclass(frozen=True, slots=True)
class PatternNode:
    """A node of a pattern: an operator ("*" for any), and the name the match knows it by.

    Example:
        >>> PatternNode.op("MatMul", "product")
        PatternNode(op_type='MatMul', capture='product')
    """

    op_type: str
    capture: str

    @classmethod
    def op(cls, op_type: str, capture: str = "") -> PatternNode:
        """A node of an operator, written ``domain::Name`` outside ONNX's domain; it is called like it unless told."""
        return cls(op_type, capture or op_type)

    @classmethod
    def any(cls, capture: str) -> PatternNode:
        """A node of whatever operator."""
        return cls(ANY, capture)

    def accepts(self, node: Node) -> bool:
        """Whether a node of a graph can stand for this one."""
        return self.op_type in (ANY, node.full_name)


@dataclass(frozen=True, slots=True)
class PatternEdge:
    """An output of one node of a pattern is an input of another.

    Example:
        >>> PatternEdge.output_to_input("product", "sum", 0)
        PatternEdge(source='product', target='sum', input=0, output=0)
    """

    source: str
    target: str
    input: int
    output: int = 0

    @classmethod
    def output_to_input(cls, source: str, target: str, input: int = 0, output: int = 0) -> PatternEdge:  # noqa: A002
        """Output number ``output`` of ``source`` is input number ``input`` of ``target``."""
        return cls(source, target, input, output)


class Pattern:
    """Nodes and edges, seen from one of them: the root, which comes last in the graph.

    Example:
        >>> pattern = Pattern()
        >>> pattern.add_node(PatternNode.op("MatMul", "product"))
        >>> pattern.add_node(PatternNode.op("Add", "sum"))
        >>> pattern.add_edge(PatternEdge.output_to_input("product", "sum", 0))
        >>> pattern.set_root("sum")
        >>> pattern.problems()
        []
    """

    def __init__(self) -> None:
        self.nodes: dict[str, PatternNode] = {}
        self.edges: list[PatternEdge] = []
        self.root = ""

    def add_node(self, node: PatternNode) -> None:
        """Add a node; the first one is the root until told otherwise."""
        if node.capture in self.nodes:
            raise InputError(f"the pattern has a node {node.capture!r} already; give this one another name")
        self.nodes[node.capture] = node
        self.root = self.root or node.capture

    def add_edge(self, edge: PatternEdge) -> None:
        """Add an edge between nodes that were added before."""
        for name in (edge.source, edge.target):
            if name not in self.nodes:
                raise InputError(f"the pattern has no node {name!r}. It has {', '.join(self.nodes) or 'none'}")
        self.edges.append(edge)

    def set_root(self, name: str) -> None:
        """Say which node matches are looked for from."""
        if name not in self.nodes:
            raise InputError(f"the pattern has no node {name!r}. It has {', '.join(self.nodes) or 'none'}")
        self.root = name

    def problems(self) -> list[str]:
        """Why no match can ever be found; empty when all is well."""
        if not self.nodes:
            return ["the pattern has no nodes"]
        reached = {self.root}
        while True:
            further = {e.source for e in self.edges if e.target in reached} - reached
            if not further:
                break
            reached |= further
        return [f"no edges lead from {name!r} to the root {self.root!r}" for name in self.nodes if name not in reached]


@dataclass(frozen=True, slots=True)
class PatternMatch:
    """A place in a graph where a pattern occurs."""

    nodes: Mapping[str, Node]
    readers: Mapping[str, int]

    def get_node(self, name: str) -> Node:
        """The node of the graph that stands for a node of the pattern."""
        if name not in self.nodes:
            raise InputError(f"the pattern has no node {name!r}. It has {', '.join(self.nodes)}")
        return self.nodes[name]

    def is_single_consumer(self, name: str) -> bool:
        """Whether everything a node makes is read once at most, outputs of the graph counted as reads."""
        return sum(self.readers.get(value, 0) for value in self.get_node(name).outputs) <= 1


class PatternMatcher:
    """Finds patterns in graphs.

    Example:
        >>> pattern = Pattern()
        >>> pattern.add_node(PatternNode.op("Relu"))
        >>> from pyflame_rt.graph import Graph
        >>> g = Graph("g")
        >>> _ = g.add_input("x", [2]), g.add_node("n", "Relu", ["x"], ["y"]), g.add_output("y", [2])
        >>> [match.get_node("Relu").name for match in PatternMatcher().find_all(g, pattern)]
        ['n']
    """

    def find_all(self, graph: Graph, pattern: Pattern) -> list[PatternMatch]:
        """Every place where the pattern occurs, in the order of their roots; places may overlap."""
        problems = pattern.problems()
        if problems:
            raise InputError("; ".join(problems))
        makers = graph.producers()
        readers: dict[str, int] = {info.name: 1 for info in graph.outputs}
        for node in graph.nodes:
            for name in filter(None, node.inputs):
                readers[name] = readers.get(name, 0) + 1
        return [
            PatternMatch(found, readers)
            for node in graph.topological_sort()
            for found in _matches(pattern, node, makers)
        ]


def _matches(pattern: Pattern, root: Node, makers: Mapping[str, Node]) -> Iterator[dict[str, Node]]:
    """The bindings of a pattern's nodes with its root bound; at most one, since edges say which input is meant."""
    bound = {pattern.root: root}
    if not pattern.nodes[pattern.root].accepts(root):
        return
    pending = [pattern.root]
    while pending:
        target = pending.pop()
        for edge in pattern.edges:
            if edge.target != target:
                continue
            source = _source(edge, bound[target], makers)
            if source is None or not pattern.nodes[edge.source].accepts(source):
                return
            if edge.source not in bound:
                bound[edge.source] = source
                pending.append(edge.source)
            elif bound[edge.source] is not source:
                return
    yield bound


def _source(edge: PatternEdge, target: Node, makers: Mapping[str, Node]) -> Node | None:
    """The node that makes the value an edge ends in, if it makes it as the edge says."""
    name = target.inputs[edge.input] if edge.input < len(target.inputs) else ""
    source = makers.get(name)
    return source if source is not None and source.outputs.index(name) == edge.output else None
