"""Factors of matrices and what follows from them: solutions, ranks, pseudo-inverses, with gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pyflame.dtypes import DType
from pyflame.ops import arithmetic as ar
from pyflame.ops import linalg as la
from pyflame.ops import pointwise as pw
from pyflame.ops import reduction as red
from pyflame.ops import shaping as sh
from pyflame.ops.core import WrongTypeError, as_tensor, call, call_many, cast
from pyflame.ops.creation import eye, zeros
from pyflame_rt.graph.errors import ShapeMismatchError
from pyflame_rt.graph.named_arguments import names_arguments
from pyflame_rt.ops.pyflame.decompositions import QR, SVD, Cholesky, Eigh, PseudoInverse, SignLogDet, Solve

if TYPE_CHECKING:
    from pyflame.tensors import Tensor

__all__ = [
    "cholesky",
    "cholesky_ex",
    "cholesky_inverse",
    "cholesky_solve",
    "cond",
    "eigh",
    "eigvalsh",
    "inv_ex",
    "lstsq",
    "matrices",
    "matrix_rank",
    "pinv",
    "qr",
    "slogdet",
    "solve",
    "solve_ex",
    "solve_triangular",
    "square",
    "svd",
    "svdvals",
]


def matrices(name: str, input: Any) -> Tensor:
    """The tensor, refused where it does not hold matrices of float32 or float64."""
    x = as_tensor(input)
    if x.dtype not in (DType.float32, DType.float64):
        raise WrongTypeError(f"linalg.{name} takes float32 or float64, got {x.dtype.name}; convert it, as in x.float()")
    if x.ndim < 2:
        raise ShapeMismatchError(f"linalg.{name} takes matrices, got {x.shape}")
    return x


def square(name: str, input: Any) -> Tensor:
    """The same for square matrices."""
    x = matrices(name, input)
    if x.shape[-1] != x.shape[-2]:
        raise ShapeMismatchError(f"linalg.{name} takes square matrices, got {x.shape}")
    return x


def _turned(x: Tensor) -> Tensor:
    return sh.transpose(x, -2, -1)


def _no_problem(x: Tensor) -> Tensor:
    """Zeros, one for each matrix: what could not be done was refused."""
    return zeros(x.shape[:-2], dtype=DType.int32)


class Factor(NamedTuple):
    """A triangular factor, and 0 for each matrix that has one."""

    L: Tensor
    info: Tensor


class Inverse(NamedTuple):
    """An inverse, and 0 for each matrix that has one."""

    inverse: Tensor
    info: Tensor


class Solution(NamedTuple):
    """A solution, and 0 for each system that has one."""

    result: Tensor
    info: Tensor


class Factors(NamedTuple):
    """An orthogonal and an upper triangular factor."""

    Q: Tensor
    R: Tensor


class Eigen(NamedTuple):
    """Eigenvalues, ascending, and eigenvectors as columns."""

    eigenvalues: Tensor
    eigenvectors: Tensor


class Singular(NamedTuple):
    """Left singular vectors as columns, singular values, right singular vectors as rows."""

    U: Tensor
    S: Tensor
    Vh: Tensor


class SignLog(NamedTuple):
    """The sign of a determinant, and the logarithm of its size."""

    sign: Tensor
    logabsdet: Tensor


class LeastSquares(NamedTuple):
    """What makes ``A @ solution`` nearest to ``B``, the squares left over, and the rank of ``A``."""

    solution: Tensor
    residuals: Tensor
    rank: Tensor
    singular_values: Tensor


@names_arguments
def cholesky(A: Any, *, upper: bool = False) -> Tensor:
    """The lower triangle whose product with its transpose is the matrix, which must be positive definite.

    Example:
        >>> import pyflame as pf
        >>> pf.linalg.cholesky(pf.tensor([[4.0, 2.0], [2.0, 2.0]])).tolist()
        [[2.0, 0.0], [1.0, 1.0]]
    """
    found = call(Cholesky, square("cholesky", A))
    return _turned(found) if upper else found


@names_arguments
def cholesky_ex(A: Any, *, upper: bool = False, check_errors: bool = False) -> Factor:
    """`cholesky`, with zeros for torch's ``info``: a matrix that has no such factor is refused, checked or not."""
    del check_errors
    return Factor(cholesky(A, upper=upper), _no_problem(as_tensor(A)))


