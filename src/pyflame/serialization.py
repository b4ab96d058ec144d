"""Save and load: nested data with tensors, in files that hold no code.

A native file (``.pf``) is eight bytes of magic, the length of a JSON header, the header, and the data of the tensors at
multiples of 64 bytes. The header has the structure (dicts, lists, tuples, numbers, text, None), a table of tensors, and
checksums of both.
``.safetensors`` and ``.npz`` hold a flat mapping from names to tensors; ``.pt`` is torch's own form, for both sides.
"""

from __future__ import annotations

import json
import lzma
import math
import struct
import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from pyflame.devices import Device
from pyflame.dtypes import DType, to_dtype
from pyflame.evaluation import evaluate
from pyflame.interop import from_torch
from pyflame.lazy import leaf
from pyflame.open_files import is_open, sniffed, spooled
from pyflame.ops.core import Handle, wrap
from pyflame.suggestions import missing as _missing
from pyflame.torch_files import write_archive
from pyflame_rt.graph.errors import InvalidModelError, MissingExtra, ModelNotFoundError, UnsupportedFormatError
from pyflame_rt.graph.named_arguments import names_arguments
from pyflame_rt.graph.writing import replacing
from pyflame_rt.importers.tensor_file import (
    Piece,
    TensorFile,
    check_total,
    header_mapping,
    limited,
    make_piece,
    read_safetensors,
)
from pyflame_rt.importers.torch_checkpoint import read_checkpoint
from pyflame_rt.importers.torch_pickle import read_archive

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Collection, Iterator

__all__ = ["load", "save"]

MAGIC = b"PYFLAME\1"
ALIGN = 64
MAX_DEPTH = 64
_USUAL_BYTES, _MOST_TIMES = 1 << 30, 16
_SAFE = {
    DType.float64: "F64", DType.float32: "F32", DType.float16: "F16", DType.bfloat16: "BF16", DType.int64: "I64",
    DType.int32: "I32", DType.int16: "I16", DType.int8: "I8", DType.uint8: "U8", DType.bool: "BOOL",
    DType.complex64: "C64",
}  # fmt: skip
_FROM_SAFE = {code: dtype.numpy for dtype, code in _SAFE.items()}


@names_arguments
def save(obj: Any, path: str | os.PathLike[str] | IO[bytes], format: str = "auto") -> None:
    """Write nested data to a file, all of it or nothing: a reader never sees half of one.

    Args:
        obj: tensors, NumPy arrays, numbers, text, bytes, None, and dicts, lists and tuples of them; an object with
            ``state_dict()`` stands for that. The flat formats take a mapping from names to tensors.
        path: where to; or a file that is open for writing bytes.
        format: "pf", "safetensors", "npz", or "torch" (which torch reads); "auto" goes by the suffix, and means
            "torch" for open files.

    Example:
        >>> import pyflame as pf, tempfile, pathlib
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "state.pf"
        >>> pf.save({"step": 3, "w": pf.ones([2])}, path)
        >>> pf.load(path)
        {'step': 3, 'w': tensor([1., 1.])}
    """
    kind = _format(path, format, _WRITERS)
    data = obj.state_dict() if hasattr(obj, "state_dict") and not isinstance(obj, (dict, Handle)) else obj
    tensors = list(_tensors(data, 0))
    evaluate([t._value for t in tensors])
    _WRITERS[kind](data, path if is_open(path) else Path(path))  # type: ignore[arg-type]


@names_arguments
def load(
    path: str | os.PathLike[str] | IO[bytes],
    format: Any = "auto",
    device: Any = None,
    *,
    map_location: Any = None,
    weights_only: bool | None = None,
    max_bytes: int | None = None,
) -> Any:
    """Read what :func:`save` wrote, any ``.safetensors`` or ``.npz`` file of numbers, or a checkpoint of torch.

    What a file says it holds is added up before memory is taken. Tensors of .pf and .safetensors files may not overlap,
    so they take no more than the file; those of .npz files may be compressed.

    Args:
        path: where from; or a file that is open for reading bytes.
        format: as for :func:`save`; "auto" goes by the suffix, or by the first bytes. A device in its place is
            ``map_location``, as torch's second argument is.
        device: where the tensors are to be computed; must be one that is here.
        map_location: the same; a dict or a function that would move tensors has nothing to move: they are on the CPU.
        weights_only: of no effect: no code of a file is run, whatever the format.
        max_bytes: that all tensors together may take; a gigabyte, or sixteen times the file, unless given.

    Raises:
        ModelNotFoundError: There is no such file.
        UnsupportedFormatError: Nothing says what the format is.
        InvalidModelError: The file is damaged, cannot be read, or holds more than ``max_bytes``.
    """
    del weights_only
    if isinstance(format, Device) or (isinstance(format, str) and format.partition(":")[0] in _DEVICES):
        format, map_location = "auto", format
    for wanted in (device, *(map_location.values() if isinstance(map_location, dict) else [map_location])):
        if wanted is not None and not callable(wanted):
            Device.of(wanted)
    if is_open(path):
        with spooled(path) as copy:
            return load(copy, sniffed(copy) if format == "auto" else format, max_bytes=max_bytes)
    source = Path(path)  # type: ignore[arg-type]
    if not source.is_file():
        raise ModelNotFoundError(f"there is no file {str(path)!r}")
    known = format != "auto" or source.suffix.lower() in _SUFFIXES
    read = _READERS[_format(path, format, _READERS) if known else sniffed(source)]
    limit = max(_USUAL_BYTES, _MOST_TIMES * source.stat().st_size) if max_bytes is None else max_bytes
    try:
        return read(source, limit)
    except OSError as error:
        raise InvalidModelError(f"{path}: cannot be read: {error.strerror or error}") from error
    except MemoryError as error:
        raise InvalidModelError(f"{path}: there is no memory for what it holds") from error


