"""Linear algebra under torch's names: norms, products, determinants, inverses and what they solve."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from pyflame.dtypes import DType
from pyflame.ops import arithmetic as ar
from pyflame.ops import linalg as la
from pyflame.ops import pointwise as pw
from pyflame.ops import reduction as red
from pyflame.ops import shaping as sh
from pyflame.ops.core import as_tensor, axis_of, cast, floating, rounded_once
from pyflame.ops.creation import eye
from pyflame.ops.decompositions import (
    cholesky,
    cholesky_ex,
    cond,
    eigh,
    eigvalsh,
    inv_ex,
    lstsq,
    matrix_rank,
    pinv,
    qr,
    slogdet,
    solve,
    solve_ex,
    solve_triangular,
    square,
    svd,
    svdvals,
)
from pyflame.suggestions import missing
from pyflame.viewing import diagonal as _diagonal
from pyflame_rt.graph.errors import ShapeMismatchError
from pyflame_rt.graph.named_arguments import names_arguments

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyflame.tensors import Tensor

__all__ = [
    "cholesky",
    "cholesky_ex",
    "cond",
    "cross",
    "det",
    "diagonal",
    "eigh",
    "eigvalsh",
    "inv",
    "inv_ex",
    "lstsq",
    "matmul",
    "matrix_exp",
    "matrix_norm",
    "matrix_power",
    "matrix_rank",
    "multi_dot",
    "norm",
    "pinv",
    "qr",
    "slogdet",
    "solve",
    "solve_ex",
    "solve_triangular",
    "svd",
    "svdvals",
    "tensorinv",
    "tensorsolve",
    "vander",
    "vecdot",
    "vector_norm",
]

matmul = la.matmul


def __getattr__(name: str) -> Any:
    raise missing("pyflame.linalg", name, __all__)


@names_arguments
def vector_norm(x: Any, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """The norm of all elements, or of vectors along dimensions; its gradient is 0 where a 2-norm is 0.

    Example:
        >>> import pyflame as pf
        >>> pf.linalg.vector_norm(pf.tensor([3.0, 4.0])).item()
        5.0
    """
    given = floating(x) if dtype is None else as_tensor(x).to(dtype)
    return red.norm(given, ord, dim, keepdim)


@rounded_once
@names_arguments
def matrix_norm(A: Any, ord: Any = "fro", dim: Any = (-2, -1), keepdim: bool = False) -> Tensor:
    """The norm of matrices: "fro", "nuc", the largest column (1), row (inf) or singular value (2), or the smallest (-).

    Example:
        >>> import pyflame as pf
        >>> pf.linalg.matrix_norm(pf.tensor([[3.0, 0.0], [0.0, 4.0]]), 2).item()
        4.0
    """
    x = floating(A)
    rows, columns = (axis_of(d, x.ndim) for d in dim)
    if ord == "fro":
        return red.norm(x, 2, (rows, columns), keepdim)
    if ord in ("nuc", 2, -2):
        return _by_singular_values(x, ord, rows, columns, keepdim)
    if ord not in (1, -1, math.inf, -math.inf):
        raise ValueError(f"matrix_norm: ord is 'fro', 'nuc', 1, 2, -1, -2, inf or -inf, got {ord!r}")
    summed, over = (rows, columns) if abs(ord) == 1 else (columns, rows)
    sums = red.sum(ar.abs(x), summed, True)
    found = (red.amax if ord > 0 else red.amin)(sums, over, True)
    return found if keepdim else sh.squeeze(found, (rows, columns))


def _by_singular_values(x: Tensor, ord: Any, rows: int, columns: int, keepdim: bool) -> Tensor:
    values = svdvals(sh.movedim(x, (rows, columns), (-2, -1)))
    found = red.sum(values, -1) if ord == "nuc" else (red.amax if ord == 2 else red.amin)(values, -1)
    if not keepdim:
        return found
    for axis in sorted((rows, columns)):
        found = sh.unsqueeze(found, axis)
    return found


@names_arguments
def norm(A: Any, ord: Any = None, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """`vector_norm`, or `matrix_norm` where ``ord`` or two dimensions ask for one."""
    x = floating(A) if dtype is None else as_tensor(A).to(dtype)
    if ord is None:
        return red.norm(x, 2, dim, keepdim)
    if isinstance(dim, int) or (dim is not None and len(dim) == 1) or (dim is None and x.ndim == 1):
        return vector_norm(x, ord, dim, keepdim)
    if dim is None and x.ndim != 2:
        raise ShapeMismatchError(
            f"linalg.norm: with ord={ord!r} and no dim a vector or matrix is needed, got {x.shape}"
        )
    return matrix_norm(x, ord, (-2, -1) if dim is None else dim, keepdim)


@names_arguments
def det(A: Any) -> Tensor:
    """The determinant of each matrix."""
    return la.det(square("det", A))


@names_arguments
def inv(A: Any) -> Tensor:
    """The inverse of each matrix.

    Example:
        >>> import pyflame as pf
        >>> pf.linalg.inv(pf.tensor([[2.0, 0.0], [0.0, 4.0]])).tolist()
        [[0.5, 0.0], [0.0, 0.25]]
    """
    return la.inverse(square("inv", A))


# Matrices are halved so often before their exponential is expanded, at most; those too large for it give NaN.
_HALVINGS = 20


@names_arguments
def matrix_exp(A: Any) -> Tensor:
    """The exponential of each matrix: a Taylor series of the matrix halved until it is small, squared as often.

    Example:
        >>> import pyflame as pf
        >>> turn = pf.linalg.matrix_exp(pf.tensor([[0.0, -1.0], [1.0, 0.0]]) * (pf.pi / 2))
        >>> turn.round(decimals=3).abs().tolist()
        [[0.0, 1.0], [1.0, 0.0]]
    """
    x = square("matrix_exp", A)
    size = red.amax(red.sum(ar.abs(x.detach()), -1, True), (-2, -1), True) if x.numel else red.sum(x, (-2, -1), True)
    halvings = ar.clamp(pw.ceil(pw.log2(ar.clamp(size, min=1.0))), 0.0, float(_HALVINGS))
    unit = eye(x.shape[-1], dtype=x.dtype)
    small = ar.mul(x, pw.exp2(ar.neg(halvings)))
    terms = 18 if x.dtype in (DType.float64, DType.complex128) else 12
    result = ar.add(ar.mul(x, 0.0), unit)
    for n in range(terms, 0, -1):
        result = ar.add(unit, la.matmul(ar.div(small, float(n)), result))
    for n in range(_HALVINGS):
        result = ar.where(ar.gt(halvings, float(n)), la.matmul(result, result), result)
    return ar.where(ar.gt(size, 2.0**_HALVINGS), math.nan, result)


@names_arguments
def matrix_power(A: Any, n: int) -> Tensor:
    """Each matrix multiplied by itself, by repeated squaring; of the inverse for a negative ``n``."""
    x = square("matrix_power", A)
    if n < 0:
        x, n = la.inverse(x), -n
    result = None
    while n:
        if n & 1:
            result = x if result is None else la.matmul(result, x)
        n >>= 1
        x = la.matmul(x, x) if n else x
    if result is None:  # a matrix of constants that depends on x without a slope
        return ar.add(ar.mul(x, 0.0), eye(x.shape[-1], dtype=x.dtype))
    return result


@names_arguments
def multi_dot(tensors: Sequence[Any]) -> Tensor:
    """The product of matrices, in the order that takes the fewest multiplications; the ends may be vectors."""
    listed = [as_tensor(t) for t in tensors]
    if len(listed) < 2:
        raise ValueError(f"multi_dot takes at least two tensors, got {len(listed)}")
    first, last = listed[0].ndim == 1, listed[-1].ndim == 1
    if first:
        listed[0] = sh.unsqueeze(listed[0], 0)
    if last:
        listed[-1] = sh.unsqueeze(listed[-1], 1)
    made = _ordered(listed)
    axes = [a for a, gone in ((0, first), (1, last)) if gone]
    return sh.reshape(made, [s for a, s in enumerate(made.shape) if a not in axes])


def _ordered(listed: list[Tensor]) -> Tensor:
    """Matrix-chain multiplication by dynamic programming."""
    sizes = [listed[0].shape[0], *(t.shape[1] for t in listed)]
    count = len(listed)
    cost, cut = {(i, i): 0 for i in range(count)}, {}
    for span in range(1, count):
        for i in range(count - span):
            j = i + span
            tries = [(cost[i, k] + cost[k + 1, j] + sizes[i] * sizes[k + 1] * sizes[j + 1], k) for k in range(i, j)]
            cost[i, j], cut[i, j] = min(tries)

    def product(i: int, j: int) -> Tensor:
        return listed[i] if i == j else la.mm(product(i, cut[i, j]), product(cut[i, j] + 1, j))

    return product(0, count - 1)


@names_arguments
def vecdot(x: Any, y: Any, *, dim: int = -1) -> Tensor:
    """Sums of products along a dimension."""
    return red.sum(ar.mul(x, y), dim)


@names_arguments
def cross(input: Any, other: Any, *, dim: int = -1) -> Tensor:
    """The product of vectors of three elements along a dimension that is at right angles to both."""
    a, b = sh.broadcast_tensors(as_tensor(input), as_tensor(other))
    return la.cross(a, b, dim)


@names_arguments
def diagonal(A: Any, *, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """The diagonal of each matrix."""
    return _diagonal(as_tensor(A), offset, dim1, dim2)


@names_arguments
def vander(x: Any, *, N: int | None = None) -> Tensor:
    """The powers of each element, from 0 on, as a further last dimension."""
    base = as_tensor(x)
    base = base if base.ndim else sh.unsqueeze(base, 0)
    base = base if base.dtype.is_floating_point else cast(base, DType.int64)
    count = base.shape[-1] if N is None else N
    if count < 1:
        raise ValueError(f"vander: N is at least 1, got {count}")
    powers = [ar.add(ar.mul(base, 0), 1)]
    for _ in range(count - 1):
        powers.append(ar.mul(powers[-1], base))
    return sh.stack(powers, -1)


@names_arguments
def tensorinv(A: Any, ind: int = 2) -> Tensor:
    """The inverse of a tensor seen as a matrix from its last dimensions to its first ``ind``."""
    x = floating(A)
    lead, rest = x.shape[:ind], x.shape[ind:]
    if not ind > 0 or math.prod(lead) != math.prod(rest):
        raise ShapeMismatchError(f"tensorinv: {x.shape} with ind={ind} is no square matrix")
    return sh.reshape(la.inverse(sh.reshape(x, (math.prod(lead), -1))), (*rest, *lead))


@names_arguments
def tensorsolve(A: Any, B: Any, dims: Any = None) -> Tensor:
    """What a tensor, seen as a matrix, multiplied by gives another."""
    x, b = floating(A), as_tensor(B)
    if dims is not None:
        x = sh.movedim(x, tuple(dims), tuple(range(x.ndim - len(dims), x.ndim)))
    shape = x.shape[b.ndim :]
    if math.prod(shape) != b.numel:
        raise ShapeMismatchError(f"tensorsolve: {x.shape} is no square matrix for {b.shape}")
    found = solve(sh.reshape(x, (b.numel, b.numel)), sh.reshape(b, (-1,)))
    return sh.reshape(found, shape)
