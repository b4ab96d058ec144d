"""Batches of distributions seen as one of vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyflame.distributions.distribution import Distribution
from pyflame_rt.graph.named_arguments import names_arguments

if TYPE_CHECKING:
    from pyflame.tensors import Tensor

__all__ = ["Independent"]


class Independent(Distribution):
    """A distribution whose last dimensions of the batch are dimensions of one draw.

    Example:
        >>> import pyflame as pf
        >>> d = pf.distributions.Independent(pf.distributions.Normal(pf.zeros([4, 3]), 1.0), 1)
        >>> d.batch_shape, d.event_shape, d.log_prob(d.sample()).shape
        ([4], [3], [4])
    """

    @names_arguments
    def __init__(
        self, base_distribution: Distribution, reinterpreted_batch_ndims: int, validate_args: bool | None = None
    ) -> None:
        batch = tuple(base_distribution.batch_shape)
        count = reinterpreted_batch_ndims
        if not 0 <= count <= len(batch):
            raise ValueError(f"a batch of {len(batch)} dimensions has no {count} to make part of the draws")
        self.base_dist, self.reinterpreted_batch_ndims = base_distribution, count
        self.has_rsample = base_distribution.has_rsample
        cut = len(batch) - count
        super().__init__(batch[:cut], (*batch[cut:], *base_distribution.event_shape), validate_args)

    @property
    def mean(self) -> Tensor:
        """The mean of each place."""
        return self.base_dist.mean

    @property
    def variance(self) -> Tensor:
        """The variance of each place."""
        return self.base_dist.variance

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Draws through which gradients flow."""
        return self.base_dist.rsample(sample_shape)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draws."""
        return self.base_dist.sample(sample_shape)

    def _summed(self, x: Tensor) -> Tensor:
        count = self.reinterpreted_batch_ndims
        return x.sum(tuple(range(-count, 0))) if count else x

    def log_prob(self, value: Any) -> Tensor:
        """The logarithm of the probability of draws."""
        return self._summed(self.base_dist.log_prob(value))

    def entropy(self) -> Tensor:
        """The entropy of each."""
        return self._summed(self.base_dist.entropy())
