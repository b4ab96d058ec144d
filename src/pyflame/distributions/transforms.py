"""Functions that can be undone, and distributions of what they give."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from pyflame.distributions.distribution import Distribution
from pyflame.ops.activation import sigmoid, softplus
from pyflame.ops.core import Handle, as_tensor
from pyflame.ops.creation import zeros_like
from pyflame.ops.pointwise import atanh, exp, log, tanh
from pyflame_rt.graph.named_arguments import names_arguments

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyflame.tensors import Tensor

__all__ = [
    "AffineTransform",
    "ComposeTransform",
    "ExpTransform",
    "SigmoidTransform",
    "TanhTransform",
    "Transform",
    "TransformedDistribution",
]


class Transform:
    """A function of tensors with its inverse: write `_call`, `_inverse` and `log_abs_det_jacobian`.

    Args:
        cache_size: 1 to remember the latest input and result, so that undoing the latter is exact.

    Example:
        >>> import pyflame as pf
        >>> t = pf.distributions.transforms.ExpTransform()
        >>> t.inv(t(pf.tensor(2.0))).item()
        2.0
    """

    event_dim = 0

    @names_arguments
    def __init__(self, cache_size: int = 0) -> None:
        if cache_size not in (0, 1):
            raise ValueError(f"cache_size must be 0 or 1. Received: {cache_size}")
        self._cache_size = cache_size
        self._latest: tuple[Any, Any] = (None, None)

    def __call__(self, x: Any) -> Tensor:
        """The transformed values."""
        if self._cache_size and x is self._latest[0]:
            return self._latest[1]
        y = self._call(x)
        if self._cache_size:
            self._latest = (x, y)
        return y

    def _undo(self, y: Any) -> Tensor:
        if self._cache_size and y is self._latest[1]:
            return self._latest[0]
        x = self._inverse(y)
        if self._cache_size:
            self._latest = (x, y)
        return x

    @property
    def inv(self) -> Transform:
        """The function that undoes this one."""
        return _Inverse(self)

    def _call(self, x: Any) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} must write _call(x)")

    def _inverse(self, y: Any) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} must write _inverse(y)")

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Tensor:
        """The logarithm of how much it stretches at values x, which it makes y."""
        raise NotImplementedError(f"{type(self).__name__} must write log_abs_det_jacobian(x, y)")

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class _Inverse(Transform):
    def __init__(self, transform: Transform) -> None:
        super().__init__()
        self._transform, self.event_dim = transform, transform.event_dim

    @property
    def inv(self) -> Transform:
        return self._transform

    def _call(self, x: Any) -> Tensor:
        return self._transform._undo(x)

    def _inverse(self, y: Any) -> Tensor:
        return self._transform(y)

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Tensor:
        return -self._transform.log_abs_det_jacobian(y, x)


class AffineTransform(Transform):
    """`loc + scale * x`; the last `event_dim` dimensions are one draw."""

    @names_arguments
    def __init__(self, loc: Any, scale: Any, event_dim: int = 0, cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.loc, self.scale, self.event_dim = loc, scale, event_dim

    def _call(self, x: Any) -> Tensor:
        return self.loc + self.scale * x

    def _inverse(self, y: Any) -> Tensor:
        return (y - self.loc) / self.scale

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Tensor:
        """How much it stretches: the same everywhere."""
        del y
        made = zeros_like(as_tensor(x)) + log(as_tensor(self.scale).abs())
        return made.sum(tuple(range(-self.event_dim, 0))) if self.event_dim else made


class ExpTransform(Transform):
    """`exp(x)`."""

    def _call(self, x: Any) -> Tensor:
        return exp(x)

    def _inverse(self, y: Any) -> Tensor:
        return log(y)

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Tensor:
        """How much it stretches: by its result."""
        del y
        return as_tensor(x)


class SigmoidTransform(Transform):
    """`sigmoid(x)`."""

    def _call(self, x: Any) -> Tensor:
        return sigmoid(x)

    def _inverse(self, y: Any) -> Tensor:
        return log(y) - log(1 - as_tensor(y))

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Tensor:
        """How much it stretches."""
        del y
        return -softplus(-x) - softplus(x)


class TanhTransform(Transform):
    """`tanh(x)`; with ``cache_size=1`` the draws of a policy are undone exactly, also where they are 1."""

    def _call(self, x: Any) -> Tensor:
        return tanh(x)

    def _inverse(self, y: Any) -> Tensor:
        return atanh(y)

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Tensor:
        """How much it stretches, where `tanh` itself has no digits left, too."""
        del y
        return 2.0 * (math.log(2.0) - x - softplus(-2.0 * x))


class ComposeTransform(Transform):
    """One after the other."""

    @names_arguments
    def __init__(self, parts: Sequence[Transform], cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.parts = list(parts)
        self.event_dim = max((part.event_dim for part in self.parts), default=0)

    def _call(self, x: Any) -> Tensor:
        for part in self.parts:
            x = part(x)
        return x

    def _inverse(self, y: Any) -> Tensor:
        for part in reversed(self.parts):
            y = part._undo(y)
        return y

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Tensor:
        """How much they stretch together."""
        del y
        total: Any = 0.0
        for part in self.parts:
            made = part(x)
            total = total + _over(part.log_abs_det_jacobian(x, made), self.event_dim - part.event_dim)
            x = made
        return total


def _over(x: Tensor, count: int) -> Tensor:
    """The sum over the last dimensions."""
    return x.sum(tuple(range(-count, 0))) if count else x


class TransformedDistribution(Distribution):
    """What functions make of the draws of a distribution.

    Example:
        >>> import pyflame as pf
        >>> normal = pf.distributions.Normal(0.0, 1.0)
        >>> squashed = pf.distributions.TransformedDistribution(normal, pf.distributions.TanhTransform())
        >>> round(squashed.log_prob(pf.tensor(0.5)).item(), 4)
        -0.7821
    """

    @names_arguments
    def __init__(self, base_distribution: Distribution, transforms: Any, validate_args: bool | None = None) -> None:
        self.base_dist = base_distribution
        self.transforms: list[Transform] = [transforms] if isinstance(transforms, Transform) else list(transforms)
        for transform in self.transforms:
            if not isinstance(transform, Transform):
                raise ValueError(f"transforms must be one Transform or a list of them. Received: {transforms!r}")
        self.has_rsample = base_distribution.has_rsample
        batch, event = tuple(base_distribution.batch_shape), tuple(base_distribution.event_shape)
        self._event_dims = max([len(event), *[t.event_dim for t in self.transforms]])
        if self._event_dims > len(batch) + len(event):
            raise ValueError(f"draws of shape {[*batch, *event]} have fewer than {self._event_dims} dimensions")
        self._reinterpreted = self._event_dims - len(event)
        sizes = (*batch, *event)
        cut = len(sizes) - self._event_dims
        super().__init__(sizes[:cut], sizes[cut:], validate_args)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Draws through which gradients flow."""
        return self._through(self.base_dist.rsample(sample_shape))

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draws, without gradients."""
        from pyflame.autograd import no_grad

        with no_grad():
            return self._through(self.base_dist.sample(sample_shape))

    def _through(self, x: Tensor) -> Tensor:
        for transform in self.transforms:
            x = transform(x)
        return x

    def log_prob(self, value: Any) -> Tensor:
        """The logarithm of the density of transformed draws."""
        y = as_tensor(value) if not isinstance(value, Handle) else value
        total: Any = 0.0
        for transform in reversed(self.transforms):
            x = transform._undo(y)
            slope = transform.log_abs_det_jacobian(x, y)
            total = total - _over(slope, self._event_dims - transform.event_dim)
            y = x
        return total + _over(self.base_dist.log_prob(y), self._reinterpreted)
