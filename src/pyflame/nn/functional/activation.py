"""Activations that may give their input's storage the result: in-place forms keep what their gradients read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyflame.lazy import next_serial
from pyflame.ops import activation as act

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyflame.tensors import Tensor

__all__ = [
    "celu",
    "elu",
    "hardsigmoid",
    "hardswish",
    "hardtanh",
    "in_place",
    "leaky_relu",
    "mish",
    "relu",
    "relu6",
    "selu",
    "silu",
    "threshold",
]


def in_place(function: Callable[..., Tensor], input: Any, *settings: Any) -> Tensor:
    """Let a tensor's storage take a function of it; the gradient reads what was there before, as torch's forms do."""
    start = next_serial()
    return input._modify(function(input, *settings), since=start)


def relu(input: Any, inplace: bool = False) -> Tensor:
    """The positive part.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.functional.relu(pf.tensor([-1.0, 2.0])).tolist()
        [0.0, 2.0]
    """
    return in_place(act.relu, input) if inplace else act.relu(input)


def relu6(input: Any, inplace: bool = False) -> Tensor:
    """Limited to 0 and 6.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.functional.relu6(pf.tensor([-1.0, 9.0])).tolist()
        [0.0, 6.0]
    """
    return in_place(act.relu6, input) if inplace else act.relu6(input)


def leaky_relu(input: Any, negative_slope: float = 0.01, inplace: bool = False) -> Tensor:
    """The input where it is positive, ``negative_slope`` times it elsewhere.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.functional.leaky_relu(pf.tensor([-1.0, 2.0]), 0.5).tolist()
        [-0.5, 2.0]
    """
    return in_place(act.leaky_relu, input, negative_slope) if inplace else act.leaky_relu(input, negative_slope)


def elu(input: Any, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """The input where it is positive, ``alpha * (exp(input) - 1)`` elsewhere.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.functional.elu(pf.tensor([0.0, 2.0])).tolist()
        [0.0, 2.0]
    """
    return in_place(act.elu, input, alpha) if inplace else act.elu(input, alpha)


def selu(input: Any, inplace: bool = False) -> Tensor:
    """The self-normalising exponential unit.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.functional.selu(pf.tensor([0.0])).tolist()
        [0.0]
    """
    return in_place(act.selu, input) if inplace else act.selu(input)


def celu(input: Any, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """The input where it is positive, ``alpha * (exp(input / alpha) - 1)`` elsewhere.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.functional.celu(pf.tensor([0.0, 2.0])).tolist()
        [0.0, 2.0]
    """
    return in_place(act.celu, input, alpha) if inplace else act.celu(input, alpha)


def silu(input: Any, inplace: bool = False) -> Tensor:
    """``input * sigmoid(input)``.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.functional.silu(pf.tensor([0.0])).tolist()
        [0.0]
    """
    return in_place(act.silu, input) if inplace else act.silu(input)


def mish(input: Any, inplace: bool = False) -> Tensor:
    """``input * tanh(softplus(input))``.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.functional.mish(pf.tensor([0.0])).tolist()
        [0.0]
    """
    return in_place(act.mish, input) if inplace else act.mish(input)


def hardsigmoid(input: Any, inplace: bool = False) -> Tensor:
    """``relu6(input + 3) / 6``.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.functional.hardsigmoid(pf.tensor([-4.0, 4.0])).tolist()
        [0.0, 1.0]
    """
    return in_place(act.hardsigmoid, input) if inplace else act.hardsigmoid(input)


def hardswish(input: Any, inplace: bool = False) -> Tensor:
    """``input * relu6(input + 3) / 6``.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.functional.hardswish(pf.tensor([0.0, 4.0])).tolist()
        [0.0, 4.0]
    """
    return in_place(act.hardswish, input) if inplace else act.hardswish(input)


def hardtanh(input: Any, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Tensor:
    """Limited to an interval.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.functional.hardtanh(pf.tensor([-4.0, 4.0])).tolist()
        [-1.0, 1.0]
    """
    return in_place(act.hardtanh, input, min_val, max_val) if inplace else act.hardtanh(input, min_val, max_val)


def threshold(input: Any, threshold: float, value: float, inplace: bool = False) -> Tensor:
    """The input where it is above ``threshold``, ``value`` elsewhere.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.functional.threshold(pf.tensor([0.5, 2.0]), 1.0, 9.0).tolist()
        [9.0, 2.0]
    """
    return in_place(act.threshold, input, threshold, value) if inplace else act.threshold(input, threshold, value)
