"""The four operations and their relatives, element by element with broadcasting."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Any

from pyflame_rt.graph import DimLike, DType, Node, Shape, TensorType
from pyflame_rt.graph.errors import InputError, ShapeMismatchError, UndeterminedError
from pyflame_rt.ops.core.guards import Within
from pyflame_rt.ops.core.registry import get_op, operator, primitive
from pyflame_rt.ops.core.size_arithmetic import size_quotients
from pyflame_rt.ops.core.type_rules import broadcast, same
from pyflame_rt.ops.core.upgrade import Upgrade, upgrade
from pyflame_rt.ops.core.value import Value, constant
from pyflame_rt.ops.pyflame.complex_numbers import conjugated, part_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# ------------------------------------------------------------------ gradients and broadcasting


def unbroadcast(gradient: Value, like: Value) -> Value:
    """Sum a gradient over the axes along which ``like`` was broadcast."""
    from pyflame_rt.ops.onnx.reduce import ReduceSum

    try:
        extra = gradient.rank - like.rank
        axes = [i for i, d in enumerate(like.shape) if _stretched(d, gradient.shape[extra + i])]
    except UndeterminedError:
        return SumTo(gradient, runtime_shape(like))
    if extra:
        gradient = ReduceSum(gradient, list(range(extra)), keepdims=0)
    return ReduceSum(gradient, axes, keepdims=1) if axes else gradient


def _stretched(size: DimLike, result: DimLike) -> bool:
    if size == 1:
        return result != 1
    if isinstance(size, int) or (size is not None and size == result):
        return False
    raise UndeterminedError(f"whether {size} was stretched to {result} is only known when running")


def runtime_shape(x: Value) -> Value:
    """The shape of ``x``: a constant where all sizes are numbers, otherwise a Shape node."""
    shape = x.tensor_type.shape
    if shape is not None and shape.is_static:
        return constant(list(shape), DType.Int64)
    return get_op("Shape")(x)


def zeros_like(x: Value) -> Value:
    """Zeros of the type of ``x``."""
    return get_op("Expand")(constant(0, x), runtime_shape(x))


def _need_sums(given: Sequence[Any], sizes: Sequence[Any]) -> None:
    """That broadcasting sizes to a shape gives that shape; sizes that are not known may be any."""
    extra = len(given) - len(sizes)
    fits = all(not isinstance(a, int) or n in (1, a) for a, n in zip(given[max(extra, 0) :], sizes, strict=False))
    if extra < 0 or not fits:
        raise ShapeMismatchError(f"{list(sizes)} does not broadcast to {list(given)}, so sums cannot have that shape")


def _sum_to_type(gradient: Value, shape: Value, /) -> TensorType:
    length = shape.tensor_type.shape
    if length is not None and len(length) != 1:
        raise ShapeMismatchError(f"a shape must be a list of sizes, got {shape.type}")
    if shape.known is not None:
        if gradient.tensor_type.shape is not None:
            _need_sums(gradient.tensor_type.shape, shape.ints())
        return TensorType(gradient.dtype, Shape(shape.ints()))
    rank = length[0] if length is not None and isinstance(length[0], int) else None
    return TensorType(gradient.dtype, None if rank is None else Shape([None] * rank))


@primitive(
    since=1,
    domain="pyflame",
    infer=_sum_to_type,
    vjp=lambda g, y, x, shape: (_expand(g, runtime_shape(x)), None),
    complex=True,
)
def SumTo(ops: Any, gradient: Any, shape: Any, /) -> Any:
    """Sum over the axes that broadcasting to the input's shape would add or stretch."""
    sizes = [int(n) for n in ops.to_numpy(shape)]
    _need_sums(gradient.shape, sizes)
    extra = len(gradient.shape) - len(sizes)
    axes = [extra + i for i, n in enumerate(sizes) if n == 1 and gradient.shape[extra + i] != 1]
    axes = [*range(extra), *axes]
    return ops.reshape(ops.sum(gradient, axis=tuple(axes)) if axes else gradient, tuple(sizes))


def _expand(x: Value, shape: Value) -> Value:
    return get_op("Expand")(x, shape)


# ------------------------------------------------------------------ binary


@primitive(
    since=14,
    infer=broadcast,
    shape_math=True,
    vjp=lambda g, y, a, b: (unbroadcast(g, a), unbroadcast(g, b)),
    types="T:number T > T",
    scalar="add",
    complex=True,
)
def Add(ops: Any, A: Any, B: Any, /) -> Any:
    """Sum of two tensors."""
    return ops.add(A, B)


@primitive(
    since=14,
    infer=broadcast,
    shape_math=True,
    vjp=lambda g, y, a, b: (unbroadcast(g, a), unbroadcast(-g, b)),
    types="T:number T > T",
    scalar="sub",
    complex=True,
)
def Sub(ops: Any, A: Any, B: Any, /) -> Any:
    """Difference."""
    return ops.subtract(A, B)


