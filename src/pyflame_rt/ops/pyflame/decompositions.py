"""Decompositions of matrices, with the gradients that matrix calculus gives them (Giles 2008, Townsend 2016)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyflame_rt.graph import Shape, TensorType
from pyflame_rt.graph.errors import InputError, ShapeMismatchError, UnsupportedOperatorError
from pyflame_rt.ops.core.guards import same_size
from pyflame_rt.ops.core.registry import get_op, primitive
from pyflame_rt.ops.core.type_rules import broadcast_shapes
from pyflame_rt.ops.onnx.arithmetic import unbroadcast
from pyflame_rt.ops.onnx.creation import Trilu
from pyflame_rt.ops.onnx.matmul import MatMul
from pyflame_rt.ops.onnx.shape import Transpose, Unsqueeze

if TYPE_CHECKING:
    from pyflame_rt.graph import DimLike
    from pyflame_rt.ops.core.value import Value

__all__ = ["QR", "SVD", "Cholesky", "Eigh", "PseudoInverse", "SignLogDet", "Solve"]

OWN = "pyflame"

# ------------------------------------------------------------------ types


def _matrices(x: Value) -> Shape | None:
    shape = x.tensor_type.shape
    if shape is not None and len(shape) < 2:
        raise ShapeMismatchError(f"matrices are needed, got {shape}")
    return shape


def _squares(x: Value) -> Shape | None:
    shape = _matrices(x)
    if shape is not None and isinstance(shape[-1], int) and isinstance(shape[-2], int) and shape[-1] != shape[-2]:
        raise ShapeMismatchError(f"square matrices are needed, got {shape}")
    return shape


def _typed(x: Value, *dims: DimLike) -> TensorType:
    shape = _matrices(x)
    return TensorType(x.dtype) if shape is None else TensorType(x.dtype, Shape([*shape[:-2], *dims]))


def _smaller(shape: Shape | None) -> DimLike:
    rows, columns = (None, None) if shape is None else (shape[-2], shape[-1])
    return min(rows, columns) if isinstance(rows, int) and isinstance(columns, int) else None


# ------------------------------------------------------------------ matrices of values


def _turned(x: Value) -> Value:
    """The transpose of each matrix."""
    return Transpose(x, perm=[*range(x.rank - 2), x.rank - 1, x.rank - 2])


def _diagonal_of(x: Value) -> Value:
    """Each matrix without what is off its diagonal."""
    return Trilu(Trilu(x, upper=1), upper=0)


def _off_diagonal(x: Value) -> Value:
    return x - _diagonal_of(x)


def _ones_like(x: Value) -> Value:
    return x * 0.0 + 1.0


def _diagonal_matrix(vector: Value) -> Value:
    """Matrices with a vector each on the diagonal."""
    return _diagonal_of(Unsqueeze(vector, [-2]) * _ones_like(Unsqueeze(vector, [-1])))


def _gaps(values: Value) -> Value:
    """``values[j] - values[i]``, and 1 on the diagonal, to divide by."""
    between = Unsqueeze(values, [-2]) - Unsqueeze(values, [-1])
    return between + _diagonal_of(_ones_like(between))


# ------------------------------------------------------------------ systems


def _solve_type(a: Value, b: Value, /) -> TensorType:
    left, right = _squares(a), _matrices(b)
    if left is None or right is None:
        return TensorType(b.dtype)
    same_size("the number of rows of B", right[-2], left[-1], "that of A")
    batch = broadcast_shapes(Shape(left[:-2]), Shape(right[:-2]))
    return TensorType(b.dtype, None if batch is None else Shape([*batch, *right[-2:]]))


def _solve_vjp(g: Value, x: Value, a: Value, b: Value) -> tuple[Value, Value]:
    to_b = Solve(_turned(a), g)
    return unbroadcast(-MatMul(to_b, _turned(x)), a), unbroadcast(to_b, b)


@primitive(since=1, domain=OWN, infer=_solve_type, vjp=_solve_vjp, types="T:float T > T")
def Solve(ops: Any, A: Any, B: Any, /) -> Any:
    """What each square matrix multiplied by gives another matrix."""
    return ops.solve(A, B)


def _log_det_type(x: Value, /) -> tuple[TensorType, TensorType]:
    shape = _squares(x)
    kind = TensorType(x.dtype) if shape is None else TensorType(x.dtype, Shape(shape[:-2]))
    return kind, kind


def _log_det_vjp(g: tuple[Value | None, ...], y: tuple[Value, ...], x: Value) -> tuple[Value | None]:
    if g[1] is None:
        return (None,)
    inverse = get_op("Inverse", "com.microsoft")(x)
    return (Unsqueeze(g[1], [-2, -1]) * _turned(inverse),)


@primitive(since=1, domain=OWN, infer=_log_det_type, vjp=_log_det_vjp, partial=True, types="T:float > T T")
def SignLogDet(ops: Any, X: Any, /) -> Any:
    """The sign of determinants, and the logarithm of their size."""
    sign, log = ops.slogdet(X)
    return sign, log


# ------------------------------------------------------------------ factors


def _cholesky_vjp(g: Value, y: Value, x: Value) -> tuple[Value]:
    low = Trilu(MatMul(_turned(y), g), upper=0)
    half = low - _diagonal_of(low) * 0.5
    turned = _turned(y)
    inner = Solve(turned, _turned(Solve(turned, _turned(half))))  # y^-T half y^-1
    return ((inner + _turned(inner)) * 0.5,)


@primitive(
    since=1, domain=OWN, infer=lambda x, /: TensorType(x.dtype, _squares(x)), vjp=_cholesky_vjp, types="T:float > T"
)
def Cholesky(ops: Any, X: Any, /) -> Any:
    """The lower triangle whose product with its transpose is the (positive definite) matrix."""
    return ops.cholesky(X)


def _eigh_type(x: Value, /) -> tuple[TensorType, TensorType]:
    shape = _squares(x)
    return (
        (TensorType(x.dtype), TensorType(x.dtype))
        if shape is None
        else (
            TensorType(x.dtype, Shape(shape[:-1])),
            x.tensor_type,
        )
    )


def _eigh_vjp(g: tuple[Value | None, ...], y: tuple[Value, ...], x: Value) -> tuple[Value | None]:
    to_values, to_vectors = g
    values, vectors = y
    inner = None if to_values is None else _diagonal_matrix(to_values)
    if to_vectors is not None:
        turned = _off_diagonal(MatMul(_turned(vectors), to_vectors)) / _gaps(values)
        inner = turned if inner is None else inner + turned
    return (None if inner is None else MatMul(vectors, MatMul(inner, _turned(vectors))),)


@primitive(since=1, domain=OWN, infer=_eigh_type, vjp=_eigh_vjp, partial=True, types="T:float > T T")
def Eigh(ops: Any, X: Any, /) -> Any:
    """Eigenvalues of symmetric matrices, ascending, and eigenvectors as columns; the lower triangle counts."""
    values, vectors = ops.eigh(X)
    return values, vectors


def _svd_type(x: Value, /, *, full: int = 0) -> tuple[TensorType, TensorType, TensorType]:
    shape, least = _matrices(x), _smaller(_matrices(x))
    rows, columns = (None, None) if shape is None else (shape[-2], shape[-1])
    lead = TensorType(x.dtype) if shape is None else TensorType(x.dtype, Shape([*shape[:-2], least]))
    return _typed(x, rows, rows if full else least), lead, _typed(x, columns if full else least, columns)


def _svd_vjp(g: tuple[Value | None, ...], y: tuple[Value, ...], x: Value, *, full: int) -> tuple[Value | None]:
    (to_left, to_values, to_right), (left, values, right) = g, y
    if full and x.shape[-1] != x.shape[-2] and (to_left is not None or to_right is not None):
        raise UnsupportedOperatorError("the factors of a full SVD have no gradient; use full_matrices=False")
    inner = None if to_values is None else _diagonal_matrix(to_values)
    if to_left is not None:
        turned = _skew(MatMul(_turned(left), to_left)) / _gaps(values * values) * Unsqueeze(values, [-2])
        inner = turned if inner is None else inner + turned
    if to_right is not None:
        turned = Unsqueeze(values, [-1]) * (_skew(MatMul(right, _turned(to_right))) / _gaps(values * values))
        inner = turned if inner is None else inner + turned
    if inner is None:
        return (None,)
    whole = MatMul(left, MatMul(inner, right))
    if to_left is not None and left.shape[-2] != left.shape[-1]:
        rest = to_left - MatMul(left, MatMul(_turned(left), to_left))
        whole = whole + MatMul(rest / Unsqueeze(values, [-2]), right)
    if to_right is not None and right.shape[-2] != right.shape[-1]:
        rest = to_right - MatMul(MatMul(to_right, _turned(right)), right)
        whole = whole + MatMul(left, rest / Unsqueeze(values, [-1]))
    return (whole,)


def _skew(x: Value) -> Value:
    return x - _turned(x)


@primitive(since=1, domain=OWN, infer=_svd_type, vjp=_svd_vjp, partial=True, types="T:float > T T T")
def SVD(ops: Any, X: Any, /, *, full: int = 0) -> Any:
    """Left singular vectors, singular values (descending), and right singular vectors as rows."""
    left, values, right = ops.svd(X, full_matrices=bool(full))
    return left, values, right


def _qr_type(x: Value, /, *, complete: int = 0) -> tuple[TensorType, TensorType]:
    shape, least = _matrices(x), _smaller(_matrices(x))
    rows, columns = (None, None) if shape is None else (shape[-2], shape[-1])
    return _typed(x, rows, rows if complete else least), _typed(x, rows if complete else least, columns)


def _qr_vjp(g: tuple[Value | None, ...], y: tuple[Value, ...], x: Value, *, complete: int) -> tuple[Value | None]:
    (to_q, to_r), (q, r) = g, y
    rows, columns = x.shape[-2], x.shape[-1]
    if rows != columns and (complete or rows < columns):  # type: ignore[operator]
        raise UnsupportedOperatorError("this QR has no gradient; use mode='reduced' on matrices with no fewer rows")
    if to_q is None and to_r is None:
        return (None,)
    inner = None if to_r is None else MatMul(to_r, _turned(r))
    if to_q is not None:
        turned = MatMul(_turned(q), to_q)
        inner = -turned if inner is None else inner - turned
    assert inner is not None
    upper = Trilu(inner, upper=1)
    whole = MatMul(q, upper + _turned(upper) - _diagonal_of(upper))
    whole = whole if to_q is None else whole + to_q
    return (_turned(Solve(r, _turned(whole))),)


@primitive(since=1, domain=OWN, infer=_qr_type, vjp=_qr_vjp, partial=True, types="T:float > T T")
def QR(ops: Any, X: Any, /, *, complete: int = 0) -> Any:
    """An orthogonal and an upper triangular factor."""
    q, r = ops.qr(X, "complete" if complete else "reduced")
    return q, r


# ------------------------------------------------------------------ pseudo-inverses


def _pseudo_type(x: Value, /, *, rtol: float = -1.0) -> TensorType:
    shape = _matrices(x)
    return TensorType(x.dtype) if shape is None else _typed(x, shape[-1], shape[-2])


def _pseudo_vjp(g: Value, y: Value, x: Value, *, rtol: float) -> tuple[Value]:
    turned, back = _turned(g), _turned(y)
    rows, columns = x.shape[-2], x.shape[-1]
    if not isinstance(rows, int) or not isinstance(columns, int):
        raise InputError("the gradient of a pseudo-inverse needs sizes that are known")
    if rows <= columns:
        k = MatMul(turned, y)
        along = MatMul(k, back)
        rest = along - MatMul(MatMul(x, y), along) + MatMul(MatMul(back, y), turned - MatMul(k, x))
        return (rest - _turned(MatMul(y, k)),)
    k = MatMul(y, turned)
    along = MatMul(back, k)
    rest = MatMul(MatMul(turned - MatMul(x, k), y), back) + along - MatMul(MatMul(along, y), x)
    return (rest - _turned(MatMul(k, y)),)


@primitive(since=1, domain=OWN, infer=_pseudo_type, vjp=_pseudo_vjp, types="T:float > T")
def PseudoInverse(ops: Any, X: Any, /, *, rtol: float = -1.0) -> Any:
    """The pseudo-inverse; singular values below ``rtol`` times the largest count as 0 (a negative one: by type)."""
    return ops.pinv(X, rcond=None if rtol < 0 else rtol)
