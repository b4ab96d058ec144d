"""What attention operators require of heads, caches, lengths and positions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyflame_rt.graph.errors import InputError, ShapeMismatchError
from pyflame_rt.ops.core.guards import (
    Within,
    at_least,
    at_most,
    dims_of,
    divides,
    has_rank,
    has_shape,
    length_of,
    same_size,
    size_at,
)
from pyflame_rt.ops.core.size_arithmetic import known_ints

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyflame_rt.graph import DimLike
    from pyflame_rt.ops.core.value import Value

__all__ = [
    "attention_needs",
    "group_query_needs",
    "multi_head_needs",
    "one_word_needs",
    "packed_needs",
    "rotary_needs",
    "rotary_old_needs",
]


def _plus(a: DimLike, b: Any) -> DimLike:
    return None if a is None or b is None else a + b


def _least(*sizes: DimLike) -> DimLike:
    """The smallest of those that are numbers; None where none is."""
    known = [size for size in sizes if isinstance(size, int)]
    return min(known) if known else None


def _caches(cos_cache: Value, sin_cache: Value, size: DimLike, turned: int) -> None:
    """Both caches have a row for each position and an angle for each pair of features."""
    divides("the number of features that are turned", turned or size, 2, "as they are turned in pairs")
    has_rank("cos_cache", cos_cache, 2)
    has_shape("sin_cache", sin_cache, cos_cache.shape, "that of cos_cache")
    angles = size_at(cos_cache, 1)
    if turned:
        same_size("the width of the caches", angles, turned // 2, "half of rotary_embedding_dim")
    at_most("twice the width of the caches", None if angles is None else 2 * angles, size, "the size of a head")


def _head_size(x: Value, heads: int) -> DimLike:
    """Features of a head, of [batch, heads, length, size] or [batch, length, heads * size]."""
    has_rank("the input", x, 3, 4)
    if x.rank == 4:
        return x.shape[3]
    if not heads:
        return None
    width = x.shape[2]
    divides("the width of the input", width, heads, "the number of heads")
    return None if width is None else width // heads


def _by_head(name: str, x: Value, heads: int | None, called: str) -> list[DimLike]:
    """[batch, heads, length, size] of it, as it comes or as its width is cut."""
    has_rank(name, x, 3, 4)
    if x.rank == 4:
        return list(x.shape)
    if heads is None:
        raise InputError(f"{name} of rank 3 needs the attribute {called}")
    at_least(called, heads, 1)
    batch, length, width = x.shape
    divides(f"the width of {name}", width, heads, called)
    return [batch, heads, length, None if width is None else width // heads]


def attention_needs(
    Q: Value,
    K: Value,
    V: Value,
    attn_mask: Value | None = None,
    past_key: Value | None = None,
    past_value: Value | None = None,
    nonpad_kv_seqlen: Value | None = None,
    /,
    *,
    q_num_heads: int | None = None,
    kv_num_heads: int | None = None,
    **_: Any,
) -> Iterator[Within]:
    """ONNX's Attention: nothing but a mask is broadcast."""
    batch, heads, _length, size = _by_head("Q", Q, q_num_heads, "q_num_heads")
    keys, values = _by_head("K", K, kv_num_heads, "kv_num_heads"), _by_head("V", V, kv_num_heads, "kv_num_heads")
    for name, given in (("K", keys), ("V", values)):
        same_size(f"the batch of {name}", given[0], batch, "that of Q")
    same_size("the number of heads of V", values[1], keys[1], "that of K")
    same_size("the length of V", values[2], keys[2], "that of K")
    same_size("the size of a head of K", keys[3], size, "that of Q")
    if isinstance(heads, int) and isinstance(keys[1], int):
        at_least("the number of heads of K", keys[1], min(heads, 1))
        divides("the number of heads of Q", heads, keys[1] or 1, "that of K")
    past = None if past_key is None else size_at(past_key, 2)
    has_shape("past_key", past_key, [batch, keys[1], None, size], "batch, heads, length, size")
    has_shape("past_value", past_value, [batch, keys[1], past, values[3]], "batch, heads, length, size")
    if nonpad_kv_seqlen is not None:
        has_shape("nonpad_kv_seqlen", nonpad_kv_seqlen, [batch], "batch")
        yield Within("nonpad_kv_seqlen", nonpad_kv_seqlen, 0, keys[2])


