"""Bring hand-built nodes to the newest form of their operators.

Users and older model files write attributes where the newest form has inputs (``Reshape`` with
``shape``, ``ReduceSum`` with ``axes``). Such a node names an attribute its operator does not know;
it is then read as the newest version that did.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyflame_rt.graph import Graph, Node, Tensor
from pyflame_rt.graph.graph import node_subgraphs
from pyflame_rt.ops.core.registry import find_op
from pyflame_rt.ops.core.upgrade import Upgrade, upgrade_node, versions

if TYPE_CHECKING:
    import numpy as np

__all__ = ["normalize"]


def normalize(graph: Graph) -> Graph:
    """The graph with every node in its newest form; the same object when all are.

    Example:
        >>> g = Graph("g")
        >>> _ = g.add_input("x", [2, 3]), g.add_output("y", [6])
        >>> _ = g.add_node("r", "Reshape", ["x"], ["y"], {"shape": [6]})
        >>> normalize(g).nodes[0].inputs[0], len(normalize(g).nodes[0].inputs)
        ('x', 2)
    """
    if not any(_is_old(node) or _has_old_body(node) for node in graph.nodes):
        return graph
    result = graph.copy()
    used = _names(result)
    result.nodes = [new for node in result.nodes for new in _newest(result, _with_new_bodies(node), used)]
    return result


def _is_old(node: Node) -> bool:
    op = find_op(node.op_type, node.domain)
    return op is not None and any(name not in op.signature.attributes for name in node.attributes)


def _has_old_body(node: Node) -> bool:
    return any(normalize(body) is not body for body in node_subgraphs(node))


def _with_new_bodies(node: Node) -> Node:
    new = {name: normalize(value) for name, value in node.attributes.items() if isinstance(value, Graph)}
    return node.replace(attributes={**node.attributes, **new}) if new else node


def _names(graph: Graph) -> set[str]:
    names = {info.name for info in graph.inputs} | set(graph.initializers)
    return names.union(*(node.outputs for node in graph.nodes))


def _newest(graph: Graph, node: Node, used: set[str]) -> list[Node]:
    if not _is_old(node):
        return [node]

    def fresh(hint: str) -> str:
        number = len(used)
        while (name := f"{node.name or node.outputs[0]}/{hint}_{number}") in used:
            number += 1
        used.add(name)
        return name

    def known(name: str) -> np.ndarray[Any, Any] | None:
        tensor = graph.initializers.get(name)
        return None if tensor is None else tensor.raw()

    for version in reversed(versions(node.op_type, node.domain)):
        constants: dict[str, Tensor] = {}
        up = Upgrade(version - 1, fresh, lambda n, a, c=constants: c.__setitem__(n, Tensor(a)), known)
        made = upgrade_node(node, version - 1, up)
        if not any(_is_old(new) for new in made):
            graph.initializers.update(constants)
            return made
    return [node]
