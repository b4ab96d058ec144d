"""Elementwise operators of aten: two operands and more, with torch's type promotion."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from pyflame_rt.graph import DType
from pyflame_rt.importers.aten.table import aten
from pyflame_rt.importers.aten.values import cast, floated, is_static, number, promoted, refuse, result_type
from pyflame_rt.ops.core.value import Value, constant
from pyflame_rt.ops.onnx import activation, arithmetic, logic
from pyflame_rt.ops.onnx import math as maths

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["arctangent", "below_zero"]


def _scaled(value: Value, alpha: Any) -> Value:
    return value if is_static(alpha) and alpha == 1 else value * number(alpha, value.dtype)


@aten("add")
def _add(x: Any, other: Any, *, alpha: Any = 1) -> Value:
    left, right = promoted(x, other)
    if left.dtype is DType.Bool:
        return logic.Or(left, right)
    return left + _scaled(right, alpha)


@aten("sub", "subtract")
def _sub(x: Any, other: Any, *, alpha: Any = 1) -> Value:
    left, right = promoted(x, other)
    return left - _scaled(right, alpha)


@aten("rsub")
def _rsub(x: Any, other: Any, alpha: Any = 1) -> Value:
    return _sub(other, x, alpha=alpha)


def _in_full(x: Any, other: Any, combine: Callable[[Value, Value], Value]) -> Value | None:
    """A product or quotient of half precision and a number: torch rounds the result, and not the number before."""
    kind = result_type(x, other)
    if kind not in (DType.Float16, DType.BFloat16) or not isinstance(x, Value) or not x.rank:
        return None
    if isinstance(other, Value) and other.rank:
        return None
    return cast(combine(number(x, DType.Float32), number(other, DType.Float32)), kind)


@aten("mul", "multiply")
def _mul(x: Any, other: Any) -> Value:
    if (found := _in_full(x, other, lambda a, b: a * b)) is not None:
        return found
    left, right = promoted(x, other)
    return logic.And(left, right) if left.dtype is DType.Bool else left * right


@aten("div", "divide", "true_divide")
def _div(x: Any, other: Any, *, rounding_mode: str | None = None) -> Value:
    if rounding_mode == "floor":
        return _floor_divide(x, other)
    if rounding_mode is None and (found := _in_full(x, other, lambda a, b: a / b)) is not None:
        return found
    left, right = promoted(x, other)
    if rounding_mode == "trunc":
        if not left.dtype.is_float:
            return arithmetic.Div(left, right)  # of integers: towards zero
        quotient = left / right
        return arithmetic.Sign(quotient) * maths.Floor(arithmetic.Abs(quotient))
    return floated(left) / floated(right)


def _floor_of_floats(left: Value, right: Value) -> Value:
    """What is left after as many whole times as go in; the floor of the rounded quotient may be one too many."""
    zero, one, quotient = number(0.0, left.dtype), number(1.0, left.dtype), left / right
    rest = arithmetic.Mod(left, right, fmod=1)
    away = logic.And(logic.Not(logic.Equal(rest, zero)), logic.Xor(rest < zero, right < zero))
    times = (left - rest) / right
    times = logic.Where(away, times - one, times)
    whole = maths.Floor(times)
    whole = logic.Where(times - whole > number(0.5, left.dtype), whole + one, whole)
    whole = logic.Where(logic.Equal(times, zero), quotient * zero, whole)
    return logic.Where(logic.Equal(right, zero), quotient, whole)


@aten("floor_divide")
def _floor_divide(x: Any, other: Any) -> Value:
    if (found := _in_full(x, other, _floor_of_floats)) is not None:
        return found
    left, right = promoted(x, other)
    if left.dtype.is_float:
        return _floor_of_floats(left, right)
    quotient = arithmetic.Div(left, right)
    rest = left - quotient * right
    short = logic.And(logic.Not(logic.Equal(rest, number(0, left.dtype))), logic.Xor(rest < 0, right < 0))
    return quotient - cast(short, left.dtype)


@aten("remainder")
def _remainder(x: Any, other: Any) -> Value:
    left, right = promoted(x, other)
    if left.dtype.is_float:
        rest = arithmetic.Mod(left, right, fmod=1)
        away = logic.And(logic.Not(logic.Equal(rest, number(0, left.dtype))), logic.Xor(rest < 0.0, right < 0.0))
        return logic.Where(away, rest + right, rest)
    return arithmetic.Mod(left, right)


@aten("fmod")
def _fmod(x: Any, other: Any) -> Value:
    return arithmetic.Mod(*promoted(x, other), fmod=1)


@aten("float_power")
def _float_power(x: Any, exponent: Any) -> Value:
    kind = DType.Complex128 if result_type(x, exponent).is_complex else DType.Float64
    return _pow(number(x, kind), number(exponent, kind))


@aten("pow")
def _pow(x: Any, exponent: Any) -> Value:
    kind = result_type(x, exponent)
    base = number(x, kind)
    if is_static(exponent):
        if exponent == 2:
            return base * base
        if exponent == 0.5:
            return maths.Sqrt(base)
        if exponent == 1:
            return base
    return arithmetic.Pow(base, number(exponent, kind))


@aten("maximum")
def _maximum(x: Value, other: Value) -> Value:
    return arithmetic.Max(*promoted(x, other))


@aten("minimum")
def _minimum(x: Value, other: Value) -> Value:
    return arithmetic.Min(*promoted(x, other))


@aten("fmax")
def _fmax(x: Value, other: Value) -> Value:
    left, right = promoted(x, other)
    best = arithmetic.Max(left, right)
    if not left.dtype.is_float:
        return best
    return logic.Where(maths.IsNaN(left), right, logic.Where(maths.IsNaN(right), left, best))


@aten("fmin")
def _fmin(x: Value, other: Value) -> Value:
    left, right = promoted(x, other)
    best = arithmetic.Min(left, right)
    if not left.dtype.is_float:
        return best
    return logic.Where(maths.IsNaN(left), right, logic.Where(maths.IsNaN(right), left, best))


def below_zero(x: Value) -> Value:
    """Where the sign is negative, also that of -0."""
    if not x.dtype.is_float:
        return x < constant(0, x)
    return logic.Or(x < 0.0, arithmetic.Reciprocal(x) < 0.0)


@aten("signbit")
def _signbit(x: Value) -> Value:
    return constant(False) & x if x.dtype is DType.Bool else below_zero(x)


@aten("atan2", "arctan2")
def arctangent(y: Any, x: Any) -> Value:
    """The angle of the point (x, y), from -pi to pi; zeros have a sign, and two infinities are a diagonal."""
    first, second = promoted(floated(y), floated(x))
    zero, one = constant(0.0, first), constant(1.0, first)
    both = logic.And(maths.IsInf(first), maths.IsInf(second))
    y, x = (logic.Where(both, arithmetic.Sign(v), v) for v in (first, second))
    flat = logic.Equal(x, zero)
    slope = maths.Atan(y / logic.Where(flat, one, x))
    half = logic.Where(below_zero(y), constant(-math.pi, first), constant(math.pi, first))
    turned = logic.Where(x < 0.0, slope + half, slope)
    upright = logic.Where(logic.Equal(y, zero), logic.Where(below_zero(x), half, y), half * 0.5)
    upright = logic.Where(maths.IsNaN(y), y, upright)
    return logic.Where(flat, upright, turned)


@aten("hypot")
def _hypot(x: Value, other: Value) -> Value:
    left, right = promoted(x, other)
    return maths.Sqrt(left * left + right * right)


@aten("logaddexp")
def _logaddexp(x: Value, other: Value) -> Value:
    left, right = promoted(x, other)
    most, away = arithmetic.Max(left, right), arithmetic.Abs(left - right)
    same = logic.Equal(left, right)  # infinities too, whose distance is no number
    return most + activation.Softplus(-logic.Where(same, constant(0.0, left), away))


@aten("logaddexp2")
def _logaddexp2(x: Value, other: Value) -> Value:
    two = math.log(2)
    return _logaddexp(x * two, other * two) / two


@aten("xlogy", "special_xlogy")
def _xlogy(x: Any, other: Any) -> Value:
    left, right = (floated(v) for v in promoted(x, other))
    zero = logic.Equal(left, constant(0.0, left))
    product = left * maths.Log(logic.Where(zero, constant(1.0, right), right))
    return logic.Where(logic.And(zero, logic.Not(maths.IsNaN(right))), constant(0.0, left), product)


def _compare(name: str, op: Callable[[Value, Value], Value]) -> None:
    def compared(x: Any, other: Any) -> Value:
        left, right = promoted(x, other)
        if left.dtype is DType.Bool and name not in ("eq", "ne"):
            left, right = cast(left, DType.Int64), cast(right, DType.Int64)
        return op(left, right)

    aten(name)(compared)


_compare("eq", logic.Equal)
_compare("ne", lambda a, b: logic.Not(logic.Equal(a, b)))
_compare("lt", logic.Less)
_compare("le", logic.LessOrEqual)
_compare("gt", logic.Greater)
_compare("ge", logic.GreaterOrEqual)


def _of_truth(op: Callable[[Value, Value], Value]) -> Callable[[Any, Any], Value]:
    return lambda x, other: op(number(x, DType.Bool), number(other, DType.Bool))


aten("logical_and")(_of_truth(logic.And))
aten("logical_or")(_of_truth(logic.Or))
aten("logical_xor")(_of_truth(logic.Xor))


def _bitwise(of_bools: Callable[[Value, Value], Value], of_bits: Callable[[Value, Value], Value]) -> Any:
    def combined(x: Any, other: Any) -> Value:
        left, right = promoted(x, other)
        return of_bools(left, right) if left.dtype is DType.Bool else of_bits(left, right)

    return combined


aten("bitwise_and", "__and__")(_bitwise(logic.And, logic.BitwiseAnd))
aten("bitwise_or", "__or__")(_bitwise(logic.Or, logic.BitwiseOr))
aten("bitwise_xor", "__xor__")(_bitwise(logic.Xor, logic.BitwiseXor))


def _shifted(direction: str) -> Callable[[Any, Any], Value]:
    def shift(x: Any, other: Any) -> Value:
        left, right = promoted(x, other)
        if direction == "LEFT":
            return left * arithmetic.Pow(number(2, left.dtype), right)
        return _floor_divide(left, arithmetic.Pow(number(2, left.dtype), right))

    return shift


aten("bitwise_left_shift", "__lshift__")(_shifted("LEFT"))
aten("bitwise_right_shift", "__rshift__")(_shifted("RIGHT"))


@aten("lerp")
def _lerp(x: Value, end: Value, weight: Any) -> Value:
    return x + (end - x) * number(weight, x.dtype)


@aten("addcmul")
def _addcmul(x: Value, tensor1: Value, tensor2: Value, *, value: Any = 1) -> Value:
    base, left, right = promoted(x, tensor1, tensor2)
    return base + _scaled(left * right, value)


@aten("addcdiv")
def _addcdiv(x: Value, tensor1: Value, tensor2: Value, *, value: Any = 1) -> Value:
    base, left, right = promoted(x, tensor1, tensor2)
    return base + _scaled(left / right, value)


@aten("heaviside")
def _heaviside(x: Value, values: Value) -> Value:
    left, right = promoted(x, values)
    step = cast(left > number(0, left.dtype), left.dtype)
    return logic.Where(logic.Equal(left, number(0, left.dtype)), right, step)


@aten("isclose")
def _isclose(x: Value, other: Value, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Value:
    if equal_nan:
        raise refuse("isclose with equal_nan=True")
    left, right = promoted(x, other)
    near = arithmetic.Abs(left - right) <= arithmetic.Abs(right) * rtol + atol
    return logic.Or(logic.Equal(left, right), near)


@aten("copysign")
def _copysign(x: Value, other: Any) -> Value:
    left, right = (floated(v) for v in promoted(x, other))
    negative = logic.Or(right < 0.0, arithmetic.Reciprocal(right) < 0.0)
    size = arithmetic.Abs(left)
    return logic.Where(negative, -size, size)
