"""Special functions on NumPy arrays of float64, for libraries that lack them.

The error function uses W. J. Cody's rational approximations (Math. Comp. 23, 1969), which are
accurate to the last bits of float64.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

_NEAR = (
    (1.85777706184603153e-1, 3.16112374387056560, 1.13864154151050156e2, 3.77485237685302021e2,
     3.20937758913846947e3),
    (1.0, 2.36012909523441209e1, 2.44024637934444173e2, 1.28261652607737228e3,
     2.84423683343917062e3),
)  # fmt: skip
_MIDDLE = (
    (2.15311535474403846e-8, 5.64188496988670089e-1, 8.88314979438837594, 6.61191906371416295e1,
     2.98635138197400131e2, 8.81952221241769090e2, 1.71204761263407058e3, 2.05107837782607147e3,
     1.23033935479799725e3),
    (1.0, 1.57449261107098347e1, 1.17693950891312499e2, 5.37181101862009858e2,
     1.62138957456669019e3, 3.29079923573345963e3, 4.36261909014324716e3, 3.43936767414372164e3,
     1.23033935480374942e3),
)  # fmt: skip
_FAR = (
    (1.63153871373020978e-2, 3.05326634961232344e-1, 3.60344899949804439e-1,
     1.25781726111229246e-1, 1.60837851487422766e-2, 6.58749161529837803e-4),
    (1.0, 2.56852019228982242, 1.87295284992346047, 5.27905102951428412e-1,
     6.05183413124413191e-2, 2.33520497626869185e-3),
)  # fmt: skip


def _ratio(x: np.ndarray, parts: tuple[Sequence[float], Sequence[float]]) -> np.ndarray:
    """Quotient of two polynomials, highest powers first."""
    above, below = (np.full_like(x, part[0]) for part in parts)
    for a, b in zip(parts[0][1:], parts[1][1:], strict=True):
        above *= x
        above += a
        below *= x
        below += b
    return above / below


def _tail(y: np.ndarray) -> np.ndarray:
    """Erfc for y > 0.46875."""
    result = np.empty_like(y)
    middle = y <= 4.0
    part = y[middle]
    result[middle] = _ratio(part, _MIDDLE)
    part = y[~middle]
    inverse = 1.0 / (part * part)
    result[~middle] = (1 / math.sqrt(math.pi) - inverse * _ratio(inverse, _FAR)) / part
    # y * y is split, or its rounding error would be raised by the exponential.
    head = np.trunc(y * 16.0) / 16.0
    return result * np.exp(-head * head) * np.exp(-(y - head) * (y + head))


def erf(x: np.ndarray) -> np.ndarray:
    """Error function.

    >>> erf(np.array([0.0, 40.0]))
    array([0., 1.])
    """
    y = np.abs(np.asarray(x, np.float64))
    result = np.array(x, np.float64)
    near = y <= 0.46875
    small = result[near]
    result[near] = small * _ratio(small * small, _NEAR)
    far = y > 0.46875
    result[far] = np.copysign(1.0 - _tail(np.minimum(y[far], 30.0)), result[far])
    return result


def erfc(x: np.ndarray) -> np.ndarray:
    """`1 - erf(x)`.

    >>> erfc(np.array([0.0, 40.0]))
    array([1., 0.])
    """
    known = np.asarray(x, np.float64)
    result = np.array(1.0 - erf(known))
    far = known > 0.46875
    result[far] = _tail(np.minimum(known[far], 30.0))
    below = known < -0.46875
    result[below] = 2.0 - _tail(np.minimum(-known[below], 30.0))
    return result


_CENTRE = (2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087,
           -0.00125372503, -0.00417768164, 0.246640727, 1.50140941)  # fmt: skip
_EDGE = (-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773,
         -0.0076224613, 0.00943887047, 1.00167406, 2.83297682)  # fmt: skip


def erfinv(x: np.ndarray) -> np.ndarray:
    """Inverse of the error function: M. Giles' approximation and Halley's steps.

    >>> erfinv(np.array([0.0, 1.0]))
    array([ 0., inf])
    """
    known = np.asarray(x, np.float64)
    with np.errstate(all="ignore"):
        w = -np.log((1.0 - known) * (1.0 + known))
        centre = np.polyval(_CENTRE, w - 2.5)
        edge = np.polyval(_EDGE, np.sqrt(np.maximum(w, 0.0)) - 3.0)
        y = np.where(w < 5.0, centre, edge) * known
        for _ in range(4):
            # Through erfc near the ends, where 1 - erf has lost its digits.
            gap = np.where(np.abs(known) < 0.5, erf(y) - known, _edge_gap(y, known))
            step = gap * (math.sqrt(math.pi) / 2) * np.exp(y * y)
            y = y - step / (1.0 + y * step)
    y = np.where(np.abs(known) == 1.0, np.copysign(np.inf, known), y)
    return np.where(np.abs(known) > 1.0, np.nan, y)


def _edge_gap(y: np.ndarray, known: np.ndarray) -> np.ndarray:
    return np.sign(known) * ((1.0 - np.abs(known)) - erfc(np.abs(y)))


def _one_lgamma(v: float) -> float:
    if v <= 0 and (v == -math.inf or v == math.floor(v)):
        return math.inf
    try:
        return math.lgamma(v)
    except OverflowError:
        return math.inf


_lgamma: Any = np.frompyfunc(_one_lgamma, 1, 1)


def lgamma(x: np.ndarray) -> np.ndarray:
    """Logarithm of the absolute value of the gamma function.

    >>> lgamma(np.array([1.0, 0.0]))
    array([ 0., inf])
    """
    return np.asarray(_lgamma(np.asarray(x, np.float64)), np.float64)


def digamma(x: np.ndarray) -> np.ndarray:
    """Logarithmic derivative of the gamma function; infinite at 0, NaN at negative integers.

    >>> digamma(np.array([1.0])).round(6)
    array([-0.577216])
    """
    known = np.asarray(x, np.float64)
    with np.errstate(all="ignore"):
        mirrored = known < 0.5
        z = np.where(mirrored, 1.0 - known, known)
        shift = np.zeros_like(z)
        for _ in range(10):
            low = z < 10.0
            shift = np.where(low, shift - 1.0 / z, shift)
            z = np.where(low, z + 1.0, z)
        r = 1.0 / (z * z)
        series = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12)
        tail = r * np.polyval(series[::-1], r)
        value = np.log(z) - 0.5 / z - tail + shift
        reflected = value - math.pi / np.tan(math.pi * known)
    value = np.where(mirrored, reflected, value)
    value = np.where((known < 0) & (known == np.floor(known)), np.nan, value)
    return np.where(known == 0, -np.copysign(np.inf, known), value)


def trigamma(x: np.ndarray) -> np.ndarray:
    """Derivative of the digamma function; infinite at 0 and negative integers.

    >>> trigamma(np.array([1.0])).round(6)
    array([1.644934])
    """
    known = np.asarray(x, np.float64)
    with np.errstate(all="ignore"):
        mirrored = known < 0.5
        z = np.where(mirrored, 1.0 - known, known)
        shift = np.zeros_like(z)
        for _ in range(10):
            low = z < 10.0
            shift = np.where(low, shift + 1.0 / (z * z), shift)
            z = np.where(low, z + 1.0, z)
        r = 1.0 / (z * z)
        series = (1.0, 1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6)
        value = np.polyval(series[::-1], r) / z + 0.5 * r + shift
        reflected = (math.pi / np.sin(math.pi * known)) ** 2 - value
    value = np.where(mirrored, reflected, value)
    return np.where((known <= 0) & (known == np.floor(known)), np.inf, value)
