"""What a GGUF file holds: fields of its header, and tensors, whose bytes stay where the file is held.

The header is read here, not by the package ``gguf``: that takes 40 us for each text, and a vocabulary has hundreds of
thousands. The package knows the formats that are rarer than those our products take.
"""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.graph.errors import InvalidModelError, MissingExtra, ModelNotFoundError, UnsupportedFormatError
from pyflame_rt.graph.pages import hold_file
from pyflame_rt.graph.records import dataclass
from pyflame_rt.ops.pyflame.stored_blocks import FORMATS

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

__all__ = ["MAGIC", "GGUFFile", "StoredTensor", "read_gguf"]

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_ITEMS = 1_000_000  # fields and tensors that a header may promise
MAX_AXES = 4
MAX_DEPTH = 4  # of lists in lists
# Types of fields by their number: one letter of `struct`, but for texts and lists.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_TEXT, _LIST = 8, 9
_KINDS = {0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 8: "Q8_0", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 30: "BF16"}
_FLOATS = {"F32": 4, "F16": 2, "BF16": 2}  # bytes of a number
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of a file.

    Attributes:
        name: in the file.
        kind: the format of its numbers, such as F32, BF16 or Q4_0.
        shape: sizes, the last axis the one that lies together.
        data: its bytes [..., bytes of a row].
        where: the name of the file, for errors.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    data: Array
    where: str

    def numbers(self) -> Array:
        """The numbers as float32; those of a file of float32 are not copied.

        Raises:
            MissingExtra: Its format needs the package ``gguf``, which is not installed.
            UnsupportedFormatError: Its format is not known.
        """
        if self.kind == "F32":
            return self.data.view("<f4").reshape(self.shape)
        if self.kind == "F16":
            return self.data.view("<f2").astype(np.float32).reshape(self.shape)
        if self.kind == "BF16":
            return (self.data.view("<u2").astype(np.uint32) << 16).view(np.float32).reshape(self.shape)
        package = _package()
        try:
            made = package.quants.dequantize(self.data, package.GGMLQuantizationType[self.kind])
        except NotImplementedError as error:
            raise UnsupportedFormatError(
                f"{self.where}: tensor {self.name!r} is of type {self.kind}: {error}"
            ) from error
        return np.ascontiguousarray(made, np.float32)


