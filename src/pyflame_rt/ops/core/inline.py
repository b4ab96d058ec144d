"""Replace a composite node by the nodes of its body."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pyflame_rt.graph import Node, Tensor, ValueType
from pyflame_rt.ops.core.evaluate import bind_attributes
from pyflame_rt.ops.core.trace import trace

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyflame_rt.ops.core.registry import Op
    from pyflame_rt.ops.core.value import Value

__all__ = ["Body", "instantiate"]


class Body(NamedTuple):
    """The nodes that stand for one composite node, with the constants they need."""

    nodes: list[Node]
    constants: dict[str, Tensor]
    types: dict[str, ValueType]


def instantiate(node: Node, op: Op, inputs: Sequence[Value | None], fresh: Callable[[str], str]) -> Body:
    """The body of ``op`` for these input types, its values named apart from everything else.

    Args:
        node: the composite; the last nodes of the body make its outputs under their names.
        op: its operator.
        inputs: types (and contents, where known) of the node's inputs.
        fresh: gives a name nobody uses from a hint.
    """
    graph, outputs = trace(op, inputs, bind_attributes(node, op))
    names = {f"in_{i}": name for i, name in enumerate(node.inputs)} | {"": ""}
    copied: list[tuple[str, str]] = []
    for value, name in zip(outputs, node.outputs, strict=False):
        if value is None or not name:
            continue
        if value.ref in names or value.ref in graph.initializers:
            copied.append((value.ref, name))  # handed on as it came in, given out twice, or a constant
        else:
            names[value.ref] = name

    def place(name: str) -> str:
        if name not in names:
            names[name] = fresh(name)
        return names[name]

    constants = {place(name): tensor for name, tensor in graph.initializers.items()}
    nodes = [
        inner.replace(name=fresh(node.name), inputs=map(place, inner.inputs), outputs=map(place, inner.outputs))
        for inner in graph.topological_sort()
    ]
    nodes += [Node(fresh(node.name), "Identity", [place(source)], [name]) for source, name in copied]
    types = {names[name]: kind for name, kind in graph.types.items() if name in names}
    return Body(nodes, constants, types)
