"""Whatever a model comes as, to a graph that was checked."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.cache.models import kept_model, model_key
from pyflame_rt.graph import AnyType, Dim, Graph, Shape, Tensor, TensorInfo, TensorType, ValueType
from pyflame_rt.graph.deferred import DeferredGraph
from pyflame_rt.graph.errors import (
    DTypeMismatchError,
    InvalidModelError,
    MemoryLimitError,
    ModelNotFoundError,
    RunCancelledError,
    ShapeMismatchError,
    UnsupportedFormatError,
    ValidationError,
)
from pyflame_rt.graph.graph import Origin
from pyflame_rt.graph.pages import file_of
from pyflame_rt.ops.core.type_constraints import check_types
from pyflame_rt.options import ModelMetadata, SessionOptions

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["check_cancelled", "load_graph", "metadata_of", "prepare_graph", "write_model"]

# What makes an ONNX file of the formats that are not read here.
_TENSORFLOW = "python -m tf2onnx.convert writes it as ONNX"
_WAYS_TO_ONNX = {
    ".h5": "open it with Keras 3 and model.export(path, format='onnx')",
    ".joblib": "open it with scikit-learn and write it with skl2onnx.to_onnx",
    ".keras": "open it with Keras 3 and model.export(path, format='onnx')",
    ".pb": _TENSORFLOW,
    ".pdmodel": "paddle2onnx writes it as ONNX",
    ".pkl": "open it with scikit-learn and write it with skl2onnx.to_onnx",
    ".tflite": _TENSORFLOW + " (--tflite)",
}


def load_graph(model: Any, *, any_suffix: bool = False, deferred: bool = False) -> tuple[Graph, Path | None]:
    """The graph of a model, and the file it came from.

    Args:
        model: a path to a .onnx or .pfm file or to a folder of a Hugging Face model, the bytes of a file, a Graph or
            an onnx.ModelProto.
        any_suffix: read files of an unknown suffix as ONNX, as ONNX Runtime does.
        deferred: the graph is only looked at, and its nodes perhaps not at all: one that was loaded before may read
            them when somebody does.

    Example:
        >>> graph = Graph("g")
        >>> load_graph(graph)[0] is graph
        False
    """
    if isinstance(model, Graph):
        return model.copy(), None
    if isinstance(model, (bytes, bytearray, memoryview)):
        return _from_bytes(bytes(model)), None
    if isinstance(model, (str, os.PathLike)):
        path = Path(model)
        try:
            return _from_file(path, any_suffix, deferred), path.absolute()
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                raise ModelNotFoundError(f"there is no file of so long a name: {str(path)[:80]!r}...") from None
            raise
    onnx = sys.modules.get("onnx")
    if onnx is not None and isinstance(model, onnx.ModelProto):
        from pyflame_rt.importers.onnx_importer import graph_from_proto

        return graph_from_proto(model), None
    raise TypeError(f"a model is a path, bytes, a Graph or an onnx.ModelProto, got {type(model).__name__}")


def _from_bytes(data: bytes) -> Graph:
    if data[:4] == b"PFM\0":
        from pyflame_rt.format import loads_model

        return loads_model(data)
    from pyflame_rt.importers.onnx_importer import graph_from_bytes

    return graph_from_bytes(data)


def _from_file(path: Path, any_suffix: bool, deferred: bool) -> Graph:
    from pyflame_rt.importers.registry import find_importer, is_original

    if path.is_dir():
        importer = find_importer(path)
        if importer is None:
            raise InvalidModelError(f"{str(path)!r} is a folder without a config.json, not a model")
        return importer.load(path)
    if not path.is_file():
        raise ModelNotFoundError(f"there is no file {str(path)!r}")
    kind = path.suffix.lower()
    if kind != ".pfm" and not (kind == ".onnx" and is_original()):
        return _import(path, any_suffix)
    key = model_key(path)
    graph = None if key is None else kept_model(key)
    if graph is None:
        graph = _read(path, kind)
        if key is not None:
            graph.origin = Origin(key, checked=False)
    return graph.whole() if isinstance(graph, DeferredGraph) and not deferred else graph


def _read(path: Path, kind: str) -> Graph:
    if kind == ".pfm":
        from pyflame_rt.format import load_model

        return load_model(path)
    from pyflame_rt.importers.detection import detect
    from pyflame_rt.importers.onnx_importer import graph_from_file

    return _import(path, any_suffix=False) if detect(path) else graph_from_file(path)


def _import(path: Path, any_suffix: bool) -> Graph:
    from pyflame_rt.importers.registry import find_importer, list_importers

    importer = find_importer(path)
    if importer is None and any_suffix:
        importer = find_importer("onnx")
    if importer is None:
        known = sorted({".pfm", *(s for i in list_importers().values() if i.makes_graphs for s in i.suffixes)})
        way = _WAYS_TO_ONNX.get(path.suffix.lower(), "")
        raise UnsupportedFormatError(
            f"cannot read {path.name!r}: suffix {path.suffix!r} is not one of {', '.join(known)}{way and '; ' + way}"
        )
    return importer.load(path)


def write_model(graph: Graph, path: Path) -> None:
    """Write a graph as .pfm if the suffix says so, else as ONNX."""
    if path.suffix.lower() == ".pfm":
        from pyflame_rt.format import save_model

        save_model(graph, path)
        return
    from pyflame_rt.exporters import export_onnx

    export_onnx(graph, path)


def prepare_graph(graph: Graph, options: SessionOptions) -> None:
    """Apply the options that change a loaded graph, and check it."""
    check_cancelled(options)
    if options._free_dimensions or options._initializers:
        graph.origin = None
    if options._free_dimensions:
        _fix_dimensions(graph, options._free_dimensions)
    for name, value in options._initializers.items():
        _replace_initializer(graph, name, value)
    _limit_weights(graph, options.memory_limit, in_files=options.immutable_model)
    if graph.origin is not None and graph.origin.checked:
        return
    errors = graph.validate()
    if errors:
        raise ValidationError(f"graph {graph.name!r} is not valid", errors)
    check_types(graph)
    check_cancelled(options)
    if any(_is_vague(info.type) for info in graph.outputs):
        _complete_outputs(graph)
        check_cancelled(options)


def check_cancelled(options: SessionOptions) -> None:
    """Stop loading when ``set_load_cancellation_flag`` said so, also after it began."""
    if options._load_cancelled[0]:
        raise RunCancelledError("loading was cancelled with set_load_cancellation_flag")


def _limit_weights(graph: Graph, limit: int, *, in_files: bool) -> None:
    """Refuse weights of more bytes; those in files that nobody writes to need no memory, ``in_files``."""
    counted = graph.initializers.values() if limit else ()
    held = sum(t.size_bytes for t in counted if not (in_files and file_of(t.unread()) is not None))
    if held > limit:
        raise MemoryLimitError(
            f"model {graph.name!r}: the weights take {held} bytes, memory_limit allows {limit}. Where nobody writes to "
            f"the model's files, immutable_model=True leaves weights there"
        )


def _fix_dimensions(graph: Graph, sizes: Mapping[str, int]) -> None:
    for infos in (graph.inputs, graph.outputs):
        infos[:] = [TensorInfo(info.name, type=_fixed(info.type, sizes)) for info in infos]
    graph.types = {name: _fixed(kind, sizes) for name, kind in graph.types.items()}


def _fixed(kind: ValueType, sizes: Mapping[str, int]) -> ValueType:
    if not isinstance(kind, TensorType) or kind.shape is None:
        return kind
    dims = [d.evaluate(sizes) if isinstance(d, Dim) else d for d in kind.shape]
    known = [old if new is None else new for old, new in zip(kind.shape, dims, strict=True)]
    return TensorType(kind.dtype, Shape(known))


def _replace_initializer(graph: Graph, name: str, value: Any) -> None:
    old = graph.get_initializer(name)
    plain = value.numpy() if hasattr(value, "numpy") and not isinstance(value, Tensor) else value
    new = plain if isinstance(plain, Tensor) else Tensor(np.asarray(plain))
    if new.dtype is not old.dtype:
        raise DTypeMismatchError(f"initializer {name!r} is {old.dtype.label}, got {new.dtype.label}")
    if new.shape != old.shape:
        raise ShapeMismatchError(f"initializer {name!r} has shape {old.shape}, got {new.shape}")
    graph.initializers[name] = new


def _is_vague(kind: ValueType) -> bool:
    return isinstance(kind, AnyType) or (isinstance(kind, TensorType) and kind.shape is None)


def _complete_outputs(graph: Graph) -> None:
    """Fill in what the file leaves out about outputs."""
    from pyflame_rt.ops.core.inference import infer_types

    infer_types(graph)
    for i, info in enumerate(graph.outputs):
        found = graph.types.get(info.name)
        if found is not None and _is_vague(info.type):
            graph.outputs[i] = TensorInfo(info.name, type=found)


def metadata_of(graph: Graph) -> ModelMetadata:
    """What the model says of itself.

    Example:
        >>> metadata_of(Graph("classifier")).graph_name
        'classifier'
    """
    about = graph.metadata
    custom = {k.removeprefix("custom."): v for k, v in about.items() if k.startswith("custom.")}
    return ModelMetadata(
        producer_name=about.get("producer_name", ""),
        producer_version=about.get("producer_version", ""),
        graph_name=graph.name,
        domain=about.get("domain", ""),
        description=about.get("description", ""),
        graph_description=graph.doc,
        version=_number(about.get("version", "0")),
        ir_version=_number(about.get("ir_version", "0")),
        opsets=dict(graph.opsets),
        custom_metadata=custom,
    )


def _number(text: str) -> int:
    return int(text) if text.lstrip("-").isdigit() else 0
