"""Writing files that torch reads: a zip of raw storages, and a pickle (protocol 2) written opcode by opcode."""

from __future__ import annotations

import struct
import zipfile
from collections import OrderedDict
from typing import Any

import numpy as np

from pyflame.dtypes import DType, to_dtype
from pyflame.ops.core import Handle

__all__ = ["write_archive"]

_STORAGES = {
    DType.float64: "DoubleStorage", DType.float32: "FloatStorage", DType.float16: "HalfStorage",
    DType.bfloat16: "BFloat16Storage", DType.int64: "LongStorage", DType.int32: "IntStorage",
    DType.int16: "ShortStorage", DType.int8: "CharStorage", DType.uint8: "ByteStorage", DType.bool: "BoolStorage",
    DType.complex64: "ComplexFloatStorage", DType.complex128: "ComplexDoubleStorage",
}  # fmt: skip


def write_archive(obj: Any, sink: Any) -> None:
    """Write nested data with evaluated tensors to an open file, as `torch.save` would.

    Args:
        obj: tensors, numbers, text, None, and dicts, lists and tuples of them.
        sink: open for writing bytes.
    """
    pickled = _Pickle()
    pickled.add(obj)
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_STORED) as file:
        file.writestr("archive/data.pkl", pickled.finished())
        file.writestr("archive/byteorder", "little")
        for number, array in enumerate(pickled.storages):
            file.writestr(f"archive/data/{number}", array.reshape(-1).view(np.uint8).data)
        file.writestr("archive/version", "3\n")


class _Pickle:
    """Opcodes so far, and the storages they name."""

    def __init__(self) -> None:
        self.code = bytearray(b"\x80\x02")
        self.storages: list[np.ndarray[Any, Any]] = []
        self._numbers: dict[int, int] = {}

    def finished(self) -> bytes:
        return bytes(self.code + b".")

    def add(self, obj: Any) -> None:
        match obj:
            case None | bool() | int() | float() | str():
                self._plain(obj)
            case np.generic():
                self.add(obj.item())
            case Handle():
                self._tensor(obj)
            case OrderedDict():
                self.code += b"ccollections\nOrderedDict\n)R"
                self._items(obj)
            case dict():
                self.code += b"}"
                self._items(obj)
            case list():
                self.code += b"]("
                self._all(obj)
                self.code += b"e"
            case tuple():
                self._tuple(*obj)
            case _:
                raise TypeError(
                    f"{type(obj).__name__} cannot be saved in torch's form: it holds tensors, numbers, text, and "
                    "dicts, lists and tuples of them; make arrays tensors, or use a .pf file"
                )

    def _plain(self, obj: bool | float | str | None) -> None:
        match obj:
            case None:
                self.code += b"N"
            case bool():
                self.code += b"\x88" if obj else b"\x89"
            case int() if -(1 << 31) <= obj < 1 << 31:
                self.code += b"J" + struct.pack("<i", obj)
            case int():
                data = obj.to_bytes(obj.bit_length() // 8 + 1, "little", signed=True)
                if len(data) > 255:
                    raise ValueError("an integer of more than 2,040 bits cannot be saved in torch's form")
                self.code += b"\x8a" + bytes([len(data)]) + data
            case float():
                self.code += b"G" + struct.pack(">d", obj)
            case str():
                text = obj.encode("utf-8", "surrogatepass")
                self.code += b"X" + struct.pack("<I", len(text)) + text

    def _items(self, obj: dict[Any, Any]) -> None:
        self.code += b"("
        for key, value in obj.items():
            self.add(key)
            self.add(value)
        self.code += b"u"

    def _all(self, values: Any) -> None:
        for value in values:
            self.add(value)

    def _tuple(self, *values: Any) -> None:
        self.code += b"("
        self._all(values)
        self.code += b"t"

    def _tensor(self, tensor: Any) -> None:
        value = tensor._value
        array = np.asarray(value.array, order="C")
        number = self._numbers.get(id(value))
        if number is None:
            number = self._numbers[id(value)] = len(self.storages)
            self.storages.append(array)
        self.code += b"ctorch._utils\n_rebuild_tensor_v2\n(("
        self._plain("storage")
        self.code += b"ctorch\n" + _STORAGES[to_dtype(array.dtype)].encode() + b"\n"
        self._all((str(number), "cpu", array.size))
        self.code += b"tQ"  # the storage, by what names it
        self._plain(0)
        self._tuple(*map(int, array.shape))
        self._tuple(*_strides(array))
        self._plain(bool(value.needs_grad))
        self.code += b"ccollections\nOrderedDict\n)RtR"


def _strides(array: np.ndarray[Any, Any]) -> list[int]:
    """How many elements lie between neighbours of each dimension, row after row."""
    strides, step = [], 1
    for size in reversed(array.shape):
        strides.insert(0, step)
        step *= max(size, 1)
    return strides
