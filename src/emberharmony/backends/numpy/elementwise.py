"""Elementwise functions: NumPy's ufuncs with the common promotion rule and no warnings."""

from collections.abc import Callable
from typing import Any

import numpy as np

from emberharmony import special
from emberharmony.backends.numpy.base import (
    HARDWARE,
    NATIVE,
    OBJECT,
    as_array,
    boxed,
    is_small,
    meet,
    native,
    scalar_array,
)
from emberharmony.dtypes import (
    BOOL,
    COMPLEX,
    FLOAT,
    INTEGER,
    OTHER,
    as_dtype,
    float32,
    float_for,
    is_scalar,
    kind,
)
from emberharmony.typing import ArrayLike, DTypeLike, Shape

Unary = Callable[[ArrayLike], np.ndarray]
Binary = Callable[[ArrayLike, ArrayLike], np.ndarray]
ndarray, errstate = np.ndarray, np.errstate
_NUMBERS = frozenset((int, float))


def _float_unary(function: Callable[..., Any]) -> Unary:
    """A function of floats: integers are taken as float32, small floats go through float32."""

    def call(x: ArrayLike) -> np.ndarray:
        x = as_array(x)
        answer = float_for(x.dtype)
        inner = float32 if is_small(answer) else answer
        with errstate(all="ignore"):
            out = function(x if x.dtype is inner else x.astype(inner, copy=False))
        if inner is not answer:
            return np.asarray(out).astype(answer, copy=False)
        return out if isinstance(out, ndarray) else boxed(out, answer)

    return call


def _through_float64(function: Callable[[np.ndarray], np.ndarray]) -> Callable[..., Any]:
    def call(x: np.ndarray) -> np.ndarray:
        return function(x.astype(np.float64, copy=False)).astype(x.dtype, copy=False)

    return call


def _test(function: Callable[..., Any], for_others: bool) -> Unary:
    """A question about floats, whose answer for other dtypes is known."""

    def call(x: ArrayLike) -> np.ndarray:
        x = as_array(x)
        if kind(x.dtype) not in (FLOAT, COMPLEX):
            return np.full(x.shape, for_others)
        out = function(x.astype(float32) if is_small(x.dtype) else x)
        return out if isinstance(out, ndarray) else boxed(out)

    return call


def _binary(function: Callable[..., Any]) -> Binary:
    def call(x1: ArrayLike, x2: ArrayLike) -> np.ndarray:
        with errstate(all="ignore"):
            if not (isinstance(x1, ndarray) and isinstance(x2, ndarray) and x1.dtype is x2.dtype):
                x1, x2 = _paired(x1, x2)
            out = function(x1, x2)
            # ml_dtypes answers in int8 for some functions of its 4-bit integers.
            if x1.dtype.kind == "V" and out.dtype != x1.dtype:
                return np.asarray(out).astype(x1.dtype)
        return out if isinstance(out, ndarray) else boxed(out, x1.dtype)

    return call


def _paired(x1: ArrayLike, x2: ArrayLike) -> Any:
    # NumPy's own rule is ours for a float array and a Python number, and cheaper to leave to it.
    if isinstance(x1, ndarray) and type(x2) in _NUMBERS and x1.dtype in HARDWARE:
        return x1, x1.dtype.type(x2)
    if isinstance(x2, ndarray) and type(x1) in _NUMBERS and x2.dtype in HARDWARE:
        return x2.dtype.type(x1), x2
    return meet(x1, x2)


def _float_binary(function: Callable[..., Any]) -> Binary:
    """As `_binary`, with float32 for integers and through float32 for small floats."""

    def call(x1: ArrayLike, x2: ArrayLike) -> np.ndarray:
        with errstate(all="ignore"):
            if not (isinstance(x1, ndarray) and isinstance(x2, ndarray) and x1.dtype is x2.dtype):
                x1, x2 = _paired(x1, x2)
            answer = float_for(x1.dtype)
            inner = float32 if is_small(answer) else answer
            if inner is not x1.dtype:
                x1, x2 = x1.astype(inner), x2.astype(inner)
            out = function(x1, x2)
        if inner is not answer:
            return np.asarray(out).astype(answer)
        return out if isinstance(out, ndarray) else boxed(out, answer)

    return call


def _comparison(function: Callable[..., Any]) -> Binary:
    def call(x1: ArrayLike, x2: ArrayLike) -> np.ndarray:
        if not (isinstance(x1, ndarray) and isinstance(x2, ndarray) and x1.dtype is x2.dtype):
            x1, x2 = _comparable(x1, x2)
        with errstate(all="ignore"):
            out = function(x1, x2)
        return out if isinstance(out, ndarray) else boxed(out)

    return call


