"""Weights in a file beside the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx

from pyflame_rt.exporters.onnx_proto import raw_bytes, tensor_to_proto
from pyflame_rt.graph import DType, Tensor
from pyflame_rt.graph.writing import replacing

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["DataFile"]

_ALIGN = 64
# Smaller tensors stay in the model: shapes and axes are read while loading.
_MIN_BYTES = 1024


class DataFile:
    """Places tensors in a data file, and writes it: each tensor straight from its own memory."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._placed: list[tuple[int, Tensor]] = []
        self._offsets: dict[int, int] = {}
        self._size = 0

    def tensor(self, name: str, tensor: Tensor) -> onnx.TensorProto:
        """A TensorProto that points into the file, or holds its data where that is small."""
        length = (tensor.num_elements * tensor.dtype.bits + 7) // 8
        if tensor.dtype is DType.String or length < _MIN_BYTES:
            return tensor_to_proto(name, tensor)
        proto = onnx.TensorProto(name=name, data_type=tensor.dtype.onnx)
        proto.dims.extend(tensor.raw().shape)
        proto.data_location = onnx.TensorProto.EXTERNAL
        where = {"location": self.name, "offset": self._place(tensor, length), "length": length}
        for key, value in where.items():
            proto.external_data.add(key=key, value=str(value))
        return proto

    def _place(self, tensor: Tensor, length: int) -> int:
        """One tensor under several names is stored once."""
        if id(tensor) not in self._offsets:
            self._offsets[id(tensor)] = self._size
            self._placed.append((self._size, tensor))
            self._size += length + (-length % _ALIGN)
        return self._offsets[id(tensor)]

    def write(self, folder: Path) -> None:
        """Write the file, all of it or nothing."""
        with replacing(folder / self.name) as file:
            for piece in self._pieces():
                file.write(piece)

    def _pieces(self) -> Iterator[bytes | memoryview]:
        at = 0
        for offset, tensor in self._placed:
            yield b"\0" * (offset - at)
            data = raw_bytes(tensor)
            yield data
            at = offset + len(data)
