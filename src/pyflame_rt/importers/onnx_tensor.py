"""TensorProto to arrays."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.graph import DType, Tensor
from pyflame_rt.graph.errors import InvalidModelError
from pyflame_rt.graph.pages import hold_file
from pyflame_rt.importers.onnx_messages import Message
from pyflame_rt.importers.onnx_types import text_of
from pyflame_rt.importers.onnx_wire import UnusualError, unpack_varints

if TYPE_CHECKING:
    from pathlib import Path

    import onnx

__all__ = ["dense_from_sparse", "tensor_from_proto"]

_EXTERNAL = 1  # TensorProto.EXTERNAL
_VARINTS = {  # the field that holds elements of a type which are not raw
    **dict.fromkeys((DType.Int32, DType.Int16, DType.Int8, DType.UInt16, DType.UInt8, DType.Bool), "int32_data"),
    DType.Int64: "int64_data",
    **dict.fromkeys((DType.UInt32, DType.UInt64), "uint64_data"),
}
_FLOATS = {DType.Float32: "float_data", DType.Float64: "double_data"}


def tensor_from_proto(proto: onnx.TensorProto, base_dir: Path | None = None) -> Tensor:
    """A tensor from its protobuf form.

    Args:
        proto: the tensor.
        base_dir: where files it may name are.
    """
    try:
        return Tensor(_array(proto, base_dir))
    except InvalidModelError:
        raise
    except (ValueError, TypeError, LookupError, OSError, OverflowError, MemoryError, UnusualError) as error:
        raise InvalidModelError(f"tensor {proto.name!r} is malformed: {error}") from error


def _header(proto: onnx.TensorProto) -> tuple[DType, tuple[int, ...]]:
    dtype, shape = DType.from_onnx(proto.data_type), tuple(proto.dims)
    if any(d < 0 for d in shape):
        raise InvalidModelError(f"tensor {proto.name!r} has a negative dimension: {list(shape)}")
    return dtype, shape


def _array(proto: onnx.TensorProto, base_dir: Path | None) -> np.ndarray[Any, Any]:
    dtype, shape = _header(proto)
    if dtype is DType.String:
        text = [s.decode("utf-8", "surrogateescape") for s in proto.string_data]
        out = np.empty(len(text), dtype=object)
        out[:] = text
        return out.reshape(shape)
    if proto.data_location == _EXTERNAL:
        return _external(proto, dtype, shape, base_dir)
    if proto.HasField("raw_data") and dtype.bits >= 8:
        return np.frombuffer(proto.raw_data, dtype=dtype.numpy).reshape(shape)
    array = _typed(proto, dtype, shape) if isinstance(proto, Message) else None
    if array is None:
        from onnx import numpy_helper

        array = numpy_helper.to_array(_official(proto) if isinstance(proto, Message) else proto)
    if array.dtype != dtype.numpy:
        array = array.astype(dtype.numpy)
    return array


def _typed(proto: onnx.TensorProto, dtype: DType, shape: tuple[int, ...]) -> np.ndarray[Any, Any] | None:
    """Elements in fields of their own type; None for types that are packed in a way of their own."""
    if dtype in _FLOATS:
        return np.frombuffer(getattr(proto, _FLOATS[dtype], b""), dtype.numpy).reshape(shape)
    if dtype in _VARINTS:
        return unpack_varints(getattr(proto, _VARINTS[dtype], b"")).astype(dtype.numpy).reshape(shape)
    return None


def _official(proto: onnx.TensorProto) -> onnx.TensorProto:
    """A copy of a tensor in the onnx package's form."""
    import onnx

    made = onnx.TensorProto()
    if isinstance(proto, Message):
        made.ParseFromString(bytes(proto.__dict__["span"]))
    else:
        made.CopyFrom(proto)
    return made


def _external(
    proto: onnx.TensorProto, dtype: DType, shape: tuple[int, ...], base_dir: Path | None
) -> np.ndarray[Any, Any]:
    if base_dir is None:
        raise InvalidModelError(f"tensor {proto.name!r} keeps its data in another file; load the model from its path")
    fields = {text_of(entry.key): text_of(entry.value) for entry in proto.external_data}
    base = base_dir.resolve()
    path = (base / fields.get("location", "")).resolve()
    if not path.is_relative_to(base) or not path.is_file():
        raise InvalidModelError(f"tensor {proto.name!r}: no data file {fields.get('location')!r} beside the model")
    offset = int(fields.get("offset", 0))
    count = math.prod(shape)
    length = int(fields.get("length", 0)) or (count * dtype.bits + 7) // 8
    if offset < 0 or length < 0 or offset + length > path.stat().st_size:
        raise InvalidModelError(f"tensor {proto.name!r}: bytes {offset}..{offset + length} lie outside {path.name}")
    if dtype.bits < 8:
        from onnx import numpy_helper

        filled = _official(proto)
        filled.ClearField("external_data")
        filled.data_location = filled.DEFAULT
        with path.open("rb") as file:
            file.seek(offset)
            filled.raw_data = file.read(length)
        return numpy_helper.to_array(filled)
    if length != count * dtype.itemsize:
        raise InvalidModelError(f"tensor {proto.name!r}: {length} bytes for {count} elements of {dtype.label}")
    if count == 0:
        return np.zeros(shape, dtype=dtype.numpy)
    return np.frombuffer(hold_file(path), dtype.numpy, count, offset).reshape(shape)


def dense_from_sparse(proto: onnx.SparseTensorProto) -> Tensor:
    """A sparse tensor spelled out."""
    values = tensor_from_proto(proto.values).raw()
    indices = tensor_from_proto(proto.indices).raw()
    try:
        dense = np.zeros(tuple(proto.dims), dtype=values.dtype)
        if indices.ndim == 1:
            dense.reshape(-1)[indices] = values
        else:
            dense[tuple(indices.T)] = values
    except (IndexError, ValueError, TypeError, MemoryError) as error:
        raise InvalidModelError(f"sparse tensor {proto.values.name!r}: {error}") from error
    return Tensor(dense)
