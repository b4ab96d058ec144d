"""Quantized operators of the ``com.microsoft`` domain, as ONNX Runtime's quantizer writes them.

Each is the float operator between DequantizeLinear and QuantizeLinear: results may differ from
ONNX Runtime's integer kernels by one quantization step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyflame_rt.graph import DType, TensorType
from pyflame_rt.graph.errors import InputError, UnsupportedOperatorError
from pyflame_rt.ops.core.guards import (
    at_least,
    count_of,
    dims_of,
    has_rank,
    has_shape,
    same_size,
    size_at,
    spreads_to,
)
from pyflame_rt.ops.core.registry import operator
from pyflame_rt.ops.core.type_rules import broadcast, same
from pyflame_rt.ops.core.value import Value, constant
from pyflame_rt.ops.microsoft.attention import attend_packed
from pyflame_rt.ops.microsoft.fused import MICROSOFT, EmbedLayerNormalization, embed_needs, flat_softmax
from pyflame_rt.ops.onnx.activation import LeakyRelu, Sigmoid, Softmax
from pyflame_rt.ops.onnx.cast import Cast
from pyflame_rt.ops.onnx.conv import ConvInteger
from pyflame_rt.ops.onnx.logic import Where
from pyflame_rt.ops.onnx.matmul import MatMul, MatMulInteger
from pyflame_rt.ops.onnx.maxpool import MaxPool
from pyflame_rt.ops.onnx.pool import AveragePool, GlobalAveragePool
from pyflame_rt.ops.onnx.quantize import DequantizeLinear as Dequantize
from pyflame_rt.ops.onnx.quantize import DynamicQuantizeLinear, conv_needs
from pyflame_rt.ops.onnx.quantize import QuantizeLinear as Quantize
from pyflame_rt.ops.onnx.reduce import ReduceMean, ReduceSum
from pyflame_rt.ops.onnx.shape import Reshape, Transpose, Unsqueeze
from pyflame_rt.ops.onnx.slicing import Concat

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyflame_rt.ops.core.guards import Within

# ------------------------------------------------------------------ pieces


def _scalar(x: Value | None) -> Value | None:
    """Scales and zero points come as scalars or as vectors of one."""
    return x if x is None or x.rank == 0 else Reshape(x, constant([], DType.Int64))


def real(x: Value, scale: Value, zero: Value | None) -> Value:
    """The numbers that integers with one scale stand for."""
    return Dequantize(x, _scalar(scale), _scalar(zero))


def centred(x: Value, zero: Value | None) -> Value:
    """Integers less their zero point as float32, which sums of up to 65,000 of them are exact in."""
    wide = Cast(x, to=DType.Float32)
    return wide if zero is None else wide - Cast(_scalar(zero), to=DType.Float32)


def steps(y: Value, scale: Value, zero: Value | None, dtype: DType) -> Value:
    """The nearest integers with one scale."""
    if zero is None:
        return Quantize(y, _scalar(scale), output_dtype=dtype)
    return Quantize(y, _scalar(scale), _scalar(zero))


def _first_type(A: Value, *inputs: Value | None) -> TensorType:
    return broadcast(A, inputs[2])


@operator(since=1, domain=MICROSOFT)
def QuantizeLinear(x: Value, y_scale: Value, y_zero_point: Value | None = None, /, *, axis: int | None = None) -> Value:
    """QuantizeLinear under Microsoft's domain, which had more element types earlier."""
    return Quantize(x, y_scale, y_zero_point, axis=axis)


@operator(since=1, domain=MICROSOFT)
def DequantizeLinear(
    x: Value, x_scale: Value, x_zero_point: Value | None = None, /, *, axis: int | None = None
) -> Value:
    """DequantizeLinear under Microsoft's domain, which had more element types earlier."""
    return Dequantize(x, x_scale, x_zero_point, axis=axis)


# ------------------------------------------------------------------ element by element


