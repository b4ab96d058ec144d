"""Elementwise functions with the common promotion rule."""

import math
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np

from emberharmony import special
from emberharmony.backends.mlx.base import (
    NATIVE,
    as_float,
    as_mlx,
    is_float,
    meet,
    native,
    native_dtype,
    number,
    widened,
)
from emberharmony.dtypes import is_scalar
from emberharmony.guards.axes import reduced_axes
from emberharmony.library import library
from emberharmony.typing import ArrayLike, Axis, DTypeLike, Shape

Array = mx.array


def _float_unary(function: Callable[[Array], Array]) -> Callable[[ArrayLike], Array]:
    def call(x: ArrayLike) -> Array:
        return function(as_float(x))

    return call


def _wide_unary(function: Callable[[Array], Array]) -> Callable[[ArrayLike], Array]:
    """Through float32 for half precision."""

    def call(x: ArrayLike) -> Array:
        x = as_float(x)
        return function(widened(x)).astype(x.dtype)

    return call


def _exact(
    name: str, function: Callable[[Array], Array], on_host: Callable[[np.ndarray], Any]
) -> Callable[[ArrayLike], Array]:
    """A function that MLX computes in float32 even for float64, which goes to the host instead."""
    wide = _wide_unary(function)

    def call(x: ArrayLike) -> Array:
        x = as_mlx(x)
        return wide(x) if x.dtype != mx.float64 else _hosted(name, on_host, x)

    return call


