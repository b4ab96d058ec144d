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
from pyflame.ops.arithmetic import where
from pyflame.ops.core import cast
from pyflame.ops.creation import full, zeros
from pyflame.ops.shaping import cat

if TYPE_CHECKING:
    from pyflame.tensors import Tensor

__all__ = ["CrossAttention", "MultiheadAttention", "SelfAttention"]


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
        q, k, v = (self._batch_first(x, single) for x in (query, key, value))
        q, k, v = self._projected(q, k, v)
        mask = self._mask(attn_mask, key_padding_mask, q, int(k.shape[1]), is_causal)
        k, v, mask = self._extended(k, v, mask)
        heads = [self._split(x) for x in (q, k, v)]
        drop = self.dropout if self.training else 0.0
        mixed = attend(heads[0], heads[1], heads[2], mask, dropout_p=drop)
        out = self.out_proj(mixed.output.transpose(1, 2).reshape([q.shape[0], q.shape[1], self.embed_dim]))
        out = out.squeeze(0) if single else out if self.batch_first else out.transpose(0, 1)
        if alone:
            return out
        if not need_weights:
            return out, None
        weights = mixed.weights.mean(dim=1) if average_attn_weights else mixed.weights
        return out, weights.squeeze(0) if single else weights

    def _batch_first(self, x: Any, single: bool) -> Tensor:
        return x.unsqueeze(0) if single else x if self.batch_first else x.transpose(0, 1)

    def _projected(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        size = self.embed_dim
        if self._same:
            weights = [self.in_proj_weight.narrow(0, i * size, size) for i in range(3)]
        else:
            weights = [self.q_proj_weight, self.k_proj_weight, self.v_proj_weight]
        bias = self.in_proj_bias
        biases = [None] * 3 if bias is None else [bias.narrow(0, i * size, size) for i in range(3)]
        a, b, c = (F.linear(x, w, s) for x, w, s in zip((q, k, v), weights, biases, strict=True))
        return a, b, c

    def _split(self, x: Tensor) -> Tensor:
        return x.reshape([x.shape[0], x.shape[1], self.num_heads, self.head_dim]).transpose(1, 2)

    def _mask(self, attn_mask: Any, padding: Any, q: Tensor, keys: int, is_causal: bool) -> Any:
        """One additive mask [N or 1, heads or 1, L, S] from torch's two."""
        if is_causal and attn_mask is None:
            raise ValueError("need attn_mask if specifying the is_causal hint")
        total = None
        if attn_mask is not None:
            bias = _additive(attn_mask, q.dtype)
            total = bias if len(bias.shape) == 2 else bias.reshape([-1, self.num_heads, q.shape[1], keys])
        if padding is not None:
            bias = _additive(padding, q.dtype).reshape([-1, 1, 1, keys])
            total = bias if total is None else total + bias
        return total

    def _extended(self, k: Tensor, v: Tensor, mask: Any) -> tuple[Tensor, Tensor, Any]:
        extra = 0
        if self.bias_k is not None:
            batch = int(k.shape[0])
            k = cat([k, self.bias_k.expand(batch, 1, self.embed_dim)], dim=1)
            v = cat([v, self.bias_v.expand(batch, 1, self.embed_dim)], dim=1)
            extra += 1
        if self.add_zero_attn:
            nothing = zeros([k.shape[0], 1, self.embed_dim], dtype=k.dtype)
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
