"""Extending a graph: operators called on its values append nodes to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyflame_rt.graph import TensorInfo, TensorType
from pyflame_rt.graph.errors import InputError
from pyflame_rt.ops.core.trace import Tracer
from pyflame_rt.ops.core.value import Value
from pyflame_rt.opt.editor import Editor

if TYPE_CHECKING:
    from pyflame_rt.graph import Graph, ValueType

__all__ = ["Extension"]


class Extension(Tracer):
    """A tracer that writes into a graph that is there already; types of its values are inferred once.

    Example:
        >>> from pyflame_rt.graph import Graph
        >>> from pyflame_rt.ops.core.value import scope
        >>> g = Graph("g")
        >>> _ = g.add_input("x", [2]), g.add_node("n", "Neg", ["x"], ["y"]), g.add_output("y", [2])
        >>> more = Extension(g)
        >>> with scope(more):
        ...     more.output(more.value("y") * 2.0, "z")
        >>> [info.name for info in more.graph.outputs]
        ['y', 'z']
    """

    __slots__ = ("_editor", "_names")

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph.name)
        self.graph = graph
        self._editor = Editor(graph)
        self._names = {*graph.initializers, *graph.types, *(info.name for info in graph.inputs)}
        self._names.update(name for node in graph.nodes for name in (*node.outputs, node.name))

    def fresh(self, hint: str = "v") -> str:
        """A name that neither the graph nor this extension has."""
        name = super().fresh(hint)
        while name in self._names:
            name = super().fresh(hint)
        self._names.add(name)
        return name

    def value(self, name: str) -> Value:
        """A value of the graph."""
        found = self._editor.value(name)
        if found.type is None:
            kind = self.graph.types.get(name)
            if kind is None:
                raise InputError(f"graph {self.graph.name!r} has no value {name!r} of a known type")
            return Value(name, kind)
        return found

    def declare(self, name: str, kind: ValueType | None) -> Value:
        """A further input."""
        if not isinstance(kind, TensorType):
            raise InputError(f"{name!r} is no tensor of a known type")
        self.graph.add_input(TensorInfo(name, type=kind))
        self._names.add(name)
        return Value(name, kind)
