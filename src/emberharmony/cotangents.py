# ruff: noqa: ARG001 - every rule takes the gradient, the results and the arguments, whichever it needs
"""Gradients of operations that NumPy computes for another library, which cannot see through it.

A rule gets the library, the gradient of each result, the results and the arguments, and gives the gradient of each
argument, in operations of the library: a rule can be differentiated again. An operation without a rule refuses.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypeVar

from emberharmony.dtypes import COMPLEX, kind
from emberharmony.errors import UnsupportedOpError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from emberharmony.library import Library
    from emberharmony.typing import Array

__all__ = ["COTANGENTS", "cotangent", "pulled_back"]

F = TypeVar("F", bound="Callable[..., Any]")
COTANGENTS: dict[str, Callable[..., Any]] = {}


def cotangent(function: F) -> F:
    """Register a rule under its name."""
    COTANGENTS[function.__name__] = function
    return function


def pulled_back(
    lib: Library, name: str, gradients: Any, results: Any, arrays: Sequence[Array], options: dict[str, Any]
) -> list[Array]:
    """The gradients of the arguments of one operation.

    Raises:
        UnsupportedOpError: The operation has no rule, or none for these arguments.
    """
    rule = COTANGENTS.get(name)
    if rule is None:
        raise UnsupportedOpError(f"the gradient of {name}", lib.name, "NumPy computes it there: use arrays of torch")
    if any(kind(lib.dtype(a)) == COMPLEX for a in arrays):
        raise UnsupportedOpError(f"the gradient of {name} of complex numbers", lib.name, "use arrays of torch")
    found = rule(lib, gradients, results, *arrays, **options)
    return list(found) if isinstance(found, tuple) else [found]


# ---------------------------------------------------------------------- element by element


@cotangent
def exp(lib: Library, g: Array, y: Array, x: Array) -> Array:
    """Its own derivative."""
    return lib.multiply(g, y)


@cotangent
def sin(lib: Library, g: Array, y: Array, x: Array) -> Array:
    """The cosine."""
    return lib.multiply(g, lib.cos(x))


@cotangent
def cos(lib: Library, g: Array, y: Array, x: Array) -> Array:
    """The negative sine."""
    return lib.multiply(g, lib.negative(lib.sin(x)))


@cotangent
def sigmoid(lib: Library, g: Array, y: Array, x: Array) -> Array:
    """The result times what is left of it to 1."""
    return lib.multiply(g, lib.multiply(y, lib.subtract(1, y)))


def _bell(lib: Library, x: Array) -> Array:
    return lib.multiply(lib.exp(lib.negative(lib.square(x))), 2 / math.sqrt(math.pi))


@cotangent
def erf(lib: Library, g: Array, y: Array, x: Array) -> Array:
    """2 exp(-x x) / sqrt(pi)."""
    return lib.multiply(g, _bell(lib, x))


@cotangent
def erfc(lib: Library, g: Array, y: Array, x: Array) -> Array:
    """Minus that of erf."""
    return lib.negative(lib.multiply(g, _bell(lib, x)))


@cotangent
def erfinv(lib: Library, g: Array, y: Array, x: Array) -> Array:
    """One over that of erf, at the result."""
    return lib.divide(g, _bell(lib, y))


@cotangent
def lgamma(lib: Library, g: Array, y: Array, x: Array) -> Array:
    """The digamma function."""
    return lib.multiply(g, lib.digamma(x))


@cotangent
def digamma(lib: Library, g: Array, y: Array, x: Array) -> Array:
    """The trigamma function."""
    from emberharmony.special import trigamma

    return lib.multiply(g, lib.cast(lib.by_host("trigamma", trigamma, x), lib.dtype(x)))


# ---------------------------------------------------------------------- matrices


def _turned(lib: Library, x: Array) -> Array:
    return lib.swapaxes(x, -1, -2)


def _product(lib: Library, *factors: Array) -> Array:
    made = factors[0]
    for factor in factors[1:]:
        made = lib.matmul(made, factor)
    return made


def _column(lib: Library, x: Array) -> Array:
    return lib.expand_dims(x, -1)


def _row(lib: Library, x: Array) -> Array:
    return lib.expand_dims(x, -2)


def _unit(lib: Library, x: Array, axis: int) -> Array:
    return lib.eye(x.shape[axis], dtype=lib.dtype(x))


def _of_shape(lib: Library, g: Array, x: Array) -> Array:
    """A gradient summed over the axes that broadcasting repeated."""
    extra = len(g.shape) - len(x.shape)
    g = lib.sum(g, tuple(range(extra))) if extra else g
    repeated = tuple(i for i, (a, b) in enumerate(zip(g.shape, x.shape, strict=True)) if a != b)
    return lib.sum(g, repeated, keepdims=True) if repeated else g


def _halved(lib: Library, x: Array) -> Array:
    """A square matrix with its diagonal halved."""
    return lib.where(lib.eye(x.shape[-1], dtype="bool"), lib.multiply(x, 0.5), x)


def _inverse_gaps(lib: Library, values: Array) -> Array:
    """1 / (v_j - v_i); 0 for equal ones, the diagonal among them."""
    gaps = lib.subtract(_row(lib, values), _column(lib, values))
    same = lib.equal(gaps, 0)
    return lib.where(same, 0, lib.divide(1, lib.where(same, 1, gaps)))


@cotangent
def inv(lib: Library, g: Array, y: Array, x: Array) -> Array:
    """-y' g y'."""
    turned = _turned(lib, y)
    return lib.negative(_product(lib, turned, g, turned))


@cotangent
def solve(lib: Library, g: Array, y: Array, a: Array, b: Array) -> tuple[Array, Array]:
    """Towards b the solution with a', towards a its product with the result."""
    vector = len(b.shape) == 1
    # A vector meets every matrix of `a`: what came of it is a column of each.
    g, y = (_column(lib, v) if vector else v for v in (g, y))
    along = lib.solve(_turned(lib, a), g)
    towards_a = lib.negative(lib.matmul(along, _turned(lib, y)))
    return _of_shape(lib, towards_a, a), _of_shape(lib, along[..., 0] if vector else along, b)


