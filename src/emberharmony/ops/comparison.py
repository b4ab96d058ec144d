"""Comparison, logic and choice."""

from collections.abc import Sequence

from emberharmony.dtypes import compute_dtype, float_for
from emberharmony.library import Library
from emberharmony.registry import op, primitive
from emberharmony.typing import Array, ArrayLike, Axis


@primitive
def equal(lib: Library, x1: ArrayLike, x2: ArrayLike) -> Array:
    """Where equal.

    >>> ops.equal(np.array([1, 2]), 2)
    array([False,  True])
    """


@primitive
def not_equal(lib: Library, x1: ArrayLike, x2: ArrayLike) -> Array:
    """Where different.

    >>> ops.not_equal(np.array([1, 2]), 2)
    array([ True, False])
    """


@primitive
def less(lib: Library, x1: ArrayLike, x2: ArrayLike) -> Array:
    """Where `x1 < x2`.

    >>> ops.less(np.array([1, 2]), 2)
    array([ True, False])
    """


@primitive
def less_equal(lib: Library, x1: ArrayLike, x2: ArrayLike) -> Array:
    """Where `x1 <= x2`.

    >>> ops.less_equal(np.array([1, 2]), 2)
    array([ True,  True])
    """


@primitive
def greater(lib: Library, x1: ArrayLike, x2: ArrayLike) -> Array:
    """Where `x1 > x2`.

    >>> ops.greater(np.array([1, 2]), 2)
    array([False, False])
    """


@primitive
def greater_equal(lib: Library, x1: ArrayLike, x2: ArrayLike) -> Array:
    """Where `x1 >= x2`.

    >>> ops.greater_equal(np.array([1, 2]), 2)
    array([False,  True])
    """


@primitive
def logical_and(lib: Library, x1: ArrayLike, x2: ArrayLike) -> Array:
    """Where both are true (not 0).

    >>> ops.logical_and(np.array([True, False]), True)
    array([ True, False])
    """


@primitive
def logical_or(lib: Library, x1: ArrayLike, x2: ArrayLike) -> Array:
    """Where either is true (not 0).

    >>> ops.logical_or(np.array([True, False]), False)
    array([ True, False])
    """


@primitive
def logical_xor(lib: Library, x1: ArrayLike, x2: ArrayLike) -> Array:
    """Where exactly one is true (not 0).

    >>> ops.logical_xor(np.array([True, False]), True)
    array([False,  True])
    """


@primitive
def logical_not(lib: Library, x: ArrayLike) -> Array:
    """Where false (0).

    >>> ops.logical_not(np.array([True, False]))
    array([False,  True])
    """


@primitive
def where(lib: Library, condition: ArrayLike, x1: ArrayLike, x2: ArrayLike) -> Array:
    """`x1` where the condition holds, else `x2`.

    >>> ops.where(np.array([True, False]), np.array([1, 2]), 0)
    array([1, 0])
    """


@primitive
def all(lib: Library, x: ArrayLike, axis: Axis = None, keepdims: bool = False) -> Array:
    """Whether all elements are true (not 0).

    >>> ops.all(np.array([True, False]))
    array(False)
    """


@primitive
def any(lib: Library, x: ArrayLike, axis: Axis = None, keepdims: bool = False) -> Array:
    """Whether some element is true (not 0).

    >>> ops.any(np.array([True, False]))
    array(True)
    """


@op
def select(
    lib: Library,
    condlist: Sequence[ArrayLike],
    choicelist: Sequence[ArrayLike],
    default: ArrayLike = 0,
) -> Array:
    """The choice of the first condition that holds, else the default.

    >>> ops.select([np.array([True, False])], [np.array([5, 6])], 0)
    array([5, 0])
    """
    if len(condlist) != len(choicelist):
        raise ValueError(f"{len(condlist)} conditions but {len(choicelist)} choices")
    result = default
    for condition, choice in zip(reversed(condlist), reversed(choicelist), strict=True):
        result = lib.where(condition, choice, result)
    return lib.as_array(result)


@op
def isclose(
    lib: Library,
    x1: ArrayLike,
    x2: ArrayLike,
    rtol: float = 1e-5,
    atol: float = 1e-8,
    equal_nan: bool = False,
) -> Array:
    """Where `|x1 - x2| <= atol + rtol * |x2|`.

    >>> ops.isclose(np.array([1.0, 2.0]), np.array([1.0, 2.1]))
    array([ True, False])
    """
    # Differences in float32 or wider: the default tolerances vanish in half precision.
    known = (lib.stop_gradient(v) for v in lib.promote(x1, x2))
    x1, x2 = (lib.cast(v, compute_dtype(float_for(lib.dtype(v)))) for v in known)
    near = lib.less_equal(lib.abs(lib.subtract(x1, x2)), lib.add(atol, lib.multiply(rtol, lib.abs(x2))))
    near = lib.logical_and(near, lib.isfinite(x2))
    close = lib.logical_or(near, lib.equal(x1, x2))
    if not equal_nan:
        return close
    return lib.logical_or(close, lib.logical_and(lib.isnan(x1), lib.isnan(x2)))


@op
def allclose(
    lib: Library,
    x1: ArrayLike,
    x2: ArrayLike,
    rtol: float = 1e-5,
    atol: float = 1e-8,
    equal_nan: bool = False,
) -> Array:
    """Whether all elements are close, see `isclose`.

    >>> ops.allclose(np.array([1.0]), np.array([1.0 + 1e-9]))
    array(True)
    """
    return lib.all(lib.isclose(x1, x2, rtol, atol, equal_nan))


@op
def array_equal(lib: Library, x1: ArrayLike, x2: ArrayLike) -> Array:
    """Whether shapes and all elements are equal.

    >>> ops.array_equal(np.arange(2), np.arange(3))
    array(False)
    """
    x1, x2 = lib.promote(x1, x2)
    if tuple(x1.shape) != tuple(x2.shape):
        return lib.as_array(False)
    return lib.all(lib.equal(x1, x2))
