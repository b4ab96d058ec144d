"""Arithmetic of the compiler: exact integers, floats rounded to their type."""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, Any

from wsesim.csl.sema import types as t

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["bits_of", "fits", "fold_binary", "fold_compare", "from_bits", "numeric_cast", "round_float", "wrap"]


def wrap(value: int, kind: t.IntType) -> int:
    """``value`` reduced to the width of ``kind``.

    >>> wrap(70000, t.U16), wrap(40000, t.I16)
    (4464, -25536)
    """
    value &= (1 << kind.bits) - 1
    return value - (1 << kind.bits) if kind.signed and kind.bits and value >> (kind.bits - 1) else value


def fits(value: int, kind: t.IntType) -> bool:
    """Whether an integer type can hold a value."""
    return kind.minimum <= value <= kind.maximum


def round_float(value: float, kind: t.Type) -> float:
    """The nearest value of a float type, ties to even; beyond the largest value an infinity.

    >>> round_float(0.1, t.F16), round_float(1e9, t.F16)
    (0.0999755859375, inf)
    """
    if not isinstance(kind, t.FloatType) or not math.isfinite(value):
        return value
    match kind.name:
        case "f32":
            return _packed(value, "f")
        case "f16":
            return _packed(value, "e")
        case "bf16":
            return from_bits(_bfloat_bits(value), kind)
        case _:
            return _round_cb16(value)


def _packed(value: float, code: str) -> float:
    try:
        return struct.unpack(code, struct.pack(code, value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)


def _bfloat_bits(value: float) -> int:
    bits = struct.unpack("<I", struct.pack("<f", _packed(value, "f")))[0]
    if math.isnan(value):
        return (bits >> 16) | 0x40
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) & 0xFFFF


# cb16: sign, 6 exponent bits with bias 42, 9 fraction bits; the bias follows from the documented pattern of 6.0.
_CB_BIAS, _CB_FRACTION = 42, 9


def _round_cb16(value: float) -> float:
    if value == 0:
        return value
    exponent = max(math.frexp(value)[1] - 1, 1 - _CB_BIAS)
    step = 2.0 ** (exponent - _CB_FRACTION)
    rounded = round(value / step) * step
    limit = (2 - 2.0**-_CB_FRACTION) * 2.0 ** (62 - _CB_BIAS)
    return math.copysign(math.inf, value) if abs(rounded) > limit else rounded


def _cb16_bits(value: float) -> int:
    sign = 0x8000 if math.copysign(1, value) < 0 else 0
    if math.isnan(value):
        return sign | 0x7FFF
    if math.isinf(value):
        return sign | 0x7E00
    value = abs(_round_cb16(value))
    if value == 0:
        return sign
    exponent = math.frexp(value)[1] - 1
    if exponent < 1 - _CB_BIAS:
        return sign | round(value / 2.0 ** (1 - _CB_BIAS - _CB_FRACTION))
    fraction = round((value / 2.0**exponent - 1) * (1 << _CB_FRACTION))
    return sign | ((exponent + _CB_BIAS) << _CB_FRACTION) + fraction


def _cb16_value(bits: int) -> float:
    sign = -1.0 if bits & 0x8000 else 1.0
    exponent, fraction = (bits >> _CB_FRACTION) & 0x3F, bits & 0x1FF
    if exponent == 0x3F:
        return sign * (math.nan if fraction else math.inf)
    if exponent == 0:
        return sign * fraction * 2.0 ** (1 - _CB_BIAS - _CB_FRACTION)
    return sign * (1 + fraction / (1 << _CB_FRACTION)) * 2.0 ** (exponent - _CB_BIAS)


