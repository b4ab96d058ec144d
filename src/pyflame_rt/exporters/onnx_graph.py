"""Graph to GraphProto: captures vanish again, names are unique across scopes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import onnx

from pyflame_rt.exporters.onnx_opset import attribute_types, fitted_attributes
from pyflame_rt.exporters.onnx_proto import attribute_to_proto, info_to_proto, tensor_to_proto
from pyflame_rt.graph import AnyType, Graph, Node, TensorInfo, ValueType
from pyflame_rt.graph.graph import node_subgraphs
from pyflame_rt.ops.onnx.cast import Identity

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyflame_rt.exporters.onnx_data import DataFile

__all__ = ["GraphWriter"]


class GraphWriter:
    """Writes one model's graph.

    In our form a subgraph gets what it captures as its last inputs, under names of its own; in
    ONNX it reads the outer values by their names, which its own names must not hide.
    """

    def __init__(self, graph: Graph, opsets: Mapping[str, int], data: DataFile | None = None) -> None:
        self.graph = graph
        self.opsets = opsets
        self._tensor = tensor_to_proto if data is None else data.tensor
        self._used = set(_all_names(graph))

    def write(self, types: Mapping[str, ValueType]) -> onnx.GraphProto:
        """The whole graph; ``types`` says what its outputs are where the graph itself does not."""
        proto = self._graph(self.graph, self.graph.inputs, {}, frozenset())
        for info, written in zip(self.graph.outputs, proto.output, strict=True):
            if isinstance(info.type, AnyType) and info.name in types:
                written.CopyFrom(info_to_proto(TensorInfo(info.name, type=types[info.name])))
        return proto

    def _graph(
        self, graph: Graph, inputs: Iterable[TensorInfo], bound: Mapping[str, str], outside: frozenset[str]
    ) -> onnx.GraphProto:
        rename = {"": "", **bound}
        for name in _made(graph):
            if name in outside and name not in bound:
                rename[name] = self._fresh(name)
        inside = outside.union(rename.get(name, name) for name in _made(graph))
        proto = onnx.GraphProto(name=graph.name or "graph", doc_string=graph.doc)
        for name, tensor in graph.initializers.items():
            if name not in bound:
                proto.initializer.append(self._tensor(rename.get(name, name), tensor))
        proto.input.extend(_info(info, rename) for info in inputs)
        proto.node.extend(self._node(node, rename, inside) for node in _in_order(graph))
        for info in graph.outputs:
            proto.output.append(_info(info, self._output(proto, info.name, rename, bound)))
        declared = {info.name for info in (*graph.inputs, *graph.outputs)} | graph.initializers.keys()
        for name, kind in graph.types.items():
            if name not in declared and not isinstance(kind, AnyType):
                proto.value_info.append(_info(TensorInfo(name, type=kind), rename))
        return proto

    def _output(
        self, proto: onnx.GraphProto, name: str, rename: Mapping[str, str], bound: Mapping[str, str]
    ) -> Mapping[str, str]:
        """A subgraph must make its outputs itself: one that hands on a captured value copies it."""
        if name not in bound:
            return rename
        fresh = self._fresh(name)
        proto.node.add(op_type=Identity.name, name=fresh, input=[bound[name]], output=[fresh])
        return {name: fresh}

    def _node(self, node: Node, rename: Mapping[str, str], inside: frozenset[str]) -> onnx.NodeProto:
        captured = int(node.get_attr("captured", 0))
        inputs = [rename.get(name, name) for name in node.inputs]
        formal, outer = inputs[: len(inputs) - captured], inputs[len(inputs) - captured :]
        proto = onnx.NodeProto(op_type=node.op_type, name=node.name, domain=node.domain, input=formal)
        proto.output.extend(rename.get(name, name) for name in node.outputs)
        kinds = attribute_types(node, self.opsets)
        for name, value in fitted_attributes(node, self.opsets).items():
            proto.attribute.append(self._attribute(name, value, outer, inside, kinds.get(name)))
        return proto

    def _attribute(
        self, name: str, value: Any, outer: list[str], inside: frozenset[str], kind: int | None
    ) -> onnx.AttributeProto:
        if isinstance(value, Graph):
            proto = onnx.AttributeProto(name=name, type=onnx.AttributeProto.GRAPH)
            proto.g.CopyFrom(self._body(value, outer, inside))
            return proto
        if isinstance(value, (list, tuple)) and value and isinstance(value[0], Graph):
            bodies = [self._body(body, outer, inside) for body in value]
            return onnx.AttributeProto(name=name, type=onnx.AttributeProto.GRAPHS, graphs=bodies)
        return attribute_to_proto(name, value, kind)

    def _body(self, graph: Graph, outer: list[str], inside: frozenset[str]) -> onnx.GraphProto:
        formal = len(graph.inputs) - len(outer)
        names = [info.name for info in graph.inputs[formal:]]
        return self._graph(graph, graph.inputs[:formal], dict(zip(names, outer, strict=True)), inside)

    def _fresh(self, name: str) -> str:
        count = 1
        while f"{name}__{count}" in self._used:
            count += 1
        self._used.add(f"{name}__{count}")
        return f"{name}__{count}"


def _made(graph: Graph) -> Iterable[str]:
    yield from (info.name for info in graph.inputs)
    yield from graph.initializers
    for node in graph.nodes:
        yield from filter(None, node.outputs)


def _all_names(graph: Graph) -> Iterable[str]:
    pending = [graph]
    while pending:
        current = pending.pop()
        yield from _made(current)
        for node in current.nodes:
            pending.extend(node_subgraphs(node))


def _in_order(graph: Graph) -> list[Node]:
    """The nodes as they are listed where that is an order to run them in; sorted otherwise."""
    pending = {name for node in graph.nodes for name in node.outputs}
    for node in graph.nodes:
        if any(name in pending for name in node.inputs if name):
            return graph.topological_sort()
        pending.difference_update(node.outputs)
    return graph.nodes


def _info(info: TensorInfo, rename: Mapping[str, str]) -> onnx.ValueInfoProto:
    return info_to_proto(TensorInfo(rename.get(info.name, info.name), type=info.type))