_SUFFIXES = {
    ".pf": "pf", ".safetensors": "safetensors", ".npz": "npz", ".pt": "torch", ".pth": "torch", ".bin": "torch",
    ".ckpt": "torch", ".tar": "torch", ".th": "torch",
}  # fmt: skip
_DEVICES = ("cpu", "cuda", "mps", "xpu", "meta", "cerebras", "rocm")


def _format(path: Any, format: str, known: Collection[str]) -> str:
    if is_open(path) and format == "auto":
        return "torch"
    if format in known:
        return format
    if format != "auto":
        raise UnsupportedFormatError(f"format is one of auto, {', '.join(known)}, got {format!r}")
    suffix = Path(path).suffix.lower()
    kind = _SUFFIXES.get(suffix)
    if kind is None:
        raise UnsupportedFormatError(
            f"{str(path)!r}: the suffix {suffix!r} says nothing about the format; use .pf, .pt, .safetensors or .npz, "
            "or pass format="
        )
    return kind


def _tensors(obj: Any, depth: int) -> Iterator[Any]:
    if depth > MAX_DEPTH:
        raise ValueError(f"data nested more than {MAX_DEPTH} deep, or containing itself, cannot be saved")
    if isinstance(obj, Handle):
        yield obj
    elif isinstance(obj, dict):
        for value in obj.values():
            yield from _tensors(value, depth + 1)
    elif isinstance(obj, (list, tuple)):
        for value in obj:
            yield from _tensors(value, depth + 1)


def _write(path: Path | IO[bytes], fill: Callable[[Any], None]) -> None:
    """Write beside the target, then take its place; into an open file as it is."""
    if not isinstance(path, Path):
        fill(path)
        return
    with replacing(path) as sink:
        fill(sink)


# ------------------------------------------------------------------ the native form


