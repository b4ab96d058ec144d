"""Canonical dtypes (always `numpy.dtype` objects) and the promotion rule.

One rule for all libraries: bool < integers < float16, bfloat16 < float32 < float64 < complex.
An integer with a float gives the float's dtype, float16 with bfloat16 gives float32, integers
join as in NumPy except that a pair no integer type can hold (uint64 with a signed one) gives
float32. Python and NumPy scalars are weak: they raise the kind of a result, never its width.
"""

from collections.abc import Iterable
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np

from emberharmony.typing import DTypeLike

bool_ = np.dtype(np.bool_)
int8, int16, int32, int64 = (np.dtype(t) for t in (np.int8, np.int16, np.int32, np.int64))
uint8, uint16, uint32, uint64 = (np.dtype(t) for t in (np.uint8, np.uint16, np.uint32, np.uint64))
float16, float32, float64 = (np.dtype(t) for t in (np.float16, np.float32, np.float64))
complex64, complex128 = np.dtype(np.complex64), np.dtype(np.complex128)
bfloat16 = np.dtype(ml_dtypes.bfloat16)

_SMALL_FLOATS = (
    "float8_e3m4",
    "float8_e4m3",
    "float8_e4m3b11fnuz",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
    "float6_e2m3fn",
    "float6_e3m2fn",
    "float4_e2m1fn",
)
_SMALL_INTS = {"int2": -2, "uint2": 2, "int4": -4, "uint4": 4}

_PLAIN = (bool_, int8, int16, int32, int64, uint8, uint16, uint32, uint64, float16, float32, float64)
_NAMED: dict[str, np.dtype[Any]] = {dt.name: dt for dt in (*_PLAIN, complex64, complex128, bfloat16)} | {
    name: np.dtype(getattr(ml_dtypes, name)) for name in (*_SMALL_FLOATS, *_SMALL_INTS)
}
_NAMED |= {"bool_": bool_, "half": float16, "float": float32, "double": float64, "int": int64}

_PYTHON: dict[type, np.dtype[Any]] = {
    bool: bool_,
    int: int64,
    float: float32,
    complex: complex64,
}

BOOL, INTEGER, FLOAT, COMPLEX, OTHER = range(5)


@cache
def _kinds() -> dict[np.dtype[Any], int]:
    kinds = {np.dtype(c): INTEGER for c in "bBhHiIlLqQ"} | {bool_: BOOL}
    kinds |= {_NAMED[n]: INTEGER for n in _SMALL_INTS}
    kinds |= {_NAMED[n]: FLOAT for n in _SMALL_FLOATS}
    kinds |= dict.fromkeys((float16, bfloat16, float32, float64, np.dtype(np.longdouble)), FLOAT)
    return kinds | dict.fromkeys((complex64, complex128, np.dtype(np.clongdouble)), COMPLEX)


def kind(dtype: np.dtype[Any]) -> int:
    """The rank of a dtype: BOOL, INTEGER, FLOAT, COMPLEX or OTHER (strings, objects).

    >>> kind(bfloat16) == FLOAT
    True
    """
    found = _kinds().get(dtype)
    return _kinds().get(dtype.newbyteorder("="), OTHER) if found is None else found


@cache
def _named(name: str) -> np.dtype[Any]:
    known = _NAMED.get(name)
    return np.dtype(name) if known is None else known


def as_dtype(spec: DTypeLike) -> np.dtype[Any]:
    """The canonical dtype for anything that names one.

    >>> as_dtype("bfloat16") == bfloat16, as_dtype(float)
    (True, dtype('float32'))
    """
    if isinstance(spec, np.dtype):
        return spec
    if isinstance(spec, str):
        return _named(spec)
    if isinstance(spec, type):
        return _PYTHON.get(spec) or np.dtype(spec)
    text = str(spec)
    if text.startswith(("torch.", "mlx.core.")):
        return _named(text.rpartition(".")[2])
    return np.dtype(spec)


