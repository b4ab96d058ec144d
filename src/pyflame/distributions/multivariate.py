"""Normal vectors by covariance, precision or a triangular factor; densities go through the factor."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame.distributions.distribution import Distribution, floats
from pyflame.ops.core import as_tensor
from pyflame.ops.creation import eye
from pyflame.ops.shaping import flip, tril
from pyflame.random import randn
from pyflame_rt.graph.named_arguments import names_arguments

if TYPE_CHECKING:
    from pyflame.tensors import Tensor

__all__ = ["MultivariateNormal"]


class MultivariateNormal(Distribution):
    """Normal vectors by mean, and one of the covariance, its inverse, and its lower triangular factor.

    Example:
        >>> import pyflame as pf
        >>> d = pf.distributions.MultivariateNormal(pf.zeros(2), pf.eye(2))
        >>> d.event_shape, round(d.log_prob(pf.zeros(2)).item(), 4)
        ([2], -1.8379)
    """

    has_rsample = True

    @names_arguments
    def __init__(
        self,
        loc: Any,
        covariance_matrix: Any = None,
        precision_matrix: Any = None,
        scale_tril: Any = None,
        validate_args: bool | None = None,
    ) -> None:
        from pyflame.linalg import cholesky

        given = [m for m in (covariance_matrix, precision_matrix, scale_tril) if m is not None]
        if len(given) != 1:
            raise ValueError(
                f"give one of covariance_matrix, precision_matrix and scale_tril, got {len(given)} of them"
            )
        (mean,), (matrix,) = floats(loc), floats(given[0])
        if mean.ndim < 1 or matrix.ndim < 2 or not matrix.shape[-1] == matrix.shape[-2] == mean.shape[-1]:
            raise ValueError(f"vectors of {list(mean.shape)} have no covariances of {list(matrix.shape)}")
        batch = np.broadcast_shapes(tuple(mean.shape[:-1]), tuple(matrix.shape[:-2]))
        size = mean.shape[-1]
        self.loc = mean.expand((*batch, size))
        if scale_tril is not None:
            factor = matrix
        else:
            factor = cholesky(matrix) if covariance_matrix is not None else _of_precision(matrix)
        self._given = {
            "covariance_matrix": covariance_matrix, "precision_matrix": precision_matrix, "scale_tril": scale_tril,
        }  # fmt: skip
        self._factor = factor.expand((*batch, size, size))
        super().__init__(batch, (size,), validate_args)
        off = ~np.eye(size, dtype=bool)
        self._require("the diagonal of scale_tril is above 0", factor, lambda a: (a > 0) | off)

    def _matrix(self, name: str) -> Tensor | None:
        given = self._given[name]
        return None if given is None else as_tensor(given).expand(self._factor.shape)

    @property
    def scale_tril(self) -> Tensor:
        """The lower triangular factor of the covariances."""
        return self._factor

    @property
    def covariance_matrix(self) -> Tensor:
        """The covariances."""
        given = self._matrix("covariance_matrix")
        return self._factor @ self._factor.mT if given is None else given

    @property
    def precision_matrix(self) -> Tensor:
        """The inverse of the covariances."""
        from pyflame.ops.decompositions import cholesky_inverse

        given = self._matrix("precision_matrix")
        return cholesky_inverse(self._factor) if given is None else given

    @property
    def mean(self) -> Tensor:
        """The mean of each."""
        return self.loc

    @property
    def mode(self) -> Tensor:
        """The likeliest vector of each."""
        return self.loc

    @property
    def variance(self) -> Tensor:
        """The variance of each place."""
        return (self._factor * self._factor).sum(-1)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Draws through which gradients flow."""
        noise = randn(self._extended(sample_shape), dtype=self.loc.dtype)
        return self.loc + (self._factor @ noise.unsqueeze(-1)).squeeze(-1)

    def _half_log_det(self) -> Tensor:
        return self._factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)

    def log_prob(self, value: Any) -> Tensor:
        """The logarithm of the density."""
        away = as_tensor(value) - self.loc
        squares = squared_length(self._factor, away)
        return -0.5 * (self.event_shape[0] * math.log(2 * math.pi) + squares) - self._half_log_det()

    def entropy(self) -> Tensor:
        """The entropy of each."""
        return 0.5 * self.event_shape[0] * (1.0 + math.log(2 * math.pi)) + self._half_log_det()

    def expand(self, batch_shape: Any) -> MultivariateNormal:
        """The same distribution for a larger batch."""
        batch, size = tuple(batch_shape), self.event_shape[0]
        return type(self)(self.loc.expand((*batch, size)), scale_tril=self._factor.expand((*batch, size, size)))


def squared_length(factor: Tensor, away: Tensor) -> Tensor:
    """The squares of vectors in units of a covariance's factor (Mahalanobis)."""
    from pyflame.linalg import solve_triangular

    batch = np.broadcast_shapes(tuple(factor.shape[:-2]), tuple(away.shape[:-1]))
    size = away.shape[-1]
    wide = away.expand((*batch, size)).unsqueeze(-1)
    return (solve_triangular(factor.expand((*batch, size, size)), wide, upper=False) ** 2).sum((-2, -1))


def _of_precision(matrix: Tensor) -> Tensor:
    """The lower factor of a matrix's inverse: the matrix is factored from its last row on, and the factor inverted."""
    from pyflame.linalg import cholesky, solve_triangular

    turned = flip(cholesky(flip(matrix, (-2, -1))), (-2, -1)).mT
    size = matrix.shape[-1]
    one = eye(size, dtype=matrix.dtype).expand(matrix.shape)
    return tril(solve_triangular(turned, one, upper=False))
