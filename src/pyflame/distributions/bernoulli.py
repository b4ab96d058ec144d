"""Distributions of trials that succeed or fail."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyflame.autograd import no_grad
from pyflame.distributions.distribution import Distribution, floats
from pyflame.nn.functional.loss import binary_cross_entropy_with_logits
from pyflame.ops.core import as_tensor
from pyflame.ops.pointwise import log, log1p
from pyflame.ops.shaping import broadcast_tensors
from pyflame.random import bernoulli, rand

if TYPE_CHECKING:
    from pyflame.tensors import Tensor

__all__ = ["Bernoulli", "Geometric"]


class _Trials(Distribution):
    """Distributions of a probability, given as such or as the logarithm of its odds."""

    def __init__(self, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        if (probs is None) == (logits is None):
            raise ValueError(f"{type(self).__name__} takes probs or logits, one of them")
        self._by_probs = probs is not None
        (self._given,) = floats(logits if probs is None else probs)
        super().__init__(self._given.shape, (), validate_args)
        if self._by_probs:
            self._require("probs is between 0 and 1", self._given, lambda a: (a >= 0) & (a <= 1))

    @property
    def probs(self) -> Tensor:
        """The probability of success."""
        return self._given if self._by_probs else self._given.sigmoid()

    @property
    def logits(self) -> Tensor:
        """The logarithm of the odds."""
        if not self._by_probs:
            return self._given
        from pyflame.dtypes import finfo

        eps = float(finfo(self._given.dtype).eps)
        kept = self._given.clamp(eps, 1 - eps)
        return log(kept) - log1p(-kept)


class Bernoulli(_Trials):
    """1 with a probability, else 0.

    Example:
        >>> import pyflame as pf
        >>> pf.distributions.Bernoulli(probs=0.25).mean.item()
        0.25
    """

    @property
    def mean(self) -> Tensor:
        """The mean of each."""
        return self.probs

    @property
    def variance(self) -> Tensor:
        """The variance of each."""
        return self.probs * (1 - self.probs)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draws."""
        with no_grad():
            return bernoulli(self.probs.detach().expand(self._extended(sample_shape)))

    def log_prob(self, value: Any) -> Tensor:
        """The logarithm of the probability."""
        scores, given = broadcast_tensors(self.logits, as_tensor(value))
        self._require("a value is 0 or 1", given, lambda a: (a == 0) | (a == 1))
        return -binary_cross_entropy_with_logits(scores, given.to(scores.dtype), reduction="none")

    def entropy(self) -> Tensor:
        """The entropy of each."""
        return binary_cross_entropy_with_logits(self.logits, self.probs, reduction="none")


class Geometric(_Trials):
    """How many trials fail before one succeeds.

    Example:
        >>> import pyflame as pf
        >>> pf.distributions.Geometric(0.5).mean.item()
        1.0
    """

    @property
    def mean(self) -> Tensor:
        """The mean of each."""
        return 1 / self.probs - 1

    @property
    def variance(self) -> Tensor:
        """The variance of each."""
        return (1 / self.probs - 1) / self.probs

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draws."""
        with no_grad():
            u = 1 - rand(self._extended(sample_shape), dtype=self._given.dtype)
            return (log(u) / log1p(-self.probs.detach())).floor()

    def log_prob(self, value: Any) -> Tensor:
        """The logarithm of the probability."""
        count = as_tensor(value)
        self._require("a value is a whole number from 0 on", count, lambda a: (a >= 0) & (a % 1 == 0))
        return count * log1p(-self.probs) + log(self.probs)

    def entropy(self) -> Tensor:
        """The entropy of each."""
        return binary_cross_entropy_with_logits(self.logits, self.probs, reduction="none") / self.probs