def _int_bits(dtype: np.dtype[Any]) -> int:
    """Width, negative for signed integers."""
    small = _SMALL_INTS.get(dtype.name)
    if small is not None:
        return small
    return dtype.itemsize * (8 if dtype.kind == "u" else -8)


def _join_integers(a: np.dtype[Any], b: np.dtype[Any]) -> np.dtype[Any]:
    first, second = _int_bits(a), _int_bits(b)
    if (first < 0) == (second < 0):
        return a if abs(first) >= abs(second) else b
    signed, unsigned = -min(first, second), max(first, second)
    need = max(signed, unsigned * 2)
    return float32 if need > 64 else _named(f"int{max(need, 8) if need != 4 else 4}")


def _join_floats(a: np.dtype[Any], b: np.dtype[Any]) -> np.dtype[Any]:
    wide = {float16: 2, bfloat16: 2, float32: 3, float64: 4, np.dtype(np.longdouble): 5}
    first, second = wide.get(a, 1), wide.get(b, 1)
    if first == second:
        return float32
    return a if first > second else b


def _join_complex(a: np.dtype[Any], b: np.dtype[Any]) -> np.dtype[Any]:
    return complex128 if {a, b} & {complex128, float64} else complex64


@cache
def promote_types(a: np.dtype[Any], b: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype two arrays meet in.

    >>> promote_types(int64, float16), promote_types(int8, uint8)
    (dtype('float16'), dtype('int16'))
    """
    if a == b:
        return a
    first, second = kind(a), kind(b)
    if OTHER in (first, second):
        return np.promote_types(a, b)
    if first == second and first in (INTEGER, FLOAT):
        return _join_integers(a, b) if first == INTEGER else _join_floats(a, b)
    if COMPLEX in (first, second):
        return _join_complex(a, b)
    return a if first > second else b


def is_scalar(value: object) -> bool:
    """Whether a value is a Python or NumPy number, which promotes weakly.

    >>> is_scalar(np.float64(2)), is_scalar(np.zeros(()))
    (True, False)
    """
    return isinstance(value, int | float | complex | np.generic)


def _scalar_kind(value: object) -> int:
    if isinstance(value, np.generic):
        return kind(value.dtype)
    for rank, types in enumerate((bool, int, float, complex)):
        if isinstance(value, types):
            return rank
    return OTHER


def weak_result(dtype: np.dtype[Any], value: object) -> np.dtype[Any]:
    """The dtype of an array of `dtype` combined with a Python or NumPy scalar.

    >>> weak_result(float16, 2.5), weak_result(int8, 2.5)
    (dtype('float16'), dtype('float32'))
    """
    have, come = kind(dtype), _scalar_kind(value)
    if have == OTHER or come <= have:
        return dtype
    if come == COMPLEX:
        return complex128 if dtype == float64 else complex64
    return {INTEGER: int64, FLOAT: float32}.get(come, np.dtype(object))


def scalar_dtype(value: object) -> np.dtype[Any]:
    """The dtype of a scalar that meets no array.

    >>> scalar_dtype(1.5), scalar_dtype(True)
    (dtype('float32'), dtype('bool'))
    """
    if isinstance(value, np.generic):
        return value.dtype
    for python, dtype in _PYTHON.items():
        if isinstance(value, python):
            return dtype
    return np.dtype(np.str_) if isinstance(value, str) else np.dtype(object)


def result_dtype(strong: Iterable[np.dtype[Any]], weak: Iterable[object]) -> np.dtype[Any]:
    """Promote the dtypes of arrays, then let weak scalars raise the kind.

    >>> result_dtype([int32], [0.5])
    dtype('float32')
    """
    result: np.dtype[Any] | None = None
    for dtype in strong:
        result = dtype if result is None else promote_types(result, dtype)
    if result is None:
        return _scalars_only(list(weak))
    for value in weak:
        result = weak_result(result, value)
    return result


def _scalars_only(values: list[object]) -> np.dtype[Any]:
    result = scalar_dtype(values[0])
    for value in values[1:]:
        result = promote_types(result, scalar_dtype(value))
    return result


def checked_scalar(value: Any, dtype: np.dtype[Any]) -> Any:
    """A scalar that is about to become an element of an array.

    Raises:
        OverflowError: It is a number that an integer dtype cannot hold.
        ValueError: It is NaN, and the dtype has integers.

    >>> checked_scalar(255, uint8)
    255
    """
    if isinstance(value, float | np.floating) and kind(dtype) == INTEGER:
        if value != value:
            raise ValueError(f"NaN is no integer, as {dtype} has them")
        if not lowest(dtype) <= float(value) < float(highest(dtype)) + 1.0:
            raise OverflowError(f"{value} is out of range for {dtype}")
    if isinstance(value, int | np.integer) and kind(dtype) == INTEGER and not lowest(dtype) <= value <= highest(dtype):
        raise OverflowError(f"{value} is out of range for {dtype}")
    return float(value) if isinstance(value, int) and kind(dtype) == FLOAT else value


def plain_array(x: Any) -> np.ndarray:
    """Plain Python data as an array: float32 for floats, complex64 for complex numbers, int64 for integers.

    >>> plain_array([1.5]).dtype, plain_array(3).dtype
    (dtype('float32'), dtype('int64'))
    """
    return canonical(np.asarray(x), narrow=not isinstance(x, np.ndarray | np.generic))


def canonical(made: np.ndarray, *, narrow: bool = False) -> np.ndarray:
    """An array whose dtype is one of those this package names; `narrow` makes float32 of float64.

    >>> canonical(np.zeros(1, np.longlong)).dtype.char
    'l'
    """
    char = made.dtype.char
    if char in "qQ":
        return made.view(np.int64 if char == "q" else np.uint64)
    if narrow and char in "dD":
        return made.astype(np.float32 if char == "d" else np.complex64)
    if char == "O" and all(isinstance(v, int) for v in made.flat):
        raise OverflowError(f"{max(made.flat, key=abs)} is out of range for int64")
    return made


@cache
def float_for(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype in which a function with real results answers: float32 for integers.

    >>> float_for(int64), float_for(float16)
    (dtype('float32'), dtype('float16'))
    """
    return float32 if kind(dtype) in (BOOL, INTEGER) else dtype


@cache
def compute_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype to accumulate in: float32 for every float narrower than it.

    >>> compute_dtype(float16), compute_dtype(int8)
    (dtype('float32'), dtype('int8'))
    """
    wide = (float32, float64, np.dtype(np.longdouble))
    return float32 if kind(dtype) == FLOAT and dtype not in wide else dtype


@cache
def real_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype of the parts of a complex number; other dtypes unchanged.

    >>> real_dtype(complex64)
    dtype('float32')
    """
    return {complex64: float32, complex128: float64}.get(dtype, dtype)


@cache
def lowest(dtype: np.dtype[Any]) -> Any:
    """The smallest value a dtype holds (-inf for floats), as a Python scalar.

    >>> lowest(int8), lowest(float32)
    (-128, -inf)
    """
    if kind(dtype) == FLOAT:
        return float("-inf") if np.isinf(np.array(-np.inf).astype(dtype)) else float(ml_dtypes.finfo(dtype).min)
    return False if dtype == bool_ else int(ml_dtypes.iinfo(dtype).min)


@cache
def highest(dtype: np.dtype[Any]) -> Any:
    """The largest value a dtype holds (inf for floats), as a Python scalar.

    >>> highest(uint8)
    255
    """
    if kind(dtype) == FLOAT:
        return float("inf") if np.isinf(np.array(np.inf).astype(dtype)) else float(ml_dtypes.finfo(dtype).max)
    return True if dtype == bool_ else int(ml_dtypes.iinfo(dtype).max)


def sum_dtype(x: np.dtype[Any], dtype: DTypeLike) -> np.dtype[Any]:
    """The dtype a sum or product answers in.

    >>> sum_dtype(np.dtype("bool"), None), sum_dtype(np.dtype("int8"), None)
    (dtype('int64'), dtype('int8'))
    """
    if dtype is not None:
        return as_dtype(dtype)
    return int64 if kind(x) == BOOL else x
