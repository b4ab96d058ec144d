"""Descriptors as they exist at run time: where an operand of a DSD operation lies.

Addresses are bytes, lengths and strides count elements of the operation's type. Values are immutable; the builtins that
"change" a descriptor make a new one, as the documentation says.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

    from wsesim.csl.program.elaborated import Global
    from wsesim.csl.program.typed_tree import DsdConst
    from wsesim.csl.sema.types import Type
    from wsesim.fabric.bounds import Bounds

__all__ = ["Circ", "Descriptor", "FabIn", "FabOut", "FifoRef", "Mem", "Mem4", "from_const", "set_base", "set_length"]


class Mem:
    """A one-dimensional memory vector.

    >>> Mem(100, 4, 2).moved(8)
    Mem(108, 4, 2)
    """

    __slots__ = ("addr", "home", "indexed", "length", "stride")

    def __init__(self, addr: int, length: int, stride: int = 1, indexed: bool = False, home: int = 0) -> None:
        self.addr = addr
        self.home = home  # the variable it belongs to
        self.length = length
        self.stride = stride
        self.indexed = indexed

    def moved(self, by: int) -> Mem:
        """The same access, ``by`` bytes further on."""
        return Mem((self.addr + by) & 0xFFFF, self.length, self.stride, self.indexed, self.home)

    def __repr__(self) -> str:
        return f"Mem({self.addr}, {self.length}, {self.stride})"


@dataclass(frozen=True)
class Mem4:
    """A memory vector of up to four dimensions; extents and strides outermost first, strides per index."""

    addr: int
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    indexed: bool = False
    home: int = 0

    @property
    def length(self) -> int:
        """Number of elements visited."""
        total = 1
        for extent in self.extents:
            total *= extent
        return total

    def moved(self, by: int) -> Mem4:
        """The same access, ``by`` bytes further on."""
        return replace(self, addr=(self.addr + by) & 0xFFFF)


@dataclass(frozen=True)
class Circ:
    """A circular buffer: ``length`` elements from ``addr``, going back to ``base`` after ``wrap`` elements."""

    base: int
    addr: int
    length: int
    wrap: int
    indexed: bool = False
    home: int = 0

    def moved(self, by: int) -> Circ:
        """The same buffer, starting ``by`` bytes further on."""
        return replace(self, addr=self.addr + by)


@dataclass(frozen=True)
class FabIn:
    """Wavelets that arrive on a colour (or through a queue, when ``color`` is None)."""

    color: int | None
    queue: int | None
    length: int
    simd: bool = False
    priority: str = ""
    transform: bool = False


@dataclass(frozen=True)
class FabOut:
    """Wavelets to be sent on a colour (or through a queue, when ``color`` is None)."""

    color: int | None
    queue: int | None
    length: int
    control: bool = False
    indexed: bool = False
    simd: bool = False
    advance: bool = False
    zero: str = ""
    transform: bool = False


@dataclass(frozen=True)
class FifoRef:
    """The FIFO with this index on the PE that uses it."""

    index: int
    length: int = 0


Descriptor: TypeAlias = Mem | Mem4 | Circ | FabIn | FabOut | FifoRef


def from_const(const: DsdConst, globals_: Mapping[str, Global], bounds: Bounds) -> Descriptor:
    """The run-time form of a descriptor known at compile time."""
    kind = getattr(const.type, "name", "")
    length = const.extents[0] if const.extents else 0
    if const.fifo is not None or kind == "fifo":
        return FifoRef(const.fifo or 0)
    if kind == "fabin_dsd":
        simd = bool(const.simd_mode)
        return FabIn(const.color, const.queue, length, simd, const.priority, const.control_transform)
    if kind == "fabout_dsd":
        return FabOut(
            const.color,
            const.queue,
            length,
            const.control,
            const.wavelet_index_offset,
            bool(const.simd_mode),
            const.advance_switch,
            const.zero_source,
            const.control_transform,
        )
    base = globals_[const.base].address if const.base is not None else 0
    addr = (base + const.offset) & 0xFFFF
    home = bounds.symbols[const.base] if const.base in bounds.symbols else bounds.owner(addr)
    if kind == "circbuf_dsd":
        return Circ(addr, addr, length, const.wraparound or length, const.wavelet_index_offset, home)
    if kind == "mem4d_dsd":
        return Mem4(addr, const.extents, const.strides, const.wavelet_index_offset, home)
    return Mem(addr, length, const.strides[0] if const.strides else 1, const.wavelet_index_offset, home)


def set_length(dsd: Descriptor, length: int) -> Descriptor:
    """``@set_dsd_length``."""
    if isinstance(dsd, Mem):
        return Mem(dsd.addr, length, dsd.stride, dsd.indexed, dsd.home)
    if isinstance(dsd, Mem4):
        return replace(dsd, extents=(*(1 for _ in dsd.extents[:-1]), length))
    return _with_length(dsd, length)


@lru_cache(maxsize=4096)
def _with_length(dsd: Circ | FabIn | FabOut | FifoRef, length: int) -> Descriptor:
    return replace(dsd, length=length)


def set_base(bounds: Bounds, dsd: Descriptor, addr: int) -> Descriptor:
    """``@set_dsd_base_addr``: from now on it belongs to the variable at that address."""
    home = bounds.owner(addr)
    if isinstance(dsd, Mem):
        return Mem(addr, dsd.length, dsd.stride, dsd.indexed, home)
    if isinstance(dsd, Circ):
        return replace(dsd, base=addr, addr=addr, home=home)
    if isinstance(dsd, Mem4):
        return replace(dsd, addr=addr, home=home)
    return dsd


def set_stride(dsd: Mem, stride: int) -> Mem:
    """``@set_dsd_stride``."""
    return Mem(dsd.addr, dsd.length, stride, dsd.indexed, dsd.home)


def increment(dsd: Descriptor, elements: int, size: int) -> Descriptor:
    """``@increment_dsd_offset`` by ``elements`` of ``size`` bytes."""
    if isinstance(dsd, Mem | Mem4 | Circ):
        return dsd.moved(elements * size)
    return dsd


def element_size(kind: Type) -> int:
    """Bytes of the element type named in ``@increment_dsd_offset``."""
    from wsesim.csl.sema.types import size_of

    return size_of(kind)
