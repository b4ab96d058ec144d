"""Matrix products and what is made of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyflame_rt.graph import DimLike, DType, Node, Shape, TensorType
from pyflame_rt.graph.errors import DTypeMismatchError, InputError, ShapeMismatchError
from pyflame_rt.ops.core.flop_counts import gemm_flops, matmul_flops
from pyflame_rt.ops.core.guards import spreads_to
from pyflame_rt.ops.core.registry import get_op, operator, primitive
from pyflame_rt.ops.core.type_rules import broadcast_shapes, merge_dims
from pyflame_rt.ops.core.upgrade import Upgrade, upgrade
from pyflame_rt.ops.onnx.arithmetic import unbroadcast
from pyflame_rt.ops.onnx.cast import Cast
from pyflame_rt.ops.onnx.shape import Expand, Reshape, Squeeze, Transpose, Unsqueeze
from pyflame_rt.ops.onnx.shape import Shape as ShapeOf
from pyflame_rt.ops.pyflame.complex_numbers import conjugated

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyflame_rt.ops.core.value import Value


def matmul_shape(a: Shape | None, b: Shape | None) -> Shape | None:
    """NumPy's rule for ``a @ b``."""
    if a is None or b is None:
        return None
    if not a or not b:
        raise ShapeMismatchError(f"a product needs at least one axis on both sides, got {a} and {b}")
    left = a if len(a) > 1 else Shape([1, *a])
    right = b if len(b) > 1 else Shape([*b, 1])
    try:
        merge_dims(left[-1], right[-2])
    except ShapeMismatchError:
        raise ShapeMismatchError(f"inner sizes differ: {a} @ {b}") from None
    batch = broadcast_shapes(Shape(left[:-2]), Shape(right[:-2]))
    assert batch is not None
    rows = [left[-2]] if len(a) > 1 else []
    columns = [right[-1]] if len(b) > 1 else []
    return Shape([*batch, *rows, *columns])


def _matmul_type(A: Value, B: Value, /) -> TensorType:
    if A.dtype is not B.dtype:
        raise DTypeMismatchError(f"inputs have different element types: {A.dtype.label} and {B.dtype.label}")
    return TensorType(A.dtype, matmul_shape(A.tensor_type.shape, B.tensor_type.shape))


def _swap_last(x: Value) -> Value:

    return Transpose(x, perm=[*range(x.rank - 2), x.rank - 1, x.rank - 2])


def _matmul_vjp(g: Value, y: Value, a: Value, b: Value) -> tuple[Value, Value]:

    left, right = conjugated(a), conjugated(b)
    left = left if a.rank > 1 else Unsqueeze(left, [0])
    right = right if b.rank > 1 else Unsqueeze(right, [1])
    if b.rank == 1:
        g = Unsqueeze(g, [-1])
    if a.rank == 1:
        g = Unsqueeze(g, [-2])
    da = unbroadcast(MatMul(g, _swap_last(right)), left)
    db = _gradient_of_matrix(left, g) if right.rank == 2 and left.rank > 2 else None
    if db is None:
        db = unbroadcast(MatMul(_swap_last(left), g), right)
    return (da if a.rank > 1 else Squeeze(da, [0])), (db if b.rank > 1 else Squeeze(db, [1]))


def _gradient_of_matrix(rows: Value, g: Value) -> Value | None:
    """Of a matrix that many rows were multiplied by: one product over all of them, not a sum of products."""
    depth, width = rows.shape[-1], g.shape[-1]
    if not isinstance(depth, int) or not isinstance(width, int) or not depth or not width:
        return None
    return MatMul(_swap_last(Reshape(rows, [-1, depth])), Reshape(g, [-1, width]))


@primitive(
    since=13, infer=_matmul_type, vjp=_matmul_vjp, types="T T > T", kind="product", flops=matmul_flops, complex=True
)
def MatMul(ops: Any, A: Any, B: Any, /) -> Any:
    """Matrix product that behaves like numpy.matmul."""
    return ops.matmul(A, B)


