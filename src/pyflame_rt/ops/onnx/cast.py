"""Element types: conversion of values, reinterpretation of bits; and Identity."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.graph import Dim, DType, Node, TensorType, ValueType
from pyflame_rt.graph.errors import DTypeMismatchError, InputError, UndeterminedError
from pyflame_rt.ops.core.registry import operator, primitive
from pyflame_rt.ops.core.upgrade import Upgrade, upgrade

if TYPE_CHECKING:
    from pyflame_rt.ops.core.value import Value

_FLOAT8 = {
    DType.Float8E4M3FN: 448.0,
    DType.Float8E4M3FNUZ: 240.0,
    DType.Float8E5M2: 57344.0,
    DType.Float8E5M2FNUZ: 57344.0,
}


def _cast_type(x: Value, /, *, to: int, **_: Any) -> TensorType:
    return TensorType(DType.from_onnx(to), x.tensor_type.shape)


def _cast_vjp(g: Value, y: Value, x: Value, **_: Any) -> tuple[Value | None]:
    return (Cast(g, to=x.dtype) if x.dtype.is_float or x.dtype.is_complex else None,)


@primitive(since=28, infer=_cast_type, shape_math=True, vjp=_cast_vjp, kind="move", scalar="cast", complex=True)
def Cast(ops: Any, input: Any, /, *, round_mode: str = "up", saturate: int = 1, to: int) -> Any:
    """Convert the elements to another type."""
    target, source = DType.from_onnx(to), ops.dtype(input)
    if source.kind == "O":
        return _from_objects(ops, input, target, saturate, round_mode)
    if target is DType.String:
        return _to_strings(ops.to_numpy(input))
    if source == target.numpy:
        return input
    if _is_small(source) and _is_small(target.numpy):
        # The small types do not know each other; float32 holds all of their values.
        return _convert(ops, ops.cast(input, np.float32), target, saturate, round_mode)
    return _convert(ops, input, target, saturate, round_mode)


@operator(since=25, types="T1 T2 > T2", complex=True)
def CastLike(input: Value, target_type: Value, /, *, round_mode: str = "up", saturate: int = 1) -> Value:
    """Convert the elements to the type of another tensor."""
    return Cast(input, to=target_type.dtype, round_mode=round_mode, saturate=saturate)


# ------------------------------------------------------------------ small floats


def _is_small(dtype: np.dtype[Any]) -> bool:
    return dtype.type.__module__ == "ml_dtypes"


def _convert(ops: Any, x: Any, target: DType, saturate: int, round_mode: str) -> Any:
    if target in _FLOAT8:
        return _to_float8(ops, x, target, saturate)
    if target is DType.Float8E8M0:
        return _to_power_of_two(ops, x, saturate, round_mode)
    return ops.cast(x, target.numpy)


def _to_float8(ops: Any, x: Any, target: DType, saturate: int) -> Any:
    """Rounded to even; beyond the largest value NaN or infinity, unless it saturates."""
    if not DType.of(ops.dtype(x)).is_float:
        x = ops.cast(x, np.float32)
    top = _FLOAT8[target]
    if saturate:
        return ops.cast(ops.where(ops.isnan(x), x, ops.clip(x, -top, top)), target.numpy)
    if target is DType.Float8E4M3FN:
        # Libraries disagree on what lies beyond the last tie of this type; NaN is NaN in all.
        x = ops.where(ops.greater(ops.abs(x), 464.0), ops.full_like(x, float("nan")), x)
    return ops.cast(x, target.numpy)


def _to_power_of_two(ops: Any, x: Any, saturate: int, round_mode: str) -> Any:
    """Float8E8M0 is the exponent of a float32 alone; the fraction decides the rounding."""
    if round_mode not in ("up", "down", "nearest"):
        raise InputError(f"round_mode must be up, down or nearest, got {round_mode!r}")
    x = ops.cast(x, np.float32)
    bits = ops.bitwise_and(ops.bitcast(x, np.int32), 0x7FFFFFFF)
    exponent, fraction = ops.right_shift(bits, 23), ops.bitwise_and(bits, 0x7FFFFF)
    # Below the normal numbers 2**-127, half way up, is the code 0; the rest is as above it.
    low = ops.equal(exponent, 0)
    half = ops.where(low, ops.full_like(fraction, 0x600000), ops.full_like(fraction, 0x400000))
    exact = ops.where(low, ops.full_like(fraction, 0x400000), ops.zeros_like(fraction))
    raise_by = {
        "up": ops.greater(fraction, exact),
        "down": ops.zeros(tuple(fraction.shape), dtype=bool),
        "nearest": ops.greater_equal(fraction, half),
    }[round_mode]
    code = ops.add(exponent, ops.cast(raise_by, np.int32))
    tiny = ops.logical_and(low, ops.less(fraction, 0x400000))
    nan = ops.full_like(code, 0xFF)
    if saturate:
        code = ops.minimum(code, 0xFE)
    else:
        code = ops.where(ops.logical_or(tiny, ops.greater(code, 0xFE)), nan, code)
    code = ops.where(ops.isnan(x), nan, code)
    return ops.bitcast(ops.cast(code, np.uint8), DType.Float8E8M0.numpy)


# ------------------------------------------------------------------ strings and symbolic sizes


def _from_objects(ops: Any, x: Any, target: DType, saturate: int, round_mode: str) -> Any:
    flat = x.ravel().tolist()
    if any(isinstance(v, Dim) for v in flat):
        if target in (DType.Int64, DType.Int32):
            return x
        raise UndeterminedError("a symbolic size has no value of another type yet")
    if target is DType.String:
        return x
    numbers = [_number(v, target) for v in flat]
    if target.is_integer:
        limits = np.iinfo(np.uint64 if target is DType.UInt64 else np.int64)
        for text, number in zip(flat, numbers, strict=True):
            if not limits.min <= number <= limits.max:
                raise InputError(f"the string {text!r} is no number from {limits.min} to {limits.max}")
        wide = np.array(numbers, limits.dtype)
        return wide.astype(target.numpy).reshape(x.shape)
    if target is DType.Bool:
        return np.array([bool(v) for v in numbers], np.bool_).reshape(x.shape)
    array = np.array(numbers, np.float64).reshape(x.shape)
    if target in (DType.Float64, DType.Float32, DType.Float16):
        with np.errstate(over="ignore"):
            return array.astype(target.numpy)
    return Cast.body(ops, array, to=target.onnx, saturate=saturate, round_mode=round_mode)


def _number(text: Any, target: DType) -> int | float:
    try:
        if target.is_integer:
            return _whole(str(text))
        return float(text)
    except (ValueError, OverflowError) as error:
        raise InputError(f"the string {text!r} is not a number") from error


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        return int(float(text))


def _to_strings(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The shortest text that reads back as the same number."""
    result = np.empty(x.shape, dtype=object)
    wide = x.astype(np.float32) if _is_small(x.dtype) and DType.of(x.dtype).is_float else x
    result.ravel()[:] = [_text(v) for v in wide.ravel()]
    return result


