"""Positions in attention, and attention with shared key heads, of the ``com.microsoft`` domain."""

from __future__ import annotations

import math

from pyflame_rt.graph import DType
from pyflame_rt.graph.errors import InputError, ShapeMismatchError
from pyflame_rt.ops.core.registry import operator
from pyflame_rt.ops.core.value import Value, constant
from pyflame_rt.ops.microsoft.attention import (
    MICROSOFT,
    additive,
    attend,
    count,
    lowest,
    merge_heads,
    narrow,
    refuse_if,
    size_of,
    split_heads,
    wide,
)
from pyflame_rt.ops.onnx.arithmetic import Abs, Max, Min
from pyflame_rt.ops.onnx.attention_guards import group_query_needs, rotary_old_needs
from pyflame_rt.ops.onnx.cast import Cast
from pyflame_rt.ops.onnx.index import Gather, GatherND
from pyflame_rt.ops.onnx.logic import Where
from pyflame_rt.ops.onnx.math import Log
from pyflame_rt.ops.onnx.norm import RMSNormalization
from pyflame_rt.ops.onnx.shape import Reshape, Transpose, Unsqueeze
from pyflame_rt.ops.onnx.slicing import Concat, Slice, Split

# ------------------------------------------------------------------ rotary embeddings


@operator(since=1, domain=MICROSOFT, requires=rotary_old_needs)
def RotaryEmbedding(
    input: Value,
    position_ids: Value,
    cos_cache: Value,
    sin_cache: Value,
    /,
    *,
    interleaved: int | None = None,
    is_packed_batching: int | None = None,
    num_heads: int | None = None,
    rotary_embedding_dim: int | None = None,
    scale: float | None = None,
) -> Value:
    """Turn pairs of features by angles that grow with the position."""
    by_head = input.rank == 4
    heads = num_heads or _divided(input.shape[2], cos_cache.shape[1])
    x = input if by_head else split_heads(input, heads)
    y = rotated(x, _rotary_places(position_ids, x), cos_cache, sin_cache, interleaved or 0)
    return y if by_head else merge_heads(y)


def _divided(hidden: object, half: object) -> int:
    if not isinstance(hidden, int) or not isinstance(half, int):
        raise ShapeMismatchError(f"sizes must be numbers to find the heads, got {hidden} and {half}")
    return hidden // (2 * half)


def _rotary_places(position_ids: Value, x: Value) -> Value:
    """Positions as (batch or 1, length); one number is where all rows start."""
    if position_ids.rank == 2:
        return position_ids
    return Unsqueeze(count(size_of(x, 2)), [0]) + position_ids


def rotated(x: Value, places: Value, cos_cache: Value, sin_cache: Value, interleaved: int) -> Value:
    """Rotary embedding of (batch, heads, length, size), of its first features where the cache has fewer."""
    cos, sin = (Unsqueeze(wide(Gather(cache, places, axis=0)), [1]) for cache in (cos_cache, sin_cache))
    half = cos_cache.shape[1]
    if not isinstance(half, int):
        raise ShapeMismatchError(f"the width of the cache must be a number, got {half}")
    turned, kept = wide(Slice(x, [0], [2 * half], [3])), Slice(x, [2 * half], [2**31 - 1], [3])
    if interleaved:
        a, b = Slice(turned, [0], [2 * half], [3], [2]), Slice(turned, [1], [2 * half], [3], [2])
        pairs = Concat(Unsqueeze(a * cos - b * sin, [4]), Unsqueeze(a * sin + b * cos, [4]), axis=4)
        result = Reshape(pairs, [0, 0, 0, -1])
    else:
        a, b = Split(turned, axis=3, num_outputs=2)
        result = Concat(a * cos - b * sin, a * sin + b * cos, axis=3)
    return Concat(narrow(result, x), kept, axis=3)


@operator(since=1, domain=MICROSOFT)
def RelativePositionBias(
    bias_table: Value, query_length: Value, key_length: Value, /, *, max_distance: int, is_bidirectional: int = 0
) -> Value:
    """What T5 adds to its scores: a bias per head and distance; far distances share one."""
    buckets = bias_table.shape[0]
    if not isinstance(buckets, int):
        raise ShapeMismatchError(f"the number of buckets must be a number, got {buckets}")
    none = constant([], DType.Int64)
    rows, columns = (count(Reshape(Cast(n, to=DType.Int64), none)) for n in (query_length, key_length))
    behind = Unsqueeze(rows, [1]) - columns
    first: Value | None = None
    if is_bidirectional:
        buckets //= 2
        first = Where(behind < 0, constant(buckets, DType.Int64), constant(0, DType.Int64))
        behind = Abs(behind)
    places = _distance_bucket(Max(behind, constant(0, DType.Int64)), buckets, max_distance)
    found = Gather(bias_table, places if first is None else places + first, axis=0)
    return Unsqueeze(Transpose(found, perm=[2, 0, 1]), [0])


def _distance_bucket(distance: Value, buckets: int, furthest: int) -> Value:
    """Near distances have a bucket each, further ones share them, ever wider."""
    exact = buckets // 2
    far = Log(Cast(Max(distance, constant(1, DType.Int64)), to=DType.Float32) / float(exact))
    steps = Cast(far * ((buckets - exact) / math.log(furthest / exact)), to=DType.Int64) + exact
    return Where(distance < exact, distance, Min(steps, constant(buckets - 1, DType.Int64)))


# ------------------------------------------------------------------ GroupQueryAttention


