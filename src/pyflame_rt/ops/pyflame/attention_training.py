"""Attention whole, as training has it: a backend may do it, and its gradient, without a matrix of scores."""

from __future__ import annotations

import math
from typing import Any

from pyflame_rt.graph import DType
from pyflame_rt.graph.errors import UndeterminedError
from pyflame_rt.ops.core.guards import has_rank, has_shape, size_at
from pyflame_rt.ops.core.registry import operator
from pyflame_rt.ops.core.value import Value, constant
from pyflame_rt.ops.onnx.activation import Softmax
from pyflame_rt.ops.onnx.logic import Where
from pyflame_rt.ops.onnx.matmul import MatMul
from pyflame_rt.ops.onnx.reduce import ReduceSum
from pyflame_rt.ops.onnx.shape import Transpose, Unsqueeze


def turned(x: Value) -> Value:
    """The last two axes changed for each other."""
    return Transpose(x, perm=[*range(x.rank - 2), x.rank - 1, x.rank - 2])


def _places(size: object) -> Value:
    """0, 1, 2, ..."""
    if not isinstance(size, int):
        raise UndeterminedError("the lengths of a causal attention must be known")
    return constant(list(range(size)), DType.Int64)


def _weights(q: Value, k: Value, scale: float, causal: int) -> Value:
    """Shares of the keys for every query; with ``causal`` query i sees keys 0 to i."""
    scores = MatMul(q * scale, turned(k))
    if causal:
        queries, keys = (_places(n) for n in scores.shape[-2:])
        scores = Where(keys <= Unsqueeze(queries, [1]), scores, constant(-math.inf, scores))
    return Softmax(scores, axis=-1)


def _heads_need(Q: Value, K: Value, V: Value, /, **_: Any) -> None:
    has_rank("Q", Q, 4)
    batch, heads, _length, size = Q.shape
    has_shape("K", K, [batch, heads, None, size], "batch, heads, length, size")
    has_shape("V", V, [batch, heads, size_at(K, 2), None], "batch, heads, length, size")


def _gradient_needs(G: Value, Q: Value, K: Value, V: Value, /, **_: Any) -> None:
    _heads_need(Q, K, V)
    has_shape("G", G, [*Q.shape[:3], size_at(V, 3)], "batch, heads, length, size")


@operator(since=1, domain="pyflame", requires=_gradient_needs)
def HeadsAttentionGrad(
    G: Value, Q: Value, K: Value, V: Value, /, *, scale: float, causal: int = 0
) -> tuple[Value, Value, Value]:
    """Gradients of HeadsAttention towards Q, K and V."""
    weights = _weights(Q, K, scale, causal)
    slopes = MatMul(G, turned(V))
    slopes = weights * (slopes - ReduceSum(weights * slopes, [-1])) * scale
    return MatMul(slopes, K), MatMul(turned(slopes), Q), MatMul(turned(weights), G)


def _attention_vjp(
    g: Value, _y: Value, Q: Value, K: Value, V: Value, /, *, scale: float, causal: int
) -> tuple[Value, Value, Value]:
    return HeadsAttentionGrad(g, Q, K, V, scale=scale, causal=causal)


@operator(since=1, domain="pyflame", vjp=_attention_vjp, requires=_heads_need, kind="product")
def HeadsAttention(Q: Value, K: Value, V: Value, /, *, scale: float, causal: int = 0) -> Value:
    """softmax(scale * Q K^T) V over [batch, heads, length, size]; batch and heads are the same for all three."""
    return MatMul(_weights(Q, K, scale, causal), V)