def _comparable(x1: ArrayLike, x2: ArrayLike) -> tuple[Any, Any]:
    # NumPy compares an integer array with any Python integer exactly, even out of range.
    for value, other in ((x1, x2), (x2, x1)):
        if isinstance(value, int) and isinstance(other, ndarray) and other.dtype.kind in "iu":
            return x1, x2
    first, second = meet(x1, x2)
    return first, second


def _logical(function: Callable[..., Any]) -> Binary:
    def call(x1: ArrayLike, x2: ArrayLike) -> np.ndarray:
        out = function(as_array(x1).astype(bool, copy=False), as_array(x2).astype(bool, copy=False))
        return out if isinstance(out, ndarray) else boxed(out)

    return call


def _rounding(function: Callable[..., Any]) -> Unary:
    as_float = _float_unary(function)

    def call(x: ArrayLike) -> np.ndarray:
        x = as_array(x)
        return x if kind(x.dtype) in (BOOL, INTEGER) else as_float(x)

    return call


def _plain(function: Callable[..., Any]) -> Unary:
    def call(x: ArrayLike) -> np.ndarray:
        x = as_array(x)
        with errstate(all="ignore"):
            out = function(x)
        return out if isinstance(out, ndarray) and out.dtype == x.dtype else boxed(out, x.dtype).astype(x.dtype)

    return call