@primitive(
    since=14,
    infer=broadcast,
    shape_math=True,
    vjp=lambda g, y, a, b: (unbroadcast(g * conjugated(b), a), unbroadcast(g * conjugated(a), b)),
    types="T:number T > T",
    scalar="mul",
    complex=True,
)
def Mul(ops: Any, A: Any, B: Any, /) -> Any:
    """Product."""
    return ops.multiply(A, B)


def _divisor_needs(A: Value, B: Value, /, **_: Any) -> Iterator[Within]:
    if not (B.dtype.is_float or B.dtype.is_complex):
        yield Within("B", B, without=0)


def _div_vjp(g: Value, y: Value, a: Value, b: Value) -> tuple[Value, Value]:
    below = conjugated(b)
    return unbroadcast(g / below, a), unbroadcast(-g * conjugated(y) / below, b)


@primitive(
    since=14,
    infer=broadcast,
    shape_math=True,
    vjp=_div_vjp,
    requires=_divisor_needs,
    types="T:number T > T",
    scalar="div",
    complex=True,
)
def Div(ops: Any, A: Any, B: Any, /) -> Any:
    """Quotient; integers are divided as C does, towards zero."""
    kinds = (ops.dtype(A).kind, ops.dtype(B).kind)
    if "O" in kinds:
        return size_quotients(A, B)
    return ops.divide(A, B) if kinds[0] in "fcV" else ops.truncate_divide(A, B)


def _mod_vjp(g: Value, y: Value, a: Value, b: Value, *, fmod: int) -> tuple[Value, Value]:
    from pyflame_rt.ops.onnx.logic import Where
    from pyflame_rt.ops.onnx.math import Ceil, Floor

    if a.dtype.itemsize == 2:  # a - y has no room for all of its bits
        ratio = a / b
        turns = Where(ratio < 0.0, Ceil(ratio), Floor(ratio)) if fmod else Floor(ratio)
    else:
        turns = (a - y) / b
    return unbroadcast(g, a), unbroadcast(-g * turns, b)


@primitive(
    since=28,
    infer=broadcast,
    shape_math=True,
    vjp=_mod_vjp,
    requires=_divisor_needs,
    types="T:number T > T",
    scalar="mod",
)
def Mod(ops: Any, A: Any, B: Any, /, *, fmod: int = 0) -> Any:
    """Remainder with the sign of the divisor, or with ``fmod`` of the dividend."""
    if fmod not in (0, 1):
        raise InputError(f"fmod must be 0 or 1, got {fmod}")
    return ops.fmod(A, B) if fmod else ops.mod(A, B)


def _pow_type(x: Value, y: Value, /) -> TensorType:
    return broadcast(x, y, dtype=x.dtype)


def _pow_vjp(g: Value, z: Value, x: Value, y: Value) -> tuple[Value, Value | None]:
    from pyflame_rt.ops.onnx.cast import Cast, CastLike
    from pyflame_rt.ops.onnx.logic import And, Equal, Where
    from pyflame_rt.ops.onnx.math import Log

    if x.dtype in (DType.Float16, DType.BFloat16):  # rounded once: y - 1 in 11 bits is far off the power
        wide = [Cast(v, to=DType.Float32) if v.dtype.is_float else v for v in (g, x, y)]
        to_base, to_power = _pow_vjp(wide[0], Pow(*wide[1:]), *wide[1:])
        return Cast(to_base, to=x.dtype), None if to_power is None else Cast(to_power, to=y.dtype)
    power = y if y.dtype is x.dtype else CastLike(y, x)
    # x**0 is flat, at x = 0 too, where the formula would give 0 * inf.
    slope = Where(Equal(power, 0.0), 0.0, power * Pow(x, power - 1.0))
    to_base = unbroadcast(g * conjugated(slope), x)
    if not (y.dtype.is_float or y.dtype.is_complex):
        return to_base, None
    # 0**y stays 0 for all y > 0; powers of negative numbers exist at whole y only, and have no slope there.
    size = Cast(power, to=part_of(power.dtype)) if power.dtype.is_complex else power
    flat = And(Equal(x, 0.0), size >= 0.0)
    log = Where(flat, 0.0, Log(Where(flat, 1.0, x)))
    to_power = unbroadcast(g * conjugated(z * log), y)
    return to_base, to_power if y.dtype is x.dtype else CastLike(to_power, y)


