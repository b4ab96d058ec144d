"""Functions of one number: exponentials, trigonometry, rounding, tests for NaN and infinity."""

from __future__ import annotations

import math
from typing import Any

from pyflame_rt.ops.core.registry import primitive
from pyflame_rt.ops.core.type_rules import boolean, same
from pyflame_rt.ops.core.upgrade import upgrade
from pyflame_rt.ops.onnx.arithmetic import drop_consumed_inputs
from pyflame_rt.ops.pyflame.complex_numbers import conjugated


@primitive(
    since=13, infer=same, vjp=lambda g, y, x: (g * conjugated(y),), types="T:float > T", scalar="exp", complex=True
)
def Exp(ops: Any, input: Any, /) -> Any:
    """Natural exponential."""
    return ops.exp(input)


@primitive(
    since=13, infer=same, vjp=lambda g, y, x: (g / conjugated(x),), types="T:float > T", scalar="log", complex=True
)
def Log(ops: Any, input: Any, /) -> Any:
    """Natural logarithm."""
    return ops.log(input)


@primitive(
    since=13,
    infer=same,
    shape_math=True,
    vjp=lambda g, y, x: (g * 0.5 / conjugated(y),),
    types="T:float > T",
    scalar="sqrt",
    complex=True,
)
def Sqrt(ops: Any, X: Any, /) -> Any:
    """Square root; NaN below 0."""
    return ops.sqrt(X)


@primitive(
    since=13,
    infer=same,
    vjp=lambda g, y, x: (g * Exp(-(x * x)) * (2.0 / math.sqrt(math.pi)),),
    types="T > T",
    scalar="erf",
)
def Erf(ops: Any, input: Any, /) -> Any:
    """Error function."""
    # Before opset 13 integers were allowed, and answered in their own type.
    return ops.cast(ops.erf(input), ops.dtype(input))


# ------------------------------------------------------------------ trigonometry


# Functions, not lambdas: sine and cosine name each other, and a declared type ends the circle.
def _sin_vjp(g: Any, y: Any, x: Any) -> tuple[Any, ...]:
    return (g * conjugated(Cos(x)),)


@primitive(since=22, infer=same, vjp=_sin_vjp, types="T:float > T", scalar="sin", complex=True)
def Sin(ops: Any, input: Any, /) -> Any:
    """Sine."""
    return ops.sin(input)


@primitive(
    since=22,
    infer=same,
    vjp=lambda g, y, x: (-g * conjugated(Sin(x)),),
    types="T:float > T",
    scalar="cos",
    complex=True,
)
def Cos(ops: Any, input: Any, /) -> Any:
    """Cosine."""
    return ops.cos(input)


@primitive(
    since=22,
    infer=same,
    vjp=lambda g, y, x: (g * conjugated(y * y + 1.0),),
    types="T:float > T",
    scalar="tan",
    complex=True,
)
def Tan(ops: Any, input: Any, /) -> Any:
    """Tangent."""
    return ops.tan(input)


@primitive(since=22, infer=same, vjp=lambda g, y, x: (g / Sqrt(1.0 - x * x),), types="T:float > T", scalar="asin")
def Asin(ops: Any, input: Any, /) -> Any:
    """Inverse sine."""
    return ops.arcsin(input)


@primitive(since=22, infer=same, vjp=lambda g, y, x: (-g / Sqrt(1.0 - x * x),), types="T:float > T", scalar="acos")
def Acos(ops: Any, input: Any, /) -> Any:
    """Inverse cosine."""
    return ops.arccos(input)


@primitive(since=22, infer=same, vjp=lambda g, y, x: (g / (x * x + 1.0),), types="T:float > T", scalar="atan")
def Atan(ops: Any, input: Any, /) -> Any:
    """Inverse tangent."""
    return ops.arctan(input)


def _sinh_vjp(g: Any, y: Any, x: Any) -> tuple[Any, ...]:
    return (g * conjugated(Cosh(x)),)


@primitive(since=22, infer=same, vjp=_sinh_vjp, types="T:float > T", scalar="sinh", complex=True)
def Sinh(ops: Any, input: Any, /) -> Any:
    """Hyperbolic sine."""
    return ops.sinh(input)


@primitive(
    since=22,
    infer=same,
    vjp=lambda g, y, x: (g * conjugated(Sinh(x)),),
    types="T:float > T",
    scalar="cosh",
    complex=True,
)
def Cosh(ops: Any, input: Any, /) -> Any:
    """Hyperbolic cosine."""
    return ops.cosh(input)


@primitive(
    since=13,
    infer=same,
    vjp=lambda g, y, x: (g * conjugated(1.0 - y * y),),
    types="T:float > T",
    kind="activation",
    scalar="tanh",
    complex=True,
)
def Tanh(ops: Any, input: Any, /) -> Any:
    """Hyperbolic tangent."""
    return ops.tanh(input)


@primitive(since=22, infer=same, vjp=lambda g, y, x: (g / Sqrt(x * x + 1.0),), types="T:float > T", scalar="asinh")
def Asinh(ops: Any, input: Any, /) -> Any:
    """Inverse hyperbolic sine."""
    return ops.arcsinh(input)


@primitive(since=22, infer=same, vjp=lambda g, y, x: (g / Sqrt(x * x - 1.0),), types="T:float > T", scalar="acosh")
def Acosh(ops: Any, input: Any, /) -> Any:
    """Inverse hyperbolic cosine."""
    return ops.arccosh(input)


@primitive(since=22, infer=same, vjp=lambda g, y, x: (g / (1.0 - x * x),), types="T:float > T", scalar="atanh")
def Atanh(ops: Any, input: Any, /) -> Any:
    """Inverse hyperbolic tangent."""
    return ops.arctanh(input)


# ------------------------------------------------------------------ rounding: flat almost everywhere


@primitive(since=13, infer=same, shape_math=True, vjp=lambda g, y, x: (None,), types="T:float > T", scalar="floor")
def Floor(ops: Any, X: Any, /) -> Any:
    """Rounded down."""
    return ops.floor(X)


@primitive(since=13, infer=same, shape_math=True, vjp=lambda g, y, x: (None,), types="T:float > T", scalar="ceil")
def Ceil(ops: Any, X: Any, /) -> Any:
    """Rounded up."""
    return ops.ceil(X)


@primitive(since=22, infer=same, shape_math=True, vjp=lambda g, y, x: (None,), types="T:float > T", scalar="round")
def Round(ops: Any, X: Any, /) -> Any:
    """Rounded to the nearest integer, halves to even."""
    return ops.round(X)


# ------------------------------------------------------------------ questions


@primitive(since=20, infer=boolean, types="T1:float > bool", scalar="isnan")
def IsNaN(ops: Any, X: Any, /) -> Any:
    """Where NaN."""
    return ops.isnan(X)


@primitive(since=20, infer=boolean, types="T1:float > bool", scalar="isinf")
def IsInf(ops: Any, X: Any, /, *, detect_negative: int = 1, detect_positive: int = 1) -> Any:
    """Where infinite, of the signs asked for."""
    if detect_negative and detect_positive:
        return ops.isinf(X)
    if detect_positive:
        return ops.isposinf(X)
    if detect_negative:
        return ops.isneginf(X)
    return ops.zeros(tuple(X.shape), dtype=bool)


upgrade(["Exp", "Log", "Sqrt", "Tanh", "Floor", "Ceil"], to=6)(drop_consumed_inputs)
