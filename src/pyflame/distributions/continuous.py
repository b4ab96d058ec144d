"""Distributions of real numbers whose draws are functions of uniform ones."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from pyflame.distributions.distribution import Distribution, floats
from pyflame.distributions.normal import Normal
from pyflame.ops.arithmetic import logical_and, where
from pyflame.ops.core import as_tensor
from pyflame.ops.pointwise import atan, exp, expm1, log, log1p, sign, tan
from pyflame.random import rand
from pyflame_rt.graph.named_arguments import names_arguments

if TYPE_CHECKING:
    from pyflame.tensors import Tensor

__all__ = ["Cauchy", "Exponential", "Gumbel", "Laplace", "LogNormal", "Uniform"]

_EULER = 0.57721566490153286060


class Uniform(Distribution):
    """Numbers between two bounds.

    Example:
        >>> import pyflame as pf
        >>> pf.distributions.Uniform(0.0, 4.0).log_prob(pf.tensor(1.0)).exp().item()
        0.25
    """

    has_rsample = True

    @names_arguments
    def __init__(self, low: Any, high: Any, validate_args: bool | None = None) -> None:
        self.low, self.high = floats(low, high)
        super().__init__(self.low.shape, (), validate_args)
        self._require("high is above low", self.high - self.low, lambda a: a > 0)

    @property
    def mean(self) -> Tensor:
        """The mean of each."""
        return (self.high + self.low) / 2

    @property
    def variance(self) -> Tensor:
        """The variance of each."""
        return (self.high - self.low) ** 2 / 12

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Draws through which gradients flow."""
        return self.low + rand(self._extended(sample_shape), dtype=self.low.dtype) * (self.high - self.low)

    def log_prob(self, value: Any) -> Tensor:
        """The logarithm of the density."""
        x = as_tensor(value)
        inside = logical_and(x >= self.low, x < self.high)
        return where(inside, -log(self.high - self.low), -math.inf)

    def cdf(self, value: Any) -> Tensor:
        """The share of draws up to values."""
        return ((as_tensor(value) - self.low) / (self.high - self.low)).clamp(0, 1)

    def entropy(self) -> Tensor:
        """The entropy of each."""
        return log(self.high - self.low)


class Exponential(Distribution):
    """Waiting times of a rate.

    Example:
        >>> import pyflame as pf
        >>> pf.distributions.Exponential(2.0).mean.item()
        0.5
    """

    has_rsample = True

    @names_arguments
    def __init__(self, rate: Any, validate_args: bool | None = None) -> None:
        (self.rate,) = floats(rate)
        super().__init__(self.rate.shape, (), validate_args)
        self._require("rate is above 0", self.rate, lambda a: a > 0)

    @property
    def mean(self) -> Tensor:
        """The mean of each."""
        return 1 / self.rate

    @property
    def variance(self) -> Tensor:
        """The variance of each."""
        return self.rate**-2

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Draws through which gradients flow."""
        return -log1p(-rand(self._extended(sample_shape), dtype=self.rate.dtype)) / self.rate

    def log_prob(self, value: Any) -> Tensor:
        """The logarithm of the density."""
        x = as_tensor(value)
        self._require("a value is not negative", x, lambda a: a >= 0)
        return log(self.rate) - self.rate * x

    def cdf(self, value: Any) -> Tensor:
        """The share of draws up to values."""
        return 1 - exp(-self.rate * as_tensor(value))

    def entropy(self) -> Tensor:
        """The entropy of each."""
        return 1 - log(self.rate)


class _Located(Distribution):
    """Distributions by place and width."""

    has_rsample = True

    def __init__(self, loc: Any, scale: Any, validate_args: bool | None = None) -> None:
        self.loc, self.scale = floats(loc, scale)
        super().__init__(self.loc.shape, (), validate_args)
        self._require("scale is above 0", self.scale, lambda a: a > 0)

    def _uniform(self, sample_shape: Any) -> Tensor:
        """Draws between 0 and 1, without both ends."""
        from pyflame.dtypes import finfo

        tiny = float(finfo(self.loc.dtype).tiny)
        return rand(self._extended(sample_shape), dtype=self.loc.dtype).clamp(min=tiny)


class Laplace(_Located):
    """Double exponential distributions.

    Example:
        >>> import pyflame as pf
        >>> pf.distributions.Laplace(0.0, 0.5).log_prob(pf.tensor(0.0)).exp().item()
        1.0
    """

    @property
    def mean(self) -> Tensor:
        """The mean of each."""
        return self.loc

    @property
    def variance(self) -> Tensor:
        """The variance of each."""
        return 2 * self.scale**2

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Draws through which gradients flow."""
        u = self._uniform(sample_shape) - 0.5
        return self.loc - self.scale * sign(u) * log1p(-2 * u.abs())

    def log_prob(self, value: Any) -> Tensor:
        """The logarithm of the density."""
        return -log(2 * self.scale) - (as_tensor(value) - self.loc).abs() / self.scale

    def cdf(self, value: Any) -> Tensor:
        """The share of draws up to values."""
        away = as_tensor(value) - self.loc
        return 0.5 - 0.5 * sign(away) * expm1(-away.abs() / self.scale)

    def entropy(self) -> Tensor:
        """The entropy of each."""
        return 1 + log(2 * self.scale)


