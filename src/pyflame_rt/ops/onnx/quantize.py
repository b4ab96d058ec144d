"""Linear quantization and the operators that compute on quantized tensors."""

from __future__ import annotations

from typing import Any

import ml_dtypes

from pyflame_rt.graph import DType, TensorType
from pyflame_rt.graph.errors import DTypeMismatchError, ShapeMismatchError
from pyflame_rt.ops.core.guards import count_of, has_shape, same_size
from pyflame_rt.ops.core.registry import operator
from pyflame_rt.ops.core.type_rules import normalize_axis, static_size
from pyflame_rt.ops.core.value import Value, constant
from pyflame_rt.ops.onnx.activation import Clip
from pyflame_rt.ops.onnx.arithmetic import Max, Min
from pyflame_rt.ops.onnx.cast import Cast
from pyflame_rt.ops.onnx.conv import ConvInteger
from pyflame_rt.ops.onnx.index import Gather
from pyflame_rt.ops.onnx.logic import Equal, Where
from pyflame_rt.ops.onnx.math import Round
from pyflame_rt.ops.onnx.matmul import MatMul, MatMulInteger
from pyflame_rt.ops.onnx.reduce import ReduceMax, ReduceMin
from pyflame_rt.ops.onnx.shape import Reshape

_FLOAT8 = (DType.Float8E4M3FN, DType.Float8E4M3FNUZ, DType.Float8E5M2, DType.Float8E5M2FNUZ)
_QUANTIZED = {
    DType.Int8, DType.UInt8, DType.Int16, DType.UInt16, DType.Int4, DType.UInt4, DType.Int2, DType.UInt2,
    DType.Float4E2M1, *_FLOAT8,
}  # fmt: skip


