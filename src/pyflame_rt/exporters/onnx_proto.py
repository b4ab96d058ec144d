"""Tensors, types and attributes to protobuf."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from pyflame_rt.graph import (
    AnyType,
    DType,
    MapType,
    OptionalType,
    SequenceType,
    Tensor,
    TensorInfo,
    TensorType,
    ValueType,
)
from pyflame_rt.graph.errors import UnsupportedFormatError
from pyflame_rt.ops.core.registry import plain_attribute

__all__ = ["attribute_to_proto", "info_to_proto", "raw_bytes", "tensor_to_proto", "type_to_proto"]


def tensor_to_proto(name: str, tensor: Tensor) -> onnx.TensorProto:
    """A TensorProto with raw data."""
    proto = onnx.TensorProto(name=name, data_type=tensor.dtype.onnx)
    proto.dims.extend(tensor.raw().shape)
    if tensor.dtype is DType.String:
        proto.string_data.extend(_text(str(s)) for s in tensor.raw().ravel())
    else:
        proto.raw_data = bytes(raw_bytes(tensor))
    return proto


def raw_bytes(tensor: Tensor) -> bytes | memoryview:
    """The data as ONNX lays it out: little endian, small types packed."""
    if tensor.dtype.bits < 8:
        return numpy_helper.from_array(tensor.raw()).raw_data
    array = np.ascontiguousarray(tensor.raw(), dtype=tensor.dtype.numpy)
    return array.reshape(-1).view(np.uint8).data if array.size else b""


def _text(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def type_to_proto(kind: ValueType) -> onnx.TypeProto:
    """A TypeProto; empty where nothing is known."""
    match kind:
        case TensorType(dtype=dtype, shape=shape):
            dims = None if shape is None else [d if isinstance(d, int) or d is None else str(d) for d in shape]
            return helper.make_tensor_type_proto(dtype.onnx, dims)
        case SequenceType(elem=elem):
            return helper.make_sequence_type_proto(type_to_proto(elem))
        case OptionalType(elem=elem):
            return helper.make_optional_type_proto(type_to_proto(elem))
        case MapType(key=key, value=value):
            return helper.make_map_type_proto(key.onnx, type_to_proto(value))
        case AnyType():
            return onnx.TypeProto()


def info_to_proto(info: TensorInfo) -> onnx.ValueInfoProto:
    """A ValueInfoProto."""
    proto = onnx.ValueInfoProto(name=info.name)
    if not isinstance(info.type, AnyType):
        proto.type.CopyFrom(type_to_proto(info.type))
    return proto


def attribute_to_proto(name: str, value: Any, kind: int | None = None) -> onnx.AttributeProto:
    """An attribute of any kind but a graph.

    Args:
        name: its name.
        value: as nodes hold it.
        kind: the AttributeProto type the operator declares: whole numbers become floats, and
            empty lists are of its element type.
    """
    proto = onnx.AttributeProto(name=name)
    match plain_attribute(value):
        case int(number) if kind != onnx.AttributeProto.FLOAT:
            proto.type, proto.i = onnx.AttributeProto.INT, number
        case int(number) | float(number):
            proto.type, proto.f = onnx.AttributeProto.FLOAT, number
        case str(text):
            proto.type, proto.s = onnx.AttributeProto.STRING, _text(text)
        case bytes(data):
            proto.type, proto.s = onnx.AttributeProto.STRING, data
        case Tensor() as tensor:
            proto.type = onnx.AttributeProto.TENSOR
            proto.t.CopyFrom(tensor_to_proto(name, tensor))
        case list(values):
            _fill_list(proto, values, kind)
        case AnyType() | TensorType() | SequenceType() | OptionalType() | MapType():
            proto.type = onnx.AttributeProto.TYPE_PROTO
            proto.tp.CopyFrom(type_to_proto(value))
        case _:
            raise UnsupportedFormatError(f"attribute {name!r} is a {type(value).__name__}, which ONNX cannot hold")
    return proto


def _fill_list(proto: onnx.AttributeProto, values: list[Any], kind: int | None) -> None:
    kinds = onnx.AttributeProto
    if not values:
        proto.type = kinds.INTS if kind is None else kind  # type: ignore[assignment]
    elif kind != kinds.FLOATS and all(isinstance(v, int) for v in values):
        proto.type = kinds.INTS
        proto.ints.extend(values)
    elif all(isinstance(v, (int, float)) for v in values):
        proto.type = kinds.FLOATS
        proto.floats.extend(values)
    elif all(isinstance(v, str) for v in values):
        proto.type = kinds.STRINGS
        proto.strings.extend(map(_text, values))
    elif all(isinstance(v, Tensor) for v in values):
        proto.type = kinds.TENSORS
        proto.tensors.extend(tensor_to_proto("", v) for v in values)
    else:
        raise UnsupportedFormatError(f"attribute {proto.name!r} is a list of mixed kinds, which ONNX cannot hold")
