"""Save and load: nested data with tensors, in files that hold no code.

A native file (``.pf``) is eight bytes of magic, the length of a JSON header, the header, and the data of the tensors at
multiples of 64 bytes. The header has the structure (dicts, lists, tuples, numbers, text, None), a table of tensors, and
checksums of both.
``.safetensors`` and ``.npz`` hold a flat mapping from names to tensors. Checkpoints of torch can be read.
"""

from __future__ import annotations

import json
import lzma
import math
import os
import struct
import tempfile
import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from pyflame.dtypes import DType, to_dtype
from pyflame.evaluation import evaluate
from pyflame.interop import from_torch
from pyflame.lazy import leaf
from pyflame.ops.core import Handle, wrap
from pyflame_rt.graph.errors import InvalidModelError, ModelNotFoundError, UnsupportedFormatError
from pyflame_rt.importers.torch_checkpoint import read_checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

__all__ = ["load", "save"]

MAGIC = b"PYFLAME\1"
ALIGN = 64
# A header larger than this is not a header.
MAX_HEADER = 256 << 20
MAX_DEPTH = 64
_SAFE = {
    DType.float64: "F64", DType.float32: "F32", DType.float16: "F16", DType.bfloat16: "BF16", DType.int64: "I64",
    DType.int32: "I32", DType.int16: "I16", DType.int8: "I8", DType.uint8: "U8", DType.bool: "BOOL",
}  # fmt: skip
_FROM_SAFE = {code: dtype for dtype, code in _SAFE.items()}


def save(obj: Any, path: str | os.PathLike[str], format: str = "auto") -> None:
    """Write nested data to a file, all of it or nothing: a reader never sees half of one.

    Args:
        obj: tensors, NumPy arrays, numbers, text, bytes, None, and dicts, lists and tuples of them; an object with
            ``state_dict()`` stands for that. The flat formats take a mapping from names to tensors.
        path: where to.
        format: "pf", "safetensors" or "npz"; "auto" goes by the suffix.

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
    _WRITERS[kind](data, Path(path))


def load(path: str | os.PathLike[str], format: str = "auto", device: Any = None) -> Any:
    """Read what :func:`save` wrote, any ``.safetensors`` or ``.npz`` file of numbers, or a checkpoint of torch.

    Args:
        path: where from.
        format: as for :func:`save`, or "torch" (``.pt``, ``.pth``, ``.bin``), which runs no code of the file.
        device: where the tensors are to be computed; must be one that is here.
    """
    from pyflame.device import Device

    if device is not None:
        Device.of(device)
    source = Path(path)
    if not source.is_file():
        raise ModelNotFoundError(f"there is no file {str(path)!r}")
    return _READERS[_format(path, format, _READERS)](source)


_SUFFIXES = {
    ".pf": "pf", ".safetensors": "safetensors", ".npz": "npz", ".pt": "torch", ".pth": "torch", ".bin": "torch",
}  # fmt: skip


def _format(path: str | os.PathLike[str], format: str, known: Collection[str]) -> str:
    if format in known:
        return format
    if format != "auto":
        raise UnsupportedFormatError(f"format is one of auto, {', '.join(known)}, got {format!r}")
    suffix = Path(path).suffix.lower()
    kind = _SUFFIXES.get(suffix)
    if kind == "torch" and kind not in known:
        raise UnsupportedFormatError(
            f"{str(path)!r}: the suffix {suffix!r} is that of torch's files, which can be read, not written; "
            "use .pf or .safetensors"
        )
    if kind is None:
        raise UnsupportedFormatError(
            f"{str(path)!r}: the suffix {suffix!r} says nothing about the format; use .pf, .safetensors or .npz, "
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


def _write(path: Path, fill: Callable[[Any], None]) -> None:
    """Write beside the target, then take its place."""
    folder = path.absolute().parent
    if not folder.is_dir():
        raise ModelNotFoundError(f"there is no folder {str(folder)!r} to write {path.name!r} to")
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=folder)
    try:
        with os.fdopen(handle, "wb") as sink:
            fill(sink)
            sink.flush()
            os.fsync(sink.fileno())
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


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


def _write_native(obj: Any, path: Path) -> None:
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


def _read_native(path: Path) -> Any:
    data = np.memmap(path, np.uint8, "r") if path.stat().st_size else np.zeros(0, np.uint8)
    if data[:8].tobytes() != MAGIC:
        raise InvalidModelError(f"{path}: not a .pf file")
    length = int.from_bytes(data[8:16].tobytes(), "little")
    header = _body(path, _json(path, data, 16, length))
    arrays = _table(path, header.get("tensors"), data[16 + length :])
    for number, (array, crc) in enumerate(zip(arrays, header["crc"], strict=False)):
        if zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data) != crc:
            raise InvalidModelError(f"{path}: the data of tensor {number} is damaged (its checksum is wrong)")
    try:
        return _unpack(header["data"], arrays, 0)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise InvalidModelError(f"{path}: the header is damaged: {type(error).__name__}: {error}") from error


def _body(path: Path, header: dict[str, Any]) -> dict[str, Any]:
    """The description of the data, after its checksum."""
    body, sums = header.get("body"), header.get("crc")
    if not isinstance(body, str) or not isinstance(sums, list) or zlib.crc32(body.encode()) != header.get("body_crc"):
        raise InvalidModelError(f"{path}: the header is damaged (its checksum is wrong)")
    described = json.loads(body)
    if not isinstance(described, dict) or len(sums) != len(described.get("tensors", ())):
        raise InvalidModelError(f"{path}: the header is damaged (checksums are missing)")
    return {**described, "crc": sums}


def _json(path: Path, data: np.ndarray[Any, Any], start: int, length: int) -> dict[str, Any]:
    if length > MAX_HEADER or start + length > data.size:
        raise InvalidModelError(f"{path}: a header of {length} bytes does not fit a file of {data.size}")
    try:
        header = json.loads(data[start : start + length].tobytes())
    except (ValueError, RecursionError) as error:
        raise InvalidModelError(f"{path}: the header is damaged: {error}") from error
    if not isinstance(header, dict):
        raise InvalidModelError(f"{path}: the header is no mapping")
    return header


def _table(path: Path, table: Any, data: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
    try:
        return [_piece(data, to_dtype(t["dtype"]), t["shape"], t["offset"]) for t in table]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidModelError(f"{path}: the table of tensors is damaged: {error}") from error


def _piece(data: np.ndarray[Any, Any], dtype: DType, shape: Any, offset: Any, end: int | None = None) -> Any:
    """A copy of one tensor's data: the file may be replaced or change while the tensor is in use."""
    if not isinstance(offset, int) or not all(isinstance(s, int) and s >= 0 for s in shape):
        raise ValueError(f"shape {shape} at {offset} is not a tensor's")
    nbytes = math.prod(shape) * dtype.itemsize
    if offset < 0 or offset + nbytes > data.size or (end is not None and end - offset != nbytes):
        raise ValueError(f"a tensor of shape {list(shape)} at {offset} is not within {data.size} bytes of data")
    return np.frombuffer(data[offset : offset + nbytes].tobytes(), dtype.numpy).reshape(shape)


