"""Attention: values mixed by how well keys answer queries."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from pyflame.dtypes import DType
from pyflame.lazy import modes
from pyflame.nn.functional.dropout import dropout
from pyflame.ops.activation import softmax
from pyflame.ops.arithmetic import logical_not, logical_or, where
from pyflame.ops.core import call, cast, rounded_once
from pyflame.ops.creation import full, ones, zeros
from pyflame.ops.linalg import matmul
from pyflame.ops.precision import low_precision
from pyflame.ops.shaping import tril
from pyflame.outline import outlined
from pyflame_rt.ops.pyflame.attention_training import HeadsAttention

if TYPE_CHECKING:
    from pyflame.tensors import Tensor

__all__ = ["Attended", "attend", "scaled_dot_product_attention"]


class Attended(NamedTuple):
    """What attention gives, and the shares with which it mixed the values."""

    output: Tensor
    weights: Tensor


def attend(
    query: Any,
    key: Any,
    value: Any,
    mask: Any = None,
    *,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
) -> Attended:
    """Attention over [..., L, E], [..., S, E], [..., S, Ev]; the mask is added, or True where attention may go."""
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = matmul(query * factor, key.transpose(-2, -1))
    bias = _bias(mask, is_causal, int(query.shape[-2]), int(key.shape[-2]), scores.dtype)
    weights = softmax(scores if bias is None else scores + bias, dim=-1)
    if dropout_p:
        weights = dropout(weights, dropout_p)
    return Attended(matmul(weights, value), weights)


def _bias(mask: Any, is_causal: bool, queries: int, keys: int, dtype: DType) -> Any:
    if is_causal:
        if mask is not None:
            raise ValueError("give attn_mask or is_causal, not both")
        mask = tril(ones([queries, keys], dtype=DType.bool))
    if mask is None or mask.dtype is not DType.bool:
        return None if mask is None else cast(mask, dtype)
    return where(mask, zeros(list(mask.shape), dtype=dtype), full(list(mask.shape), -math.inf, dtype=dtype))


@outlined
@low_precision
@rounded_once
def scaled_dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """`softmax(query @ key.T / sqrt(E) + mask) @ value` over [..., L, E], [..., S, E], [..., S, Ev].

    Args:
        query: What is asked.
        key: What is known.
        value: What is mixed.
        attn_mask: Added to the scores, or a boolean mask that is True where attention may go; a query that may see
            nothing gets zeros.
        dropout_p: Share of the weights to leave out.
        is_causal: Let no position see a later one.
        scale: In place of 1 / sqrt(E).
        enable_gqa: Let several query heads (dimension -3) share each key and value head.

    Example:
        >>> import pyflame as pf
        >>> q = pf.ones([1, 2, 4])
        >>> pf.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True).shape
        [1, 2, 4]
    """
    if enable_gqa:
        times, rest = divmod(int(query.shape[-3]), int(key.shape[-3]))
        if rest:
            raise ValueError(f"{query.shape[-3]} query heads cannot share {key.shape[-3]} key heads evenly")
        key, value = key.repeat_interleave(times, dim=-3), value.repeat_interleave(times, dim=-3)
    if attn_mask is None and not dropout_p and _is_trained(query, key, value):
        factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
        return call(HeadsAttention, query, key, value, scale=float(factor), causal=int(is_causal))
    if attn_mask is None or is_causal:
        return attend(query, key, value, attn_mask, dropout_p=dropout_p, is_causal=is_causal, scale=scale).output
    dead, mask = _dead_rows(attn_mask)
    mixed = attend(query, key, value, mask, dropout_p=dropout_p, scale=scale).output
    return where(dead, zeros([1], dtype=mixed.dtype), mixed)


def _dead_rows(mask: Any) -> tuple[Tensor, Tensor]:
    """Queries that may see nothing, [..., L, 1], and the mask with all of those open: they would give NaN."""
    if mask.dtype is DType.bool:
        dead = logical_not(mask.any(-1, True))
        return dead, logical_or(mask, dead)
    dead = (mask == -math.inf).all(-1, True)
    return dead, where(dead, zeros([1], dtype=mask.dtype), mask)


def _is_trained(query: Any, key: Any, value: Any) -> bool:
    """Whether a gradient will be asked for, of a form that has one whole: [N, heads, length, size] in float32."""
    given = (query, key, value)
    if not modes.grad or not any(t._value.needs_grad for t in given):
        return False
    if any(len(t.shape) != 4 or t.dtype is not DType.float32 or 0 in t.shape for t in given):
        return False
    fits = query.shape[3] == key.shape[3] and key.shape[2] == value.shape[2]
    return fits and list(query.shape[:2]) == list(key.shape[:2]) == list(value.shape[:2])
