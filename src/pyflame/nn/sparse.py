"""Tables of vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from pyflame.arrays import adopt
from pyflame.nn import functional as F
from pyflame.nn import init
from pyflame.nn.making import empty_parameter
from pyflame.nn.module import Module
from pyflame.nn.placing import placed

if TYPE_CHECKING:
    from pyflame.dtypes import DType
    from pyflame.layout import MeshLayout
    from pyflame.tensors import Tensor

__all__ = ["Embedding", "EmbeddingBag"]


@placed
class Embedding(Module):
    """A table with one trained vector for each number.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.Embedding(10, 4)(pf.tensor([1, 5], dtype=pf.int64)).shape
        [2, 4]
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
        *,
        layout: MeshLayout | None = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__()
        if padding_idx is not None and not -num_embeddings <= padding_idx < num_embeddings:
            raise ValueError(f"padding_idx must be within {num_embeddings} rows. Received: {padding_idx}")
        if sparse:
            raise NotImplementedError("Embedding: gradients are dense here, sparse=True is not supported; leave it out")
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.max_norm, self.norm_type, self.scale_grad_by_freq = max_norm, norm_type, scale_grad_by_freq
        self.padding_idx = None if padding_idx is None else padding_idx % num_embeddings
        self.weight = empty_parameter([num_embeddings, embedding_dim], dtype, layout)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new vectors; the padding's is zero."""
        _draw(self)

    @classmethod
    def from_pretrained(
        cls,
        embeddings: Any,
        freeze: bool = True,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
    ) -> Self:
        """A table with the given vectors, not trained unless `freeze` is false."""
        rows, columns = (int(n) for n in embeddings.shape)
        settings = (padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse)
        made = cls(rows, columns, *settings, dtype=embeddings.dtype)
        made.weight.data = embeddings.detach()
        made.weight.requires_grad = not freeze
        return made

    def forward(self, input: Any) -> Tensor:
        """The vectors of the numbers."""
        settings = (self.padding_idx, self.max_norm, self.norm_type, self.scale_grad_by_freq)
        return F.embedding(input, self.weight, *settings)

    def extra_repr(self) -> str:
        """The sizes."""
        parts = f"{self.num_embeddings}, {self.embedding_dim}"
        parts = parts if self.padding_idx is None else f"{parts}, padding_idx={self.padding_idx}"
        return parts if self.max_norm is None else f"{parts}, max_norm={self.max_norm}"


@placed
class EmbeddingBag(Module):
    """A table whose vectors are summed up (or averaged, or the largest taken) for bags of numbers.

    Example:
        >>> import pyflame as pf
        >>> bags = pf.nn.EmbeddingBag(10, 4, mode="sum")
        >>> bags(pf.tensor([[1, 5], [2, 2]], dtype=pf.int64)).shape
        [2, 4]
        >>> bags(pf.tensor([1, 5, 2], dtype=pf.int64), pf.tensor([0, 2], dtype=pf.int64)).shape
        [2, 4]
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        mode: str = "mean",
        sparse: bool = False,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        *,
        dtype: DType | None = None,
    ) -> None:
        super().__init__()
        if padding_idx is not None and not -num_embeddings <= padding_idx < num_embeddings:
            raise ValueError(f"padding_idx must be within {num_embeddings} rows. Received: {padding_idx}")
        if mode not in ("sum", "mean", "max"):
            raise ValueError(f"mode has to be one of sum, mean or max. Received: {mode!r}")
        if sparse:
            raise NotImplementedError(
                "EmbeddingBag: gradients are dense here, sparse=True is not supported; leave it out"
            )
        self.num_embeddings, self.embedding_dim, self.mode = num_embeddings, embedding_dim, mode
        self.max_norm, self.norm_type, self.scale_grad_by_freq = max_norm, norm_type, scale_grad_by_freq
        self.include_last_offset = include_last_offset
        self.padding_idx = None if padding_idx is None else padding_idx % num_embeddings
        self.weight = empty_parameter([num_embeddings, embedding_dim], dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new vectors; the padding's is zero."""
        _draw(self)

    @classmethod
    def from_pretrained(
        cls,
        embeddings: Any,
        freeze: bool = True,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        mode: str = "mean",
        sparse: bool = False,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
    ) -> Self:
        """A table with the given vectors, not trained unless `freeze` is false."""
        rows, columns = (int(n) for n in embeddings.shape)
        settings = (max_norm, norm_type, scale_grad_by_freq, mode, sparse, include_last_offset, padding_idx)
        made = cls(rows, columns, *settings, dtype=embeddings.dtype)
        made.weight.data = embeddings.detach()
        made.weight.requires_grad = not freeze
        return made

    def forward(self, input: Any, offsets: Any = None, per_sample_weights: Any = None) -> Tensor:
        """One vector for each bag: for each row of [B, N], or from each offset on in [L]."""
        return F.embedding_bag(
            input,
            self.weight,
            offsets,
            self.max_norm,
            self.norm_type,
            self.scale_grad_by_freq,
            self.mode,
            per_sample_weights=per_sample_weights,
            include_last_offset=self.include_last_offset,
            padding_idx=self.padding_idx,
        )

    def extra_repr(self) -> str:
        """The sizes."""
        parts = f"{self.num_embeddings}, {self.embedding_dim}"
        parts = parts if self.max_norm is None else f"{parts}, max_norm={self.max_norm}"
        parts = f"{parts}, mode={self.mode!r}"
        return parts if self.padding_idx is None else f"{parts}, padding_idx={self.padding_idx}"


def _draw(table: Embedding | EmbeddingBag) -> None:
    init.normal_(table.weight)
    if table.padding_idx is not None:
        values = table.weight.numpy().copy()
        values[table.padding_idx] = 0
        table.weight._renew(adopt(values))
