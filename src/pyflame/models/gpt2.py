"""GPT-2: a decoder with learned positions."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from pyflame import nn
from pyflame.dtypes import DType
from pyflame.models.generation import Generator
from pyflame.nn import functional as F
from pyflame.ops.creation import arange
from pyflame.ops.linalg import matmul

if TYPE_CHECKING:
    from pyflame.tensors import Tensor

__all__ = ["GPT2", "GPT2Config"]


@dataclass(frozen=True)
class GPT2Config:
    """The shape of GPT-2; the defaults are those of the smallest published model.

    Example:
        >>> from pyflame.models import GPT2Config
        >>> GPT2Config().n_layer
        12
    """

    vocab_size: int = 50257
    n_positions: int = 1024
    n_embd: int = 768
    n_layer: int = 12
    n_head: int = 12
    dropout: float = 0.1
    layer_norm_eps: float = 1e-5


class _Attention(nn.Module):
    def __init__(self, c: GPT2Config) -> None:
        super().__init__()
        self.heads, self.drop = c.n_head, c.dropout
        self.c_attn = nn.Linear(c.n_embd, 3 * c.n_embd)
        self.c_proj = nn.Linear(c.n_embd, c.n_embd)
        self.resid_dropout = nn.Dropout(c.dropout)

    def forward(self, x: Any) -> Tensor:
        batch, length, size = x.shape
        q, k, v = (
            part.reshape([batch, length, self.heads, size // self.heads]).transpose(1, 2)
            for part in self.c_attn(x).chunk(3, dim=-1)
        )
        drop = self.drop if self.training else 0.0
        mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=drop, is_causal=True)
        return self.resid_dropout(self.c_proj(mixed.transpose(1, 2).reshape([batch, length, size])))


class _MLP(nn.Module):
    def __init__(self, c: GPT2Config) -> None:
        super().__init__()
        self.c_fc = nn.Linear(c.n_embd, 4 * c.n_embd)
        self.c_proj = nn.Linear(4 * c.n_embd, c.n_embd)
        self.dropout = nn.Dropout(c.dropout)

    def forward(self, x: Any) -> Tensor:
        return self.dropout(self.c_proj(F.gelu(self.c_fc(x), approximate="tanh")))


class _Block(nn.Module):
    def __init__(self, c: GPT2Config) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(c.n_embd, c.layer_norm_eps)
        self.attn = _Attention(c)
        self.ln_2 = nn.LayerNorm(c.n_embd, c.layer_norm_eps)
        self.mlp = _MLP(c)

    def forward(self, x: Any) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT2(Generator, nn.Module):
    """GPT-2 over token numbers [N, L]: the scores of the next token at each place.

    Example:
        >>> import pyflame as pf
        >>> model = pf.models.GPT2(pf.models.GPT2Config(vocab_size=20, n_positions=8, n_embd=16, n_layer=1, n_head=2))
        >>> model.eval()(pf.zeros([2, 5], dtype=pf.int64)).shape
        [2, 5, 20]
    """

    family = "gpt2"

    def __init__(self, config: GPT2Config | None = None) -> None:
        super().__init__()
        self.config = c = config or GPT2Config()
        self.max_length = c.n_positions
        self.wte = nn.Embedding(c.vocab_size, c.n_embd)
        self.wpe = nn.Embedding(c.n_positions, c.n_embd)
        self.drop = nn.Dropout(c.dropout)
        self.h = nn.ModuleList([_Block(c) for _ in range(c.n_layer)])
        self.ln_f = nn.LayerNorm(c.n_embd, c.layer_norm_eps)
        for name, parameter in self.named_parameters():
            if name.endswith("c_proj.weight"):
                nn.init.normal_(parameter, 0, 0.02 / (2 * c.n_layer) ** 0.5)
            elif len(parameter.shape) > 1:
                nn.init.normal_(parameter, 0, 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def decoder_settings(self) -> dict[str, Any]:
        """The settings of the model, with the names of its family."""
        return asdict(self.config) | {"layer_norm_epsilon": self.config.layer_norm_eps}

    def forward(self, input_ids: Any) -> Tensor:
        """Scores [N, L, vocab]; the table of tokens serves both ends."""
        length = int(input_ids.shape[1])
        if length > self.config.n_positions:
            raise ValueError(f"At most {self.config.n_positions} tokens. Received: {length}")
        x = self.drop(self.wte(input_ids) + self.wpe(arange(length, dtype=DType.int64)))
        for block in self.h:
            x = block(x)
        return matmul(self.ln_f(x), self.wte.weight.t())