class Gumbel(_Located):
    """Distributions of the largest of many.

    Example:
        >>> import pyflame as pf
        >>> round(pf.distributions.Gumbel(0.0, 1.0).mean.item(), 4)
        0.5772
    """

    @property
    def mean(self) -> Tensor:
        """The mean of each."""
        return self.loc + self.scale * _EULER

    @property
    def variance(self) -> Tensor:
        """The variance of each."""
        return self.scale**2 * (math.pi**2 / 6)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Draws through which gradients flow."""
        return self.loc - self.scale * log(-log(self._uniform(sample_shape)))

    def log_prob(self, value: Any) -> Tensor:
        """The logarithm of the density."""
        y = (self.loc - as_tensor(value)) / self.scale
        return (y - exp(y)) - log(self.scale)

    def entropy(self) -> Tensor:
        """The entropy of each."""
        return log(self.scale) + (1 + _EULER)


class Cauchy(_Located):
    """Distributions without a mean.

    Example:
        >>> import pyflame as pf
        >>> pf.distributions.Cauchy(0.0, 1.0).cdf(pf.tensor(0.0)).item()
        0.5
    """

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Draws through which gradients flow."""
        return self.loc + self.scale * tan(math.pi * (self._uniform(sample_shape) - 0.5))

    def log_prob(self, value: Any) -> Tensor:
        """The logarithm of the density."""
        return -math.log(math.pi) - log(self.scale) - log1p(((as_tensor(value) - self.loc) / self.scale) ** 2)

    def cdf(self, value: Any) -> Tensor:
        """The share of draws up to values."""
        return atan((as_tensor(value) - self.loc) / self.scale) / math.pi + 0.5

    def entropy(self) -> Tensor:
        """The entropy of each."""
        return math.log(4 * math.pi) + log(self.scale)


class LogNormal(Normal):
    """Numbers whose logarithm is normal.

    Example:
        >>> import pyflame as pf
        >>> round(pf.distributions.LogNormal(0.0, 1.0).mean.item(), 4)
        1.6487
    """

    @property
    def mean(self) -> Tensor:
        """The mean of each."""
        return exp(self.loc + self.scale**2 / 2)

    @property
    def variance(self) -> Tensor:
        """The variance of each."""
        return expm1(self.scale**2) * exp(2 * self.loc + self.scale**2)

    @property
    def stddev(self) -> Tensor:
        """The standard deviation of each."""
        return self.variance.sqrt()

    @property
    def mode(self) -> Tensor:
        """The likeliest value of each."""
        return exp(self.loc - self.scale**2)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Draws through which gradients flow."""
        return exp(super().rsample(sample_shape))

    def log_prob(self, value: Any) -> Tensor:
        """The logarithm of the density."""
        x = as_tensor(value)
        self._require("a value is above 0", x, lambda a: a > 0)
        y, width = log(x), self.scale
        return -((y - self.loc) ** 2) / (2 * width**2) - log(width) - math.log(math.sqrt(2 * math.pi)) - y

    def entropy(self) -> Tensor:
        """The entropy of each."""
        return super().entropy() + self.loc

    def cdf(self, value: Any) -> Tensor:
        """The share of draws up to values."""
        return super().cdf(log(as_tensor(value)))

    def icdf(self, value: Any) -> Tensor:
        """The value up to which shares of the draws are."""
        return exp(super().icdf(value))
