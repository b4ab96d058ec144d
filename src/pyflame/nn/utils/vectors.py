"""Parameters as one vector."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyflame.ops.shaping import cat
from pyflame_rt.graph.named_arguments import names_arguments

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyflame.tensors import Tensor

__all__ = ["parameters_to_vector", "vector_to_parameters"]


@names_arguments
def parameters_to_vector(parameters: Iterable[Any]) -> Tensor:
    """All parameters one after the other.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.utils.parameters_to_vector(pf.nn.Linear(2, 3).parameters()).shape
        [9]
    """
    return cat([p.flatten() for p in parameters], dim=0)


@names_arguments
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
