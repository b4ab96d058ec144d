"""A model from a file or from bytes: by our own reader, or by the ``onnx`` package where that does not take it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

from pyflame_rt.graph.errors import InvalidModelError
from pyflame_rt.graph.pages import hold_file
from pyflame_rt.importers.onnx_wire import UnusualError, parse_model

if TYPE_CHECKING:
    import onnx

__all__ = ["read_model"]

_MIN_HELD = 1 << 16


def read_model(source: Path | bytes | memoryview) -> onnx.ModelProto:
    """Parse a model from a file, which is held in memory, or from bytes, which are viewed.

    The result has a ModelProto's fields, whichever of the two made it.

    Raises:
        InvalidModelError: It is no ONNX model.
    """
    data = _held(source) if isinstance(source, Path) else source
    try:
        return cast("onnx.ModelProto", parse_model(data))
    except UnusualError:
        return _parse(bytes(data))


def _parse(data: bytes) -> onnx.ModelProto:
    import onnx
    from google.protobuf.message import DecodeError

    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError as error:
        raise InvalidModelError(f"not an ONNX model: {error}") from error
    return model


def _held(path: Path) -> memoryview | bytes:
    return hold_file(path) if path.stat().st_size >= _MIN_HELD else path.read_bytes()
