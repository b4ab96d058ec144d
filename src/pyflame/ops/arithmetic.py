"""Arithmetic, comparison and logic, element by element with broadcasting."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from pyflame.dtypes import DType
from pyflame.ops.core import (
    Handle,
    as_tensor,
    call,
    cast,
    common_dtype,
    const,
    convert,
    is_scalar,
    operands,
    quick,
    real_only,
    rounded_once,
    same_type,
    scalar,
    unary,
)  # fmt: skip
from pyflame_rt.ops.onnx.activation import Clip
from pyflame_rt.ops.onnx.arithmetic import Abs, Add, Div, Max, Min, Mod, Mul, Neg, Pow, Reciprocal, Sub
from pyflame_rt.ops.onnx.cast import Identity
from pyflame_rt.ops.onnx.index import Gather
from pyflame_rt.ops.onnx.logic import (
    And,
    BitShift,
    BitwiseAnd,
    BitwiseNot,
    BitwiseOr,
    BitwiseXor,
    Equal,
    Greater,
    GreaterOrEqual,
    Less,
    LessOrEqual,
    Not,
    Or,
    Where,
    Xor,
)
from pyflame_rt.ops.onnx.math import Ceil, Floor, IsInf, IsNaN, Sqrt
from pyflame_rt.ops.pyflame.complex_numbers import ComplexAbs, ViewAsReal

if TYPE_CHECKING:
    from pyflame.tensors import Tensor
    from pyflame_rt.ops.core.registry import Op

# ------------------------------------------------------------------ the four operations


def add(input: Any, other: Any, *, alpha: Any = 1) -> Tensor:
    """``input + alpha * other``."""
    if alpha != 1:
        return _add_scaled(input, other, alpha)
    made = quick(Add, input, other)
    if made is not None:
        return made
    a, b = operands(input, other)
    return call(Or if a._value.spec.dtype is DType.bool else Add, a, b)


@rounded_once
def _add_scaled(input: Any, other: Any, alpha: Any) -> Tensor:
    return add(input, mul(other, alpha))


@rounded_once
def _sub_scaled(input: Any, other: Any, alpha: Any) -> Tensor:
    return sub(input, mul(other, alpha))


def sub(input: Any, other: Any, *, alpha: Any = 1) -> Tensor:
    """``input - alpha * other``."""
    if alpha != 1:
        return _sub_scaled(input, other, alpha)
    made = quick(Sub, input, other)
    if made is not None:
        return made
    a, b = operands(input, other)
    if a._value.spec.dtype is DType.bool:
        raise TypeError("booleans cannot be subtracted; use logical_xor, or ~ to invert a mask")
    return call(Sub, a, b)


def rsub(input: Any, other: Any, *, alpha: Any = 1) -> Tensor:
    """``other - alpha * input``."""
    return sub(other, input, alpha=alpha)


def mul(input: Any, other: Any) -> Tensor:
    """``input * other``."""
    made = quick(Mul, input, other)
    if made is not None:
        return made
    a, b = operands(input, other)
    return call(And if a._value.spec.dtype is DType.bool else Mul, a, b)


def div(input: Any, other: Any, *, rounding_mode: str | None = None) -> Tensor:
    """``input / other``: true division, or rounded with ``rounding_mode`` "trunc" or "floor"."""
    if rounding_mode is None:
        made = quick(Div, input, other)
        if made is not None:
            return made
        a, b = operands(input, other, floating=True)
        return call(Div, a, b)
    if rounding_mode == "floor":
        return floor_divide(input, other)
    if rounding_mode != "trunc":
        raise ValueError(f"rounding_mode is None, 'trunc' or 'floor', got {rounding_mode!r}")
    a, b = _numbers(input, other)
    return call(Div, a, b) if a.dtype.is_integer else trunc(call(Div, a, b))


def _numbers(input: Any, other: Any) -> list[Tensor]:
    """Operands, booleans as bytes."""
    a, b = operands(input, other)
    return [cast(v, DType.uint8) for v in (a, b)] if a._value.spec.dtype is DType.bool else [a, b]


@rounded_once
def floor_divide(input: Any, other: Any) -> Tensor:
    """The quotient rounded down."""
    a, b = _numbers(input, other)
    if a.dtype.is_floating_point:
        quotient = call(Div, a - call(Mod, a, b, fmod=1), b) + _borrow(a, b)
        down = call(Floor, quotient)
        rounded = where(gt(quotient - down, 0.5), down + 1.0, down)
        return where(call(Equal, b, scalar(0, b.dtype)), call(Div, a.detach(), b.detach()), rounded)
    # Rounded towards zero, and one less where the signs differ: no step can leave the range.
    return call(Div, a, b) + _borrow(a, b)


def _borrow(a: Tensor, b: Tensor) -> Tensor:
    """-1 where the remainder has another sign than the divisor."""
    rest = call(Mod, a, b, fmod=1)
    zero = scalar(0, a.dtype)
    signs = call(Xor, call(Less, rest, zero), call(Less, b, zero))
    other = call(And, call(Not, call(Equal, rest, zero)), signs)
    if a.dtype is DType.uint8:
        return cast(other, a.dtype)  # never set
    return call(Neg, cast(other, a.dtype))


@rounded_once
def remainder(input: Any, other: Any) -> Tensor:
    """The remainder with the sign of the divisor."""
    a, b = _numbers(input, other)
    if not a.dtype.is_floating_point:
        return call(Mod, a, b)
    rest = call(Mod, a, b, fmod=1)
    return where(call(Less, call(Mul, rest, b), scalar(0, a.dtype)), rest + b, rest)


def fmod(input: Any, other: Any) -> Tensor:
    """The remainder with the sign of the dividend."""
    a, b = _numbers(input, other)
    return call(Mod, a, b, fmod=1)


def neg(input: Any) -> Tensor:
    """``-input``."""
    x = as_tensor(input)
    if x.dtype is DType.bool:
        raise TypeError("a boolean tensor cannot be negated; use ~ to invert a mask")
    if x.dtype is DType.uint8:
        return call(Sub, scalar(0, x.dtype), x)
    return call(Neg, x)


def positive(input: Any) -> Tensor:
    """The tensor itself."""
    return as_tensor(input)


def pow(input: Any, exponent: Any) -> Tensor:
    """``input`` to the power ``exponent``."""
    if isinstance(input, Handle) and is_scalar(exponent):
        special = _simple_power(input, exponent)
        if special is not None:
            return special
    a, b = _numbers(input, exponent)
    if a.dtype.is_integer and is_scalar(exponent) and exponent < 0:
        raise ValueError(f"integers have no negative powers, got {exponent}; make the tensor floating point")
    return call(Pow, a, b)


def _simple_power(x: Any, exponent: Any) -> Tensor | None:
    """Powers that are cheaper written out; the exponent is then part of the graph's structure."""
    dtype = common_dtype((x, exponent))
    if dtype is DType.bool:
        return None
    if exponent == 1:
        return cast(x, dtype)
    if exponent == 2:
        return mul(cast(x, dtype), cast(x, dtype))
    if not dtype.is_inexact:
        return None
    if exponent == 0.5:
        return call(Sqrt, cast(x, dtype))
    if exponent == -1:
        return reciprocal(cast(x, dtype))
    if exponent == 3:
        return _cube(cast(x, dtype))
    return None