def cholesky_solve(B: Any, L: Any, upper: bool = False) -> Tensor:
    """What multiplied by the matrix that ``L`` is the factor of gives ``B``."""
    low = square("cholesky_solve", L)
    low = _turned(low) if upper else low
    return solve(_turned(low), solve(low, B))


def cholesky_inverse(L: Any, upper: bool = False) -> Tensor:
    """The inverse of the matrix that ``L`` is the factor of."""
    low = square("cholesky_inverse", L)
    whole = sh.broadcast_to(eye(low.shape[-1], dtype=low.dtype), low.shape)
    return cholesky_solve(whole, low, upper)


@names_arguments
def solve(A: Any, B: Any, *, left: bool = True) -> Tensor:
    """What ``A`` multiplied by gives ``B``: vectors where ``B`` has one dimension less, else matrices.

    Example:
        >>> import pyflame as pf
        >>> pf.linalg.solve(pf.tensor([[2.0, 0.0], [0.0, 4.0]]), pf.tensor([2.0, 2.0])).tolist()
        [1.0, 0.5]
    """
    a, b = square("solve", A), as_tensor(B)
    la.same_dtype("linalg.solve", a, b)
    vectors = b.ndim == 1 or (b.ndim == a.ndim - 1 and tuple(b.shape) == tuple(a.shape[:-1]))
    if vectors:
        return sh.squeeze(solve(a, sh.unsqueeze(b, -1)), -1)
    if not left:
        return _turned(solve(_turned(a), _turned(b)))
    if b.shape[-2] != a.shape[-1]:
        raise ShapeMismatchError(f"linalg.solve: {a.shape} does not multiply to {b.shape}")
    lead = sh.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a, b = (sh.broadcast_to(v, (*lead, *v.shape[-2:])) for v in (a, b))
    return call(Solve, a, b)


@names_arguments
def solve_ex(A: Any, B: Any, *, left: bool = True, check_errors: bool = False) -> Solution:
    """`solve`, with zeros for torch's ``info``: a singular matrix is refused, checked or not."""
    del check_errors
    return Solution(solve(A, B, left=left), _no_problem(as_tensor(A)))


@names_arguments
def inv_ex(A: Any, *, check_errors: bool = False) -> Inverse:
    """The inverse, with zeros for torch's ``info``: a singular matrix is refused, checked or not."""
    del check_errors
    x = square("inv_ex", A)
    return Inverse(la.inverse(x), _no_problem(x))


