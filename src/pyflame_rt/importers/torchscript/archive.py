"""TorchScript archives: code as syntax trees, the module tree and constants by the restricted unpickler."""

from __future__ import annotations

import ast
import math
import threading
import warnings
import zipfile
import zlib
from typing import TYPE_CHECKING, Any, NamedTuple

from pyflame_rt.graph.dtype import DType
from pyflame_rt.graph.errors import InvalidModelError, UnsupportedFormatError
from pyflame_rt.importers.torch_pickle import MAX_PICKLE, PickledName, PickleMachine, Refused, TensorArchive
from pyflame_rt.importers.torchscript.origins import origins_of

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Example", "Scripted", "ScriptedObject", "parsed", "read_scripted"]
_parsing = threading.Lock()

_LISTS = ("build_intlist", "build_doublelist", "build_boollist", "build_tensorlist")


class ScriptedObject:
    """An object of a class that the archive's code defines: a module, most often."""

    __slots__ = ("attributes", "kind")

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.attributes: dict[str, Any] = {}

    def __repr__(self) -> str:
        return f"<{self.kind}>"


class Example(NamedTuple):
    """The type of a tensor that a model was traced with."""

    dtype: DType
    shape: tuple[int, ...]


class Scripted(NamedTuple):
    """What an archive holds.

    Attributes:
        root: the module.
        constants: tensors and lists that the code calls ``CONSTANTS.c0``, ``c1``, ...
        sources: code by the name of its module, such as ``__torch__.torch.nn.modules.linear``.
        origins: for lines of the code of a module, the line of the file that they were scripted from.
        examples: what ``forward`` was traced with; None for scripts, and for traces of old versions.
    """

    root: ScriptedObject
    constants: tuple[Any, ...]
    sources: dict[str, str]
    origins: dict[str, dict[str, str]]
    examples: list[Any] | None


def member(kind: str, value: Any) -> ScriptedObject:
    """A member of an enumeration of the archive's code, which is known by its value."""
    made = ScriptedObject(kind)
    made.attributes = {"value": value}
    return made


class _ScriptArchive(TensorArchive):
    packed = "code/"


class _ScriptMachine(PickleMachine):
    """Objects of the archive's own classes besides tensors and plain data."""

    def allowed(self, module: str, name: str) -> Any:
        if module == "__torch__" or module.startswith("__torch__."):
            return PickledName("__torch__", f"{module}.{name}")
        if module == "torch.jit._pickle" and name in ("restore_type_tag", *_LISTS):
            return PickledName(module, name)
        return super().allowed(module, name)

    def op_newobj(self, _: Any) -> None:
        kind, arguments = self.take(2)
        if not isinstance(kind, PickledName) or kind.module != "__torch__" or arguments != ():
            raise Refused("it makes an object of a class that is not the archive's own")
        self.stack.append(ScriptedObject(kind.name))

    def op_reduce(self, _: Any) -> None:
        kind, value = self.stack[-2:] if len(self.stack) > 1 else (None, None)
        if isinstance(kind, PickledName) and kind.module == "__torch__" and type(value) in (int, float, str):
            self.take(2)
            self.stack.append(member(kind.name, value))  # of an enumeration
            return
        super().op_reduce(_)

    def op_build(self, _: Any) -> None:
        (state,) = self.take(1)
        made = self.stack[-1]
        if isinstance(made, ScriptedObject):
            if type(state) is not dict or not all(isinstance(key, str) for key in state):
                raise Refused(f"an object of {made.kind} is restored by code of the file")
            made.attributes = state
        elif type(made) is not dict:
            raise Refused("it sets the attributes of an object")

    def called(self, name: str, arguments: tuple[Any, ...]) -> Any:
        match name, arguments:
            case "restore_type_tag", (value, str()):
                return value
            case _, (list() as items, *_) if name in _LISTS:
                return items
            case "device", (str(kind), *_):
                return kind
        return super().called(name, arguments)


