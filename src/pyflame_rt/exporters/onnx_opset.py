"""Which opset a graph is written in.

Nodes are kept in the newest form of their operator, but that form is often far older than the
newest opset: the lowest opset that holds every node reaches the most runtimes.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import onnx
from onnx import defs, helper

from pyflame_rt.graph import (
    AnyType,
    DType,
    Graph,
    MapType,
    Node,
    OptionalType,
    SequenceType,
    TensorType,
    ValueType,
)
from pyflame_rt.graph.errors import UnsupportedFormatError
from pyflame_rt.graph.graph import node_subgraphs
from pyflame_rt.ops.core.registry import find_op
from pyflame_rt.ops.core.upgrade import last_change
from pyflame_rt.ops.onnx.index import ScatterElements, ScatterND
from pyflame_rt.ops.onnx.maxpool import MaxPool
from pyflame_rt.ops.onnx.pool import AveragePool, LpPool
from pyflame_rt.ops.onnx.slicing import Pad, Split

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["attribute_types", "choose_opsets", "fitted_attributes", "ir_version_for"]

# Kept on nodes for our own use; ONNX derives them.
_INTERNAL = {"captured"}
_LOWEST = {"": 13, "ai.onnx.ml": 3}
# Attribute values that older versions lack, or read otherwise (the last window of a ceiling).
_VALUES_SINCE: dict[tuple[str, str], dict[Any, int]] = {
    (AveragePool.name, "ceil_mode"): {1: 22},
    (LpPool.name, "ceil_mode"): {1: 22},
    (MaxPool.name, "ceil_mode"): {1: 22},
    (Pad.name, "mode"): {"wrap": 19},
    (ScatterElements.name, "reduction"): {"max": 18, "min": 18},
    (ScatterND.name, "reduction"): {"max": 18, "min": 18},
}
# Element types by the IR version that brought them.
_TYPES_SINCE_IR = [
    (9, ("float8",)),
    (10, ("int4", "uint4")),
    (11, ("float4e",)),
    (12, ("float8e8m0",)),
    (13, ("int2", "uint2")),
    (14, ("float6e",)),
]


def choose_opsets(graph: Graph, requested: int | None = None) -> dict[str, int]:
    """A version for every domain the graph uses; values should have been typed before."""
    opsets = {"": _LOWEST[""]}
    for current in _all_graphs(graph):
        kinds = _type_labels(current)
        for node in current.nodes:
            version = _lowest(node, kinds) if node.domain in _newest() else _registered(node, graph)
            if "num_outputs" in node.attributes and not _splits_evenly(current, node):
                version = max(version, 18)
            opsets[node.domain] = max(version, opsets.get(node.domain, 1))
    if requested is None:
        return opsets
    if not opsets[""] <= requested <= _newest()[""]:
        raise UnsupportedFormatError(
            f"opset {requested} cannot hold this graph; those from {opsets['']} to {_newest()['']} can"
        )
    return opsets | {"": requested}


def _registered(node: Node, graph: Graph) -> int:
    """The version of a domain that ONNX does not know: the one imported, or that of the operator's form."""
    op = find_op(node.op_type, node.domain)
    return max(graph.opsets.get(node.domain, 1), 1 if op is None else op.since)


def ir_version_for(imports: Sequence[onnx.OperatorSetIdProto], graph: Graph) -> int:
    """The lowest IR version with the given opsets and every element type of the graph."""
    version = helper.find_min_ir_version_for(list(imports), ignore_unknown=True)
    labels = {t.dtype.label for g in _all_graphs(graph) for t in g.initializers.values()}
    labels |= {label for g in _all_graphs(graph) for label in _type_labels(g).values()}
    for since, starts in _TYPES_SINCE_IR:
        if any(start in label for start in starts for label in labels):
            version = max(version, since)
    return version


def fitted_attributes(node: Node, opsets: Mapping[str, int]) -> dict[str, Any]:
    """Attributes as the chosen opset writes them."""
    kept = {name: value for name, value in node.attributes.items() if name not in _INTERNAL}
    if node.op_type == Split.name and not node.domain and opsets[""] < 18:
        kept.pop("num_outputs", None)
    return kept


