"""Which kinds of numbers a function is defined for: real ones only, whole ones only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from emberharmony.dtypes import BOOL, COMPLEX, INTEGER, is_scalar, kind, scalar_dtype
from emberharmony.guards.table import FOREIGN, GUARDS, guard

if TYPE_CHECKING:
    from collections.abc import Callable

    from emberharmony.library import Library
    from emberharmony.typing import Array, ArrayLike

__all__ = ["kind_of"]

# fmt: off
_REAL = [
    "celu", "elu", "erf", "erfc", "erfinv", "gelu", "hard_sigmoid", "hard_swish", "leaky_relu", "lgamma", "digamma",
    "log_sigmoid", "log_softmax", "mish", "relu", "relu6", "selu", "sigmoid", "silu", "softmax", "softplus", "softsign",
    "isposinf", "isneginf", "nan_to_num", "quantile", "cbrt", "logaddexp", "truncate_divide",
]
# NumPy's own functions refuse complex numbers.
_REAL_FOREIGN = ["ceil", "floor", "trunc", "arctan2", "hypot", "floor_divide", "mod", "fmod"]
_WHOLE = ["bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not"]
# fmt: on


def kind_of(lib: Library, x: ArrayLike) -> int:
    """The kind of an argument: BOOL, INTEGER, FLOAT, COMPLEX or OTHER.

    >>> from emberharmony.library import library
    >>> kind_of(library("numpy"), 2.5) == kind_of(library("numpy"), [1.5])
    True
    """
    if lib.is_array(x):
        return kind(lib.dtype(x))
    return kind(scalar_dtype(x) if is_scalar(x) else np.asarray(x).dtype)


def _real(name: str) -> Callable[..., Array]:
    def check(lib: Library, native: Callable[..., Array], x: ArrayLike, *rest: Any, **options: Any) -> Array:
        """Refuse complex numbers."""
        if kind_of(lib, x) == COMPLEX or (name in _TWO and rest and kind_of(lib, rest[0]) == COMPLEX):
            raise TypeError(f"{name} is a function of real numbers, received complex ones")
        return native(x, *rest, **options)

    return check


_TWO = {"arctan2", "hypot", "floor_divide", "truncate_divide", "mod", "fmod", "logaddexp"}


def _whole(name: str) -> Callable[..., Array]:
    def check(lib: Library, native: Callable[..., Array], *values: ArrayLike) -> Array:
        """Refuse anything but integers and bools."""
        if any(kind_of(lib, v) not in (INTEGER, BOOL) for v in values):
            raise TypeError(f"{name} is a function of integers and bools")
        return native(*values)

    return check


GUARDS.update({name: _real(name) for name in (*_REAL, *_REAL_FOREIGN)})
GUARDS.update({name: _whole(name) for name in _WHOLE})
FOREIGN.update((*_REAL_FOREIGN, *_WHOLE))


def _shift(name: str) -> Callable[..., Array]:
    whole = _whole(name)

    def check(lib: Library, native: Callable[..., Array], x1: ArrayLike, x2: ArrayLike) -> Array:
        """Bools are shifted as int8."""
        if kind_of(lib, x1) == BOOL and kind_of(lib, x2) == BOOL:
            x1, x2 = lib.cast(x1, "int8"), lib.cast(x2, "int8")
        return whole(lib, native, x1, x2)

    return check


GUARDS.update({name: _shift(name) for name in ("left_shift", "right_shift")})


@guard
def round_(lib: Library, native: Callable[..., Array], x: ArrayLike, decimals: int = 0) -> Array:
    """What scaling by a power of ten overflows has no decimals to round."""
    x = lib.as_array(x)
    done = native(x, decimals)
    if not decimals or kind(lib.dtype(x)) in (BOOL, INTEGER):
        return done
    return lib.where(lib.isfinite(done), done, x)
