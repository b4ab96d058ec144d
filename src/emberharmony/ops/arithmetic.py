"""Arithmetic, element by element, with broadcasting."""

from emberharmony.guards.scalars import limit
from emberharmony.library import Library
from emberharmony.registry import alias, op, primitive
from emberharmony.typing import Array, ArrayLike


@primitive
def add(lib: Library, x1: ArrayLike, x2: ArrayLike) -> Array:
    """Sum; the logical or for bools.

    >>> ops.add(np.array([1, 2]), 10)
    array([11, 12])
    """


@primitive
def subtract(lib: Library, x1: ArrayLike, x2: ArrayLike) -> Array:
    """Difference.

    >>> ops.subtract(np.array([1, 2]), 10)
    array([-9, -8])
    """


@primitive
def multiply(lib: Library, x1: ArrayLike, x2: ArrayLike) -> Array:
    """Product; the logical and for bools.

    >>> ops.multiply(np.array([1, 2]), 10)
    array([10, 20])
    """


@primitive
def divide(lib: Library, x1: ArrayLike, x2: ArrayLike) -> Array:
    """True division: integers give float32.

    >>> ops.divide(np.array([3.0]), 2)
    array([1.5])
    """


@primitive
def floor_divide(lib: Library, x1: ArrayLike, x2: ArrayLike) -> Array:
    """Division rounded towards minus infinity; 0 for integers divided by 0.

    >>> ops.floor_divide(np.array([-7]), 2)
    array([-4])
    """


@primitive
def truncate_divide(lib: Library, x1: ArrayLike, x2: ArrayLike) -> Array:
    """Division rounded towards zero, as in C; 0 for integers divided by 0.

    >>> ops.truncate_divide(np.array([-7]), 2)
    array([-3])
    """


@primitive
def mod(lib: Library, x1: ArrayLike, x2: ArrayLike) -> Array:
    """Remainder with the sign of the divisor, as in Python; 0 for integers modulo 0.

    >>> ops.mod(np.array([-7]), 3)
    array([2])
    """


@primitive
def fmod(lib: Library, x1: ArrayLike, x2: ArrayLike) -> Array:
    """Remainder with the sign of the dividend, as in C; 0 for integers modulo 0.

    >>> ops.fmod(np.array([-7]), 3)
    array([-1])
    """


@primitive
def power(lib: Library, x1: ArrayLike, x2: ArrayLike) -> Array:
    """`x1` to the power `x2`; for integers a negative power truncates to 0.

    >>> ops.power(np.array([2, 3]), 2)
    array([4, 9])
    """


@primitive
def maximum(lib: Library, x1: ArrayLike, x2: ArrayLike) -> Array:
    """The larger; NaN if either is.

    >>> ops.maximum(np.array([1, 5]), 3)
    array([3, 5])
    """


@primitive
def minimum(lib: Library, x1: ArrayLike, x2: ArrayLike) -> Array:
    """The smaller; NaN if either is.

    >>> ops.minimum(np.array([1, 5]), 3)
    array([1, 3])
    """


@primitive
def arctan2(lib: Library, x1: ArrayLike, x2: ArrayLike) -> Array:
    """Angle of the point (x2, x1), in radians.

    >>> ops.arctan2(np.array([0.0]), 1.0)
    array([0.])
    """


@primitive
def bitwise_and(lib: Library, x1: ArrayLike, x2: ArrayLike) -> Array:
    """And of all bits.

    >>> ops.bitwise_and(np.array([6]), 3)
    array([2])
    """


@primitive
def bitwise_or(lib: Library, x1: ArrayLike, x2: ArrayLike) -> Array:
    """Or of all bits.

    >>> ops.bitwise_or(np.array([6]), 3)
    array([7])
    """


@primitive
def bitwise_xor(lib: Library, x1: ArrayLike, x2: ArrayLike) -> Array:
    """Exclusive or of all bits.

    >>> ops.bitwise_xor(np.array([6]), 3)
    array([5])
    """


@primitive
def left_shift(lib: Library, x1: ArrayLike, x2: ArrayLike) -> Array:
    """Bits moved up by `x2`; 0 once all are moved out.

    >>> ops.left_shift(np.array([1]), 3)
    array([8])
    """


@primitive
def right_shift(lib: Library, x1: ArrayLike, x2: ArrayLike) -> Array:
    """Bits moved down by `x2`; signed integers keep their sign.

    >>> ops.right_shift(np.array([8]), 3)
    array([1])
    """


@primitive
def negative(lib: Library, x: ArrayLike) -> Array:
    """`-x`.

    >>> ops.negative(np.array([1, -2]))
    array([-1,  2])
    """


@primitive
def abs(lib: Library, x: ArrayLike) -> Array:
    """Absolute value; the modulus of complex numbers.

    >>> ops.abs(np.array([1, -2]))
    array([1, 2])
    """


@primitive
def sign(lib: Library, x: ArrayLike) -> Array:
    """-1, 0 or 1; NaN for NaN.

    >>> ops.sign(np.array([5, -2]))
    array([ 1, -1])
    """