def attribute_types(node: Node, opsets: Mapping[str, int]) -> dict[str, int]:
    """The AttributeProto types the operator declares, by attribute name."""
    schema = _schema(node.op_type, opsets.get(node.domain, 1), node.domain)
    declared: dict[str, Any] = {} if schema is None else dict(schema.attributes)
    return {name: int(a.type) for name, a in declared.items()}


def _all_graphs(graph: Graph) -> Iterator[Graph]:
    pending = [graph]
    while pending:
        current = pending.pop()
        yield current
        for node in current.nodes:
            pending.extend(node_subgraphs(node))


def _type_labels(graph: Graph) -> dict[str, str]:
    """The type of every value as schemas write it."""
    kinds: dict[str, ValueType] = {info.name: info.type for info in (*graph.inputs, *graph.outputs)}
    kinds |= {name: TensorType(t.dtype) for name, t in graph.initializers.items()}
    kinds |= graph.types
    return {name: label for name, kind in kinds.items() if (label := _label(kind)) is not None}


def _label(kind: ValueType) -> str | None:
    match kind:
        case TensorType(dtype=dtype):
            return f"tensor({_onnx_label(dtype)})"
        case SequenceType(elem=elem):
            inner = _label(elem)
            return None if inner is None else f"seq({inner})"
        case OptionalType(elem=elem):
            inner = _label(elem)
            return None if inner is None else f"optional({inner})"
        case MapType(key=key, value=value):
            inner = _label(value)
            return None if inner is None else f"map({_onnx_label(key)}, {inner})"
        case AnyType():
            return None


def _onnx_label(dtype: DType) -> str:
    return {"float32": "float", "float64": "double"}.get(dtype.label, dtype.label)


def _lowest(node: Node, kinds: Mapping[str, str]) -> int:
    """The lowest version that holds a node; the newest where the schemas know no such form."""
    formal = node.inputs[: len(node.inputs) - int(node.get_attr("captured", 0))]
    least = [_LOWEST.get(node.domain, 1), last_change(node.op_type, node.domain)]
    for name, value in node.attributes.items():
        since = _VALUES_SINCE.get((node.op_type, name), {})
        least.append(since.get(value, 1) if isinstance(value, (int, str)) else 1)
    attributes = frozenset(node.attributes) - _INTERNAL
    if node.op_type == Split.name and not node.domain and "num_outputs" in attributes:
        attributes -= {"num_outputs"}
    inputs = tuple(kinds.get(name, "") for name in formal)
    outputs = tuple(kinds.get(name, "") for name in node.outputs)
    return _first_fit(node.op_type, node.domain, max(least), attributes, inputs, outputs)


def _splits_evenly(graph: Graph, node: Node) -> bool:
    """Before 18 the parts a Split makes by their number alone had to be equal."""
    kind = graph.value_type(node.inputs[0])
    if not isinstance(kind, TensorType) or not kind.shape:
        return False
    size = kind.shape[int(node.get_attr("axis", 0))]
    return isinstance(size, int) and size % len(node.outputs) == 0


@cache
def _first_fit(
    op_type: str, domain: str, least: int, attributes: frozenset[str], inputs: tuple[str, ...], outputs: tuple[str, ...]
) -> int:
    if not defs.has(op_type, domain):
        return least
    for version in range(least, _newest()[domain] + 1):
        schema = _schema(op_type, version, domain)
        if schema is None or schema.deprecated or not attributes <= set(schema.attributes):
            continue
        if (
            schema.min_input <= len(inputs) <= schema.max_input
            and _fit(inputs, schema.inputs)
            and _fit(outputs, schema.outputs)
        ):
            return version
    return _newest()[domain]


def _fit(labels: Sequence[str], formals: Sequence[defs.OpSchema.FormalParameter]) -> bool:
    """Older versions often take fewer element types; what is not known fits."""
    if not formals:
        return True
    return all(not label or label in formals[min(i, len(formals) - 1)].types for i, label in enumerate(labels))


@cache
def _newest() -> dict[str, int]:
    """The newest version of every domain the onnx package knows."""
    found: dict[str, int] = {}
    for schema in defs.get_all_schemas():
        found[schema.domain] = max(schema.since_version, found.get(schema.domain, 1))
    return found | {"": defs.onnx_opset_version()}


@cache
def _schema(op_type: str, version: int, domain: str) -> defs.OpSchema | None:
    try:
        return defs.get_schema(op_type, version, domain)
    except defs.SchemaError:
        return None
