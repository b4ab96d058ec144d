"""Graph to ONNX."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import onnx
from onnx import helper

from pyflame_rt.exporters.onnx_data import DataFile
from pyflame_rt.exporters.onnx_graph import GraphWriter
from pyflame_rt.exporters.onnx_inline import inline_own_operators, typed_copy
from pyflame_rt.exporters.onnx_opset import choose_opsets, ir_version_for
from pyflame_rt.graph import Graph, verify
from pyflame_rt.graph.arguments import expect, expect_whole
from pyflame_rt.graph.errors import UnsupportedFormatError
from pyflame_rt.graph.named_arguments import names_arguments
from pyflame_rt.graph.writing import refuse_scripts, replacing

if TYPE_CHECKING:
    import os

__all__ = ["export_onnx", "onnx_model"]

# Protobuf cannot hold 2 GiB; weights go to a file of their own well before.
_MAX_INLINE = 1 << 30
_OWN_KEYS = {"producer_name", "producer_version", "domain", "description", "version", "ir_version"}


@names_arguments
def export_onnx(
    graph: Graph, path: str | os.PathLike[str], *, opset: int | None = None, external_data: bool | None = None
) -> None:
    """Write a graph as an .onnx file that other runtimes read.

    Args:
        graph: the model.
        path: the file to write.
        opset: version of ai.onnx; the lowest that holds every node unless given.
        external_data: keep weights in ``<name>.data`` beside the file; from 1 GiB on unless told.

    Raises:
        UnsupportedFormatError: ONNX, or the asked-for opset, cannot hold the graph.
        UnsupportedOperatorError: an operator of our own has no form in ONNX operators.

    Example:
        >>> import tempfile
        >>> g = Graph("g")
        >>> _ = g.add_input("x", [2]), g.add_node("n", "Relu", ["x"], ["y"]), g.add_output("y", [2])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     export_onnx(g, folder + "/g.onnx")
        ...     onnx.load(folder + "/g.onnx").graph.node[0].op_type
        'Relu'
    """
    if not isinstance(graph, Graph):
        raise TypeError(f"export_onnx takes a Graph, got {type(graph).__name__}")
    target = Path(path)
    opset = None if opset is None else expect_whole(opset, "opset")
    if external_data is not None:
        expect(external_data, bool, "external_data")
    total = sum(tensor.size_bytes for tensor in graph.initializers.values())
    if external_data is None:
        external_data = total > _MAX_INLINE
    data = DataFile(f"{target.name}.data") if external_data else None
    model = _model(graph, opset, data)
    try:
        serialized = model.SerializeToString()
    except (ValueError, onnx.checker.ValidationError) as error:
        raise UnsupportedFormatError(f"{target.name}: too large for one file; use external_data=True") from error
    if data is not None:
        data.write(target.parent)
    with replacing(target) as file:
        file.write(serialized)


def onnx_model(graph: Graph, *, opset: int | None = None) -> onnx.ModelProto:
    """A graph as a ModelProto.

    Example:
        >>> g = Graph("g")
        >>> _ = g.add_input("x", [2]), g.add_node("n", "Relu", ["x"], ["y"]), g.add_output("y", [2])
        >>> onnx_model(g).opset_import[0].version
        13
    """
    return _model(graph, None if opset is None else expect_whole(opset, "opset"), None)


def _model(graph: Graph, opset: int | None, data: DataFile | None) -> onnx.ModelProto:
    verify(graph)
    refuse_scripts(graph)
    ready = inline_own_operators(graph)
    typed = typed_copy(ready)
    opsets = choose_opsets(typed, opset)
    imports = [helper.make_opsetid(domain, version) for domain, version in sorted(opsets.items())]
    model = onnx.ModelProto(ir_version=ir_version_for(imports, typed))
    model.opset_import.extend(imports)
    model.graph.CopyFrom(GraphWriter(ready, opsets, data).write(typed.types))
    _write_metadata(model, graph.metadata)
    return model


def _write_metadata(model: onnx.ModelProto, meta: dict[str, str]) -> None:
    model.producer_name = meta.get("producer_name", "pyflame")
    model.producer_version = meta.get("producer_version", "")
    model.domain = meta.get("domain", "")
    model.doc_string = meta.get("description", "")
    version = meta.get("version", "0")
    model.model_version = int(version) if version.lstrip("-").isdigit() else 0
    custom = {key.removeprefix("custom."): value for key, value in meta.items() if key not in _OWN_KEYS}
    helper.set_model_props(model, custom)