@cotangent
def det(lib: Library, g: Array, y: Array, x: Array) -> Array:
    """The cofactors, by singular values, so that matrices without an inverse have them too."""
    u, s, vh = lib.svd(x)
    ones = lib.ones_like(s)
    others = lib.where(lib.eye(s.shape[-1], dtype="bool"), _row(lib, ones), _row(lib, s))
    sign = lib.stop_gradient(lib.multiply(lib.det(u), lib.det(vh)))
    scale = lib.multiply(lib.multiply(g, sign)[..., None], lib.prod(others, -1))
    return _product(lib, lib.multiply(u, _row(lib, scale)), vh)


@cotangent
def slogdet(lib: Library, g: tuple[Array, Array], y: tuple[Array, Array], x: Array) -> Array:
    """The inverse, transposed; the sign has none."""
    return lib.multiply(g[1][..., None, None], _turned(lib, lib.inv(x)))


@cotangent
def cholesky(lib: Library, g: Array, y: Array, x: Array, upper: bool = False) -> Array:
    """By the lower factor: the symmetric part of l^-T phi(l' g) l^-1."""
    if upper:
        g, y = _turned(lib, g), _turned(lib, y)
    turned = _turned(lib, y)
    inner = _halved(lib, lib.tril(lib.matmul(turned, g)))
    # l^-T inner l^-1, as two solutions with l'.
    once = lib.solve(turned, inner)
    full = _turned(lib, lib.solve(turned, _turned(lib, once)))
    return lib.multiply(lib.add(full, _turned(lib, full)), 0.5)


@cotangent
def eigh(lib: Library, g: tuple[Array, Array], y: tuple[Array, Array], x: Array) -> Array:
    """Towards values and vectors: v (diag(gw) + (v' gv) / gaps) v'."""
    w, v = y
    mixed = lib.multiply(lib.matmul(_turned(lib, v), g[1]), _inverse_gaps(lib, w))
    inner = lib.add(mixed, lib.multiply(_unit(lib, v, -1), _row(lib, g[0])))
    return _product(lib, v, inner, _turned(lib, v))


