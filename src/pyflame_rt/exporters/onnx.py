"""Graph to ONNX."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import onnx
from onnx import helper

from pyflame_rt.exporters.onnx_inline import inline_own_operators
from pyflame_rt.exporters.onnx_opset import choose_opsets, fitted_attributes
from pyflame_rt.exporters.onnx_proto import attribute_to_proto, info_to_proto, tensor_to_proto
from pyflame_rt.graph import AnyType, Graph, Node, TensorInfo, verify
from pyflame_rt.graph.errors import UnsupportedFormatError

__all__ = ["export_onnx", "onnx_model"]

# Protobuf cannot hold 2 GiB; weights go to a file of their own well before.
_MAX_INLINE = 1 << 30


def export_onnx(
    graph: Graph, path: str | os.PathLike[str], *, opset: int | None = None, external_data: bool | None = None
) -> None:
    """Write a graph as an .onnx file that other runtimes read.

    Args:
        graph: the model.
        path: the file to write.
        opset: version of ai.onnx; the lowest that holds every node unless given.
        external_data: keep weights in ``<name>.data`` beside the file; from 1 GiB on unless told.

    Example:
        >>> import tempfile
        >>> g = Graph("g")
        >>> _ = g.add_input("x", [2]), g.add_node("n", "Relu", ["x"], ["y"]), g.add_output("y", [2])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     export_onnx(g, folder + "/g.onnx")
        ...     onnx.load(folder + "/g.onnx").graph.node[0].op_type
        'Relu'
    """
    target = Path(path)
    model = onnx_model(graph, opset=opset)
    total = sum(tensor.size_bytes for tensor in graph.initializers.values())
    if external_data or (external_data is None and total > _MAX_INLINE):
        onnx.save_model(model, str(target), save_as_external_data=True, location=f"{target.name}.data")
        return
    try:
        data = model.SerializeToString()
    except ValueError as error:
        raise UnsupportedFormatError(f"{target.name}: too large for one file; use external_data=True") from error
    scratch = target.with_name(f".{target.name}.{os.getpid()}")
    scratch.write_bytes(data)
    os.replace(scratch, target)


def onnx_model(graph: Graph, *, opset: int | None = None) -> onnx.ModelProto:
    """A graph as a ModelProto."""
    verify(graph)
    ready = inline_own_operators(graph)
    opsets = choose_opsets(ready, opset)
    imports = [helper.make_opsetid(domain, version) for domain, version in sorted(opsets.items())]
    meta = graph.metadata
    model = helper.make_model(
        _graph_proto(ready, opsets, 0),
        opset_imports=imports,
        producer_name=meta.get("producer_name") or "pyflame",
        producer_version=meta.get("producer_version", ""),
        domain=meta.get("domain", ""),
        doc_string=meta.get("description", ""),
    )
    model.model_version = int(meta.get("version") or 0)
    model.ir_version = helper.find_min_ir_version_for(imports, ignore_unknown=True)
    custom = {key.removeprefix("custom."): value for key, value in meta.items() if key.startswith("custom.")}
    helper.set_model_props(model, custom)
    return model


def _graph_proto(graph: Graph, opsets: dict[str, int], captured: int) -> onnx.GraphProto:
    """The graph; ``captured`` inputs at the end are read from outside by name, as ONNX has it."""
    inputs = graph.inputs[: len(graph.inputs) - captured]
    proto = helper.make_graph(
        [_node_proto(node, opsets) for node in graph.topological_sort()],
        graph.name or "graph",
        [info_to_proto(_typed(info, graph)) for info in inputs],
        [info_to_proto(_typed(info, graph)) for info in graph.outputs],
        doc_string=graph.doc,
    )
    for name, tensor in graph.initializers.items():
        proto.initializer.append(tensor_to_proto(name, tensor))
    declared = {info.name for info in (*graph.inputs, *graph.outputs)}
    for name, kind in graph.types.items():
        if name not in declared and name not in graph.initializers and not isinstance(kind, AnyType):
            proto.value_info.append(info_to_proto(TensorInfo(name, type=kind)))
    return proto


def _typed(info: TensorInfo, graph: Graph) -> TensorInfo:
    if isinstance(info.type, AnyType) and info.name in graph.types:
        return TensorInfo(info.name, type=graph.types[info.name])
    return info


def _node_proto(node: Node, opsets: dict[str, int]) -> onnx.NodeProto:
    captured = int(node.get_attr("captured", 0))
    proto = onnx.NodeProto(op_type=node.op_type, name=node.name, domain=node.domain)
    proto.input.extend(node.inputs[: len(node.inputs) - captured])
    proto.output.extend(node.outputs)
    for name, value in fitted_attributes(node, opsets).items():
        proto.attribute.append(_attribute(name, value, opsets, captured))
    return proto


def _attribute(name: str, value: Any, opsets: dict[str, int], captured: int) -> onnx.AttributeProto:
    if isinstance(value, Graph):
        return helper.make_attribute(name, _graph_proto(value, opsets, captured))
    if isinstance(value, list) and value and isinstance(value[0], Graph):
        return helper.make_attribute(name, [_graph_proto(g, opsets, captured) for g in value])
    return attribute_to_proto(name, value)
