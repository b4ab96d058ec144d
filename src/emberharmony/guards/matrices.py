"""Matrices: two axes at least, square where they must be, finite where an iteration would not end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from emberharmony.guards.table import GUARDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from emberharmony.library import Library
    from emberharmony.typing import Array, ArrayLike

__all__ = ["square"]

_SQUARE = ["inv", "det", "slogdet", "cholesky", "eig", "eigvals", "eigh", "eigvalsh", "matrix_power", "solve"]
_ANY = ["pinv", "svd", "qr", "lstsq"]
# torch ends the process on some of these.
_POISONED = {"inv", "solve", "slogdet", "cholesky", "qr"}
_FINITE = {"eig", "eigvals", "eigh", "eigvalsh", "svd", "pinv", "lstsq"}


def square(x: Array, name: str) -> None:
    """Refuse what is not a stack of square matrices.

    >>> square(np.eye(2), "inv")
    """
    _matrix(x, name)
    if x.shape[-1] != x.shape[-2]:
        raise np.linalg.LinAlgError(f"{name} needs square matrices, received shape {tuple(x.shape)}")


def _equations(a: Array, b: Array) -> None:
    if len(a.shape) != 2 or len(b.shape) not in (1, 2) or a.shape[0] != b.shape[0]:
        shapes = f"{tuple(a.shape)} and {tuple(b.shape)}"
        raise np.linalg.LinAlgError(f"lstsq needs a matrix and as many rows to the right, received {shapes}")


def _matrix(x: Array, name: str) -> None:
    if len(x.shape) < 2:
        raise np.linalg.LinAlgError(f"{name} needs matrices, received {len(x.shape)} axes")


def _guard(name: str) -> Callable[..., Any]:
    check: Callable[[Array, str], None] = square if name in _SQUARE else _matrix

    def guard(lib: Library, native: Callable[..., Any], x: ArrayLike, *rest: Any, **options: Any) -> Any:
        """Refuse what the function is not defined for."""
        x = lib.as_array(x)
        check(x, name)
        if name in _POISONED and not _all_finite(lib, x):
            return _poisoned(lib, native, x, *rest, **options)
        if name == "lstsq":
            _equations(x, lib.as_array(rest[0]))
        if name in _FINITE and not _all_finite(lib, x):
            raise np.linalg.LinAlgError(f"{name} of a matrix with infinities or NaN")
        return native(x, *rest, **options)

    return guard


def _poisoned(lib: Library, native: Callable[..., Any], x: Array, *rest: Any, **options: Any) -> Any:
    """NaN for every matrix with an infinity or NaN; each library would spread them in its own way."""
    bad = lib.logical_not(lib.all(lib.isfinite(x), (-2, -1)))
    shape = [*bad.shape, 1, 1]
    found = native(lib.where(lib.reshape(bad, shape), lib.eye(*x.shape[-2:], dtype=lib.dtype(x)), x), *rest, **options)

    def spoiled(part: Array) -> Array:
        own = lib.reshape(bad, [*bad.shape, *[1] * min(len(part.shape) - len(bad.shape), 2)])
        return lib.where(own, lib.full_like(part, float("nan")), part)

    return tuple([spoiled(part) for part in found]) if isinstance(found, tuple) else spoiled(found)


def _all_finite(lib: Library, x: Array) -> bool:
    """Whether nothing is infinite or NaN; taken for granted where nobody can look."""
    found = lib.values(lib.all(lib.isfinite(x)))
    return found is None or bool(found)


GUARDS.update({name: _guard(name) for name in (*_SQUARE, *_ANY)})
