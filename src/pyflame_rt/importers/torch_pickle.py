"""Restricted unpickling of torch's archives: an interpreter of few opcodes and an allow-list; no code is run.

``torch.save`` writes a zip archive: ``data.pkl`` has the structure, ``data/<key>`` the bytes of each storage. The names
the pickle asks for are looked up in a table of our own, never imported, and every size is compared with what the
archive holds before memory is taken.
"""

from __future__ import annotations

import math
import pickletools
import zipfile
import zlib
from typing import TYPE_CHECKING, Any, NamedTuple

import ml_dtypes
import numpy as np

from pyflame_rt.graph.errors import InvalidModelError, UnsupportedFormatError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["MAX_PICKLE", "PickleMachine", "PickledName", "Refused", "Storage", "TensorArchive", "read_archive"]

MAX_PICKLE = 64 << 20  # bytes of structure; weights are not part of it
MAX_RANK = 64  # NumPy's
_BYTES = "bytes"  # a storage that leaves the element type to its tensors

_STORAGES = {
    "FloatStorage": "float32", "DoubleStorage": "float64", "HalfStorage": "float16", "BFloat16Storage": "bfloat16",
    "LongStorage": "int64", "IntStorage": "int32", "ShortStorage": "int16", "CharStorage": "int8",
    "ByteStorage": "uint8", "BoolStorage": "bool", "ComplexFloatStorage": "complex64",
    "ComplexDoubleStorage": "complex128",
}  # fmt: skip
_DTYPES: dict[str, np.dtype[Any]] = {
    name: np.dtype(getattr(ml_dtypes, name) if name.startswith(("bfloat", "float8")) else name)
    for name in (*_STORAGES.values(), "uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2",
                 "float8_e5m2fnuz")
}  # fmt: skip
_DTYPES |= {"float": _DTYPES["float32"], "double": _DTYPES["float64"], "half": _DTYPES["float16"]}


class Refused(ValueError):
    """The pickle asks for what is not on the list."""


class PickledName(NamedTuple):
    """A name of the allow-list; what it means is decided where it is used."""

    module: str
    name: str


class Storage(NamedTuple):
    """Bytes, and the name of the element type they have."""

    data: np.ndarray[Any, np.dtype[np.uint8]]
    dtype: str


def read_archive(path: Path, max_bytes: int) -> Any:
    """What ``torch.save`` wrote: dicts, lists, tuples, numbers and text as they are, tensors as NumPy arrays.

    Args:
        path: the archive.
        max_bytes: that all tensors together may take.

    Raises:
        InvalidModelError: the archive is damaged, holds more than ``max_bytes``, or asks for other names than those of
            tensors and plain data.
        UnsupportedFormatError: it was written on a machine of the other byte order.
    """
    try:
        with zipfile.ZipFile(path) as file:
            archive = TensorArchive(path, file, max_bytes)
            return PickleMachine(archive).run(archive.member("data.pkl", MAX_PICKLE))
    except Refused as error:
        raise InvalidModelError(
            f"{path}: {error}; only tensors and plain data are read, and no code of a file is run: "
            "save model.state_dict() in torch"
        ) from error
    except (
        ValueError, TypeError, LookupError, OverflowError, EOFError, RuntimeError, NotImplementedError,
        zipfile.BadZipFile, zlib.error,
    ) as error:  # fmt: skip
        if isinstance(error, (InvalidModelError, UnsupportedFormatError)):
            raise
        raise InvalidModelError(f"{path}: not a checkpoint of torch, or damaged: {error}") from error


