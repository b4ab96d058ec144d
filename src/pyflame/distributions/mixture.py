"""Mixtures: a categorical choice of the components of one family."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyflame.autograd import no_grad
from pyflame.distributions.categorical import Categorical
from pyflame.distributions.distribution import Distribution
from pyflame.ops.core import as_tensor
from pyflame.ops.gathering import gather
from pyflame.ops.reduction import logsumexp
from pyflame_rt.graph.named_arguments import names_arguments

if TYPE_CHECKING:
    from pyflame.tensors import Tensor

__all__ = ["MixtureSameFamily"]


class MixtureSameFamily(Distribution):
    """A mixture of the last dimension of a batch of distributions.

    Example:
        >>> import pyflame as pf
        >>> choice = pf.distributions.Categorical(pf.tensor([0.25, 0.75]))
        >>> parts = pf.distributions.Normal(pf.tensor([0.0, 4.0]), 1.0)
        >>> pf.distributions.MixtureSameFamily(choice, parts).mean.item()
        3.0
    """

    @names_arguments
    def __init__(
        self,
        mixture_distribution: Categorical,
        component_distribution: Distribution,
        validate_args: bool | None = None,
    ) -> None:
        if not isinstance(mixture_distribution, Categorical):
            raise ValueError(f"the choice is a Categorical, got {type(mixture_distribution).__name__}")
        batch = tuple(component_distribution.batch_shape)
        count = mixture_distribution.param_shape[-1]
        if not batch or batch[-1] != count:
            raise ValueError(f"a choice of {count} has no components in a batch of {list(batch)}")
        self.mixture_distribution, self.component_distribution = mixture_distribution, component_distribution
        super().__init__(batch[:-1], component_distribution.event_shape, validate_args)

    def _weights(self) -> Tensor:
        """The probability of each component, beside its draws."""
        probs = self.mixture_distribution.probs
        return probs.reshape((*tuple(probs.shape), *[1] * len(self.event_shape)))

    def _place(self) -> int:
        return -1 - len(self.event_shape)

    @property
    def mean(self) -> Tensor:
        """The mean of each."""
        return (self._weights() * self.component_distribution.mean).sum(self._place())

    @property
    def variance(self) -> Tensor:
        """The variance of each: that within the components, and that of their means."""
        weights, parts = self._weights(), self.component_distribution
        within = (weights * parts.variance).sum(self._place())
        apart = parts.mean - self.mean.unsqueeze(self._place())
        return within + (weights * apart**2).sum(self._place())

    def cdf(self, value: Any) -> Tensor:
        """The share of draws up to values."""
        shares = self.component_distribution.cdf(as_tensor(value).unsqueeze(self._place()))
        return (shares * self.mixture_distribution.probs).sum(-1)

    def log_prob(self, value: Any) -> Tensor:
        """The logarithm of the density."""
        each = self.component_distribution.log_prob(as_tensor(value).unsqueeze(self._place()))
        return logsumexp(each + self.mixture_distribution.logits.log_softmax(-1), -1)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draws: of a component that is drawn first."""
        lead = (sample_shape,) if isinstance(sample_shape, int) else tuple(sample_shape)
        event = tuple(self.event_shape)
        with no_grad():
            parts = self.component_distribution.sample(lead)
            chosen = self.mixture_distribution.sample(lead).expand((*lead, *self.batch_shape))
            index = chosen.reshape((*tuple(chosen.shape), *[1] * (1 + len(event))))
            index = index.expand((*tuple(chosen.shape), 1, *event))
            return gather(parts, self._place(), index).squeeze(self._place())
