"""Parameters as one vector, sequences as one tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyflame.ops.creation import full
from pyflame.ops.shaping import cat, stack

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyflame.tensors import Tensor

__all__ = ["pad_sequence", "parameters_to_vector", "vector_to_parameters"]


def parameters_to_vector(parameters: Iterable[Any]) -> Tensor:
    """All parameters one after the other.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.utils.parameters_to_vector(pf.nn.Linear(2, 3).parameters()).shape
        [9]
    """
    return cat([p.flatten() for p in parameters], dim=0)


def vector_to_parameters(vec: Any, parameters: Iterable[Any]) -> None:
    """Cut a vector into parameters, in their order.

    Example:
        >>> import pyflame as pf
        >>> layer = pf.nn.Linear(1, 1)
        >>> pf.nn.utils.vector_to_parameters(pf.tensor([2.0, 3.0]), layer.parameters())
        >>> layer.bias.numpy().tolist()
        [3.0]
    """
    start = 0
    for p in parameters:
        p.data = vec.detach()[start : start + p.numel].reshape(list(p.shape))
        start += p.numel


def pad_sequence(sequences: Sequence[Any], batch_first: bool = False, padding_value: float = 0.0) -> Tensor:
    """Sequences of different lengths as one tensor, the shorter ones filled up.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.utils.pad_sequence([pf.ones([2]), pf.ones([3])], batch_first=True).numpy().tolist()
        [[1.0, 1.0, 0.0], [1.0, 1.0, 1.0]]
    """
    longest = max(int(s.shape[0]) for s in sequences)
    filled = [
        cat([s, full([longest - s.shape[0], *s.shape[1:]], padding_value, dtype=s.dtype)], dim=0)
        if s.shape[0] < longest
        else s
        for s in sequences
    ]
    return stack(filled, dim=0 if batch_first else 1)
