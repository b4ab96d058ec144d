"""ONNX files and bytes to graphs."""

from __future__ import annotations

import os
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyflame_rt.graph.errors import InvalidModelError, ModelNotFoundError
from pyflame_rt.importers.base import Importer, ImportOptions
from pyflame_rt.importers.onnx_graph import GraphReader
from pyflame_rt.importers.onnx_messages import Message, Pair
from pyflame_rt.importers.onnx_scan import read_model
from pyflame_rt.importers.onnx_types import text_of

if TYPE_CHECKING:
    import onnx

    from pyflame_rt.graph import Graph

    MAX_OPSET_VERSION: int

__all__ = [
    "MAX_OPSET_VERSION",
    "MIN_OPSET_VERSION",
    "ONNXImporter",
    "get_opset_version",
    "graph_from_bytes",
    "graph_from_file",
    "graph_from_proto",
    "is_opset_supported",
]

MIN_OPSET_VERSION = 1
# From this IR version on, an initializer that is also an input is a default, not a constant.
_DEFAULTS_SINCE_IR = 4


def __getattr__(name: str) -> Any:
    if name == "MAX_OPSET_VERSION":  # known to the onnx package, which is imported only where it is needed
        return _newest_opset()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@cache
def _newest_opset() -> int:
    from onnx.defs import onnx_opset_version

    return onnx_opset_version()


class ONNXImporter(Importer):
    """Reads ONNX models of every opset, also newer ones as long as the operators are known.

    Example:
        >>> importer = ONNXImporter()
        >>> importer.supported_opsets()[0], importer.import_model("missing.onnx").success
        (1, False)
    """

    name = "onnx"
    suffixes = (".onnx",)

    def read(self, source: Any, options: ImportOptions) -> Graph:
        """The graph of a file, bytes or a ModelProto."""
        model, base_dir = _model(source)
        if options.opset_version is not None:
            model = _as_of(model, options.opset_version)
        return _named(source, model, base_dir)

    def check_source(self, source: Any) -> list[str]:
        """What ``onnx.checker`` says."""
        import onnx

        try:
            checked = os.fspath(source) if isinstance(source, os.PathLike) else source
            onnx.checker.check_model(checked)
        except onnx.checker.ValidationError as error:
            return [f"onnx.checker: {error}"]
        return []

    def supported_opsets(self) -> list[int]:
        """Versions of the default operator set that are read."""
        return list(range(MIN_OPSET_VERSION, _newest_opset() + 1))

    def get_opset_version(self, source: Any) -> int:
        """See :func:`get_opset_version`."""
        return get_opset_version(source)

    def is_opset_supported(self, version: int) -> bool:
        """See :func:`is_opset_supported`."""
        return is_opset_supported(version)


def get_opset_version(source: Any) -> int:
    """The version of the default operator set a model (path, bytes or ModelProto) imports."""
    model, _ = _model(source)
    return next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 1)


def is_opset_supported(version: int) -> bool:
    """True for versions whose every operator form is known.

    Example:
        >>> is_opset_supported(9), is_opset_supported(0)
        (True, False)
    """
    return MIN_OPSET_VERSION <= version <= _newest_opset()


def graph_from_file(path: str | os.PathLike[str]) -> Graph:
    """Read an .onnx file; data kept in other files is read from beside it."""
    model, base_dir = _model(path)
    return _named(path, model, base_dir)


def graph_from_bytes(data: bytes, base_dir: Path | None = None) -> Graph:
    """Read a serialized ModelProto."""
    return _graph(read_model(data), base_dir)


def graph_from_proto(model: onnx.ModelProto, base_dir: Path | None = None) -> Graph:
    """Bring a ModelProto into graph form, every operator in its newest version."""
    return _graph(model, base_dir)


def _graph(model: onnx.ModelProto, base_dir: Path | None) -> Graph:
    if not model.HasField("graph"):
        raise InvalidModelError("not an ONNX model: it holds no graph")
    reader = GraphReader(model, base_dir)
    graph = reader.read(model.graph)
    if model.ir_version < _DEFAULTS_SINCE_IR:
        graph.inputs = graph.required_inputs
    graph.opsets = dict(reader.opsets)
    graph.metadata = {
        "producer_name": text_of(model.producer_name),
        "producer_version": text_of(model.producer_version),
        "domain": text_of(model.domain),
        "description": text_of(model.doc_string),
        "version": str(model.model_version),
        "ir_version": str(model.ir_version),
        **{f"custom.{text_of(entry.key)}": text_of(entry.value) for entry in model.metadata_props},
    }
    return graph


def _model(source: Any) -> tuple[onnx.ModelProto, Path | None]:
    onnx = sys.modules.get("onnx")
    if onnx is not None and isinstance(source, onnx.ModelProto):
        return source, None
    if isinstance(source, (bytes, bytearray, memoryview)):
        return read_model(bytes(source)), None
    file = Path(source)
    if not file.is_file():
        raise ModelNotFoundError(f"there is no file {str(file)!r}")
    try:
        return read_model(file), file.parent
    except InvalidModelError as error:
        raise InvalidModelError(f"{str(file)!r}: {error}") from error


def _named(source: Any, model: onnx.ModelProto, base_dir: Path | None) -> Graph:
    """The graph; errors say which file."""
    try:
        return _graph(model, base_dir)
    except InvalidModelError as error:
        if isinstance(source, (str, os.PathLike)):
            raise InvalidModelError(f"{os.fspath(source)!r}: {error}") from error
        raise


def _as_of(model: onnx.ModelProto, version: int) -> onnx.ModelProto:
    kept = [o for o in model.opset_import if o.domain not in ("", "ai.onnx")]
    if isinstance(model, Message):
        asked = Pair()
        asked.version = version
        model.__dict__["opset_import"] = [asked, *kept]  # nobody else has what was just read
        return model
    import onnx

    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    del changed.opset_import[:]
    changed.opset_import.extend([onnx.helper.make_opsetid("", version), *kept])
    return changed
