"""Arrays on the wire: element types by their names, base64, raw bytes, length-prefixed strings and nested lists."""

from __future__ import annotations

import binascii
import math
import struct
import sys
from functools import cache
from typing import Any

import numpy as np

from pyflame_rt.graph import DType
from pyflame_rt.graph.errors import DTypeMismatchError
from pyflame_rt.serving.errors import RequestError

__all__ = ["V2_NAMES", "decode_base64", "decode_list", "decode_raw", "encode_base64", "encode_list", "encode_raw"]

Array = np.ndarray[Any, Any]
MAX_RANK = 32
MAX_ELEMENTS = 1 << 58  # of 16 bytes: what an array can count

# Open Inference Protocol. What it has no name for goes by ours, in upper case.
V2_NAMES: dict[DType, str] = {
    DType.Bool: "BOOL",
    DType.UInt8: "UINT8",
    DType.UInt16: "UINT16",
    DType.UInt32: "UINT32",
    DType.UInt64: "UINT64",
    DType.Int8: "INT8",
    DType.Int16: "INT16",
    DType.Int32: "INT32",
    DType.Int64: "INT64",
    DType.Float16: "FP16",
    DType.BFloat16: "BF16",
    DType.Float32: "FP32",
    DType.Float64: "FP64",
    DType.String: "BYTES",
}
_BY_V2 = {name: kind for kind, name in V2_NAMES.items()}


def v2_name(kind: DType) -> str:
    """The protocol's name of an element type."""
    return V2_NAMES.get(kind, kind.label.upper())


def kind_of(name: object, where: str) -> DType:
    """The element type of a name: ``float32`` or ``FP32``."""
    if isinstance(name, str):
        if name in _BY_V2:
            return _BY_V2[name]
        try:
            return DType.of(name)
        except DTypeMismatchError:
            pass
    known = ", ".join([*(kind.label for kind in V2_NAMES), *_BY_V2])
    raise refuse(f"{where}: there is no element type {name!r}. There are {known}")


def refuse(message: str) -> RequestError:
    """A request that was not understood."""
    return RequestError(400, "InvalidRequest", message)


def shape_of(sizes: object, where: str) -> tuple[int, ...]:
    """A shape: whole numbers from 0 on."""
    if not isinstance(sizes, list) or len(sizes) > MAX_RANK:
        raise refuse(f"{where}: shape must be a list of at most {MAX_RANK} sizes, got {shown(sizes)}")
    for size in sizes:
        if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size < 1 << 48:
            raise refuse(f"{where}: {shown(size)} in shape is no size: sizes are whole numbers from 0 on")
    if math.prod([size for size in sizes if size]) > MAX_ELEMENTS:  # also where another size is 0
        raise refuse(f"{where}: shape {shown(sizes)} is larger than any array")
    return tuple(sizes)


def shown(value: object) -> str:
    """A value in a message, cut."""
    text = repr(value)
    return text if len(text) < 60 else text[:57] + "..."


def decode_raw(data: Any, kind: DType, shape: tuple[int, ...], where: str) -> Array:
    """An array over little-endian bytes, without a copy.

    Example:
        >>> decode_raw(bytes([0, 0, 128, 63]), DType.Float32, (1,), "x")
        array([1.], dtype=float32)
    """
    count = math.prod(shape)
    if kind is DType.String:
        return _decode_strings(data, count, where).reshape(shape)
    need = count * kind.itemsize
    if len(data) != need:
        raise refuse(f"{where}: {kind.label}{list(shape)} has {need} bytes, got {len(data)}")
    array = np.frombuffer(data, _on_the_wire(kind))
    if kind is DType.Bool and array.size and array.view(np.uint8).max() > 1:
        raise refuse(f"{where}: bytes of a bool tensor are 0 or 1")
    return (array if array.flags.aligned else array.copy()).reshape(shape)


@cache
def _on_the_wire(kind: DType) -> np.dtype[Any]:
    """Little-endian; where numbers are so in memory, the very type that arrays have."""
    plain = np.dtype(kind.numpy)
    return plain if sys.byteorder == "little" or plain.kind not in "fiuc" else plain.newbyteorder("<")


def encode_raw(array: Array) -> bytes | memoryview:
    """Little-endian bytes in C order; strings with their lengths before them."""
    if array.dtype.kind == "O":
        parts = [item.encode("utf-8", "surrogateescape") for item in array.reshape(-1)]
        return b"".join(struct.pack("<I", len(part)) + part for part in parts)
    plain = np.ascontiguousarray(array)
    return plain.reshape(-1).view(np.uint8).data if plain.size else b""


