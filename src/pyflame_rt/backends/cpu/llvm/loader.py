"""Make object code executable.

On Linux with x86-64 objects are placed here: all sections of those that come together go into one piece of memory, so
code reaches its constants wherever that piece is. LLVM's own loader maps each section wherever there is room; where
more than 2 GB came to lie between two of them it ended the process. Other systems have that loader.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import platform
import sys
from functools import cache
from typing import TYPE_CHECKING, Any

import llvmlite.binding as llvm
import numpy as np

from pyflame_rt.backends.cpu.llvm import codegen
from pyflame_rt.graph.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["load"]

Bytes = np.ndarray[Any, np.dtype[np.uint8]]

_WIDTHS = {"name": 4, "type": 4, "flags": 8, "address": 8, "offset": 8, "size": 8, "link": 4, "info": 4, "align": 8}
_SECTION = np.dtype([(name, f"<u{width}") for name, width in {**_WIDTHS, "entry": 8}.items()])
_SYMBOL = np.dtype(
    [("name", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2"), ("value", "<i8"), ("size", "<u8")]
)
_FIXUP = np.dtype([("offset", "<i8"), ("type", "<u4"), ("symbol", "<u4"), ("addend", "<i8")])
_MAGIC = b"\x7fELF\x02\x01"  # 64 bits, little endian
_SYMBOLS, _FIXUPS, _EMPTY = 2, 4, 8  # types of sections
_WRITTEN, _PLACED = 1, 2  # flags of sections
_NEAR = (2, 4)  # fixups: 32 bits relative to themselves, of data and of functions
_OUTSIDE, _RESERVED = 0, 0xFF00  # sections of symbols that are not in the object; from the second on they are special
_JUMP = b"\xff\x25\0\0\0\0"  # to the address in the 8 bytes behind the instruction
_LINE = 64
_CHUNK = 1 << 20


class Object:
    """An ELF object for x86-64, as far as generated code needs it: it only reads constants and calls functions.

    Raises:
        BackendError: It is something else.
    """

    def __init__(self, code: bytes) -> None:
        self.data = np.frombuffer(code, np.uint8)
        if code[:6] != _MAGIC or len(code) < 64:
            raise BackendError("machine code is not an ELF object of 64 bits")
        start, count = int.from_bytes(code[0x28:0x30], "little"), int.from_bytes(code[0x3C:0x3E], "little")
        self.sections = self._table(_SECTION, start, count)
        ends = self.sections["offset"] + np.where(self.sections["type"] == _EMPTY, 0, self.sections["size"])
        if int(ends.max(initial=0)) > len(code):
            raise BackendError("machine code ends before its last section does")
        flags = self.sections["flags"]
        self.placed = np.flatnonzero((flags & _PLACED != 0) & (self.sections["size"] > 0))
        if np.any(flags[self.placed] & _WRITTEN):
            raise BackendError("machine code has data that is written to, which generated kernels never have")
        (table,) = self.sections[self.sections["type"] == _SYMBOLS]
        self.symbols = self._entries(_SYMBOL, table)
        names = self.sections[int(table["link"])]
        self._names = code[int(names["offset"]) : int(names["offset"] + names["size"])]

    def _table(self, kind: np.dtype[Any], start: int, count: int) -> np.ndarray[Any, Any]:
        if start + count * kind.itemsize > len(self.data):
            raise BackendError("machine code ends before its last table does")
        return np.frombuffer(self.data, kind, count, start)

    def _entries(self, kind: np.dtype[Any], section: np.void) -> np.ndarray[Any, Any]:
        return self._table(kind, int(section["offset"]), int(section["size"]) // kind.itemsize)

    def name(self, symbol: int) -> str:
        """Of a symbol."""
        start = int(self.symbols["name"][symbol])
        return self._names[start : self._names.index(b"\0", start)].decode()

    def fixups(self) -> list[tuple[int, np.ndarray[Any, Any]]]:
        """Sections and what must be written into them when addresses are known."""
        found = []
        for section in self.sections[self.sections["type"] == _FIXUPS]:
            target = int(section["info"])
            if target in self.placed:
                found.append((target, self._entries(_FIXUP, section)))
        return found

    def outside(self) -> dict[int, str]:
        """Symbols of other modules that are used."""
        used = {int(symbol) for _, fixups in self.fixups() for symbol in np.unique(fixups["symbol"])}
        return {symbol: self.name(symbol) for symbol in used if self.symbols["section"][symbol] == _OUTSIDE}

    def find(self, name: str) -> tuple[int, int]:
        """Section of a function and its place in it."""
        wanted = name.encode() + b"\0"
        for symbol in self.symbols:
            start = int(symbol["name"])
            if _OUTSIDE < symbol["section"] < _RESERVED and self._names[start : start + len(wanted)] == wanted:
                return int(symbol["section"]), int(symbol["value"])
        raise BackendError(f"machine code has no function {name}")


class _Room:
    """Memory for code. Pages are written once, then made executable, and stay for the life of the process."""

    def __init__(self) -> None:
        self._memory: Bytes = np.empty(0, np.uint8)
        self._used = 0

    def take(self, size: int) -> Bytes:
        """Whole pages that may be written to, until `protect`."""
        size = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        if self._used + size > len(self._memory):
            self._memory, self._used = np.frombuffer(mmap.mmap(-1, max(size, _CHUNK)), np.uint8), 0
            _kept.append(self._memory)
        self._used += size
        return self._memory[self._used - size : self._used]


_kept: list[Bytes] = []
_room = _Room()


def _protect(memory: Bytes) -> None:
    address, size = ctypes.c_void_p(memory.ctypes.data), ctypes.c_size_t(len(memory))
    if _libraries()[0].mprotect(address, size, mmap.PROT_READ | mmap.PROT_EXEC):
        raise BackendError(
            "this system does not let a process execute code it has made (a security setting, such as SELinux's "
            "execmem); allow it, or use the reference provider"
        )


@cache
def _libraries() -> list[ctypes.CDLL]:
    """What is loaded for everybody, and the mathematical functions of C where they are apart."""
    found = [ctypes.CDLL(None)]
    with contextlib.suppress(OSError):
        found.append(ctypes.CDLL("libm.so.6"))
    return found


@cache
def _address(name: str) -> int:
    """Of a function of the C library."""
    for library in _libraries():
        with contextlib.suppress(AttributeError):
            return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0
    raise BackendError(f"machine code calls {name}, which this process does not have")


def _layout(objects: Sequence[Object]) -> tuple[list[dict[int, int]], dict[str, int], int]:
    """Where the sections of each object go, then jumps to functions elsewhere; and the size of all."""
    size = 0
    places: list[dict[int, int]] = []
    for item in objects:
        spots: dict[int, int] = {}
        for section in item.placed:
            align = max(_LINE, int(item.sections["align"][section]))
            spots[int(section)] = size = -(-size // align) * align
            size += int(item.sections["size"][section])
        places.append(spots)
    size = -(-size // _LINE) * _LINE
    names = dict.fromkeys(name for item in objects for name in item.outside().values())
    jumps = {name: size + 16 * k for k, name in enumerate(names)}
    return places, jumps, size + 16 * len(jumps)


def place(codes: Sequence[bytes], names: Sequence[str]) -> list[int]:
    """Make ELF objects executable: addresses of one function of each."""
    objects = [Object(code) for code in codes]
    places, jumps, size = _layout(objects)
    memory = _room.take(size)
    for name, spot in jumps.items():
        memory[spot : spot + 14] = np.frombuffer(_JUMP + _address(name).to_bytes(8, "little"), np.uint8)
    for item, spots in zip(objects, places, strict=True):
        for section, spot in spots.items():
            first, length = int(item.sections["offset"][section]), int(item.sections["size"][section])
            if item.sections["type"][section] != _EMPTY:
                memory[spot : spot + length] = item.data[first : first + length]
        _fix(item, spots, jumps, memory)
    _protect(memory)
    found = [(spots, *item.find(name)) for item, spots, name in zip(objects, places, names, strict=True)]
    return [memory.ctypes.data + spots[section] + value for spots, section, value in found]


def _fix(item: Object, spots: dict[int, int], jumps: dict[str, int], memory: Bytes) -> None:
    """Write distances between an object's parts into its code."""
    bases = np.full(len(item.sections), -1, np.int64)
    bases[list(spots)] = list(spots.values())
    within = (item.symbols["section"] > _OUTSIDE) & (item.symbols["section"] < len(bases))
    sections = np.where(within, item.symbols["section"], 0)
    targets = np.where(within & (bases[sections] >= 0), bases[sections] + item.symbols["value"], -1)
    for symbol, name in item.outside().items():
        targets[symbol] = jumps[name]
    for section, fixups in item.fixups():
        to = targets[fixups["symbol"]]
        offsets = fixups["offset"]
        if not np.isin(fixups["type"], _NEAR).all() or (to < 0).any() or (offsets < 0).any():
            raise BackendError("machine code refers to something in a way that generated kernels never do")
        if (offsets + 4 > int(item.sections["size"][section])).any():
            raise BackendError("machine code refers to something outside of its sections")
        at = spots[section] + offsets
        distances = (to + fixups["addend"] - at).astype("<i4")
        memory[at[:, None] + np.arange(4)] = distances.view(np.uint8).reshape(-1, 4)


# ---------------------------------------------------------------------- LLVM's loader


@cache
def _engine(level: int) -> llvm.ExecutionEngine:
    """What holds code of one form: both have functions of the same names."""
    return llvm.create_mcjit_compiler(llvm.parse_assembly(""), codegen.machine(level))


def _link(codes: Sequence[bytes], names: Sequence[str], level: int) -> list[int]:
    """The same as `place`, by LLVM; the names must be new to the process in that form of code."""
    engine = _engine(level)
    for code in codes:
        engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return [engine.get_function_address(name) for name in names]


_OURS = sys.platform == "linux" and platform.machine() == "x86_64"


def load(codes: Sequence[bytes], names: Sequence[str], level: int) -> list[int]:
    """Make object code executable, one thread at a time.

    Args:
        codes: objects.
        names: of one function of each.
        level: which form of code it is.

    Returns:
        Addresses of the functions, for the life of the process.

    Raises:
        BackendError: Something else than generated code, or the system does not allow it.
    """
    return place(codes, names) if _OURS else _link(codes, names, level)