class _Pack:
    """The structure as JSON, tensors by number."""

    def __init__(self) -> None:
        self.arrays: list[np.ndarray[Any, Any]] = []
        self.table: list[dict[str, Any]] = []
        self.offset = 0
        self.seen: dict[int, int] = {}

    def pack(self, obj: Any) -> Any:
        match obj:
            case None | bool() | str():
                return obj
            case int():
                return obj if abs(obj) < 2**53 else {"int": str(obj)}
            case float():
                return obj if math.isfinite(obj) else {"float": repr(obj)}
            case Handle():
                return {"tensor": self._array(obj._value.array, id(obj._value)), "grad": bool(obj._value.needs_grad)}
            case np.ndarray():
                return {"array": self._array(obj, id(obj))}
            case np.generic():
                return self.pack(obj.item())
            case bytes():
                return {"bytes": self._array(np.frombuffer(obj, np.uint8), id(obj))}
            case dict():
                return {"dict": [[self._key(key), self.pack(value)] for key, value in obj.items()]}
            case tuple():
                return {"tuple": [self.pack(value) for value in obj]}
            case list():
                return [self.pack(value) for value in obj]
            case _:
                raise TypeError(
                    f"{type(obj).__name__} cannot be saved: files hold tensors, arrays, numbers, text, and dicts, "
                    "lists and tuples of them"
                )

    def _key(self, key: Any) -> Any:
        if not isinstance(key, (str, int, float, bool, tuple)) and key is not None:
            raise TypeError(f"a dict with keys of {type(key).__name__} cannot be saved")
        return self.pack(key)

    def _array(self, array: np.ndarray[Any, Any] | None, identity: int) -> int:
        assert array is not None
        if identity in self.seen:
            return self.seen[identity]
        kind = to_dtype(array.dtype)
        data = np.asarray(array, order="C")
        self.table.append({"dtype": kind.name, "shape": list(data.shape), "offset": self.offset})
        self.arrays.append(data)
        self.offset += -(-data.nbytes // ALIGN) * ALIGN
        self.seen[identity] = len(self.arrays) - 1
        return self.seen[identity]


def _write_native(obj: Any, path: Path | IO[bytes]) -> None:
    pack = _Pack()
    body = json.dumps({"data": pack.pack(obj), "tensors": pack.table}, separators=(",", ":"))
    sums = [zlib.crc32(array.reshape(-1).view(np.uint8).data) for array in pack.arrays]
    header = json.dumps({"body": body, "body_crc": zlib.crc32(body.encode()), "crc": sums}).encode()
    start = len(MAGIC) + 8 + len(header)
    header += b" " * (-start % ALIGN)

    def fill(sink: Any) -> None:
        sink.write(MAGIC + len(header).to_bytes(8, "little") + header)
        for array in pack.arrays:
            sink.write(array.reshape(-1).view(np.uint8).data)
            sink.write(b"\0" * (-array.nbytes % ALIGN))

    _write(path, fill)


def _read_native(path: Path, max_bytes: int) -> Any:
    with path.open("rb", buffering=0) as opened:
        file = TensorFile(path, opened)
        if file.size < 16 or file.read(0, 8).tobytes() != MAGIC:
            raise InvalidModelError(f"{path}: not a .pf file")
        header, start = file.header(8)
        body, sums = _body(path, header)
        arrays = file.tensors(start, limited(path, _table(path, body.get("tensors")), max_bytes))
    for number, (array, crc) in enumerate(zip(arrays, sums, strict=True)):
        if zlib.crc32(array.reshape(-1).view(np.uint8).data) != crc:
            raise InvalidModelError(f"{path}: the data of tensor {number} is damaged (its checksum is wrong)")
    try:
        return _Unpack(arrays).value(body["data"], 0)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise InvalidModelError(f"{path}: the header is damaged: {type(error).__name__}: {error}") from error


def _body(path: Path, header: dict[str, Any]) -> tuple[dict[str, Any], list[Any]]:
    """The description of the data, after its checksum, and the checksums of tensors."""
    body, sums = header.get("body"), header.get("crc")
    data = body.encode("utf-8", "surrogatepass") if isinstance(body, str) else b""
    if not data or not isinstance(sums, list) or zlib.crc32(data) != header.get("body_crc"):
        raise InvalidModelError(f"{path}: the header is damaged (its checksum is wrong)")
    described = header_mapping(path, data)
    table = described.get("tensors")
    if not isinstance(table, list) or len(sums) != len(table):
        raise InvalidModelError(f"{path}: the header is damaged (checksums are missing)")
    return described, sums


def _table(path: Path, table: Any) -> list[Piece]:
    try:
        return [make_piece(str(i), to_dtype(t["dtype"]).numpy, t["shape"], t["offset"]) for i, t in enumerate(table)]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidModelError(f"{path}: the table of tensors is damaged: {error}") from error


def _tensor(array: np.ndarray[Any, Any]) -> Any:
    return wrap(leaf(array, to_dtype(array.dtype)))


class _Unpack:
    """Values from their description; an array that is named twice is one array."""

    def __init__(self, arrays: list[np.ndarray[Any, Any]]) -> None:
        self.arrays = arrays
        self.copies: dict[int, np.ndarray[Any, Any]] = {}
        self.texts: dict[int, bytes] = {}

    def value(self, item: Any, depth: int) -> Any:
        if depth > 2 * MAX_DEPTH:
            raise ValueError("nested too deep")
        if isinstance(item, list):
            return [self.value(v, depth + 1) for v in item]
        if not isinstance(item, dict):
            return item
        (kind, value), *rest = item.items()
        match kind:
            case "dict":
                return {self.value(k, depth + 1): self.value(v, depth + 1) for k, v in value}
            case "tuple":
                return tuple(self.value(v, depth + 1) for v in value)
            case "tensor":
                made = _tensor(self._at(value))
                return made.requires_grad_() if dict(rest).get("grad") is True else made
            case "array":
                if value not in self.copies:
                    self.copies[value] = self._at(value).copy()
                return self.copies[value]
            case "bytes":
                if value not in self.texts:
                    self.texts[value] = self._at(value).tobytes()
                return self.texts[value]
            case "int":
                return int(value)
            case "float":
                return float(value)
        raise ValueError(f"unknown entry {kind!r}")

    def _at(self, number: Any) -> np.ndarray[Any, Any]:
        if type(number) is not int or not 0 <= number < len(self.arrays):
            raise ValueError(f"there is no tensor {number!r}")
        return self.arrays[number]


# ------------------------------------------------------------------ flat forms


def _flat(obj: Any, form: str) -> dict[str, np.ndarray[Any, Any]]:
    if not isinstance(obj, dict) or not all(isinstance(k, str) for k in obj):
        raise TypeError(f"{form} files hold a mapping from names to tensors, got {type(obj).__name__}; use .pf")
    result = {}
    for name, value in obj.items():
        array = value._value.array if isinstance(value, Handle) else value
        if not isinstance(array, np.ndarray):
            raise TypeError(f"{form} files hold tensors only, {name!r} is {type(value).__name__}; use .pf")
        to_dtype(array.dtype)
        result[name] = np.asarray(array, order="C")
    return result


def _write_safetensors(obj: Any, path: Path | IO[bytes]) -> None:
    arrays = _flat(obj, ".safetensors")
    header: dict[str, Any] = {}
    offset = 0
    for name, array in arrays.items():
        if to_dtype(array.dtype) not in _SAFE:
            raise TypeError(f".safetensors files cannot hold {array.dtype} ({name!r}); use .pf, .pt or .npz")
        ends = [offset, offset + array.nbytes]
        header[name] = {"dtype": _SAFE[to_dtype(array.dtype)], "shape": list(array.shape), "data_offsets": ends}
        offset = ends[1]
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)

    def fill(sink: Any) -> None:
        sink.write(len(text).to_bytes(8, "little") + text)
        for array in arrays.values():
            sink.write(array.reshape(-1).view(np.uint8).data)

    _write(path, fill)


