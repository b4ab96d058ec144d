"""Draws of one class among several through which gradients flow, and distances that losses compare."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyflame.nn.functional.loss import pairwise_distance, reduced
from pyflame.ops.activation import softmax
from pyflame.ops.core import floating
from pyflame.ops.gathering import scatter
from pyflame.ops.pointwise import log
from pyflame.ops.reduction import argmax
from pyflame.random import rand
from pyflame_rt.graph.named_arguments import names_arguments

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyflame.tensors import Tensor

__all__ = ["gumbel_softmax", "triplet_margin_with_distance_loss"]


@names_arguments
def gumbel_softmax(logits: Any, tau: float = 1.0, hard: bool = False, eps: float = 1e-10, dim: int = -1) -> Tensor:
    """Shares of classes drawn by the Gumbel trick; with ``hard`` one class is 1, and gradients are those of the shares.

    Args:
        logits: scores of classes, as logarithms.
        tau: how soft the shares are.
        hard: 1 for the largest share, 0 for the others.
        eps: of no use, as in torch.
        dim: along which the classes are.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.functional.gumbel_softmax(pf.zeros([4, 3]), hard=True).sum(1).tolist()
        [1.0, 1.0, 1.0, 1.0]
    """
    del eps
    if tau <= 0:
        raise ValueError(f"gumbel_softmax: tau is above 0, got {tau}")
    x = floating(logits)
    noise = -log(-log(1 - rand(x.shape, dtype=x.dtype)))
    soft = softmax((x + noise) / tau, dim)
    if not hard:
        return soft
    chosen = scatter(soft.detach() * 0, dim, argmax(soft.detach(), dim, True), value=1.0)
    return chosen - soft.detach() + soft


@names_arguments
def triplet_margin_with_distance_loss(
    anchor: Any,
    positive: Any,
    negative: Any,
    *,
    distance_function: Callable[[Any, Any], Any] | None = None,
    margin: float = 1.0,
    swap: bool = False,
    reduction: str = "mean",
) -> Tensor:
    """`triplet_margin_loss` with a distance of one's own."""
    away = pairwise_distance if distance_function is None else distance_function
    near, far = away(anchor, positive), away(anchor, negative)
    if swap:
        far = far.minimum(away(positive, negative))
    return reduced((near - far + margin).clamp(min=0.0), reduction)
