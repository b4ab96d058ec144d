"""GraphProto to Graph: nodes in their newest form, functions inlined, captures made explicit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.graph import AnyType, Attribute, Graph, Node, Tensor, TensorInfo
from pyflame_rt.graph.errors import InvalidModelError, UnsupportedOperatorError
from pyflame_rt.graph.graph import node_subgraphs
from pyflame_rt.importers.onnx_gradient import expand_gradient, is_gradient
from pyflame_rt.importers.onnx_tensor import dense_from_sparse, tensor_from_proto
from pyflame_rt.importers.onnx_types import info_from_proto, text_of, type_from_proto
from pyflame_rt.ops.core.registry import find_op
from pyflame_rt.ops.core.upgrade import Upgrade, last_change, upgrade_node
from pyflame_rt.ops.onnx.creation import Constant
from pyflame_rt.ops.onnx.slicing import Split

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    import onnx

__all__ = ["GraphReader"]

_MAX_DEPTH = 64
_MAX_INLINED = 1_000_000


def _check_form(node: Node, opsets: Mapping[str, int]) -> None:
    """An operator that users registered means what it has meant since its version, not what it did before."""
    op = find_op(node.op_type, node.domain)
    if op is None or not node.domain or node.domain.startswith("ai.onnx"):  # ONNX's own have upgrades
        return
    asked = opsets.get(node.domain, op.since)
    if asked < op.since:
        raise UnsupportedOperatorError(
            f"node {node.name!r}: the model imports version {asked} of domain {node.domain!r}, and operator "
            f"{node.full_name} is registered in the form it took in version {op.since}; register the older one"
        )


class Kind:
    """Kinds of attributes, numbered as in AttributeProto."""

    FLOAT, INT, STRING, TENSOR, GRAPH, FLOATS, INTS, STRINGS, TENSORS, GRAPHS = range(1, 11)
    SPARSE_TENSOR, TYPE_PROTO = 11, 13


class GraphReader:
    """Reads the graph of one model."""

    def __init__(self, model: onnx.ModelProto, base_dir: Path | None = None) -> None:
        self.opsets = {_domain(o.domain): o.version for o in model.opset_import} or {"": 1}
        self.functions = {(_domain(f.domain), text_of(f.name), text_of(f.overload)): f for f in model.functions}
        self.base_dir = base_dir
        self._used: set[str] = set()
        self._count = 0
        self._sizes: dict[tuple[str, str, str], int] = {}
        self._inlined = 0
        self._collect_names(model)

    def _collect_names(self, model: onnx.ModelProto) -> None:
        stack = [model.graph]
        while stack:
            graph = stack.pop()
            self._used.update(text_of(v.name) for v in (*graph.input, *graph.initializer))
            for node in graph.node:
                self._used.update(map(text_of, node.output))
                stack.extend(a.g for a in node.attribute if a.HasField("g"))
                stack.extend(g for a in node.attribute for g in a.graphs)

    def fresh(self, hint: str) -> str:
        """A value name the model does not use."""
        while True:
            self._count += 1
            name = f"{hint}__{self._count}"
            if name not in self._used:
                self._used.add(name)
                return name

    def read(self, proto: onnx.GraphProto) -> Graph:
        """The whole graph."""
        return self._graph(proto, self.opsets, {}, {}, 0)

    def _graph(
        self,
        proto: onnx.GraphProto,
        opsets: Mapping[str, int],
        rename: Mapping[str, str],
        refs: Mapping[str, onnx.AttributeProto],
        depth: int,
    ) -> Graph:
        if depth > _MAX_DEPTH:
            raise InvalidModelError(f"subgraphs or functions are nested more than {_MAX_DEPTH} deep")
        graph = Graph(text_of(proto.name))
        graph.doc = text_of(proto.doc_string)
        local = dict(rename)
        if depth and rename:
            self._rename_locals(proto, local)
        for init in proto.initializer:
            name = text_of(init.name)
            graph.initializers[local.get(name, name)] = tensor_from_proto(init, self.base_dir)
        for sparse in proto.sparse_initializer:
            name = text_of(sparse.values.name)
            graph.initializers[local.get(name, name)] = dense_from_sparse(sparse)
        graph.inputs = [_renamed(info_from_proto(v), local) for v in proto.input]
        graph.outputs = [_renamed(info_from_proto(v), local) for v in proto.output]
        for info in map(info_from_proto, proto.value_info):
            if not isinstance(info.type, AnyType):
                graph.types[local.get(info.name, info.name)] = info.type
        for node in proto.node:
            self._node(graph, node, opsets, local, refs, depth)
        return graph

    def _rename_locals(self, proto: onnx.GraphProto, local: dict[str, str]) -> None:
        """Inside an inlined function even subgraph-local names must stay unique."""
        made = [v.name for v in (*proto.input, *proto.initializer)] + [o for n in proto.node for o in n.output if o]
        for name in map(text_of, made):
            local[name] = self.fresh(name)

    def _node(
        self,
        graph: Graph,
        proto: onnx.NodeProto,
        opsets: Mapping[str, int],
        rename: Mapping[str, str],
        refs: Mapping[str, onnx.AttributeProto],
        depth: int,
    ) -> None:
        domain = _domain(proto.domain)
        function = self._function(proto)
        if function is not None:
            self._inline(graph, proto, function, rename, refs, depth)
            return
        attributes = self._attributes(proto, opsets, rename, refs, depth)
        inputs = [rename.get(name, name) for name in map(text_of, proto.input)]
        outputs = [rename.get(name, name) for name in map(text_of, proto.output)]
        # Nodes with subgraphs keep their places: captures are appended after the formal inputs.
        while inputs and not inputs[-1] and not any(a.HasField("g") for a in proto.attribute):
            inputs.pop()
        node = Node(text_of(proto.name), text_of(proto.op_type), inputs, outputs, attributes, domain)
        if domain not in opsets and domain == "":
            raise InvalidModelError(
                f"node {proto.name!r} ({proto.op_type}): the model imports no opset for its operators"
            )
        if domain == "" and opsets[domain] < 1:
            raise InvalidModelError(
                f"node {proto.name!r} ({proto.op_type}): the model imports opset {opsets[domain]}; they begin at 1"
            )
        _check_form(node, opsets)
        for current in self._upgraded(graph, node, opsets.get(domain, 1)):
            self._place(graph, current)

    def _upgraded(self, graph: Graph, node: Node, version: int) -> list[Node]:
        find_op(node.op_type, node.domain)  # loads the families, and with them the upgrades
        if last_change(node.op_type, node.domain) <= version:
            return [node]

        def find(name: str) -> np.ndarray[Any, Any] | None:
            tensor = graph.initializers.get(name)
            return None if tensor is None else tensor.raw()

        up = Upgrade(version, self.fresh, lambda name, array: graph.initializers.__setitem__(name, Tensor(array)), find)
        try:
            return upgrade_node(node, version, up)
        except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
            # Upgrades take for granted what the operator's old schema says of inputs and attributes.
            raise InvalidModelError(
                f"node {node.name!r} ({node.full_name}) is no {node.op_type} of opset {version}: {error}"
            ) from error

    def _place(self, graph: Graph, node: Node) -> None:
        if node.op_type == Constant.name and not node.domain and node.outputs:
            graph.initializers[node.outputs[0]] = constant_tensor(node)
            return
        if node.op_type == Split.name and not node.domain and len(node.inputs) < 2 and not node.has_attr("num_outputs"):
            node = node.replace(attributes={**node.attributes, "num_outputs": len(node.outputs)})
        if is_gradient(node):
            expand_gradient(graph, node, self.fresh)
            return
        graph.nodes.append(with_captures(node))

    # ------------------------------------------------------------------ attributes

    def _attributes(
        self,
        proto: onnx.NodeProto,
        opsets: Mapping[str, int],
        rename: Mapping[str, str],
        refs: Mapping[str, onnx.AttributeProto],
        depth: int,
    ) -> dict[str, Attribute]:
        result: dict[str, Attribute] = {}
        for attribute in proto.attribute:
            source = attribute
            if attribute.ref_attr_name:
                if attribute.ref_attr_name not in refs:
                    continue
                source = refs[attribute.ref_attr_name]
            result[text_of(attribute.name)] = self._attribute(source, opsets, rename, refs, depth)
        return result

    def _attribute(
        self,
        proto: onnx.AttributeProto,
        opsets: Mapping[str, int],
        rename: Mapping[str, str],
        refs: Mapping[str, onnx.AttributeProto],
        depth: int,
    ) -> Attribute:
        match proto.type:
            case Kind.GRAPH:
                return self._graph(proto.g, opsets, rename, refs, depth + 1)
            case Kind.GRAPHS:
                return [self._graph(g, opsets, rename, refs, depth + 1) for g in proto.graphs]
            case Kind.TENSOR:
                return tensor_from_proto(proto.t, self.base_dir)
            case Kind.TENSORS:
                return [tensor_from_proto(t, self.base_dir) for t in proto.tensors]
            case Kind.SPARSE_TENSOR:
                return dense_from_sparse(proto.sparse_tensor)
            case Kind.TYPE_PROTO:
                return type_from_proto(proto.tp)
            case Kind.STRING:
                return proto.s.decode("utf-8", "surrogateescape")
            case Kind.STRINGS:
                return [s.decode("utf-8", "surrogateescape") for s in proto.strings]
            case Kind.FLOAT:
                return proto.f
            case Kind.INT:
                return proto.i
            case Kind.FLOATS:
                return list(proto.floats)
            case Kind.INTS:
                return list(proto.ints)
            case _:
                raise InvalidModelError(f"attribute {proto.name!r} has no usable type ({proto.type})")

    # ------------------------------------------------------------------ functions

    def _inline(
        self,
        graph: Graph,
        call: onnx.NodeProto,
        function: onnx.FunctionProto,
        rename: Mapping[str, str],
        refs: Mapping[str, onnx.AttributeProto],
        depth: int,
    ) -> None:
        if depth > _MAX_DEPTH:
            raise InvalidModelError(f"function {function.name!r} is nested more than {_MAX_DEPTH} deep")
        self._inlined += len(function.node)
        if max(self._inlined, self._inlined_size(function, 0)) > _MAX_INLINED:
            raise InvalidModelError(f"function {function.name!r} stands for more than {_MAX_INLINED} nodes")
        given = [rename.get(name, name) for name in map(text_of, call.input)]
        inner = dict(zip(map(text_of, function.input), [*given, *[""] * len(function.input)], strict=False))
        for formal, actual in zip(map(text_of, function.output), map(text_of, call.output), strict=False):
            if actual:
                inner[formal] = rename.get(actual, actual)
        for node in function.node:
            for name in map(text_of, node.output):
                if name and name not in inner:
                    inner[name] = self.fresh(name)
        bound = {a.name: a for a in function.attribute_proto}
        for attribute in call.attribute:
            source = refs.get(attribute.ref_attr_name) if attribute.ref_attr_name else attribute
            if source is not None:
                bound[attribute.name] = source
        opsets = {_domain(o.domain): o.version for o in function.opset_import} or self.opsets
        for node in function.node:
            self._node(graph, node, opsets, inner, bound, depth + 1)

    def _function(self, proto: onnx.NodeProto) -> onnx.FunctionProto | None:
        """The function a node calls, or None."""
        return self.functions.get((_domain(proto.domain), text_of(proto.op_type), text_of(proto.overload)))

    def _inlined_size(self, function: onnx.FunctionProto, depth: int) -> int:
        """How many nodes a call becomes: functions that call others twice grow like 2^n."""
        key = (function.domain, function.name, function.overload)
        if key not in self._sizes:
            if depth > _MAX_DEPTH:
                raise InvalidModelError(f"function {function.name!r} is nested more than {_MAX_DEPTH} deep")
            called = [self._function(node) for node in function.node]
            self._sizes[key] = sum(1 if f is None else self._inlined_size(f, depth + 1) for f in called)
        return self._sizes[key]


def constant_tensor(node: Node) -> Tensor:
    """The tensor a Constant node stands for, whichever attribute holds it."""
    for name, value in node.attributes.items():
        match name, value:
            case (("value" | "sparse_value"), Tensor()):
                return value
            case "value_float", _:
                return Tensor(np.asarray(value, dtype=np.float32))
            case "value_floats", _:
                return Tensor(np.asarray(value, dtype=np.float32))
            case (("value_int" | "value_ints"), _):
                return Tensor(np.asarray(value, dtype=np.int64))
            case "value_string", _:
                return Tensor(np.asarray(value, dtype=object))
            case "value_strings", _:
                return Tensor(np.asarray(value, dtype=object))
            case _:
                continue
    raise InvalidModelError(f"Constant node {node.name!r} making {node.outputs[0]!r} holds no value")


def with_captures(node: Node) -> Node:
    """Make what subgraphs read from outside explicit: inputs of the node and of each subgraph."""
    bodies = list(node_subgraphs(node))
    if not bodies:
        return node
    captured = list(dict.fromkeys(name for body in bodies for name in _free_names(body)))
    for body in bodies:
        body.inputs.extend(TensorInfo(name, type=AnyType()) for name in captured)
    return node.replace(inputs=[*node.inputs, *captured], attributes={**node.attributes, "captured": len(captured)})


def _free_names(graph: Graph) -> Iterator[str]:
    made = {info.name for info in graph.inputs} | set(graph.initializers)
    made.update(output for node in graph.nodes for output in node.outputs)
    read: Iterable[str] = [n for node in graph.nodes for n in node.inputs] + [info.name for info in graph.outputs]
    yield from (name for name in dict.fromkeys(read) if name and name not in made)


def _renamed(info: TensorInfo, rename: Mapping[str, str]) -> TensorInfo:
    info.name = rename.get(info.name, info.name)
    return info


def _domain(domain: str | bytes) -> str:
    name = text_of(domain)
    return "" if name == "ai.onnx" else name
