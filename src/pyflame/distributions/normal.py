"""The normal distribution."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from pyflame.distributions.distribution import Distribution, floats
from pyflame.ops.activation import erfinv
from pyflame.ops.core import as_tensor
from pyflame.ops.pointwise import erf
from pyflame.random import randn
from pyflame_rt.graph.named_arguments import names_arguments

if TYPE_CHECKING:
    from pyflame.tensors import Tensor

__all__ = ["Normal"]


class Normal(Distribution):
    """Normal distributions by mean and standard deviation.

    Example:
        >>> import pyflame as pf
        >>> round(pf.distributions.Normal(0.0, 1.0).log_prob(pf.tensor(0.0)).item(), 4)
        -0.9189
    """

    has_rsample = True

    @names_arguments
    def __init__(self, loc: Any, scale: Any, validate_args: bool | None = None) -> None:
        self.loc, self.scale = floats(loc, scale)
        super().__init__(self.loc.shape, (), validate_args)
        self._require("scale is above 0", self.scale, lambda a: a > 0)

    @property
    def mean(self) -> Tensor:
        """The mean of each."""
        return self.loc

    @property
    def mode(self) -> Tensor:
        """The likeliest value of each."""
        return self.loc

    @property
    def stddev(self) -> Tensor:
        """The standard deviation of each."""
        return self.scale

    @property
    def variance(self) -> Tensor:
        """The variance of each."""
        return self.scale * self.scale

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Draws through which gradients flow."""
        return self.loc + randn(self._extended(sample_shape), dtype=self.loc.dtype) * self.scale

    def log_prob(self, value: Any) -> Tensor:
        """The logarithm of the density."""
        return (
            -((as_tensor(value) - self.loc) ** 2) / (2 * self.variance)
            - self.scale.log()
            - math.log(math.sqrt(2 * math.pi))
        )

    def entropy(self) -> Tensor:
        """The entropy of each."""
        return 0.5 + 0.5 * math.log(2 * math.pi) + self.scale.log()

    def cdf(self, value: Any) -> Tensor:
        """The share of draws up to values."""
        return 0.5 * (1 + erf((as_tensor(value) - self.loc) / (self.scale * math.sqrt(2))))

    def icdf(self, value: Any) -> Tensor:
        """The value up to which shares of the draws are."""
        return self.loc + self.scale * erfinv(2 * as_tensor(value) - 1) * math.sqrt(2)