@primitive(
    since=15, infer=_pow_type, shape_math=True, vjp=_pow_vjp, types="T:number T1:number > T", scalar="pow", complex=True
)
def Pow(ops: Any, X: Any, Y: Any, /) -> Any:
    """``X`` to the power ``Y``, in the element type of ``X`` whatever that of ``Y``."""
    have, power = ops.dtype(X), ops.dtype(Y)
    if have == power or "O" in (have.kind, power.kind):
        return ops.power(X, Y)
    inner = _power_type(DType.of(have), DType.of(power)).numpy
    return ops.cast(ops.power(ops.cast(X, inner), ops.cast(Y, inner)), have)


def _power_type(base: DType, power: DType) -> DType:
    """Where base and power meet: wide enough for both."""
    if base.is_integer:
        return DType.Float64 if power.is_float else DType.Int64
    return DType.Float64 if DType.Float64 in (base, power) else DType.Float32


# ------------------------------------------------------------------ unary


@primitive(
    since=13, infer=same, shape_math=True, vjp=lambda g, y, x: (-g,), types="T:number > T", scalar="neg", complex=True
)
def Neg(ops: Any, X: Any, /) -> Any:
    """The opposite."""
    return ops.negative(X)


@primitive(
    since=13, infer=same, shape_math=True, vjp=lambda g, y, x: (g * Sign(x),), types="T:number > T", scalar="abs"
)
def Abs(ops: Any, X: Any, /) -> Any:
    """Absolute value."""
    return ops.abs(X)


@primitive(since=13, infer=same, shape_math=True, vjp=lambda g, y, x: (None,), types="T:number > T", scalar="sign")
def Sign(ops: Any, input: Any, /) -> Any:
    """-1, 0 or 1."""
    return ops.sign(input)


@operator(since=13, infer=same, types="T:float > T", elementwise=True, complex=True)
def Reciprocal(X: Value, /) -> Value:
    """``1 / X``."""
    return 1.0 / X


# ------------------------------------------------------------------ any number of tensors


def _extreme_vjp(g: Value, y: Value, *inputs: Value) -> tuple[Value | None, ...]:
    """The gradient goes to whichever input won, in equal parts where several did."""
    from pyflame_rt.ops.onnx.cast import CastLike
    from pyflame_rt.ops.onnx.logic import Equal

    won = [CastLike(Equal(x, y), y) for x in inputs]
    share = g / reduce(lambda a, b: a + b, won)
    return tuple(unbroadcast(share * w, x) for w, x in zip(won, inputs, strict=True))


@primitive(since=13, infer=broadcast, shape_math=True, vjp=_extreme_vjp, types="T* > T", scalar="max")
def Max(ops: Any, /, *data_0: Any) -> Any:
    """The largest of the tensors' elements; NaN where one is."""
    return reduce(ops.maximum, data_0)


@primitive(since=13, infer=broadcast, shape_math=True, vjp=_extreme_vjp, types="T* > T", scalar="min")
def Min(ops: Any, /, *data_0: Any) -> Any:
    """The smallest of the tensors' elements; NaN where one is."""
    return reduce(ops.minimum, data_0)


@operator(since=13, infer=broadcast, types="T:float* > T", elementwise=True)
def Sum(*data_0: Value) -> Value:
    """Sum of the tensors."""
    return reduce(lambda a, b: a + b, data_0)


@operator(since=13, infer=broadcast, types="T:float* > T", elementwise=True)
def Mean(*data_0: Value) -> Value:
    """Mean of the tensors."""
    return reduce(lambda a, b: a + b, data_0) / float(len(data_0))


# ------------------------------------------------------------------ older forms


@operator(since=1, domain="pyflame")
def AlignAxis(B: Value, A: Value, /, *, axis: int) -> Value:
    """``B`` with further axes of size 1, so that its first axis meets ``axis`` of ``A``."""
    first = axis + A.rank if axis < 0 else axis
    missing = A.rank - first - B.rank
    if missing <= 0:
        return B
    return get_op("Unsqueeze")(B, list(range(B.rank, B.rank + missing)))


def align_legacy_axis(node: Node, up: Upgrade) -> Node:
    """Give the second input the trailing axes that the old ``axis`` attribute implied."""
    a, b = node.inputs
    if node.get_attr("broadcast", 0) and node.has_attr("axis"):
        b = up.emit("AlignAxis", [b, a], {"axis": node.get_attr("axis")}, domain="pyflame")
    return node.replace(inputs=[a, b], attributes={})


def drop_consumed_inputs(node: Node, up: Upgrade) -> Node:
    """Opset 1 let a node say which buffers it may overwrite; later ones do not."""
    kept = {k: v for k, v in node.attributes.items() if k != "consumed_inputs"}
    return node.replace(attributes=kept)


upgrade(["Add", "Sub", "Mul", "Div", "Pow"], to=7)(align_legacy_axis)
upgrade(["Neg", "Abs", "Reciprocal", "Max", "Min", "Sum", "Mean"], to=6)(drop_consumed_inputs)
