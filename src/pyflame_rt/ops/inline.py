"""Replace a composite node by the nodes of its body."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pyflame_rt.graph import Node, Tensor, ValueType
from pyflame_rt.ops.evaluate import bind_attributes
from pyflame_rt.ops.trace import trace

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyflame_rt.ops.registry import Op
    from pyflame_rt.ops.value import Value

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
    names = {f"in_{i}": name for i, name in enumerate(node.inputs)}
    copies: list[Node] = []
    for value, name in zip(outputs, node.outputs, strict=False):
        if value is None or not name:
            continue
        if value.ref in names:  # an input handed through, or one value given out twice
            copies.append(Node(fresh(name), "Identity", [names[value.ref]], [name]))
        else:
            names[value.ref] = name
    constants = {names.setdefault(n, fresh(n)): tensor for n, tensor in graph.initializers.items()}
    nodes = []
    for inner in graph.topological_sort():
        made = [names.setdefault(o, fresh(o)) if o else "" for o in inner.outputs]
        nodes.append(inner.replace(name=fresh(node.name), inputs=[names.get(i, i) for i in inner.inputs], outputs=made))
    types = {names[n]: kind for n, kind in graph.types.items() if n in names}
    return Body([*nodes, *copies], constants, types)