def bits_of(value: Any, kind: t.Type) -> int:
    """The bits of a scalar as an unsigned integer.

    >>> hex(bits_of(1.0, t.F16)), hex(bits_of(-1, t.I16)), hex(bits_of(6.0, t.CB16))
    ('0x3c00', '0xffff', '0x5900')
    """
    match kind:
        case t.IntType(bits=bits):
            return int(value) & ((1 << bits) - 1)
        case t.EnumType(base=base):
            return int(value) & ((1 << base.bits) - 1)
        case t.FloatType(name="f32"):
            return struct.unpack("<I", struct.pack("<f", round_float(value, kind)))[0]
        case t.FloatType(name="f16"):
            return struct.unpack("<H", struct.pack("<e", round_float(value, kind)))[0]
        case t.FloatType(name="bf16"):
            return _bfloat_bits(value)
        case t.FloatType():
            return _cb16_bits(value)
        case _:
            return int(value) & 0xFFFF


def from_bits(bits: int, kind: t.Type) -> Any:
    """The scalar of a type that has these bits."""
    match kind:
        case t.IntType():
            return wrap(bits, kind)
        case t.FloatType(name="f32"):
            return struct.unpack("<f", struct.pack("<I", bits & 0xFFFFFFFF))[0]
        case t.FloatType(name="f16"):
            return struct.unpack("<e", struct.pack("<H", bits & 0xFFFF))[0]
        case t.FloatType(name="bf16"):
            return struct.unpack("<f", struct.pack("<I", (bits & 0xFFFF) << 16))[0]
        case t.FloatType():
            return _cb16_value(bits)
        case t.SimpleType(name="bool"):
            return bool(bits)
        case _:
            return bits


def numeric_cast(value: Any, kind: t.Type) -> Any:
    """``@as`` on a number: truncates floats towards zero, compares with zero for bool, wraps integers.

    >>> numeric_cast(-10.8, t.I16), numeric_cast(300, t.U8), numeric_cast(float("nan"), t.BOOL)
    (-10, 44, True)
    """
    match kind:
        case t.IntType():
            if isinstance(value, float):
                value = int(value) if math.isfinite(value) else 0
            return wrap(int(value), kind)
        case t.EnumType(base=base):
            return numeric_cast(value, base)
        case t.FloatType():
            return round_float(_to_float(value), kind)
        case t.SimpleType(name="bool"):
            return value != 0
        case t.ComptimeType(name="comptime_int"):
            return int(value)
        case t.ComptimeType(name="comptime_float"):
            return _to_float(value)
        case _:
            raise TypeError(f"@as makes numbers and bools, not {kind}")


def _to_float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _divide(left: int, right: int) -> int:
    quotient = abs(left) // abs(right)
    return quotient if (left < 0) == (right < 0) else -quotient


def _shift_left(left: int, right: int) -> int:
    if not 0 <= right <= 1 << 16:
        raise ValueError(f"cannot shift by {right}")
    return left << right


def _shift_right(left: int, right: int) -> int:
    if right < 0:
        raise ValueError(f"cannot shift by {right}")
    return left >> min(right, 1 << 24)


_INTEGER: dict[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": _divide,
    "%": lambda a, b: a - _divide(a, b) * b,
    "&": lambda a, b: a & b,
    "|": lambda a, b: a | b,
    "^": lambda a, b: a ^ b,
    "<<": _shift_left,
    ">>": _shift_right,
}
_FLOAT: dict[str, Callable[[float, float], float]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "%": math.fmod,
}


def fold_binary(op: str, left: Any, right: Any, kind: t.Type) -> Any:
    """An arithmetic operation on two values of one type.

    Raises:
        ZeroDivisionError: on division by zero.
        ValueError: when the operation does not exist for the type.
    """
    if isinstance(kind, t.FloatType) or kind is t.COMPTIME_FLOAT:
        function = _FLOAT.get(op)
        if function is None:
            raise ValueError(f"operator {op} needs integers")
        return round_float(function(left, right), kind)
    value = _INTEGER[op](int(left), int(right))
    return wrap(value, kind) if isinstance(kind, t.IntType) else value


_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


def fold_compare(op: str, left: Any, right: Any) -> bool:
    """A comparison of two values of one type."""
    return _COMPARE[op](left, right)
