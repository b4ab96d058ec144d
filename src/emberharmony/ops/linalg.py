"""Products of arrays and linear algebra.

What a library lacks is computed by NumPy on the host and brought back. Half precision is
computed in float32.
"""

from typing import Any

import numpy as np

from emberharmony.dtypes import compute_dtype, float_for, real_dtype
from emberharmony.guards.axes import plain_axes, reduced_axes
from emberharmony.library import Library
from emberharmony.ops.reductions import root
from emberharmony.registry import op, primitive
from emberharmony.typing import Array, ArrayLike, Axis


def _on_host(lib: Library, name: str, function: Any, *arrays: ArrayLike, **options: Any) -> Any:
    """Call a function of `numpy.linalg`, in float32 or wider, and bring the results back."""
    known = lib.promote(*arrays)
    answer = float_for(lib.dtype(known[0]))
    inner = compute_dtype(answer)
    found = lib.by_host(name, function, *(lib.cast(a, inner) for a in known), **options)
    if inner == answer:
        return found
    parts = [
        lib.cast(p, answer) if lib.dtype(p) == inner else p for p in (found if isinstance(found, tuple) else [found])
    ]
    return tuple(parts) if isinstance(found, tuple) else parts[0]


@primitive
def matmul(lib: Library, x1: ArrayLike, x2: ArrayLike) -> Array:
    """Matrix product over the last two axes, the others broadcast; integers wrap.

    >>> ops.matmul(np.eye(2), np.ones(2))
    array([1., 1.])
    """


@primitive
def einsum(lib: Library, subscripts: str, *operands: ArrayLike) -> Array:
    """Sums of products named by subscripts.

    >>> ops.einsum("ij,j->i", np.eye(2), np.ones(2))
    array([1., 1.])
    """


@op
def dot(lib: Library, x1: ArrayLike, x2: ArrayLike) -> Array:
    """Sum product over the last axis of `x1` and the second to last of `x2`.

    >>> ops.dot(np.array([1, 2]), np.array([3, 4]))
    array(11)
    """
    x1, x2 = lib.promote(x1, x2)
    if not x1.shape or not x2.shape:
        return lib.multiply(x1, x2)
    if len(x2.shape) <= 2:
        return lib.matmul(x1, x2)
    return lib.tensordot(x1, x2, ((-1,), (-2,)))


@op
def vdot(lib: Library, x1: ArrayLike, x2: ArrayLike) -> Array:
    """Sum of products of all elements, the first conjugated.

    >>> ops.vdot(np.array([1, 2]), np.array([3, 4]))
    array(11)
    """
    x1, x2 = lib.promote(x1, x2)
    return lib.matmul(lib.ravel(lib.conj(x1)), lib.ravel(x2))


@op
def inner(lib: Library, x1: ArrayLike, x2: ArrayLike) -> Array:
    """Sum of products over the last axes.

    >>> ops.inner(np.array([1, 2]), np.array([3, 4]))
    array(11)
    """
    x1, x2 = lib.promote(x1, x2)
    if not x1.shape or not x2.shape:
        return lib.multiply(x1, x2)
    return lib.tensordot(x1, x2, ((-1,), (-1,)))


@op
def outer(lib: Library, x1: ArrayLike, x2: ArrayLike) -> Array:
    """All products of the elements of two arrays.

    >>> ops.outer(np.array([1, 2]), np.array([3, 4]))
    array([[3, 4],
           [6, 8]])
    """
    return lib.multiply(lib.reshape(x1, (-1, 1)), lib.reshape(x2, (1, -1)))


