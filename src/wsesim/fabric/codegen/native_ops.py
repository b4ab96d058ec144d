"""Element loops of the vector operations, in LLVM IR."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import llvmlite.ir as ir

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["NATIVE_OPS", "NativeOp", "element_size", "emit_op"]

I8, I16, I32, I64 = (ir.IntType(n) for n in (8, 16, 32, 64))
F16, F32 = ir.HalfType(), ir.FloatType()
_TYPES = {"h": F16, "s": F32, "w": I16, "d": I32}
_SIZES = {"h": 2, "s": 4, "w": 2, "d": 4}


@dataclass(frozen=True)
class NativeOp:
    """Element kinds (destination first: h f16, s f32, w 16-bit, d 32-bit) and the arithmetic."""

    kinds: str
    compute: Callable[..., Any]


def element_size(kind: str) -> int:
    """Bytes of an element."""
    return _SIZES[kind]


def _half(method: str) -> Callable[..., Any]:
    def apply(b: ir.IRBuilder, x: Any, y: Any) -> Any:
        return b.fptrunc(getattr(b, method)(b.fpext(x, F32), b.fpext(y, F32)), F16)

    return apply


def _plain(method: str) -> Callable[..., Any]:
    return lambda b, x, y: getattr(b, method)(x, y)


def _max(b: ir.IRBuilder, x: Any, y: Any) -> Any:
    first = b.or_(b.fcmp_ordered(">=", x, y), b.fcmp_unordered("uno", x, x))
    return b.select(first, x, y)


def _mac_half(b: ir.IRBuilder, a: Any, x: Any, y: Any) -> Any:
    return _half("fadd")(b, a, _half("fmul")(b, x, y))


def _mac_mixed(b: ir.IRBuilder, a: Any, x: Any, y: Any) -> Any:
    return b.fadd(a, b.fmul(b.fpext(x, F32), b.fpext(y, F32)))


def _abs(bits: ir.IntType, kind: ir.Type) -> Callable[..., Any]:
    def apply(b: ir.IRBuilder, x: Any) -> Any:
        mask = ir.Constant(bits, (1 << (bits.width - 1)) - 1)
        return b.bitcast(b.and_(b.bitcast(x, bits), mask), kind)

    return apply


def _same(b: ir.IRBuilder, x: Any) -> Any:  # noqa: ARG001
    return x


NATIVE_OPS: dict[str, NativeOp] = {
    "mov16": NativeOp("ww", _same),
    "mov32": NativeOp("dd", _same),
    "fmovh": NativeOp("hh", _same),
    "fmovs": NativeOp("ss", _same),
    "fnegh": NativeOp("hh", lambda b, x: b.fneg(x)),
    "fnegs": NativeOp("ss", lambda b, x: b.fneg(x)),
    "fabsh": NativeOp("hh", _abs(I16, F16)),
    "fabss": NativeOp("ss", _abs(I32, F32)),
    "fh2s": NativeOp("sh", lambda b, x: b.fpext(x, F32)),
    "fs2h": NativeOp("hs", lambda b, x: b.fptrunc(x, F16)),
    "faddh": NativeOp("hhh", _half("fadd")),
    "fsubh": NativeOp("hhh", _half("fsub")),
    "fmulh": NativeOp("hhh", _half("fmul")),
    "fmaxh": NativeOp("hhh", _max),
    "fadds": NativeOp("sss", _plain("fadd")),
    "fsubs": NativeOp("sss", _plain("fsub")),
    "fmuls": NativeOp("sss", _plain("fmul")),
    "fmaxs": NativeOp("sss", _max),
    "faddhs": NativeOp("ssh", lambda b, x, y: b.fadd(x, b.fpext(y, F32))),
    "fmach": NativeOp("hhhh", _mac_half),
    "fmacs": NativeOp("ssss", lambda b, a, x, y: b.fadd(a, b.fmul(x, y))),
    "fmachs": NativeOp("sshh", _mac_mixed),
    "add16": NativeOp("www", _plain("add")),
    "sub16": NativeOp("www", _plain("sub")),
    "and16": NativeOp("www", _plain("and_")),
    "or16": NativeOp("www", _plain("or_")),
    "xor16": NativeOp("www", _plain("xor")),
}


def emit_op(
    b: ir.IRBuilder, memory: Any, rule: NativeOp, target: list[Any], sources: list[Any], count: Any, module: ir.Module
) -> None:
    """The loop over ``count`` elements; one after the other, so overlapping operands keep their meaning."""
    del module
    fixed = [None if isinstance(s, list) else _scalar(b, s, k) for s, k in zip(sources, rule.kinds[1:], strict=True)]
    steps = [
        b.mul(part[2], I64(_SIZES[kind])) if isinstance(part, list) else None
        for part, kind in zip([target, *sources], rule.kinds, strict=True)
    ]
    function = b.function
    before, body, end = b.block, function.append_basic_block(), function.append_basic_block()
    b.branch(body)
    b.position_at_end(body)
    i = b.phi(I64)
    i.add_incoming(I64(0), before)

    def pointer(base: Any, step: Any) -> Any:
        return b.gep(memory, [b.add(base, b.mul(i, step))], source_etype=I8)

    values = []
    for part, value, step, kind in zip(sources, fixed, steps[1:], rule.kinds[1:], strict=True):
        values.append(b.load(pointer(part[0], step), typ=_TYPES[kind], align=2) if value is None else value)
    result = rule.compute(b, *values)
    b.store(result, pointer(target[0], steps[0]), align=2)
    following = b.add(i, I64(1))
    i.add_incoming(following, body)
    b.cbranch(b.icmp_signed("<", following, count), body, end)
    b.position_at_end(end)


def _scalar(b: ir.IRBuilder, value: Any, kind: str) -> Any:
    wanted = _TYPES[kind]
    if value.type == wanted:
        return value
    if isinstance(wanted, ir.IntType) and isinstance(value.type, ir.IntType):
        return b.trunc(value, wanted) if value.type.width > wanted.width else b.zext(value, wanted)
    if wanted == F32 and value.type == F16:
        return b.fpext(value, F32)
    return b.fptrunc(value, wanted)
