"""Replace operators of our own domain by their bodies, which are ONNX operators."""

from __future__ import annotations

from pyflame_rt.graph import Graph, Node
from pyflame_rt.graph.errors import UnsupportedOperatorError
from pyflame_rt.graph.graph import node_subgraphs
from pyflame_rt.ops.evaluate import bind_attributes, where
from pyflame_rt.ops.inference import infer_types
from pyflame_rt.ops.registry import find_op
from pyflame_rt.ops.trace import trace
from pyflame_rt.ops.value import Value

__all__ = ["inline_own_operators"]

OWN_DOMAIN = "pyflame"


def inline_own_operators(graph: Graph) -> Graph:
    """A graph without operators of the domain ``pyflame``; the given one when it has none."""
    if not any(node.domain == OWN_DOMAIN for node in _walk(graph)):
        return graph
    result = graph.copy()
    infer_types(result)
    pending = list(result.nodes)
    result.nodes = []
    while pending:
        node = pending.pop(0)
        if node.domain == OWN_DOMAIN:
            pending[:0] = _body(result, node)
        else:
            result.nodes.append(node)
    return result


def _walk(graph: Graph) -> list[Node]:
    nodes, pending = [], [graph]
    while pending:
        current = pending.pop()
        nodes += current.nodes
        for node in current.nodes:
            pending.extend(node_subgraphs(node))
    return nodes


def _body(graph: Graph, node: Node) -> list[Node]:
    op = find_op(node.op_type, node.domain)
    if op is None or not op.composite:
        raise UnsupportedOperatorError(f"{where(node)} has no form in ONNX operators, so the graph cannot be exported")
    values = []
    for name in node.inputs:
        kind = graph.value_type(name) if name else None
        tensor = graph.initializers.get(name)
        values.append(Value(name, kind, None if tensor is None else tensor.raw()) if name else None)
    body, outputs = trace(op, values, bind_attributes(node, op))
    prefix = node.outputs[0]
    names = {f"in_{i}": name for i, name in enumerate(node.inputs)}
    names |= {value.ref: out for value, out in zip(outputs, node.outputs, strict=False) if value is not None and out}
    for name, tensor in body.initializers.items():
        graph.initializers[names.setdefault(name, f"{prefix}/{name}")] = tensor
    placed = []
    for inner in body.topological_sort():
        fresh = [names.setdefault(o, f"{prefix}/{o}") if o else "" for o in inner.outputs]
        inputs = [names.get(i, i) for i in inner.inputs]
        placed.append(inner.replace(name=f"{prefix}/{inner.name}", inputs=inputs, outputs=fresh))
    inverse = {new: old for old, new in names.items()}
    for inner in placed:
        for out in inner.outputs:
            kind = body.types.get(inverse.get(out, out))
            if kind is not None:
                graph.types.setdefault(out, kind)
    return placed
