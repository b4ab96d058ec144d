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

__all__ = ["attribute_to_proto", "info_to_proto", "tensor_to_proto", "type_to_proto"]


def tensor_to_proto(name: str, tensor: Tensor) -> onnx.TensorProto:
    """A TensorProto with raw data."""
    array = tensor.raw()
    if tensor.dtype is DType.String:
        data = [str(s).encode("utf-8", "surrogateescape") for s in array.ravel()]
        return helper.make_tensor(name, onnx.TensorProto.STRING, array.shape, data)
    if tensor.dtype.bits < 8:
        return numpy_helper.from_array(array, name)
    proto = onnx.TensorProto(name=name, data_type=tensor.dtype.onnx)
    proto.dims.extend(array.shape)
    proto.raw_data = np.ascontiguousarray(array).tobytes()
    return proto


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


def attribute_to_proto(name: str, value: Any) -> onnx.AttributeProto:
    """An attribute of any kind but a graph."""
    proto = onnx.AttributeProto(name=name)
    match value:
        case bool() | int():
            proto.type, proto.i = onnx.AttributeProto.INT, int(value)
        case float():
            proto.type, proto.f = onnx.AttributeProto.FLOAT, value
        case str():
            proto.type, proto.s = onnx.AttributeProto.STRING, value.encode("utf-8", "surrogateescape")
        case bytes():
            proto.type, proto.s = onnx.AttributeProto.STRING, value
        case Tensor():
            proto.type = onnx.AttributeProto.TENSOR
            proto.t.CopyFrom(tensor_to_proto(name, value))
        case list() | tuple():
            _fill_list(proto, list(value))
        case AnyType() | TensorType() | SequenceType() | OptionalType() | MapType():
            proto.type = onnx.AttributeProto.TYPE_PROTO
            proto.tp.CopyFrom(type_to_proto(value))
        case _:
            raise UnsupportedFormatError(f"attribute {name!r} is a {type(value).__name__}, which ONNX cannot hold")
    return proto


def _fill_list(proto: onnx.AttributeProto, values: list[Any]) -> None:
    if all(isinstance(v, int) for v in values):
        proto.type = onnx.AttributeProto.INTS
        proto.ints.extend(values)
    elif all(isinstance(v, (int, float)) for v in values):
        proto.type = onnx.AttributeProto.FLOATS
        proto.floats.extend(values)
    elif all(isinstance(v, str) for v in values):
        proto.type = onnx.AttributeProto.STRINGS
        proto.strings.extend(v.encode("utf-8", "surrogateescape") for v in values)
    elif all(isinstance(v, Tensor) for v in values):
        proto.type = onnx.AttributeProto.TENSORS
        proto.tensors.extend(tensor_to_proto("", v) for v in values)
    else:
        raise UnsupportedFormatError(f"attribute {proto.name!r} is a list of mixed kinds, which ONNX cannot hold")
