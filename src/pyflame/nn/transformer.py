"""Transformer layers, with torch's names, defaults and weights."""

from __future__ import annotations

import copy
import math
from typing import TYPE_CHECKING, Any

from pyflame.nn import functional as F
from pyflame.nn import init
from pyflame.nn.attention import MultiheadAttention
from pyflame.nn.containers import ModuleList
from pyflame.nn.dropout import Dropout
from pyflame.nn.linear import Linear
from pyflame.nn.module import Module
from pyflame.nn.norm import LayerNorm
from pyflame.nn.placing import placed
from pyflame.ops.creation import full
from pyflame.ops.shaping import triu

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyflame.dtypes import DType
    from pyflame.tensors import Tensor

__all__ = [
    "Transformer",
    "TransformerDecoder",
    "TransformerDecoderLayer",
    "TransformerEncoder",
    "TransformerEncoderLayer",
]

ACTIVATIONS: dict[str, Callable[[Any], Tensor]] = {"relu": F.relu, "gelu": F.gelu, "silu": F.silu}


def _activation(activation: str | Callable[[Any], Tensor]) -> Callable[[Any], Tensor]:
    if callable(activation):
        return activation
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation must be one of {', '.join(ACTIVATIONS)} or a function. Received: {activation!r}")
    return ACTIVATIONS[activation]


# torch's order of a decoder layer's parts, and so of its parameters.
ORDER = ("self_attn", "multihead_attn", "linear1", "dropout", "linear2", "norm1", "norm2", "norm3")


@placed
class _Layer(Module):
    """Attention and a small network, each with a residual path and a norm before or after it."""

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Callable[[Any], Tensor] = "relu",
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        *,
        dtype: DType | None = None,
    ) -> None:
        super().__init__()
        self.self_attn = MultiheadAttention(d_model, nhead, dropout, bias, batch_first=batch_first, dtype=dtype)
        self.linear1 = Linear(d_model, dim_feedforward, bias, dtype=dtype)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(dim_feedforward, d_model, bias, dtype=dtype)
        self.norm1 = LayerNorm(d_model, layer_norm_eps, bias=bias, dtype=dtype)
        self.norm2 = LayerNorm(d_model, layer_norm_eps, bias=bias, dtype=dtype)
        self.dropout1, self.dropout2 = Dropout(dropout), Dropout(dropout)
        self.activation, self.norm_first = _activation(activation), norm_first

    def _order(self, names: tuple[str, ...]) -> None:
        parts = {name: self._modules.pop(name) for name in names}
        rest = dict(self._modules)
        self._modules.clear()
        self._modules.update({**parts, **rest})

    def _around(self, x: Any, norm: Module, part: Callable[[Any], Tensor]) -> Tensor:
        """The input plus what a part makes of it, with the norm where it belongs."""
        return x + part(norm(x)) if self.norm_first else norm(x + part(x))

    def _attend_self(self, x: Any, mask: Any, padding: Any, is_causal: bool) -> Tensor:
        settings = {"key_padding_mask": padding, "attn_mask": mask, "need_weights": False}
        return self.dropout1(self.self_attn(x, x, x, **settings, is_causal=is_causal and mask is not None)[0])

    def _feed(self, x: Any, last: Module) -> Tensor:
        return last(self.linear2(self.dropout(self.activation(self.linear1(x)))))


class TransformerEncoderLayer(_Layer):
    """Self-attention, then a two-layer network.

    Example:
        >>> import pyflame as pf
        >>> layer = pf.nn.TransformerEncoderLayer(8, 2, dim_feedforward=16, batch_first=True)
        >>> layer(pf.randn([3, 5, 8])).shape
        [3, 5, 8]
    """

    def forward(
        self, src: Any, src_mask: Any = None, src_key_padding_mask: Any = None, is_causal: bool = False
    ) -> Tensor:
        """The sequence after one layer."""
        x = self._around(src, self.norm1, lambda x: self._attend_self(x, src_mask, src_key_padding_mask, is_causal))
        return self._around(x, self.norm2, lambda x: self._feed(x, self.dropout2))


@placed
class TransformerDecoderLayer(_Layer):
    """Self-attention, attention to the encoder's memory, then a two-layer network.

    Example:
        >>> import pyflame as pf
        >>> layer = pf.nn.TransformerDecoderLayer(8, 2, dim_feedforward=16, batch_first=True)
        >>> layer(pf.randn([3, 5, 8]), pf.randn([3, 7, 8])).shape
        [3, 5, 8]
    """

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Callable[[Any], Tensor] = "relu",
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        *,
        dtype: DType | None = None,
    ) -> None:
        settings = (dropout, activation, layer_norm_eps, batch_first, norm_first, bias)
        super().__init__(d_model, nhead, dim_feedforward, *settings, dtype=dtype)
        self.multihead_attn = MultiheadAttention(d_model, nhead, dropout, bias, batch_first=batch_first, dtype=dtype)
        self.norm3 = LayerNorm(d_model, layer_norm_eps, bias=bias, dtype=dtype)
        self.dropout3 = Dropout(dropout)
        self._order(ORDER)

    def forward(
        self,
        tgt: Any,
        memory: Any,
        tgt_mask: Any = None,
        memory_mask: Any = None,
        tgt_key_padding_mask: Any = None,
        memory_key_padding_mask: Any = None,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
    ) -> Tensor:
        """The sequence after one layer."""

        def attend_memory(x: Any) -> Tensor:
            settings = {"key_padding_mask": memory_key_padding_mask, "attn_mask": memory_mask, "need_weights": False}
            causal = memory_is_causal and memory_mask is not None
            return self.dropout2(self.multihead_attn(x, memory, memory, **settings, is_causal=causal)[0])

        x = self._around(tgt, self.norm1, lambda x: self._attend_self(x, tgt_mask, tgt_key_padding_mask, tgt_is_causal))
        x = self._around(x, self.norm2, attend_memory)
        return self._around(x, self.norm3, lambda x: self._feed(x, self.dropout3))


