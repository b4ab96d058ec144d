"""TensorProto to arrays."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import numpy_helper

from pyflame_rt.graph import DType, Tensor
from pyflame_rt.graph.errors import InvalidModelError
from pyflame_rt.graph.pages import map_file
from pyflame_rt.importers.onnx_types import text_of

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["dense_from_sparse", "tensor_from_proto"]


def tensor_from_proto(proto: onnx.TensorProto, base_dir: Path | None = None, raw: memoryview | None = None) -> Tensor:
    """A tensor from its protobuf form.

    Args:
        proto: the tensor.
        base_dir: where files it may name are.
        raw: its raw data, when that was left in the file.
    """
    try:
        return Tensor(_array(proto, base_dir) if raw is None else _from_view(proto, raw, base_dir))
    except InvalidModelError:
        raise
    except (ValueError, TypeError, KeyError, OSError, OverflowError, MemoryError, IndexError) as error:
        raise InvalidModelError(f"tensor {proto.name!r} is malformed: {error}") from error


def _from_view(proto: onnx.TensorProto, raw: memoryview, base_dir: Path | None) -> np.ndarray[Any, Any]:
    dtype, shape = _header(proto)
    if dtype is DType.String or dtype.bits < 8 or proto.data_location == onnx.TensorProto.EXTERNAL:
        proto.raw_data = bytes(raw)
        return _array(proto, base_dir)
    return np.frombuffer(raw, dtype=dtype.numpy).reshape(shape)


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
    if proto.data_location == onnx.TensorProto.EXTERNAL:
        return _external(proto, dtype, shape, base_dir)
    if proto.HasField("raw_data") and dtype.bits >= 8:
        return np.frombuffer(proto.raw_data, dtype=dtype.numpy).reshape(shape)
    array = numpy_helper.to_array(proto)
    if array.dtype != dtype.numpy:
        array = array.astype(dtype.numpy)
    return array


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
        filled = onnx.TensorProto()
        filled.CopyFrom(proto)
        filled.ClearField("external_data")
        filled.data_location = onnx.TensorProto.DEFAULT
        with path.open("rb") as file:
            file.seek(offset)
            filled.raw_data = file.read(length)
        return numpy_helper.to_array(filled)
    if length != count * dtype.itemsize:
        raise InvalidModelError(f"tensor {proto.name!r}: {length} bytes for {count} elements of {dtype.label}")
    if count == 0:
        return np.zeros(shape, dtype=dtype.numpy)
    return np.frombuffer(map_file(path), dtype.numpy, count, offset).reshape(shape)


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
