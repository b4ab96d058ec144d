"""Fusions of the ``com.microsoft`` domain, as ONNX Runtime's optimiser and exporters write them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyflame_rt.graph import DType, Shape, TensorType
from pyflame_rt.graph.errors import InputError, ShapeMismatchError
from pyflame_rt.ops.core.flop_counts import flops_per_input
from pyflame_rt.ops.core.guards import Within, at_least, at_most, has_rank, has_shape, size_at, spreads_to
from pyflame_rt.ops.core.registry import operator, primitive
from pyflame_rt.ops.core.type_rules import merge_dims, same
from pyflame_rt.ops.core.value import Value, constant
from pyflame_rt.ops.onnx.activation import Clip, HardSigmoid, HardSwish, LeakyRelu, Relu, Sigmoid, Softmax
from pyflame_rt.ops.onnx.activation import Gelu as StandardGelu
from pyflame_rt.ops.onnx.arithmetic import Reciprocal, runtime_shape
from pyflame_rt.ops.onnx.cast import Cast
from pyflame_rt.ops.onnx.conv import Conv
from pyflame_rt.ops.onnx.creation import Range
from pyflame_rt.ops.onnx.index import Gather
from pyflame_rt.ops.onnx.logic import Equal
from pyflame_rt.ops.onnx.math import Sqrt, Tanh
from pyflame_rt.ops.onnx.matmul import Gemm, MatMul
from pyflame_rt.ops.onnx.norm import GroupNormalization, LayerNormalization, layer_needs
from pyflame_rt.ops.onnx.reduce import ReduceMean, ReduceSum
from pyflame_rt.ops.onnx.shape import Flatten, Reshape, Transpose
from pyflame_rt.ops.onnx.slicing import Split

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

MICROSOFT = "com.microsoft"

# ------------------------------------------------------------------ products


@operator(since=1, domain=MICROSOFT, kind="product")
def FusedMatMul(
    A: Value,
    B: Value,
    /,
    *,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    transBatchA: int = 0,
    transBatchB: int = 0,
) -> Value:
    """``alpha * A' @ B'``, where ' may transpose the last two axes and move the first behind the batch."""
    product = MatMul(_arranged(A, transA, transBatchA), _arranged(B, transB, transBatchB))
    return product if alpha == 1.0 else product * alpha


def _arranged(x: Value, transposed: int, batch: int) -> Value:
    if x.rank < 2 or not (transposed or batch):
        return x
    axes = [*range(1, x.rank - 1), 0, x.rank - 1] if batch else list(range(x.rank))
    if transposed:
        axes[-1], axes[-2] = axes[-2], axes[-1]
    return Transpose(x, perm=axes)


@operator(since=1, domain=MICROSOFT, kind="product")
def TransposeMatMul(A: Value, B: Value, /, *, alpha: float = 1.0, transA: int = 0, transB: int = 0) -> Value:
    """The older name of FusedMatMul."""
    return FusedMatMul(A, B, alpha=alpha, transA=transA, transB=transB)


@operator(since=1, domain=MICROSOFT, kind="product")
def FusedMatMulActivation(
    A: Value,
    B: Value,
    /,
    *,
    activation: str,
    activation_alpha: float | None = None,
    activation_axis: int | None = None,
    activation_beta: float | None = None,
    activation_gamma: float | None = None,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    transBatchA: int = 0,
    transBatchB: int = 0,
) -> Value:
    """FusedMatMul followed by an activation."""
    product = FusedMatMul(
        A, B, alpha=alpha, transA=transA, transB=transB, transBatchA=transBatchA, transBatchB=transBatchB
    )
    if activation == "Softmax":
        return Softmax(product, axis=-1 if activation_axis is None else activation_axis)
    return activated(product, activation, [activation_alpha, activation_beta])


