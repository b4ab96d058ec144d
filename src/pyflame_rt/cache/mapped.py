"""Files as memory: pages are read when they are looked at, and may be given back.

A mapped file must not be cut short by others while it is in use: the system ends a process that looks at pages which
are no longer there. Sessions read model files in their own, careful way; this is for programs that map files of theirs.
"""

from __future__ import annotations

import ctypes
import enum
import mmap
import os
import stat
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.graph import DType, Graph, Shape, Tensor
from pyflame_rt.graph.arguments import expect, expect_whole
from pyflame_rt.graph.errors import InputError, InvalidModelError
from pyflame_rt.graph.pages import immutable_files

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

__all__ = ["LazyTensor", "MMapAdvice", "MMapLoader", "MappedFile"]


class MMapAdvice(enum.Enum):
    """How a mapped file will be read.

    Example:
        >>> [advice.name for advice in MMapAdvice]
        ['Normal', 'Random', 'Sequential', 'WillNeed', 'DontNeed']
    """

    Normal = "MADV_NORMAL"
    Random = "MADV_RANDOM"
    Sequential = "MADV_SEQUENTIAL"
    WillNeed = "MADV_WILLNEED"
    DontNeed = "MADV_DONTNEED"


class MappedFile:
    """A file in memory, for reading. Made by :meth:`open`, which always gives one: false when there is nothing mapped.

    Example:
        >>> with MappedFile.open(__file__) as file:
        ...     file.is_valid(), file.size() == os.path.getsize(__file__), file.advise(MMapAdvice.Sequential)
        (True, True, True)
        >>> missing = MappedFile.open("no such file")
        >>> bool(missing), missing.size(), "no such file" in missing.error
        (False, 0, True)
    """

    def __init__(self) -> None:
        self.path = ""
        self.error = ""  # why nothing is mapped
        self._mapped: mmap.mmap | None = None
        self._file = -1

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> MappedFile:
        """Map a file; where that fails, the result is not valid, and its ``error`` says why."""
        file = cls()
        file.path = os.fspath(path)
        try:
            file._file = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0))
            file._mapped = mmap.mmap(file._file, 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            file.error = f"{file.path!r} cannot be mapped: {error}"
            file.close()
        return file

    def is_valid(self) -> bool:
        """Whether there is something to read."""
        return self._mapped is not None and not self._mapped.closed

    def __bool__(self) -> bool:
        return self.is_valid()

    def size(self) -> int:
        """Bytes that are mapped; 0 when nothing is."""
        return 0 if self._mapped is None or self._mapped.closed else len(self._mapped)

    def data(self) -> memoryview:
        """The file's bytes, which nobody copied.

        Raises:
            InvalidModelError: Nothing is mapped.
        """
        return memoryview(self._open())

    def read(self, offset: int, size: int) -> bytes:
        """Some bytes, read from the file into memory of their own.

        Raises:
            InvalidModelError: Nothing is mapped, or the file has become shorter.
        """
        self._open()
        if hasattr(os, "pread"):
            found = os.pread(self._file, size, offset)
        else:
            found = bytes(self.data()[offset : offset + size])
        if len(found) < size:
            raise InvalidModelError(f"{self.path!r} ends before byte {offset + size}: it has become shorter")
        return found

    def advise(self, advice: MMapAdvice, offset: int = 0, size: int | None = None) -> bool:
        """Tell the system how the file, or a part of it, will be read; False where the system takes no advice."""
        expect(advice, MMapAdvice, "advice")
        mapped = self._open()
        option = getattr(mmap, advice.value, None)
        if option is None:
            return False
        begin = offset // mmap.PAGESIZE * mmap.PAGESIZE
        end = len(mapped) if size is None else min(offset + size, len(mapped))
        mapped.madvise(option, begin, max(end - begin, 0))
        return True

    def lock(self) -> bool:
        """Read the file and keep it in memory; False where the system does not let us (``ulimit -l``)."""
        return self._pin("mlock")

    def unlock(self) -> bool:
        """Take :meth:`lock` back."""
        return self._pin("munlock")

    def _pin(self, name: str) -> bool:
        call = _system_call(name)
        address = np.frombuffer(self._open(), np.uint8).ctypes.data
        return call is not None and call(address, self.size()) == 0

    def _open(self) -> mmap.mmap:
        if self._mapped is None or self._mapped.closed:
            raise InvalidModelError(self.error or f"{self.path!r} was closed")
        return self._mapped

    def close(self) -> None:
        """Let go of the file; memory that others still look at is given back when they have finished."""
        mapped, self._mapped = self._mapped, None
        if mapped is not None:
            try:
                mapped.close()
            except BufferError:  # somebody has a view: the mapping goes with the last of them
                del mapped
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> MappedFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __repr__(self) -> str:
        return f"MappedFile({self.path!r}, {self.size()} bytes)" if self else f"MappedFile({self.error or self.path!r})"


@cache
def _system_call(name: str) -> Any:
    """A function of the C library that takes an address and a size; None where there is none."""
    if os.name != "posix":
        return None
    function = getattr(ctypes.CDLL(None), name, None)
    if function is not None:
        function.argtypes, function.restype = (ctypes.c_void_p, ctypes.c_size_t), ctypes.c_int
    return function


class LazyTensor:
    """A tensor in a file: its shape is known, its data are read when first asked for.

    Args:
        file: the file.
        offset: where the data begin, in bytes.
        shape: sizes.
        dtype: element type.

    Raises:
        InputError: The data do not lie within the file, or are of a type that has no fixed size.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "weights.bin"
        >>> _ = path.write_bytes(np.arange(6, dtype=np.float32).tobytes())
        >>> lazy = LazyTensor(MappedFile.open(path), 8, [2, 2], DType.Float32)
        >>> lazy.shape(), lazy.is_loaded(), lazy.materialize().numpy().tolist(), lazy.is_loaded()
        ([2, 2], False, [[2.0, 3.0], [4.0, 5.0]], True)
    """

    def __init__(self, file: MappedFile, offset: int, shape: Sequence[int], dtype: DType) -> None:
        expect(file, MappedFile, "the file of a LazyTensor")
        expect(dtype, DType, "the dtype of a LazyTensor")
        self._file = file
        self._offset = expect_whole(offset, "offset")
        self._shape = Shape(shape)
        self._dtype = dtype
        self._tensor: Tensor | None = None
        if not self._shape.is_static or dtype is DType.String:
            raise InputError(f"a lazy tensor needs known sizes and an element type of fixed size, got {shape} {dtype}")
        if offset < 0 or offset + self.size_bytes() > file.size():
            raise InputError(
                f"{self.size_bytes()} bytes at {offset} do not lie within {file.path!r}, which has {file.size()}"
            )

    def shape(self) -> Shape:
        """Sizes."""
        return self._shape

    def dtype(self) -> DType:
        """Element type."""
        return self._dtype

    def size_bytes(self) -> int:
        """Bytes of the data."""
        return (self._shape.num_elements or 0) * self._dtype.numpy.itemsize

    def is_loaded(self) -> bool:
        """Whether the data were asked for."""
        return self._tensor is not None

    def materialize(self, *, copy: bool = False) -> Tensor:
        """The tensor; its data are the file's pages, unless a copy is wanted, which the file cannot change."""
        if copy:
            return Tensor(self._array(np.frombuffer(self._file.read(self._offset, self.size_bytes()), np.uint8)))
        if self._tensor is None:
            whole = np.frombuffer(self._file.data(), np.uint8)
            self._tensor = Tensor(self._array(whole[self._offset : self._offset + self.size_bytes()]))
        return self._tensor

    def _array(self, data: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return data.view(self._dtype.numpy).reshape([int(size or 0) for size in self._shape])

    def release(self) -> None:
        """Forget the tensor and give its pages back to the system; they are read again when needed."""
        self._tensor = None
        if self._file and self.size_bytes():
            self._file.advise(MMapAdvice.DontNeed, self._offset, self.size_bytes())

    def __repr__(self) -> str:
        return f"LazyTensor({self._dtype.label}{self._shape} at {self._offset} of {self._file.path!r})"


class MMapLoader:
    """Models out of mapped files.

    Example:
        >>> MMapLoader.can_mmap(__file__), MMapLoader.can_mmap("no such file"), MMapLoader.page_alignment() >= 4096
        (True, False, True)
    """

    @staticmethod
    def can_mmap(path: str | os.PathLike[str]) -> bool:
        """Whether a file can be mapped: it is there, readable, a plain file, and not empty."""
        try:
            found = os.stat(path)
        except (OSError, ValueError):
            return False
        return stat.S_ISREG(found.st_mode) and found.st_size > 0 and os.access(path, os.R_OK)

    @staticmethod
    def page_alignment() -> int:
        """What offsets of mappings must be multiples of, in bytes."""
        return mmap.ALLOCATIONGRANULARITY

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Graph:
        """A model whose weights stay in its file until they are used. Nobody may write to the file meanwhile.

        Raises:
            ModelNotFoundError: There is no such file.
            InvalidModelError: It is no model, or a broken one.
        """
        from pyflame_rt.loading import load_graph

        with immutable_files():
            return load_graph(path)[0]
