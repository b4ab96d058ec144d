"""Operators that make tensors: constants, ranges, diagonals and triangles."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from pyflame_rt.graph import Dim, DType, Shape, Tensor, TensorType, symbol
from pyflame_rt.graph.dim import DimLike, dim_from_text
from pyflame_rt.graph.errors import InputError, ShapeMismatchError, UndeterminedError
from pyflame_rt.ops.core.guards import at_least, has_rank
from pyflame_rt.ops.core.registry import primitive
from pyflame_rt.ops.core.size_arithmetic import ceil_divide, known_ints, surely_not_negative, vector_length
from pyflame_rt.ops.core.type_rules import same, tensor_like
from pyflame_rt.ops.core.value import Value

__all__ = ["Constant", "ConstantOfShape", "Dims", "EyeLike", "Range", "Trilu"]

_SMALL = 1024


# ---------------------------------------------------------------------- constants


def constant_array(
    value: Tensor | None,
    sparse_value: Tensor | None,
    value_float: float | None,
    value_floats: list[float] | None,
    value_int: int | None,
    value_ints: list[int] | None,
    value_string: str | None,
    value_strings: list[str] | None,
) -> np.ndarray[Any, Any]:
    """The array that the one given attribute of a Constant stands for."""
    tensor = value if value is not None else sparse_value
    if tensor is not None:
        return tensor.raw()
    forms = (
        (value_float, np.float32), (value_floats, np.float32), (value_int, np.int64),
        (value_ints, np.int64), (value_string, object), (value_strings, object),
    )  # fmt: skip
    for data, dtype in forms:
        if data is not None:
            return np.asarray(data, dtype=dtype)
    raise InputError("one attribute must hold the value")


def _constant_type(**attributes: Any) -> Value:
    array = constant_array(**attributes)
    kind = TensorType(DType.of(array.dtype), Shape(array.shape))
    return Value(None, kind, array if array.size <= _SMALL else None)


@primitive(since=25, infer=_constant_type)
def Constant(
    ops: Any,
    /,
    *,
    value: Tensor | None = None,
    sparse_value: Tensor | None = None,
    value_float: float | None = None,
    value_floats: list[float] | None = None,
    value_int: int | None = None,
    value_ints: list[int] | None = None,
    value_string: str | None = None,
    value_strings: list[str] | None = None,
) -> Any:
    """The value one of the attributes holds."""
    return ops.from_numpy(
        constant_array(
            value, sparse_value, value_float, value_floats, value_int, value_ints, value_string, value_strings
        )
    )


def _fill(value: Tensor | None) -> np.ndarray[Any, Any]:
    array = np.zeros(1, dtype=np.float32) if value is None else value.raw()
    if array.size != 1:
        raise ShapeMismatchError(f"the value must be one element, got shape {Shape(array.shape)}")
    return array.reshape(())


def _constant_of_shape_type(input: Value, /, *, value: Tensor | None) -> Value:
    fill, sizes = _fill(value), known_ints(input)
    dtype = DType.of(fill.dtype)
    if sizes is None:
        rank = vector_length(input)
        return Value(None, TensorType(dtype, None if rank is None else Shape([None] * rank)))
    count = Shape(sizes).num_elements
    known = np.full(sizes, fill) if count is not None and count <= _SMALL else None
    return Value(None, TensorType(dtype, Shape(sizes)), known)


def _constant_of_shape_needs(input: Value, /, **_: Any) -> None:
    has_rank("input", input, 1)
    for place, size in enumerate(known_ints(input) or ()):
        at_least(f"input at [{place}]", size, 0)


@primitive(since=25, infer=_constant_of_shape_type, requires=_constant_of_shape_needs, known=(0,))
def ConstantOfShape(ops: Any, input: Any, /, *, value: Tensor | None = None) -> Any:
    """One value everywhere, float32 zero by default."""
    fill = _fill(value)
    return ops.full(ops.to_numpy(input).tolist(), fill.item(), fill.dtype)


# ---------------------------------------------------------------------- symbolic sizes


def _parse_size(text: str) -> DimLike:
    """A size from its printed form; opaque parts make it unknown."""
    size = dim_from_text(text)
    if isinstance(size, Dim) and any(name.startswith("floor(") for name in size.symbols()):
        return None
    return None if size == symbol(text) and not text.isidentifier() else size


def _dims_type(*, dims: list[str]) -> Value:
    sizes = [_parse_size(text) for text in dims]
    known = None
    if all(size is not None for size in sizes):
        known = np.empty(len(sizes), dtype=np.int64 if all(isinstance(s, int) for s in sizes) else object)
        known[:] = sizes
    return Value(None, TensorType(DType.Int64, Shape([len(dims)])), known)


@primitive(since=1, domain="pyflame", infer=_dims_type)
def Dims(ops: Any, /, *, dims: list[str]) -> Any:
    """Sizes given as text, such as ``2*N``; symbols are resolved when a graph is compiled."""
    sizes = [_parse_size(text) for text in dims]
    if not all(isinstance(size, int) for size in sizes):
        raise UndeterminedError(f"the sizes {', '.join(dims)} are known only once a graph is compiled for its inputs")
    return ops.from_numpy(np.asarray(sizes, dtype=np.int64))


# ---------------------------------------------------------------------- Range


def _scalar(value: Value) -> Any:
    return None if value.known is None else value.known.ravel().tolist()[0]


def range_length(start: Any, limit: Any, delta: Any) -> Any:
    """How many elements a range has; None when unknown, symbolic for integer steps upwards."""
    if start is None or limit is None or delta is None:
        return None
    if delta == 0:
        raise InputError("delta must not be 0")
    span = limit - start
    if isinstance(delta, Dim) or isinstance(span, Dim):
        if not isinstance(delta, int) or delta < 0 or not surely_not_negative(span):
            return None
        return ceil_divide(span, delta)
    if isinstance(span, int) and isinstance(delta, int):
        return max(0, -(-span // delta))
    return max(0, math.ceil(span / delta))


def _range_type(start: Value, limit: Value, delta: Value, /, *, stash_type: int) -> TensorType:
    return tensor_like(start, [range_length(_scalar(start), _scalar(limit), _scalar(delta))])


@primitive(since=27, infer=_range_type, shape_math=True, types="T T T > T", known=(0, 1, 2))
def Range(ops: Any, start: Any, limit: Any, delta: Any, /, *, stash_type: int = 1) -> Any:
    """Numbers from ``start`` up to but without ``limit``, ``delta`` apart."""
    dtype = ops.dtype(start)
    first, last, step = (ops.to_numpy(v).ravel()[0].item() for v in (start, limit, delta))
    count = range_length(first, last, step)
    # Half precision could neither count far nor add small steps: compute in the stash type.
    wide = DType.from_onnx(stash_type).numpy if DType.of(dtype) in (DType.Float16, DType.BFloat16) else dtype
    steps = ops.cast(ops.arange(0, count, 1, dtype=np.int64), wide)
    base, by = (ops.full((), v, wide) for v in (first, step))
    return ops.cast(ops.add(base, ops.multiply(steps, by)), dtype)


# ---------------------------------------------------------------------- diagonals, triangles


def _eye_type(input: Value, /, *, dtype: int | None, k: int) -> TensorType:
    return tensor_like(input, input.tensor_type.shape, None if dtype is None else DType.from_onnx(dtype))


@primitive(since=22, infer=_eye_type)
def EyeLike(ops: Any, input: Any, /, *, dtype: int | None = None, k: int = 0) -> Any:
    """Ones on diagonal ``k`` of a matrix with the shape of the input, zeros elsewhere."""
    if len(input.shape) != 2:
        raise ShapeMismatchError(f"takes a matrix, got shape {Shape(input.shape)}")
    rows, columns = input.shape
    return ops.eye(rows, columns, k, ops.dtype(input) if dtype is None else DType.from_onnx(dtype).numpy)


def _trilu_vjp(g: Value, _y: Value, _x: Value, *k: Value | None, upper: int) -> tuple[Value | None, ...]:
    return (Trilu(g, *k, upper=upper), *[None] * len(k))


@primitive(since=14, infer=same, vjp=_trilu_vjp, types="T int64 > T", known=(1,), complex=True)
def Trilu(ops: Any, input: Any, k: Any = None, /, *, upper: int = 1) -> Any:
    """The upper or lower triangle of matrices, zeros elsewhere."""
    if len(input.shape) < 2:
        raise ShapeMismatchError(f"takes matrices, got shape {Shape(input.shape)}")
    diagonal = 0 if k is None else int(ops.to_numpy(k).item())
    rows, columns = (int(size) for size in input.shape[-2:])
    above = np.arange(columns) - np.arange(rows)[:, None]
    mask = above >= diagonal if upper else above <= diagonal
    dtype = ops.dtype(input)
    return ops.where(ops.from_numpy(mask), input, ops.full((), "" if dtype.kind == "O" else 0, dtype))