@primitive
def floor(lib: Library, x: ArrayLike) -> Array:
    """Rounded down; integers are unchanged.

    >>> ops.floor(np.array([-1.5]))
    array([-2.])
    """


@primitive
def ceil(lib: Library, x: ArrayLike) -> Array:
    """Rounded up; integers are unchanged.

    >>> ops.ceil(np.array([-1.5]))
    array([-1.])
    """


@primitive
def trunc(lib: Library, x: ArrayLike) -> Array:
    """Rounded towards zero; integers are unchanged.

    >>> ops.trunc(np.array([-1.5]))
    array([-1.])
    """


@primitive
def bitwise_not(lib: Library, x: ArrayLike) -> Array:
    """All bits inverted; the logical not for bools.

    >>> ops.bitwise_not(np.array([0]))
    array([-1])
    """


@primitive
def conj(lib: Library, x: ArrayLike) -> Array:
    """Complex conjugate.

    >>> ops.conj(np.array([1.0]))
    array([1.])
    """


@primitive
def real(lib: Library, x: ArrayLike) -> Array:
    """Real part.

    >>> ops.real(np.array([1 + 2j]))
    array([1.])
    """


@primitive
def imag(lib: Library, x: ArrayLike) -> Array:
    """Imaginary part; zeros for real numbers.

    >>> ops.imag(np.array([1 + 2j]))
    array([2.])
    """


true_divide = alias("true_divide", divide)
remainder = alias("remainder", mod)
pow = alias("pow", power)
absolute = alias("absolute", abs)
invert = alias("invert", bitwise_not)


@op
def positive(lib: Library, x: ArrayLike) -> Array:
    """`x` itself.

    >>> ops.positive(np.array([1, -2]))
    array([ 1, -2])
    """
    return lib.as_array(x)


@op
def square(lib: Library, x: ArrayLike) -> Array:
    """`x * x`.

    >>> ops.square(np.array([3]))
    array([9])
    """
    return lib.multiply(x, x)


@op
def reciprocal(lib: Library, x: ArrayLike) -> Array:
    """`1 / x`; integers give float32.

    >>> ops.reciprocal(np.array([4.0]))
    array([0.25])
    """
    return lib.divide(1, x)


@primitive
def round(lib: Library, x: ArrayLike, decimals: int = 0) -> Array:
    """Rounded to a number of decimals, halves to even.

    >>> ops.round(np.array([0.5, 1.5]))
    array([0., 2.])
    """


@op
def clip(lib: Library, x: ArrayLike, x_min: ArrayLike | None = None, x_max: ArrayLike | None = None) -> Array:
    """Limited to `x_min` and `x_max`; the upper bound wins where they cross.

    A whole number beyond what the integers of `x` can be limits nothing.

    >>> ops.clip(np.array([1, 5, 9]), 2, 6)
    array([2, 5, 6])
    """
    x = lib.as_array(x)
    raised = x if x_min is None else lib.maximum(x, limit(lib, x, x_min))
    return raised if x_max is None else lib.minimum(raised, limit(lib, x, x_max))


@op
def fmax(lib: Library, x1: ArrayLike, x2: ArrayLike) -> Array:
    """The larger; a NaN loses against a number.

    >>> ops.fmax(np.array([np.nan, 5.0]), 3.0)
    array([3., 5.])
    """
    x1, x2 = lib.promote(x1, x2)
    return lib.where(lib.isnan(x1), x2, lib.where(lib.isnan(x2), x1, lib.maximum(x1, x2)))


@op
def fmin(lib: Library, x1: ArrayLike, x2: ArrayLike) -> Array:
    """The smaller; a NaN loses against a number.

    >>> ops.fmin(np.array([np.nan, 5.0]), 3.0)
    array([3., 3.])
    """
    x1, x2 = lib.promote(x1, x2)
    return lib.where(lib.isnan(x1), x2, lib.where(lib.isnan(x2), x1, lib.minimum(x1, x2)))


@op
def hypot(lib: Library, x1: ArrayLike, x2: ArrayLike) -> Array:
    """Length of the vector (x1, x2).

    >>> ops.hypot(np.array([3.0]), 4.0)
    array([5.])
    """
    x1, x2 = (lib.abs(v) for v in lib.promote_float(x1, x2))
    # Chosen together, so that gradients of equal sides reach both.
    first = lib.greater(x1, x2)
    big, small = lib.where(first, x1, x2), lib.where(first, x2, x1)
    # Scaled by the larger side, so that squares neither overflow nor vanish.
    ratio = lib.divide(small, lib.where(lib.equal(big, 0), lib.ones_like(big), big))
    length = lib.multiply(big, lib.sqrt(lib.add(1, lib.square(ratio))))
    endless = lib.logical_or(lib.isinf(x1), lib.isinf(x2))
    return lib.where(endless, lib.full_like(length, float("inf")), length)


@op
def angle(lib: Library, x: ArrayLike) -> Array:
    """Argument of a complex number, in radians.

    >>> ops.angle(np.array([1j]))
    array([1.57079633])
    """
    x = lib.as_array(x)
    return lib.arctan2(lib.imag(x), lib.real(x))