def _tensor(array: np.ndarray[Any, Any]) -> Any:
    return wrap(leaf(array, to_dtype(array.dtype)))


def _unpack(item: Any, arrays: list[np.ndarray[Any, Any]], depth: int) -> Any:
    if depth > 2 * MAX_DEPTH:
        raise ValueError("nested too deep")
    if isinstance(item, list):
        return [_unpack(value, arrays, depth + 1) for value in item]
    if not isinstance(item, dict):
        return item
    (kind, value), *rest = item.items()
    match kind:
        case "dict":
            return {_unpack(k, arrays, depth + 1): _unpack(v, arrays, depth + 1) for k, v in value}
        case "tuple":
            return tuple(_unpack(v, arrays, depth + 1) for v in value)
        case "tensor":
            made = _tensor(_at(arrays, value))
            return made.requires_grad_() if dict(rest).get("grad") is True else made
        case "array":
            return _at(arrays, value).copy()
        case "bytes":
            return _at(arrays, value).tobytes()
        case "int":
            return int(value)
        case "float":
            return float(value)
    raise ValueError(f"unknown entry {kind!r}")


def _at(arrays: list[np.ndarray[Any, Any]], number: Any) -> np.ndarray[Any, Any]:
    if not isinstance(number, int) or not 0 <= number < len(arrays):
        raise ValueError(f"there is no tensor {number!r}")
    return arrays[number]


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


def _write_safetensors(obj: Any, path: Path) -> None:
    arrays = _flat(obj, ".safetensors")
    header: dict[str, Any] = {}
    offset = 0
    for name, array in arrays.items():
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


def _read_safetensors(path: Path) -> dict[str, Any]:
    if path.stat().st_size < 8:
        raise InvalidModelError(f"{path}: not a .safetensors file")
    data = np.memmap(path, np.uint8, "r")
    length = int.from_bytes(data[:8].tobytes(), "little")
    header = _json(path, data, 8, length)
    result = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        try:
            start, end = entry["data_offsets"]
            dtype = _FROM_SAFE.get(entry["dtype"])
            if dtype is None:
                raise ValueError(f"element type {entry['dtype']} is not supported")
            result[name] = _tensor(_piece(data[8 + length :], dtype, entry["shape"], start, end))
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidModelError(f"{path}: tensor {name!r}: {error}") from error
    return result


def _write_npz(obj: Any, path: Path) -> None:
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


def _read_npz(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as source, np.load(source, allow_pickle=False) as file:
            return {name: _tensor(np.asarray(file[name], order="C")) for name in file.files}
    except _BAD_ZIP as error:
        raise InvalidModelError(f"{path}: not an .npz file of numbers: {error}") from error


def _read_torch(path: Path) -> Any:
    return read_checkpoint(path, from_torch)


_WRITERS: dict[str, Callable[[Any, Path], None]] = {
    "pf": _write_native,
    "safetensors": _write_safetensors,
    "npz": _write_npz,
}
_READERS: dict[str, Callable[[Path], Any]] = {
    "pf": _read_native,
    "safetensors": _read_safetensors,
    "npz": _read_npz,
    "torch": _read_torch,
}