@op
def tensordot(lib: Library, x1: ArrayLike, x2: ArrayLike, axes: Any = 2) -> Array:
    """Sum of products over given axes of both, or over the last and first `axes` ones.

    >>> ops.tensordot(np.ones((2, 3)), np.ones((3, 2)), 1)
    array([[3., 3.],
           [3., 3.]])
    """
    x1, x2 = lib.promote(x1, x2)
    r1, r2 = len(x1.shape), len(x2.shape)
    if isinstance(axes, int):
        first, second = list(range(r1 - axes, r1)), list(range(axes))
    else:
        first, second = (list(plain_axes(v, r)) for v, r in zip(axes, (r1, r2), strict=True))
    free1 = [i for i in range(r1) if i not in first]
    free2 = [i for i in range(r2) if i not in second]
    inner_size = int(np.prod([x1.shape[i] for i in first], dtype=np.int64))
    shape1, shape2 = [x1.shape[i] for i in free1], [x2.shape[i] for i in free2]
    left = lib.reshape(lib.transpose(x1, (*free1, *first)), (int(np.prod(shape1, dtype=np.int64)), inner_size))
    right = lib.reshape(lib.transpose(x2, (*second, *free2)), (inner_size, int(np.prod(shape2, dtype=np.int64))))
    return lib.reshape(lib.matmul(left, right), (*shape1, *shape2))


@op
def kron(lib: Library, x1: ArrayLike, x2: ArrayLike) -> Array:
    """Kronecker product: `x2` scaled by every element of `x1`.

    >>> ops.kron(np.array([1, 10]), np.array([1, 2]))
    array([ 1,  2, 10, 20])
    """
    x1, x2 = lib.promote(x1, x2)
    rank = max(len(x1.shape), len(x2.shape))
    s1 = (1,) * (rank - len(x1.shape)) + tuple(x1.shape)
    s2 = (1,) * (rank - len(x2.shape)) + tuple(x2.shape)
    left = lib.reshape(x1, [n for size in s1 for n in (size, 1)])
    right = lib.reshape(x2, [n for size in s2 for n in (1, size)])
    return lib.reshape(lib.multiply(left, right), [a * b for a, b in zip(s1, s2, strict=True)])


@op
def cross(lib: Library, x1: ArrayLike, x2: ArrayLike, axis: int = -1) -> Array:
    """Cross product of vectors of length 3 along an axis.

    >>> ops.cross(np.array([1, 0, 0]), np.array([0, 1, 0]))
    array([0, 0, 1])
    """
    x1, x2 = lib.promote(x1, x2)
    a, b = lib.unstack(x1, axis=axis), lib.unstack(x2, axis=axis)
    if len(a) != 3 or len(b) != 3:
        raise ValueError(f"cross needs vectors of length 3, received {len(a)} and {len(b)}")
    parts = [lib.subtract(lib.multiply(a[i], b[j]), lib.multiply(a[j], b[i])) for i, j in ((1, 2), (2, 0), (0, 1))]
    return lib.stack(parts, axis=axis)


