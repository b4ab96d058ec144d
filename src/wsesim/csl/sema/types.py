"""CSL types as immutable values that compare by structure.

A type is compared with ``==``; named structs, unions and enums carry the place of their definition, so that two
definitions with the same fields stay different types, as the language demands.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Literal

__all__ = [
    "ANYOPAQUE",
    "ANYTYPE",
    "BF16",
    "BOOL",
    "CB16",
    "COMPTIME_FLOAT",
    "COMPTIME_INT",
    "COMPTIME_STRING",
    "COMPTIME_STRUCT",
    "DIRECTION",
    "DSD_TYPES",
    "DSR_TYPES",
    "F16",
    "F32",
    "HANDLE_TYPES",
    "I8",
    "I16",
    "I32",
    "I64",
    "MODULE",
    "TYPE",
    "U8",
    "U16",
    "U32",
    "U64",
    "VOID",
    "ArrayType",
    "ComptimeType",
    "DsdType",
    "EnumType",
    "FloatType",
    "FnType",
    "HandleType",
    "IntType",
    "PtrType",
    "RangeType",
    "SimpleType",
    "StructType",
    "Type",
    "align_of",
    "is_comptime_only",
    "size_of",
]


@dataclass(frozen=True)
class Type:
    """Base of every CSL type; ``str(t)`` is its CSL spelling."""


@dataclass(frozen=True)
class IntType(Type):
    """``iN`` or ``uN``.

    >>> IntType(16, signed=True).minimum, str(IntType(3, signed=False))
    (-32768, 'u3')
    """

    bits: int
    signed: bool

    @property
    def minimum(self) -> int:
        """Smallest value."""
        return -(1 << (self.bits - 1)) if self.signed and self.bits else 0

    @property
    def maximum(self) -> int:
        """Largest value."""
        if not self.bits:
            return 0
        return (1 << (self.bits - 1)) - 1 if self.signed else (1 << self.bits) - 1

    def __str__(self) -> str:
        return f"{'i' if self.signed else 'u'}{self.bits}"


@dataclass(frozen=True)
class FloatType(Type):
    """``f16``, ``f32``, ``bf16`` or ``cb16``."""

    name: str
    bits: int

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class SimpleType(Type):
    """A type without parameters: ``bool``, ``void``, ``direction``, ``anyopaque``."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class ComptimeType(Type):
    """A type whose values exist only at compile time: ``comptime_int``, ``type``, ``comptime_string``, a module, ..."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class HandleType(Type):
    """A small integer with a role: ``color``, task ids, queues, microthread ids, DSRs. Stored as ``u16``."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class DsdType(Type):
    """A descriptor: ``mem1d_dsd``, ``mem4d_dsd``, ``circbuf_dsd``, ``fabin_dsd``, ``fabout_dsd`` or ``fifo``."""

    name: str

    @property
    def is_fabric(self) -> bool:
        """Whether operations on it touch the fabric."""
        return self.name in ("fabin_dsd", "fabout_dsd")

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class ArrayType(Type):
    """``[d0, d1, ...]elem``, row major."""

    dims: tuple[int, ...]
    elem: Type

    @property
    def count(self) -> int:
        """Number of elements."""
        return prod(self.dims)

    def __str__(self) -> str:
        return f"[{', '.join(map(str, self.dims))}]{self.elem}"


@dataclass(frozen=True)
class PtrType(Type):
    """``*T``, ``*const T``, or with ``many`` the pointers to an unknown number of elements ``[*]T``."""

    elem: Type
    const: bool = False
    many: bool = False

    def __str__(self) -> str:
        return f"{'[*]' if self.many else '*'}{'const ' if self.const else ''}{self.elem}"


@dataclass(frozen=True)
class FnType(Type):
    """``fn(params) ret``; ``is_task`` for task values."""

    params: tuple[Type, ...]
    ret: Type
    is_task: bool = False

    def __str__(self) -> str:
        return f"{'task' if self.is_task else 'fn'}({', '.join(map(str, self.params))}) {self.ret}"


@dataclass(frozen=True)
class RangeType(Type):
    """The type of ``@range(T, ...)``."""

    elem: Type

    def __str__(self) -> str:
        return f"range({self.elem})"


@dataclass(frozen=True)
class StructType(Type):
    """A struct or union type.

    Attributes:
        fields: ``(name, type)`` pairs; a tuple's names are ``"0"``, ``"1"``, ...
        origin: place of definition for a named type, empty for an anonymous struct.
        name: what to call it in messages.
        layout: ``auto``, ``extern`` or ``packed``.
        is_union: whether the fields share their bytes.
    """

    fields: tuple[tuple[str, Type], ...]
    origin: str = ""
    name: str = field(default="", compare=False)
    layout: Literal["auto", "extern", "packed"] = "auto"
    is_union: bool = False

    def field(self, name: str) -> Type | None:
        """Type of the field called ``name``, if there is one."""
        return dict(self.fields).get(name)

    def offset(self, name: str) -> int:
        """Byte offset of a field (not for packed layouts)."""
        at = 0
        for key, kind in self.fields:
            at = 0 if self.is_union else _round_up(at, align_of(kind))
            if key == name:
                return at
            at += size_of(kind)
        raise KeyError(name)

    def bit_offset(self, name: str) -> int:
        """Bit offset of a field of a packed layout."""
        at = 0
        for key, kind in self.fields:
            if key == name:
                return at
            at += 0 if self.is_union else bit_size(kind)
        raise KeyError(name)

    def __str__(self) -> str:
        if self.name:
            return self.name
        if self.fields and self.fields[0][0] == "0":
            return f".{{{', '.join(str(t) for _, t in self.fields)}}}"
        return f"struct {{ {', '.join(f'{n}: {t}' for n, t in self.fields)} }}"


