"""Complex numbers of aten: made of parts, taken apart, conjugated; conjugates are computed, where torch notes them."""

from __future__ import annotations

import math

from pyflame_rt.graph import DType
from pyflame_rt.importers.aten.binary import arctangent
from pyflame_rt.importers.aten.shaping import part
from pyflame_rt.importers.aten.table import aten
from pyflame_rt.importers.aten.values import cast, floated, promoted, refuse
from pyflame_rt.ops.core.value import Value, constant
from pyflame_rt.ops.onnx import logic
from pyflame_rt.ops.onnx import math as maths
from pyflame_rt.ops.onnx.shape import Unsqueeze
from pyflame_rt.ops.onnx.slicing import Concat
from pyflame_rt.ops.pyflame.complex_numbers import ViewAsComplex, ViewAsReal, complex_of, conjugated

__all__ = ["imaginary", "made_of", "real", "to_complex"]


def to_complex(x: Value) -> Value:
    """The numbers as complex ones."""
    value = floated(x)
    return value if value.dtype.is_complex else cast(value, complex_of(value.dtype))


@aten("real")
def real(x: Value) -> Value:
    """The real part; numbers that are not complex are their own."""
    return part(ViewAsReal(x), -1, 0) if x.dtype.is_complex else x


@aten("imag")
def imaginary(x: Value) -> Value:
    """The imaginary part."""
    if not x.dtype.is_complex:
        raise refuse(f"the imaginary part of {x.dtype.label}")
    return part(ViewAsReal(x), -1, 1)


@aten("view_as_real", "view_as_real_copy")
def _view_as_real(x: Value) -> Value:
    return ViewAsReal(x)


@aten("view_as_complex", "view_as_complex_copy")
def _view_as_complex(x: Value) -> Value:
    return ViewAsComplex(x)


@aten("complex")
def made_of(first: Value, second: Value) -> Value:
    """Complex numbers of real and imaginary parts."""
    parts = promoted(first, second)
    nothing = constant(0.0, parts[0])
    wide = [parts[0] + nothing * parts[1], parts[1] + nothing * parts[0]] if _differ(*parts) else parts
    return ViewAsComplex(Concat(*[Unsqueeze(p, [p.rank]) for p in wide], axis=-1))


def _differ(a: Value, b: Value) -> bool:
    return a.shape != b.shape or not a.shape.is_static


@aten("polar")
def _polar(size: Value, angle: Value) -> Value:
    return made_of(size * maths.Cos(angle), size * maths.Sin(angle))


@aten("angle")
def _angle(x: Value) -> Value:
    if x.dtype.is_complex:
        return arctangent(imaginary(x), real(x))
    value = floated(x)
    turned = logic.Where(value < 0.0, constant(math.pi, value), constant(0.0, value))
    return logic.Where(maths.IsNaN(value), value, turned)


@aten("conj", "_conj", "conj_physical", "_conj_physical", "_conj_copy")
def _conj(x: Value) -> Value:
    return conjugated(x)


@aten("isreal")
def _isreal(x: Value) -> Value:
    rest = imaginary(x) if x.dtype.is_complex else cast(x, DType.Float32) * 0.0
    return logic.Equal(rest, constant(0.0, rest))
