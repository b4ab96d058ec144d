"""Attention operators of the ``com.microsoft`` domain."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pyflame_rt.graph import DType
from pyflame_rt.graph.errors import InputError, ShapeMismatchError, UnsupportedOperatorError
from pyflame_rt.ops.core.flop_counts import attention_flops
from pyflame_rt.ops.core.registry import operator
from pyflame_rt.ops.core.value import Value, constant
from pyflame_rt.ops.onnx.activation import Softmax
from pyflame_rt.ops.onnx.attention_guards import multi_head_needs, one_word_needs, packed_needs
from pyflame_rt.ops.onnx.cast import Cast
from pyflame_rt.ops.onnx.creation import Range
from pyflame_rt.ops.onnx.index import Gather
from pyflame_rt.ops.onnx.logic import Where
from pyflame_rt.ops.onnx.math import Tanh
from pyflame_rt.ops.onnx.matmul import MatMul
from pyflame_rt.ops.onnx.shape import Expand, Reshape, Transpose, Unsqueeze
from pyflame_rt.ops.onnx.shape import Shape as ShapeOf
from pyflame_rt.ops.onnx.slicing import Concat, Slice, Split

if TYPE_CHECKING:
    from collections.abc import Sequence

MICROSOFT = "com.microsoft"
MASKED = -10000.0

# ------------------------------------------------------------------ pieces


def split_heads(x: Value, heads: int) -> Value:
    """(batch, length, heads * size) to (batch, heads, length, size)."""
    return Transpose(Reshape(x, [0, 0, heads, -1]), perm=[0, 2, 1, 3])


def merge_heads(x: Value) -> Value:
    """(batch, heads, length, size) to (batch, length, heads * size)."""
    return Reshape(Transpose(x, perm=[0, 2, 1, 3]), [0, 0, -1])


def size_of(x: Value, axis: int) -> Value:
    """The size of an axis as an int64 scalar."""
    size = x.shape[axis]
    if isinstance(size, int):
        return constant(size, DType.Int64)
    return Gather(ShapeOf(x), constant(axis, DType.Int64), axis=0)


def count(size: Value) -> Value:
    """0, 1, 2, … below a size."""
    return Range(constant(0, DType.Int64), size, constant(1, DType.Int64))


def lowest(dtype: DType) -> float:
    """The most negative number of a type."""
    return float(np.finfo(dtype.numpy).min) if dtype is not DType.BFloat16 else -3.38e38


def wide(x: Value) -> Value:
    """Half precision in single; what is wider as it is."""
    return Cast(x, to=DType.Float32) if x.dtype.itemsize < 4 else x


def narrow(x: Value, like: Value) -> Value:
    """Back in the element type of another value."""
    return x if x.dtype is like.dtype else Cast(x, to=like.dtype)


def attend(
    q: Value,
    k: Value,
    v: Value,
    *,
    scale: float | None,
    biases: Sequence[Value | None] = (),
    softcap: float = 0.0,
    sink: Value | None = None,
) -> tuple[Value, Value]:
    """Softmax of scaled products plus biases, times values; and the scores before the softmax.

    All in (batch, heads, length, size). ``sink`` is a further score, of no value.
    """
    factor = scale if scale else 1.0 / float(_head_size(q)) ** 0.5
    scores = MatMul(wide(q), Transpose(wide(k), perm=[0, 1, 3, 2])) * factor
    if softcap > 0.0:
        scores = Tanh(scores / softcap) * softcap
    for bias in biases:
        scores = scores if bias is None else scores + wide(bias)
    context = MatMul(_probabilities(scores, sink), wide(v))
    return narrow(context, q), narrow(scores, q)


def _head_size(q: Value) -> int:
    size = q.shape[3]
    if not isinstance(size, int):
        raise ShapeMismatchError(f"the head size must be a number, got {size}")
    return size


def _probabilities(scores: Value, sink: Value | None) -> Value:
    if sink is None:
        return Softmax(scores, axis=-1)
    shape = Concat(Slice(ShapeOf(scores), [0], [3]), constant([1], DType.Int64), axis=0)
    column = Expand(Reshape(wide(sink), [1, -1, 1, 1]), shape)
    return Slice(Softmax(Concat(scores, column, axis=-1), axis=-1), [0], [-1], [-1])


def additive(kept: Value, otherwise: float) -> Value:
    """A mask to add to scores: 0 where they are kept."""
    return Where(kept, constant(0.0, DType.Float32), constant(otherwise, DType.Float32))


def causal_mask(q: Value, k: Value, past: Value | None) -> Value:
    """True where a key is not later than the query; queries follow on ``past`` keys."""
    rows = count(size_of(q, 2))
    rows = rows if past is None else rows + size_of(past, 2)
    return count(size_of(k, 2)) <= Unsqueeze(rows, [1])


def padding_mask(mask: Value | None, q: Value, k: Value, filtered: float) -> Value | None:
    """What a mask input adds to the scores: lengths, (end, start) positions, or 0s and 1s."""
    if mask is None:
        return None
    match mask.rank:
        case 1:
            return additive(_within(mask, q, k), filtered)
        case 2:
            return additive(Unsqueeze(mask, [1, 2]) > 0, filtered)
        case 3:
            return additive(Unsqueeze(mask, [1]) > 0, filtered)
        case 4:
            return additive(_window_of(mask, q, k) > 0, filtered)
        case _:
            raise ShapeMismatchError(f"a mask of shape {mask.shape} is not understood")


def _within(mask: Value, q: Value, k: Value) -> Value:
    places = count(size_of(k, 2))
    batch, length = q.shape[0], mask.shape[0]
    if length == batch:
        return places < Cast(Unsqueeze(mask, [1, 2, 3]), to=DType.Int64)
    if not isinstance(batch, int) or length != 2 * batch:
        raise UnsupportedOperatorError(f"a mask of shape {mask.shape} for a batch of {batch} is not supported")
    end, start = Split(Cast(mask, to=DType.Int64), axis=0, num_outputs=2)
    return (places < Unsqueeze(end, [1, 2, 3])) & (places >= Unsqueeze(start, [1, 2, 3]))


def _window_of(mask: Value, q: Value, k: Value) -> Value:
    """The rows and columns of a square mask that belong to these queries and keys."""
    rows, columns = size_of(q, 2), size_of(k, 2)
    ends = Concat(Unsqueeze(columns, [0]), Unsqueeze(columns, [0]), axis=0)
    starts = Concat(Unsqueeze(columns - rows, [0]), constant([0], DType.Int64), axis=0)
    return Slice(mask, starts, ends, [2, 3])


def _masks(
    mask: Value | None, q: Value, k: Value, past: Value | None, causal: int, filtered: float | None
) -> Value | None:
    """Padding and causality in one: what is later than the query counts nothing at all."""
    added = padding_mask(mask, q, k, MASKED if filtered is None else filtered)
    if not causal:
        return added
    kept = causal_mask(q, k, past)
    return Where(
        kept, constant(0.0, DType.Float32) if added is None else added, constant(lowest(DType.Float32), DType.Float32)
    )


def refuse_if(name: str, value: object) -> None:
    """An error that names what an operator does not support, if it is asked for."""
    if value:
        raise UnsupportedOperatorError(f"{name} is not supported")


# ------------------------------------------------------------------ Attention


@operator(since=1, domain=MICROSOFT, requires=packed_needs, kind="product", flops=attention_flops)
def Attention(
    input: Value,
    weights: Value,
    bias: Value | None = None,
    mask_index: Value | None = None,
    past: Value | None = None,
    attention_bias: Value | None = None,
    past_sequence_length: Value | None = None,
    /,
    *,
    num_heads: int,
    do_rotary: int | None = None,
    mask_filter_value: float | None = None,
    past_present_share_buffer: int | None = None,
    qkv_hidden_sizes: list[int] | None = None,
    rotary_embedding_dim: int | None = None,
    scale: float | None = None,
    unidirectional: int = 0,
) -> tuple[Value, Value | None]:
    """Self-attention with its projection: queries, keys and values in one product."""
    refuse_if("do_rotary", do_rotary)
    refuse_if("past_present_share_buffer", past_present_share_buffer)
    packed = MatMul(input, weights)
    packed = packed if bias is None else packed + bias
    return attend_packed(
        packed,
        mask_index,
        past,
        attention_bias,
        heads=num_heads,
        sizes=qkv_hidden_sizes,
        filtered=mask_filter_value,
        scale=scale,
        causal=unidirectional,
    )


def attend_packed(
    packed: Value,
    mask: Value | None,
    past: Value | None,
    attention_bias: Value | None,
    *,
    heads: int,
    sizes: list[int] | None,
    filtered: float | None,
    scale: float | None,
    causal: int,
) -> tuple[Value, Value | None]:
    """Attention from queries, keys and values side by side; and keys and values, stacked, for the next call."""
    parts = Split(packed, constant(sizes, DType.Int64), axis=2) if sizes else Split(packed, axis=2, num_outputs=3)
    q, k, v = (split_heads(part, heads) for part in parts)
    before = None if past is None else Gather(past, constant(0, DType.Int64), axis=0)
    if past is not None:
        k = Concat(before, k, axis=2)
        v = Concat(Gather(past, constant(1, DType.Int64), axis=0), v, axis=2)
    added = _masks(mask, q, k, before, causal, filtered)
    context, _ = attend(q, k, v, scale=scale, biases=[added, attention_bias])
    # Values of another size than keys cannot be stacked with them.
    same_size = k.shape[3] == v.shape[3]
    present = Concat(Unsqueeze(k, [0]), Unsqueeze(v, [0]), axis=0) if same_size else None
    return merge_heads(context), present


@operator(since=1, domain=MICROSOFT, requires=multi_head_needs, kind="product", types="T:float > ?")
def MultiHeadAttention(
    query: Value,
    key: Value | None = None,
    value: Value | None = None,
    bias: Value | None = None,
    key_padding_mask: Value | None = None,
    attention_bias: Value | None = None,
    past_key: Value | None = None,
    past_value: Value | None = None,
    past_sequence_length: Value | None = None,
    cache_indirection: Value | None = None,
    /,
    *,
    num_heads: int,
    mask_filter_value: float | None = None,
    scale: float | None = None,
    unidirectional: int = 0,
) -> tuple[Value, Value, Value, Value]:
    """Attention of projected queries, keys and values, which may come packed."""
    refuse_if("cache_indirection", cache_indirection is not None)
    refuse_if("past_sequence_length (past and present in one buffer)", past_sequence_length is not None)
    q, k, v = _projected(query, key, value, bias, num_heads)
    if past_key is not None and past_value is not None:
        k, v = Concat(past_key, k, axis=2), Concat(past_value, v, axis=2)
    added = _masks(key_padding_mask, q, k, past_key, unidirectional, mask_filter_value)
    context, scores = attend(q, k, v, scale=scale, biases=[added, attention_bias])
    return merge_heads(context), k, v, scores


def _projected(
    query: Value, key: Value | None, value: Value | None, bias: Value | None, heads: int
) -> tuple[Value, Value, Value]:
    """Queries, keys and values by head, from any of the layouts the operator knows."""
    if query.rank == 5:
        q, k, v = (_packed_part(query, i) for i in range(3))
    elif key is None:
        raise InputError(f"without keys the queries must be packed (rank 5), got shape {query.shape}")
    elif key.rank == 5:
        q, k, v = query, _packed_part(key, 0), _packed_part(key, 1)
    elif value is None:
        raise InputError("values are needed, unless the keys are packed")
    else:
        q, k, v = query, key, value
    if bias is not None:
        q, k, v = _biased(q, k, v, bias)
    return tuple(x if x.rank == 4 else split_heads(x, heads) for x in (q, k, v))  # type: ignore[return-value]


def _packed_part(x: Value, part: int) -> Value:
    """One of the parts packed along axis 3, as (batch, length, heads * size)."""
    return Reshape(Gather(x, constant(part, DType.Int64), axis=3), [0, 0, -1])


def _biased(q: Value, k: Value, v: Value, bias: Value) -> tuple[Value, Value, Value]:
    width, total = q.shape[2], bias.shape[0]
    if not isinstance(width, int) or not isinstance(total, int):
        raise ShapeMismatchError(f"the sizes of queries {q.shape} and bias {bias.shape} must be numbers")
    of_q, of_k, of_v = Split(bias, constant([width, width, total - 2 * width], DType.Int64), axis=0)
    # Keys and values that come by head are from another step: their bias is in them already.
    return q + of_q, (k + of_k if k.rank == 3 else k), (v + of_v if v.rank == 3 else v)


@operator(since=1, domain=MICROSOFT, requires=one_word_needs, kind="product")
def DecoderMaskedMultiHeadAttention(
    query: Value,
    key: Value | None = None,
    value: Value | None = None,
    mask_index: Value | None = None,
    attention_bias: Value | None = None,
    past_key: Value | None = None,
    past_value: Value | None = None,
    past_sequence_length: Value | None = None,
    beam_width: Value | None = None,
    cache_indirection: Value | None = None,
    bias: Value | None = None,
    /,
    *,
    num_heads: int,
    mask_filter_value: float | None = None,
    output_qk: int | None = None,
    past_present_share_buffer: int | None = None,
    scale: float | None = None,
) -> tuple[Value, Value, Value, Value]:
    """MultiHeadAttention of one new word on what came before it, which fills part of a buffer."""
    refuse_if("cache_indirection", cache_indirection is not None)
    q, k, v = _projected(query, key, value, bias, num_heads)
    present_k, present_v = k, v
    if past_key is not None and past_value is not None:
        if past_present_share_buffer:
            if past_sequence_length is None:
                raise InputError("past_sequence_length is needed with past_present_share_buffer")
            length = Reshape(Cast(past_sequence_length, to=DType.Int64), [1])
            present_k, present_v = (_written(old, new, length) for old, new in ((past_key, k), (past_value, v)))
            k, v = (Slice(x, [0], length + size_of(query, 1), [2]) for x in (present_k, present_v))
        else:
            k, v = Concat(past_key, k, axis=2), Concat(past_value, v, axis=2)
            present_k, present_v = k, v
    added = padding_mask(mask_index, q, k, MASKED if mask_filter_value is None else mask_filter_value)
    context, scores = attend(q, k, v, scale=scale, biases=[added, attention_bias])
    return merge_heads(context), present_k, present_v, scores


def _written(buffer: Value, new: Value, place: Value) -> Value:
    """A buffer with new entries at a place along axis 2."""
    after = place + size_of(new, 2)
    return Concat(Slice(buffer, [0], place, [2]), new, Slice(buffer, after, [2**31 - 1], [2]), axis=2)