@dataclass(frozen=True)
class EnumType(Type):
    """``enum(base) { ... }`` with its members' values."""

    base: IntType
    members: tuple[tuple[str, int], ...]
    origin: str
    name: str = field(default="", compare=False)

    def __str__(self) -> str:
        return self.name or f"enum({self.base})"


I8, I16, I32, I64 = (IntType(bits, signed=True) for bits in (8, 16, 32, 64))
U8, U16, U32, U64 = (IntType(bits, signed=False) for bits in (8, 16, 32, 64))
F16, F32 = FloatType("f16", 16), FloatType("f32", 32)
BF16, CB16 = FloatType("bf16", 16), FloatType("cb16", 16)
BOOL, VOID = SimpleType("bool"), SimpleType("void")
DIRECTION, ANYOPAQUE = SimpleType("direction"), SimpleType("anyopaque")
COMPTIME_INT, COMPTIME_FLOAT = ComptimeType("comptime_int"), ComptimeType("comptime_float")
COMPTIME_STRING, COMPTIME_STRUCT = ComptimeType("comptime_string"), ComptimeType("comptime_struct")
TYPE, MODULE, ANYTYPE = ComptimeType("type"), ComptimeType("imported_module"), ComptimeType("anytype")
DSR_TYPES = tuple(
    HandleType(n) for n in ("dsr_dest", "dsr_src0", "dsr_src1", "dsr_fifo_dest", "dsr_fifo_src1", "xdsr", "sr")
)
HANDLE_TYPES = (
    *(
        HandleType(n)
        for n in ("color", "local_task_id", "data_task_id", "control_task_id", "input_queue", "output_queue", "ut_id")
    ),
    *DSR_TYPES,
)
DSD_TYPES = tuple(DsdType(n) for n in ("mem1d_dsd", "mem4d_dsd", "circbuf_dsd", "fabin_dsd", "fabout_dsd", "fifo"))


def _round_up(value: int, to: int) -> int:
    return -(-value // to) * to


def bit_size(kind: Type) -> int:
    """Bits a packed field of this type takes.

    >>> bit_size(BOOL), bit_size(IntType(3, signed=False))
    (1, 3)
    """
    match kind:
        case IntType(bits=bits) | FloatType(bits=bits):
            return bits
        case EnumType(base=base):
            return base.bits
        case SimpleType(name="bool"):
            return 1
        case StructType(layout="packed", fields=fields, is_union=union):
            sizes = [bit_size(t) for _, t in fields]
            return max(sizes, default=0) if union else sum(sizes)
        case _:
            return 16 if isinstance(kind, PtrType) else size_of(kind) * 8


def align_of(kind: Type) -> int:
    """Alignment in bytes; the machine word is 16 bits and 32-bit values lie on even words.

    >>> align_of(F16), align_of(F32), align_of(U8)
    (2, 4, 1)
    """
    match kind:
        case ArrayType(elem=elem):
            return align_of(elem)
        case StructType(layout="packed"):
            return min(4, max(1, size_of(kind)))
        case StructType(fields=fields):
            return max((align_of(t) for _, t in fields), default=1)
        case DsdType():
            return 2
        case _:
            return max(1, min(4, size_of(kind)))


def size_of(kind: Type) -> int:
    """Size in bytes in a PE's memory.

    Raises:
        TypeError: when values of the type exist only at compile time.

    >>> size_of(ArrayType((3, 2), F32)), size_of(PtrType(F32)), size_of(BOOL)
    (24, 2, 1)
    """
    match kind:
        case IntType(bits=bits):
            size = 1
            while size * 8 < bits:
                size *= 2
            return size if bits else 0
        case FloatType(bits=bits):
            return bits // 8
        case EnumType(base=base):
            return size_of(base)
        case PtrType() | HandleType():
            return 2
        case SimpleType(name="bool"):
            return 1
        case SimpleType(name="void"):
            return 0
        case SimpleType(name="direction"):
            return 2
        case ArrayType(elem=elem):
            return size_of(elem) * kind.count
        case DsdType(name=name):
            return 16 if name == "mem4d_dsd" else 8
        case StructType(layout="packed"):
            return size_of(IntType(bit_size(kind), signed=False))
        case StructType(fields=fields, is_union=union):
            end = 0
            for _, t in fields:
                end = max(end, size_of(t)) if union else _round_up(end, align_of(t)) + size_of(t)
            return _round_up(end, align_of(kind))
        case _:
            raise TypeError(f"values of type {kind} exist only at compile time")


def is_comptime_only(kind: Type) -> bool:
    """Whether values of this type cannot exist at run time.

    >>> is_comptime_only(COMPTIME_INT), is_comptime_only(F32)
    (True, False)
    """
    match kind:
        case ComptimeType() | FnType() | RangeType():
            return True
        case ArrayType(elem=elem):
            return is_comptime_only(elem)
        case StructType(fields=fields):
            return any(is_comptime_only(t) for _, t in fields)
        case _:
            return False
