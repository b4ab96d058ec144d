"""Exponentials, logarithms, trigonometry and special functions. Integers give float32."""

import math

import ml_dtypes

from emberharmony.dtypes import FLOAT, compute_dtype, kind
from emberharmony.library import Library
from emberharmony.registry import alias, op, primitive
from emberharmony.typing import Array, ArrayLike


@primitive
def exp(lib: Library, x: ArrayLike) -> Array:
    """Natural exponential.

    >>> ops.exp(np.array([0.0]))
    array([1.])
    """


@primitive
def expm1(lib: Library, x: ArrayLike) -> Array:
    """`exp(x) - 1`, exact near 0.

    >>> ops.expm1(np.array([0.0]))
    array([0.])
    """


@primitive
def log(lib: Library, x: ArrayLike) -> Array:
    """Natural logarithm.

    >>> ops.log(np.array([1.0]))
    array([0.])
    """


@primitive
def log1p(lib: Library, x: ArrayLike) -> Array:
    """`log(1 + x)`, exact near 0.

    >>> ops.log1p(np.array([0.0]))
    array([0.])
    """


@primitive
def log2(lib: Library, x: ArrayLike) -> Array:
    """Logarithm to base 2.

    >>> ops.log2(np.array([8.0]))
    array([3.])
    """


@primitive
def log10(lib: Library, x: ArrayLike) -> Array:
    """Logarithm to base 10.

    >>> ops.log10(np.array([100.0]))
    array([2.])
    """


@primitive
def sqrt(lib: Library, x: ArrayLike) -> Array:
    """Square root.

    >>> ops.sqrt(np.array([9.0]))
    array([3.])
    """


@primitive
def sin(lib: Library, x: ArrayLike) -> Array:
    """Sine.

    >>> ops.sin(np.array([0.0]))
    array([0.])
    """


@primitive
def cos(lib: Library, x: ArrayLike) -> Array:
    """Cosine.

    >>> ops.cos(np.array([0.0]))
    array([1.])
    """


@primitive
def tan(lib: Library, x: ArrayLike) -> Array:
    """Tangent.

    >>> ops.tan(np.array([0.0]))
    array([0.])
    """


@primitive
def arcsin(lib: Library, x: ArrayLike) -> Array:
    """Inverse sine.

    >>> ops.arcsin(np.array([0.0]))
    array([0.])
    """


@primitive
def arccos(lib: Library, x: ArrayLike) -> Array:
    """Inverse cosine.

    >>> ops.arccos(np.array([1.0]))
    array([0.])
    """


@primitive
def arctan(lib: Library, x: ArrayLike) -> Array:
    """Inverse tangent.

    >>> ops.arctan(np.array([0.0]))
    array([0.])
    """


@primitive
def sinh(lib: Library, x: ArrayLike) -> Array:
    """Hyperbolic sine.

    >>> ops.sinh(np.array([0.0]))
    array([0.])
    """


@primitive
def cosh(lib: Library, x: ArrayLike) -> Array:
    """Hyperbolic cosine.

    >>> ops.cosh(np.array([0.0]))
    array([1.])
    """


@primitive
def tanh(lib: Library, x: ArrayLike) -> Array:
    """Hyperbolic tangent.

    >>> ops.tanh(np.array([0.0]))
    array([0.])
    """


@primitive
def arcsinh(lib: Library, x: ArrayLike) -> Array:
    """Inverse hyperbolic sine.

    >>> ops.arcsinh(np.array([0.0]))
    array([0.])
    """


@primitive
def arccosh(lib: Library, x: ArrayLike) -> Array:
    """Inverse hyperbolic cosine.

    >>> ops.arccosh(np.array([1.0]))
    array([0.])
    """


@primitive
def arctanh(lib: Library, x: ArrayLike) -> Array:
    """Inverse hyperbolic tangent.

    >>> ops.arctanh(np.array([0.0]))
    array([0.])
    """


@primitive
def erf(lib: Library, x: ArrayLike) -> Array:
    """Error function.

    >>> ops.erf(np.array([0.0]))
    array([0.])
    """


@primitive
def erfc(lib: Library, x: ArrayLike) -> Array:
    """`1 - erf(x)`, exact where erf is near 1.

    >>> ops.erfc(np.array([0.0]))
    array([1.])
    """


@primitive
def erfinv(lib: Library, x: ArrayLike) -> Array:
    """Inverse of the error function.

    >>> ops.erfinv(np.array([0.0]))
    array([0.])
    """


@primitive
def lgamma(lib: Library, x: ArrayLike) -> Array:
    """Logarithm of the absolute value of the gamma function.

    >>> ops.lgamma(np.array([1.0]))
    array([0.])
    """


