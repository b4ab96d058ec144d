"""Scalars beside arrays: compared exactly, limited by what the array can hold, taken as true or false."""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any

import numpy as np

from emberharmony.dtypes import INTEGER, highest, is_scalar, kind, lowest
from emberharmony.guards.table import GUARDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from emberharmony.library import Library
    from emberharmony.typing import Array, ArrayLike

__all__ = ["limit"]

# The whole number that stands for a fraction in a comparison with integers.
_WHOLE: dict[str, Callable[[float], int]] = {
    "less": math.ceil,
    "greater_equal": math.ceil,
    "less_equal": math.floor,
    "greater": math.floor,
}
_SWAPPED = {"less": "greater", "greater": "less", "less_equal": "greater_equal", "greater_equal": "less_equal"}
_PYTHON: dict[str, Callable[[Any, Any], bool]] = {
    "equal": operator.eq,
    "not_equal": operator.ne,
    "less": operator.lt,
    "less_equal": operator.le,
    "greater": operator.gt,
    "greater_equal": operator.ge,
}


def _compare(name: str) -> Callable[..., Array]:
    turned = _SWAPPED.get(name, name)

    def guard(lib: Library, native: Callable[..., Array], x1: ArrayLike, x2: ArrayLike) -> Array:
        """An array of integers with a scalar: as numbers, whatever the array could hold."""
        if lib.is_array(x1):
            if not is_scalar(x2) or kind(lib.dtype(x1)) != INTEGER:
                return native(x1, x2)
            return _exact(lib, native, name, x1, x2, swapped=False)
        if not lib.is_array(x2) or not is_scalar(x1) or kind(lib.dtype(x2)) != INTEGER:
            return native(x1, x2)
        return _exact(lib, native, turned, x2, x1, swapped=True)

    return guard


def _exact(lib: Library, native: Callable[..., Array], name: str, x: Array, value: Any, *, swapped: bool) -> Array:
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, complex):
        return native(value, x) if swapped else native(x, value)
    dtype = lib.dtype(x)
    if isinstance(value, float):
        if not math.isfinite(value) or (name not in _WHOLE and value != math.floor(value)):
            # No element is equal; 0 stands for any of them.
            return lib.full(x.shape, _PYTHON[name](0, value), "bool")
        value = _WHOLE.get(name, math.floor)(value)
    if not lowest(dtype) <= value <= highest(dtype):
        return lib.full(x.shape, _PYTHON[name](0, value), "bool")
    return native(value, x) if swapped else native(x, value)


GUARDS.update({name: _compare(name) for name in _PYTHON})


def _truth(_lib: Library, native: Callable[..., Array], x1: ArrayLike, x2: ArrayLike) -> Array:
    """Scalars are true or false whatever their size."""
    return native(bool(x1) if is_scalar(x1) else x1, bool(x2) if is_scalar(x2) else x2)


GUARDS.update(dict.fromkeys(("logical_and", "logical_or", "logical_xor"), _truth))


def limit(lib: Library, x: Array, bound: ArrayLike) -> ArrayLike:
    """A bound of integers as near as they come to it.

    >>> from emberharmony.library import library
    >>> limit(library("numpy"), np.zeros(2, np.uint8), -1)
    0
    """
    if isinstance(bound, (int, np.integer)) and kind(lib.dtype(x)) == INTEGER:
        return min(max(int(bound), lowest(lib.dtype(x))), highest(lib.dtype(x)))
    return bound
