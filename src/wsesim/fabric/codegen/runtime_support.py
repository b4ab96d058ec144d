"""What generated code calls: rounding, casts, bit fields, mapping, run-time builtins."""

from __future__ import annotations

import math
import struct
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from wsesim.fabric import dsd as D
from wsesim.fabric.codegen.random_bits import next16
from wsesim.fabric.errors import ProgramFault
from wsesim.fabric.ops import OPS, OpSpec
from wsesim.fabric.pe import Dsr, Options
from wsesim.fabric.stream import descriptor_length, same_lengths

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from wsesim.fabric.bounds import Bounds
    from wsesim.fabric.pe import PE

__all__ = ["NAMESPACE", "VIEWS", "Break", "Continue"]

VIEWS = ("m8", "mi8", "m16", "mi16", "m32", "mi32", "m64", "mi64", "mf32", "f16")
_PACK = {"f16": "<e", "f32": "<f", "i8": "<b", "u8": "<B", "i16": "<h", "u16": "<H", "i32": "<i", "u32": "<I"}
_PACK |= {"i64": "<q", "u64": "<Q"}


class Break(Exception):
    """Leaves a labelled block or loop."""

    def __init__(self, label: str) -> None:
        super().__init__(label)
        self.label = label


class Continue(Break):
    """Continues a labelled loop."""


def bits(value: Any, source: str, target: str) -> Any:
    """``@bitcast`` between scalars of one size.

    >>> bits(1.0, "f16", "u16"), bits(0xC000, "u16", "f16"), bits(65535, "u16", "i16")
    (15360, -2.0, -1)
    """
    if source == "b":
        return bits(int(value), "u8", target)
    if target == "b":
        return bool(bits(value, source, "u8"))
    raw = struct.pack(_PACK[source], float(value) if source[0] == "f" else int(value))
    return struct.unpack(_PACK[target], raw)[0]


def truncate(value: Any) -> int:
    """Float to integer, towards zero; NaN and infinities become zero."""
    return int(value) if math.isfinite(value) else 0


def fdiv(a: Any, b: Any) -> float:
    """Division as IEEE 754 has it."""
    try:
        return float(a) / float(b)
    except ZeroDivisionError:
        if a == 0 or a != a:
            return math.nan
        return math.copysign(math.inf, a) * math.copysign(1.0, b)


def idiv(pe: PE, a: int, b: int) -> int:
    """Integer division towards zero."""
    if not b:
        raise ProgramFault(f"{pe.where}: integer division by zero")
    return a // b if (a < 0) == (b < 0) else -(-a // b)


def irem(pe: PE, a: int, b: int) -> int:
    """Remainder of :func:`idiv`."""
    return a - b * idiv(pe, a, b)


def shl(a: int, b: int) -> int:
    """Shift left; counts beyond every width give zero."""
    return a << b if 0 <= b < 64 else 0


def shr(a: int, b: int) -> int:
    """Shift right (arithmetic for negative values)."""
    return a >> b if 0 <= b < 64 else (-1 if a < 0 else 0)


def word(address: int, size: int) -> int:
    """Index of an aligned 32- or 64-bit value."""
    if address % size:
        raise ProgramFault(f"a {size * 8}-bit value at address {address} is not aligned")
    return address // size


def push(pe: PE, size: int) -> int:
    """A frame on the PE's stack."""
    frame = pe.sp
    pe.sp = frame + (size + 3 & ~3)
    if pe.sp > len(pe.mem):
        raise ProgramFault(f"{pe.where}: the stack is full")
    return frame


def move(pe: PE, dest: int, source: int, size: int) -> None:
    """Copies bytes."""
    pe.raw[dest : dest + size] = bytes(pe.raw[source : source + size])


def fill(pe: PE, dest: int, image: bytes) -> None:
    """Writes constant bytes."""
    pe.raw[dest : dest + len(image)] = image