@operator(since=1, domain=MICROSOFT, requires=group_query_needs, kind="product", types="T:float > ?")
def GroupQueryAttention(
    query: Value,
    key: Value | None,
    value: Value | None,
    past_key: Value | None,
    past_value: Value | None,
    seqlens_k: Value,
    total_sequence_length: Value,
    cos_cache: Value | None = None,
    sin_cache: Value | None = None,
    position_ids: Value | None = None,
    attention_bias: Value | None = None,
    head_sink: Value | None = None,
    k_scale: Value | None = None,
    v_scale: Value | None = None,
    q_norm_weight: Value | None = None,
    k_norm_weight: Value | None = None,
    /,
    *,
    num_heads: int,
    kv_num_heads: int,
    causal: int = 1,
    do_rotary: int | None = None,
    kv_cache_bit_width: int | None = None,
    k_quant_type: str = "NONE",
    local_window_size: int = -1,
    qk_norm_epsilon: float = 1e-6,
    qk_output: int = 0,
    rotary_interleaved: int | None = None,
    scale: float | None = None,
    sliding_window_cache: int = 0,
    smooth_softmax: int = -1,
    softcap: float | None = None,
    v_quant_type: str = "NONE",
) -> tuple[Value, Value, Value]:
    """Causal attention of the newest words on a cache, whose heads several query heads share."""
    refuse_if("a quantized cache", k_scale is not None or k_quant_type != "NONE" or v_quant_type != "NONE")
    refuse_if("sliding_window_cache", sliding_window_cache)
    refuse_if("qk_output", qk_output)
    q, k, v = _grouped(query, key, value, num_heads, kv_num_heads)
    if q_norm_weight is not None and k_norm_weight is not None:
        q, k = (RMSNormalization(x, w, epsilon=qk_norm_epsilon) for x, w in ((q, q_norm_weight), (k, k_norm_weight)))
    sink = _sink(head_sink, smooth_softmax)
    total = Reshape(Cast(seqlens_k, to=DType.Int64), [-1, 1]) + 1
    # Rows of a first prompt may be padded on the right: they still begin at 0.
    past = Max(total - size_of(q, 2), constant(0, DType.Int64))
    places = past + Unsqueeze(count(size_of(q, 2)), [0])
    if do_rotary:
        if cos_cache is None or sin_cache is None:
            raise InputError("do_rotary needs cos_cache and sin_cache")
        where = places if position_ids is None else position_ids
        q, k = (rotated(x, where, cos_cache, sin_cache, rotary_interleaved or 0) for x in (q, k))
    length = Reshape(Cast(total_sequence_length, to=DType.Int64), constant([], DType.Int64))
    present_k, present_v = _appended(past_key, k, past, length), _appended(past_value, v, past, length)
    keys, values = (_shared(x, length, num_heads, kv_num_heads) for x in (present_k, present_v))
    kept = _visible(places, total, length, causal, local_window_size)
    biases = [attention_bias, additive(Unsqueeze(kept, [1]), lowest(DType.Float32))]
    context, _ = attend(q, keys, values, scale=scale, biases=biases, softcap=softcap or 0.0, sink=sink)
    return merge_heads(context), present_k, present_v


def _shared(present: Value, length: Value, heads: int, kept: int) -> Value:
    """The newest ``length`` places of a cache, each of its heads once for every query head that shares it."""
    sharing = constant([h * kept // heads for h in range(heads)], DType.Int64)
    return Gather(Slice(present, [0], Reshape(length, [1]), [2]), sharing, axis=1)


def _grouped(
    query: Value, key: Value | None, value: Value | None, heads: int, kv_heads: int
) -> tuple[Value, Value, Value]:
    if key is not None and value is not None:
        return split_heads(query, heads), *(_by_head(x, kv_heads) for x in (key, value))  # type: ignore[return-value]
    width = query.shape[2]
    if not isinstance(width, int):
        raise ShapeMismatchError(f"the width of packed queries must be a number, got {width}")
    size = width // (heads + 2 * kv_heads)
    sizes = [heads * size, kv_heads * size, kv_heads * size]
    q, k, v = Split(query, constant(sizes, DType.Int64), axis=2)
    return split_heads(q, heads), split_heads(k, kv_heads), split_heads(v, kv_heads)


def _by_head(x: Value, heads: int) -> Value:
    return x if x.rank == 4 else split_heads(x, heads)


def _appended(old: Value | None, new: Value, past: Value, length: Value) -> Value:
    """The cache with new entries after the ``past`` ones of each row, zeros behind them."""
    size = size_of(new, 2)
    kept = constant(0, DType.Int64) if old is None else size_of(old, 2)
    both = new if old is None else Concat(old, new, axis=2)
    t = Unsqueeze(count(Max(length, kept)), [0])
    filled = t < past + size
    source = Where(t < past, t, t - past + kept)
    rows = GatherND(
        Transpose(both, perm=[0, 2, 1, 3]),
        Unsqueeze(Where(filled, source, constant(0, DType.Int64)), [2]),
        batch_dims=1,
    )
    rows = Where(Unsqueeze(filled, [2, 3]), rows, constant(0.0, rows))
    return Transpose(rows, perm=[0, 2, 1, 3])


def _visible(places: Value, total: Value, length: Value, causal: int, window: int) -> Value:
    """(batch, queries, keys): which keys a query sees."""
    keys = Unsqueeze(count(length), [0, 1])
    last = Unsqueeze(places, [2])
    kept = keys <= last if causal else keys < Unsqueeze(total, [2])
    return kept & (keys > last - window) if window > 0 else kept


def _sink(head_sink: Value | None, smooth: int) -> Value | None:
    if head_sink is not None:
        return head_sink
    return constant([0.0], DType.Float32) if smooth > 0 else None