@rounded_once
def _cube(x: Tensor) -> Tensor:
    return mul(mul(x, x), x)


def float_power(input: Any, exponent: Any) -> Tensor:
    """The power in float64."""
    a, b = (cast(as_tensor(v), DType.float64) for v in (input, exponent))
    return call(Pow, a, b)


def reciprocal(input: Any) -> Tensor:
    """``1 / input``."""
    return unary(Reciprocal, input)


def square(input: Any) -> Tensor:
    """``input * input``."""
    return pow(as_tensor(input), 2)


@rounded_once
def addcmul(input: Any, tensor1: Any, tensor2: Any, *, value: Any = 1) -> Tensor:
    """``input + value * tensor1 * tensor2``."""
    return add(input, mul(tensor1, tensor2), alpha=value)


@rounded_once
def addcdiv(input: Any, tensor1: Any, tensor2: Any, *, value: Any = 1) -> Tensor:
    """``input + value * tensor1 / tensor2``."""
    return add(input, div(tensor1, tensor2), alpha=value)


@rounded_once
def lerp(input: Any, end: Any, weight: Any) -> Tensor:
    """``input + weight * (end - input)``; both ends are of one element type."""
    for other in (end, weight):
        same_type("lerp", as_tensor(input), other)
    return add(input, mul(weight, sub(end, input)))


