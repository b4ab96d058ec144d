"""What all distributions share: shapes of batches and events, samples, and the check of parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame.autograd import no_grad
from pyflame.dtypes import get_default_dtype
from pyflame.ops.core import Handle, as_tensor
from pyflame.ops.shaping import broadcast_tensors
from pyflame_rt.graph.named_arguments import names_arguments

if TYPE_CHECKING:
    from pyflame.tensors import Tensor

__all__ = ["Distribution", "floats"]


class Distribution:
    """A probability distribution, or a batch of them: write `rsample` or `sample`, and `log_prob`.

    Args:
        batch_shape: sizes of the batch.
        event_shape: sizes of one draw.
        validate_args: refuse parameters and values that are known and out of range; yes unless told otherwise.

    Example:
        >>> import pyflame as pf
        >>> d = pf.distributions.Normal(pf.zeros(3), 1.0)
        >>> d.batch_shape, d.sample((2,)).shape
        ([3], [2, 3])
    """

    has_rsample = False

    @names_arguments
    def __init__(self, batch_shape: Any = (), event_shape: Any = (), validate_args: bool | None = None) -> None:
        from pyflame_rt.graph.types import Shape

        self._batch_shape, self._event_shape = Shape(batch_shape), Shape(event_shape)
        self._validate_args = validate_args is not False

    @property
    def batch_shape(self) -> Any:
        """Sizes of the batch."""
        return self._batch_shape

    @property
    def event_shape(self) -> Any:
        """Sizes of one draw."""
        return self._event_shape

    @property
    def mean(self) -> Tensor:
        """The mean of each."""
        raise NotImplementedError(f"{type(self).__name__} has no mean")

    @property
    def variance(self) -> Tensor:
        """The variance of each."""
        raise NotImplementedError(f"{type(self).__name__} has no variance")

    @property
    def stddev(self) -> Tensor:
        """The standard deviation of each."""
        return self.variance.sqrt()

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Draws through which gradients flow to the parameters."""
        raise NotImplementedError(f"gradients do not flow through draws of {type(self).__name__}; use sample()")

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draws, without gradients."""
        with no_grad():
            return self.rsample(sample_shape).detach()

    def log_prob(self, value: Any) -> Tensor:
        """The logarithm of the probability, or density, of values."""
        raise NotImplementedError(f"{type(self).__name__} must write log_prob(value)")

    def entropy(self) -> Tensor:
        """The entropy of each."""
        raise NotImplementedError(f"{type(self).__name__} has no entropy")

    def cdf(self, value: Any) -> Tensor:
        """The share of draws up to values."""
        raise NotImplementedError(f"{type(self).__name__} has no cdf")

    def _extended(self, sample_shape: Any) -> tuple[int, ...]:
        lead = (sample_shape,) if isinstance(sample_shape, int) else tuple(sample_shape)
        sizes: Any = (*lead, *self._batch_shape, *self._event_shape)
        return sizes

    def _require(self, what: str, value: Any, holds: Any) -> None:
        """Refuse a parameter or value that is known and out of range.

        Args:
            what: its name and its range.
            value: the tensor; nothing is evaluated for the check.
            holds: says of an array where it is in range.
        """
        array = value._value.array if isinstance(value, Handle) else np.asarray(value)
        if self._validate_args and array is not None and not np.all(holds(array)):
            raise ValueError(
                f"{type(self).__name__}: {what}, got {np.asarray(array)[~np.asarray(holds(array))].flat[0]}"
            )

    def __repr__(self) -> str:
        return f"{type(self).__name__}(batch_shape={self.batch_shape}, event_shape={self.event_shape})"


def floats(*values: Any) -> list[Tensor]:
    """Parameters as floating-point tensors of one shape; numbers take the type of the tensors."""
    tensors = [v for v in values if isinstance(v, Handle)]
    kind = tensors[0]._value.spec.dtype if tensors else get_default_dtype()
    kind = kind if kind.is_floating_point else get_default_dtype()
    made = [v if isinstance(v, Handle) else as_tensor(v, kind) for v in values]
    return list(broadcast_tensors(*[as_tensor(v) for v in made])) if len(made) > 1 else [as_tensor(made[0])]