@operator(since=1, domain=MICROSOFT, infer=_first_type)
def QLinearAdd(
    A: Value,
    A_scale: Value,
    A_zero_point: Value | None,
    B: Value,
    B_scale: Value,
    B_zero_point: Value | None,
    C_scale: Value,
    C_zero_point: Value | None = None,
    /,
) -> Value:
    """Sum of quantized tensors."""
    return steps(real(A, A_scale, A_zero_point) + real(B, B_scale, B_zero_point), C_scale, C_zero_point, A.dtype)


@operator(since=1, domain=MICROSOFT, infer=_first_type)
def QLinearMul(
    A: Value,
    A_scale: Value,
    A_zero_point: Value | None,
    B: Value,
    B_scale: Value,
    B_zero_point: Value | None,
    C_scale: Value,
    C_zero_point: Value | None = None,
    /,
) -> Value:
    """Product of quantized tensors."""
    return steps(real(A, A_scale, A_zero_point) * real(B, B_scale, B_zero_point), C_scale, C_zero_point, A.dtype)


@operator(since=1, domain=MICROSOFT, infer=same)
def QLinearSigmoid(
    X: Value, X_scale: Value, X_zero_point: Value | None, Y_scale: Value, Y_zero_point: Value | None = None, /
) -> Value:
    """Sigmoid of a quantized tensor."""
    return steps(Sigmoid(real(X, X_scale, X_zero_point)), Y_scale, Y_zero_point, X.dtype)


@operator(since=1, domain=MICROSOFT, infer=same)
def QLinearLeakyRelu(
    X: Value,
    X_scale: Value,
    X_zero_point: Value | None,
    Y_scale: Value,
    Y_zero_point: Value | None = None,
    /,
    *,
    alpha: float = 0.01,
) -> Value:
    """LeakyRelu of a quantized tensor."""
    return steps(LeakyRelu(real(X, X_scale, X_zero_point), alpha=alpha), Y_scale, Y_zero_point, X.dtype)


@operator(since=1, domain=MICROSOFT, infer=same)
def QLinearSoftmax(
    X: Value,
    X_scale: Value,
    x_zero_point: Value | None,
    y_scale: Value,
    y_zero_point: Value,
    /,
    *,
    opset: int,
    axis: int = -1,
) -> Value:
    """Softmax of a quantized tensor, in the meaning of the given opset."""
    x = real(X, X_scale, x_zero_point)
    y = flat_softmax(x, axis) if opset < 13 else Softmax(x, axis=axis)
    return steps(y, y_scale, y_zero_point, X.dtype)


@operator(since=1, domain=MICROSOFT)
def QLinearWhere(
    condition: Value,
    X: Value,
    x_scale: Value,
    x_zero_point: Value,
    Y: Value,
    y_scale: Value,
    y_zero_point: Value,
    z_scale: Value,
    z_zero_point: Value,
    /,
) -> Value:
    """Choice between quantized tensors."""
    chosen = Where(condition, real(X, x_scale, x_zero_point), real(Y, y_scale, y_zero_point))
    return steps(chosen, z_scale, z_zero_point, X.dtype)


@operator(since=1, domain=MICROSOFT)
def QLinearConcat(Y_scale: Value, Y_zero_point: Value, /, *inputs: Value, axis: int) -> Value:
    """Quantized tensors, each with its scale and zero point, one after the other."""
    if len(inputs) % 3:
        raise InputError(f"inputs come in threes (tensor, scale, zero point), got {len(inputs)}")
    parts = [real(*inputs[i : i + 3]) for i in range(0, len(inputs), 3)]
    return steps(Concat(*parts, axis=axis), Y_scale, Y_zero_point, Y_zero_point.dtype)


@operator(since=1, domain=MICROSOFT)
def MulInteger(A: Value, A_zero_point: Value | None, B: Value, B_zero_point: Value | None = None, /) -> Value:
    """Product of 8-bit integers, element by element, in int32."""
    return _centred(A, A_zero_point) * _centred(B, B_zero_point)


def _centred(x: Value, zero: Value | None) -> Value:
    wide = Cast(x, to=DType.Int32)
    return wide if zero is None else wide - Cast(zero, to=DType.Int32)


# ------------------------------------------------------------------ means


def _channels_first(x: Value) -> Value:
    return Transpose(x, perm=[0, x.rank - 1, *range(1, x.rank - 1)])


