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
import struct
import sys
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import llvmlite.binding as llvm
import numpy as np

from pyflame_rt.backends.cpu.jit import codegen
from pyflame_rt.graph.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["load"]

Bytes = np.ndarray[Any, np.dtype[np.uint8]]

_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHqQ")
_SYMBOLS = np.dtype([("name", "<u4"), ("kind", "<u2"), ("section", "<u2"), ("value", "<i8"), ("size", "<u8")])
_FIXUP = np.dtype([("offset", "<i8"), ("type", "<u4"), ("symbol", "<u4"), ("addend", "<i8")])
_MAGIC = b"\x7fELF\x02\x01"  # 64 bits, little endian
_SYMBOL_TABLE, _FIXUP_TABLE, _ZEROS = 2, 4, 8  # types of sections
_WRITTEN, _PLACED = 1, 2  # flags of sections
_DATA, _FUNCTION = 2, 4  # fixups: 32 bits relative to themselves
_JUMP = b"\xff\x25\0\0\0\0"  # to the address in the 8 bytes behind the instruction
_LINE = 64
_CHUNK = 1 << 20
_NOWHERE = -(1 << 62)
_FOUR = np.arange(4)


class _Section(NamedTuple):
    name: int
    type: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    align: int
    entry: int


class Object:
    """An ELF object for x86-64, as far as generated code needs it: it only reads constants and calls functions.

    Attributes:
        placed: the sections that go into memory, by number.
        inside: places of the functions that others may call: sections and offsets, by name.
        outside: names of functions of other modules, by symbol.

    Raises:
        BackendError: It is something else.
    """

    def __init__(self, code: bytes) -> None:
        if code[:6] != _MAGIC or len(code) < 64:
            raise BackendError("machine code is not an ELF object of 64 bits")
        self.code = code
        start, count = int.from_bytes(code[0x28:0x30], "little"), int.from_bytes(code[0x3C:0x3E], "little")
        table = memoryview(code)[start : start + count * _SECTION.size]
        if len(table) < count * _SECTION.size:
            raise BackendError("machine code ends before its table of sections does")
        self.sections = [_Section(*found) for found in _SECTION.iter_unpack(table)]
        if any(s.offset + s.size > len(code) for s in self.sections if s.type != _ZEROS):
            raise BackendError("machine code ends before its last section does")
        self.placed = {k: s for k, s in enumerate(self.sections) if s.flags & _PLACED and s.size}
        if any(s.flags & _WRITTEN for s in self.placed.values()):
            raise BackendError("machine code has data that is written to, which generated kernels never have")
        self._read_symbols()

    def _read_symbols(self) -> None:
        table = next((s for s in self.sections if s.type == _SYMBOL_TABLE), None)
        if table is None or table.link >= len(self.sections) or table.info * _SYMBOL.size > table.size:
            raise BackendError("machine code has no symbols")
        self.symbols = np.frombuffer(self.code, _SYMBOLS, table.size // _SYMBOL.size, table.offset)
        names = self.sections[table.link]
        first = table.offset + table.info * _SYMBOL.size  # what others do not see comes before
        self.inside: dict[str, tuple[int, int]] = {}
        self.outside: dict[int, str] = {}
        last = table.offset + len(self.symbols) * _SYMBOL.size
        for number, found in enumerate(_SYMBOL.iter_unpack(memoryview(self.code)[first:last]), table.info):
            begin = names.offset + found[0]
            name = self.code[begin : self.code.find(b"\0", begin)].decode()
            if found[3]:
                self.inside[name] = (found[3], found[4])
            else:
                self.outside[number] = name

    def fixups(self) -> list[tuple[int, np.ndarray[Any, Any]]]:
        """Sections and what must be written into them when addresses are known."""
        return [
            (s.info, np.frombuffer(self.code, _FIXUP, s.size // _FIXUP.itemsize, s.offset))
            for s in self.sections
            if s.type == _FIXUP_TABLE and s.info in self.placed
        ]


class _Room:
    """Memory for code. Pages are written once, then made executable, and stay for the life of the process."""

    def __init__(self) -> None:
        self._memory: Bytes = np.empty(0, np.uint8)
        self._used = 0

    def take(self, size: int) -> Bytes:
        """Whole pages that may be written to, until `protect`."""
        size = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        if self._used + size > len(self._memory):
            self._memory, self._used = self._fresh(max(size, _CHUNK)), 0
            _kept.append(self._memory)
        self._used += size
        return self._memory[self._used - size : self._used]

    @staticmethod
    def _fresh(size: int) -> Bytes:
        # Private: what a forked child writes here must not appear in its parent's code, nor the other way round.
        return np.frombuffer(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), np.uint8)


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
        for number, section in item.placed.items():
            align = max(_LINE, section.align)
            spots[number] = size = -(-size // align) * align
            size += section.size
        places.append(spots)
    size = -(-size // _LINE) * _LINE
    names = dict.fromkeys(name for item in objects for name in item.outside.values())
    jumps = {name: size + 16 * k for k, name in enumerate(names)}
    return places, jumps, size + 16 * len(jumps)


def place(codes: Sequence[bytes], names: Sequence[str]) -> list[int]:
    """Make ELF objects executable: addresses of one function of each.

    Raises:
        BackendError: They are not what generated code is.
    """
    try:
        return _placed(codes, names)
    except (IndexError, ValueError, OverflowError, OSError) as error:
        raise BackendError(f"machine code is damaged: {error}") from error


def _placed(codes: Sequence[bytes], names: Sequence[str]) -> list[int]:
    objects = [Object(code) for code in codes]
    places, jumps, size = _layout(objects)
    memory = _room.take(size)
    view = memory.data
    for name, spot in jumps.items():
        view[spot : spot + 14] = _JUMP + _address(name).to_bytes(8, "little")
    for item, spots in zip(objects, places, strict=True):
        for number, section in item.placed.items():
            if section.type != _ZEROS:
                spot = spots[number]
                view[spot : spot + section.size] = memoryview(item.code)[section.offset : section.offset + section.size]
        _fix(item, spots, jumps, memory)
    _protect(memory)
    return [memory.ctypes.data + _spot(*found) for found in zip(objects, places, names, strict=True)]


def _spot(item: Object, spots: dict[int, int], name: str) -> int:
    section, offset = item.inside.get(name, (0, 0))
    if section not in spots:
        raise BackendError(f"machine code has no function {name}")
    return spots[section] + offset


def _fix(item: Object, spots: dict[int, int], jumps: dict[str, int], memory: Bytes) -> None:
    """Write distances between an object's parts into its code."""
    fixups = item.fixups()
    if not fixups:
        return
    bases = np.full(len(item.sections) + 1, _NOWHERE)
    for number, spot in spots.items():
        bases[number] = spot
    sections = item.symbols["section"]
    targets = bases[np.minimum(sections, len(item.sections))] + item.symbols["value"]
    for symbol, name in item.outside.items():
        targets[symbol] = jumps[name]
    for number, found in fixups:
        to, offsets, kinds = targets[found["symbol"]], found["offset"], found["type"]
        known = ((kinds == _DATA) | (kinds == _FUNCTION)) & (to >= 0) & (offsets >= 0)
        if not (known & (offsets + 4 <= item.sections[number].size)).all():
            raise BackendError("machine code refers to something in a way that generated kernels never do")
        at = spots[number] + offsets
        distances = (to + found["addend"] - at).astype("<i4")
        memory[at[:, None] + _FOUR] = distances.view(np.uint8).reshape(-1, 4)


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