@operator(since=1, domain=MICROSOFT, kind="product")
def FusedGemm(
    A: Value,
    B: Value,
    C: Value | None = None,
    /,
    *,
    activation: str | None = None,
    activation_alpha: float | None = None,
    activation_beta: float | None = None,
    activation_gamma: float | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Value:
    """Gemm followed by an activation."""
    product = Gemm(A, B, C, alpha=alpha, beta=beta, transA=transA, transB=transB)
    return activated(product, activation, [activation_alpha, activation_beta])


@operator(since=1, domain=MICROSOFT, kind="product")
def GemmFastGelu(X: Value, W: Value, bias: Value | None = None, /) -> Value:
    """FastGelu of a product."""
    return FastGelu(MatMul(X, W), bias)


@operator(since=1, domain=MICROSOFT, kind="product")
def FusedConv(
    X: Value,
    W: Value,
    B: Value | None = None,
    Z: Value | None = None,
    /,
    *,
    activation: str | None = None,
    activation_params: list[float] | None = None,
    auto_pad: str = "NOTSET",
    dilations: list[int] | None = None,
    group: int = 1,
    kernel_shape: list[int] | None = None,
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Value:
    """Convolution, plus a residual, through an activation."""
    y = Conv(
        X,
        W,
        B,
        auto_pad=auto_pad,
        dilations=dilations,
        group=group,
        kernel_shape=kernel_shape,
        pads=pads,
        strides=strides,
    )
    return activated(y if Z is None else y + Z, activation, activation_params or [])


def activated(x: Value, name: str | None, params: Sequence[float | None]) -> Value:
    """An activation by name; parameters not given take the operator's defaults."""
    first, second = [*params, None, None][:2]
    match name:
        case None | "":
            return x
        case "Relu":
            return Relu(x)
        case "Tanh":
            return Tanh(x)
        case "Sigmoid":
            return Sigmoid(x)
        case "HardSwish":
            return HardSwish(x)
        case "Gelu":
            return StandardGelu(x)
        case "LeakyRelu":
            return LeakyRelu(x, alpha=first)
        case "HardSigmoid":
            return HardSigmoid(x, alpha=first, beta=second)
        case "Clip":
            return Clip(x, first, second)
        case _:
            raise InputError(f"activation {name!r} is not supported")


def _inverse_type(X: Value, /) -> TensorType:
    shape = X.tensor_type.shape
    if shape is None:
        return TensorType(X.dtype)
    if len(shape) < 2:
        raise ShapeMismatchError(f"a matrix is needed, got shape {shape}")
    size = merge_dims(shape[-1], shape[-2])
    return TensorType(X.dtype, Shape([*shape[:-2], size, size]))


def _inverse_vjp(g: Value, y: Value, x: Value) -> tuple[Value]:
    return (-FusedMatMul(FusedMatMul(y, g, transA=1), y, transB=1),)


@primitive(since=1, domain=MICROSOFT, infer=_inverse_type, vjp=_inverse_vjp, types="T:float > T")
def Inverse(ops: Any, X: Any, /) -> Any:
    """Inverses of a matrix or a stack of them."""
    kind = ops.dtype(X)
    return ops.inv(X) if kind.itemsize >= 4 else ops.cast(ops.inv(ops.cast(X, DType.Float32.numpy)), kind)


# ------------------------------------------------------------------ activations


@operator(since=1, domain=MICROSOFT, infer=same, kind="activation", elementwise=True)
def Gelu(X: Value, /) -> Value:
    """Gaussian error linear unit, by erf."""
    return StandardGelu(X)


def _bias_needs(X: Value, bias: Value | None = None, /, **_: Any) -> None:
    """One number for each place of the last axis."""
    at_least("the rank of the input", X.rank, 1)
    has_shape("bias", bias, [X.shape[-1]], "the last size of the input")


# Not elementwise: the bias belongs to the last axis, and is not broadcast like any other operand.
@operator(since=1, domain=MICROSOFT, infer=same, requires=_bias_needs, kind="activation")
def FastGelu(X: Value, bias: Value | None = None, /) -> Value:
    """Gelu by tanh, of ``X + bias``."""
    return StandardGelu(X if bias is None else X + bias, approximate="tanh")


@operator(since=1, domain=MICROSOFT, infer=same, kind="activation", elementwise=True)
def QuickGelu(X: Value, /, *, alpha: float = 1.702) -> Value:
    """``X * sigmoid(alpha * X)``."""
    return X * Sigmoid(X * alpha)


@operator(since=1, domain=MICROSOFT, infer=same, requires=_bias_needs)
def BiasGelu(A: Value, B: Value, /) -> Value:
    """Gelu of ``A + B``."""
    return StandardGelu(A + B)


@operator(since=1, domain=MICROSOFT, requires=_bias_needs)
def BiasSplitGelu(X: Value, bias: Value, /) -> Value:
    """``X + bias`` in two halves of the last axis: the left times Gelu of the right."""
    left, right = Split(X + bias, axis=-1, num_outputs=2)
    return left * StandardGelu(right)


def _bias_add_needs(X: Value, bias: Value, skip: Value, /) -> None:
    _bias_needs(X, bias)
    has_shape("skip", skip, X.shape, "that of X")


@operator(since=1, domain=MICROSOFT, infer=same, requires=_bias_add_needs)
def BiasAdd(X: Value, bias: Value, skip: Value, /) -> Value:
    """``X + bias + skip``."""
    return X + bias + skip


def _bias_softmax_needs(data: Value, bias: Value, /, **_: Any) -> None:
    spreads_to("bias", bias, data.shape, "the shape of data")


@operator(since=1, domain=MICROSOFT, infer=same, requires=_bias_softmax_needs)
def BiasSoftmax(data: Value, bias: Value, /, *, is_inner_broadcast: int, axis: int = 1) -> Value:
    """Softmax of ``data + bias`` over all axes from ``axis`` on."""
    return flat_softmax(data + bias, axis)


def flat_softmax(x: Value, axis: int) -> Value:
    """Softmax as before opset 13: over all axes from ``axis`` on together."""
    if axis in (-1, x.rank - 1):
        return Softmax(x, axis=-1)
    return Reshape(Softmax(Flatten(x, axis=axis), axis=-1), runtime_shape(x))


# ------------------------------------------------------------------ normalisations


def _simplified(X: Value, scale: Value, /, *, axis: int, epsilon: float, stash_type: int) -> tuple[Value, Value]:
    inner = DType.from_onnx(stash_type) if X.dtype.itemsize < 4 else X.dtype
    x = X if X.dtype is inner else Cast(X, to=inner)
    first = axis + X.rank if axis < 0 else axis
    mean = ReduceMean(x * x, list(range(first, X.rank)), keepdims=1)
    inverse = Reciprocal(Sqrt(mean + epsilon))
    y = x * inverse
    return (y if X.dtype is inner else Cast(y, to=X.dtype)) * scale, inverse


@operator(since=1, requires=layer_needs, kind="norm", flops=flops_per_input(6))
def SimplifiedLayerNormalization(
    X: Value, scale: Value, /, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> tuple[Value, Value]:
    """Divide by the root of the mean square, as T5 and LLaMA do."""
    return _simplified(X, scale, axis=axis, epsilon=epsilon, stash_type=stash_type)


@operator(
    since=1,
    domain=MICROSOFT,
    name="SimplifiedLayerNormalization",
    requires=layer_needs,
    kind="norm",
    flops=flops_per_input(6),
)
def MicrosoftSimplifiedLayerNormalization(
    X: Value, scale: Value, /, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> tuple[Value, Value]:
    """The same operator under Microsoft's domain."""
    return _simplified(X, scale, axis=axis, epsilon=epsilon, stash_type=stash_type)


@operator(since=1, domain=MICROSOFT, name="LayerNormalization", kind="norm", flops=flops_per_input(6))
def MicrosoftLayerNormalization(
    X: Value, Scale: Value, B: Value | None = None, /, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> tuple[Value, Value, Value]:
    """LayerNormalization under Microsoft's domain."""
    return LayerNormalization(X, Scale, B, axis=axis, epsilon=epsilon, stash_type=stash_type)


def _skip_needs(*names: str) -> Callable[..., None]:
    """One number of each of these vectors for each place of the last axis."""

    def needs(input: Value, skip: Value, /, *vectors: Value | None, **_: Any) -> None:
        has_rank("input", input, 2, 3)
        has_rank("skip", skip, 2, input.rank)
        if skip.rank == 2 or skip.shape[0] == 1:  # the same for each sample
            has_shape("skip", skip, [*[1] * (skip.rank - 2), *input.shape[-2:]], "that of the input")
        else:
            has_shape("skip", skip, input.shape, "that of the input")
        for name, vector in zip(names, vectors, strict=False):
            has_shape(name, vector, [input.shape[-1]], "width")

    return needs


@operator(since=1, domain=MICROSOFT, requires=_skip_needs("gamma", "beta", "bias"), kind="norm")
def SkipLayerNormalization(
    input: Value,
    skip: Value,
    gamma: Value,
    beta: Value | None = None,
    bias: Value | None = None,
    /,
    *,
    epsilon: float = 1e-12,
) -> tuple[Value, Value, Value, Value]:
    """LayerNormalization of ``input + skip + bias``, which is the fourth output."""
    total = input + skip if bias is None else input + skip + bias
    y, mean, inverse = LayerNormalization(total, gamma, beta, axis=-1, epsilon=epsilon)
    return y, mean, inverse, total


@operator(since=1, domain=MICROSOFT, requires=_skip_needs("gamma", "bias"), kind="norm")
def SkipSimplifiedLayerNormalization(
    input: Value, skip: Value, gamma: Value, bias: Value | None = None, /, *, epsilon: float = 1e-12
) -> tuple[Value, Value | None, Value, Value]:
    """SimplifiedLayerNormalization of ``input + skip + bias``, which is the fourth output."""
    total = input + skip if bias is None else input + skip + bias
    y, inverse = _simplified(total, gamma, axis=-1, epsilon=epsilon, stash_type=1)
    return y, None, inverse, total


def embed_needs(
    input_ids: Value,
    segment_ids: Value | None,
    word_embedding: Value,
    position_embedding: Value,
    segment_embedding: Value | None,
    gamma: Value,
    beta: Value,
    mask: Value | None = None,
    position_ids: Value | None = None,
    /,
    *_: Value | None,
    **__: Any,
) -> Iterator[Within]:
    """Words, positions and segments name rows of their tables, counted from the first."""
    has_rank("input_ids", input_ids, 2)
    has_rank("word_embedding", word_embedding, 2)
    batch, length, width = size_at(input_ids, 0), size_at(input_ids, 1), size_at(word_embedding, 1)
    for name, table in (("position_embedding", position_embedding), ("segment_embedding", segment_embedding)):
        has_shape(name, table, [None, width], "rows, width")
    for name, vector in (("gamma", gamma), ("beta", beta)):
        has_shape(name, vector, [width], "width")
    has_shape("segment_ids", segment_ids, [batch, length], "batch, length")
    has_shape("mask", mask, [batch, length], "batch, length")
    yield _row("input_ids", input_ids, word_embedding)
    if segment_ids is not None and segment_embedding is not None:
        yield _row("segment_ids", segment_ids, segment_embedding)
    if position_ids is None:
        at_most("the length of input_ids", length, size_at(position_embedding, 0), "the rows of position_embedding")
    else:
        yield _row("position_ids", position_ids, position_embedding)


def _row(name: str, indices: Value, table: Value) -> Within:
    rows = size_at(table, 0)
    return Within(name, indices, 0, None if rows is None else rows - 1)


@operator(since=1, domain=MICROSOFT, requires=embed_needs)
def EmbedLayerNormalization(
    input_ids: Value,
    segment_ids: Value | None,
    word_embedding: Value,
    position_embedding: Value,
    segment_embedding: Value | None,
    gamma: Value,
    beta: Value,
    mask: Value | None = None,
    position_ids: Value | None = None,
    /,
    *,
    epsilon: float = 1e-12,
    mask_index_type: int | None = None,
) -> tuple[Value, Value, Value]:
    """The input layer of BERT: sum of word, position and segment embeddings, normalised."""
    total = Gather(word_embedding, input_ids, axis=0)
    total = total + Gather(position_embedding, _positions(input_ids) if position_ids is None else position_ids, axis=0)
    if segment_ids is not None and segment_embedding is not None:
        total = total + Gather(segment_embedding, segment_ids, axis=0)
    y, _, _ = LayerNormalization(total, gamma, beta, axis=-1, epsilon=epsilon)
    return y, _mask_lengths(input_ids, mask), total


def _positions(input_ids: Value) -> Value:
    """0, 1, 2, … along the sequence."""
    length = input_ids.shape[1]
    if isinstance(length, int):
        return constant(list(range(length)), DType.Int64)
    size = Gather(runtime_shape(input_ids), constant(1, DType.Int64), axis=0)
    return Range(constant(0, DType.Int64), size, constant(1, DType.Int64))


def _mask_lengths(input_ids: Value, mask: Value | None) -> Value:
    """How many words of each row count."""
    if mask is None:
        return ReduceSum(input_ids - input_ids, [1], keepdims=0)
    return ReduceSum(Cast(Equal(mask, 1), to=mask.dtype), [1], keepdims=0)


@operator(since=1, domain=MICROSOFT, infer=same, kind="norm")
def GroupNorm(
    X: Value,
    gamma: Value,
    beta: Value,
    /,
    *,
    activation: int,
    groups: int,
    channels_last: int = 1,
    epsilon: float = 1e-5,
) -> Value:
    """GroupNormalization, channels last unless told, through SiLU on request."""
    return _group_norm(X, gamma, beta, activation, groups, channels_last, epsilon)


def _group_norm(
    x: Value, gamma: Value, beta: Value, activation: int, groups: int, channels_last: int, epsilon: float
) -> Value:
    inner = Transpose(x, perm=[0, x.rank - 1, *range(1, x.rank - 1)]) if channels_last else x
    y = GroupNormalization(_like(inner, gamma), gamma, beta, num_groups=groups, epsilon=epsilon)
    y = y * Sigmoid(y) if activation else y
    y = _like(y, x)
    return Transpose(y, perm=[0, *range(2, x.rank), 1]) if channels_last else y


def _like(x: Value, other: Value) -> Value:
    return x if x.dtype is other.dtype else Cast(x, to=other.dtype)


@operator(since=1, domain=MICROSOFT, kind="norm")
def SkipGroupNorm(
    X: Value,
    gamma: Value,
    beta: Value,
    skip: Value,
    bias: Value | None = None,
    /,
    *,
    activation: int,
    groups: int,
    channels_last: int = 1,
    epsilon: float = 1e-5,
) -> tuple[Value, Value]:
    """GroupNorm of ``X + skip + bias``, which is the second output."""
    total = X + _beside(skip, X, channels_last)
    total = total if bias is None else total + _beside(bias, X, channels_last)
    return _group_norm(total, gamma, beta, activation, groups, channels_last, epsilon), total


def _beside(x: Value, like: Value, channels_last: int) -> Value:
    """A skip of (N, C) or a bias of (C), brought to the rank of the data."""
    if x.rank == like.rank:
        return x
    if channels_last:
        return x if x.rank == 1 else Reshape(x, [0, *[1] * (like.rank - 2), -1])
    return Reshape(x, [*([0] if x.rank == 2 else []), -1, *[1] * (like.rank - 2)])
