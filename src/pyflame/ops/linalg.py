"""Products of vectors and matrices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyflame.dtypes import DType
from pyflame.ops import arithmetic as ar
from pyflame.ops import reduction as red
from pyflame.ops import shaping as sh
from pyflame.ops.core import (
    Handle,
    as_tensor,
    axis_of,
    call,
    cast,
    common_dtype,
    convert,
    operands,
    real_only,
    rounded_once,
)
from pyflame.ops.precision import low_precision
from pyflame_rt.graph.errors import DTypeMismatchError, ShapeMismatchError
from pyflame_rt.graph.named_arguments import names_arguments
from pyflame_rt.ops.microsoft.fused import Inverse
from pyflame_rt.ops.onnx.matmul import Det, Einsum, MatMul
from pyflame_rt.ops.pyflame.complex_numbers import Conj

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyflame.tensors import Tensor


@low_precision
@rounded_once
@names_arguments
def matmul(input: Any, other: Any) -> Tensor:
    """The product of matrices, vectors or stacks of matrices, as NumPy has it; tensors must have one element type."""
    same_dtype("matmul", input, other)
    a, b = operands(input, other)
    if a.ndim == 0 or b.ndim == 0:
        raise ShapeMismatchError(
            f"matmul takes tensors with dimensions, got {a.shape} and {b.shape}; use * for numbers"
        )
    inner = b.shape[-2] if b.ndim > 1 else b.shape[0]
    if a.shape[-1] != inner:
        raise ShapeMismatchError(f"matmul: the inner sizes differ, {a.shape[-1]} != {inner} in {a.shape} @ {b.shape}")
    return call(MatMul, a, b)


def same_dtype(name: str, *values: Any) -> None:
    """Refuse tensors of different element types: products do not promote, as in torch."""
    kinds = [v._value.spec.dtype for v in values if isinstance(v, Handle)]
    for kind in kinds:
        if kind is not kinds[0]:
            raise MixedTypesError(
                f"{name}: tensors of {kinds[0].name} and {kind.name}; products take one element type. "
                f"Convert one of them, as in x.to(pf.{kinds[0].name})"
            )


class MixedTypesError(DTypeMismatchError, RuntimeError):
    """A product of tensors of different element types."""


def _rank(name: str, *pairs: tuple[Tensor, int]) -> None:
    for x, rank in pairs:
        if x.ndim != rank:
            raise ShapeMismatchError(f"{name}: a tensor with {rank} dimensions is needed, got {x.shape}")


def mm(input: Any, mat2: Any) -> Tensor:
    """The product of two matrices."""
    a, b = as_tensor(input), as_tensor(mat2)
    _rank("mm", (a, 2), (b, 2))
    return matmul(a, b)


def bmm(input: Any, mat2: Any) -> Tensor:
    """Products of matrices, one for each entry of the first dimension."""
    a, b = as_tensor(input), as_tensor(mat2)
    _rank("bmm", (a, 3), (b, 3))
    if a.shape[0] != b.shape[0]:
        raise ShapeMismatchError(f"bmm: batches of {a.shape[0]} and {b.shape[0]}")
    return matmul(a, b)


def mv(input: Any, vec: Any) -> Tensor:
    """The product of a matrix and a vector."""
    a, b = as_tensor(input), as_tensor(vec)
    _rank("mv", (a, 2), (b, 1))
    return matmul(a, b)


def dot(input: Any, tensor: Any) -> Tensor:
    """The sum of products of two vectors."""
    a, b = as_tensor(input), as_tensor(tensor)
    _rank("dot", (a, 1), (b, 1))
    return matmul(a, b)


def vdot(input: Any, other: Any) -> Tensor:
    """The sum of products of two vectors, the first one conjugated."""
    a = as_tensor(input)
    return dot(call(Conj, a) if a.dtype.is_complex else a, other)


def inner(input: Any, other: Any) -> Tensor:
    """Sums of products along the last dimensions."""
    a, b = as_tensor(input), as_tensor(other)
    if a.ndim == 0 or b.ndim == 0:
        return ar.mul(a, b)
    return tensordot(a, b, ([-1], [-1]))


def outer(input: Any, vec2: Any) -> Tensor:
    """All products of elements of two vectors."""
    a, b = as_tensor(input), as_tensor(vec2)
    _rank("outer", (a, 1), (b, 1))
    return ar.mul(sh.unsqueeze(a, 1), sh.unsqueeze(b, 0))


ger = outer


@low_precision
@rounded_once
def addmm(input: Any, mat1: Any, mat2: Any, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    """``beta * input + alpha * (mat1 @ mat2)``."""
    return _plus(input, mm(mat1, mat2), beta, alpha)


@low_precision
def addbmm(input: Any, batch1: Any, batch2: Any, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    """``beta * input + alpha *`` the sum of the products of a batch."""
    a, b = as_tensor(batch1), as_tensor(batch2)
    if a.dtype not in _HALVES or a.ndim != 3 or not 0 < a.shape[0] <= _ADDED_ONE_BY_ONE:
        return _addbmm(input, a, b, beta=beta, alpha=alpha)
    total = input
    for i in range(a.shape[0]):
        total = addmm(total, a[i], b[i], beta=1 if i else beta, alpha=alpha)
    return total


_HALVES = (DType.float16, DType.bfloat16)
# Products of half the bits are added to a sum of half the bits, as torch's are; of more than so many, all at once.
_ADDED_ONE_BY_ONE = 64


@rounded_once
def _addbmm(input: Any, batch1: Any, batch2: Any, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    products = bmm(batch1, batch2)
    return _plus(input, red.sum(products, 0, dtype=products.dtype), beta, alpha)


@low_precision
@rounded_once
def baddbmm(input: Any, batch1: Any, batch2: Any, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    """``beta * input + alpha * bmm(batch1, batch2)``."""
    return _plus(input, bmm(batch1, batch2), beta, alpha)


@low_precision
@rounded_once
def addmv(input: Any, mat: Any, vec: Any, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    """``beta * input + alpha * (mat @ vec)``."""
    return _plus(input, mv(mat, vec), beta, alpha)


def addr(input: Any, vec1: Any, vec2: Any, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    """``beta * input + alpha * outer(vec1, vec2)``."""
    column = as_tensor(vec1)
    if alpha != 1:
        column = ar.mul(column, _factor(alpha, column.dtype))
    if column.dtype not in _HALVES or column.ndim != 1:
        return _plus(input, outer(column, vec2), beta, 1)
    # The same as a product of matrices: sums on the way back are rounded once.
    return _plus(input, matmul(sh.unsqueeze(column, 1), sh.unsqueeze(as_tensor(vec2), 0)), beta, 1)


def _factor(value: Any, dtype: DType) -> Any:
    if dtype.is_inexact:
        return value
    return bool(value) if dtype is DType.bool else int(value)


def _plus(input: Any, product: Tensor, beta: Any, alpha: Any) -> Tensor:
    alpha, beta = (_factor(v, product.dtype) for v in (alpha, beta))
    product = product if alpha == 1 else ar.mul(product, alpha)
    if beta == 0:
        return sh.broadcast_to(product, sh.broadcast_shapes(as_tensor(input).shape, product.shape))
    return ar.add(input if beta == 1 else ar.mul(input, beta), product)


@rounded_once
@names_arguments
def einsum(equation: str, *operands: Any) -> Tensor:
    """Sums of products by a formula such as ``"bij,bjk->bik"``."""
    given = operands[0] if len(operands) == 1 and isinstance(operands[0], (list, tuple)) else operands
    same_dtype("einsum", *given)
    dtype = common_dtype(given)
    tensors = [convert(v, dtype) for v in given]
    terms, arrow, out = equation.replace(" ", "").partition("->")
    if arrow and len(terms.split(",")) == len(tensors):
        pairs = [_without_repeats(v, term) for v, term in zip(tensors, terms.split(","), strict=True)]
        tensors, equation = [v for v, _ in pairs], ",".join(term for _, term in pairs) + "->" + out
    if dtype.is_integer and _sums(equation, tensors):
        tensors = [cast(v, DType.int64) for v in tensors]
    return call(Einsum, *tensors, equation=equation)


def _sums(equation: str, tensors: list[Tensor]) -> bool:
    """Whether a formula sums over a label of one operand alone: such sums of integers are int64, products are not."""
    left, arrow, out = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    gone = [label for label in set(left) if label.isalpha() and (label not in out if arrow else left.count(label) > 1)]
    if len(terms) == 1:
        return bool(gone) or (bool(arrow) and "..." in left and "..." not in out)
    pairs = list(zip(terms, tensors, strict=False))
    return any(sum(_stretches(v, term, label) for term, v in pairs) == 1 for label in gone)


def _stretches(x: Tensor, term: str, label: str) -> bool:
    """Whether an operand has a label, with a size other than 1."""
    if label not in term or len(term.replace("...", "")) > x.ndim:
        return False
    head, _, tail = term.partition("...")
    place = head.index(label) if label in head else tail.index(label) - len(tail)
    return x.shape[place] != 1


def _without_repeats(x: Tensor, labels: str) -> tuple[Tensor, str]:
    """A label that stands twice for one operand means its diagonal."""
    from pyflame.ops.gathering import diagonal

    if "." in labels or len(labels) != x.ndim:
        return x, labels
    for label in set(labels):
        while labels.count(label) > 1:
            a = labels.index(label)
            b = labels.index(label, a + 1)
            x = diagonal(x, 0, a, b)
            labels = labels[:a] + labels[a + 1 : b] + labels[b + 1 :] + label
    return x, labels


@rounded_once
@names_arguments
def tensordot(a: Any, b: Any, dims: Any = 2) -> Tensor:
    """Sums of products over pairs of dimensions: the last of one and first of the other, or those listed."""
    same_dtype("tensordot", a, b)
    x, y = operands(a, b)
    if isinstance(dims, int):
        left, right = list(range(x.ndim - dims, x.ndim)), list(range(dims))
    else:
        left, right = ([d] if isinstance(d, int) else list(d) for d in dims)
    left = [axis_of(d, x.ndim) for d in left] if x.ndim else []
    right = [axis_of(d, y.ndim) for d in right] if y.ndim else []
    stretched = [(a, b) for a, b in zip(left, right, strict=False) if 1 in (x.shape[a], y.shape[b])]
    for a, b in stretched:  # a size of 1 meets any size
        x, y = red.sum(x, a, True, dtype=x.dtype), red.sum(y, b, True, dtype=y.dtype)
    if [x.shape[d] for d in left] != [y.shape[d] for d in right]:
        raise ShapeMismatchError(
            f"tensordot: sizes differ over dimensions {left} of {x.shape} and {right} of {y.shape}"
        )
    keep_x = [d for d in range(x.ndim) if d not in left]
    keep_y = [d for d in range(y.ndim) if d not in right]
    shape = [x.shape[d] for d in keep_x] + [y.shape[d] for d in keep_y]
    count = 1
    for d in left:
        count *= x.shape[d]
    rows = sh.reshape(sh.permute(x, [*keep_x, *left]) if x.ndim else x, (_size(x, keep_x), count))
    columns = sh.reshape(sh.permute(y, [*right, *keep_y]) if y.ndim else y, (count, _size(y, keep_y)))
    return sh.reshape(matmul(rows, columns), shape)


def _size(x: Tensor, dims: Sequence[int]) -> int:
    count = 1
    for d in dims:
        count *= x.shape[d]
    return count


def kron(input: Any, other: Any) -> Tensor:
    """The Kronecker product."""
    a, b = operands(input, other)
    rank = max(a.ndim, b.ndim)
    a = sh.reshape(a, (1,) * (rank - a.ndim) + tuple(a.shape))
    b = sh.reshape(b, (1,) * (rank - b.ndim) + tuple(b.shape))
    left = sh.reshape(a, [v for s in a.shape for v in (s, 1)])
    right = sh.reshape(b, [v for s in b.shape for v in (1, s)])
    return sh.reshape(ar.mul(left, right), [s * r for s, r in zip(a.shape, b.shape, strict=True)])


def cross(input: Any, other: Any, dim: int = -1) -> Tensor:
    """The cross product of vectors of three along a dimension."""
    same_dtype("cross", input, other)
    a, b = sh.broadcast_tensors(*operands(input, other))
    along = axis_of(dim, a.ndim)
    if a.shape[along] != 3:
        raise ShapeMismatchError(f"cross takes vectors of 3 elements, dimension {dim} has {a.shape[along]}")
    a1, a2 = sh.roll(a, -1, along), sh.roll(a, -2, along)
    b1, b2 = sh.roll(b, -1, along), sh.roll(b, -2, along)
    return ar.sub(ar.mul(a1, b2), ar.mul(a2, b1))


def inverse(input: Any) -> Tensor:
    """The inverse of square matrices."""
    return call(Inverse, as_tensor(input))


def det(input: Any) -> Tensor:
    """The determinant of square matrices."""
    return call(Det, as_tensor(input))


@low_precision
@rounded_once
def linear(input: Any, weight: Any, bias: Any = None) -> Tensor:
    """``input @ weight.T + bias``."""
    w = as_tensor(weight)
    x = as_tensor(input)
    if x.ndim == 0 or x.shape[-1] != w.shape[-1]:
        raise ShapeMismatchError(f"linear: input {x.shape} has no last size {w.shape[-1]} as weight {w.shape} wants")
    product = matmul(x, sh.transpose(w, 0, 1) if w.ndim == 2 else w)
    return product if bias is None else ar.add(product, bias)


def cosine_similarity(x1: Any, x2: Any, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """The cosine of the angle between vectors along a dimension."""
    given = operands(real_only("cosine_similarity", x1), real_only("cosine_similarity", x2), floating=True)
    a, b = sh.broadcast_tensors(*given)
    norms = [ar.clamp_min(red.norm(v, 2, dim, True), eps) for v in (a, b)]
    return red.sum(ar.mul(ar.div(a, norms[0]), ar.div(b, norms[1])), dim)
