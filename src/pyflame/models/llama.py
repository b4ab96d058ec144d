"""A Llama-style decoder: RMS norms, rotary positions, gated networks, shared key heads."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame import nn
from pyflame.arrays import adopt
from pyflame.models.generation import Generator
from pyflame.nn import functional as F
from pyflame.ops.shaping import cat

if TYPE_CHECKING:
    from pyflame.tensors import Tensor

__all__ = ["Llama", "LlamaConfig"]


@dataclass(frozen=True)
class LlamaConfig:
    """The shape of a Llama-style decoder.

    Example:
        >>> from pyflame.models import LlamaConfig
        >>> LlamaConfig(hidden_size=64, num_attention_heads=4).head_dim
        16
    """

    vocab_size: int = 32000
    hidden_size: int = 512
    intermediate_size: int = 1376
    num_hidden_layers: int = 8
    num_attention_heads: int = 8
    num_key_value_heads: int | None = None
    max_position_embeddings: int = 2048
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10000.0
    tie_word_embeddings: bool = False

    @property
    def head_dim(self) -> int:
        """The width of one head."""
        return self.hidden_size // self.num_attention_heads


def rotary_tables(length: int, size: int, theta: float) -> tuple[np.ndarray, np.ndarray]:
    """Cosines and sines [length, size] of the angles at each place."""
    speeds = theta ** (-np.arange(0, size, 2) / size)
    angles = np.concatenate([np.outer(np.arange(length), speeds)] * 2, axis=1)
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def rotated(x: Any, cos: Any, sin: Any) -> Tensor:
    """Pairs of values turned by the angle of their place."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + cat([-second, first], dim=-1) * sin


class _Attention(nn.Module):
    def __init__(self, c: LlamaConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads = c.num_attention_heads, c.num_key_value_heads or c.num_attention_heads
        self.size = c.head_dim
        self.q_proj = nn.Linear(c.hidden_size, self.heads * self.size, bias=False)
        self.k_proj = nn.Linear(c.hidden_size, self.kv_heads * self.size, bias=False)
        self.v_proj = nn.Linear(c.hidden_size, self.kv_heads * self.size, bias=False)
        self.o_proj = nn.Linear(self.heads * self.size, c.hidden_size, bias=False)

    def forward(self, x: Any, cos: Any, sin: Any) -> Tensor:
        batch, length, _ = x.shape

        def split(part: Any, heads: int) -> Any:
            return part.reshape([batch, length, heads, self.size]).transpose(1, 2)

        q = rotated(split(self.q_proj(x), self.heads), cos, sin)
        k = rotated(split(self.k_proj(x), self.kv_heads), cos, sin)
        v = split(self.v_proj(x), self.kv_heads)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.kv_heads != self.heads)
        return self.o_proj(mixed.transpose(1, 2).reshape([batch, length, self.heads * self.size]))


class _MLP(nn.Module):
    def __init__(self, c: LlamaConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(c.hidden_size, c.intermediate_size, bias=False)
        self.up_proj = nn.Linear(c.hidden_size, c.intermediate_size, bias=False)
        self.down_proj = nn.Linear(c.intermediate_size, c.hidden_size, bias=False)

    def forward(self, x: Any) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class _Layer(nn.Module):
    def __init__(self, c: LlamaConfig) -> None:
        super().__init__()
        self.self_attn = _Attention(c)
        self.mlp = _MLP(c)
        self.input_layernorm = nn.RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(c.hidden_size, c.rms_norm_eps)

    def forward(self, x: Any, cos: Any, sin: Any) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(Generator, nn.Module):
    """A Llama-style decoder over token numbers [N, L]: the scores of the next token at each place.

    Example:
        >>> import pyflame as pf
        >>> small = {"vocab_size": 20, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
        >>> model = pf.models.Llama(pf.models.LlamaConfig(num_attention_heads=2, num_key_value_heads=1, **small))
        >>> model(pf.zeros([2, 5], dtype=pf.int64)).shape
        [2, 5, 20]
    """

    family = "llama"

    def __init__(self, config: LlamaConfig | None = None) -> None:
        super().__init__()
        self.config = c = config or LlamaConfig()
        self.max_length = c.max_position_embeddings
        self.embed_tokens = nn.Embedding(c.vocab_size, c.hidden_size)
        self.layers = nn.ModuleList([_Layer(c) for _ in range(c.num_hidden_layers)])
        self.norm = nn.RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.lm_head = nn.Linear(c.hidden_size, c.vocab_size, bias=False)
        for parameter in self.parameters():
            if len(parameter.shape) > 1:
                nn.init.normal_(parameter, 0, 0.02)
        if c.tie_word_embeddings:
            self.lm_head.weight = self.embed_tokens.weight
        cos, sin = rotary_tables(c.max_position_embeddings, c.head_dim, c.rope_theta)
        self.register_buffer("cos", adopt(cos), persistent=False)
        self.register_buffer("sin", adopt(sin), persistent=False)

    def decoder_settings(self) -> dict[str, Any]:
        """The settings of the model, with the names of its family."""
        return asdict(self.config)

    def forward(self, input_ids: Any) -> Tensor:
        """Scores [N, L, vocab]."""
        length = int(input_ids.shape[1])
        if length > self.max_length:
            raise ValueError(f"At most {self.max_length} tokens. Received: {length}")
        cos, sin = self.cos[:length], self.sin[:length]
        x = self.embed_tokens(input_ids)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.lm_head(self.norm(x))