def _text(value: Any) -> str:
    if not isinstance(value, np.floating):
        return str(int(value))
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "INF" if value > 0 else "-INF"
    return str(value)


# ------------------------------------------------------------------ bits


def _bitcast_type(x: Value, /, *, to: int) -> TensorType:
    target = DType.from_onnx(to)
    _same_width(x.dtype, target)
    return TensorType(target, x.tensor_type.shape)


def _same_width(source: DType, target: DType) -> None:
    if DType.String in (source, target) or source.bits != target.bits:
        raise DTypeMismatchError(f"BitCast needs types of equal width, got {source.label} and {target.label}")


@primitive(since=26, infer=_bitcast_type)
def BitCast(ops: Any, input: Any, /, *, to: int) -> Any:
    """The same bits read as another type of equal width."""
    source, target = DType.of(ops.dtype(input)), DType.from_onnx(to)
    _same_width(source, target)
    if source is target:
        return input
    if source.bits >= 8:
        return ops.bitcast(input, target.numpy)
    # Types of 2 and 4 bits take a byte each in memory, whose upper bits mean nothing.
    code = ops.bitwise_and(ops.bitcast(input, np.uint8), (1 << source.bits) - 1)
    if target.is_float:
        return ops.bitcast(code, target.numpy)
    return ops.cast(code, target.numpy)


# ------------------------------------------------------------------ any value


def _identity_type(x: Value, /) -> ValueType | None:
    return x.type


@primitive(
    since=25,
    infer=_identity_type,
    shape_math=True,
    vjp=lambda g, y, x: (g,),
    kind="move",
    elementwise=True,
    complex=True,
)
def Identity(ops: Any, input: Any, /) -> Any:
    """The value itself: a tensor, a sequence, an optional."""
    return input


@upgrade("Cast", to=6)
def type_names_became_numbers(node: Node, up: Upgrade) -> Node:
    """Opset 1 spelled the type out, as in "FLOAT"."""
    to = node.get_attr("to")
    return node.replace(attributes={"to": DType.of(to.lower()).onnx if isinstance(to, str) else to})