@dataclass(frozen=True)
class GGUFFile:
    """Fields and tensors.

    Attributes:
        where: the name of the file, for errors.
        fields: of the header, by name.
        tensors: by name.
    """

    where: str
    fields: Mapping[str, Any]
    tensors: Mapping[str, StoredTensor]

    def number(self, name: str, default: Any = None) -> Any:
        """A number above zero of the header."""
        value = self.fields.get(name, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 2**31:
            raise InvalidModelError(f"{self.where}: field {name!r} is {value!r}, not a number above zero")
        return value

    def rows(self, name: str) -> int:
        """Rows of a matrix."""
        if name not in self.tensors or len(self.tensors[name].shape) != 2:
            raise InvalidModelError(f"{self.where} has no matrix {name!r}")
        return self.tensors[name].shape[0]

    def expect(self, name: str, rows: int | None, columns: int) -> None:
        """Refuse a header whose sizes are not those of the weights, before anything of these sizes is made."""
        there = list(self.tensors[name].shape) if name in self.tensors else None
        if there is None or len(there) != 2 or there[1] != columns or rows not in (None, there[0]):
            raise InvalidModelError(f"{self.where}: {name} is {there}, the header says {[rows, columns]}")


def read_gguf(path: str | os.PathLike[str]) -> GGUFFile:
    """The contents of a file.

    Raises:
        ModelNotFoundError: There is no such file.
        InvalidModelError: It is no GGUF file, or a broken one.
        UnsupportedFormatError: It is of another version, or has tensors of types that nobody knows.
        MissingExtra: It has tensors of types that only the package ``gguf`` knows, which is not installed.

    Example:
        >>> read_gguf("lost.gguf")
        Traceback (most recent call last):
        ...
        pyflame_rt.graph.errors.ModelNotFoundError: there is no file 'lost.gguf'
    """
    file = Path(path)
    if not file.is_file():
        raise ModelNotFoundError(f"there is no file {str(file)!r}")
    with file.open("rb") as opened:
        head = opened.read(24)
    if len(head) < 24 or head[:4] != MAGIC:
        raise InvalidModelError(f"{file.name} is no GGUF file: it does not begin with {MAGIC.decode()}")
    version, tensors, fields = struct.unpack("<IQQ", head[4:])
    if version not in VERSIONS:
        raise UnsupportedFormatError(f"{file.name} is of version {version}, not one of {VERSIONS}, little-endian")
    if max(tensors, fields) > MAX_ITEMS:
        raise InvalidModelError(
            f"{file.name}: its header promises {max(tensors, fields)} entries, more than {MAX_ITEMS}"
        )
    return _Header(file.name, hold_file(file)).contents(fields, tensors)


class _Header:
    """Reads a header from its begin to its end."""

    def __init__(self, where: str, data: memoryview) -> None:
        self.where, self.data, self.at = where, data, 24

    def contents(self, fields: int, tensors: int) -> GGUFFile:
        found = {self._text(): self._value(self._number("I")) for _ in range(fields)}
        listed = [self._tensor() for _ in range(tensors)]
        align = found.get("general.alignment", 32)
        if not isinstance(align, int) or align < 1 or align % 8:
            raise self._broken(f"general.alignment is {align!r}")
        base = -(-self.at // align) * align
        made = {name: self._stored(name, kind, shape, base + offset) for name, kind, shape, offset in listed}
        if len(made) < tensors:
            raise self._broken("two tensors have one name")
        return GGUFFile(self.where, found, made)

    def _broken(self, what: str) -> InvalidModelError:
        return InvalidModelError(f"{self.where} is a broken GGUF file: {what}")

    def _take(self, count: int) -> memoryview:
        end = self.at + count
        if end > len(self.data):
            raise self._broken(f"it ends at byte {len(self.data)}, within what the header says")
        part, self.at = self.data[self.at : end], end
        return part

    def _number(self, letter: str) -> Any:
        return struct.unpack("<" + letter, self._take(struct.calcsize("<" + letter)))[0]

    def _text(self) -> str:
        part = bytes(self._take(self._number("Q")))
        return part.decode("utf-8", errors="surrogateescape")  # tokens may be any bytes

    def _value(self, kind: int, depth: int = 0) -> Any:
        if kind in _SCALARS:
            return self._number(_SCALARS[kind])
        if kind == _TEXT:
            return self._text()
        if kind != _LIST or depth > MAX_DEPTH:
            raise self._broken(f"a field of type {kind}")
        inner, count = self._number("I"), self._number("Q")
        if inner in _SCALARS:
            letter = "<" + _SCALARS[inner]
            return np.frombuffer(self._take(count * struct.calcsize(letter)), letter).tolist()
        if count > len(self.data) - self.at:
            raise self._broken(f"a list of {count} entries")
        return [self._value(inner, depth + 1) for _ in range(count)]

    def _tensor(self) -> tuple[str, str, tuple[int, ...], int]:
        name, axes = self._text(), self._number("I")
        if not 0 < axes <= MAX_AXES:
            raise self._broken(f"tensor {name!r} has {axes} axes")
        shape = tuple(self._number("Q") for _ in range(axes))[::-1]  # GGUF counts dimensions from the last
        number, offset = self._number("I"), self._number("Q")
        return name, _KINDS.get(number) or _rare_kind(self.where, name, number), shape, offset

    def _stored(self, name: str, kind: str, shape: tuple[int, ...], start: int) -> StoredTensor:
        weights, size = _group(kind)
        if shape[-1] % weights or min(shape) < 1:
            raise self._broken(f"tensor {name!r} of type {kind} has shape {list(shape)}")
        row = shape[-1] // weights * size
        count = math.prod(shape[:-1]) * row
        if start + count > len(self.data):
            raise self._broken(f"tensor {name!r} ends after the file")
        data = np.frombuffer(self.data, np.uint8, count, start).reshape(*shape[:-1], row)
        return StoredTensor(name, kind, shape, data, self.where)


def _group(kind: str) -> tuple[int, int]:
    """Numbers that lie together in a format, and their bytes."""
    if kind in _FLOATS:
        return 1, _FLOATS[kind]
    if kind in FORMATS:
        return FORMATS[kind].weights, FORMATS[kind].size
    package = _package()
    weights, size = package.GGML_QUANT_SIZES[package.GGMLQuantizationType[kind]]
    return int(weights), int(size)


def _rare_kind(where: str, name: str, number: int) -> str:
    try:
        return _package().GGMLQuantizationType(number).name
    except ValueError as error:
        raise UnsupportedFormatError(f"{where}: tensor {name!r} is of type {number}: {error}") from error


def _package() -> Any:
    try:
        import gguf
    except ModuleNotFoundError as error:
        raise MissingExtra("these weights of GGUF files need the package gguf: pip install 'pyflame[gguf]'") from error
    return gguf