@names_arguments
def solve_triangular(A: Any, B: Any, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Tensor:
    """`solve` for matrices of which one triangle counts; with ``unitriangular`` their diagonal counts as ones.

    Example:
        >>> import pyflame as pf
        >>> low = pf.tensor([[2.0, 9.0], [2.0, 1.0]])
        >>> pf.linalg.solve_triangular(low, pf.tensor([[2.0], [3.0]]), upper=False).tolist()
        [[1.0], [1.0]]
    """
    a = square("solve_triangular", A)
    part = (sh.triu if upper else sh.tril)(a, int(unitriangular) * (1 if upper else -1))
    if unitriangular:
        part = ar.add(part, eye(a.shape[-1], dtype=a.dtype))
    return solve(part, B, left=left)


@names_arguments
def slogdet(A: Any) -> SignLog:
    """The sign of each determinant and the logarithm of its size.

    Example:
        >>> import pyflame as pf
        >>> sign, log = pf.linalg.slogdet(pf.tensor([[0.0, 1.0], [1.0, 0.0]]))
        >>> sign.item(), log.item()
        (-1.0, 0.0)
    """
    sign, log = call_many(SignLogDet, square("slogdet", A))
    return SignLog(sign, log)


@names_arguments
def qr(A: Any, mode: str = "reduced") -> Factors:
    """An orthogonal and an upper triangular factor; "complete" for square ``Q``, "r" for ``R`` alone.

    Example:
        >>> import pyflame as pf
        >>> Q, R = pf.linalg.qr(pf.tensor([[3.0, 1.0], [4.0, 2.0]]))
        >>> (Q @ R).numpy().round(4).tolist()
        [[3.0, 1.0], [4.0, 2.0]]
    """
    x = matrices("qr", A)
    if mode not in ("reduced", "complete", "r"):
        raise ValueError(f"linalg.qr: mode is 'reduced', 'complete' or 'r', got {mode!r}")
    rows, columns = x.shape[-2:]
    if rows >= columns:
        q, r = call_many(QR, x, complete=int(mode == "complete"))
    else:  # of a wide matrix the first columns decide
        q, r = call_many(QR, x.narrow(-1, 0, rows), complete=0)
        r = sh.cat([r, la.matmul(_turned(q), x.narrow(-1, rows, columns - rows))], -1)
    return Factors(zeros((0,), dtype=x.dtype) if mode == "r" else q, r)


def _one_triangle(x: Tensor, UPLO: str) -> Tensor:
    if UPLO.upper() not in ("L", "U"):
        raise ValueError(f"UPLO is 'L' or 'U', got {UPLO!r}")
    return _turned(x) if UPLO.upper() == "U" else x


@names_arguments
def eigh(A: Any, UPLO: str = "L") -> Eigen:
    """Eigenvalues, ascending, and eigenvectors (columns) of symmetric matrices, of which one triangle counts.

    Example:
        >>> import pyflame as pf
        >>> pf.linalg.eigh(pf.tensor([[2.0, 0.0], [0.0, 1.0]])).eigenvalues.tolist()
        [1.0, 2.0]
    """
    values, vectors = call_many(Eigh, _one_triangle(square("eigh", A), UPLO))
    return Eigen(values, vectors)


@names_arguments
def eigvalsh(A: Any, UPLO: str = "L") -> Tensor:
    """Eigenvalues of symmetric matrices, ascending."""
    return eigh(A, UPLO).eigenvalues


@names_arguments
def svd(A: Any, full_matrices: bool = True, *, driver: str | None = None) -> Singular:
    """The singular value decomposition ``U @ diag(S) @ Vh``.

    Args:
        A: matrices.
        full_matrices: square factors; gradients need ``False`` unless the matrices are square.
        driver: only for other devices, as in torch.

    Example:
        >>> import pyflame as pf
        >>> pf.linalg.svd(pf.tensor([[3.0, 0.0], [0.0, 4.0]])).S.tolist()
        [4.0, 3.0]
    """
    if driver is not None:
        raise ValueError(f"linalg.svd: driver= is for CUDA, and tensors are on the CPU; got {driver!r}")
    left, values, right = call_many(SVD, matrices("svd", A), full=int(full_matrices))
    return Singular(left, values, right)


@names_arguments
def svdvals(A: Any, *, driver: str | None = None) -> Tensor:
    """The singular values of matrices, descending."""
    return svd(A, full_matrices=False, driver=driver).S


def _relative(x: Tensor) -> float:
    """How small a singular value is noise, as torch and NumPy have it."""
    return max(x.shape[-2:], default=0) * float(np.finfo(x.dtype.numpy).eps)


@names_arguments
def pinv(A: Any, rcond: float | None = None, hermitian: bool = False, *, rtol: float | None = None) -> Tensor:
    """The pseudo-inverse of matrices; singular values below ``rtol`` times the largest count as 0.

    Example:
        >>> import pyflame as pf
        >>> pf.linalg.pinv(pf.tensor([[2.0], [0.0]])).tolist()
        [[0.5, 0.0]]
    """
    x = matrices("pinv", A)
    if hermitian:
        low = sh.tril(x)
        x = ar.add(low, _turned(sh.tril(x, -1)))
    limit = rtol if rcond is None else rcond
    return call(PseudoInverse, x, rtol=float(_relative(x) if limit is None else limit))


@names_arguments
def matrix_rank(A: Any, tol: Any = None, hermitian: bool = False, *, atol: Any = None, rtol: Any = None) -> Tensor:
    """How many singular values of each matrix are not noise.

    Example:
        >>> import pyflame as pf
        >>> pf.linalg.matrix_rank(pf.tensor([[1.0, 2.0], [2.0, 4.0]])).item()
        1
    """
    x = matrices("matrix_rank", A)
    values = ar.abs(eigvalsh(x)) if hermitian else svdvals(x)
    if values.shape[-1] == 0:
        return zeros(x.shape[:-2], dtype=DType.int64)
    absolute = tol if atol is None else atol
    default = 0.0 if absolute is not None else _relative(x)
    relative = ar.mul(red.amax(values, -1, True), _column(default if rtol is None else rtol, x))
    limit = ar.maximum(relative, cast(as_tensor(_column(0.0 if absolute is None else absolute, x)), x.dtype))
    return red.sum(ar.gt(values, limit), -1)


def _column(limit: Any, x: Tensor) -> Any:
    return limit if isinstance(limit, (int, float)) else sh.unsqueeze(cast(as_tensor(limit), x.dtype), -1)


@names_arguments
def cond(A: Any, p: Any = None) -> Tensor:
    """How much a solution may be farther off than what it was computed from, by a norm of matrices."""
    from pyflame.linalg import matrix_norm

    x = matrices("cond", A)
    if p in (None, 2, -2):
        values = svdvals(x)
        first, last = values.narrow(-1, 0, 1), values.narrow(-1, values.shape[-1] - 1, 1)
        found = ar.div(last, first) if p == -2 else ar.div(first, last)
        return sh.squeeze(found, -1)
    return ar.mul(matrix_norm(x, p), matrix_norm(la.inverse(square("cond", x)), p))


@names_arguments
def lstsq(A: Any, B: Any, rcond: float | None = None, *, driver: str | None = None) -> LeastSquares:
    """What makes ``A @ solution`` nearest to ``B``; of several the shortest.

    Args:
        A: [..., m, n].
        B: [..., m, k], or [..., m].
        rcond: singular values below this times the largest count as 0.
        driver: LAPACK's ways there, which decide what is returned beside the solution: "gels" the squares left over,
            "gelsy" (the default) the rank, "gelsd" and "gelss" both and the singular values.

    Example:
        >>> import pyflame as pf
        >>> A = pf.tensor([[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]])
        >>> pf.linalg.lstsq(A, pf.tensor([[1.0], [3.0], [5.0]])).solution.numpy().round(4).tolist()
        [[1.0], [2.0]]
    """
    if driver not in (None, "gels", "gelsy", "gelsd", "gelss"):
        raise ValueError(f"linalg.lstsq: driver is gels, gelsy, gelsd or gelss, got {driver!r}")
    a, b = matrices("lstsq", A), as_tensor(B)
    la.same_dtype("linalg.lstsq", a, b)
    vectors = b.ndim == a.ndim - 1
    given = sh.unsqueeze(b, -1) if vectors else b
    solution = la.matmul(pinv(a, rcond), given)
    nothing = zeros((0,), dtype=a.dtype)
    over = a.shape[-2] > a.shape[-1] and driver not in (None, "gelsy")
    left = red.sum(ar.square(ar.sub(la.matmul(a, solution), given)), -2) if over else nothing
    rank = zeros((0,), dtype=DType.int64) if driver == "gels" else matrix_rank(a.detach(), rtol=rcond)
    values = svdvals(a) if driver in ("gelsd", "gelss") else nothing
    return LeastSquares(sh.squeeze(solution, -1) if vectors else solution, left, rank, values)


def logdet(input: Any) -> Tensor:
    """The logarithm of each determinant: NaN where it is negative."""
    sign, log = slogdet(input)
    return pw.log(sign) + log


__all__ += ["logdet"]