@operator(since=13, types="T T T > T", kind="product", flops=gemm_flops)
def Gemm(
    A: Value,
    B: Value,
    C: Value | None = None,
    /,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Value:
    """Product of two matrices, transposed on request, plus a third: alpha * A * B + beta * C."""
    if A.rank != 2 or B.rank != 2:
        raise ShapeMismatchError(f"A and B must be matrices, got shapes {A.shape} and {B.shape}")
    left = Transpose(A, perm=[1, 0]) if transA else A
    right = Transpose(B, perm=[1, 0]) if transB else B
    product = _scaled(MatMul(left, right), alpha)
    if C is None or beta == 0.0:
        return product
    spreads_to("C", C, product.shape, "the shape of the product")
    return product + _scaled(C, beta)


def _scaled(x: Value, factor: float) -> Value:
    """A multiple; of integers through float64, for alpha and beta are real."""
    if factor == 1.0:
        return x
    if x.dtype.is_float:
        return x * factor
    return Cast(Cast(x, to=DType.Float64) * factor, to=x.dtype)


@upgrade("Gemm", to=7)
def gemm_broadcasts_c_always(node: Node, up: Upgrade) -> Node:
    """Before 7, C was broadcast only on request."""
    kept = {name: value for name, value in node.attributes.items() if name != "broadcast"}
    return node.replace(attributes=kept)


@operator(since=10, types="T1 T2 T1 T2 > int32", kind="product", flops=matmul_flops)
def MatMulInteger(A: Value, B: Value, a_zero_point: Value | None = None, b_zero_point: Value | None = None, /) -> Value:
    """Product of 8-bit integers in int32; zero points per tensor, per row of A or per column of B."""
    return MatMul(_centred(A, a_zero_point, rows=True), _centred(B, b_zero_point, rows=False))


def _centred(x: Value, zero: Value | None, *, rows: bool) -> Value:

    wide = Cast(x, to=DType.Int32)
    if zero is None:
        return wide
    shift = Cast(zero, to=DType.Int32)
    # A vector of zero points belongs to the rows of A, but to the columns of B.
    if rows and zero.rank == 1 and x.rank > 1 and zero.shape[0] != 1:
        shift = Unsqueeze(shift, [1])
    return wide - shift


def _det_type(X: Value, /) -> TensorType:
    shape = X.tensor_type.shape
    if shape is None:
        return TensorType(X.dtype)
    if len(shape) < 2:
        raise ShapeMismatchError(f"a matrix is needed, got shape {shape}")
    merge_dims(shape[-1], shape[-2])
    return TensorType(X.dtype, Shape(shape[:-2]))


def _det_vjp(g: Value, y: Value, x: Value) -> tuple[Value, ...]:
    """The determinant times the transposed inverse: for matrices that have one."""
    order = [*range(x.rank - 2), x.rank - 1, x.rank - 2]
    inverse = get_op("Transpose")(get_op("Inverse", "com.microsoft")(x), perm=order)
    return (get_op("Unsqueeze")(g * y, [-2, -1]) * inverse,)


@primitive(since=22, infer=_det_type, vjp=_det_vjp, types="T:float > T")
def Det(ops: Any, X: Any, /) -> Any:
    """Determinants of a matrix or a stack of them."""
    kind = ops.dtype(X)
    if kind.itemsize >= 4:
        return ops.det(X)
    return ops.cast(ops.det(ops.cast(X, DType.Float32.numpy)), kind)


# ---------------------------------------------------------------------- Einsum


def parse_equation(equation: str, ranks: Sequence[int | None]) -> tuple[list[str], str]:
    """Labels of each operand and of the output, one character an axis.

    Axes under an ellipsis get digits as labels, counted from the right, so that they broadcast.
    """
    text = equation.replace(" ", "")
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    if len(terms) != len(ranks):
        raise InputError(f"equation {equation!r} has {len(terms)} terms, but {len(ranks)} inputs are given")
    extras: list[int] = []
    for term, rank in zip(terms, ranks, strict=True):
        named = term.replace("...", "")
        if "." in named:
            raise InputError(f"equation {equation!r}: a dot outside of an ellipsis")
        extra = 0 if rank is None else rank - len(named)
        if extra < 0 or (extra and "..." not in term):
            raise ShapeMismatchError(f"equation {equation!r}: term {term!r} does not fit a tensor of rank {rank}")
        extras.append(extra)
    most = max(extras)
    stars = [_star_labels(extra) for extra in extras]
    labels = [term.replace("...", star) for term, star in zip(terms, stars, strict=True)]
    if arrow:
        return labels, right.replace("...", _star_labels(most))
    named = sorted(c for c in set(left) if c.isalpha() and left.count(c) == 1)
    return labels, _star_labels(most) + "".join(named)


def _star_labels(count: int) -> str:
    return "".join(chr(ord("0") + i) for i in reversed(range(count)))


def _einsum_type(*Inputs: Value, equation: str) -> TensorType:
    shapes = [v.tensor_type.shape for v in Inputs]
    labels, output = parse_equation(equation, [None if s is None else len(s) for s in shapes])
    if any(s is None for s in shapes):
        unknown = "..." in equation or "->" not in equation
        return TensorType(Inputs[0].dtype, None if unknown else Shape([None] * len(output)))
    sizes: dict[str, DimLike] = {}
    for names, shape in zip(labels, shapes, strict=True):
        assert shape is not None
        for name, size in zip(names, shape, strict=True):
            known = sizes.get(name, 1)
            if isinstance(known, int) and isinstance(size, int) and known != size and 1 not in (known, size):
                raise ShapeMismatchError(f"label {name!r} has sizes {known} and {size}")
            merged = broadcast_shapes(Shape([known]), Shape([size]))
            assert merged is not None
            sizes[name] = merged[0]
    try:
        return TensorType(Inputs[0].dtype, Shape([sizes[name] for name in output]))
    except KeyError as error:
        raise InputError(f"equation {equation!r}: output label {error} is in no input") from None


def _einsum_vjp(g: Value, y: Value, *Inputs: Value, equation: str) -> tuple[Value | None, ...]:
    labels, output = parse_equation(equation, [v.rank for v in Inputs])
    letters = _as_letters(labels, output)
    terms, result = [names.translate(letters) for names in labels], output.translate(letters)
    return tuple(_einsum_gradient(g, result, Inputs, terms, i) for i in range(len(Inputs)))


def _as_letters(labels: Sequence[str], output: str) -> dict[int, str]:
    """A translation of the digits of an ellipsis into letters the equation does not use."""
    used = set("".join(labels) + output)
    free = [chr(c) for c in [*range(ord("a"), ord("z") + 1), *range(ord("A"), ord("Z") + 1)] if chr(c) not in used]
    return {ord(c): free.pop() for c in sorted(used) if not c.isalpha()}


def _einsum_gradient(g: Value, result: str, inputs: Sequence[Value], terms: Sequence[str], i: int) -> Value:
    from pyflame_rt.graph.errors import UnsupportedOperatorError

    if len(set(terms[i])) != len(terms[i]):
        raise UnsupportedOperatorError(f"the gradient of Einsum with a repeated label in {terms[i]!r} is not available")
    others = [(t, conjugated(v)) for j, (t, v) in enumerate(zip(terms, inputs, strict=True)) if j != i]
    seen = set(result).union(*(t for t, _ in others))
    kept = "".join(c for c in terms[i] if c in seen)
    equation = ",".join([result, *(t for t, _ in others)]) + "->" + kept
    partial = Einsum(g, *[v for _, v in others], equation=equation)
    if kept == terms[i]:
        return unbroadcast(partial, inputs[i])
    # A label that only this input has was summed away: its gradient is the same all along.
    sizes = [partial.shape[kept.index(c)] if c in kept else 1 for c in terms[i]]
    return Expand(Reshape(partial, sizes), ShapeOf(inputs[i]))


@primitive(since=28, infer=_einsum_type, vjp=_einsum_vjp, types="T* > T", kind="product", complex=True)
def Einsum(ops: Any, *Inputs: Any, equation: str) -> Any:
    """Sums of products by labelled axes, as numpy.einsum."""
    labels, output = parse_equation(equation, [len(x.shape) for x in Inputs])
    letters = _as_letters(labels, output)
    text = ",".join(names.translate(letters) for names in labels) + "->" + output.translate(letters)
    return ops.einsum(text, *_stretched(ops, Inputs, labels))


def _stretched(ops: Any, arrays: Sequence[Any], labels: Sequence[str]) -> list[Any]:
    """Axes of size 1 stretched to the size their label has elsewhere: not every library does it itself."""
    sizes: dict[str, int] = {}
    for names, array in zip(labels, arrays, strict=True):
        for name, size in zip(names, array.shape, strict=True):
            known = sizes.get(name, 1)
            if known != size and size != 1 and known != 1:
                raise ShapeMismatchError(f"label {name!r} has sizes {known} and {size}")
            sizes[name] = size if known == 1 else known
    shapes = [tuple(sizes[name] for name in names) for names in labels]
    return [
        a if tuple(a.shape) == shape else ops.broadcast_to(a, shape) for a, shape in zip(arrays, shapes, strict=True)
    ]
