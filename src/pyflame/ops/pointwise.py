"""Functions of one number and their relatives, element by element."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame.dtypes import DType
from pyflame.ops.arithmetic import (
    abs,
    add,
    clamp,
    div,
    eq,
    gt,
    isfinite,
    isinf,
    isnan,
    le,
    logical_and,
    logical_not,
    logical_or,
    lt,
    maximum,
    minimum,
    mul,
    ne,
    neg,
    parts,
    reciprocal,
    sub,
    trunc,
    where,
)
from pyflame.ops.core import as_tensor, call, cast, floating, operands, real_only, rounded_once, scalar, unary
from pyflame_rt.ops.onnx.arithmetic import Div, Sign
from pyflame_rt.ops.onnx.cast import Identity
from pyflame_rt.ops.onnx.math import (
    Acos,
    Acosh,
    Asin,
    Asinh,
    Atan,
    Atanh,
    Ceil,
    Cos,
    Cosh,
    Erf,
    Exp,
    Floor,
    Log,
    Round,
    Sin,
    Sinh,
    Sqrt,
    Tan,
    Tanh,
)

if TYPE_CHECKING:
    from pyflame.tensors import Tensor
    from pyflame_rt.ops.core.registry import Op


absolute = abs


def sign(input: Any) -> Tensor:
    """-1, 0 or 1; NaN stays."""
    x = as_tensor(input)
    return call(Identity if x.dtype is DType.bool else Sign, x)


def signbit(input: Any) -> Tensor:
    """Where the sign is negative, also that of -0."""
    x = as_tensor(input)
    if not x.dtype.is_floating_point:
        return lt(x, 0)
    return logical_or(lt(x, 0), lt(call(Div, scalar(1, x.dtype), x), 0))


@rounded_once
def copysign(input: Any, other: Any) -> Tensor:
    """The size of one number with the sign of another."""
    a, b = operands(input, other, floating=True)
    size = abs(a)
    return where(signbit(b), neg(size), size)


def _rounding(op: Op, x: Any) -> Tensor:
    x = real_only(op.name.lower(), x)
    return call(op if x.dtype.is_floating_point else Identity, x)


def floor(input: Any) -> Tensor:
    """Rounded down."""
    return _rounding(Floor, input)


def ceil(input: Any) -> Tensor:
    """Rounded up."""
    return _rounding(Ceil, input)


@rounded_once
def round(input: Any, *, decimals: int = 0) -> Tensor:
    """Rounded to the nearest, halves to even."""
    if decimals == 0:
        return _rounding(Round, input)
    scale = 10.0 ** np.abs(decimals)
    return div(round(mul(input, scale)), scale) if decimals > 0 else mul(round(div(input, scale)), scale)


fix = trunc


@rounded_once
def frac(input: Any) -> Tensor:
    """What is left after rounding towards zero."""
    return sub(input, trunc(input))


def exp(input: Any) -> Tensor:
    """``e`` to the power of each element."""
    return unary(Exp, input)


@rounded_once
def exp2(input: Any) -> Tensor:
    """2 to the power of each element."""
    return exp(mul(floating(input), math.log(2)))


@rounded_once
def expm1(input: Any) -> Tensor:
    """``exp(input) - 1``, exact near 0."""
    x = floating(input)
    half = tanh(mul(x, 0.5))
    near = div(mul(half, 2.0), sub(1.0, half))
    return where(lt(abs(x), 0.5), near, sub(exp(x), 1.0))


def log(input: Any) -> Tensor:
    """Natural logarithm."""
    return unary(Log, input)


@rounded_once
def log2(input: Any) -> Tensor:
    """Logarithm to base 2."""
    return mul(log(input), 1.0 / math.log(2))


@rounded_once
def log10(input: Any) -> Tensor:
    """Logarithm to base 10."""
    return mul(log(input), 1.0 / math.log(10))


@rounded_once
def log1p(input: Any) -> Tensor:
    """``log(1 + input)``, exact near 0."""
    x = floating(input)
    y = add(x, 1.0)
    off = sub(y, 1.0)
    none = eq(y, 0.0)
    # What 1 + x lost in rounding is made up for by the slope of the logarithm.
    curve = mul(log(where(none, 1.0, y)), div(x, where(eq(off, 0.0), 1.0, off)))
    exact = where(eq(off, 0.0), x, curve)
    return where(logical_or(isinf(y), none), where(none, log(y), y), exact)


def sqrt(input: Any) -> Tensor:
    """Square root; NaN below 0."""
    return unary(Sqrt, input)


@rounded_once
def rsqrt(input: Any) -> Tensor:
    """``1 / sqrt(input)``."""
    return reciprocal(sqrt(input))


def sin(input: Any) -> Tensor:
    """Sine."""
    return unary(Sin, input)


def cos(input: Any) -> Tensor:
    """Cosine."""
    return unary(Cos, input)


def tan(input: Any) -> Tensor:
    """Tangent."""
    return unary(Tan, input)


def asin(input: Any) -> Tensor:
    """Inverse sine."""
    return unary(Asin, input)


def acos(input: Any) -> Tensor:
    """Inverse cosine."""
    return unary(Acos, input)


def atan(input: Any) -> Tensor:
    """Inverse tangent."""
    return unary(Atan, input)


def sinh(input: Any) -> Tensor:
    """Hyperbolic sine."""
    return unary(Sinh, input)


def cosh(input: Any) -> Tensor:
    """Hyperbolic cosine."""
    return unary(Cosh, input)


def tanh(input: Any) -> Tensor:
    """Hyperbolic tangent."""
    return unary(Tanh, input)


def asinh(input: Any) -> Tensor:
    """Inverse hyperbolic sine."""
    return unary(Asinh, input)


def acosh(input: Any) -> Tensor:
    """Inverse hyperbolic cosine."""
    return unary(Acosh, input)


def atanh(input: Any) -> Tensor:
    """Inverse hyperbolic tangent."""
    return unary(Atanh, input)


arcsin, arccos, arctan, arcsinh, arccosh, arctanh = asin, acos, atan, asinh, acosh, atanh


@rounded_once
def atan2(input: Any, other: Any) -> Tensor:
    """The angle of the point (other, input)."""
    y, x = operands(input, other, floating=True)
    flat = eq(x, 0.0)
    angle = atan(div(y, where(flat, 1.0, x)))
    half = where(signbit(y), scalar(-math.pi, x.dtype), scalar(math.pi, x.dtype))
    turned = where(lt(x, 0.0), add(angle, half), angle)
    upright = where(eq(y, 0.0), where(signbit(x), half, y), mul(half, 0.5))
    # On the axis x = 0 the slope for x is that of atan(y / x): keep the graph connected through it. At the origin
    # there is no slope.
    origin = logical_and(flat, eq(y, 0.0))
    through = sub(upright, div(sub(x, x.detach()), where(eq(y, 0.0), 1.0, y)))
    return where(origin, upright.detach(), where(flat, through, turned))


arctan2 = atan2


@rounded_once
def hypot(input: Any, other: Any) -> Tensor:
    """The length of the vector (input, other)."""
    a, b = (real_only("hypot", v) for v in operands(input, other))
    big, low = maximum(abs(a), abs(b)), minimum(abs(a), abs(b))
    ratio = div(low, where(eq(big, 0.0), 1.0, big))
    return where(eq(low, 0.0), big, mul(big, sqrt(add(mul(ratio, ratio), 1.0))))


def erf(input: Any) -> Tensor:
    """Error function."""
    return unary(Erf, input)


@rounded_once
def erfc(input: Any) -> Tensor:
    """``1 - erf(input)``."""
    return sub(1.0, erf(input))


@rounded_once
def logaddexp(input: Any, other: Any) -> Tensor:
    """``log(exp(input) + exp(other))`` without overflow."""
    a, b = operands(input, other, floating=True)
    top = maximum(a, b)
    gap = neg(abs(sub(a, b)))
    return where(eq(a, b), add(top, math.log(2)), add(top, log1p(exp(gap))))


@rounded_once
def logit(input: Any, eps: float | None = None) -> Tensor:
    """``log(input / (1 - input))``, the inverse of sigmoid."""
    x = floating(real_only("logit", input))
    x = x if eps is None else clamp(x, eps, 1.0 - eps)
    return log(div(x, sub(1.0, x)))


@rounded_once
def xlogy(input: Any, other: Any) -> Tensor:
    """``input * log(other)``, 0 where ``input`` is."""
    a, b = (real_only("xlogy", v) for v in operands(input, other, floating=True))
    zero = eq(a, 0.0)
    return where(logical_and(zero, logical_not(isnan(b))), 0.0, mul(a, log(where(zero, 1.0, b))))


@rounded_once
def sinc(input: Any) -> Tensor:
    """``sin(pi x) / (pi x)``, 1 at 0."""
    x = mul(floating(input), math.pi)
    flat = eq(x, 0.0)
    return where(flat, 1.0, div(sin(x), where(flat, 1.0, x)))


@rounded_once
def deg2rad(input: Any) -> Tensor:
    """Degrees to radians."""
    return mul(floating(real_only("deg2rad", input)), math.pi / 180)


@rounded_once
def rad2deg(input: Any) -> Tensor:
    """Radians to degrees."""
    return mul(floating(real_only("rad2deg", input)), 180 / math.pi)


def heaviside(input: Any, values: Any) -> Tensor:
    """0 below zero, 1 above, ``values`` at zero."""
    a, b = operands(input, values)
    return where(eq(a, 0), b, cast(gt(a, 0), a.dtype))


def nan_to_num(input: Any, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None) -> Tensor:
    """NaN and infinities replaced by numbers."""
    x = real_only("nan_to_num", input)
    if not x.dtype.is_floating_point:
        return call(Identity, x)
    limit = float(_finfo(x.dtype).max)
    high, low = limit if posinf is None else posinf, -limit if neginf is None else neginf
    x = where(isnan(x), nan, x)
    return where(eq(x, math.inf), high, where(eq(x, -math.inf), low, x))


def _finfo(dtype: DType) -> Any:
    import ml_dtypes

    return ml_dtypes.finfo(dtype.numpy)


def isposinf(input: Any) -> Tensor:
    """Where positive infinity."""
    return eq(real_only("isposinf", input), math.inf)


def isneginf(input: Any) -> Tensor:
    """Where negative infinity."""
    return eq(real_only("isneginf", input), -math.inf)


def isreal(input: Any) -> Tensor:
    """Where the imaginary part is 0: everywhere, unless the tensor is complex."""
    x = as_tensor(input)
    if x.dtype.is_complex:
        return eq(parts(x)[1], 0)
    return logical_or(eq(x, x), ne(x, x))


def isclose(input: Any, other: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Tensor:
    """Where two tensors are close: ``|input - other| <= atol + rtol * |other|``."""
    a, b = operands(input, other)
    same = eq(a, b)
    if equal_nan and a.dtype.is_inexact:
        same = logical_or(same, logical_and(isnan(a), isnan(b)))
    wide = [cast(v, DType.float64) for v in (a, b)] if not a.dtype.is_inexact else [a, b]
    near = le(abs(sub(*wide)), add(mul(abs(wide[1]), rtol), atol))
    return logical_or(same, logical_and(near, isfinite(wide[1])))
