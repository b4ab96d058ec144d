"""Parse ONNX models without copying their weights.

``onnx`` parses everything into memory of its own. Here the wire format is walked just far enough
to find the ``raw_data`` of the graph's initializers; the rest, a few per cent of the file, is
parsed as usual, and the weights stay where they are: in the mapped file, or the caller's bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx
from google.protobuf.message import DecodeError

from pyflame_rt.graph.errors import InvalidModelError
from pyflame_rt.graph.pages import map_file

if TYPE_CHECKING:
    import mmap
    from collections.abc import Iterator

__all__ = ["ScannedModel", "read_model"]

_GRAPH, _INITIALIZER, _RAW_DATA = 7, 5, 9  # field numbers in ModelProto, GraphProto and TensorProto
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types
_MIN_CUT = 4096
_MIN_FILE = 1 << 16
_MAX_FIELDS = 2_000_000


class _UnusualError(Exception):
    """A form no exporter writes; plain parsing judges it."""


@dataclass(frozen=True, slots=True)
class ScannedModel:
    """A model, and the raw data of its initializers that was left out, by their position."""

    proto: onnx.ModelProto
    weights: dict[int, memoryview] = field(default_factory=dict)


@dataclass(slots=True)
class _Field:
    number: int
    wire: int
    start: int  # of the tag
    value: int  # of the contents
    end: int


def read_model(source: Path | bytes | memoryview) -> ScannedModel:
    """Parse a model from a file, which is mapped, or from bytes, which are viewed.

    Raises:
        InvalidModelError: It is no ONNX model.
    """
    data = _mapped(source) if isinstance(source, Path) else source
    if len(data) >= _MIN_FILE:
        try:
            skeleton, weights = _without_weights(data)
            return ScannedModel(_parse(skeleton), weights)
        except (_UnusualError, InvalidModelError):
            pass
    return ScannedModel(_parse(bytes(data)))


def _parse(data: bytes) -> onnx.ModelProto:
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError as error:
        raise InvalidModelError(f"not an ONNX model: {error}") from error
    return model


def _mapped(path: Path) -> mmap.mmap | bytes:
    return map_file(path) if path.stat().st_size >= _MIN_FILE else path.read_bytes()


def _without_weights(data: Any) -> tuple[bytes, dict[int, memoryview]]:
    """The serialized model without large raw data, and that data."""
    budget = iter(range(_MAX_FIELDS))
    graphs = [f for f in _fields(data, 0, len(data), budget) if f.number == _GRAPH]
    if len(graphs) != 1 or graphs[0].wire != _BYTES:
        raise _UnusualError
    graph, view = graphs[0], memoryview(data)
    pieces: list[Any] = []
    weights: dict[int, memoryview] = {}
    at, position = graph.value, 0
    for tensor in _fields(data, graph.value, graph.end, budget):
        if tensor.number != _INITIALIZER or tensor.wire != _BYTES:
            continue
        raw = [f for f in _fields(data, tensor.value, tensor.end, budget) if f.number == _RAW_DATA]
        if len(raw) == 1 and raw[0].wire == _BYTES and raw[0].end - raw[0].value >= _MIN_CUT:
            cut = raw[0]
            weights[position] = view[cut.value : cut.end]
            length = tensor.end - tensor.value - (cut.end - cut.start)
            pieces += [view[at : tensor.start], _head(_INITIALIZER, length)]
            pieces += [view[tensor.value : cut.start], view[cut.end : tensor.end]]
            at = tensor.end
        position += 1
    body = b"".join([*pieces, view[at : graph.end]])
    return b"".join([view[: graph.start], _head(_GRAPH, len(body)), body, view[graph.end :]]), weights


def _fields(data: Any, at: int, end: int, budget: Iterator[int]) -> Iterator[_Field]:
    """The fields of one message; every step moves on, and none beyond the end."""
    while at < end:
        if next(budget, None) is None:
            raise _UnusualError
        start = at
        tag, at = _varint(data, at, end)
        wire, value = tag & 7, at
        if wire == _BYTES:
            length, value = _varint(data, at, end)
            at = value + length
        elif wire == _VARINT:
            _, at = _varint(data, at, end)
        elif wire in (_FIXED64, _FIXED32):
            at += 8 if wire == _FIXED64 else 4
        else:  # groups
            raise _UnusualError
        if at > end:
            raise _UnusualError
        yield _Field(tag >> 3, wire, start, value, at)


def _varint(data: Any, at: int, end: int) -> tuple[int, int]:
    result = 0
    for shift in range(0, 70, 7):
        if at >= end:
            break
        byte = data[at]
        at += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result, at
    raise _UnusualError


def _head(number: int, length: int) -> bytes:
    """Tag and length of a field that holds bytes."""
    out = bytearray([number << 3 | _BYTES])
    while length > 0x7F:
        out.append(length & 0x7F | 0x80)
        length >>= 7
    out.append(length)
    return bytes(out)
