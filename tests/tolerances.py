"""One table of tolerances for the tests: how far a result may be from the reference, by kind of work and element type.

    np.testing.assert_allclose(found, wanted, **within("sums"))

A test with a bound of its own says why beside it.
"""

from __future__ import annotations

__all__ = ["TABLE", "within"]

# (relative, absolute), by kind and element type.
TABLE: dict[tuple[str, str], tuple[float, float]] = {
    # A function of each element, or a sum or mean of few: some units in the last place.
    ("elements", "float32"): (1e-5, 1e-6),
    # One product, convolution or reduction: sums of up to some thousand numbers, in another order.
    ("sums", "float32"): (1e-4, 1e-5),
    ("sums", "float64"): (1e-9, 1e-12),
    # Several sums one after the other, whose results nearly cancel in places: blocks of a network, their gradients.
    ("layers", "float32"): (1e-4, 1e-4),
    # Sums of numbers that were rounded on the way (16 bits, transformed windows), or of whole networks.
    ("rounded", "float32"): (1e-3, 1e-4),
}


def within(kind: str, dtype: str = "float32") -> dict[str, float]:
    """``rtol`` and ``atol`` as NumPy and torch take them.

    >>> within("sums")
    {'rtol': 0.0001, 'atol': 1e-05}
    """
    relative, absolute = TABLE[kind, dtype]
    return {"rtol": relative, "atol": absolute}