class _ExampleArchive(_ScriptArchive):
    """Traced inputs have sizes and no data."""

    def storage(self, pid: Any) -> Any:
        if not isinstance(pid, tuple) or len(pid) != 5 or not isinstance(pid[1], PickledName):
            raise Refused("a persistent id is not that of a storage")
        return pid[1]

    def tensor(self, storage: Any, offset: Any, size: Any, stride: Any, dtype: str | None = None) -> Any:
        del offset, stride
        if not isinstance(storage, PickledName) or not all(type(n) is int and n >= 0 for n in size):
            raise ValueError("a traced input is no tensor")
        label = dtype or _STORAGE_LABELS.get(storage.name)
        if label is None:
            raise ValueError(f"a traced input of {storage.name}")
        return Example(DType.of(label), tuple(size))


_STORAGE_LABELS = {
    "FloatStorage": "float32", "DoubleStorage": "float64", "HalfStorage": "float16", "BFloat16Storage": "bfloat16",
    "LongStorage": "int64", "IntStorage": "int32", "ShortStorage": "int16", "CharStorage": "int8",
    "ByteStorage": "uint8", "BoolStorage": "bool", "ComplexFloatStorage": "complex64",
}  # fmt: skip


def read_scripted(path: Path, max_bytes: int) -> Scripted:
    """Read an archive; no code of it runs.

    Args:
        path: the file.
        max_bytes: that all tensors together may take.

    Raises:
        InvalidModelError: the archive is damaged, holds more than ``max_bytes``, or asks for names that are neither
            tensors, plain data nor classes of its own code.
    """
    try:
        with zipfile.ZipFile(path) as file:
            return _read(path, file, max_bytes)
    except Refused as error:
        raise InvalidModelError(f"{path}: {error}; no code of a file is run") from error
    except (
        ValueError, TypeError, LookupError, OverflowError, EOFError, RuntimeError, NotImplementedError, SyntaxError,
        MemoryError, zipfile.BadZipFile, zlib.error,
    ) as error:  # fmt: skip
        if isinstance(error, (InvalidModelError, UnsupportedFormatError)):
            raise
        raise InvalidModelError(f"{path}: not a TorchScript archive, or damaged: {error}") from error


def _read(path: Path, file: zipfile.ZipFile, max_bytes: int) -> Scripted:
    archive = _ScriptArchive(path, file, max_bytes)
    root = _ScriptMachine(archive).run(archive.member("data.pkl", MAX_PICKLE))
    if not isinstance(root, ScriptedObject):
        raise ValueError("data.pkl holds no module")
    archive.tensors = "constants/"
    constants = _ScriptMachine(archive).run(archive.member("constants.pkl", MAX_PICKLE))
    sources: dict[str, str] = {}
    origins: dict[str, dict[str, str]] = {}
    folder = f"{archive.root}code/"
    for name in archive.members:
        if name.startswith(folder) and name.endswith(".py"):
            text = archive.member(name.removeprefix(archive.root), MAX_PICKLE).decode("utf-8")
            parsed(text)  # what is no code is refused here
            module = name.removeprefix(folder).removesuffix(".py").replace("/", ".")
            sources[module], origins[module] = text, origins_of(_ScriptMachine(archive), archive, name, text)
    return Scripted(root, tuple(constants), sources, origins, _examples(path, file, archive))


def parsed(text: str) -> ast.Module:
    """The syntax tree of code of an archive."""
    # CPython counts the depth of a tree for all threads in one place, and warnings are of the process.
    with _parsing, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the file's text, such as an odd escape in a string
        return ast.parse(text)


def _examples(path: Path, file: zipfile.ZipFile, archive: TensorArchive) -> list[Any] | None:
    if archive.root + "traced_inputs.pkl" not in archive.members:
        return None
    shapes = _ExampleArchive(path, file, math.inf)  # type: ignore[arg-type]  # nothing is read but sizes
    found = _ScriptMachine(shapes).run(shapes.member("traced_inputs.pkl", MAX_PICKLE))
    listed = found.get("forward") if isinstance(found, dict) else None
    return listed if isinstance(listed, list) else None
