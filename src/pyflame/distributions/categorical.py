"""Distributions over classes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame.autograd import no_grad
from pyflame.distributions.distribution import Distribution, floats
from pyflame.ops.core import as_tensor
from pyflame.ops.creation import one_hot
from pyflame.ops.gathering import gather
from pyflame.ops.pointwise import log
from pyflame.ops.reduction import argmax, logsumexp
from pyflame.random import multinomial
from pyflame_rt.graph.named_arguments import names_arguments

if TYPE_CHECKING:
    from pyflame.tensors import Tensor

__all__ = ["Categorical", "OneHotCategorical"]


class Categorical(Distribution):
    """Classes by probability, given as such (they are scaled to add up to 1) or as logarithms.

    Example:
        >>> import pyflame as pf
        >>> d = pf.distributions.Categorical(probs=pf.tensor([0.5, 0.25, 0.25]))
        >>> round(d.log_prob(pf.tensor(1)).exp().item(), 4), round(d.entropy().item(), 4)
        (0.25, 1.0397)
    """

    @names_arguments
    def __init__(self, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        if (probs is None) == (logits is None):
            raise ValueError(f"{type(self).__name__} takes probs or logits, one of them")
        self._by_probs = probs is not None
        (given,) = floats(logits if probs is None else probs)
        if given.ndim < 1:
            raise ValueError(f"{type(self).__name__}: classes are the last dimension, got a number")
        super().__init__(given.shape[:-1], (), validate_args)
        if self._by_probs:
            self._require("probs is not negative", given, lambda a: a >= 0)
        self._given = given / given.sum(-1, True) if self._by_probs else given - logsumexp(given, -1, True)
        self._num_events = given.shape[-1]

    @property
    def probs(self) -> Tensor:
        """The probability of each class."""
        return self._given if self._by_probs else self._given.softmax(-1)

    @property
    def logits(self) -> Tensor:
        """The logarithm of the probability of each class."""
        if not self._by_probs:
            return self._given
        from pyflame.dtypes import finfo

        eps = float(finfo(self._given.dtype).eps)
        return log(self._given.clamp(eps, 1 - eps))

    @property
    def mean(self) -> Tensor:
        """NaN: classes have no mean."""
        return self.probs[..., 0] * math.nan

    @property
    def mode(self) -> Tensor:
        """The likeliest class."""
        return argmax(self.probs, -1)

    @property
    def param_shape(self) -> Any:
        """Sizes of the parameters."""
        return self._given.shape

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draws: numbers of classes."""
        lead = (sample_shape,) if isinstance(sample_shape, int) else tuple(sample_shape)
        with no_grad():
            flat = self.probs.detach().reshape((-1, self._num_events))
            drawn = multinomial(flat, math.prod(lead), True)
            return drawn.transpose(0, 1).reshape((*lead, *self.batch_shape))

    def log_prob(self, value: Any) -> Tensor:
        """The logarithm of the probability of classes."""
        classes = as_tensor(value).long()
        last = self._num_events - 1
        self._require(f"a class is from 0 to {last}", classes, lambda a: (a >= 0) & (a <= last))
        shape = np.broadcast_shapes(tuple(classes.shape), tuple(self.batch_shape))
        scores = self.logits.expand((*shape, self._num_events))
        return gather(scores, -1, classes.expand(shape).unsqueeze(-1)).squeeze(-1)

    def entropy(self) -> Tensor:
        """The entropy of each."""
        from pyflame.dtypes import finfo

        scores = self.logits.clamp(min=float(finfo(self._given.dtype).min))
        return -(scores * self.probs).sum(-1)

    def expand(self, batch_shape: Any) -> Categorical:
        """The same distribution for a larger batch."""
        return type(self)(logits=self.logits.expand((*tuple(batch_shape), self._num_events)))


class OneHotCategorical(Distribution):
    """`Categorical` whose draws are vectors with 1 at the class.

    Example:
        >>> import pyflame as pf
        >>> pf.distributions.OneHotCategorical(logits=pf.zeros(3)).sample().sum().item()
        1.0
    """

    @names_arguments
    def __init__(self, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        self._categorical = Categorical(probs, logits, validate_args)
        shape = self._categorical.param_shape
        super().__init__(shape[:-1], shape[-1:], validate_args)

    @property
    def probs(self) -> Tensor:
        """The probability of each class."""
        return self._categorical.probs

    @property
    def logits(self) -> Tensor:
        """The logarithm of the probability of each class."""
        return self._categorical.logits

    @property
    def mean(self) -> Tensor:
        """The mean of each place."""
        return self.probs

    @property
    def variance(self) -> Tensor:
        """The variance of each place."""
        return self.probs * (1 - self.probs)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draws: vectors with a single 1."""
        drawn = self._categorical.sample(sample_shape)
        return one_hot(drawn, self._categorical._num_events).to(self.probs.dtype)

    def log_prob(self, value: Any) -> Tensor:
        """The logarithm of the probability of vectors."""
        return self._categorical.log_prob(argmax(as_tensor(value), -1))

    def entropy(self) -> Tensor:
        """The entropy of each."""
        return self._categorical.entropy()
