"""Attention: softmax, rotary, linear, and with subgraphs of the model's own."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.graph import DimLike, DType, Graph, Shape, TensorType
from pyflame_rt.graph.errors import InputError, ShapeMismatchError, UndeterminedError
from pyflame_rt.ops.core.flop_counts import attention_flops
from pyflame_rt.ops.core.registry import get_op, operator
from pyflame_rt.ops.core.value import Value, constant
from pyflame_rt.ops.onnx.activation import Softmax
from pyflame_rt.ops.onnx.attention_guards import attention_needs, rotary_needs
from pyflame_rt.ops.onnx.cast import Cast
from pyflame_rt.ops.onnx.creation import Range
from pyflame_rt.ops.onnx.index import Gather
from pyflame_rt.ops.onnx.logic import And, Equal, Where
from pyflame_rt.ops.onnx.math import Exp, Sqrt, Tanh
from pyflame_rt.ops.onnx.matmul import MatMul
from pyflame_rt.ops.onnx.reduce import ReduceMax, ReduceSum
from pyflame_rt.ops.onnx.shape import Expand, Reshape, Squeeze, Transpose, Unsqueeze
from pyflame_rt.ops.onnx.shape import Shape as ShapeOf
from pyflame_rt.ops.onnx.slicing import Concat, Pad, Slice, Split

if TYPE_CHECKING:
    from collections.abc import Sequence


def _number(dim: DimLike, what: str) -> int:
    if not isinstance(dim, int):
        raise UndeterminedError(f"{what} ({dim}) is only known when running")
    return dim


def _split_heads(x: Value, heads: int | None, name: str) -> Value:
    """[batch, sequence, heads * size] to [batch, heads, sequence, size]."""
    if x.rank == 4:
        return x
    if not heads:
        raise InputError(f"{name} must be given for inputs with three axes")
    features = x.shape[2]
    if isinstance(features, int) and features % heads:
        raise ShapeMismatchError(f"{features} features do not divide into {heads} heads")
    return Transpose(Reshape(x, [0, 0, heads, -1]), perm=[0, 2, 1, 3])


def _join_heads(x: Value) -> Value:
    return Reshape(Transpose(x, perm=[0, 2, 1, 3]), [0, 0, -1])


def repeat_heads(x: Value, heads: int) -> Value:
    """Every head of keys or values as often as queries share it."""
    have = _number(x.shape[1], "the number of heads")
    if have == heads:
        return x
    if heads % have:
        raise ShapeMismatchError(f"{heads} query heads do not share {have} key and value heads evenly")
    wide = Expand(Unsqueeze(x, [2]), [1, 1, heads // have, 1, 1])
    return Reshape(wide, [x.shape[0], heads, x.shape[2], x.shape[3]])


def _scaled(q: Value, k: Value, scale: float | None) -> tuple[Value, Value]:
    """Both factors times the square root of the scale, which keeps half precision from overflowing."""
    if scale is None and not isinstance(q.shape[-1], int):
        size = Cast(Squeeze(ShapeOf(q, start=-1), [0]), to=DType.Float64)
        root = Cast(Sqrt(Sqrt(1.0 / size)), to=q.dtype)
    else:
        factor = 1.0 / math.sqrt(q.shape[-1]) if scale is None else scale  # type: ignore[arg-type]
        root = constant(math.sqrt(factor), q)
    return q * root, k * root


def _range(x: Value, axis: int) -> Value:
    """0, 1, 2, ... along an axis."""
    size = x.shape[axis]
    if isinstance(size, int):
        return constant(np.arange(size, dtype=np.int64))
    end = Squeeze(ShapeOf(x, start=axis, end=axis + 1), [0])
    return Range(constant(0, DType.Int64), end, constant(1, DType.Int64))


def _offset(q: Value, past: Value | None, lengths: Value | None) -> Value:
    """How many keys come before the first query: a scalar, or [batch, 1, 1, 1]."""
    if past is not None:
        return Squeeze(ShapeOf(past, start=2, end=3), [0])
    if lengths is not None:
        return lengths - Squeeze(ShapeOf(q, start=2, end=3), [0])
    return constant(0, DType.Int64)


def _allowed(
    q: Value, k: Value, past: Value | None, lengths: Value | None, *, is_causal: int, left: int, right: int
) -> Value | None:
    """Which keys a query may see because of where they are; None for all."""
    column = None if lengths is None else Reshape(lengths, [-1, 1, 1, 1])
    key = _range(k, 2)
    limits = [] if column is None else [key < column]
    if is_causal or left >= 0 or right >= 0:
        place = Unsqueeze(_range(q, 2), [1]) + _offset(q, past, column)
        if is_causal:
            limits.append(key <= place)
        if left >= 0:
            limits.append(key >= place - left)
        if right >= 0:
            limits.append(key <= place + right)
    result: Value | None = None
    for limit in limits:
        result = limit if result is None else And(result, limit)
    return result


def _bias(q: Value, k: Value, mask: Value | None, allowed: Value | None) -> Value | None:
    """What is added to the scores: minus infinity where a key must not be seen."""
    added = None
    if mask is not None:
        mask = _padded_mask(mask, k.shape[2])
        if mask.dtype is DType.Bool:
            allowed = mask if allowed is None else And(allowed, mask)
        else:
            added = Cast(mask, to=q.dtype)
    if allowed is not None:
        hidden = Where(allowed, constant(0.0, q), constant(-math.inf, q))
        added = hidden if added is None else added + hidden
    return added


def _padded_mask(mask: Value, keys: DimLike) -> Value:
    """A mask may end early: what it does not name is not seen."""
    size = mask.shape[-1]
    if not isinstance(size, int) or not isinstance(keys, int) or size >= keys:
        return mask
    ends = [*[0] * (2 * mask.rank - 1), keys - size]
    if mask.dtype is DType.Bool:
        return Cast(Pad(Cast(mask, to=DType.UInt8), ends), to=DType.Bool)
    return Pad(mask, ends, constant(-math.inf, mask))


def _probabilities(scores: Value, bias: Value | None) -> Value:
    """Softmax in the precision of the scores; a query that may see nothing gets zeros."""
    if bias is None:
        return _softmax(scores)
    blind = Equal(ReduceMax(bias, [-1], keepdims=1), constant(-math.inf, bias))
    zero = constant(0, scores)
    return Where(blind, zero, _softmax(Where(blind, zero, scores)))


def _softmax(scores: Value) -> Value:
    # The operator of that name widens half precision, which here only softmax_precision may.
    raised = Exp(scores - ReduceMax(scores, [-1], keepdims=1))
    return raised / ReduceSum(raised, [-1], keepdims=1)


@operator(
    since=25,
    requires=attention_needs,
    types="T1:float T1 T2:float U T1 T2 int64 > T1 T1 T2 T1",
    kind="product",
    flops=attention_flops,
)
def Attention(
    Q: Value,
    K: Value,
    V: Value,
    attn_mask: Value | None = None,
    past_key: Value | None = None,
    past_value: Value | None = None,
    nonpad_kv_seqlen: Value | None = None,
    /,
    *,
    is_causal: int = 0,
    kv_num_heads: int | None = None,
    left_window_size: int = -1,
    q_num_heads: int | None = None,
    qk_matmul_output_mode: int = 0,
    right_window_size: int = -1,
    scale: float | None = None,
    softcap: float = 0.0,
    softmax_precision: int | None = None,
) -> tuple[Value, Value, Value, Value]:
    """Scaled dot-product attention with shared heads, caches, masks and windows."""
    if (past_key is None) != (past_value is None):
        raise InputError("past_key and past_value must be given together")
    if past_key is not None and nonpad_kv_seqlen is not None:
        raise InputError("nonpad_kv_seqlen is for a cache kept outside: it excludes past_key")
    q = _split_heads(Q, q_num_heads, "q_num_heads")
    k, v = (_split_heads(x, kv_num_heads, "kv_num_heads") for x in (K, V))
    if past_key is not None:
        k, v = Concat(past_key, k, axis=2), Concat(past_value, v, axis=2)
    heads = _number(q.shape[1], "the number of heads")
    keys, values = repeat_heads(k, heads), repeat_heads(v, heads)
    left, right = _scaled(q, keys, scale)
    raw = MatMul(left, Transpose(right, perm=[0, 1, 3, 2]))
    capped = Tanh(raw / softcap) * softcap if softcap > 0 else raw
    allowed = _allowed(
        q, k, past_key, nonpad_kv_seqlen, is_causal=is_causal, left=left_window_size, right=right_window_size
    )
    bias = _bias(q, k, attn_mask, allowed)
    biased = capped if bias is None else capped + bias
    exact = biased if softmax_precision is None else Cast(biased, to=softmax_precision)
    shares = Cast(_probabilities(exact, bias), to=Q.dtype)
    y = MatMul(shares, Cast(values, to=Q.dtype))
    shown = (raw, capped, biased, shares)
    if not 0 <= qk_matmul_output_mode < len(shown):
        raise InputError(f"qk_matmul_output_mode must be 0 to 3, got {qk_matmul_output_mode}")
    return (_join_heads(y) if Q.rank == 3 else y), k, v, shown[qk_matmul_output_mode]


# ---------------------------------------------------------------------- rotary


@operator(since=23, requires=rotary_needs, types="T:float T T int64 > T")
def RotaryEmbedding(
    X: Value,
    cos_cache: Value,
    sin_cache: Value,
    position_ids: Value | None = None,
    /,
    *,
    interleaved: int = 0,
    num_heads: int | None = None,
    rotary_embedding_dim: int = 0,
) -> Value:
    """Turn pairs of features by angles that depend on the position."""
    x = _split_heads(X, num_heads, "num_heads")
    size = _number(x.shape[3], "the head size")
    turned = rotary_embedding_dim or size
    cos, sin = cos_cache, sin_cache
    if position_ids is not None:
        cos, sin = Gather(cos, position_ids, axis=0), Gather(sin, position_ids, axis=0)
    angles = cos.shape[-1]
    if isinstance(angles, int) and angles * 2 != turned:
        raise ShapeMismatchError(f"caches hold {angles} angles, {turned} features need {turned // 2}")
    cos, sin = Unsqueeze(cos, [1]), Unsqueeze(sin, [1])
    rest = None
    if turned < size:
        x, rest = Split(x, [turned, size - turned], axis=3)
    a, b = _pairs(x, turned, interleaved=bool(interleaved))
    parts = [a * cos - b * sin, a * sin + b * cos]
    if interleaved:
        y = Reshape(Concat(*[Unsqueeze(p, [4]) for p in parts], axis=4), [0, 0, 0, turned])
    else:
        y = Concat(*parts, axis=3)
    y = y if rest is None else Concat(y, rest, axis=3)
    return _join_heads(y) if X.rank == 3 else y


def _pairs(x: Value, size: int, *, interleaved: bool) -> tuple[Value, Value]:
    """First and second members: neighbours, or the two halves."""
    if not interleaved:
        a, b = Split(x, axis=3, num_outputs=2)
        return a, b
    return Slice(x, [0], [size], [3], [2]), Slice(x, [1], [size], [3], [2])


# ---------------------------------------------------------------------- linear


def _divided(size: DimLike, by: int) -> DimLike:
    return None if size is None else size // by


def _linear_type(
    query: Value,
    key: Value,
    value: Value,
    past_state: Value | None = None,
    decay: Value | None = None,
    beta: Value | None = None,
    /,
    *,
    kv_num_heads: int,
    q_num_heads: int,
    **_: Any,
) -> tuple[TensorType, TensorType]:
    q, k, v = (x.tensor_type.shape for x in (query, key, value))
    d_k, d_v = (None if s is None else _divided(s[2], kv_num_heads) for s in (k, v))
    lead = [None, None] if q is None else list(q[:2])
    output = Shape([*lead, None if d_v is None else d_v * q_num_heads])
    state = Shape([lead[0], kv_num_heads, d_k, d_v])
    return TensorType(query.dtype, output), TensorType((query if past_state is None else past_state).dtype, state)


@operator(since=27, infer=_linear_type, types="T:float T T S:float T T > T S", kind="product")
def LinearAttention(
    query: Value,
    key: Value,
    value: Value,
    past_state: Value | None = None,
    decay: Value | None = None,
    beta: Value | None = None,
    /,
    *,
    chunk_size: int = 64,
    kv_num_heads: int,
    q_num_heads: int,
    scale: float = 0.0,
    update_rule: str = "gated_delta",
) -> tuple[Value, Value]:
    """Attention without softmax: a state that every key and value is written to, and queries read."""
    _check_linear(update_rule, decay, beta, q_num_heads, kv_num_heads)
    batch, steps, features = (_number(n, "a size of the query") for n in query.shape)
    d_k, d_v = features // q_num_heads, _number(value.shape[2], "the size of the value") // kv_num_heads
    queries = _steps(query, [batch, steps, kv_num_heads, q_num_heads // kv_num_heads, d_k])
    keys = _steps(key, [batch, steps, kv_num_heads, 1, d_k])
    values = _steps(value, [batch, steps, kv_num_heads, 1, d_v])
    decays = None if decay is None else _steps(decay, [batch, steps, kv_num_heads, -1, 1])
    rates = None if beta is None else _steps(beta, [batch, steps, -1, 1, 1])
    kind = query.dtype if past_state is None else past_state.dtype
    shape = [batch, kv_num_heads, d_k, d_v]
    state = Expand(constant(0.0, DType.Float32), shape) if past_state is None else Cast(past_state, to=DType.Float32)
    factor = scale if scale else 1.0 / math.sqrt(d_k)
    rows: list[Value] = []
    for t in range(steps):
        if decays is not None:
            state = state * Exp(decays[t])
        new = values[t]
        if rates is not None:
            new = (new - MatMul(keys[t], state)) * rates[t]
        state = state + Transpose(keys[t], perm=[0, 1, 3, 2]) * new
        rows.append(Reshape(MatMul(queries[t], state) * factor, [batch, 1, q_num_heads * d_v]))
    output = rows[0] if steps == 1 else Concat(*rows, axis=1)
    return Cast(output, to=query.dtype), Cast(state, to=kind)


def _steps(x: Value, shape: Sequence[int]) -> list[Value]:
    """Per step, in float32: [batch, heads, rows, columns]."""
    wide = Cast(Reshape(x, list(shape)), to=DType.Float32)
    count = shape[1]
    parts = [wide] if count == 1 else Split(wide, axis=1, num_outputs=count)
    return [Squeeze(p, [1]) for p in parts]


def _check_linear(rule: str, decay: Value | None, beta: Value | None, queries: int, keys: int) -> None:
    if rule not in ("linear", "gated", "delta", "gated_delta"):
        raise InputError(f"update_rule {rule!r} is none of linear, gated, delta, gated_delta")
    if queries <= 0 or keys <= 0 or queries % keys:
        raise InputError(f"q_num_heads {queries} must be a positive multiple of kv_num_heads {keys}")
    for name, given, needed in (("decay", decay, "gated" in rule), ("beta", beta, "delta" in rule)):
        if (given is not None) != needed:
            raise InputError(f"update_rule {rule!r} {'needs' if needed else 'excludes'} the input {name}")


# ---------------------------------------------------------------------- with subgraphs


@operator(since=1, domain="ai.onnx.preview", kind="product")
def FlexAttention(
    Q: Value,
    K: Value,
    V: Value,
    /,
    *captures: Value,
    captured: int = 0,
    prob_mod: Graph | None = None,
    scale: float | None = None,
    score_mod: Graph | None = None,
    softmax_precision: int | None = None,
) -> Value:
    """Scaled dot-product attention whose scores and probabilities pass through subgraphs."""
    if not Q.rank == K.rank == V.rank == 4:
        raise ShapeMismatchError(f"inputs must have four axes, got shapes {Q.shape}, {K.shape} and {V.shape}")
    heads = _number(Q.shape[1], "the number of heads")
    keys, values = repeat_heads(K, heads), repeat_heads(V, heads)
    left, right = _scaled(Q, keys, scale)
    if softmax_precision is None:
        kind = DType.Float64 if Q.dtype is DType.Float64 else DType.Float32
    else:
        kind = DType.from_onnx(softmax_precision)
    scores = Cast(MatMul(left, Transpose(right, perm=[0, 1, 3, 2])), to=kind)
    if score_mod is not None:
        scores = inline(score_mod, [scores, *captures])[0]
    shares = Softmax(scores, axis=-1)
    if prob_mod is not None:
        shares = inline(prob_mod, [shares, *captures])[0]
    return MatMul(Cast(shares, to=Q.dtype), values)


def inline(graph: Graph, inputs: Sequence[Value]) -> list[Value]:
    """Outputs of a graph whose nodes are called like the operators of a body."""
    values: dict[str, Value | None] = {"": None}
    values.update((name, constant(tensor.raw())) for name, tensor in graph.initializers.items())
    values.update(zip((info.name for info in graph.inputs), inputs, strict=True))
    for node in graph.topological_sort():
        results = get_op(node.op_type, node.domain)(*[values[name] for name in node.inputs], **node.attributes)
        listed: tuple[Value, ...] = results if isinstance(results, tuple) else (results,)
        values.update(zip(node.outputs, listed, strict=False))
    return [values[info.name] for info in graph.outputs]  # type: ignore[misc]
