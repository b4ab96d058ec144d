"""A language model on LSTMs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyflame import nn
from pyflame.models.generation import Generator

if TYPE_CHECKING:
    from pyflame.tensors import Tensor

__all__ = ["LSTMLanguageModel"]


class LSTMLanguageModel(Generator, nn.Module):
    """Token numbers [N, L] to the scores of the next token at each place.

    Example:
        >>> import pyflame as pf
        >>> model = pf.models.LSTMLanguageModel(20, embedding_size=8, hidden_size=16, num_layers=1)
        >>> model(pf.zeros([2, 5], dtype=pf.int64)).shape
        [2, 5, 20]
    """

    def __init__(
        self,
        vocab_size: int,
        embedding_size: int = 256,
        hidden_size: int = 256,
        num_layers: int = 2,
        dropout: float = 0.0,
        max_length: int = 1024,
    ) -> None:
        super().__init__()
        self.max_length = max_length
        self.embedding = nn.Embedding(vocab_size, embedding_size)
        self.dropout = nn.Dropout(dropout)
        self.lstm = nn.LSTM(embedding_size, hidden_size, num_layers, batch_first=True, dropout=dropout)
        self.head = nn.Linear(hidden_size, vocab_size)

    def forward(self, input_ids: Any) -> Tensor:
        """Scores [N, L, vocab]."""
        states, _ = self.lstm(self.dropout(self.embedding(input_ids)))
        return self.head(self.dropout(states))
