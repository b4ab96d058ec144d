"""A graph under change: fresh names, constants, nodes in running order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.graph import Graph, Node, Tensor
from pyflame_rt.ops.core.inference import infer_types
from pyflame_rt.opt.dead_code import DeadCodeEliminationPass

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyflame_rt.ops.core.registry import Op

__all__ = ["Rewriter"]


class Rewriter:
    """Writes a new graph beside an old one, node by node.

    Example:
        >>> graph = Graph("g")
        >>> _ = graph.add_input("x", [2]), graph.add_output("y", [2])
        >>> writer = Rewriter(graph)
        >>> writer.emit("Neg", ["x"], outputs=["y"]), writer.finish().nodes
        ('y', [y: Neg(x) -> y])
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph.copy()
        self.graph.nodes = []
        self._names = {name for node in graph.nodes for name in (node.name, *node.outputs)}
        self._names |= set(graph.initializers) | {info.name for info in graph.inputs}

    def fresh(self, name: str) -> str:
        """A name that nothing has."""
        found, count = name, 1
        while found in self._names:
            count += 1
            found = f"{name}_{count}"
        self._names.add(found)
        return found

    def constant(self, name: str, array: Any) -> str:
        """Add a constant; its name."""
        made = self.fresh(name)
        self.graph.add_initializer(made, Tensor(np.array(array, order="C")))
        return made

    def emit(
        self,
        op: Op | str,
        inputs: Sequence[str],
        *,
        outputs: Sequence[str] = (),
        name: str = "",
        domain: str = "",
        attributes: Mapping[str, Any] | None = None,
    ) -> str:
        """Add a node; the name of its first output."""
        op_type, domain = (op, domain) if isinstance(op, str) else (op.name, op.domain)
        made = list(outputs) or [self.fresh(f"{name or inputs[0]}/{op_type.lower()}")]
        label = name if name and outputs else made[0]
        self.graph.nodes.append(Node(label, op_type, inputs, made, dict(attributes or {}), domain))
        return made[0]

    def keep(self, node: Node, inputs: Mapping[str, str] | None = None) -> None:
        """Add a node of the old graph, with other inputs where the mapping says so."""
        if inputs:
            node = node.replace(inputs=[inputs.get(name, name) for name in node.inputs])
        self.graph.nodes.append(node)

    def finish(self) -> Graph:
        """The new graph, without constants that nobody reads any more."""
        DeadCodeEliminationPass().run(self.graph)
        live = {name for node in self.graph.nodes for name in node.outputs}
        self.graph.types = {name: kind for name, kind in self.graph.types.items() if name in live}
        infer_types(self.graph)
        return self.graph
