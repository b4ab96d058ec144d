"""Where a PE's bytes go: encoding of initial values, placement of globals, what code and stack take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from wsesim.csl.program import elaborated as p
from wsesim.csl.program import typed_tree as tree
from wsesim.csl.sema import types as t
from wsesim.csl.sema.numeric import bits_of
from wsesim.csl.sema.values import CV, UNDEFINED, ArrayValue, Pointer

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from wsesim.csl.sema.modules import GlobalVar
    from wsesim.csl.syntax.diagnostics import Diagnostics

__all__ = ["CODE_BYTES_PER_NODE", "MEMCPY_RESERVE", "STACK_MINIMUM", "SYSTEM_RESERVE", "encode", "place"]

# Stated estimates, not figures of the real tool chain: the loader's and the memcpy component's share of the 48 KB,
# the least stack, and the code that one node of a function's tree becomes.
SYSTEM_RESERVE = 512
MEMCPY_RESERVE = 1536
STACK_MINIMUM = 512
CODE_BYTES_PER_NODE = 4

_DTYPES = {"f32": np.dtype("<f4"), "f16": np.dtype("<f2")}


def encode(value: CV, at: int = 0) -> tuple[bytes, list[p.Relocation]]:
    r"""Bytes of a value in memory and where addresses of globals have to be filled in.

    >>> encode(CV(t.ArrayType((2,), t.U16), ArrayValue(2, items=[1, 258])))
    (b'\x01\x00\x02\x01', [])
    """
    kind, inner = value.type, value.value
    if isinstance(kind, t.ArrayType):
        return _encode_array(kind, inner, at)
    if isinstance(kind, t.StructType):
        return _encode_struct(kind, inner, at)
    if isinstance(inner, Pointer):
        return b"\0\0", [p.Relocation(at, inner.target.symbol, inner.offset)]
    if inner is UNDEFINED or inner is None:
        return bytes(t.size_of(kind)), []
    return bits_of(inner, kind).to_bytes(t.size_of(kind), "little"), []


def _encode_array(kind: t.ArrayType, inner: ArrayValue, at: int) -> tuple[bytes, list[p.Relocation]]:
    size, elem = t.size_of(kind.elem), kind.elem
    if inner.uniform:
        one, relocations = encode(CV(elem, inner.fill), 0)
        return one * inner.count, [
            p.Relocation(at + i * size, r.symbol, r.addend) for i in range(inner.count) for r in relocations
        ]
    dtype = _DTYPES.get(str(elem))
    if dtype is None and isinstance(elem, t.IntType) and elem.bits in (8, 16, 32, 64):
        dtype = np.dtype(f"<{'i' if elem.signed else 'u'}{elem.bits // 8}")
    items = inner.items
    if dtype is not None and UNDEFINED not in items:
        with np.errstate(over="ignore"):
            return np.array(items, dtype).tobytes(), []
    parts, relocations = [], []
    for index, item in enumerate(items):
        one, found = encode(CV(elem, item), at + index * size)
        parts.append(one)
        relocations += found
    return b"".join(parts), relocations


def _encode_struct(kind: t.StructType, fields: dict[str, CV], at: int) -> tuple[bytes, list[p.Relocation]]:
    out, relocations = bytearray(t.size_of(kind)), []
    if kind.layout == "packed":
        total = 0
        for name, value in fields.items():
            total |= _packed_bits(value) << kind.bit_offset(name)
        return total.to_bytes(len(out), "little"), []
    for name, value in fields.items():
        offset = kind.offset(name)
        one, found = encode(CV(kind.field(name) or value.type, value.value), at + offset)
        out[offset : offset + len(one)] = one
        relocations += found
    return bytes(out), relocations


def _packed_bits(value: CV) -> int:
    if isinstance(value.type, t.StructType):
        data, _ = encode(value)
        return int.from_bytes(data, "little")
    return bits_of(value.value, value.type) & ((1 << t.bit_size(value.type)) - 1)


# --- reachability ----------------------------------------------------------------------------------------------------


def _in_value(value: Any) -> Iterable[str]:
    match value:
        case CV():
            yield from _in_value(value.value)
        case Pointer():
            yield value.target.symbol
        case tree.DsdConst(base=base) if base is not None:
            yield base
        case dict():
            for inner in value.values():
                yield from _in_value(inner)
        case ArrayValue() if value.uniform:
            yield from _in_value(value.fill)
        case ArrayValue() if not isinstance(value[0], int | float):
            for inner in value.items:
                yield from _in_value(inner)


def reachable(roots: Iterable[str], table: Mapping[str, GlobalVar]) -> list[GlobalVar]:
    """The globals that ``roots`` lead to, in declaration order."""
    seen: set[str] = set()
    todo = list(roots)
    while todo:
        symbol = todo.pop()
        if symbol not in seen:
            seen.add(symbol)
            todo.extend(_in_value(table[symbol].init))
    return [var for symbol, var in table.items() if symbol in seen]


# --- placement -------------------------------------------------------------------------------------------------------


def place(
    variables: list[GlobalVar],
    functions: Mapping[str, p.Function],
    size: int,
    *,
    memcpy: bool,
    where: str,
    diagnostics: Diagnostics,
) -> tuple[dict[str, p.Global], p.MemoryMap, bytes]:
    """Addresses, the memory map and the initial image of a PE's memory; ``size`` counts the functions' tree nodes."""
    reserve = SYSTEM_RESERVE + (MEMCPY_RESERVE if memcpy else 0)
    code = CODE_BYTES_PER_NODE * size
    stack = _stack(functions)
    start = _up(reserve + code, 16)
    addresses, at = {}, start
    for var in variables:
        at = _up(at, max(var.align, t.align_of(var.type)))
        addresses[var.symbol] = at
        at += t.size_of(var.type)
    memory = p.MemoryMap(at - start, start - reserve, stack, reserve)
    if memory.total > p.MEMORY_BYTES:
        _overflow(variables, memory, where, diagnostics)
        return {}, memory, b""
    found = {v.symbol: _global(v, addresses) for v in variables}
    image = bytearray(at)
    for g in found.values():
        if g.init is not None:
            image[g.address : g.address + g.size] = g.init
    return found, memory, bytes(image)


def _up(value: int, to: int) -> int:
    return -(-value // to) * to


def _global(var: GlobalVar, addresses: dict[str, int]) -> p.Global:
    size, align = t.size_of(var.type), max(var.align, t.align_of(var.type))
    base = (var.symbol, var.name, var.type, addresses[var.symbol], size, align)
    if var.is_object:
        return p.Global(*base, const=var.const, storage="object", objects=_objects(var), pos=var.pos)
    data, relocations = (b"", []) if var.init is UNDEFINED else encode(CV(var.type, var.init.value))
    if not any(data) and not relocations:
        return p.Global(*base, const=var.const, pos=var.pos)
    out = bytearray(data)
    for r in relocations:
        address = addresses[r.symbol] + r.addend
        out[r.offset : r.offset + 2] = address.to_bytes(2, "little")
    return p.Global(*base, bytes(out), tuple(relocations), var.const, pos=var.pos)


def _objects(var: GlobalVar) -> tuple[tree.DsdConst | None, ...]:
    count = var.type.count if isinstance(var.type, t.ArrayType) else 1
    if var.init is UNDEFINED:
        return (None,) * count
    value = var.init.value
    items = value.items if isinstance(value, ArrayValue) else [value]
    return tuple(x if isinstance(x, tree.DsdConst) else None for x in items)


def _stack(functions: Mapping[str, p.Function]) -> int:
    """Bytes of the deepest chain of frames; a recursive one counts its cycle eight times."""
    depth: dict[str, int] = {}

    def deepest(symbol: str, path: tuple[str, ...]) -> int:
        if symbol in depth:
            return depth[symbol]
        function = functions.get(symbol)
        if function is None:
            return 0
        own = _up(function.frame_size, 4) + 4
        if symbol in path:
            return own * 8
        depth[symbol] = own + max((deepest(c, (*path, symbol)) for c in function.calls), default=0)
        return depth[symbol]

    return max([STACK_MINIMUM, *(_up(deepest(f, ()), 16) for f in functions)])


def _overflow(variables: list[GlobalVar], memory: p.MemoryMap, where: str, diagnostics: Diagnostics) -> None:
    largest = sorted(variables, key=lambda v: -t.size_of(v.type))[:3]
    big = ", ".join(f"{v.name} {t.size_of(v.type)}" for v in largest)
    text = (
        f"{where} needs {memory.total} bytes, a PE has {p.MEMORY_BYTES}: data {memory.data}, code about {memory.code}, "
        f"stack {memory.stack}, reserved {memory.reserve}"
    )
    pos = largest[0].pos if largest else p.NOWHERE
    diagnostics.error("memory-overflow", text, pos, 1, f"the largest variables are {big} bytes")