def rotary_needs(
    X: Value,
    cos_cache: Value,
    sin_cache: Value,
    position_ids: Value | None = None,
    /,
    *,
    num_heads: int | None,
    rotary_embedding_dim: int,
    **_: Any,
) -> Iterator[Within]:
    """ONNX's RotaryEmbedding."""
    size = _head_size(X, num_heads or 0)
    length = size_at(X, 1 if X.rank == 3 else 2)
    batch = size_at(X, 0)
    if position_ids is None:
        has_shape("cos_cache", cos_cache, [batch, length, None], "batch, length, angles")
        has_shape("sin_cache", sin_cache, cos_cache.shape, "that of cos_cache")
        return
    _caches(cos_cache, sin_cache, size, rotary_embedding_dim)
    has_shape("position_ids", position_ids, [batch, length], "batch, length")
    rows = size_at(cos_cache, 0)
    yield Within("position_ids", position_ids, 0, _plus(rows, -1))


def rotary_old_needs(
    input: Value,
    position_ids: Value,
    cos_cache: Value,
    sin_cache: Value,
    /,
    *,
    num_heads: int | None,
    rotary_embedding_dim: int | None,
    **_: Any,
) -> Iterator[Within]:
    """RotaryEmbedding of com.microsoft: positions of all words, or of the first."""
    size = _head_size(input, num_heads or 0)
    _caches(cos_cache, sin_cache, size, rotary_embedding_dim or 0)
    batch, length, rows = size_at(input, 0), size_at(input, 1 if input.rank == 3 else 2), size_at(cos_cache, 0)
    has_rank("position_ids", position_ids, 1, 2)
    if position_ids.rank == 2:
        has_shape("position_ids", position_ids, [batch, length], "batch, length")
        yield Within("position_ids", position_ids, 0, _plus(rows, -1))
        return
    same_size("the length of position_ids", length_of(position_ids), 1, "the position of the first word")
    last = None if rows is None or length is None else rows - length
    yield Within("position_ids", position_ids, 0, last)


def group_query_needs(
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
    *_: Value | None,
    num_heads: int,
    kv_num_heads: int,
    **__: Any,
) -> Iterator[Within]:
    """GroupQueryAttention: the cache holds what came before, lengths lie within it."""
    for name, heads in (("num_heads", num_heads), ("kv_num_heads", kv_num_heads)):
        at_least(name, heads, 1)
    divides("num_heads", num_heads, kv_num_heads, "kv_num_heads")
    has_rank("query", query, 3)
    batch, new, width = query.shape
    if (key is None) != (value is None):
        raise ShapeMismatchError("key and value must be given together, or neither: query holds both then")
    packed = key is None or value is None
    heads = num_heads + 2 * kv_num_heads if packed else num_heads
    divides("the width of query", width, heads, "the number of heads")
    size = None if width is None else width // heads
    if not packed:
        inner = None if size is None else size * kv_num_heads
        for name, given in (("key", key), ("value", value)):
            by_head = dims_of(given) is not None and len(dims_of(given) or ()) == 4
            has_shape(name, given, [batch, kv_num_heads, new, size] if by_head else [batch, new, inner])
    if (past_key is None) != (past_value is None):
        raise ShapeMismatchError("past_key and past_value must be given together")
    past = 0 if past_key is None else size_at(past_key, 2)
    has_shape("past_key", past_key, [batch, kv_num_heads, None, size], "batch, heads, length, size")
    has_shape("past_value", past_value, [batch, kv_num_heads, past, size], "batch, heads, length, size")
    has_shape("head_sink", head_sink, [num_heads], "heads")
    if seqlens_k.rank == 2:
        has_shape("seqlens_k", seqlens_k, [batch, 1], "batch")
    else:
        has_shape("seqlens_k", seqlens_k, [batch], "batch")
    same_size("the length of total_sequence_length", length_of(total_sequence_length), 1, "one number")
    rows = None
    if cos_cache is not None and sin_cache is not None:
        _caches(cos_cache, sin_cache, size, 0)
        rows = size_at(cos_cache, 0)
    room = _plus(past, new)
    most = room if position_ids is not None else _least(room, rows)
    yield Within("total_sequence_length", total_sequence_length, 1, most)
    known = known_ints(total_sequence_length)
    yield Within("seqlens_k", seqlens_k, 0, _plus(known[0] if known else most, -1))
    if position_ids is not None and cos_cache is not None:
        has_shape("position_ids", position_ids, [batch, new], "batch, length")
        yield Within("position_ids", position_ids, 0, _plus(rows, -1))


