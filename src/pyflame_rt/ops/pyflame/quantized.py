"""Operators on 8-bit integers, and casts to 16-bit floats: what quantized graphs are written in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyflame_rt.graph import DType, TensorType
from pyflame_rt.ops.core.registry import operator
from pyflame_rt.ops.core.type_rules import broadcast, to_dtype
from pyflame_rt.ops.onnx.cast import Cast
from pyflame_rt.ops.onnx.matmul import MatMulInteger
from pyflame_rt.ops.onnx.quantize import DequantizeLinear, QLinearConv, QuantizeLinear, requantize
from pyflame_rt.ops.pyflame.fused import OWN

if TYPE_CHECKING:
    from pyflame_rt.ops.core.value import Value

__all__ = [
    "CastFromBF16",
    "CastFromFP16",
    "CastToBF16",
    "CastToFP16",
    "Dequantize",
    "Quantize",
    "QuantizedAdd",
    "QuantizedConv",
    "QuantizedMatMul",
]


def _steps_type(x: Value, scale: Value, zero_point: Value | None = None, /, **_: Any) -> TensorType:
    return TensorType(DType.Int8 if zero_point is None else zero_point.dtype, x.tensor_type.shape)


@operator(since=1, domain=OWN, infer=_steps_type)
def Quantize(x: Value, scale: Value, zero_point: Value | None = None, /, *, axis: int = 1) -> Value:
    """``saturate(round(x / scale) + zero_point)`` in the zero point's type; int8 without one."""
    if zero_point is None:
        return QuantizeLinear(x, scale, axis=axis, output_dtype=DType.Int8)
    return QuantizeLinear(x, scale, zero_point, axis=axis)


@operator(since=1, domain=OWN)
def Dequantize(x: Value, scale: Value, zero_point: Value | None = None, /, *, axis: int = 1) -> Value:
    """``(x - zero_point) * scale``."""
    return DequantizeLinear(x, scale, zero_point, axis=axis)


@operator(since=1, domain=OWN, kind="product")
def QuantizedMatMul(
    a: Value,
    a_scale: Value,
    a_zero_point: Value,
    b: Value,
    b_scale: Value,
    b_zero_point: Value,
    y_scale: Value,
    y_zero_point: Value,
    bias: Value | None = None,
    /,
) -> Value:
    """Product of 8-bit matrices with exact 32-bit sums, an int32 bias (in steps of the sums), quantized again."""
    sums = MatMulInteger(a, b, a_zero_point, b_zero_point)
    if bias is not None:
        sums = sums + bias
    return requantize(sums, a_scale * b_scale / y_scale, y_zero_point)


@operator(since=1, domain=OWN, kind="product")
def QuantizedConv(
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
    """Convolution of 8-bit tensors with exact 32-bit sums, an int32 bias, quantized again."""
    return QLinearConv(
        x, x_scale, x_zero_point, w, w_scale, w_zero_point, y_scale, y_zero_point, B,
        auto_pad=auto_pad, dilations=dilations, group=group, kernel_shape=kernel_shape, pads=pads, strides=strides,
    )  # fmt: skip


def _sum_type(a: Value, a_scale: Value, a_zero_point: Value, b: Value, *rest: Value) -> TensorType:
    return broadcast(a, b, dtype=rest[-1].dtype)


@operator(since=1, domain=OWN, infer=_sum_type)
def QuantizedAdd(
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
    """Sum of quantized tensors, quantized again."""
    total = DequantizeLinear(a, a_scale, a_zero_point) + DequantizeLinear(b, b_scale, b_zero_point)
    return QuantizeLinear(total, y_scale, y_zero_point)


# ---------------------------------------------------------------------- 16-bit floats


@operator(since=1, domain=OWN, infer=to_dtype(DType.Float16))
def CastToFP16(x: Value, /) -> Value:
    """The nearest IEEE half-precision numbers."""
    return Cast(x, to=DType.Float16)


@operator(since=1, domain=OWN, infer=to_dtype(DType.Float32))
def CastFromFP16(x: Value, /) -> Value:
    """Half-precision numbers as float32."""
    return Cast(x, to=DType.Float32)


@operator(since=1, domain=OWN, infer=to_dtype(DType.BFloat16))
def CastToBF16(x: Value, /) -> Value:
    """The nearest bfloat16 numbers."""
    return Cast(x, to=DType.BFloat16)


@operator(since=1, domain=OWN, infer=to_dtype(DType.Float32))
def CastFromBF16(x: Value, /) -> Value:
    """bfloat16 numbers as float32."""
    return Cast(x, to=DType.Float32)