class TensorArchive:
    """The members of a zip file, each read at most once, and the tensors in them.

    Attributes:
        anchor: a member that is in the folder of the others.
        packed: folder whose members may be compressed, "" for none; they are counted against `MAX_PICKLE`.
        tensors: folder of the storages.
    """

    anchor = "data.pkl"
    packed = ""

    def __init__(self, path: Path, file: zipfile.ZipFile, max_bytes: int) -> None:
        self.path, self.file, self.max_bytes = path, file, max_bytes
        self.members = {info.filename: info for info in file.infolist()}
        places = (n for n in self.members if n.count("/") == 1 and n.endswith(f"/{self.anchor}"))
        self.root = next(places, "").removesuffix(self.anchor)
        self.storages: dict[str, np.ndarray[Any, np.dtype[np.uint8]]] = {}
        self.tensors = "data/"
        self.taken = 0
        self._check_sizes()
        if self.root + "byteorder" in self.members and self.member("byteorder", 16) != b"little":
            raise UnsupportedFormatError(f"{path}: was written big-endian; save it again on a little-endian machine")

    def _check_sizes(self) -> None:
        """Refuse archives that would take more memory than their size on disk lets expect."""
        folder = self.root + self.packed
        small = {n for n in self.members if self.packed and n.startswith(folder)}
        packed = [n for n, i in self.members.items() if i.compress_type != zipfile.ZIP_STORED and n not in small]
        if packed:
            raise ValueError(f"member {packed[0]!r} is compressed, which torch never does")
        held = sum(info.file_size for name, info in self.members.items() if name not in small)
        size = self.path.stat().st_size
        if held > size:
            raise ValueError(f"members of {held} bytes are declared in a file of {size}")
        text = sum(self.members[name].file_size for name in small)
        if text > MAX_PICKLE:
            raise ValueError(f"code of {text} bytes is declared; at most {MAX_PICKLE} are read")

    def member(self, name: str, limit: int) -> bytes:
        """The bytes of a member, if they are no more than ``limit``."""
        info = self.members.get(self.root + name)
        if info is None:
            raise ValueError(f"it has no member {self.root + name!r}")
        if info.file_size > limit:
            raise InvalidModelError(
                f"{self.path}: member {info.filename!r} declares {info.file_size} bytes; {limit} are allowed"
            )
        return self.file.read(info)

    def storage(self, pid: Any) -> Storage:
        """The storage a persistent id stands for."""
        if not isinstance(pid, tuple) or len(pid) != 5 or pid[0] != "storage":
            raise Refused("a persistent id is not that of a storage")
        _, kind, key, _, count = pid
        dtype = _storage_dtype(kind)
        if type(key) is not str or type(count) is not int or count < 0:
            raise ValueError("a storage has no name, or no number of elements")
        nbytes = count * (1 if dtype == _BYTES else _DTYPES[dtype].itemsize)
        name = self.tensors + key
        if name not in self.storages:
            data = self.member(f"{self.tensors}{key}", self.max_bytes)
            self.storages[name] = np.frombuffer(bytearray(data), np.uint8)
        if nbytes > self.storages[name].nbytes:
            raise ValueError(f"storage {key!r} declares {nbytes} bytes and has {self.storages[name].nbytes}")
        return Storage(self.storages[name][:nbytes], dtype)

    def tensor(self, storage: Any, offset: Any, size: Any, stride: Any, dtype: str | None = None) -> Any:
        """A contiguous array of some elements of a storage."""
        if not isinstance(storage, Storage):
            raise Refused("a tensor without a storage")
        kind = storage.dtype if dtype is None else dtype
        if kind not in _DTYPES:
            raise ValueError("a tensor without an element type")
        element, sizes, steps = _DTYPES[kind], tuple(size), tuple(stride)
        numbers = (offset, *sizes, *steps)
        if len(sizes) != len(steps) or len(sizes) > MAX_RANK or not all(type(n) is int and n >= 0 for n in numbers):
            raise ValueError("offset, sizes and strides are not a tensor's")
        count = math.prod(sizes)
        last = offset + sum((n - 1) * step for n, step in zip(sizes, steps, strict=True)) if count else -1
        if last >= storage.data.nbytes // element.itemsize:
            raise ValueError(f"a tensor of shape {list(sizes)} reaches beyond its storage")
        self.taken += count * element.itemsize
        if self.taken > self.max_bytes:
            raise InvalidModelError(f"{self.path}: the tensors take more than max_bytes={self.max_bytes} allows")
        if not count:
            return np.empty(sizes, element)
        apart = tuple(step * element.itemsize for step in steps)
        view = np.ndarray(sizes, element, storage.data.data, offset * element.itemsize, apart)
        return np.ascontiguousarray(view).reshape(sizes)


def _storage_dtype(kind: Any) -> str:
    if isinstance(kind, PickledName):
        if kind.name in _STORAGES:
            return _STORAGES[kind.name]
        if kind.name == "UntypedStorage":
            return _BYTES
    raise Refused("a storage is of no known kind")


def _allowed(module: str, name: str) -> PickledName:
    known = {
        "collections": ("OrderedDict",),
        "torch": (*_STORAGES, *_DTYPES, "Size", "device"),
        "torch.storage": ("UntypedStorage",),
        "torch._utils": ("_rebuild_tensor_v2", "_rebuild_tensor_v3", "_rebuild_parameter"),
    }
    if name not in known.get(module, ()):
        raise Refused(f"it asks for {module}.{name}")
    return PickledName(module, name)


