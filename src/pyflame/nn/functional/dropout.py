"""Values left out, or slopes drawn, at random."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyflame.nn.functional.activation import in_place
from pyflame.ops.activation import leaky_relu
from pyflame.ops.arithmetic import where
from pyflame.ops.creation import full
from pyflame.random import bernoulli, uniform
from pyflame.random import dropout as _dropout
from pyflame_rt.graph.named_arguments import names_arguments

if TYPE_CHECKING:
    from pyflame.tensors import Tensor

__all__ = ["alpha_dropout", "dropout", "dropout1d", "dropout2d", "dropout3d", "rrelu"]


def _chance(p: float) -> float:
    if not 0 <= p <= 1:
        raise ValueError(f"dropout probability has to be between 0 and 1. Received: {p}")
    return p


def dropout(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Each value with chance `p` set to zero, the others scaled up; the same in every evaluation of one node.

    Example:
        >>> import pyflame as pf
        >>> sorted(set(pf.nn.functional.dropout(pf.ones([100]), 0.5).numpy().tolist()))
        [0.0, 2.0]
    """
    _chance(p)
    return in_place(_dropout, input, p, training) if inplace else _dropout(input, p, training)


def _channels(input: Any, p: float, training: bool, rank: int, inplace: bool) -> Tensor:
    _chance(p)
    if not training or p == 0:
        return input
    return in_place(_without_channels, input, p, rank) if inplace else _without_channels(input, p, rank)


def _without_channels(input: Any, p: float, rank: int) -> Tensor:
    lead = list(input.shape[:-rank]) if len(input.shape) > rank else []
    mask = bernoulli(full([*lead, *([1] * rank)], 1 - p, dtype=input.dtype))
    return input * mask * (0.0 if p == 1 else 1 / (1 - p))


@names_arguments
def dropout1d(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Whole channels of [N, C, L] left out.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.functional.dropout1d(pf.ones([2, 3, 4])).shape
        [2, 3, 4]
    """
    return _channels(input, p, training, 1, inplace)


@names_arguments
def dropout2d(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Whole channels of [N, C, H, W] left out.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.functional.dropout2d(pf.ones([2, 3, 4, 4])).shape
        [2, 3, 4, 4]
    """
    return _channels(input, p, training, 2, inplace)


@names_arguments
def dropout3d(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Whole channels of [N, C, D, H, W] left out.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.functional.dropout3d(pf.ones([2, 3, 4, 4, 4])).shape
        [2, 3, 4, 4, 4]
    """
    return _channels(input, p, training, 3, inplace)


@names_arguments
def alpha_dropout(input: Any, p: float = 0.5, training: bool = False, inplace: bool = False) -> Tensor:
    """Dropout that keeps the mean and spread that SELU works with.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.functional.alpha_dropout(pf.ones([4])).shape
        [4]
    """
    _chance(p)
    if not training or p == 0:
        return input
    return in_place(_saturated, input, p) if inplace else _saturated(input, p)


def _saturated(input: Any, p: float) -> Tensor:
    saturated = -1.7580993408473766
    keep = bernoulli(full(list(input.shape), 1 - p, dtype=input.dtype)) > 0
    a = ((1 - p) * (1 + p * saturated**2)) ** -0.5 if p < 1 else 0.0
    return where(keep, input, full(list(input.shape), saturated, dtype=input.dtype)) * a - a * saturated * p


@names_arguments
def rrelu(
    input: Any, lower: float = 1.0 / 8, upper: float = 1.0 / 3, training: bool = False, inplace: bool = False
) -> Tensor:
    """Negative values times a slope: drawn anew for each while training, halfway between `lower` and `upper` else.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.functional.rrelu(pf.tensor([-8.0, 2.0]), 0.25, 0.75).numpy().tolist()
        [-4.0, 2.0]
        >>> low, high = pf.nn.functional.rrelu(pf.full([2], -1.0), 0.25, 0.75, training=True).numpy()
        >>> bool(-0.75 <= low <= -0.25)
        True
    """
    if lower > upper:
        raise ValueError(f"lower must be at most upper. Received: {lower}, {upper}")
    function = _random_slopes if training else _middle_slope
    return in_place(function, input, lower, upper) if inplace else function(input, lower, upper)


def _middle_slope(input: Any, lower: float, upper: float) -> Tensor:
    return leaky_relu(input, (lower + upper) / 2)


def _random_slopes(input: Any, lower: float, upper: float) -> Tensor:
    return input * where(input <= 0, uniform(list(input.shape), lower, upper, dtype=input.dtype), 1.0)
