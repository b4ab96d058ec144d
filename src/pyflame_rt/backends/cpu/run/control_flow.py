"""Loops and branches over native bodies: the host iterates, each turn runs the body's plan."""

from __future__ import annotations

from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

from emberharmony import library
from pyflame_rt.backends.base import RunHooks
from pyflame_rt.graph import Graph, Tensor
from pyflame_rt.graph.records import dataclass
from pyflame_rt.ops.core.evaluate import Context

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy as np

    from pyflame_rt.backends.base import Timeline
    from pyflame_rt.opt.specialized_graph import SpecializedNode

__all__ = ["ControlContext", "bind_constants"]


@dataclass(slots=True)
class ControlContext(Context):
    """A context in which subgraphs run as executables of the engine.

    Attributes:
        make: prepares a subgraph.
        bodies: subgraphs prepared so far, shared by the runs of one node.
        timeline: told what every step of the bodies took.
    """

    make: Callable[[Graph], Any] | None = None
    bodies: dict[int, _Body] = field(default_factory=dict)
    timeline: Timeline | None = None

    @classmethod
    def over(cls, make: Callable[[Graph], Any]) -> ControlContext:
        """A context whose subgraphs are prepared by ``make``."""
        return cls(library("numpy"), make=make)

    def fresh(self, timeline: Timeline | None) -> ControlContext:
        """The same bodies, for one run."""
        return ControlContext(self.library, make=self.make, bodies=self.bodies, timeline=timeline)

    def program(self, graph: Graph) -> Any:
        """The prepared form of a subgraph, made once."""
        if self.make is None:
            return Context.program(self, graph)
        found = self.bodies.get(id(graph))
        if found is None:
            found = self.bodies.setdefault(id(graph), _Body(graph, self.make(graph)))
        return found

    def close(self, *, cancel: bool = True) -> None:
        """Free the bodies' plans; ``cancel`` stops runs under way."""
        for body in list(self.bodies.values()):
            body.executable.close(cancel=cancel)
        self.bodies.clear()


@dataclass(slots=True)
class _Body:
    graph: Graph
    executable: Any

    def run(self, inputs: Sequence[Any], context: Context) -> list[Any]:
        """Outputs of the subgraph."""
        names = [info.name for info in self.graph.outputs]
        feeds = {info.name: value for info, value in zip(self.graph.inputs, inputs, strict=True)}
        return self.executable.run(
            feeds, names, RunHooks(check=context.check, timeline=getattr(context, "timeline", None))
        )


def bind_constants(step: SpecializedNode, constants: Mapping[str, np.ndarray[Any, Any]]) -> SpecializedNode:
    """A control-flow node whose subgraphs hold the captured constants themselves, so that plans can pack them."""
    node, captured = step.node, int(step.attributes.get("captured", 0) or 0)
    first = len(node.inputs) - captured
    known = [i for i in range(captured) if node.inputs[first + i] in constants]
    if not known:
        return step
    arrays = {i: constants[node.inputs[first + i]] for i in known}
    inputs = [n for k, n in enumerate(node.inputs) if k - first not in arrays]
    graphs = {name: v for name, v in step.attributes.items() if isinstance(v, Graph)}
    changed: dict[str, Any] = {name: _bound(graph, captured, arrays) for name, graph in graphs.items()}
    changed["captured"] = captured - len(known)
    twin = node.replace(inputs=inputs, attributes={**node.attributes, **changed})
    return replace(step, node=twin, attributes={**step.attributes, **changed})


def _bound(graph: Graph, captured: int, arrays: Mapping[int, np.ndarray[Any, Any]]) -> Graph:
    twin = graph.copy()
    first = len(graph.inputs) - captured
    twin.inputs = [info for k, info in enumerate(twin.inputs) if k - first not in arrays]
    for i, array in arrays.items():
        twin.initializers[graph.inputs[first + i].name] = Tensor(array)
    return twin