def _decode_strings(data: Any, count: int, where: str) -> Array:
    view = memoryview(data)
    found = np.empty(min(count, len(view) // 4 + 1), dtype=object)
    at = 0
    for i in range(count):
        if at + 4 > len(view):
            raise refuse(f"{where}: the bytes end at element {i} of {count}")
        (length,) = struct.unpack_from("<I", view, at)
        at += 4
        if at + length > len(view):
            raise refuse(f"{where}: element {i} has {length} bytes, {len(view) - at} are left")
        found[i] = bytes(view[at : at + length]).decode("utf-8", "surrogateescape")
        at += length
    if at != len(view):
        raise refuse(f"{where}: {len(view) - at} bytes after the last of {count} elements")
    return found


def decode_base64(text: str, kind: DType, shape: tuple[int, ...], where: str) -> Array:
    """An array from base64 of its little-endian bytes.

    Example:
        >>> decode_base64("AACAPw==", DType.Float32, (1,), "x")
        array([1.], dtype=float32)
    """
    try:
        data = binascii.a2b_base64(text, strict_mode=True)
    except (binascii.Error, ValueError) as error:
        raise refuse(f"{where}: data is not base64: {error}") from None
    return decode_raw(data, kind, shape, where)


def encode_base64(array: Array) -> str:
    """Base64 of the little-endian bytes."""
    return binascii.b2a_base64(encode_raw(array), newline=False).decode()


def decode_list(data: list[Any], kind: DType, shape: tuple[int, ...] | None, where: str) -> Array:
    """An array from numbers or strings, flat or nested; no number loses its value to the element type.

    Example:
        >>> decode_list([[1, 2]], DType.Float32, (1, 2), "x")
        array([[1., 2.]], dtype=float32)
    """
    if _depth(data) > MAX_RANK:
        raise refuse(f"{where}: data has more than {MAX_RANK} axes")
    if kind is DType.String:
        array = _strings(data, where)
    else:
        array = _numbers(data, kind, where)
    if shape is None:
        return array
    if array.size != math.prod(shape) or (array.size and array.ndim > 1 and array.shape != shape):
        raise refuse(
            f"{where}: shape {list(shape)} has {math.prod(shape)} elements, data has shape {list(array.shape)}"
        )
    return array.reshape(shape)


def _numbers(data: list[Any], kind: DType, where: str) -> Array:
    try:
        natural = np.array(data)
    except (ValueError, OverflowError) as error:
        raise refuse(f"{where}: data is not rectangular: {error}") from None
    if not natural.size:
        return natural.astype(kind.numpy)
    if kind.is_integer and natural.dtype.kind in "fO":  # numbers from 2**63 on, perhaps
        return _large(data, kind, where)
    wanted = "b" if kind is DType.Bool else "iu" if kind.is_integer else "iuf" if kind.is_float else "iufc"
    if natural.dtype.kind not in wanted:
        raise refuse(f"{where}: data must be numbers that fit {kind.label}, got {shown(_first(data))}")
    if kind.is_integer:
        return _whole(natural, kind, where)
    with np.errstate(over="ignore"):
        array = natural.astype(kind.numpy)
    if kind.is_float and not np.isfinite(array.astype(np.float64)).all():
        raise refuse(f"{where}: a number is too large for {kind.label}")
    return array


def _whole(natural: Array, kind: DType, where: str) -> Array:
    array = natural.astype(kind.numpy)
    if not (array.astype(natural.dtype) == natural).all() or ((array < 0) != (natural < 0)).any():
        raise refuse(f"{where}: a number does not fit {kind.label}")
    return array


def _large(data: list[Any], kind: DType, where: str) -> Array:
    exact = np.array(data, dtype=object)
    if any(type(item) is not int for item in exact.reshape(-1)):
        raise refuse(f"{where}: data must be numbers that fit {kind.label}, got {shown(_first(data))}")
    try:
        return exact.astype(kind.numpy)
    except (OverflowError, TypeError, ValueError):
        raise refuse(f"{where}: a number does not fit {kind.label}") from None


def _depth(data: Any) -> int:
    depth = 0
    while isinstance(data, list):
        depth += 1
        data = data[0] if data else None
    return depth


def _first(data: Any) -> Any:
    while isinstance(data, list) and data:
        data = data[0]
    return data


def _strings(data: list[Any], where: str) -> Array:
    shape = []
    level: Any = data
    while isinstance(level, list):
        shape.append(len(level))
        level = level[0] if level else None
    flat: list[Any] = data
    for size in shape[1:]:
        if any(not isinstance(part, list) or len(part) != size for part in flat):
            raise refuse(f"{where}: data is not rectangular")
        flat = [item for part in flat for item in part]
    if any(not isinstance(item, str) for item in flat):
        raise refuse(f"{where}: data must be strings")
    array = np.empty(len(flat), dtype=object)
    array[:] = flat
    return array.reshape(shape)


def _is_text(item: Any) -> bool:
    """Whether it can be written; bytes that are no UTF-8 are kept as surrogates."""
    try:
        str(item).encode()
    except UnicodeEncodeError:
        return False
    return True


def encode_list(array: Array, *, flat: bool = False) -> tuple[list[Any], int]:
    """Numbers as lists, and how many JSON has no way to write: NaN and infinities are null."""
    if array.dtype.kind == "O":
        if not all(_is_text(item) for item in array.reshape(-1)):
            raise refuse("strings that are no UTF-8 have no form in JSON: ask for base64 or binary data")
        return [str(item) for item in array.reshape(-1)] if flat else array.tolist(), 0
    plain = array
    if array.dtype.isbuiltin != 1:  # a type of ml_dtypes
        plain = array.astype(np.float32 if DType.of(array.dtype).is_float else np.int64)
    if plain.dtype.kind == "c":
        raise refuse(f"{array.dtype.name} has no form in JSON: ask for base64 or binary data")
    lost = 0
    if plain.dtype.kind == "f":
        finite = np.isfinite(plain)
        lost = int(plain.size - np.count_nonzero(finite))
        if lost:
            plain = plain.astype(object)
            plain[~finite] = None
    return (plain.reshape(-1) if flat else plain).tolist(), lost
