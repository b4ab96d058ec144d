"""Attention whole, as training has it: a backend may do it, and its gradient, without a matrix of scores."""

from __future__ import annotations

import math

from pyflame_rt.graph import DType
from pyflame_rt.graph.errors import ShapeMismatchError, UndeterminedError
from pyflame_rt.ops.activation import Softmax
from pyflame_rt.ops.logic import Where
from pyflame_rt.ops.matmul import MatMul
from pyflame_rt.ops.reduce import ReduceSum
from pyflame_rt.ops.registry import operator
from pyflame_rt.ops.shape import Transpose, Unsqueeze
from pyflame_rt.ops.value import Value, constant


def _turned(x: Value) -> Value:
    return Transpose(x, perm=[*range(x.rank - 2), x.rank - 1, x.rank - 2])


def _places(size: object) -> Value:
    """0, 1, 2, ..."""
    if not isinstance(size, int):
        raise UndeterminedError("the lengths of a causal attention must be known")
    return constant(list(range(size)), DType.Int64)


def _weights(q: Value, k: Value, scale: float, causal: int) -> Value:
    """Shares of the keys for every query; with ``causal`` query i sees keys 0 to i."""
    scores = MatMul(q * scale, _turned(k))
    if causal:
        queries, keys = (_places(n) for n in scores.shape[-2:])
        scores = Where(keys <= Unsqueeze(queries, [1]), scores, constant(-math.inf, scores))
    return Softmax(scores, axis=-1)


@operator(since=1, domain="pyflame")
def HeadsAttentionGrad(
    G: Value, Q: Value, K: Value, V: Value, /, *, scale: float, causal: int = 0
) -> tuple[Value, Value, Value]:
    """Gradients of HeadsAttention towards Q, K and V."""
    weights = _weights(Q, K, scale, causal)
    slopes = MatMul(G, _turned(V))
    slopes = weights * (slopes - ReduceSum(weights * slopes, [-1])) * scale
    return MatMul(slopes, K), MatMul(_turned(slopes), Q), MatMul(_turned(weights), G)


def _attention_vjp(
    g: Value, _y: Value, Q: Value, K: Value, V: Value, /, *, scale: float, causal: int
) -> tuple[Value, Value, Value]:
    return HeadsAttentionGrad(g, Q, K, V, scale=scale, causal=causal)


@operator(since=1, domain="pyflame", vjp=_attention_vjp)
def HeadsAttention(Q: Value, K: Value, V: Value, /, *, scale: float, causal: int = 0) -> Value:
    """softmax(scale * Q K^T) V over [batch, heads, length, size]; batch and heads are the same for all three."""
    lead = [tuple(x.shape[:-2]) for x in (Q, K, V)]
    if any(x.rank != 4 for x in (Q, K, V)) or lead[1:] != lead[:-1]:
        raise ShapeMismatchError(f"attention needs equal batches and heads, got {[list(x.shape) for x in (Q, K, V)]}")
    return MatMul(_weights(Q, K, scale, causal), V)