def _read_safetensors(path: Path, max_bytes: int) -> dict[str, Any]:
    return {name: _tensor(array) for name, array in read_safetensors(path, max_bytes, _FROM_SAFE).items()}


def _write_npz(obj: Any, path: Path | IO[bytes]) -> None:
    arrays = _flat(obj, ".npz")
    odd = [name for name, array in arrays.items() if array.dtype == ml_dtypes.bfloat16]
    if odd:
        raise TypeError(f"NumPy's files cannot hold bfloat16 ({odd[0]!r}); convert with .float(), or use .safetensors")
    _write(path, lambda sink: np.savez(sink, **arrays))  # type: ignore[arg-type]


# What NumPy, zipfile and the parsers under them raise for files that are not what they seem.
_BAD_ZIP = (
    ValueError, TypeError, LookupError, AttributeError, OSError, EOFError, RuntimeError, MemoryError, SyntaxError,
    zipfile.BadZipFile, zlib.error, struct.error, lzma.LZMAError, tokenize.TokenError,
)  # fmt: skip


def _read_npz(path: Path, max_bytes: int) -> dict[str, Any]:
    try:
        with zipfile.ZipFile(path) as file:
            members = file.infolist()
            check_total(path, sum(member.file_size for member in members), max_bytes)
            return {member.filename.removesuffix(".npy"): _tensor(_npy(file, member)) for member in members}
    except _BAD_ZIP as error:
        raise InvalidModelError(f"{path}: not an .npz file of numbers: {error}") from error


def _npy(file: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray[Any, Any]:
    """One array; memory is taken when its size is known to be that of the member."""
    with file.open(member) as source:
        version = np.lib.format.read_magic(source)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, by_columns, dtype = read(source)
        nbytes = math.prod(shape) * dtype.itemsize
        if dtype.hasobject or nbytes + source.tell() != member.file_size:
            raise ValueError(f"{member.filename}: shape {shape} of {dtype} does not take its {member.file_size} bytes")
        data = source.read(nbytes)
    array = np.frombuffer(bytearray(data), dtype).reshape(shape, order="F" if by_columns else "C")
    return np.asarray(array, order="C")


def _read_torch(path: Path, max_bytes: int) -> Any:
    try:
        return read_checkpoint(path, lambda t: from_torch(t).requires_grad_(t.requires_grad), max_bytes)
    except MissingExtra:
        return _with_tensors(read_archive(path, max_bytes))


def _with_tensors(data: Any) -> Any:
    if isinstance(data, np.ndarray):
        return _tensor(np.array(data, order="C"))
    if isinstance(data, dict):
        return {key: _with_tensors(value) for key, value in data.items()}
    return type(data)(map(_with_tensors, data)) if isinstance(data, (list, tuple)) else data


def _write_torch(obj: Any, path: Path | IO[bytes]) -> None:
    _write(path, lambda sink: write_archive(obj, sink))


_WRITERS: dict[str, Callable[[Any, Path | IO[bytes]], None]] = {
    "pf": _write_native,
    "safetensors": _write_safetensors,
    "npz": _write_npz,
    "torch": _write_torch,
}
_READERS: dict[str, Callable[[Path, int], Any]] = {
    "pf": _read_native,
    "safetensors": _read_safetensors,
    "npz": _read_npz,
    "torch": _read_torch,
}


def __getattr__(name: str) -> object:
    raise _missing("pyflame.serialization", name, __all__)