def getbits(pe: PE, address: int, offset: int, width: int, signed: bool) -> int:
    """A packed field."""
    whole = int.from_bytes(pe.raw[address : address + (offset + width + 7) // 8], "little")
    value = (whole >> offset) & ((1 << width) - 1)
    return value - (1 << width) if signed and value >> (width - 1) else value


def setbits(pe: PE, address: int, offset: int, width: int, value: int) -> None:
    """Writes a packed field."""
    size = (offset + width + 7) // 8
    whole = int.from_bytes(pe.raw[address : address + size], "little")
    mask = ((1 << width) - 1) << offset
    whole = (whole & ~mask) | ((int(value) << offset) & mask)
    pe.raw[address : address + size] = whole.to_bytes(size, "little")


def failed(pe: PE, text: str, where: str) -> None:
    """``@assert`` did not hold."""
    raise ProgramFault(f"{where}: assertion failed on PE ({pe.x}, {pe.y}){': ' + text if text else ''}", placed=True)


def out_of_bounds(index: int, extent: int) -> NoReturn:
    """An index is not inside its array."""
    raise ProgramFault(f"index {index} is outside an array's dimension of {extent}")


def make_dsd(
    bounds: Bounds,
    const: Any,
    size: int,
    base: int | None = None,
    offset: int | None = None,
    extent: int | None = None,
    stride: int | None = None,
    color: int | None = None,
    queue: int | None = None,
) -> Any:
    """``@get_dsd`` with run-time fields."""
    out: Any = const
    if base is not None:
        out = D.set_base(bounds, out, base)
    if offset is not None:
        out = D.increment(out, offset, size)
    if extent is not None:
        out = D.set_length(out, extent)
    if stride is not None:
        out = D.set_stride(out, stride)
    if color is not None:
        out = replace(out, color=color)
    return replace(out, queue=queue) if queue is not None else out


# --- @map ------------------------------------------------------------------------------------------------------------

_DTYPES = {
    "f16": np.dtype(np.float16),
    "f32": np.dtype(np.float32),
    "i16": np.dtype(np.int16),
    "u16": np.dtype(np.uint16),
    "i32": np.dtype(np.int32),
    "u32": np.dtype(np.uint32),
}
_MOVE = {2: "mov16", 4: "mov32"}


def _vector(pe: PE, operand: Any) -> Any:
    return pe.resolve(operand, Options())[0] if isinstance(operand, Dsr) else operand


def _map_length(pe: PE, inputs: list[Any], out: Any) -> int:
    if pe.strict:
        same_lengths("map", out, inputs, pe.where)
    lengths = [i.length for i in inputs if isinstance(i, D.Mem | D.Mem4 | D.Circ | D.FabIn)]
    if isinstance(out, D.Mem | D.Mem4 | D.Circ | D.FabOut):
        lengths.append(out.length)
    return min(lengths) if lengths else 1


def _writer(pe: PE, out: Any, kind: str) -> Callable[[int, Any], None]:
    """Stores element ``i`` of the result."""
    dtype = _DTYPES[kind]
    if isinstance(out, D.Mem):
        return pe.vector(dtype, out, 0, out.length).__setitem__
    if isinstance(out, int):
        return lambda _i, value: pe.scatter(dtype, np.array([out]), np.array([value], dtype))
    return lambda i, value: pe.scatter(dtype, pe.addresses(dtype, out, i, 1), np.array([value], dtype))


def _reader(pe: PE, operand: Any, kind: str) -> Callable[[int], Any]:
    if isinstance(operand, D.Mem):
        return pe.vector(_DTYPES[kind], operand, 0, operand.length).item
    if isinstance(operand, D.Mem4 | D.Circ):
        dtype = _DTYPES[kind]
        at = pe.addresses(dtype, operand, 0, operand.length)
        return lambda i: pe.gather(dtype, at[i : i + 1])[0].item()
    return lambda _i: operand


def map_memory(pe: PE, fn: Any, inputs: tuple[Any, ...], out: Any, kinds: tuple[str, ...], ret: str) -> None:
    """``@map`` over memory vectors, element by element."""
    operands = [_vector(pe, i) for i in inputs]
    target = _vector(pe, out)
    readers = [_reader(pe, o, k) for o, k in zip(operands, kinds, strict=False)]
    write = None if target is None else _writer(pe, target, ret)
    for i in range(_map_length(pe, operands, target)):
        if pe.t > pe.due:
            pe.look()
        value = fn(pe, *[read(i) for read in readers])
        if write is not None:
            write(i, value)


def map_stream(
    pe: PE, fn: Any, inputs: tuple[Any, ...], out: Any, kinds: tuple[str, ...], ret: str, stalls: bool
) -> Generator[Any, Any, None]:
    """``@map`` with fabric operands: reads what arrives, maps, sends the results."""
    operands = [_vector(pe, i) for i in inputs]
    target = _vector(pe, out)
    count = _map_length(pe, operands, target)
    readers: list[Callable[[int], Any]] = []
    for operand, kind in zip(operands, kinds, strict=False):
        if isinstance(operand, D.FabIn):
            values: list[Any] = []
            yield from _collect(pe, replace(operand, length=count), kind, values)
            readers.append(values.__getitem__)
        else:
            readers.append(_reader(pe, operand, kind))
    results: list[Any] = []
    write = None if target is None or isinstance(target, D.FabOut) else _writer(pe, target, ret)
    for i in range(count):
        if pe.t > pe.due:
            pe.look()
        args = [read(i) for read in readers]
        value = (yield from fn(pe, *args)) if stalls else fn(pe, *args)
        if isinstance(target, D.FabOut):
            results.append(value)
        elif write is not None:
            write(i, value)
    if isinstance(target, D.FabOut):
        yield from _emit(pe, replace(target, length=count), ret, results)


def _collect(pe: PE, source: D.FabIn, kind: str, into: list[Any]) -> Generator[Any, Any, None]:
    dtype = _DTYPES[kind]
    spec = OpSpec("map", dtype, (dtype,), lambda x: x, (1, 1))
    frame = push(pe, source.length * dtype.itemsize)
    got = pe.run_op(spec, D.Mem(frame, source.length), (source,), Options())
    if not isinstance(got, bool):
        yield got
    into.extend(pe.vector(dtype, D.Mem(frame, source.length), 0, source.length).tolist())
    pe.sp = frame


def _emit(pe: PE, target: D.FabOut, kind: str, results: list[Any]) -> Generator[Any, Any, None]:
    dtype = _DTYPES[kind]
    spec = OpSpec("map", dtype, (dtype,), lambda x: x, (1, 1))
    frame = push(pe, len(results) * dtype.itemsize)
    pe.vector(dtype, D.Mem(frame, len(results)), 0, len(results))[...] = results
    got = pe.run_op(spec, target, (D.Mem(frame, len(results)),), Options())
    if not isinstance(got, bool):
        yield got
    pe.sp = frame


# --- run-time builtins -----------------------------------------------------------------------------------------------


def rt_random16(pe: PE) -> int:
    """``@random16``."""
    return next16(pe)


def rt_set_active_prng(pe: PE, number: int) -> None:
    """``@set_active_prng``: each generator keeps its own state."""
    states = pe.library.setdefault("prng", {})
    states[pe.library.get("prng_id", 0)] = pe.prng
    pe.library["prng_id"] = number
    pe.prng = states.get(number, 0xDEADBEEF)


def rt_set_fifo_read_length(pe: PE, fifo: D.FifoRef, length: int) -> None:
    """``@set_fifo_read_length``: kept for the next read."""
    pe.library[("fifo_read", fifo.index)] = length


def rt_set_fifo_write_length(pe: PE, fifo: D.FifoRef, length: int) -> None:
    """``@set_fifo_write_length``: kept for the next write."""
    pe.library[("fifo_write", fifo.index)] = length


def rt_get_config(pe: PE, address: int, *_ranges: Any) -> int:
    """``@get_config``: configuration words that the program wrote, else zero."""
    return pe.library.setdefault("config", dict(pe.program.config)).get(address, 0)


def rt_set_config(pe: PE, address: int, value: int, *_ranges: Any) -> None:
    """``@set_config``: kept, without effect on the hardware model."""
    pe.library.setdefault("config", dict(pe.program.config))[address] = value


def rt_set_dsr_base_addr(pe: PE, dsr: Dsr, address: int) -> None:
    """``@set_dsr_base_addr``."""
    dsd, options = pe.dsrs.get((dsr.file, dsr.id), (None, None))
    if dsd is None or options is None:
        raise ProgramFault(f"{pe.where}: {dsr.file} {dsr.id} is used before @load_to_dsr")
    pe.dsrs[(dsr.file, dsr.id)] = (D.set_base(pe.bounds, dsd, address), options)


def rt_get_tensor_ptr(pe: PE, number: int) -> int:
    """``@get_tensor_ptr``: the address held by an exported pointer."""
    for export in pe.program.exports:
        if export.id == number and export.kind == "variable":
            return pe.m16[pe.program.globals[export.symbol].address >> 1]
    raise ProgramFault(f"{pe.where}: no tensor is exported with id {number}")


NAMESPACE: dict[str, Any] = {
    "F32": np.float32,
    "F16": np.float16,
    "fmod": math.fmod,
    "increment": D.increment,
    "set_dsd_length": D.set_length,
    "set_dsd_base_addr": D.set_base,
    "set_dsd_stride": D.set_stride,
    "Options": Options,
    "descriptor_length": descriptor_length,
    "OPS": OPS,
    "rt_get_config_unchecked": rt_get_config,
    "rt_set_config_unchecked": rt_set_config,
} | {
    f.__name__: f
    for f in (
        *(
            Break,
            Continue,
            bits,
            truncate,
            fdiv,
            idiv,
            irem,
            shl,
            shr,
            word,
            push,
            move,
            fill,
            getbits,
            setbits,
            failed,
        ),
        *(make_dsd, out_of_bounds, map_memory, map_stream, rt_random16, rt_set_active_prng, rt_set_fifo_read_length),
        *(rt_set_fifo_write_length, rt_get_config, rt_set_config, rt_get_tensor_ptr, rt_set_dsr_base_addr),
    )
}
