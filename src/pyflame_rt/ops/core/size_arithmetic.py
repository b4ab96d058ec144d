"""Arithmetic on sizes that may be numbers, symbolic or unknown, for the rules of shape operators."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.graph import Dim, DimLike, OptionalType, SequenceType, Shape, TensorType, ValueType, symbol
from pyflame_rt.graph.errors import UndeterminedError
from pyflame_rt.graph.types import AnyType

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyflame_rt.ops.core.value import Value

__all__ = [
    "ceil_divide",
    "fresh_size",
    "join_types",
    "known_ints",
    "product",
    "public_type",
    "size_quotients",
    "size_values",
    "surely_not_negative",
    "total",
    "vector_length",
]

_ANONYMOUS = "?"
_count = itertools.count(1)


def fresh_size() -> Dim:
    """A size nobody knows, but which is one number: chains of shape operators can carry it."""
    return symbol(f"{_ANONYMOUS}{next(_count)}")


def public_type(kind: ValueType) -> ValueType:
    """A type without the anonymous sizes of :func:`fresh_size`, fit to be stored in a graph."""
    if isinstance(kind, SequenceType):
        return SequenceType(public_type(kind.elem))
    if isinstance(kind, OptionalType):
        return OptionalType(public_type(kind.elem))
    if not isinstance(kind, TensorType) or kind.shape is None:
        return kind
    if not any(isinstance(d, Dim) and _is_anonymous(d) for d in kind.shape):
        return kind
    return TensorType(kind.dtype, Shape(None if isinstance(d, Dim) and _is_anonymous(d) else d for d in kind.shape))


def _is_anonymous(size: Dim) -> bool:
    # The mark may also sit inside an opaque floor(...) atom.
    return any(_ANONYMOUS in str(name) for name in size.symbols())


def known_ints(value: Value | None) -> list[Any] | None:
    """Contents as numbers and symbolic sizes, or None when they are not known."""
    return None if value is None or value.known is None else value.ints()


def vector_length(value: Value) -> int | None:
    """How many elements a vector has, or None when that is not known."""
    dims = value.tensor_type.shape
    length = dims[0] if dims is not None and len(dims) == 1 else None
    return length if isinstance(length, int) else None


def size_values(sizes: Sequence[DimLike]) -> np.ndarray[Any, Any]:
    """Sizes as the contents of a shape tensor; unknown ones get a fresh symbol each."""
    if not any(d is None or isinstance(d, Dim) for d in sizes):
        return np.asarray(sizes, dtype=np.int64)
    contents = np.empty(len(sizes), dtype=object)
    contents[:] = [fresh_size() if d is None else d for d in sizes]
    return contents


def product(sizes: Iterable[DimLike]) -> DimLike:
    """Product, None when one is unknown (unless another is 0)."""
    result: Any = 1
    unknown = False
    for size in sizes:
        if size is None:
            unknown = True
        else:
            result = result * size
    return None if unknown and result != 0 else result


def total(sizes: Iterable[DimLike]) -> DimLike:
    """Sum, None when one is unknown."""
    result: Any = 0
    for size in sizes:
        if size is None:
            return None
        result = result + size
    return result


def ceil_divide(size: Any, divisor: int) -> Any:
    """Quotient rounded up, exact where a symbolic size divides evenly."""
    if size % divisor == 0:
        return size // divisor
    return (size + (divisor - 1)) // divisor


def surely_not_negative(size: Any) -> bool:
    """True when this is certain for symbols that are at least 1."""
    if isinstance(size, int) or not isinstance(size, Dim):
        return bool(size >= 0)
    least = 0
    for monomial, coefficient in size.terms:
        if not monomial:
            least += coefficient
        elif coefficient < 0:
            return False
        elif not any(name.startswith("floor(") for name in monomial):
            least += coefficient
    return least >= 0


def _quotient(a: Any, b: Any) -> Any:
    a, b = (v if isinstance(v, Dim) else int(v) for v in (a, b))
    if isinstance(a, int) and isinstance(b, int):  # numbers, and sizes that note what is asked of them
        down = abs(a) // abs(b)
        return down if (a < 0) == (b < 0) else -down
    down = a // b
    # Sizes are not negative, but their differences are: rounding down is rounding towards zero only where no sign is.
    if not (surely_not_negative(a) and surely_not_negative(b)) and down * b != a:
        raise UndeterminedError(f"whether {a} is negative is only known when running")
    return down


def size_quotients(a: Any, b: Any) -> np.ndarray[Any, Any]:
    """Quotients of arrays of sizes, rounded towards zero as those of other integers are.

    Example:
        >>> size_quotients(np.array([-7, 7], object), np.array([2], object)).tolist()
        [-3, 3]
    """
    return np.asarray(np.frompyfunc(_quotient, 2, 1)(a, b), object)


def join_types(a: ValueType | None, b: ValueType | None) -> ValueType | None:
    """The most precise type that covers both; None when there is none, or one is unknown."""
    if a is None or b is None or isinstance(a, AnyType) or isinstance(b, AnyType):
        return None
    if a == b:
        return a
    if isinstance(a, OptionalType) or isinstance(b, OptionalType):
        inner = join_types(a.elem if isinstance(a, OptionalType) else a, b.elem if isinstance(b, OptionalType) else b)
        return None if inner is None else OptionalType(inner)
    if isinstance(a, SequenceType) and isinstance(b, SequenceType):
        inner = join_types(a.elem, b.elem)
        return None if inner is None else SequenceType(inner)
    if not isinstance(a, TensorType) or not isinstance(b, TensorType) or a.dtype is not b.dtype:
        return None
    return TensorType(a.dtype, _join_shapes(a.shape, b.shape))


def _join_shapes(a: Shape | None, b: Shape | None) -> Shape | None:
    if a is None or b is None or len(a) != len(b):
        return None
    return Shape(x if x == y else None for x, y in zip(a, b, strict=True))