def maximum(input: Any, other: Any) -> Tensor:
    """The larger of two, element by element; NaN where one is."""
    a, b = operands(input, other)
    return call(Or if a.dtype is DType.bool else Max, a, b)


def minimum(input: Any, other: Any) -> Tensor:
    """The smaller of two, element by element; NaN where one is."""
    a, b = operands(input, other)
    return call(And if a.dtype is DType.bool else Min, a, b)


def fmax(input: Any, other: Any) -> Tensor:
    """The larger of two; the other where one is NaN."""
    a, b = operands(input, other)
    if not a.dtype.is_floating_point:
        return maximum(a, b)
    return where(logical_or(ge(a, b), isnan(b)), a, b)


def fmin(input: Any, other: Any) -> Tensor:
    """The smaller of two; the other where one is NaN."""
    a, b = operands(input, other)
    if not a.dtype.is_floating_point:
        return minimum(a, b)
    return where(logical_or(le(a, b), isnan(b)), a, b)


def clamp(input: Any, min: Any = None, max: Any = None) -> Tensor:
    """The tensor limited to an interval; a missing bound does not limit."""
    if min is None and max is None:
        raise ValueError("clamp needs min, max or both")
    given = [v for v in (input, min, max) if v is not None]
    dtype = common_dtype(given)
    x = convert(input, dtype)
    low, high = (None if v is None else convert(v, dtype) for v in (min, max))
    if all(v is None or (v.ndim == 0 and not v._value.needs_grad) for v in (low, high)) and dtype is not DType.bool:
        return call(Clip, x, low, high) if high is not None else call(Clip, x, low)
    if not dtype.is_floating_point:
        x = x if low is None else maximum(x, low)
        return x if high is None else minimum(x, high)
    # Where the tensor equals its bound, the gradient is the tensor's; NaN on either side stays, and has none.
    if low is not None:
        x = where(ge(x, low), x, where(lt(x, low), low, add(x, low).detach()))
    return x if high is None else where(le(x, high), x, where(gt(x, high), high, add(x, high).detach()))


clip = clamp


def clamp_min(input: Any, min: Any) -> Tensor:
    """The tensor, at least ``min``."""
    return clamp(input, min=min)


def clamp_max(input: Any, max: Any) -> Tensor:
    """The tensor, at most ``max``."""
    return clamp(input, max=max)


# ------------------------------------------------------------------ comparison


def _compare(op: Op, input: Any, other: Any) -> Tensor:
    a, b = operands(input, other)
    if a.dtype is DType.bool and op is not Equal:
        a, b = cast(a, DType.uint8), cast(b, DType.uint8)
    return call(op, a, b)


def eq(input: Any, other: Any) -> Tensor:
    """Where equal."""
    return _compare(Equal, input, other)


def ne(input: Any, other: Any) -> Tensor:
    """Where not equal."""
    return call(Not, _compare(Equal, input, other))


def lt(input: Any, other: Any) -> Tensor:
    """Where less."""
    return _compare(Less, input, other)


def le(input: Any, other: Any) -> Tensor:
    """Where less or equal."""
    return _compare(LessOrEqual, input, other)


def gt(input: Any, other: Any) -> Tensor:
    """Where greater."""
    return _compare(Greater, input, other)


def ge(input: Any, other: Any) -> Tensor:
    """Where greater or equal."""
    return _compare(GreaterOrEqual, input, other)


less, less_equal, greater, greater_equal, not_equal = lt, le, gt, ge, ne


# ------------------------------------------------------------------ logic and bits


def _logical(op: Op, input: Any, other: Any) -> Tensor:
    return call(op, cast(as_tensor(input), DType.bool), cast(as_tensor(other), DType.bool))


def logical_and(input: Any, other: Any) -> Tensor:
    """Where both are true (not zero)."""
    return _logical(And, input, other)


def logical_or(input: Any, other: Any) -> Tensor:
    """Where one is true."""
    return _logical(Or, input, other)


def logical_xor(input: Any, other: Any) -> Tensor:
    """Where exactly one is true."""
    return _logical(Xor, input, other)


def logical_not(input: Any) -> Tensor:
    """Where false (zero)."""
    return call(Not, cast(as_tensor(input), DType.bool))


