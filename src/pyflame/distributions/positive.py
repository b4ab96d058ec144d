"""Gamma distributions, and those made of them: beta, Dirichlet, chi-squared and Student's."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from pyflame.autograd import no_grad
from pyflame.distributions.distribution import Distribution, floats
from pyflame.ops.arithmetic import logical_and, logical_not, where
from pyflame.ops.core import as_tensor
from pyflame.ops.pointwise import log, log1p
from pyflame.ops.shaping import stack
from pyflame.ops.special import digamma, lgamma
from pyflame.random import rand, randn
from pyflame_rt.graph.named_arguments import names_arguments

if TYPE_CHECKING:
    from pyflame.tensors import Tensor

__all__ = ["Beta", "Chi2", "Dirichlet", "Gamma", "StudentT"]

# Marsaglia and Tsang's method takes a candidate with a chance of over 0.95: all 24 of one element fail for 1 in 10**31.
_CANDIDATES = 24


def _gammas(concentration: Tensor) -> Tensor:
    """Draws of a gamma distribution of rate 1, without gradients."""
    kind = concentration.dtype
    small = concentration < 1
    a = where(small, concentration + 1, concentration)
    d = a - 1.0 / 3.0
    c = 1 / (9 * d).sqrt()
    sizes = tuple(concentration.shape)
    found, taken = d, as_tensor(False)
    for _ in range(_CANDIDATES):
        x, u = randn(sizes, dtype=kind), rand(sizes, dtype=kind)
        v = (1 + c * x) ** 3
        safe = where(v > 0, v, 1.0)
        fits = logical_and(v > 0, log(1 - u) < 0.5 * x * x + d - d * v + d * log(safe))
        found = where(logical_and(fits, logical_not(taken)), d * v, found)
        taken = taken | fits
    lower = (1 - rand(sizes, dtype=kind)) ** (1 / where(small, concentration, 1.0))
    return where(small, found * lower, found)


class Gamma(Distribution):
    """Positive numbers by concentration and rate; gradients do not flow through draws.

    Example:
        >>> import pyflame as pf
        >>> d = pf.distributions.Gamma(pf.tensor(2.0), pf.tensor(4.0))
        >>> d.mean.item(), round(d.log_prob(pf.tensor(0.5)).item(), 4)
        (0.5, 0.0794)
    """

    @names_arguments
    def __init__(self, concentration: Any, rate: Any, validate_args: bool | None = None) -> None:
        self.concentration, self.rate = floats(concentration, rate)
        super().__init__(self.concentration.shape, (), validate_args)
        self._require("concentration is above 0", self.concentration, lambda a: a > 0)
        self._require("rate is above 0", self.rate, lambda a: a > 0)

    @property
    def mean(self) -> Tensor:
        """The mean of each."""
        return self.concentration / self.rate

    @property
    def variance(self) -> Tensor:
        """The variance of each."""
        return self.concentration / self.rate**2

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draws, without gradients."""
        with no_grad():
            sizes = self._extended(sample_shape)
            return (_gammas(self.concentration.detach().expand(sizes)) / self.rate).detach()

    def log_prob(self, value: Any) -> Tensor:
        """The logarithm of the density."""
        x, a = as_tensor(value), self.concentration
        self._require("a value is not negative", x, lambda v: v >= 0)
        return a * log(self.rate) + (a - 1) * log(x) - self.rate * x - lgamma(a)

    def entropy(self) -> Tensor:
        """The entropy of each."""
        a = self.concentration
        return a - log(self.rate) + lgamma(a) + (1 - a) * digamma(a)


class Chi2(Gamma):
    """Sums of squares of so many normal numbers.

    Example:
        >>> import pyflame as pf
        >>> pf.distributions.Chi2(3.0).mean.item()
        3.0
    """

    @names_arguments
    def __init__(self, df: Any, validate_args: bool | None = None) -> None:
        (self.df,) = floats(df)
        super().__init__(0.5 * self.df, 0.5, validate_args)


