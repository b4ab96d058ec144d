"""Attention layers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from pyflame.dtypes import DType
from pyflame.nn import functional as F
from pyflame.nn import init
from pyflame.nn.functional.attention import attend
from pyflame.nn.linear import Linear
from pyflame.nn.making import empty_parameter
from pyflame.nn.module import Module
from pyflame.nn.placing import placed
from pyflame.ops.arithmetic import where
from pyflame.ops.core import cast
from pyflame.ops.creation import full, zeros
from pyflame.ops.shaping import cat
from pyflame.outline import outlined, own

if TYPE_CHECKING:
    from pyflame.tensors import Tensor

__all__ = ["CrossAttention", "MultiheadAttention", "SelfAttention"]


@placed
class MultiheadAttention(Module):
    """Attention in several heads, each over its own part of the embedding; weights are named as torch names them.

    Called with one argument it attends to itself and gives a tensor; called with query, key and value it gives the
    output and the weights (or None).

    Example:
        >>> import pyflame as pf
        >>> attention = pf.nn.MultiheadAttention(8, 2, batch_first=True)
        >>> x = pf.randn([3, 5, 8])
        >>> out, weights = attention(x, x, x)
        >>> out.shape, weights.shape, attention(x).shape
        ([3, 5, 8], [3, 5, 5], [3, 5, 8])
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        *,
        dtype: DType | None = None,
    ) -> None:
        super().__init__()
        if num_heads <= 0 or embed_dim % num_heads:
            raise ValueError(f"embed_dim must be divisible by num_heads. Received: {embed_dim}, {num_heads}")
        self.embed_dim, self.num_heads, self.head_dim = embed_dim, num_heads, embed_dim // num_heads
        self.dropout, self.batch_first, self.add_zero_attn = dropout, batch_first, add_zero_attn
        self.kdim, self.vdim = kdim or embed_dim, vdim or embed_dim
        self._same = self.kdim == embed_dim and self.vdim == embed_dim
        packed = {"in_proj_weight": [3 * embed_dim, embed_dim]} if self._same else {
            "q_proj_weight": [embed_dim, embed_dim],
            "k_proj_weight": [embed_dim, self.kdim],
            "v_proj_weight": [embed_dim, self.vdim],
        }  # fmt: skip
        for name, shape in packed.items():
            self.register_parameter(name, empty_parameter(shape, dtype))
        self.register_parameter("in_proj_bias", empty_parameter([3 * embed_dim], dtype) if bias else None)
        self.out_proj = Linear(embed_dim, embed_dim, bias, dtype=dtype)
        self.register_parameter("bias_k", empty_parameter([1, 1, embed_dim], dtype) if add_bias_kv else None)
        self.register_parameter("bias_v", empty_parameter([1, 1, embed_dim], dtype) if add_bias_kv else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new weights."""
        for name, parameter in self.named_parameters(recurse=False):
            if name.endswith("_weight"):
                init.xavier_uniform_(parameter)
            elif name in ("bias_k", "bias_v"):
                init.xavier_normal_(parameter)
            else:
                init.zeros_(parameter)
        if self.out_proj.bias is not None:
            init.zeros_(self.out_proj.bias)

    def forward(
        self,
        query: Any,
        key: Any = None,
        value: Any = None,
        key_padding_mask: Any = None,
        need_weights: bool = True,
        attn_mask: Any = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> Any:
        """The attended values; masks are True where attention may not go, or are added to the scores."""
        alone = key is None
        key = query if key is None else key
        value = key if value is None else value
        single = len(query.shape) == 2
        if is_causal and attn_mask is None:
            raise ValueError("need attn_mask if specifying the is_causal hint")
        weights = (self.in_proj_weight,) if self._same else (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        out, shares = _attention(
            query, key, value, attn_mask, key_padding_mask, self.in_proj_bias, self.bias_k, self.bias_v, self.num_heads,
            self.batch_first, self.add_zero_attn, self.dropout if self.training else 0.0,
            None if alone or not need_weights else average_attn_weights, *weights,
        )  # fmt: skip
        out = self.out_proj(out)
        out = out.squeeze(0) if single else out if self.batch_first else out.transpose(0, 1)
        if alone:
            return out
        return out, None if shares is None else shares.squeeze(0) if single else shares


@outlined
def _attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any,
    padding: Any,
    bias: Any,
    bias_k: Any,
    bias_v: Any,
    heads: int,
    batch_first: bool,
    add_zero: bool,
    dropout: float,
    averaged: bool | None,
    *weights: Any,
) -> tuple[Tensor, Tensor | None]:
    """What the heads give [N, L, E], before the last product; and the shares, where they are asked for."""
    size, single = int(weights[0].shape[-1]) if len(weights) == 1 else int(weights[0].shape[0]), len(query.shape) == 2
    inputs = [x.unsqueeze(0) if single else x if batch_first else x.transpose(0, 1) for x in (query, key, value)]
    parts = [weights[0].narrow(0, i * size, size) for i in range(3)] if len(weights) == 1 else list(weights)
    biases = [None] * 3 if bias is None else [bias.narrow(0, i * size, size) for i in range(3)]
    q, k, v = (F.linear(x, w, b) for x, w, b in zip(inputs, parts, biases, strict=True))
    mask = _mask(attn_mask, padding, heads, q, int(k.shape[1]))
    k, v, mask = _extended(k, v, mask, bias_k, bias_v, add_zero)
    split = [x.reshape([x.shape[0], x.shape[1], heads, size // heads]).transpose(1, 2) for x in (q, k, v)]
    mixed = attend(split[0], split[1], split[2], mask, dropout_p=dropout)
    out = mixed.output.transpose(1, 2).reshape([q.shape[0], q.shape[1], size])
    if averaged is None:
        return own(out), None
    return own(out), mixed.weights.mean(dim=1) if averaged else mixed.weights


def _mask(attn_mask: Any, padding: Any, heads: int, q: Tensor, keys: int) -> Any:
    """One additive mask [N or 1, heads or 1, L, S] from torch's two."""
    total = None
    if attn_mask is not None:
        bias = _additive(attn_mask, q.dtype)
        total = bias if len(bias.shape) == 2 else bias.reshape([-1, heads, q.shape[1], keys])
    if padding is not None:
        bias = _additive(padding, q.dtype).reshape([-1, 1, 1, keys])
        total = bias if total is None else total + bias
    return total


def _extended(k: Tensor, v: Tensor, mask: Any, bias_k: Any, bias_v: Any, add_zero: bool) -> tuple[Tensor, Tensor, Any]:
    """Keys and values with those that stand for nothing."""
    batch, size, extra = int(k.shape[0]), int(k.shape[2]), 0
    if bias_k is not None:
        k = cat([k, bias_k.expand(batch, 1, size)], dim=1)
        v = cat([v, bias_v.expand(batch, 1, size)], dim=1)
        extra += 1
    if add_zero:
        nothing = zeros([batch, 1, size], dtype=k.dtype)
        k, v, extra = cat([k, nothing], dim=1), cat([v, nothing], dim=1), extra + 1
    if extra and mask is not None:
        mask = cat([mask, zeros([*mask.shape[:-1], extra], dtype=mask.dtype)], dim=-1)
    return k, v, mask


def _additive(mask: Any, dtype: DType) -> Tensor:
    """A mask that is True where attention may not go, as numbers to add."""
    if mask.dtype is not DType.bool:
        return cast(mask, dtype)
    shape = list(mask.shape)
    return where(mask, full(shape, -math.inf, dtype=dtype), zeros(shape, dtype=dtype))


@placed
class SelfAttention(Module):
    """A sequence [N, L, E] that attends to itself.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.SelfAttention(8, 2)(pf.randn([3, 5, 8])).shape
        [3, 5, 8]
    """

    def __init__(self, embed_dim: int, num_heads: int, dropout: float = 0.0, bias: bool = True) -> None:
        super().__init__()
        self.attention = MultiheadAttention(embed_dim, num_heads, dropout, bias, batch_first=True)

    def forward(self, input: Any, attn_mask: Any = None, key_padding_mask: Any = None) -> Tensor:
        """The attended sequence."""
        return self.attention(input, input, input, key_padding_mask, need_weights=False, attn_mask=attn_mask)[0]


@placed
class CrossAttention(Module):
    """A sequence [N, L, E] that attends to another [N, S, context_dim].

    Example:
        >>> import pyflame as pf
        >>> pf.nn.CrossAttention(8, 2)(pf.randn([3, 5, 8]), pf.randn([3, 7, 8])).shape
        [3, 5, 8]
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        context_dim: int | None = None,
    ) -> None:
        super().__init__()
        self.attention = MultiheadAttention(
            embed_dim, num_heads, dropout, bias, kdim=context_dim, vdim=context_dim, batch_first=True
        )

    def forward(self, query: Any, context: Any, attn_mask: Any = None, key_padding_mask: Any = None) -> Tensor:
        """The attended sequence."""
        return self.attention(query, context, context, key_padding_mask, need_weights=False, attn_mask=attn_mask)[0]