def _spread(parameter: Value, x: Value, axis: int, block_size: int) -> Value:
    """A scale or zero point in a form that broadcasts against ``x``."""
    if parameter.rank == 0:
        return parameter
    if parameter.rank == 1 and parameter.shape[0] == 1:
        return Reshape(parameter, [])
    place = normalize_axis(axis, x.rank)
    if not block_size:
        if parameter.rank != 1:
            raise ShapeMismatchError(f"a scale of shape {parameter.shape} needs block_size: for an axis it is a vector")
        return Reshape(parameter, [-1 if i == place else 1 for i in range(x.rank)])
    if parameter.rank != x.rank:
        raise ShapeMismatchError(f"blocks of {x.shape} need a scale of rank {x.rank}, got shape {parameter.shape}")
    size = static_size(x.shape[place])
    blocks = -(-size // block_size)
    if parameter.shape[place] != blocks:
        raise ShapeMismatchError(
            f"axis {place} of size {size} has {blocks} blocks of {block_size}, the scale has {parameter.shape[place]}"
        )
    return Gather(parameter, [i // block_size for i in range(size)], axis=place)


def _scale_needs(
    x: Value, scale: Value, zero_point: Value | None = None, /, *, axis: int = 1, block_size: int = 0, **_: Any
) -> None:
    """One scale for all, or for each place of an axis, or for each block; as many zero points."""
    count, zeros = count_of(scale), count_of(zero_point)
    if zero_point is not None:
        same_size("the number of zero points", zeros, count, "that of the scales")
    if not block_size and scale.rank == 1 and count != 1:
        place = normalize_axis(axis, x.rank)
        same_size("the number of scales", count, x.shape[place], f"the size of axis {place}")


def _target(zero_point: Value | None, output_dtype: int) -> DType:
    """Element type of a quantized tensor."""
    asked = DType.from_onnx(output_dtype) if output_dtype else None
    if zero_point is None:
        target = DType.UInt8 if asked is None else asked
    else:
        target = zero_point.dtype
        if asked not in (None, target):
            raise DTypeMismatchError(f"output_dtype {asked.label} differs from the zero point's {target.label}")
    if target not in _QUANTIZED:
        raise DTypeMismatchError(f"{target.label} is not a type to quantize to")
    return target


def _saturated(x: Value, zero_point: Value | None, target: DType) -> Value:
    """Round a float32 to even, add the zero point, clip to the range of an integer type."""
    rounded = Round(x)
    if zero_point is not None:
        rounded = rounded + Cast(zero_point, to=DType.Float32)
    limits = ml_dtypes.iinfo(target.numpy)
    return Cast(Clip(rounded, float(limits.min), float(limits.max)), to=target)


def _quantized_type(
    x: Value, y_scale: Value, y_zero_point: Value | None = None, /, *, output_dtype: int = 0, **_: Any
) -> TensorType:
    return TensorType(_target(y_zero_point, output_dtype), x.tensor_type.shape)


@operator(since=28, infer=_quantized_type, requires=_scale_needs, types="T1 T2 T3 > T3")
def QuantizeLinear(
    x: Value,
    y_scale: Value,
    y_zero_point: Value | None = None,
    /,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
    precision: int = 0,
    saturate: int = 1,
) -> Value:
    """``saturate(round(x / scale) + zero_point)``, per tensor, per axis or per block."""
    target = _target(y_zero_point, output_dtype)
    divisor = DType.from_onnx(precision) if precision else y_scale.dtype
    if not divisor.is_float or divisor is DType.Float8E8M0:  # types that cannot hold a quotient
        divisor = DType.Float32
    scale = Cast(_spread(y_scale, x, axis, block_size), to=divisor)
    quotient = Cast(Cast(x, to=divisor) / scale, to=DType.Float32)
    zero = None if y_zero_point is None else _spread(y_zero_point, x, axis, block_size)
    if target.is_integer:
        return _saturated(quotient, zero, target)
    if zero is not None:
        quotient = quotient + Cast(zero, to=DType.Float32)
    return Cast(quotient, to=target, saturate=saturate)


def _dequantized_type(
    x: Value, x_scale: Value, x_zero_point: Value | None = None, /, *, output_dtype: int = 0, **_: Any
) -> TensorType:
    if x_zero_point is not None and x_zero_point.dtype is not x.dtype:
        raise DTypeMismatchError(f"x is {x.dtype.label}, its zero point {x_zero_point.dtype.label}")
    return TensorType(DType.from_onnx(output_dtype) if output_dtype else x_scale.dtype, x.tensor_type.shape)


@operator(since=28, infer=_dequantized_type, requires=_scale_needs, types="T1 T2:float T1 > T3")
def DequantizeLinear(
    x: Value,
    x_scale: Value,
    x_zero_point: Value | None = None,
    /,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
) -> Value:
    """``(x - zero_point) * scale``, per tensor, per axis or per block."""
    answer = _dequantized_type(x, x_scale, x_zero_point, output_dtype=output_dtype).dtype
    exact = DType.Int32 if x.dtype.is_integer else DType.Float32
    shifted = Cast(x, to=exact)
    if x_zero_point is not None:
        shifted = shifted - Cast(_spread(x_zero_point, x, axis, block_size), to=exact)
    scale = Cast(_spread(x_scale, x, axis, block_size), to=DType.Float32)
    return Cast(Cast(shifted, to=DType.Float32) * scale, to=answer)


@operator(since=11, types="float32 > uint8 float32 uint8")
def DynamicQuantizeLinear(x: Value, /) -> tuple[Value, Value, Value]:
    """Quantize to uint8 over the range of the data, which always includes 0."""
    low = Min(ReduceMin(x, keepdims=0), 0.0)
    high = Max(ReduceMax(x, keepdims=0), 0.0)
    # All zeros: any scale does, but not 0.
    scale = Where(Equal(high, low), constant(1.0, x), (high - low) / 255.0)
    zero = _saturated(-low / scale, None, DType.UInt8)
    return QuantizeLinear(x, scale, zero), scale, zero


def requantize(sums: Value, scale: Value, zero_point: Value) -> Value:
    """int32 sums (or float ones) as quantized numbers of the output."""
    wide = Cast(sums, to=DType.Float32) * Cast(scale, to=DType.Float32)
    if zero_point.dtype.is_integer:
        return _saturated(wide, zero_point, zero_point.dtype)
    return Cast(wide + Cast(zero_point, to=DType.Float32), to=zero_point.dtype)


def _per_row(parameter: Value, like: Value) -> Value:
    """A vector with one entry per row of ``like``, as a column."""
    vector = parameter.rank == 1 and like.rank > 1 and parameter.shape[0] != 1
    return Reshape(parameter, [-1, 1]) if vector else parameter


@operator(since=21, types="T1 TS:float T1 T2 TS T2 TS T3 > T3", kind="product")
def QLinearMatMul(
    a: Value,
    a_scale: Value,
    a_zero_point: Value,
    b: Value,
    b_scale: Value,
    b_zero_point: Value,
    y_scale: Value,
    y_zero_point: Value,
    /,
) -> Value:
    """Matrix product of quantized tensors, accumulated exactly and quantized again."""
    if a.dtype.is_integer:
        sums = MatMulInteger(a, b, a_zero_point, b_zero_point)
    else:
        left = Cast(a, to=DType.Float32) - Cast(_per_row(a_zero_point, a), to=DType.Float32)
        sums = MatMul(left, Cast(b, to=DType.Float32) - Cast(b_zero_point, to=DType.Float32))
    return requantize(sums, _per_row(a_scale, a) * b_scale / y_scale, y_zero_point)


def conv_needs(*inputs: Value | None, **_: Any) -> None:
    """What QLinearConv adds to what ConvInteger requires: one number, or one for each filter."""
    weights = inputs[3]
    assert weights is not None
    filters = weights.shape[0]
    names = ("x_scale", "x_zero_point", "", "w_scale", "w_zero_point", "y_scale", "y_zero_point")
    for name, value in zip(names, inputs[1:8], strict=False):
        if name and not (name.startswith("w") and value is not None and count_of(value) != 1):
            same_size(f"the number of elements of {name}", 1 if value is None else count_of(value), 1, "one number")
        elif name:
            has_shape(name, value, [filters], "filters")
    has_shape("B", inputs[8] if len(inputs) > 8 else None, [filters], "filters")


@operator(since=10, requires=conv_needs, types="T1 float32 T1 T2 float32 T2 float32 T3 int32 > T3", kind="product")
def QLinearConv(
    x: Value,
    x_scale: Value,
    x_zero_point: Value,
    w: Value,
    w_scale: Value,
    w_zero_point: Value,
    y_scale: Value,
    y_zero_point: Value,
    B: Value | None = None,
    /,
    *,
    auto_pad: str = "NOTSET",
    dilations: list[int] | None = None,
    group: int = 1,
    kernel_shape: list[int] | None = None,
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Value:
    """Convolution of quantized tensors, accumulated exactly and quantized again."""
    sums = ConvInteger(
        x, w, x_zero_point, w_zero_point,
        auto_pad=auto_pad, dilations=dilations, group=group, kernel_shape=kernel_shape, pads=pads, strides=strides,
    )  # fmt: skip
    per_channel = [-1, *[1] * (x.rank - 2)]
    if B is not None:
        sums = sums + Reshape(B, per_channel)
    scale = x_scale * w_scale / y_scale
    return requantize(sums, Reshape(scale, per_channel) if scale.rank == 1 else scale, y_zero_point)
