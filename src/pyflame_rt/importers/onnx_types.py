"""TypeProto to types."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyflame_rt.graph import (
    AnyType,
    DType,
    MapType,
    OptionalType,
    SequenceType,
    Shape,
    TensorInfo,
    TensorType,
    ValueType,
)
from pyflame_rt.importers.onnx_messages import TypeMessage

if TYPE_CHECKING:
    import onnx

__all__ = ["info_from_proto", "text_of", "type_from_proto"]


def text_of(name: str | bytes) -> str:
    r"""A name; protobuf hands out bytes where one is not the UTF-8 it should be.

    Example:
        >>> text_of("x"), text_of(b"caf\xe9")
        ('x', 'caf\\xe9')
    """
    return name if isinstance(name, str) else name.decode("utf-8", "backslashreplace")


def type_from_proto(proto: onnx.TypeProto) -> ValueType:
    """A type from its protobuf form; AnyType where the file does not say."""
    if not isinstance(proto, TypeMessage):
        return _type(proto)
    if proto.made is None:
        proto.made = _type(proto)
    return proto.made


def _type(proto: onnx.TypeProto) -> ValueType:
    match proto.WhichOneof("value"):
        case "tensor_type":
            return _tensor_type(proto.tensor_type)
        case "sparse_tensor_type":
            return _tensor_type(proto.sparse_tensor_type)
        case "sequence_type":
            return SequenceType(type_from_proto(proto.sequence_type.elem_type))
        case "optional_type":
            return OptionalType(type_from_proto(proto.optional_type.elem_type))
        case "map_type":
            return MapType(DType.from_onnx(proto.map_type.key_type), type_from_proto(proto.map_type.value_type))
        case _:
            return AnyType()


def _tensor_type(proto: onnx.TypeProto.Tensor | onnx.TypeProto.SparseTensor) -> ValueType:
    if proto.elem_type == 0:
        return AnyType()
    if not proto.HasField("shape"):
        return TensorType(DType.from_onnx(proto.elem_type), None)
    dims = [d.dim_value if d.HasField("dim_value") else (text_of(d.dim_param) or None) for d in proto.shape.dim]
    # Some exporters write -1 or 0-sized placeholders for "unknown"; only -1 is certain.
    return TensorType(DType.from_onnx(proto.elem_type), Shape(None if d == -1 else d for d in dims))


def info_from_proto(proto: onnx.ValueInfoProto) -> TensorInfo:
    """Description of one declared value."""
    return TensorInfo(text_of(proto.name), type=type_from_proto(proto.type))
