"""Activations as layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyflame.nn import functional as F
from pyflame.nn import init
from pyflame.nn.making import empty_parameter
from pyflame.nn.module import Module
from pyflame.nn.placing import placed
from pyflame.nn.simple import FunctionLayer

if TYPE_CHECKING:
    from pyflame.tensors import Tensor

__all__ = [
    "CELU",
    "ELU",
    "GELU",
    "GLU",
    "SELU",
    "Hardshrink",
    "Hardsigmoid",
    "Hardswish",
    "Hardtanh",
    "LeakyReLU",
    "LogSigmoid",
    "LogSoftmax",
    "Mish",
    "PReLU",
    "RReLU",
    "ReLU",
    "ReLU6",
    "SiLU",
    "Sigmoid",
    "Softmax",
    "Softmax2d",
    "Softmin",
    "Softplus",
    "Softshrink",
    "Softsign",
    "Swish",
    "Tanh",
    "Tanhshrink",
    "Threshold",
]


class ReLU(FunctionLayer):
    """Negative values become zero.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.ReLU()(pf.tensor([-1.0, 2.0])).numpy().tolist()
        [0.0, 2.0]
    """

    function = F.relu


class ReLU6(FunctionLayer):
    """Values cut to 0 to 6.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.ReLU6()(pf.tensor([-1.0, 9.0])).numpy().tolist()
        [0.0, 6.0]
    """

    function = F.relu6


class LeakyReLU(FunctionLayer):
    """Negative values scaled by `negative_slope`.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.LeakyReLU(0.5)(pf.tensor([-1.0, 2.0])).numpy().tolist()
        [-0.5, 2.0]
    """

    function = F.leaky_relu


class RReLU(Module):
    """Negative values times a slope, drawn anew for each while training.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.RReLU(0.25, 0.75).eval()(pf.tensor([-8.0, 2.0])).numpy().tolist()
        [-4.0, 2.0]
    """

    def __init__(self, lower: float = 1.0 / 8, upper: float = 1.0 / 3, inplace: bool = False) -> None:
        super().__init__()
        self.lower, self.upper, self.inplace = lower, upper, inplace

    def forward(self, input: Any) -> Tensor:
        """Elementwise."""
        return F.rrelu(input, self.lower, self.upper, self.training, self.inplace)

    def extra_repr(self) -> str:
        """The slopes."""
        return f"lower={self.lower}, upper={self.upper}" + (", inplace=True" if self.inplace else "")


class ELU(FunctionLayer):
    """Negative values bent towards -alpha.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.ELU()(pf.tensor([0.0, 2.0])).numpy().tolist()
        [0.0, 2.0]
    """

    function = F.elu


class SELU(FunctionLayer):
    """ELU scaled so that deep nets keep mean 0 and variance 1.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.SELU()(pf.tensor([0.0])).numpy().tolist()
        [0.0]
    """

    function = F.selu


class CELU(FunctionLayer):
    """ELU with a smooth slope for every alpha.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.CELU()(pf.tensor([0.0, 2.0])).numpy().tolist()
        [0.0, 2.0]
    """

    function = F.celu


class GELU(FunctionLayer):
    """Values times the chance that a normal variable is below them.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.GELU()(pf.tensor([0.0])).numpy().tolist()
        [0.0]
    """

    function = F.gelu


class SiLU(FunctionLayer):
    """Values times their sigmoid.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.SiLU()(pf.tensor([0.0])).numpy().tolist()
        [0.0]
    """

    function = F.silu


class Mish(FunctionLayer):
    """Values times the tanh of their softplus.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.Mish()(pf.tensor([0.0])).numpy().tolist()
        [0.0]
    """

    function = F.mish


class Sigmoid(FunctionLayer):
    """Values pressed between 0 and 1.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.Sigmoid()(pf.tensor([0.0])).numpy().tolist()
        [0.5]
    """

    function = F.sigmoid


class LogSigmoid(FunctionLayer):
    """The logarithm of the sigmoid, computed without loss.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.LogSigmoid()(pf.tensor([-1000.0])).numpy().tolist()
        [-1000.0]
    """

    function = F.logsigmoid


class Tanh(FunctionLayer):
    """Values pressed between -1 and 1.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.Tanh()(pf.tensor([0.0])).numpy().tolist()
        [0.0]
    """

    function = F.tanh


class Hardtanh(FunctionLayer):
    """Values cut to `min_val` to `max_val`.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.Hardtanh()(pf.tensor([-3.0, 0.5])).numpy().tolist()
        [-1.0, 0.5]
    """

    function = F.hardtanh


class Hardsigmoid(FunctionLayer):
    """A sigmoid of three straight pieces.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.Hardsigmoid()(pf.tensor([0.0, 3.0])).numpy().tolist()
        [0.5, 1.0]
    """

    function = F.hardsigmoid


class Hardswish(FunctionLayer):
    """Values times their hard sigmoid.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.Hardswish()(pf.tensor([0.0, 3.0])).numpy().tolist()
        [0.0, 3.0]
    """

    function = F.hardswish


class Softplus(FunctionLayer):
    """A smooth rectifier.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.Softplus()(pf.tensor([100.0])).numpy().tolist()
        [100.0]
    """

    function = F.softplus


class Softsign(FunctionLayer):
    """Values over one more than their size.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.Softsign()(pf.tensor([1.0])).numpy().tolist()
        [0.5]
    """

    function = F.softsign


class Softshrink(FunctionLayer):
    """Values moved `lambd` towards zero.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.Softshrink()(pf.tensor([0.25, 2.0])).numpy().tolist()
        [0.0, 1.5]
    """

    function = F.softshrink


class Hardshrink(FunctionLayer):
    """Values within `lambd` of zero become zero.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.Hardshrink()(pf.tensor([0.25, 2.0])).numpy().tolist()
        [0.0, 2.0]
    """

    function = F.hardshrink


class Tanhshrink(FunctionLayer):
    """Values less their tanh.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.Tanhshrink()(pf.tensor([0.0])).numpy().tolist()
        [0.0]
    """

    function = F.tanhshrink


class Threshold(FunctionLayer):
    """Values not above `threshold` become `value`.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.Threshold(1.0, 20.0)(pf.tensor([0.5, 2.0])).numpy().tolist()
        [20.0, 2.0]
    """

    function = F.threshold


class GLU(FunctionLayer):
    """One half of a dimension times the sigmoid of the other.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.GLU()(pf.tensor([1.0, 0.0])).numpy().tolist()
        [0.5]
    """

    function = F.glu


class Softmax(FunctionLayer):
    """Shares along `dim` that add up to one.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.Softmax(dim=0)(pf.tensor([3.0, 3.0])).numpy().tolist()
        [0.5, 0.5]
    """

    function = F.softmax


class LogSoftmax(FunctionLayer):
    """The logarithm of softmax, computed without loss.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.LogSoftmax(dim=0)(pf.tensor([3.0])).numpy().tolist()
        [0.0]
    """

    function = F.log_softmax


class Softmin(FunctionLayer):
    """Softmax of the values turned round.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.Softmin(dim=0)(pf.tensor([3.0, 3.0])).numpy().tolist()
        [0.5, 0.5]
    """

    function = F.softmin


Swish = SiLU


class Softmax2d(Module):
    """Softmax over the channels of [N, C, H, W] or [C, H, W].

    Example:
        >>> import pyflame as pf
        >>> pf.nn.Softmax2d()(pf.zeros([1, 2, 1, 1])).numpy().ravel().tolist()
        [0.5, 0.5]
    """

    def forward(self, input: Any) -> Tensor:
        """The shares of the channels."""
        return F.softmax(input, dim=-3)


@placed
class PReLU(Module):
    """Negative values scaled by a slope that is learned, one for all or one for each channel.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.PReLU()(pf.tensor([-4.0, 2.0])).numpy().tolist()
        [-1.0, 2.0]
    """

    def __init__(self, num_parameters: int = 1, init: float = 0.25) -> None:
        super().__init__()
        self.num_parameters, self.init = num_parameters, init
        self.weight = empty_parameter([num_parameters])
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """All slopes as at first."""
        init.constant_(self.weight, self.init)

    def forward(self, input: Any) -> Tensor:
        """The bent values."""
        return F.prelu(input, self.weight)

    def extra_repr(self) -> str:
        """How many slopes there are."""
        return f"num_parameters={self.num_parameters}"
