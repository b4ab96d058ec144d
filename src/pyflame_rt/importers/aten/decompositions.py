"""Decompositions of matrices of aten: triangles, eigenvalues, singular values, solutions."""

from __future__ import annotations

from typing import Any

import numpy as np

from pyflame_rt.graph import DType
from pyflame_rt.graph.errors import ShapeMismatchError
from pyflame_rt.importers.aten.shaping import swapped
from pyflame_rt.importers.aten.table import aten
from pyflame_rt.importers.aten.values import axis, refuse, shape_value, sizes, static
from pyflame_rt.ops.core.value import Value, constant
from pyflame_rt.ops.onnx.shape import Expand, Squeeze, Unsqueeze
from pyflame_rt.ops.pyflame.decompositions import QR, SVD, Cholesky, Eigh, PseudoInverse, SignLogDet, Solve

__all__: list[str] = []


def _fine(x: Value) -> Value:
    """What torch's operators say of each matrix: that nothing went wrong; ours raise where something did."""
    lead = sizes(x)[:-2]
    nothing = constant(0, DType.Int32)
    return Expand(nothing, shape_value(lead)) if lead else nothing


@aten("linalg_cholesky", "cholesky")
def _cholesky(x: Value, upper: bool = False, **_: Any) -> Value:
    made = Cholesky(swapped(x, -2, -1) if upper else x)
    return swapped(made, -2, -1) if upper else made


@aten("linalg_cholesky_ex")
def _cholesky_ex(x: Value, *, upper: bool = False, check_errors: bool = False) -> tuple[Value, Value]:
    del check_errors
    return _cholesky(x, upper), _fine(x)


@aten("linalg_eigh")
def _eigh(x: Value, UPLO: str = "L") -> tuple[Value, Value]:
    values, vectors = Eigh(swapped(x, -2, -1) if UPLO.upper() == "U" else x)
    return values, vectors


@aten("_linalg_eigh")
def _eigh_within(x: Value, UPLO: str = "L", compute_v: bool = True) -> tuple[Value, Value]:
    del compute_v
    return _eigh(x, UPLO)


@aten("linalg_eigvalsh")
def _eigvalsh(x: Value, UPLO: str = "L") -> Value:
    return _eigh(x, UPLO)[0]


@aten("linalg_svd", "_linalg_svd")
def _svd(x: Value, full_matrices: bool = True, *_: Any, **__: Any) -> tuple[Value, Value, Value]:
    left, values, right = SVD(x, full=int(full_matrices))
    return left, values, right


@aten("linalg_svdvals")
def _svdvals(x: Value, **_: Any) -> Value:
    return SVD(x)[1]


@aten("linalg_qr")
def _qr(x: Value, mode: str = "reduced") -> tuple[Value, Value]:
    if mode not in ("reduced", "complete"):
        raise refuse(f"linalg_qr with mode={mode!r}")
    q, r = QR(x, complete=int(mode == "complete"))
    return q, r


@aten("linalg_solve")
def _solve(a: Value, b: Value, *, left: bool = True) -> Value:
    if not left:
        return swapped(_solve(swapped(a, -2, -1), swapped(b, -2, -1)), -2, -1)
    vectors = b.rank == 1
    if not vectors and b.rank == a.rank - 1:  # vectors where all sizes are those of the matrices
        vectors = static(sizes(b), "the sizes of B") == static(sizes(a), "the sizes of A")[:-1]
    made = Solve(a, Unsqueeze(b, [b.rank]) if vectors else b)
    return Squeeze(made, [-1]) if vectors else made


@aten("linalg_solve_ex")
def _solve_ex(a: Value, b: Value, *, left: bool = True, check_errors: bool = False) -> tuple[Value, Value]:
    del check_errors
    return _solve(a, b, left=left), _fine(a)


@aten("linalg_inv_ex")
def _inverse_ex(x: Value, *, check_errors: bool = False) -> tuple[Value, Value]:
    from pyflame_rt.importers.aten.linear import inverse

    del check_errors
    return inverse(x), _fine(x)


@aten("linalg_slogdet", "slogdet")
def _slogdet(x: Value) -> tuple[Value, Value]:
    sign, size = SignLogDet(x)
    return sign, size


@aten("linalg_pinv", "pinverse")
def _pinv(x: Value, rcond: Any = None, hermitian: bool = False, *, atol: Any = None, rtol: Any = None) -> Value:
    if atol is not None or hermitian:
        raise refuse("linalg_pinv with atol or hermitian")
    given = rcond if rtol is None else rtol
    if given is None:
        largest = max(static(sizes(x)[-2:], "the sizes of a pseudo-inverse"))
        given = largest * float(np.finfo(x.dtype.numpy).eps)
    return PseudoInverse(x, rtol=float(static(given, "rtol")))


@aten("linalg_cross", "cross")
def _cross(x: Value, other: Value, dim: Any = -1) -> Value:
    """Turned by one place and by two, multiplied and taken away."""
    from pyflame_rt.importers.aten.shaping import rolled

    at = axis(-1 if dim is None else dim, x.rank)
    if static(sizes(x)[at], "the size of a cross product's axis") != 3:
        raise ShapeMismatchError(f"a cross product is of three elements, axis {at} of {list(x.shape)} has others")
    there = axis(at - x.rank, other.rank)
    a1, a2 = (rolled(x, [-n], [at]) for n in (1, 2))
    b1, b2 = (rolled(other, [-n], [there]) for n in (1, 2))
    return a1 * b2 - a2 * b1


@aten("trace")
def _trace(x: Value) -> Value:
    from pyflame_rt.importers.aten.reduce import summed
    from pyflame_rt.importers.aten.shaping import diagonal

    return summed(diagonal(x))
