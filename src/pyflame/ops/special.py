"""Special functions: logarithms of gamma functions by Stirling's series, normal distributions, entropies, divisors."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame.ops import activation as act
from pyflame.ops import arithmetic as ar
from pyflame.ops import pointwise as pw
from pyflame.ops.core import as_tensor, floating, operands, rounded_once

if TYPE_CHECKING:
    from pyflame.tensors import Tensor

__all__ = [
    "digamma",
    "entr",
    "erfcx",
    "gammaln",
    "gcd",
    "lcm",
    "ldexp",
    "lgamma",
    "log_ndtr",
    "logaddexp2",
    "multigammaln",
    "mvlgamma",
    "ndtr",
    "ndtri",
    "psi",
    "xlog1py",
]

# The series of log gamma beyond Stirling's formula: B(2n) / (2n (2n - 1)).
_SERIES = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156)
# That of its slope: B(2n) / (2n).
_SLOPE_SERIES = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12)
_SHIFT = 8


@rounded_once
def lgamma(input: Any) -> Tensor:
    """The logarithm of the size of the gamma function.

    Example:
        >>> import pyflame as pf
        >>> f"{pf.lgamma(pf.tensor(5.0)).exp().item():.3f}"
        '24.000'
    """
    x = floating(input)
    positive = ar.ge(x, 0.5)
    y = ar.where(positive, x, ar.sub(1.0, x))
    upper = _stirling(y)
    # Reflection: gamma(x) gamma(1 - x) = pi / sin(pi x).
    part = ar.where(positive, 0.5, ar.sub(x, pw.floor(x)))
    whole = ar.logical_and(ar.le(x, 0), ar.eq(x, pw.floor(x)))
    wave = pw.log(ar.abs(pw.sin(ar.mul(ar.where(whole, 0.5, part), math.pi))))
    lower = ar.sub(ar.sub(math.log(math.pi), wave), upper)
    found = ar.where(positive, upper, ar.where(whole, math.inf, lower))
    return ar.where(ar.isinf(x), math.inf, found)


def _stirling(y: Tensor) -> Tensor:
    """For arguments from a half on: moved up by recurrence, then the series."""
    z, factor = ar.add(y, float(_SHIFT)), y
    for k in range(1, _SHIFT):
        factor = ar.mul(factor, ar.add(y, float(k)))
    small = ar.lt(y, 1e4)
    z = ar.where(small, z, y)
    inverse = ar.reciprocal(z)
    square, tail = ar.square(inverse), ar.mul(inverse, 0.0)
    for term in reversed(_SERIES):
        tail = ar.add(ar.mul(tail, square), term)
    main = ar.add(ar.mul(ar.sub(z, 0.5), pw.log(z)), ar.sub(0.5 * math.log(2 * math.pi), z))
    return ar.sub(ar.add(main, ar.mul(tail, inverse)), ar.where(small, pw.log(ar.where(small, factor, 1.0)), 0.0))


@rounded_once
def digamma(input: Any) -> Tensor:
    """The slope of :func:`lgamma`."""
    x = floating(input)
    positive = ar.ge(x, 0.5)
    y = ar.where(positive, x, ar.sub(1.0, x))
    low = ar.mul(y, 0.0)
    for k in range(_SHIFT):
        low = ar.add(low, ar.reciprocal(ar.add(y, float(k))))
    z = ar.add(y, float(_SHIFT))
    square = ar.square(ar.reciprocal(z))
    tail = ar.mul(square, 0.0)
    for term in reversed(_SLOPE_SERIES):
        tail = ar.mul(ar.add(tail, term), square)
    upper = ar.sub(ar.sub(ar.sub(pw.log(z), ar.div(0.5, z)), tail), low)
    whole = ar.logical_and(ar.lt(x, 0), ar.eq(x, pw.floor(x)))
    part = ar.where(ar.logical_or(positive, ar.logical_or(whole, ar.eq(x, 0))), 0.25, ar.sub(x, pw.floor(x)))
    lower = ar.sub(upper, ar.div(math.pi, pw.tan(ar.mul(part, math.pi))))
    found = ar.where(positive, upper, ar.where(whole, math.nan, lower))
    return ar.where(ar.eq(x, 0), pw.copysign(math.inf, ar.neg(x)), ar.where(ar.eq(x, math.inf), math.inf, found))


gammaln, psi = lgamma, digamma


@rounded_once
def mvlgamma(input: Any, p: int) -> Tensor:
    """The logarithm of the multivariate gamma function of dimension ``p``."""
    x = floating(input)
    if p < 1:
        raise ValueError(f"mvlgamma: p is at least 1, got {p}")
    total = ar.add(ar.mul(x, 0.0), p * (p - 1) / 4 * math.log(math.pi))
    for j in range(p):
        total = ar.add(total, lgamma(ar.sub(x, j / 2)))
    return total


multigammaln = mvlgamma


@rounded_once
def ndtr(input: Any) -> Tensor:
    """The share of a standard normal distribution below each element."""
    x = floating(input)
    return ar.mul(pw.erfc(ar.mul(x, -math.sqrt(0.5))), 0.5)


@rounded_once
def ndtri(input: Any) -> Tensor:
    """The point of a standard normal distribution below which each share lies."""
    x = floating(input)
    return ar.mul(act.erfinv(ar.sub(ar.mul(x, 2.0), 1.0)), math.sqrt(2))


@rounded_once
def erfcx(input: Any) -> Tensor:
    """``exp(x**2) * erfc(x)``, by a continued fraction where the factors leave their range."""
    x = floating(input)
    large = ar.gt(x, 5.0)
    far = ar.where(large, x, 6.0)
    fraction = far
    for k in range(60, 0, -1):
        fraction = ar.add(far, ar.div(k / 2, fraction))
    near = ar.where(large, 0.0, x)
    plain = ar.mul(pw.exp(ar.square(near)), pw.erfc(near))
    return ar.where(large, ar.div(1 / math.sqrt(math.pi), fraction), plain)


@rounded_once
def log_ndtr(input: Any) -> Tensor:
    """The logarithm of :func:`ndtr`, also far out."""
    x = floating(input)
    t = ar.mul(x, math.sqrt(0.5))
    low = ar.lt(x, -1.0)
    t_low, t_high = ar.where(low, t, -1.0), ar.where(low, 0.0, t)
    far = ar.sub(pw.log(ar.div(erfcx(ar.neg(t_low)), 2.0)), ar.square(t_low))
    return ar.where(low, far, pw.log1p(ar.div(pw.erfc(t_high), -2.0)))


@rounded_once
def entr(input: Any) -> Tensor:
    """``-x log(x)``, 0 at 0, minus infinity below."""
    x = floating(input)
    inside = ar.gt(x, 0)
    value = ar.neg(ar.mul(x, pw.log(ar.where(inside, x, 1.0))))
    kept = ar.logical_or(inside, ar.isnan(x))
    return ar.where(kept, ar.where(ar.isnan(x), x, value), ar.where(ar.eq(x, 0), 0.0, -math.inf))


@rounded_once
def xlog1py(input: Any, other: Any) -> Tensor:
    """``input * log1p(other)``, 0 where the first is 0 unless the other is NaN."""
    a, b = operands(input, other, floating=True)
    none = ar.logical_and(ar.eq(a, 0), ar.logical_not(ar.isnan(b)))
    return ar.where(none, 0.0, ar.mul(a, pw.log1p(ar.where(none, 0.0, b))))


@rounded_once
def logaddexp2(input: Any, other: Any) -> Tensor:
    """``log2(2**input + 2**other)`` without overflow."""
    a, b = operands(input, other, floating=True)
    factor = math.log(2)
    return ar.div(pw.logaddexp(ar.mul(a, factor), ar.mul(b, factor)), factor)


@rounded_once
def ldexp(input: Any, other: Any) -> Tensor:
    """``input * 2**other``."""
    a = as_tensor(input)
    power = ar.pow(2.0, floating(other))
    return ar.mul(a, power)


def gcd(input: Any, other: Any) -> Tensor:
    """The greatest common divisor of integers, by Euclid's steps (as many as the widest type can take)."""
    a, b = operands(input, other)
    if not a.dtype.is_integer:
        raise TypeError(f"gcd takes integers, got {a.dtype.name}")
    bits = np.iinfo(a.dtype.numpy).bits
    a, b = ar.abs(a), ar.abs(b)
    for _ in range(math.ceil(bits * math.log(2) / math.log((1 + math.sqrt(5)) / 2))):
        done = ar.eq(b, 0)
        rest = ar.remainder(a, ar.where(done, 1, b))
        a, b = ar.where(done, a, b), ar.where(done, b, rest)
    return a


def lcm(input: Any, other: Any) -> Tensor:
    """The least common multiple of integers."""
    a, b = operands(input, other)
    divisor = gcd(a, b)
    safe = ar.where(ar.eq(divisor, 0), 1, divisor)
    return ar.abs(ar.mul(ar.floor_divide(a, safe), b))