class _Stack(Module):
    """Copies of a layer one after the other, and perhaps a norm."""

    def __init__(self, layer: Module, num_layers: int, norm: Module | None = None) -> None:
        super().__init__()
        self.layers = ModuleList([copy.deepcopy(layer) for _ in range(num_layers)])
        self.num_layers, self.norm = num_layers, norm

    def _normed(self, x: Tensor) -> Tensor:
        return x if self.norm is None else self.norm(x)


class TransformerEncoder(_Stack):
    """A stack of encoder layers.

    Example:
        >>> import pyflame as pf
        >>> layer = pf.nn.TransformerEncoderLayer(8, 2, dim_feedforward=16, batch_first=True)
        >>> pf.nn.TransformerEncoder(layer, 2)(pf.randn([3, 5, 8])).shape
        [3, 5, 8]
    """

    def __init__(
        self,
        encoder_layer: Module,
        num_layers: int,
        norm: Module | None = None,
        enable_nested_tensor: bool = True,
        mask_check: bool = True,
    ) -> None:
        super().__init__(encoder_layer, num_layers, norm)
        # Torch's ways to be faster where sequences are padded; results are the same with and without them.
        self.enable_nested_tensor, self.mask_check = enable_nested_tensor, mask_check

    def forward(self, src: Any, mask: Any = None, src_key_padding_mask: Any = None, is_causal: bool = False) -> Tensor:
        """The sequence after all layers."""
        for layer in self.layers:
            src = layer(src, mask, src_key_padding_mask, is_causal)
        return self._normed(src)


class TransformerDecoder(_Stack):
    """A stack of decoder layers.

    Example:
        >>> import pyflame as pf
        >>> layer = pf.nn.TransformerDecoderLayer(8, 2, dim_feedforward=16, batch_first=True)
        >>> pf.nn.TransformerDecoder(layer, 2)(pf.randn([3, 5, 8]), pf.randn([3, 4, 8])).shape
        [3, 5, 8]
    """

    def forward(self, tgt: Any, memory: Any, *args: Any, **kwargs: Any) -> Tensor:
        """The sequence after all layers; further arguments as for the layer."""
        for layer in self.layers:
            tgt = layer(tgt, memory, *args, **kwargs)
        return self._normed(tgt)


@placed
class Transformer(Module):
    """An encoder and a decoder.

    Example:
        >>> import pyflame as pf
        >>> model = pf.nn.Transformer(8, 2, 1, 1, dim_feedforward=16, batch_first=True)
        >>> model(pf.randn([3, 5, 8]), pf.randn([3, 4, 8])).shape
        [3, 4, 8]
    """

    def __init__(
        self,
        d_model: int = 512,
        nhead: int = 8,
        num_encoder_layers: int = 6,
        num_decoder_layers: int = 6,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Callable[[Any], Tensor] = "relu",
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
    ) -> None:
        super().__init__()
        settings = (d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps, batch_first, norm_first, bias)
        self.d_model, self.nhead, self.batch_first = d_model, nhead, batch_first
        final = [LayerNorm(d_model, layer_norm_eps, bias=bias) for _ in range(2)]
        self.encoder = TransformerEncoder(TransformerEncoderLayer(*settings), num_encoder_layers, final[0])
        self.decoder = TransformerDecoder(TransformerDecoderLayer(*settings), num_decoder_layers, final[1])
        for parameter in self.parameters():
            if len(parameter.shape) > 1:
                init.xavier_uniform_(parameter)

    def forward(
        self,
        src: Any,
        tgt: Any,
        src_mask: Any = None,
        tgt_mask: Any = None,
        memory_mask: Any = None,
        src_key_padding_mask: Any = None,
        tgt_key_padding_mask: Any = None,
        memory_key_padding_mask: Any = None,
        src_is_causal: bool | None = None,
        tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
    ) -> Tensor:
        """The target sequence, having seen the source."""
        memory = self.encoder(src, src_mask, src_key_padding_mask, bool(src_is_causal))
        padding = (tgt_key_padding_mask, memory_key_padding_mask)
        return self.decoder(tgt, memory, tgt_mask, memory_mask, *padding, bool(tgt_is_causal), memory_is_causal)

    @staticmethod
    def generate_square_subsequent_mask(size: int) -> Tensor:
        """Minus infinity where a position would see a later one."""
        return triu(full([size, size], -math.inf), diagonal=1)
