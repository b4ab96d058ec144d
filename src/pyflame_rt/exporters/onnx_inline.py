"""Replace operators of our own domain, and those added by functions, by their bodies, which are ONNX operators."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from pyflame_rt.exporters.onnx_complex import has_complex, may_hold_complex, without_complex
from pyflame_rt.graph import Graph, Node
from pyflame_rt.graph.errors import UndeterminedError, UnsupportedOperatorError
from pyflame_rt.graph.graph import node_subgraphs
from pyflame_rt.ops.core.evaluate import where
from pyflame_rt.ops.core.inference import infer_types
from pyflame_rt.ops.core.inline import instantiate
from pyflame_rt.ops.core.registry import find_op
from pyflame_rt.ops.core.value import Value
from pyflame_rt.registry import was_added

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["inline_own_operators", "typed_copy"]

OWN_DOMAIN = "pyflame"


def typed_copy(graph: Graph) -> Graph:
    """A copy, subgraphs included, in which every value that can be typed is."""
    twin = _deep_copy(graph)
    infer_types(twin)
    return twin


def inline_own_operators(graph: Graph) -> Graph:
    """A graph without operators of ours whose bodies other runtimes know; the given one when it has none.

    These are the operators of the domain ``pyflame`` and those that were added as functions over operators. An added
    one with a Python kernel stays where it has a domain of its own, as ONNX has it; under a bare name it is refused.
    """
    if not any(_opens(node) for node in _walk(graph)) and not may_hold_complex(graph):
        return graph
    result = typed_copy(graph)
    used = {name for node in _walk(result) for name in (*node.inputs, *node.outputs)}
    if has_complex(result):
        without_complex(result, lambda node, op, values: instantiate(node, op, values, lambda hint: _fresh(hint, used)))
    _inline(result, used)
    return result


def _inline(graph: Graph, used: set[str]) -> None:
    pending, done = deque(graph.nodes), []
    while pending:
        node = pending.popleft()
        if _opens(node):
            pending.extendleft(reversed(_body(graph, node, used)))
            continue
        for body in node_subgraphs(node):
            _inline(body, used)
        done.append(node)
    graph.nodes = done


def _opens(node: Node) -> bool:
    """True for a node that must not reach the file as it is."""
    if node.domain == OWN_DOMAIN:
        return True
    if not was_added(node.op_type, node.domain):
        return False
    op = find_op(node.op_type, node.domain)
    return not node.domain or (op is not None and op.composite)


def _walk(graph: Graph) -> Iterator[Node]:
    pending = [graph]
    while pending:
        current = pending.pop()
        yield from current.nodes
        pending.extend(current.subgraphs())


def _deep_copy(graph: Graph) -> Graph:
    twin = graph.copy()
    twin.nodes = [_deep_node(node) if any(True for _ in node_subgraphs(node)) else node for node in twin.nodes]
    return twin


def _deep_node(node: Node) -> Node:
    return node.replace(attributes={name: _deep_value(value) for name, value in node.attributes.items()})


def _deep_value(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_deep_value(item) for item in value]
    return _deep_copy(value) if isinstance(value, Graph) else value


def _body(graph: Graph, node: Node, used: set[str]) -> list[Node]:
    """The nodes that stand for a node, their constants and types put into the graph."""
    op = find_op(node.op_type, node.domain)
    if op is None or not op.composite:
        raise _refusal(node, "it has no form in ONNX operators" + _advice(node))
    values = []
    for name in node.inputs:
        tensor = graph.initializers.get(name)
        known = None if tensor is None else tensor.raw()
        values.append(Value(name, graph.value_type(name), known) if name else None)
    try:
        body = instantiate(node, op, values, lambda hint: _fresh(f"{node.outputs[0]}/{hint}", used))
    except UndeterminedError as error:
        raise _refusal(node, f"{error}") from error
    graph.initializers.update(body.constants)
    graph.types = {**body.types, **graph.types}
    return body.nodes


def _advice(node: Node) -> str:
    added = was_added(node.op_type, node.domain)
    return ". State it as a function over operators, or use it in a domain of its own" if added else ""


def _refusal(node: Node, reason: str) -> UnsupportedOperatorError:
    return UnsupportedOperatorError(f"{where(node)} cannot be exported to ONNX: {reason}")


def _fresh(name: str, used: set[str]) -> str:
    result, count = name, 1
    while result in used:
        count += 1
        result = f"{name}_{count}"
    used.add(result)
    return result