def _bitwise(op: Op, logical: Op, input: Any, other: Any) -> Tensor:
    a, b = operands(input, other)
    if a.dtype.is_floating_point:
        raise TypeError(f"bits of {a.dtype} cannot be combined; use an integer or boolean tensor")
    return call(logical if a.dtype is DType.bool else op, a, b)


def bitwise_and(input: Any, other: Any) -> Tensor:
    """Bits that both have."""
    return _bitwise(BitwiseAnd, And, input, other)


def bitwise_or(input: Any, other: Any) -> Tensor:
    """Bits that one has."""
    return _bitwise(BitwiseOr, Or, input, other)


def bitwise_xor(input: Any, other: Any) -> Tensor:
    """Bits that exactly one has."""
    return _bitwise(BitwiseXor, Xor, input, other)


def bitwise_left_shift(input: Any, other: Any) -> Tensor:
    """Bits moved up: `input` times two to the power of `other`."""
    a, b = _shifted(input, other)
    return a * pow(scalar(2, a.dtype), b)


def bitwise_right_shift(input: Any, other: Any) -> Tensor:
    """Bits moved down; the sign stays, and is all that is left where there are fewer bits than steps."""
    a, b = _shifted(input, other)
    if a.dtype is DType.uint8:
        return call(BitShift, a, b, direction="RIGHT")
    two = scalar(2, a.dtype)
    # The highest power of two is a negative number: there in two steps.
    last = 8 * a.dtype.itemsize - 1
    steps = where((b < 0) | (b > last), scalar(last, b.dtype), b)
    half = call(Div, steps, scalar(2, b.dtype))
    return floor_divide(floor_divide(a, pow(two, half)), pow(two, steps - half))


def _shifted(input: Any, other: Any) -> tuple[Tensor, Tensor]:
    a, b = operands(input, other)
    if not a.dtype.is_integer:
        raise TypeError(f"bits of {a.dtype} cannot be shifted; use an integer tensor")
    return a, b


def bitwise_not(input: Any) -> Tensor:
    """All bits turned over."""
    x = as_tensor(input)
    if x.dtype.is_floating_point:
        raise TypeError(f"bits of {x.dtype} cannot be inverted; use an integer or boolean tensor")
    return call(Not if x.dtype is DType.bool else BitwiseNot, x)


def where(condition: Any, input: Any = None, other: Any = None) -> Any:
    """``input`` where the condition holds, ``other`` elsewhere; alone, the places where it holds."""
    if input is None and other is None:
        from pyflame.ops.gathering import nonzero

        return nonzero(condition, as_tuple=True)
    mask = cast(as_tensor(condition), DType.bool)
    a, b = operands(input, other)
    return call(Where, mask, a, b)


# ------------------------------------------------------------------ what the above needs


def parts(x: Tensor) -> tuple[Tensor, Tensor]:
    """Real and imaginary part of complex numbers."""
    pairs = call(ViewAsReal, x)
    first, second = (call(Gather, pairs, const(place), axis=-1) for place in (0, 1))
    return first, second


def abs(input: Any) -> Tensor:
    """Absolute value."""
    x = as_tensor(input)
    if x.dtype.is_complex:
        return call(ComplexAbs, x)
    return call(Identity if x.dtype in (DType.bool, DType.uint8) else Abs, x)


def trunc(input: Any) -> Tensor:
    """Rounded towards zero."""
    x = real_only("trunc", input)
    if not x.dtype.is_floating_point:
        return call(Identity, x)
    return where(lt(x, 0), call(Ceil, x), call(Floor, x))


def isnan(input: Any) -> Tensor:
    """Where NaN."""
    x = as_tensor(input)
    return call(IsNaN, x) if x.dtype.is_floating_point else ne(x, x)


def isinf(input: Any) -> Tensor:
    """Where infinite."""
    x = as_tensor(input)
    if x.dtype.is_complex:
        return logical_or(*(isinf(part) for part in parts(x)))
    return call(IsInf, x) if x.dtype.is_floating_point else ne(x, x)


def isfinite(input: Any) -> Tensor:
    """Where neither infinite nor NaN."""
    x = as_tensor(input)
    if x.dtype.is_complex:
        return logical_and(*(isfinite(part) for part in parts(x)))
    return call(Less, call(Abs, x), scalar(math.inf, x.dtype)) if x.dtype.is_floating_point else eq(x, x)


multiply, divide, true_divide, subtract, negative = mul, div, div, sub, neg