def _key_padding(name: str, mask: Value | None, batch: DimLike, total: DimLike) -> Iterator[Within]:
    """Lengths, (end, start) of each row, or zeros and ones of the keys."""
    if mask is None:
        return
    if mask.rank == 1:
        if isinstance(batch, int) and length_of(mask) not in (None, batch, 2 * batch, 3 * batch + 2):
            raise ShapeMismatchError(f"{name} has shape {mask.shape}, but the batch is {batch}")
        yield Within(name, mask, 0)
    elif mask.rank == 2:
        has_shape(name, mask, [batch, total], "batch, keys")
    elif mask.rank == 3:
        has_shape(name, mask, [batch, None, total], "batch, queries, keys")


def packed_needs(
    input: Value,
    weights: Value,
    bias: Value | None = None,
    mask_index: Value | None = None,
    past: Value | None = None,
    *_: Value | None,
    num_heads: int,
    qkv_hidden_sizes: list[int] | None,
    **__: Any,
) -> Iterator[Within]:
    """Attention of com.microsoft, with its projection."""
    at_least("num_heads", num_heads, 1)
    has_rank("input", input, 3)
    has_shape("weights", weights, [size_at(input, 2), None], "input, queries keys and values")
    width = size_at(weights, 1)
    has_shape("bias", bias, [width], "as wide as the weights")
    if qkv_hidden_sizes is not None:
        same_size("the length of qkv_hidden_sizes", len(qkv_hidden_sizes), 3, "queries, keys and values")
        same_size("the sum of qkv_hidden_sizes", sum(qkv_hidden_sizes), width, "the width of the weights")
        for size in qkv_hidden_sizes:
            divides("each of qkv_hidden_sizes", size, num_heads, "the number of heads")
        same_size("the size of keys", qkv_hidden_sizes[1], qkv_hidden_sizes[0], "that of queries")
    else:
        divides("the width of the weights", width, 3 * num_heads, "queries, keys and values of all heads")
    batch, new = size_at(input, 0), size_at(input, 1)
    has_shape("past", past, [2, batch, num_heads, None, None], "keys and values, batch, heads, length, size")
    total = _plus(0 if past is None else size_at(past, 3), new)
    yield from _key_padding("mask_index", mask_index, batch, total)


def multi_head_needs(
    query: Value,
    key: Value | None = None,
    value: Value | None = None,
    bias: Value | None = None,
    mask: Value | None = None,
    attention_bias: Value | None = None,
    past_key: Value | None = None,
    past_value: Value | None = None,
    *_: Value | None,
    num_heads: int,
    **__: Any,
) -> Iterator[Within]:
    """MultiHeadAttention."""
    at_least("num_heads", num_heads, 1)
    has_rank("query", query, 3, 5)
    has_rank("bias", bias, 1)
    has_rank("key", key, 3, 4, 5)
    has_rank("value", value, 3, 4)
    batch, total = size_at(query, 0), size_at(query, 1)
    if query.rank == 3:
        divides("the width of query", size_at(query, 2), num_heads, "the number of heads")
    for name, given in (("key", key), ("value", value)):
        same_size(f"the batch of {name}", size_at(given, 0), batch, "that of query")
    if query.rank == 3 and key is not None:
        total = size_at(key, 2 if key.rank == 4 else 1)
        if key.rank == 3:
            same_size("the width of key", size_at(key, 2), size_at(query, 2), "that of query")
        if value is not None:
            same_size("the length of value", size_at(value, 2 if value.rank == 4 else 1), total, "that of key")
    past = 0 if past_key is None else size_at(past_key, 2)
    has_shape("past_key", past_key, [batch, num_heads, None, None], "batch, heads, length, size")
    has_shape("past_value", past_value, [batch, num_heads, past, None], "batch, heads, length, size")
    yield from _key_padding("key_padding_mask", mask, batch, _plus(past, total))


def one_word_needs(
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
    past_present_share_buffer: int | None,
    **_: Any,
) -> Iterator[Within]:
    """DecoderMaskedMultiHeadAttention: one new word, and a buffer with room for it."""
    yield from multi_head_needs(query, key, value, bias, None, None, past_key, past_value, num_heads=num_heads)
    same_size("the length of query", size_at(query, 1), 1, "one new word")
    if past_sequence_length is not None:
        same_size("the length of past_sequence_length", length_of(past_sequence_length), 1, "one number")
        room = size_at(past_key, 2) if past_present_share_buffer else None
        yield Within("past_sequence_length", past_sequence_length, 0, _plus(room, -1))