class Dirichlet(Distribution):
    """Shares that add up to 1, by concentrations on the last dimension.

    Example:
        >>> import pyflame as pf
        >>> d = pf.distributions.Dirichlet(pf.tensor([1.0, 3.0]))
        >>> d.mean.tolist(), round(d.log_prob(pf.tensor([0.5, 0.5])).item(), 4)
        ([0.25, 0.75], -0.2877)
    """

    @names_arguments
    def __init__(self, concentration: Any, validate_args: bool | None = None) -> None:
        (self.concentration,) = floats(concentration)
        if self.concentration.ndim < 1:
            raise ValueError("Dirichlet: concentration needs a dimension of shares, got a number")
        super().__init__(self.concentration.shape[:-1], self.concentration.shape[-1:], validate_args)
        self._require("concentration is above 0", self.concentration, lambda a: a > 0)

    @property
    def mean(self) -> Tensor:
        """The mean of each share."""
        return self.concentration / self.concentration.sum(-1, True)

    @property
    def variance(self) -> Tensor:
        """The variance of each share."""
        total = self.concentration.sum(-1, True)
        return self.concentration * (total - self.concentration) / (total**2 * (total + 1))

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draws, without gradients."""
        with no_grad():
            drawn = _gammas(self.concentration.detach().expand(self._extended(sample_shape)))
            return (drawn / drawn.sum(-1, True)).detach()

    def log_prob(self, value: Any) -> Tensor:
        """The logarithm of the density."""
        a = self.concentration
        return ((a - 1) * log(as_tensor(value))).sum(-1) + lgamma(a.sum(-1)) - lgamma(a).sum(-1)

    def entropy(self) -> Tensor:
        """The entropy of each."""
        a, count = self.concentration, self.concentration.shape[-1]
        total = a.sum(-1)
        spread = lgamma(a).sum(-1) - lgamma(total)
        return spread - (count - total) * digamma(total) - ((a - 1) * digamma(a)).sum(-1)


class Beta(Distribution):
    """Shares from 0 to 1, by two concentrations; gradients do not flow through draws.

    Example:
        >>> import pyflame as pf
        >>> d = pf.distributions.Beta(pf.tensor(2.0), pf.tensor(3.0))
        >>> round(d.mean.item(), 4), round(d.log_prob(pf.tensor(0.5)).item(), 4)
        (0.4, 0.4055)
    """

    @names_arguments
    def __init__(self, concentration1: Any, concentration0: Any, validate_args: bool | None = None) -> None:
        self.concentration1, self.concentration0 = floats(concentration1, concentration0)
        super().__init__(self.concentration1.shape, (), validate_args)
        self._pair = Dirichlet(stack([self.concentration1, self.concentration0], -1), validate_args)

    @property
    def mean(self) -> Tensor:
        """The mean of each."""
        return self.concentration1 / (self.concentration1 + self.concentration0)

    @property
    def variance(self) -> Tensor:
        """The variance of each."""
        total = self.concentration1 + self.concentration0
        return self.concentration1 * self.concentration0 / (total**2 * (total + 1))

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draws, without gradients."""
        return self._pair.sample(sample_shape)[..., 0]

    def log_prob(self, value: Any) -> Tensor:
        """The logarithm of the density."""
        x = as_tensor(value)
        self._require("a value is from 0 to 1", x, lambda v: (v >= 0) & (v <= 1))
        return self._pair.log_prob(stack([x, 1 - x], -1))

    def entropy(self) -> Tensor:
        """The entropy of each."""
        return self._pair.entropy()


class StudentT(Distribution):
    """Numbers with heavy tails: normal ones over the root of a chi-squared one by its degrees of freedom.

    Example:
        >>> import pyflame as pf
        >>> round(pf.distributions.StudentT(3.0).log_prob(pf.tensor(0.0)).item(), 4)
        -1.0009
    """

    @names_arguments
    def __init__(self, df: Any, loc: Any = 0.0, scale: Any = 1.0, validate_args: bool | None = None) -> None:
        self.df, self.loc, self.scale = floats(df, loc, scale)
        super().__init__(self.df.shape, (), validate_args)
        self._require("df is above 0", self.df, lambda a: a > 0)
        self._require("scale is above 0", self.scale, lambda a: a > 0)

    @property
    def mean(self) -> Tensor:
        """The mean of each; none (NaN) for up to one degree of freedom."""
        return where(self.df > 1, self.loc, math.nan)

    @property
    def variance(self) -> Tensor:
        """The variance of each; infinite for up to two degrees of freedom, none (NaN) for up to one."""
        wide = where(self.df > 2, self.df, 3.0)
        spread = where(self.df > 2, self.scale**2 * wide / (wide - 2), math.inf)
        return where(self.df > 1, spread, math.nan)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draws, without gradients."""
        with no_grad():
            sizes = self._extended(sample_shape)
            width = (2 * _gammas((0.5 * self.df).detach().expand(sizes)) / self.df).sqrt()
            return (self.loc + self.scale * randn(sizes, dtype=self.df.dtype) / width).detach()

    def log_prob(self, value: Any) -> Tensor:
        """The logarithm of the density."""
        y = (as_tensor(value) - self.loc) / self.scale
        level = log(self.scale) + 0.5 * log(self.df) + 0.5 * math.log(math.pi) + lgamma(0.5 * self.df)
        return -0.5 * (self.df + 1.0) * log1p(y**2 / self.df) - (level - lgamma(0.5 * (self.df + 1.0)))
