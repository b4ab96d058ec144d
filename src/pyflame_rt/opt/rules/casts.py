"""Casts to the type a value has, and back from a type that holds all of it."""

from __future__ import annotations

from pyflame_rt.graph import DType
from pyflame_rt.ops.onnx.cast import Cast
from pyflame_rt.opt.rule import Match, NoMatch, rule

_INTEGERS = (DType.Bool, DType.UInt8, DType.Int8, DType.UInt16, DType.Int16, DType.UInt32, DType.Int32)
_FLOATS = (DType.Float16, DType.BFloat16, DType.Float32, DType.Float64)
# For each type, those whose every number it holds (NaN and infinities of floats as well).
_HOLDS: dict[DType, tuple[DType, ...]] = {
    DType.Float64: (*_INTEGERS, DType.Float16, DType.BFloat16, DType.Float32),
    DType.Float32: (
        DType.Bool,
        DType.UInt8,
        DType.Int8,
        DType.UInt16,
        DType.Int16,
        DType.Float16,
        DType.BFloat16,
    ),
    DType.Int64: _INTEGERS,
    DType.Int32: (DType.Bool, DType.UInt8, DType.Int8, DType.UInt16, DType.Int16),
    DType.Int16: (DType.Bool, DType.UInt8, DType.Int8),
    DType.UInt64: (DType.Bool, DType.UInt8, DType.UInt16, DType.UInt32),
    DType.UInt32: (DType.Bool, DType.UInt8, DType.UInt16),
    DType.UInt16: (DType.Bool, DType.UInt8),
}


@rule(lambda op, x: op.Cast(x), family="simplify")
def cast_to_same(m: Match, x: str) -> str | NoMatch:
    """A cast to the type a value has."""
    kind = m.dtype(x)
    if kind is None or kind.onnx != m.attr("cast", "to"):
        return NoMatch("the types differ, or are not known")
    return x


@rule(lambda op, x: op.Cast(op.Cast(x, label="first"), label="last"), family="simplify")
def cast_pair(m: Match, x: str) -> str | NoMatch:
    """A cast of a cast, where the type in between holds every number of the first."""
    kind, between = m.dtype(x), m.dtype(m.node("first").outputs[0])
    if kind is None or between is None or kind not in _HOLDS.get(between, ()):
        return NoMatch("the type in between may round")
    if kind.onnx == m.attr("last", "to"):
        return x
    last = next((d for d in DType if d.onnx == m.attr("last", "to")), None)
    if last not in _FLOATS:
        return NoMatch("other casts wrap, saturate or refuse")
    if kind in (DType.Int32, DType.UInt32) and last not in _FLOATS[2:]:
        return NoMatch("a library may round twice on its way from a large integer to half precision")
    return m.emit(Cast, [x], {"to": m.attr("last", "to")})