def _channels_last(x: Value) -> Value:
    return Transpose(x, perm=[0, *range(2, x.rank), 1])


@operator(since=1, domain=MICROSOFT)
def QLinearGlobalAveragePool(
    X: Value, x_scale: Value, x_zero_point: Value, y_scale: Value, y_zero_point: Value, /, *, channels_last: int = 0
) -> Value:
    """Means over all spatial axes of a quantized tensor."""
    x = centred(X, x_zero_point)
    y = _channels_last(GlobalAveragePool(_channels_first(x))) if channels_last else GlobalAveragePool(x)
    return steps(y * _scalar(x_scale), y_scale, y_zero_point, X.dtype)


@operator(since=1, domain=MICROSOFT)
def QLinearAveragePool(
    X: Value,
    x_scale: Value,
    x_zero_point: Value | None,
    y_scale: Value,
    y_zero_point: Value | None = None,
    /,
    *,
    kernel_shape: list[int],
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    channels_last: int = 0,
    count_include_pad: int = 0,
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Value:
    """Means of windows of a quantized tensor."""
    x = real(X, x_scale, x_zero_point)  # means of floats, as onnxruntime takes them
    y = AveragePool(
        _channels_first(x) if channels_last else x,
        kernel_shape=kernel_shape,
        auto_pad=auto_pad,
        ceil_mode=ceil_mode,
        count_include_pad=count_include_pad,
        pads=pads,
        strides=strides,
    )
    return steps(_channels_last(y) if channels_last else y, y_scale, y_zero_point, X.dtype)


@operator(since=1, domain=MICROSOFT)
def QLinearReduceMean(
    data: Value,
    data_scale: Value,
    data_zero_point: Value | None,
    reduced_scale: Value,
    reduced_zero_point: Value | None = None,
    /,
    *,
    axes: list[int],
    keepdims: int,
) -> Value:
    """Means along axes of a quantized tensor."""
    mean = ReduceMean(centred(data, data_zero_point), axes, keepdims=keepdims)
    return steps(mean * _scalar(data_scale), reduced_scale, reduced_zero_point, data.dtype)


@operator(since=1, domain=MICROSOFT, kind="reduce")
def ReduceSumInteger(data: Value, /, *, axes: list[int], keepdims: int) -> Value:
    """Sums of 8-bit integers in 32 bits."""
    wide = DType.Int32 if data.dtype is DType.Int8 else DType.UInt32
    return ReduceSum(Cast(data, to=wide), axes, keepdims=keepdims)


@operator(since=1, domain=MICROSOFT)
def NhwcMaxPool(
    x: Value,
    /,
    *,
    kernel_shape: list[int],
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: list[int] | None = None,
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Value:
    """Maxima of windows, channels last."""
    pooled = MaxPool(
        _channels_first(x),
        kernel_shape=kernel_shape,
        auto_pad=auto_pad,
        ceil_mode=ceil_mode,
        dilations=dilations,
        pads=pads,
        strides=strides,
    )
    return _channels_last(pooled[0])


# ------------------------------------------------------------------ products


def _columns(B: Value, bias: Value | None, *scales: tuple[str, Value | None]) -> None:
    """B is a matrix or several; bias has a number for each of its columns, scales have one or so many."""
    at_least("the rank of B", B.rank, 2)
    columns = B.shape[-1]
    has_shape("bias", bias, [columns], "columns of B")
    for name, value in scales:
        if dims_of(value) is not None and count_of(value) != 1:
            same_size(f"the last size of {name}", size_at(value, -1), columns, "the columns of B")


def _integer_product_needs(
    A: Value,
    B: Value,
    a_scale: Value,
    b_scale: Value,
    a_zero_point: Value | None = None,
    b_zero_point: Value | None = None,
    bias: Value | None = None,
    /,
) -> None:
    _columns(B, bias, ("b_scale", b_scale), ("b_zero_point", b_zero_point))


def _dynamic_product_needs(
    A: Value, B: Value, b_scale: Value, b_zero_point: Value | None = None, bias: Value | None = None, /
) -> None:
    _columns(B, bias, ("b_scale", b_scale), ("b_zero_point", b_zero_point))


@operator(since=1, domain=MICROSOFT, requires=_integer_product_needs, kind="product")
def MatMulIntegerToFloat(
    A: Value,
    B: Value,
    a_scale: Value,
    b_scale: Value,
    a_zero_point: Value | None = None,
    b_zero_point: Value | None = None,
    bias: Value | None = None,
    /,
) -> Value:
    """Product of quantized matrices as real numbers; B may have scales and zero points per column."""
    product = MatMulInteger(A, B, a_zero_point, b_zero_point)
    y = Cast(product, to=a_scale.dtype) * (_vector(a_scale) * _vector(b_scale))
    return y if bias is None else y + bias


def _vector(x: Value) -> Value:
    """A scale for all columns as a scalar, one per column as it is."""
    return _scalar(x) if x.rank == 1 and x.shape[0] == 1 else x  # type: ignore[return-value]


@operator(since=1, domain=MICROSOFT, requires=_dynamic_product_needs, kind="product")
def DynamicQuantizeMatMul(
    A: Value, B: Value, b_scale: Value, b_zero_point: Value | None = None, bias: Value | None = None, /
) -> Value:
    """Product with a quantized matrix; A is quantized by its own range first."""
    a, a_scale, a_zero = DynamicQuantizeLinear(A)
    return MatMulIntegerToFloat(a, B, a_scale, b_scale, a_zero, b_zero_point, bias)


@operator(since=1, domain=MICROSOFT, kind="product")
def MatMulInteger16(A: Value, B: Value, /) -> Value:
    """Product of 16-bit integers in 32 bits."""
    signed = DType.Int16 in (A.dtype, B.dtype)
    wide = DType.Int32 if signed else DType.UInt32
    return MatMul(Cast(A, to=wide), Cast(B, to=wide))


def _gemm_needs(
    A: Value,
    a_scale: Value,
    a_zero_point: Value,
    B: Value,
    b_scale: Value,
    b_zero_point: Value,
    C: Value | None = None,
    /,
    *_: Value | None,
    transA: int = 0,
    transB: int = 0,
    **__: Any,
) -> None:
    has_rank("A", A, 2)
    has_rank("B", B, 2)
    rows, columns = A.shape[1 if transA else 0], B.shape[0 if transB else 1]
    for name, value in (("a_scale", a_scale), ("a_zero_point", a_zero_point)):
        same_size(f"the number of elements of {name}", count_of(value), 1, "one number")
    same_size("the number of zero points of B", count_of(b_zero_point), count_of(b_scale), "that of its scales")
    if count_of(b_scale) != 1:
        has_shape("b_scale", b_scale, [columns], "columns of B")
    spreads_to("C", C, [rows, columns], "the shape of the product")


@operator(since=1, domain=MICROSOFT, requires=_gemm_needs, kind="product")
def QGemm(
    A: Value,
    a_scale: Value,
    a_zero_point: Value,
    B: Value,
    b_scale: Value,
    b_zero_point: Value,
    C: Value | None = None,
    y_scale: Value | None = None,
    y_zero_point: Value | None = None,
    /,
    *,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Value:
    """Gemm of quantized matrices; C is in units of both scales. Quantized again where a scale is given."""
    left = Transpose(A, perm=[1, 0]) if transA else A
    right = Transpose(B, perm=[1, 0]) if transB else B
    product = MatMulInteger(left, right, a_zero_point, b_zero_point)
    product = product if C is None else product + C
    y = Cast(product, to=DType.Float32) * (_vector(a_scale) * _vector(b_scale) * alpha)
    if y_scale is None:
        return y
    return steps(y, y_scale, y_zero_point, A.dtype if y_zero_point is None else y_zero_point.dtype)


@operator(since=1, domain=MICROSOFT, requires=conv_needs, kind="product")
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
    channels_last: int = 0,
    dilations: list[int] | None = None,
    group: int = 1,
    kernel_shape: list[int] | None = None,
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Value:
    """Convolution of quantized tensors, channels last on request."""
    sums = ConvInteger(
        _channels_first(x) if channels_last else x,
        w,
        _scalar(x_zero_point),
        w_zero_point,
        auto_pad=auto_pad,
        dilations=dilations,
        group=group,
        kernel_shape=kernel_shape,
        pads=pads,
        strides=strides,
    )
    sums = _channels_last(sums) if channels_last else sums
    sums = sums if B is None else sums + _per_channel(B, x.rank, channels_last)
    y = Cast(sums, to=DType.Float32) * _scalar(x_scale) * _per_channel(_vector(w_scale), x.rank, channels_last)
    return steps(y, y_scale, y_zero_point, x.dtype)


def _per_channel(x: Value, rank: int, channels_last: int) -> Value:
    """A vector laid along the channels; one number for all stays as it is."""
    return x if channels_last or x.rank == 0 else Unsqueeze(x, list(range(1, rank - 1)))


def _attention_needs(input: Value, weight: Value, bias: Value, /, *_: Value | None, **__: Any) -> None:
    has_rank("input", input, 3)
    has_shape("weight", weight, [input.shape[2], None], "width, packed width")
    has_shape("bias", bias, [size_at(weight, 1)], "packed width")


@operator(since=1, domain=MICROSOFT, requires=_attention_needs, kind="product")
def QAttention(
    input: Value,
    weight: Value,
    bias: Value,
    input_scale: Value,
    weight_scale: Value,
    mask_index: Value | None = None,
    input_zero_point: Value | None = None,
    weight_zero_point: Value | None = None,
    past: Value | None = None,
    /,
    *,
    num_heads: int,
    do_rotary: int | None = None,
    mask_filter_value: float | None = None,
    past_present_share_buffer: int | None = None,
    scale: float | None = None,
    unidirectional: int = 0,
) -> tuple[Value, Value | None]:
    """Attention whose input and projection are quantized."""
    if do_rotary or past_present_share_buffer:
        raise UnsupportedOperatorError("do_rotary and past_present_share_buffer are not supported")
    packed = MatMulIntegerToFloat(input, weight, input_scale, weight_scale, input_zero_point, weight_zero_point, bias)
    return attend_packed(
        packed,
        mask_index,
        past,
        None,
        heads=num_heads,
        sizes=None,
        filtered=mask_filter_value,
        scale=scale,
        causal=unidirectional,
    )


def _quantized_embed_needs(*inputs: Value | None, **attributes: Any) -> Iterator[Within]:
    """Those of the tables before they were quantized: what follows the mask are scales and zero points."""
    return embed_needs(*inputs[:8], **attributes)  # pyright: ignore[reportArgumentType] - the count was checked


@operator(since=1, domain=MICROSOFT, requires=_quantized_embed_needs)
def QEmbedLayerNormalization(
    input_ids: Value,
    segment_ids: Value | None,
    word_embedding_quant: Value,
    position_embedding_quant: Value,
    segment_embedding: Value | None,
    gamma_quant: Value,
    beta_quant: Value,
    mask: Value | None,
    word_embedding_scale: Value,
    position_embedding_scale: Value,
    segment_embedding_scale: Value | None,
    gamma_scale: Value,
    beta_scale: Value,
    word_embedding_zero_point: Value,
    position_embedding_zero_point: Value,
    segment_embedding_zero_point: Value | None,
    gamma_zero_point: Value,
    beta_zero_point: Value,
    /,
    *,
    epsilon: float = 1e-12,
) -> tuple[Value, Value]:
    """EmbedLayerNormalization of quantized tables."""
    segments = None
    if segment_embedding is not None and segment_embedding_scale is not None:
        segments = real(segment_embedding, segment_embedding_scale, segment_embedding_zero_point)
    y, lengths, _ = EmbedLayerNormalization(
        input_ids,
        segment_ids,
        real(word_embedding_quant, word_embedding_scale, word_embedding_zero_point),
        real(position_embedding_quant, position_embedding_scale, position_embedding_zero_point),
        segments,
        real(gamma_quant, gamma_scale, gamma_zero_point),
        real(beta_quant, beta_scale, beta_zero_point),
        mask,
        epsilon=epsilon,
    )
    return y, lengths
