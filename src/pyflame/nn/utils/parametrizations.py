"""Weights with a length and a direction, of unit spectral norm, and orthogonal ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyflame.autograd import no_grad
from pyflame.nn.functional.normalization import normalize
from pyflame.nn.module import Module
from pyflame.nn.utils.parametrize import register_parametrization
from pyflame.ops.linalg import mv
from pyflame.ops.reduction import norm
from pyflame.random import randn

if TYPE_CHECKING:
    from pyflame.tensors import Tensor

__all__ = ["spectral_norm", "weight_norm"]


def length(v: Any, dim: int | None) -> Tensor:
    """The norm of entries along a dimension, over all others; of everything for None."""
    if dim is None or dim == -1:
        return norm(v)
    axes = tuple(a for a in range(v.ndim) if a != dim % v.ndim)
    return norm(v, 2, axes, True)


class _WeightNorm(Module):
    """A length (`original0`) times a direction (`original1`)."""

    def __init__(self, dim: int | None) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, g: Any, v: Any) -> Tensor:
        """The weight."""
        return v * (g / length(v, self.dim))

    def right_inverse(self, weight: Any) -> tuple[Tensor, Tensor]:
        """The length and the direction of a weight."""
        return length(weight, self.dim), weight


def weight_norm(module: Module, name: str = "weight", dim: int | None = 0) -> Module:
    """Train a weight as a length and a direction.

    Args:
        module: whose weight it is.
        name: of the weight.
        dim: along which each entry has a length of its own; None for one length.

    Example:
        >>> import pyflame as pf
        >>> layer = pf.nn.utils.parametrizations.weight_norm(pf.nn.Linear(3, 2))
        >>> sorted(layer.state_dict())
        ['bias', 'parametrizations.weight.original0', 'parametrizations.weight.original1']
    """
    return register_parametrization(module, name, _WeightNorm(dim))


class SpectralNorm(Module):
    """A weight divided by its largest singular value, which a power iteration follows."""

    def __init__(self, weight: Any, n_power_iterations: int, dim: int, eps: float) -> None:
        super().__init__()
        if n_power_iterations <= 0:
            raise ValueError(f"spectral_norm: n_power_iterations is above 0, got {n_power_iterations}")
        self.n_power_iterations, self.dim, self.eps = n_power_iterations, dim, eps
        if weight.ndim > 1:
            matrix = self._matrix(weight)
            self.register_buffer("_u", normalize(randn(matrix.shape[0], dtype=matrix.dtype), dim=0, eps=eps))
            self.register_buffer("_v", normalize(randn(matrix.shape[1], dtype=matrix.dtype), dim=0, eps=eps))
            self._iterate(matrix.detach(), 15)

    def _matrix(self, weight: Any) -> Tensor:
        order = [self.dim % weight.ndim, *[a for a in range(weight.ndim) if a != self.dim % weight.ndim]]
        return weight.permute(*order).flatten(1)

    def _iterate(self, matrix: Any, times: int) -> None:
        with no_grad():
            u, v = self._u, self._v
            for _ in range(times):
                u = normalize(mv(matrix, v), dim=0, eps=self.eps)
                v = normalize(mv(matrix.t(), u), dim=0, eps=self.eps)
            self._u.copy_(u)
            self._v.copy_(v)

    def forward(self, weight: Any) -> Tensor:
        """The weight of unit norm; in training mode the iteration goes on."""
        if weight.ndim == 1:
            return normalize(weight, dim=0, eps=self.eps)
        matrix = self._matrix(weight)
        if self.training:
            self._iterate(matrix.detach(), self.n_power_iterations)
        u, v = self._u.clone(), self._v.clone()
        return weight / (u * mv(matrix, v)).sum()


def spectral_norm(
    module: Module, name: str = "weight", n_power_iterations: int = 1, eps: float = 1e-12, dim: int | None = None
) -> Module:
    """Divide a weight by its largest singular value.

    Args:
        module: whose weight it is.
        name: of the weight.
        n_power_iterations: steps of the power iteration at each use in training mode.
        eps: of the normalisation.
        dim: of the outputs: 0, and 1 for transposed convolutions, unless given.

    Example:
        >>> import pyflame as pf
        >>> layer = pf.nn.utils.parametrizations.spectral_norm(pf.nn.Linear(3, 2))
        >>> layer(pf.ones([1, 3])).shape
        [1, 2]
    """
    weight = getattr(module, name)
    if dim is None:
        dim = 1 if type(module).__name__.startswith("ConvTranspose") else 0
    return register_parametrization(module, name, SpectralNorm(weight, n_power_iterations, dim, eps))