@primitive
def digamma(lib: Library, x: ArrayLike) -> Array:
    """Logarithmic derivative of the gamma function.

    >>> ops.digamma(np.array([1.0]))
    array([-0.57721566])
    """


@primitive
def isnan(lib: Library, x: ArrayLike) -> Array:
    """Where NaN.

    >>> ops.isnan(np.array([1.0]))
    array([False])
    """


@primitive
def isinf(lib: Library, x: ArrayLike) -> Array:
    """Where infinite.

    >>> ops.isinf(np.array([np.inf]))
    array([ True])
    """


@primitive
def isfinite(lib: Library, x: ArrayLike) -> Array:
    """Where neither infinite nor NaN.

    >>> ops.isfinite(np.array([1.0]))
    array([ True])
    """


gammaln = alias("gammaln", lgamma)


@op
def exp2(lib: Library, x: ArrayLike) -> Array:
    """2 to the power `x`.

    >>> ops.exp2(np.array([3.0]))
    array([8.])
    """
    return lib.power(2.0, x)


@op
def rsqrt(lib: Library, x: ArrayLike) -> Array:
    """`1 / sqrt(x)`.

    >>> ops.rsqrt(np.array([4.0]))
    array([0.5])
    """
    return lib.divide(1, lib.sqrt(x))


@op
def cbrt(lib: Library, x: ArrayLike) -> Array:
    """Cube root, of negative numbers too.

    >>> ops.cbrt(np.array([-8.0]))
    array([-2.])
    """
    (x,) = lib.promote_float(x)
    wide = lib.cast(x, compute_dtype(lib.dtype(x)))
    return lib.cast(lib.multiply(lib.sign(wide), lib.power(lib.abs(wide), 1 / 3)), lib.dtype(x))


@op
def logaddexp(lib: Library, x1: ArrayLike, x2: ArrayLike) -> Array:
    """`log(exp(x1) + exp(x2))` without overflow.

    >>> ops.logaddexp(np.array([0.0]), 0.0)
    array([0.69314718])
    """
    x1, x2 = lib.promote_float(x1, x2)
    # Chosen together, so that gradients of equal numbers reach both.
    first = lib.greater(x1, x2)
    gap = lib.where(first, lib.subtract(x2, x1), lib.subtract(x1, x2))
    # Equal infinities have no difference; their sum is the infinity itself.
    endless = lib.logical_and(lib.equal(x1, x2), lib.isinf(x1))
    gap = lib.where(endless, lib.zeros_like(gap), gap)
    return lib.add(lib.where(first, x1, x2), lib.log1p(lib.exp(gap)))


@op
def isposinf(lib: Library, x: ArrayLike) -> Array:
    """Where plus infinity.

    >>> ops.isposinf(np.array([np.inf, -np.inf]))
    array([ True, False])
    """
    return lib.logical_and(lib.isinf(x), lib.greater(x, 0))


@op
def isneginf(lib: Library, x: ArrayLike) -> Array:
    """Where minus infinity.

    >>> ops.isneginf(np.array([np.inf, -np.inf]))
    array([False,  True])
    """
    return lib.logical_and(lib.isinf(x), lib.less(x, 0))


@op
def nan_to_num(
    lib: Library,
    x: ArrayLike,
    nan: float = 0.0,
    posinf: float | None = None,
    neginf: float | None = None,
) -> Array:
    """NaN and infinities replaced, infinities by default with the largest finite values.

    >>> ops.nan_to_num(np.array([np.nan, 1.0]))
    array([0., 1.])
    """
    x = lib.as_array(x)
    dtype = lib.dtype(x)
    if kind(dtype) != FLOAT:
        return x
    top = float(ml_dtypes.finfo(dtype).max)
    x = lib.where(lib.isnan(x), lib.full_like(x, nan), x)
    x = lib.where(lib.isposinf(x), lib.full_like(x, top if posinf is None else posinf), x)
    return lib.where(lib.isneginf(x), lib.full_like(x, -top if neginf is None else neginf), x)


@op
def deg2rad(lib: Library, x: ArrayLike) -> Array:
    """Degrees to radians.

    >>> ops.deg2rad(np.array([180.0]))
    array([3.14159265])
    """
    return lib.multiply(x, math.pi / 180)


@op
def rad2deg(lib: Library, x: ArrayLike) -> Array:
    """Radians to degrees.

    >>> ops.rad2deg(np.array([0.0]))
    array([0.])
    """
    return lib.multiply(x, 180 / math.pi)
