"""BERT, with the names of its usual checkpoints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from pyflame import nn
from pyflame.dtypes import DType
from pyflame.nn import functional as F
from pyflame.ops.core import cast
from pyflame.ops.creation import arange, zeros

if TYPE_CHECKING:
    from pyflame.tensors import Tensor

__all__ = ["BertConfig", "BertForSequenceClassification", "BertModel", "BertOutput"]


@dataclass(frozen=True)
class BertConfig:
    """The shape of BERT; the defaults are those of the base model.

    Example:
        >>> from pyflame.models import BertConfig
        >>> BertConfig().hidden_size
        768
    """

    vocab_size: int = 30522
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    layer_norm_eps: float = 1e-12
    num_labels: int = 2


class BertOutput(NamedTuple):
    """The state of each token, and one for the sequence."""

    last_hidden_state: Tensor
    pooler_output: Tensor


class _Embeddings(nn.Module):
    def __init__(self, c: BertConfig) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(c.vocab_size, c.hidden_size, padding_idx=0)
        self.position_embeddings = nn.Embedding(c.max_position_embeddings, c.hidden_size)
        self.token_type_embeddings = nn.Embedding(c.type_vocab_size, c.hidden_size)
        self.LayerNorm = nn.LayerNorm(c.hidden_size, c.layer_norm_eps)
        self.dropout = nn.Dropout(c.hidden_dropout_prob)

    def forward(self, input_ids: Any, token_type_ids: Any) -> Tensor:
        places = arange(input_ids.shape[1], dtype=DType.int64)
        kinds = zeros(list(input_ids.shape), dtype=DType.int64) if token_type_ids is None else token_type_ids
        words = self.word_embeddings(input_ids) + self.token_type_embeddings(kinds)
        return self.dropout(self.LayerNorm(words + self.position_embeddings(places)))


class _SelfAttention(nn.Module):
    def __init__(self, c: BertConfig) -> None:
        super().__init__()
        self.heads, self.drop = c.num_attention_heads, c.attention_probs_dropout_prob
        self.query, self.key, self.value = (nn.Linear(c.hidden_size, c.hidden_size) for _ in range(3))

    def forward(self, x: Any, mask: Any) -> Tensor:
        batch, length, size = x.shape
        q, k, v = (
            part(x).reshape([batch, length, self.heads, size // self.heads]).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, mask, self.drop if self.training else 0.0)
        return mixed.transpose(1, 2).reshape([batch, length, size])


class _Residual(nn.Module):
    def __init__(self, size_in: int, c: BertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(size_in, c.hidden_size)
        self.LayerNorm = nn.LayerNorm(c.hidden_size, c.layer_norm_eps)
        self.dropout = nn.Dropout(c.hidden_dropout_prob)

    def forward(self, x: Any, straight: Any) -> Tensor:
        return self.LayerNorm(self.dropout(self.dense(x)) + straight)


class _Attention(nn.Module):
    def __init__(self, c: BertConfig) -> None:
        super().__init__()
        self.self = _SelfAttention(c)
        self.output = _Residual(c.hidden_size, c)

    def forward(self, x: Any, mask: Any) -> Tensor:
        return self.output(self.self(x, mask), x)


class _Wide(nn.Module):
    def __init__(self, c: BertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(c.hidden_size, c.intermediate_size)

    def forward(self, x: Any) -> Tensor:
        return F.gelu(self.dense(x))


class _Layer(nn.Module):
    def __init__(self, c: BertConfig) -> None:
        super().__init__()
        self.attention = _Attention(c)
        self.intermediate = _Wide(c)
        self.output = _Residual(c.intermediate_size, c)

    def forward(self, x: Any, mask: Any) -> Tensor:
        x = self.attention(x, mask)
        return self.output(self.intermediate(x), x)


class _Encoder(nn.Module):
    def __init__(self, c: BertConfig) -> None:
        super().__init__()
        self.layer = nn.ModuleList([_Layer(c) for _ in range(c.num_hidden_layers)])

    def forward(self, x: Any, mask: Any) -> Tensor:
        for layer in self.layer:
            x = layer(x, mask)
        return x


class _Pooler(nn.Module):
    def __init__(self, c: BertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(c.hidden_size, c.hidden_size)

    def forward(self, x: Any) -> Tensor:
        return F.tanh(self.dense(x[:, 0]))


class BertModel(nn.Module):
    """BERT over token numbers [N, L]; the mask is 1 for tokens and 0 for padding.

    Example:
        >>> import pyflame as pf
        >>> small = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
        >>> model = pf.models.BertModel(pf.models.BertConfig(intermediate_size=32, **small)).eval()
        >>> out = model(pf.zeros([2, 5], dtype=pf.int64))
        >>> out.last_hidden_state.shape, out.pooler_output.shape
        ([2, 5, 16], [2, 16])
    """

    def __init__(self, config: BertConfig | None = None) -> None:
        super().__init__()
        self.config = c = config or BertConfig()
        self.embeddings = _Embeddings(c)
        self.encoder = _Encoder(c)
        self.pooler = _Pooler(c)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, 0, 0.02)

    def forward(self, input_ids: Any, attention_mask: Any = None, token_type_ids: Any = None) -> BertOutput:
        """The states of the tokens and of the sequence."""
        mask = None if attention_mask is None else cast(attention_mask, DType.bool).unsqueeze(1).unsqueeze(2)
        states = self.encoder(self.embeddings(input_ids, token_type_ids), mask)
        return BertOutput(states, self.pooler(states))


class BertForSequenceClassification(nn.Module):
    """BERT with scores for the labels of a sequence.

    Example:
        >>> import pyflame as pf
        >>> small = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
        >>> config = pf.models.BertConfig(intermediate_size=32, num_labels=3, **small)
        >>> pf.models.BertForSequenceClassification(config)(pf.zeros([2, 5], dtype=pf.int64)).shape
        [2, 3]
    """

    def __init__(self, config: BertConfig | None = None) -> None:
        super().__init__()
        self.config = c = config or BertConfig()
        self.bert = BertModel(c)
        self.dropout = nn.Dropout(c.hidden_dropout_prob)
        self.classifier = nn.Linear(c.hidden_size, c.num_labels)

    def forward(self, input_ids: Any, attention_mask: Any = None, token_type_ids: Any = None) -> Tensor:
        """The scores of the labels."""
        return self.classifier(self.dropout(self.bert(input_ids, attention_mask, token_type_ids).pooler_output))