@cotangent
def eigvalsh(lib: Library, g: Array, y: Array, x: Array) -> Array:
    """By the vectors: v diag(g) v'."""
    v = lib.eigh(x)[1]
    return lib.matmul(lib.multiply(v, _row(lib, g)), _turned(lib, v))


@cotangent
def svdvals(lib: Library, g: Array, y: Array, x: Array) -> Array:
    """By the vectors: u diag(g) v'."""
    u, _, vh = lib.svd(x, full_matrices=False)
    return lib.matmul(lib.multiply(u, _row(lib, g)), vh)


@cotangent
def svd(lib: Library, g: tuple[Array, ...], y: tuple[Array, ...], x: Array, full_matrices: bool = True) -> Array:
    """The rule of Townsend for distinct singular values."""
    if full_matrices and x.shape[-1] != x.shape[-2]:
        hint = "give full_matrices=False"
        raise UnsupportedOpError("the gradient of svd with full matrices", lib.name, hint)
    (u, s, vh), (gu, gs, gvh) = y, g
    ut, v, gv = _turned(lib, u), _turned(lib, vh), _turned(lib, gvh)
    gaps = _inverse_gaps(lib, lib.square(s))

    def skew(left: Array, right: Array) -> Array:
        inner = lib.matmul(left, right)
        return lib.multiply(lib.subtract(inner, _turned(lib, inner)), gaps)

    inner = lib.multiply(_unit(lib, s, -1), _row(lib, gs))
    inner = lib.add(inner, lib.multiply(skew(ut, gu), _row(lib, s)))
    inner = lib.add(inner, lib.multiply(_column(lib, s), skew(vh, gv)))
    found = _product(lib, u, inner, vh)
    if x.shape[-2] > x.shape[-1]:
        rest = lib.subtract(gu, _product(lib, u, ut, gu))
        found = lib.add(found, lib.matmul(lib.divide(rest, _row(lib, s)), vh))
    if x.shape[-1] > x.shape[-2]:
        rest = lib.subtract(gvh, _product(lib, gvh, v, vh))
        found = lib.add(found, lib.matmul(u, lib.divide(rest, _column(lib, s))))
    return found


@cotangent
def qr(lib: Library, g: tuple[Array, Array], y: tuple[Array, Array], x: Array, mode: str = "reduced") -> Array:
    """For matrices at least as tall as wide."""
    rows, columns = x.shape[-2:]
    if rows < columns or (mode == "complete" and rows != columns):
        raise UnsupportedOpError(f"the gradient of qr of a {rows} x {columns} matrix", lib.name, "use arrays of torch")
    (q, r), (gq, gr) = y, g
    upper = lib.triu(lib.subtract(lib.matmul(gr, _turned(lib, r)), lib.matmul(_turned(lib, q), gq)))
    both = _halved(lib, lib.add(upper, _turned(lib, upper)))
    inner = lib.add(gq, lib.matmul(q, both))
    return _turned(lib, lib.solve(r, _turned(lib, inner)))


@cotangent
def pinv(lib: Library, g: Array, y: Array, x: Array, rcond: float | None = None) -> Array:
    """The rule of Golub and Pereyra, for matrices whose rank stays."""
    turned, back = _turned(lib, y), _turned(lib, g)
    found = lib.negative(_product(lib, turned, g, turned))
    left = lib.subtract(_unit(lib, x, -2), lib.matmul(x, y))
    right = lib.subtract(_unit(lib, x, -1), lib.matmul(y, x))
    found = lib.add(found, _product(lib, left, back, y, turned))
    return lib.add(found, _product(lib, turned, y, back, right))


@cotangent
def lstsq(
    lib: Library,
    g: Array,
    y: Array,
    a: Array,
    b: Array,
    rcond: float | None = None,
) -> tuple[Array, Array]:
    """By the pseudo-inverse, whose product with b the result is."""
    p = lib.pinv(a, rcond)
    vector = len(b.shape) == 1
    gm, bm = (_column(lib, v) if vector else v for v in (g, b))
    towards_b = lib.matmul(_turned(lib, p), gm)
    towards_a = pinv(lib, lib.matmul(gm, _turned(lib, bm)), p, a)
    return towards_a, towards_b[..., 0] if vector else towards_b
