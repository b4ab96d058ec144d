"""Attention and rotary embeddings as the optimiser writes them: what exporters spread over many nodes, as one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyflame_rt.graph.errors import UndeterminedError
from pyflame_rt.ops.core.guards import at_least, divides, has_rank, has_shape, size_at
from pyflame_rt.ops.core.registry import operator
from pyflame_rt.ops.core.type_rules import broadcast
from pyflame_rt.ops.core.value import constant
from pyflame_rt.ops.onnx.activation import Softmax
from pyflame_rt.ops.onnx.attention import repeat_heads
from pyflame_rt.ops.onnx.logic import Where
from pyflame_rt.ops.onnx.math import IsNaN
from pyflame_rt.ops.onnx.matmul import MatMul
from pyflame_rt.ops.onnx.shape import Reshape, Transpose, Unsqueeze
from pyflame_rt.ops.onnx.slicing import Concat, Slice

if TYPE_CHECKING:
    from pyflame_rt.ops.core.value import Value

__all__ = ["FusedAttention", "FusedRotary"]


def _needs(Q: Value, K: Value, V: Value, mask: Value | None = None, /, **_: Any) -> None:
    has_rank("Q", Q, 4)
    has_shape("K", K, [None, None, None, size_at(Q, 3)], "batch, heads, length, size")
    has_shape("V", V, [None, size_at(K, 1), size_at(K, 2), None], "batch, heads, length, size")


@operator(since=1, domain="pyflame", requires=_needs, kind="product")
def FusedAttention(
    Q: Value, K: Value, V: Value, mask: Value | None = None, /, *, guarded: int = 0, scale: float = 1.0
) -> Value:
    """``softmax(scale * Q K^T + mask) V``; several heads of Q may share one of K and of V.

    With ``guarded`` shares that are no numbers are zeros: those of a query that may see nothing.
    """
    heads = Q.shape[1]
    if isinstance(heads, int) and K.shape[1] != heads:
        K, V = repeat_heads(K, heads), repeat_heads(V, heads)
    scores = MatMul(Q, Transpose(K, perm=[0, 1, 3, 2]))
    if scale != 1.0:
        scores = scores * scale
    shares = Softmax(scores if mask is None else scores + mask, axis=-1)
    if guarded:
        shares = Where(IsNaN(shares), constant(0.0, shares), shares)
    return MatMul(shares, V)


def _rotary_needs(X: Value, cos: Value, sin: Value, /, **_: Any) -> None:
    size = size_at(X, -1)
    at_least("the size of the last axis", size, 2)
    divides("the size of the last axis", size, 2, "its halves")


@operator(since=1, domain="pyflame", infer=broadcast, requires=_rotary_needs)
def FusedRotary(X: Value, cos: Value, sin: Value, /, *, interleaved: int = 0) -> Value:
    """``X * cos + turned(X) * sin``: the second half of the last axis, negated, and the first; or neighbours so."""
    size = X.shape[-1]
    if not isinstance(size, int):
        raise UndeterminedError(f"the size of the last axis ({size}) is only known when running")
    last = X.rank - 1
    if interleaved:
        even, odd = (Unsqueeze(Slice(X, [i], [size], [last], [2]), [-1]) for i in range(2))
        turned = Reshape(Concat(-odd, even, axis=-1), [*[0] * last, size])
    else:
        turned = Concat(-Slice(X, [size // 2], [size], [last]), Slice(X, [0], [size // 2], [last]), axis=-1)
    return X * cos + turned * sin
