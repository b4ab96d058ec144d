"""DeferredGraph: a graph whose interface is known, and whose nodes are made when somebody first looks at them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyflame_rt.graph.graph import Graph
from pyflame_rt.graph.locks import new_rlock

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyflame_rt.graph.graph import Origin
    from pyflame_rt.graph.info import TensorInfo

__all__ = ["DeferredGraph"]


class DeferredGraph(Graph):
    """What becomes of a graph that keeps its inputs and outputs, made when it is first needed.

    Args:
        like: has the same inputs and outputs.
        origin: of the graph to be made.
        make: gives it.

    Example:
        >>> g = Graph("g")
        >>> _ = g.add_input("x", [2]), g.add_node("n", "Neg", ["x"], ["y"]), g.add_output("y", [2])
        >>> later = DeferredGraph(g, None, g.copy)
        >>> later.is_made, later.nodes, later.is_made
        (False, [n: Neg(x) -> y], True)
    """

    __slots__ = ("_lock", "_made", "_make", "_required")

    def __init__(self, like: Graph, origin: Origin | None, make: Callable[[], Graph]) -> None:
        self._lock = new_rlock()
        self._made: Graph | None = None
        self._make = make
        self._required = like.required_inputs
        self.name, self.doc = like.name, like.doc
        self.inputs, self.outputs = list(like.inputs), list(like.outputs)
        self.opsets, self.metadata = dict(like.opsets), dict(like.metadata)
        self.origin = origin

    @property
    def is_made(self) -> bool:
        """Whether somebody has looked at its nodes."""
        return self._made is not None

    def whole(self) -> Graph:
        """The graph itself."""
        with self._lock:
            if self._made is None:
                self._made = self._make()
            return self._made

    @property
    def nodes(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride] - made when asked for
        """Nodes of the whole graph."""
        return self.whole().nodes

    @property
    def initializers(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride] - made when asked for
        """Initializers of the whole graph."""
        return self.whole().initializers

    @property
    def types(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride] - made when asked for
        """Types of the whole graph."""
        return self.whole().types

    @property
    def required_inputs(self) -> list[TensorInfo]:
        """Inputs without a default."""
        return list(self._required)

    def __reduce__(self) -> Any:
        return _plain, (self.whole(),)

    def __repr__(self) -> str:
        return f"DeferredGraph({self.name!r}, {'made' if self.is_made else 'not made yet'})"


def _plain(graph: Graph) -> Graph:
    return graph