class PickleMachine:
    """A stack, a memo and the opcodes torch writes (pickle protocol 2)."""

    def __init__(self, archive: TensorArchive) -> None:
        self.archive = archive
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def run(self, data: bytes) -> Any:
        """The value a pickle describes."""
        steps: dict[str, Callable[[Any], None]] = {
            name.removeprefix("op_").upper(): getattr(self, name) for name in dir(self) if name.startswith("op_")
        }
        for opcode, argument, _ in pickletools.genops(data):
            name = opcode.name
            if name == "STOP":
                return self.stack.pop()
            if name in _VALUES:
                self.stack.append(argument)
            elif name in _CONSTANTS:
                self.stack.append(_CONSTANTS[name])
            elif name in steps:
                steps[name](argument)
            else:
                raise Refused(f"it uses the pickle opcode {name}")
        raise ValueError("the pickle has no end")

    def take(self, count: int) -> list[Any]:
        """The last values, which leave the stack."""
        if len(self.stack) - (self.marks[-1] if self.marks else 0) < count:
            raise ValueError("the pickle takes more than it made")
        taken = self.stack[len(self.stack) - count :]
        del self.stack[len(self.stack) - count :]
        return taken

    def _to_mark(self) -> list[Any]:
        start = self.marks.pop()
        taken = self.stack[start:]
        del self.stack[start:]
        return taken

    def op_proto(self, version: int) -> None:
        if version != 2:
            raise ValueError(f"pickle protocol {version} is not the one torch writes")

    def op_mark(self, _: Any) -> None:
        self.marks.append(len(self.stack))

    def op_binput(self, index: int) -> None:
        self.memo[index] = self.stack[-1]

    op_long_binput = op_binput

    def op_binget(self, index: int) -> None:
        self.stack.append(self.memo[index])

    op_long_binget = op_binget

    def op_empty_dict(self, _: Any) -> None:
        self.stack.append({})

    def op_empty_list(self, _: Any) -> None:
        self.stack.append([])

    def op_tuple(self, _: Any) -> None:
        self.stack.append(tuple(self._to_mark()))

    def op_tuple1(self, _: Any) -> None:
        self.stack.append(tuple(self.take(1)))

    def op_tuple2(self, _: Any) -> None:
        self.stack.append(tuple(self.take(2)))

    def op_tuple3(self, _: Any) -> None:
        self.stack.append(tuple(self.take(3)))

    def op_append(self, _: Any) -> None:
        self._extend(self.take(1))

    def op_appends(self, _: Any) -> None:
        self._extend(self._to_mark())

    def _extend(self, items: list[Any]) -> None:
        if type(self.stack[-1]) is not list:
            raise ValueError("the pickle appends to what is no list")
        self.stack[-1].extend(items)

    def op_setitem(self, _: Any) -> None:
        self._update(self.take(2))

    def op_setitems(self, _: Any) -> None:
        self._update(self._to_mark())

    def _update(self, items: list[Any]) -> None:
        if type(self.stack[-1]) is not dict:
            raise ValueError("the pickle sets items of what is no dict")
        keys = items[::2]
        if not all(isinstance(key, (str, int, float, bool, type(None))) for key in keys):
            raise ValueError("a dict has keys that are neither text nor numbers")
        self.stack[-1].update(zip(keys, items[1::2], strict=True))

    def op_build(self, _: Any) -> None:
        self.take(1)  # the attributes of a state dict: versions of modules, which nothing here reads
        if type(self.stack[-1]) is not dict:
            raise Refused("it sets the attributes of an object")

    def op_global(self, argument: str) -> None:
        module, _, name = argument.partition(" ")
        self.stack.append(self.allowed(module, name))

    def allowed(self, module: str, name: str) -> Any:
        """What a name of the pickle stands for; raises for all but those on the list."""
        return _allowed(module, name)

    def op_binpersid(self, _: Any) -> None:
        self.stack.append(self.archive.storage(*self.take(1)))

    def op_reduce(self, _: Any) -> None:
        function, arguments = self.take(2)
        if not isinstance(function, PickledName) or type(arguments) is not tuple:
            raise Refused("it calls what is no function")
        self.stack.append(self.called(function.name, arguments))

    def called(self, name: str, arguments: tuple[Any, ...]) -> Any:
        """What a function of the list makes of its arguments."""
        match name, arguments:
            case "OrderedDict", ():
                return {}
            case "Size", (tuple(sizes),):
                return sizes
            case "device", (str(kind), *_):
                return kind
            case "_rebuild_tensor_v2", (storage, offset, tuple(size), tuple(stride), *_):
                return self.archive.tensor(storage, offset, size, stride)
            case "_rebuild_tensor_v3", (
                storage,
                offset,
                tuple(size),
                tuple(stride),
                _,
                _,
                PickledName("torch", dtype),
                *_,
            ):
                return self.archive.tensor(storage, offset, size, stride, dtype)
            case "_rebuild_parameter", (np.ndarray() as data, *_):
                return data
        raise Refused(f"it calls {name} with {len(arguments)} arguments of other kinds than torch writes")


_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_VALUES = frozenset(("BINUNICODE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"))
