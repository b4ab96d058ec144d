"""TensorProto to arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from pyflame_rt.graph import DType, Tensor
from pyflame_rt.graph.errors import InvalidModelError

__all__ = ["dense_from_sparse", "tensor_from_proto"]


def tensor_from_proto(proto: onnx.TensorProto, base_dir: Path | None = None) -> Tensor:
    """A tensor from its protobuf form; raw data is viewed, not copied."""
    try:
        return Tensor(_array(proto, base_dir))
    except InvalidModelError:
        raise
    except (ValueError, TypeError, KeyError, OSError, OverflowError, MemoryError, IndexError) as error:
        raise InvalidModelError(f"tensor {proto.name!r} is malformed: {error}") from error


def _array(proto: onnx.TensorProto, base_dir: Path | None) -> np.ndarray[Any, Any]:
    dtype = DType.from_onnx(proto.data_type)
    shape = tuple(proto.dims)
    if any(d < 0 for d in shape):
        raise InvalidModelError(f"tensor {proto.name!r} has a negative dimension: {list(shape)}")
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
    fields = {entry.key: entry.value for entry in proto.external_data}
    base = base_dir.resolve()
    path = (base / fields.get("location", "")).resolve()
    if not path.is_relative_to(base) or not path.is_file():
        raise InvalidModelError(f"tensor {proto.name!r}: no data file {fields.get('location')!r} beside the model")
    offset = int(fields.get("offset", 0))
    count = int(np.prod(shape, dtype=np.int64))
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
    return np.memmap(path, dtype=dtype.numpy, mode="r", offset=offset, shape=shape)


def dense_from_sparse(proto: onnx.SparseTensorProto) -> Tensor:
    """A sparse tensor spelled out."""
    values = tensor_from_proto(proto.values).raw()
    indices = tensor_from_proto(proto.indices).raw()
    dense = np.zeros(tuple(proto.dims), dtype=values.dtype)
    try:
        if indices.ndim == 1:
            dense.reshape(-1)[indices] = values
        else:
            dense[tuple(indices.T)] = values
    except IndexError as error:
        raise InvalidModelError(f"sparse tensor {proto.values.name!r}: {error}") from error
    return Tensor(dense)