def _hosted(name: str, function: Callable[[np.ndarray], Any], x: Array) -> Array:
    def computed(values: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            return np.asarray(function(values.astype(np.float64, copy=False))).astype(values.dtype, copy=False)

    return library("mlx").by_host(name, computed, x)


def _host_unary(name: str) -> Callable[[ArrayLike], Array]:
    """A function MLX does not have, computed on the host in float64."""
    function = getattr(special, name)

    def call(x: ArrayLike) -> Array:
        x = as_float(x)
        return _hosted(name, function, widened(x)).astype(x.dtype)

    return call


def _rounding(function: Callable[[Array], Array]) -> Callable[[ArrayLike], Array]:
    def call(x: ArrayLike) -> Array:
        x = as_mlx(x)
        return function(x) if is_float(x) else x

    return call


def _plain(function: Callable[[Array], Array]) -> Callable[[ArrayLike], Array]:
    def call(x: ArrayLike) -> Array:
        return function(as_mlx(x))

    return call


def _binary(function: Callable[[Array, Array], Array]) -> Callable[..., Array]:
    def call(x1: ArrayLike, x2: ArrayLike) -> Array:
        if not (isinstance(x1, Array) and isinstance(x2, Array) and x1.dtype == x2.dtype):
            x1, x2 = meet(x1, x2)
        return function(x1, x2)

    return call


def _float_binary(function: Callable[[Array, Array], Array]) -> Callable[..., Array]:
    def call(x1: ArrayLike, x2: ArrayLike) -> Array:
        x1, x2 = meet(x1, x2)
        return function(as_float(x1), as_float(x2))

    return call


def _logical(function: Callable[[Array, Array], Array]) -> Callable[..., Array]:
    def call(x1: ArrayLike, x2: ArrayLike) -> Array:
        return function(as_mlx(x1) != 0, as_mlx(x2) != 0)

    return call


_UNARY = [
    "exp",
    "expm1",
    "log",
    "log1p",
    "log2",
    "log10",
    "sqrt",
    "rsqrt",
    "sin",
    "cos",
    "tan",
    "arcsin",
    "arccos",
    "arctan",
    "sinh",
    "cosh",
    "tanh",
    "arcsinh",
    "arccosh",
    "arctanh",
]
NATIVE.update({name: _wide_unary(getattr(mx, name)) for name in _UNARY})
NATIVE.update({name: _exact(name, getattr(mx, name), getattr(np, name)) for name in ("exp", "sin", "cos")})
# MLX's erf has an absolute error of 1e-7 also where its values are smaller.
NATIVE["erf"] = _exact(
    "erf", lambda x: mx.where(mx.abs(x) < 5e-4, x * (2 / math.sqrt(math.pi)), mx.erf(x)), special.erf
)
NATIVE["sigmoid"] = _exact("sigmoid", mx.sigmoid, lambda x: 1 / (1 + np.exp(-x)))
NATIVE.update({name: _host_unary(name) for name in ("erfc", "erfinv", "lgamma", "digamma")})
NATIVE.update({n: _rounding(getattr(mx, n)) for n in ("floor", "ceil", "trunc")})
NATIVE.update({n: _plain(getattr(mx, n)) for n in ("abs", "isnan", "isinf", "isfinite", "conj")})
NATIVE["bitwise_not"] = _plain(mx.bitwise_invert)
NATIVE["logical_not"] = _plain(lambda x: x == 0)
_BINARY = [
    "add",
    "multiply",
    "maximum",
    "minimum",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "equal",
    "not_equal",
    "less",
    "less_equal",
    "greater",
    "greater_equal",
]
NATIVE.update({name: _binary(getattr(mx, name)) for name in _BINARY})
NATIVE["divide"] = _float_binary(mx.divide)
NATIVE["arctan2"] = _float_binary(lambda y, x: mx.arctan2(widened(y), widened(x)).astype(y.dtype))
NATIVE["logical_and"] = _logical(mx.logical_and)
NATIVE["logical_or"] = _logical(mx.logical_or)
NATIVE["logical_xor"] = _logical(mx.not_equal)


@native
def subtract(x1: ArrayLike, x2: ArrayLike) -> Array:
    """Difference; refused for bools, as the other libraries do."""
    x1, x2 = meet(x1, x2)
    if x1.dtype == mx.bool_:
        raise TypeError("bools have no difference: use logical_xor")
    return mx.subtract(x1, x2)


@native
def negative(x: ArrayLike) -> Array:
    """Negation; refused for bools, as the other libraries do."""
    x = as_mlx(x)
    if x.dtype == mx.bool_:
        raise TypeError("bools have no negative: use logical_not")
    return mx.negative(x)


def _division(function: Callable[[Array, Array], Array]) -> Callable[..., Array]:
    """Division forms: by an integer 0 the answer is 0."""

    def call(x1: ArrayLike, x2: ArrayLike) -> Array:
        x1, x2 = meet(x1, x2)
        if x1.dtype == mx.bool_:
            x1, x2 = x1.astype(mx.int8), x2.astype(mx.int8)
        if is_float(x1):
            return function(widened(x1), widened(x2)).astype(x1.dtype)
        zero = x2 == 0
        done = function(x1, mx.where(zero, mx.ones_like(x2), x2))
        return mx.where(zero, mx.zeros_like(done), done)

    return call


def _safe(x2: Array) -> tuple[Array, Array]:
    """Divisors without -1: with the lowest integer it traps in the processor."""
    minus = x2 == mx.array(-1).astype(x2.dtype)
    if mx.issubdtype(x2.dtype, mx.unsignedinteger):
        minus = mx.zeros_like(minus)
    return minus, mx.where(minus, mx.ones_like(x2), x2)


def _floor(x1: Array, x2: Array) -> Array:
    if is_float(x1):
        # What is left over comes first, as in Python: the rounded quotient may be a whole number too large.
        rest = _mod(x1, x2)
        exact = (x1 - rest) / x2
        whole = mx.floor(exact)
        whole = mx.where(exact - whole > 0.5, whole + 1, whole)
        # An infinity has no whole quotient, and by 0 there is no rest.
        whole = mx.where(x2 == 0, x1 / x2, mx.where(mx.isinf(x1), mx.nan, whole)).astype(x1.dtype)
        endless = mx.isinf(x2) & mx.isfinite(x1)
        below = mx.where((x1 != 0) & ((x1 < 0) != (x2 < 0)), -1.0, 0.0).astype(x1.dtype)
        return mx.where(endless, below, whole)
    minus, safe = _safe(x2)
    return mx.where(minus, mx.negative(x1), mx.floor_divide(x1, safe))


def _mod(x1: Array, x2: Array) -> Array:
    if is_float(x1):
        # MLX takes the remainder of an infinite divisor as NaN.
        rest = mx.remainder(x1, x2)
        same = (x1 < 0) == (x2 < 0)
        endless = mx.where(same | (x1 == 0), x1, x2)
        return mx.where(mx.isinf(x2) & mx.isfinite(x1), endless, rest)
    return mx.remainder(x1, _safe(x2)[1])


def _trunc(x1: Array, x2: Array) -> Array:
    if is_float(x1):
        return mx.trunc(mx.divide(x1, x2))
    whole = _floor(x1, x2)
    rest = (_mod(x1, x2) != 0) & ((x1 < 0) != (x2 < 0))
    return whole + rest.astype(whole.dtype)


def _fmod(x1: Array, x2: Array) -> Array:
    if is_float(x1):
        # Not mx.abs of the dividend: at 0 it has no slope, and the remainder has.
        below = x1 < 0
        rest = _mod(mx.where(below, mx.negative(x1), x1), mx.abs(x2))
        return mx.where(below, mx.negative(rest), rest)
    return x1 - _trunc(x1, x2) * x2


NATIVE["floor_divide"] = _division(_floor)
NATIVE["truncate_divide"] = _division(_trunc)
NATIVE["mod"] = _division(_mod)
NATIVE["fmod"] = _division(_fmod)


@native
def power(x1: ArrayLike, x2: ArrayLike) -> Array:
    """Powers; those of integers to negative ones truncate."""
    x1, x2 = meet(x1, x2)
    if x1.dtype == mx.bool_:
        x1, x2 = x1.astype(mx.int8), x2.astype(mx.int8)
    if x1.dtype == mx.complex64:
        return _complex_power(x1, x2)
    if is_float(x1):
        return _float_power(x1, x2)
    if mx.issubdtype(x1.dtype, mx.unsignedinteger):
        return mx.power(x1, x2)
    below = x2 < 0
    two = mx.array(2).astype(x2.dtype)
    result = mx.power(x1, mx.where(below, mx.remainder(x2, two), x2))
    return mx.where(below & (mx.abs(x1) != 1), mx.zeros_like(result), result)


def _float_power(x1: Array, x2: Array) -> Array:
    """Powers of floats; the gradients of 0 to the 0, which is 1 as every base gives, are those of 1 to the 0."""
    return mx.power(mx.where((x1 == 0) & (x2 == 0), mx.ones_like(x1), x1), x2)


def _complex_power(x1: Array, x2: Array) -> Array:
    """Powers of complex numbers, whose gradient MLX has for real ones only."""

    def backward(primals: Any, gradient: Array, result: Array) -> tuple[Array, Array]:
        base, exponent = primals
        none = base == 0
        safe = mx.where(none, mx.ones_like(base), base)
        slopes = exponent * mx.power(safe, exponent - 1), result * mx.log(safe)
        towards = [gradient * mx.conj(mx.where(none, mx.zeros_like(s), s)) for s in slopes]
        return towards[0], towards[1]

    # MLX goes by the logarithm, which 0 does not have.
    power: Any = mx.custom_function(lambda a, b: mx.where(b == 0, mx.ones_like(a), mx.power(a, b)))
    power.vjp(backward)
    return power(x1, x2)


def _shift(function: Callable[[Array, Array], Array], arithmetic: bool) -> Any:
    def call(x1: ArrayLike, x2: ArrayLike) -> Array:
        x1, x2 = meet(x1, x2)
        out = (x2 >= mx.array(x1.itemsize * 8).astype(x2.dtype)) | (x2 < 0)
        moved = function(x1, mx.where(out, mx.zeros_like(x2), x2))
        gone = mx.zeros_like(x1)
        if arithmetic:
            gone = mx.where(x1 < 0, mx.array(-1).astype(x1.dtype), gone)
        return mx.where(out, gone, moved)

    return call


NATIVE["left_shift"] = _shift(mx.left_shift, False)
NATIVE["right_shift"] = _shift(mx.right_shift, True)


@native
def sign(x: ArrayLike) -> Array:
    """The sign; MLX has 0 for NaN."""
    x = as_mlx(x)
    if x.dtype == mx.complex64:
        raise NotImplementedError("the sign of complex numbers is not supported")
    return mx.where(mx.isnan(x), x, mx.sign(x)) if is_float(x) else mx.sign(x)


@native
def real(x: ArrayLike) -> Array:
    """The real part."""
    x = as_mlx(x)
    return mx.real(x) if x.dtype == mx.complex64 else x


@native
def imag(x: ArrayLike) -> Array:
    """The imaginary part."""
    x = as_mlx(x)
    return mx.imag(x) if x.dtype == mx.complex64 else mx.zeros_like(x)


@native
def round_(x: ArrayLike, decimals: int = 0) -> Array:
    """Halves to even."""
    x = as_mlx(x)
    if x.dtype == mx.bool_ or (decimals >= 0 and mx.issubdtype(x.dtype, mx.integer)):
        return x
    if not is_float(x) or (decimals and x.dtype == mx.float64):
        raise NotImplementedError(f"rounding {x.dtype} is not supported")
    wide = widened(x)
    return mx.round(wide, decimals).astype(x.dtype)


@native
def where(condition: ArrayLike, x1: ArrayLike, x2: ArrayLike) -> Array:
    """Choose; the branches meet in one dtype, not the condition."""
    x1, x2 = meet(x1, x2)
    return mx.where(mx.stop_gradient(as_mlx(condition)).astype(mx.bool_), x1, x2)


@native
def cast(x: ArrayLike, dtype: DTypeLike) -> Array:
    """To another dtype; complex numbers lose their imaginary part."""
    x, wanted = as_mlx(x), native_dtype(dtype)
    if x.dtype == mx.complex64 and wanted == mx.bool_:
        return x != 0
    # MLX would take a step for a slope of 1.
    return x.astype(wanted) if mx.issubdtype(wanted, mx.inexact) else mx.stop_gradient(x).astype(wanted)


@native
def bitcast(x: ArrayLike, dtype: DTypeLike) -> Array:
    """The same bytes as another dtype."""
    x, wanted = as_mlx(x), native_dtype(dtype)
    if x.itemsize != wanted.size:
        raise ValueError(f"bitcast from {x.dtype} to {wanted}: the widths differ")
    return x.view(wanted)


@native
def copy(x: ArrayLike) -> Array:
    """A second array; MLX writes into neither through the other."""
    return mx.array(as_mlx(x))


@native
def full(shape: int | Shape, fill_value: ArrayLike, dtype: DTypeLike = None) -> Array:
    """One value everywhere."""
    wanted = as_mlx(fill_value).dtype if dtype is None else native_dtype(dtype)
    sizes = (shape,) if isinstance(shape, int) else tuple(int(n) for n in shape)
    value = number(fill_value, wanted) if is_scalar(fill_value) else as_mlx(fill_value)
    return mx.full(sizes, value.astype(wanted), wanted)


@native
def stop_gradient(x: ArrayLike) -> Array:
    """A constant for differentiation."""
    return mx.stop_gradient(as_mlx(x))


@native
def softmax(x: ArrayLike, axis: Axis = -1) -> Array:
    """Exponentials divided by their sum."""
    x = as_float(x)
    axes = reduced_axes(axis, x.ndim)
    if not x.size:
        return x
    if not axes:
        return mx.exp(x - x)
    if x.dtype == mx.float64:
        # MLX's own takes the exponential in float32.
        raised = NATIVE["exp"](x - mx.max(x, axis=axes, keepdims=True))
        return raised / mx.sum(raised, axis=axes, keepdims=True)
    return mx.softmax(widened(x), axis=list(axes)).astype(x.dtype)