_PLAIN_ABS, _PLAIN_SIGN = _plain(np.absolute), _plain(np.sign)
_FLOAT_UNARY = [
    "exp",
    "exp2",
    "expm1",
    "log",
    "log1p",
    "log2",
    "log10",
    "sqrt",
    "cbrt",
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
NATIVE.update({name: _float_unary(getattr(np, name)) for name in _FLOAT_UNARY})
NATIVE.update(
    {
        name: _float_unary(_through_float64(getattr(special, name)))
        for name in ("erf", "erfc", "erfinv", "lgamma", "digamma")
    }
)
NATIVE.update({name: _float_binary(getattr(np, name)) for name in ("divide", "arctan2", "hypot")})
NATIVE.update({name: _rounding(getattr(np, name)) for name in ("floor", "ceil", "trunc")})
NATIVE.update(
    {
        name: _binary(getattr(np, name))
        for name in ["add", "subtract", "multiply", "maximum", "minimum", "bitwise_and", "bitwise_or", "bitwise_xor"]
    }
)
NATIVE.update(
    {
        name: _comparison(getattr(np, name))
        for name in ["equal", "not_equal", "less", "less_equal", "greater", "greater_equal"]
    }
)
NATIVE.update({name: _logical(getattr(np, name)) for name in ("logical_and", "logical_or", "logical_xor")})
NATIVE.update({"negative": _plain(np.negative), "conj": _plain(np.conjugate)})
NATIVE.update(
    {"isnan": _test(np.isnan, False), "isinf": _test(np.isinf, False)} | {"isfinite": _test(np.isfinite, True)}
)


def _safe(function: Callable[..., Any]) -> Callable[..., Any]:
    """Division whose integer form answers 0 for a divisor of 0."""

    def call(x1: np.ndarray, x2: np.ndarray) -> Any:
        if kind(x1.dtype) == BOOL:
            x1, x2 = x1.astype(np.int8), x2.astype(np.int8)
        return function(x1, x2)

    return call


def _small_safe(function: Callable[..., Any]) -> Callable[..., Any]:
    """ml_dtypes floats compute division forms in float32."""

    def call(x1: np.ndarray, x2: np.ndarray) -> Any:
        if not is_small(x1.dtype):
            return function(x1, x2)
        return np.asarray(function(x1.astype(float32), x2.astype(float32))).astype(x1.dtype)

    return call


def _truncated(x1: np.ndarray, x2: np.ndarray) -> Any:
    if kind(x1.dtype) != INTEGER:
        return np.trunc(x1 / x2)
    whole = np.floor_divide(x1, x2)
    # Rounded down so far: one more where the signs differ and something was left.
    rest = np.not_equal(np.fmod(x1, x2), 0) & (x2 != 0)
    return (whole + (rest & ((x1 < 0) != (x2 < 0))).astype(whole.dtype)).astype(x1.dtype)


def _power(x1: np.ndarray, x2: np.ndarray) -> Any:
    if kind(x1.dtype) != INTEGER or not np.any(x2 < 0):
        done = np.power(x1, x2)
        if x2.ndim == 0 and x2 == 0.5 and kind(x1.dtype) == FLOAT:
            # NumPy takes a scalar power of one half as a root, which minus infinity does not have.
            return np.where(x1 == -np.inf, np.asarray(np.inf, x1.dtype), done)
        return done
    # NumPy refuses negative powers of integers; 1 and -1 have them, all others truncate to 0.
    result = np.power(x1, np.where(x2 < 0, np.abs(x2 % 2), x2))
    return np.where((x2 < 0) & (np.abs(x1) != 1), 0, result).astype(x1.dtype)


NATIVE["floor_divide"] = _binary(_small_safe(_safe(np.floor_divide)))
NATIVE["mod"] = _binary(_small_safe(_safe(np.mod)))
NATIVE["fmod"] = _binary(_small_safe(_safe(np.fmod)))
NATIVE["truncate_divide"] = _binary(_small_safe(_safe(_truncated)))
NATIVE["power"] = _binary(_small_safe(_safe(_power)))


def _shifted(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(x1: np.ndarray, x2: np.ndarray) -> Any:
        return function(x1, x2).astype(x1.dtype, copy=False)

    return call


NATIVE["left_shift"] = _binary(_shifted(np.left_shift))
NATIVE["right_shift"] = _binary(_shifted(np.right_shift))


@native
def abs_(x: ArrayLike) -> np.ndarray:
    """The absolute value."""
    x = as_array(x)
    if kind(x.dtype) == BOOL:
        return x
    return boxed(np.absolute(x)) if kind(x.dtype) == COMPLEX else _PLAIN_ABS(x)


@native
def sign(x: ArrayLike) -> np.ndarray:
    """The sign; NumPy has none for bools, which are never negative."""
    x = as_array(x)
    return x if kind(x.dtype) == BOOL else _PLAIN_SIGN(x)


@native
def bitwise_not(x: ArrayLike) -> np.ndarray:
    """All bits inverted."""
    return boxed(np.invert(as_array(x)))


@native
def logical_not(x: ArrayLike) -> np.ndarray:
    """The opposite truth."""
    return boxed(np.logical_not(as_array(x).astype(bool, copy=False)))


@native
def real(x: ArrayLike) -> np.ndarray:
    """The real part."""
    return np.real(as_array(x))


@native
def imag(x: ArrayLike) -> np.ndarray:
    """The imaginary part."""
    return np.imag(as_array(x))


@native
def round_(x: ArrayLike, decimals: int = 0) -> np.ndarray:
    """Halves to even."""
    x = as_array(x)
    if kind(x.dtype) == BOOL or (kind(x.dtype) == INTEGER and decimals >= 0):
        return x
    wide = x.astype(float32) if is_small(x.dtype) or x.dtype == np.float16 else x
    return boxed(np.round(wide, decimals), wide.dtype).astype(x.dtype, copy=False)


@native
def where(condition: ArrayLike, x1: ArrayLike, x2: ArrayLike) -> np.ndarray:
    """Choose; the branches meet in one dtype, not the condition."""
    if not (isinstance(x1, ndarray) and isinstance(x2, ndarray) and x1.dtype is x2.dtype):
        x1, x2 = meet(x1, x2)
    return np.where(as_array(condition).astype(bool, copy=False), x1, x2)


@native
def cast(x: ArrayLike, dtype: DTypeLike) -> np.ndarray:
    """To another dtype; complex numbers lose their imaginary part without a warning."""
    x, wanted = as_array(x), as_dtype(dtype)
    if x.dtype == wanted:
        return x
    if kind(x.dtype) == COMPLEX and kind(wanted) not in (COMPLEX, OTHER, BOOL):
        x = x.real
    with errstate(all="ignore"):
        return x.astype(wanted)


@native
def bitcast(x: ArrayLike, dtype: DTypeLike) -> np.ndarray:
    """The same bytes as another dtype."""
    x, wanted = as_array(x), as_dtype(dtype)
    if x.dtype.itemsize != wanted.itemsize:
        raise ValueError(f"bitcast from {x.dtype} to {wanted}: the widths differ")
    return np.ascontiguousarray(x).view(wanted).reshape(x.shape)


@native
def copy(x: ArrayLike) -> np.ndarray:
    """New memory."""
    return np.array(as_array(x), copy=True)


@native
def full(shape: int | Shape, fill_value: ArrayLike, dtype: DTypeLike = None) -> np.ndarray:
    """One value everywhere."""
    wanted = as_array(fill_value).dtype if dtype is None else as_dtype(dtype)
    with errstate(all="ignore"):
        value = (
            scalar_array(fill_value, wanted)
            if is_scalar(fill_value) or wanted == OBJECT
            else as_array(fill_value).astype(wanted, copy=False)
        )
        return np.full(_sizes(shape), value, wanted)


def _sizes(shape: int | Shape) -> tuple[int, ...]:
    return (int(shape),) if isinstance(shape, int | np.integer) else tuple(int(n) for n in shape)
