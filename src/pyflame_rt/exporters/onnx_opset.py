"""Which opset a graph is written in.

Nodes are kept in the newest form of their operator, but that form is often far older than the
newest opset: the lowest opset that holds every node reaches the most runtimes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from onnx import defs

from pyflame_rt.graph import DType, Graph, Node, TensorType
from pyflame_rt.graph.errors import UnsupportedFormatError
from pyflame_rt.graph.graph import node_subgraphs
from pyflame_rt.ops.upgrade import last_change

__all__ = ["choose_opsets", "fitted_attributes"]

# Kept on nodes for our own use; ONNX derives them.
_INTERNAL = {"captured"}
_LOWEST = {"": 13, "ai.onnx.ml": 3}


def choose_opsets(graph: Graph, requested: int | None = None) -> dict[str, int]:
    """A version for every domain the graph uses."""
    nodes = list(_all_nodes(graph))
    opsets = {domain: _choose(domain, nodes) for domain in {"", *(node.domain for _, node in nodes)}}
    if requested is not None:
        if requested < opsets[""]:
            raise UnsupportedFormatError(f"opset {requested} cannot hold this graph; the lowest that can is {opsets['']}")
        opsets[""] = requested
    return opsets


def fitted_attributes(node: Node, opsets: dict[str, int]) -> dict[str, Any]:
    """Attributes as the chosen opset writes them."""
    kept = {name: value for name, value in node.attributes.items() if name not in _INTERNAL}
    schema = _schema(node, opsets.get(node.domain, 1))
    if schema is not None and node.op_type == "Split" and "num_outputs" not in schema.attributes:
        kept.pop("num_outputs", None)
    return kept


def _choose(domain: str, nodes: list[tuple[Graph, Node]]) -> int:
    own = [(graph, node) for graph, node in nodes if node.domain == domain]
    if domain not in _known_domains():
        return 1
    newest = defs.onnx_opset_version() if domain == "" else _newest(domain)
    for version in range(_LOWEST.get(domain, 1), newest + 1):
        if all(_fits(graph, node, version) for graph, node in own):
            return version
    return newest


def _all_nodes(graph: Graph) -> Iterator[tuple[Graph, Node]]:
    pending = [graph]
    while pending:
        current = pending.pop()
        for node in current.nodes:
            yield current, node
            pending.extend(node_subgraphs(node))


def _known_domains() -> set[str]:
    return {schema.domain for schema in defs.get_all_schemas()}


def _newest(domain: str) -> int:
    return max(schema.since_version for schema in defs.get_all_schemas() if schema.domain == domain)


def _schema(node: Node, version: int) -> defs.OpSchema | None:
    try:
        return defs.get_schema(node.op_type, version, node.domain)
    except defs.SchemaError:
        return None


def _fits(graph: Graph, node: Node, version: int) -> bool:
    schema = _schema(node, version)
    if schema is None:
        return not defs.has(node.op_type, node.domain)
    if version < last_change(node.op_type, node.domain) or schema.deprecated:
        return False
    allowed = set(schema.attributes) | _INTERNAL | ({"num_outputs"} if node.op_type == "Split" else set())
    count = len(node.inputs) - int(node.get_attr("captured", 0))
    return set(node.attributes) <= allowed and count <= schema.max_input and _types_fit(graph, node, schema, count)


def _types_fit(graph: Graph, node: Node, schema: defs.OpSchema, count: int) -> bool:
    """Older versions often take fewer element types."""
    if not schema.inputs:
        return True
    for i, name in enumerate(node.inputs[:count]):
        kind = graph.value_type(name) if name else None
        formal = schema.inputs[min(i, len(schema.inputs) - 1)]
        if isinstance(kind, TensorType) and f"tensor({_onnx_label(kind.dtype)})" not in formal.types:
            return False
    return True


def _onnx_label(dtype: DType) -> str:
    return {"float32": "float", "float64": "double"}.get(dtype.label, dtype.label)
