"""Creation operators of aten: filled tensors, ranges, literals, random numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from pyflame_rt.graph import DType
from pyflame_rt.graph.errors import InputError, UnsupportedOperatorError
from pyflame_rt.importers.aten.table import aten
from pyflame_rt.importers.aten.values import is_static, number, number_kind, shape_value, sizes, torch_dtype
from pyflame_rt.ops.core.value import Value, constant
from pyflame_rt.ops.onnx import random
from pyflame_rt.ops.onnx.creation import Range
from pyflame_rt.ops.onnx.shape import Expand, Reshape, Shape
from pyflame_rt.ops.onnx.slicing import Concat

__all__ = ["filled"]

MAX_LITERAL = 1 << 20  # elements of a tensor written out in the code


def filled(size: Any, value: Any, dtype: DType) -> Value:
    """A tensor of one number."""
    dims = list(size) if isinstance(size, (list, tuple)) else [size]
    one = number(value, dtype)
    return Expand(one, shape_value(dims)) if dims else one


def _kind(dtype: Any, default: DType = DType.Float32) -> DType:
    return default if dtype is None else torch_dtype(dtype)


@aten("zeros", "empty", "empty_strided")
def _zeros(size: Any, *_stride: Any, dtype: Any = None, **_: Any) -> Value:
    return filled(size, 0, _kind(dtype))


@aten("ones")
def _ones(size: Any, *, dtype: Any = None, **_: Any) -> Value:
    return filled(size, 1, _kind(dtype))


@aten("full")
def _full(size: Any, fill_value: Any, *, dtype: Any = None, **_: Any) -> Value:
    default = {bool: DType.Bool, int: DType.Int64}.get(number_kind(fill_value), DType.Float32)
    return filled(size, fill_value, _kind(dtype, fill_value.dtype if isinstance(fill_value, Value) else default))


@aten("zeros_like", "empty_like")
def _zeros_like(x: Value, *, dtype: Any = None, **_: Any) -> Value:
    return Expand(number(0, _kind(dtype, x.dtype)), Shape(x))


@aten("ones_like")
def _ones_like(x: Value, *, dtype: Any = None, **_: Any) -> Value:
    return Expand(number(1, _kind(dtype, x.dtype)), Shape(x))


@aten("full_like")
def _full_like(x: Value, fill_value: Any, *, dtype: Any = None, **_: Any) -> Value:
    return Expand(number(fill_value, _kind(dtype, x.dtype)), Shape(x))


@aten("new_zeros", "new_empty", "new_empty_strided")
def _new_zeros(x: Value, size: Any, *_stride: Any, dtype: Any = None, **_: Any) -> Value:
    return filled(size, 0, _kind(dtype, x.dtype))


@aten("new_ones")
def _new_ones(x: Value, size: Any, *, dtype: Any = None, **_: Any) -> Value:
    return filled(size, 1, _kind(dtype, x.dtype))


@aten("new_full")
def _new_full(x: Value, size: Any, fill_value: Any, *, dtype: Any = None, **_: Any) -> Value:
    return filled(size, fill_value, _kind(dtype, x.dtype))


@aten("scalar_tensor")
def _scalar_tensor(s: Any, *, dtype: Any = None, **_: Any) -> Value:
    return number(s, _kind(dtype))


@aten("tensor", "as_tensor", "_tensor")
def _tensor(data: Any, *, dtype: Any = None, **_: Any) -> Value:
    if isinstance(data, Value):
        return data if dtype is None else number(data, torch_dtype(dtype))
    flat, shape = _flat(data)
    kinds = {number_kind(x) for x in flat}
    default = next((k for t, k in ((float, DType.Float32), (int, DType.Int64), (bool, DType.Bool)) if t in kinds), None)
    kind = _kind(dtype, default or DType.Float32)
    if all(is_static(x) for x in flat):
        return constant(np.asarray(flat, kind.numpy).reshape(shape), kind)
    parts = [Reshape(number(x, kind), [1]) for x in flat]
    joined = parts[0] if len(parts) == 1 else Concat(*parts, axis=0)
    return Reshape(joined, constant(shape, DType.Int64))


def _flat(data: Any) -> tuple[list[Any], list[int]]:
    if not isinstance(data, (list, tuple)):
        return [data], []
    items = [_flat(item) for item in data]
    if len({tuple(shape) for _, shape in items}) > 1:
        raise InputError("a list of lists of different lengths is no tensor")
    flat = [x for part, _ in items for x in part]
    if len(flat) > MAX_LITERAL:
        raise UnsupportedOperatorError(f"a tensor of more than {MAX_LITERAL} elements is written out in the code")
    return flat, [len(data), *(items[0][1] if items else [])]


@aten("arange", "range")
def _arange(start: Any, end: Any = None, step: Any = 1, *, dtype: Any = None, **_: Any) -> Value:
    low, high = (0, start) if end is None else (start, end)
    whole = all(number_kind(v) is not float for v in (low, high, step))
    kind = _kind(dtype, DType.Int64 if whole else DType.Float32)
    if kind.is_integer or kind in (DType.Float32, DType.Float64):
        return Range(*(number(v, kind) for v in (low, high, step)))
    return number(Range(*(number(v, DType.Float32) for v in (low, high, step))), kind)


@aten("linspace")
def _linspace(start: Any, end: Any, steps: int, *, dtype: Any = None, **_: Any) -> Value:
    if not all(is_static(v) for v in (start, end, steps)):
        raise UnsupportedOperatorError("linspace between numbers that are only known when running is not lowered")
    if not 0 <= steps <= MAX_LITERAL:
        raise UnsupportedOperatorError(f"linspace of {steps} steps; at most {MAX_LITERAL} are lowered")
    kind = _kind(dtype)
    return constant(np.linspace(start, end, steps).astype(kind.numpy), kind)


@aten("eye")
def _eye(n: int, m: Any = None, *, dtype: Any = None, **_: Any) -> Value:
    from pyflame_rt.ops.onnx.creation import EyeLike

    kind = _kind(dtype)
    return EyeLike(filled([n, n if m is None else m], 0, kind))


@aten("tril_indices")
def _tril_indices(row: int, col: int, offset: int = 0, **_: Any) -> Value:
    return constant(np.stack(np.tril_indices(row, offset, col)).astype(np.int64), DType.Int64)


@aten("triu_indices")
def _triu_indices(row: int, col: int, offset: int = 0, **_: Any) -> Value:
    return constant(np.stack(np.triu_indices(row, offset, col)).astype(np.int64), DType.Int64)


def _blank(size: Any, dtype: Any) -> Value:
    return filled(size, 0, _kind(dtype))


@aten("rand")
def _rand(size: Any, *, dtype: Any = None, **_: Any) -> Value:
    return random.RandomUniformLike(_blank(size, dtype))


@aten("randn")
def _randn(size: Any, *, dtype: Any = None, **_: Any) -> Value:
    return random.RandomNormalLike(_blank(size, dtype))


@aten("rand_like")
def _rand_like(x: Value, *, dtype: Any = None, **_: Any) -> Value:
    return random.RandomUniformLike(_blank(sizes(x), x.dtype if dtype is None else dtype))


@aten("randn_like")
def _randn_like(x: Value, *, dtype: Any = None, **_: Any) -> Value:
    return random.RandomNormalLike(_blank(sizes(x), x.dtype if dtype is None else dtype))


@aten("item", "_local_scalar_dense", "ScalarImplicit")
def _item(x: Value) -> Any:
    from pyflame_rt.importers.aten.values import wrap

    kind = bool if x.dtype is DType.Bool else int if x.dtype.is_integer else float
    return wrap(x, kind)


@aten("sym_size")
def _sym_size(x: Value, dim: int) -> Any:
    return sizes(x)[dim]