@op
def trace(lib: Library, x: ArrayLike, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Array:
    """Sum of the diagonal.

    >>> ops.trace(np.eye(3))
    array(3.)
    """
    return lib.sum(lib.diagonal(x, offset, axis1, axis2), axis=-1)


@op
def solve(lib: Library, a: ArrayLike, b: ArrayLike) -> Array:
    """`x` such that `a @ x = b`; `b` is a vector (1 axis) or matrices.

    >>> ops.solve(2 * np.eye(2), np.ones(2))
    array([0.5, 0.5])
    """
    return _on_host(lib, "solve", np.linalg.solve, a, b)


@op
def inv(lib: Library, x: ArrayLike) -> Array:
    """Inverse of square matrices.

    >>> ops.inv(2 * np.eye(1))
    array([[0.5]])
    """
    return _on_host(lib, "inv", np.linalg.inv, x)


@op
def pinv(lib: Library, x: ArrayLike, rcond: float | None = None) -> Array:
    """Pseudo-inverse, leaving out singular values below `rcond` times the largest.

    >>> ops.pinv(np.array([[2.0], [0.0]]))
    array([[0.5, 0. ]])
    """
    return _on_host(lib, "pinv", np.linalg.pinv, x, rcond=rcond)


@op
def det(lib: Library, x: ArrayLike) -> Array:
    """Determinant of square matrices.

    >>> ops.det(2 * np.eye(2))
    array(4.)
    """
    return _on_host(lib, "det", np.linalg.det, x)


@op
def slogdet(lib: Library, x: ArrayLike) -> tuple[Array, Array]:
    """Sign of the determinant, and logarithm of its absolute value.

    >>> ops.slogdet(np.eye(2))
    (array(1.), array(0.))
    """
    return _on_host(lib, "slogdet", lambda m: tuple(np.linalg.slogdet(m)), x)


@op
def qr(lib: Library, x: ArrayLike, mode: str = "reduced") -> tuple[Array, Array]:
    """Orthogonal and upper triangular factor; mode "reduced" or "complete".

    >>> ops.qr(np.eye(2))[1].shape
    (2, 2)
    """
    return _on_host(lib, "qr", _qr, x, mode=mode)


def _qr(x: np.ndarray, mode: Any) -> tuple[np.ndarray, ...]:
    return tuple(np.linalg.qr(x, mode))


@op
def svd(lib: Library, x: ArrayLike, full_matrices: bool = True, compute_uv: bool = True) -> Any:
    """Singular value decomposition `u, s, vh`, or the singular values alone.

    >>> ops.svd(np.eye(2), compute_uv=False)
    array([1., 1.])
    """
    if not compute_uv:
        return _on_host(lib, "svdvals", np.linalg.svdvals, x)
    return _on_host(lib, "svd", _svd, x, full_matrices=full_matrices)


def _svd(x: np.ndarray, full_matrices: bool) -> tuple[np.ndarray, ...]:
    return tuple(np.linalg.svd(x, full_matrices))


@op
def cholesky(lib: Library, x: ArrayLike, upper: bool = False) -> Array:
    """Triangular factor of positive definite matrices.

    >>> ops.cholesky(4 * np.eye(1))
    array([[2.]])
    """
    return _on_host(lib, "cholesky", np.linalg.cholesky, x, upper=upper)


@op
def lstsq(lib: Library, a: ArrayLike, b: ArrayLike, rcond: float | None = None) -> Array:
    """`x` that makes `a @ x` nearest to `b`; of several the shortest.

    >>> ops.lstsq(2 * np.eye(2), np.ones(2))
    array([0.5, 0.5])
    """
    return _on_host(lib, "lstsq", _lstsq, a, b, rcond=rcond)


def _lstsq(a: np.ndarray, b: np.ndarray, rcond: float | None) -> np.ndarray:
    return np.linalg.lstsq(a, b, rcond)[0]


@op
def eig(lib: Library, x: ArrayLike) -> tuple[Array, Array]:
    """Eigenvalues and eigenvectors (columns), complex.

    >>> ops.eig(np.eye(1))[0]
    array([1.+0.j])
    """
    return _on_host(lib, "eig", lambda m: tuple(_complex(v) for v in np.linalg.eig(m)), x)


@op
def eigvals(lib: Library, x: ArrayLike) -> Array:
    """Eigenvalues, complex.

    >>> ops.eigvals(np.eye(1))
    array([1.+0.j])
    """
    return _on_host(lib, "eigvals", lambda m: _complex(np.linalg.eigvals(m)), x)


def _complex(x: np.ndarray) -> np.ndarray:
    return x.astype(np.result_type(x.dtype, np.complex64))


@op
def eigh(lib: Library, x: ArrayLike) -> tuple[Array, Array]:
    """Eigenvalues, ascending, and eigenvectors (columns) of Hermitian matrices.

    >>> ops.eigh(np.eye(1))[0]
    array([1.])
    """
    return _on_host(lib, "eigh", lambda m: tuple(np.linalg.eigh(m)), x)


@op
def eigvalsh(lib: Library, x: ArrayLike) -> Array:
    """Eigenvalues of Hermitian matrices, ascending.

    >>> ops.eigvalsh(np.eye(1))
    array([1.])
    """
    return _on_host(lib, "eigvalsh", np.linalg.eigvalsh, x)


@op
def matrix_power(lib: Library, x: ArrayLike, n: int) -> Array:
    """A square matrix multiplied `n` times; a negative `n` inverts it first.

    >>> ops.matrix_power(2 * np.eye(1), 3)
    array([[8.]])
    """
    x = lib.as_array(x)
    base = lib.inv(x) if n < 0 else x
    result = lib.broadcast_to(lib.eye(x.shape[-1], dtype=lib.dtype(base)), x.shape)
    left = abs(n)
    while left:
        if left % 2:
            result = lib.matmul(result, base)
        base, left = lib.matmul(base, base), left // 2
    return result


@op
def matrix_rank(lib: Library, x: ArrayLike, tol: float | None = None) -> Array:
    """Number (int64) of singular values above a tolerance.

    >>> ops.matrix_rank(np.ones((2, 2)))
    array(1)
    """
    wide = compute_dtype(float_for(lib.dtype(lib.as_array(x))))
    found = np.linalg.matrix_rank(lib.on_host(x).astype(wide, copy=False), tol)
    return lib.from_numpy(np.asarray(found, np.int64))


@op
def triangular_solve(
    lib: Library, a: ArrayLike, b: ArrayLike, lower: bool = True, unit_diagonal: bool = False
) -> Array:
    """`x` such that `a @ x = b` for triangular `a`; the other triangle is not read.

    >>> ops.triangular_solve(2 * np.eye(2), np.ones((2, 1)))
    array([[0.5],
           [0.5]])
    """
    a = lib.tril(a) if lower else lib.triu(a)
    if unit_diagonal:
        n = a.shape[-1]
        a = lib.where(lib.eye(n, dtype="bool"), lib.ones_like(a), a)
    return lib.solve(a, b)


@op
def norm(  # noqa: D417
    lib: Library,
    x: ArrayLike,
    ord: float | str | None = None,  # noqa: A002
    axis: Axis = None,
    keepdims: bool = False,
) -> Array:
    """Norm of vectors (one axis) or matrices (two axes); 2-norm or Frobenius by default.

    Args:
        x: The array.
        ord: As in `numpy.linalg.norm`: None, "fro", "nuc", inf, -inf, 0 or a number.
        axis: One axis, two axes, or None for all elements.
        keepdims: Keep the reduced axes with size 1.

    >>> ops.norm(np.array([3.0, 4.0]))
    array(5.)
    """
    x = lib.as_array(x)
    answer = float_for(lib.dtype(x))
    wide = lib.cast(x, compute_dtype(answer))
    axes = reduced_axes(axis, len(x.shape))
    matrix = len(axes) == 2 and not isinstance(axis, int | np.integer)
    if ord is None or ord == "fro" or (ord == 2 and not matrix):
        found = root(lib, lib.sum(lib.square(lib.abs(wide)), axis, keepdims))
    elif matrix:
        found = _matrix_norm(lib, wide, ord, (axes[0], axes[1]), keepdims)
    else:
        found = _vector_norm(lib, lib.abs(wide), ord, axis, keepdims)
    return lib.cast(found, real_dtype(answer))


def _vector_norm(lib: Library, x: Array, order: Any, axis: Axis, keepdims: bool) -> Array:
    if order == np.inf:
        return lib.max(x, axis, keepdims)
    if order == -np.inf:
        return lib.min(x, axis, keepdims)
    if order == 0:
        return lib.sum(lib.cast(lib.not_equal(x, 0), lib.dtype(x)), axis, keepdims)
    if order == 1:
        return lib.sum(x, axis, keepdims)
    return lib.power(lib.sum(lib.power(x, float(order)), axis, keepdims), 1 / order)


def _matrix_norm(lib: Library, x: Array, order: Any, axes: tuple[int, int], keepdims: bool) -> Array:
    matrices = lib.moveaxis(x, axes, (-2, -1))
    if order in (2, -2, "nuc"):
        values = lib.svd(matrices, compute_uv=False)
        fold = {2: lib.max, -2: lib.min, "nuc": lib.sum}[order]
        found = fold(values, -1)
    elif abs(order) in (1, np.inf):
        sums = lib.sum(lib.abs(matrices), -2 if abs(order) == 1 else -1)
        found = (lib.max if order > 0 else lib.min)(sums, -1)
    else:
        raise ValueError(f"no norm of order {order!r} for matrices")
    return lib.expand_dims(found, sorted(axes)) if keepdims else found
