"""Normalisation layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from pyflame.arrays import adopt
from pyflame.nn import functional as F
from pyflame.nn import init
from pyflame.nn.making import empty_parameter, filled
from pyflame.nn.module import Module
from pyflame.nn.placing import placed
from pyflame_rt.graph.errors import ShapeMismatchError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyflame.dtypes import DType
    from pyflame.tensors import Tensor

__all__ = [
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "GroupNorm",
    "InstanceNorm1d",
    "InstanceNorm2d",
    "InstanceNorm3d",
    "LayerNorm",
    "LocalResponseNorm",
    "RMSNorm",
]


@placed
class _Tracked(Module):
    """Per-channel scale and shift, and running statistics."""

    ranks: ClassVar[tuple[int, ...]]

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        *,
        dtype: DType | None = None,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.affine, self.track_running_stats = affine, track_running_stats
        shape = [num_features]
        self.register_parameter("weight", empty_parameter(shape, dtype) if affine else None)
        self.register_parameter("bias", empty_parameter(shape, dtype) if affine and bias else None)
        self.register_buffer("running_mean", filled(shape, 0.0, dtype) if track_running_stats else None)
        self.register_buffer("running_var", filled(shape, 1.0, dtype) if track_running_stats else None)
        counter = adopt(np.array(0, np.int64))
        self.register_buffer("num_batches_tracked", counter if track_running_stats else None)
        self.reset_parameters()

    def reset_running_stats(self) -> None:
        """Forget the statistics of earlier batches."""
        if self.track_running_stats:
            init.zeros_(self.running_mean)
            init.ones_(self.running_var)
            self.num_batches_tracked._renew(adopt(np.array(0, np.int64)))

    def reset_parameters(self) -> None:
        """Scale one, shift zero, no statistics."""
        self.reset_running_stats()
        if self.affine:
            init.ones_(self.weight)
        if self.bias is not None:
            init.zeros_(self.bias)

    def _check(self, input: Any, axis: int = 1) -> None:
        if len(input.shape) not in self.ranks:
            raise ShapeMismatchError(
                f"{type(self).__name__} needs {' or '.join(map(str, self.ranks))} dimensions. "
                f"Received: {list(input.shape)}"
            )
        if input.shape[axis] != self.num_features and (self.affine or self.track_running_stats):
            raise ShapeMismatchError(
                f"{type(self).__name__}({self.num_features}) needs {self.num_features} channels. "
                f"Received: {list(input.shape)}"
            )

    def extra_repr(self) -> str:
        """The settings."""
        return (
            f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, affine={self.affine}, "
            f"track_running_stats={self.track_running_stats}"
        )


class _BatchNorm(_Tracked):
    def forward(self, input: Any) -> Tensor:
        """The normalised input; in training the running statistics move on."""
        self._check(input)
        momentum: Any = self.momentum
        if self.training and self.track_running_stats:
            count = self.num_batches_tracked + 1
            self.num_batches_tracked._renew(count)
            if momentum is None:  # the plain average of all batches
                momentum = 1.0 / count.to(self.running_mean.dtype)
        learning = self.training or not self.track_running_stats
        tracked = self.track_running_stats
        mean, var = (self.running_mean, self.running_var) if tracked else (None, None)
        return F.batch_norm(input, mean, var, self.weight, self.bias, learning, momentum, self.eps)


class BatchNorm1d(_BatchNorm):
    """Each channel of [N, C] or [N, C, L] to mean 0 and variance 1 over the batch.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.BatchNorm1d(3)(pf.randn([4, 3])).shape
        [4, 3]
    """

    ranks = (2, 3)


class BatchNorm2d(_BatchNorm):
    """Each channel of [N, C, H, W] to mean 0 and variance 1 over the batch.

    Example:
        >>> import pyflame as pf
        >>> bn = pf.nn.BatchNorm2d(3).eval()
        >>> bn(pf.ones([1, 3, 2, 2])).numpy().round(3).max().item()
        1.0
    """

    ranks = (4,)


class BatchNorm3d(_BatchNorm):
    """Each channel of [N, C, D, H, W] to mean 0 and variance 1 over the batch.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.BatchNorm3d(2)(pf.randn([2, 2, 2, 2, 2])).shape
        [2, 2, 2, 2, 2]
    """

    ranks = (5,)


@placed
class _InstanceNorm(_Tracked):
    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = False,
        track_running_stats: bool = False,
        *,
        dtype: DType | None = None,
        bias: bool = True,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, dtype=dtype, bias=bias)

    def forward(self, input: Any) -> Tensor:
        """The normalised input."""
        single = len(input.shape) == self.ranks[0]
        self._check(input, 0 if single else 1)
        x = input.unsqueeze(0) if single else input
        own = self.training or not self.track_running_stats
        tracked = self.track_running_stats
        mean, var = (self.running_mean, self.running_var) if tracked else (None, None)
        y = F.instance_norm(x, mean, var, self.weight, self.bias, own, self.momentum or 0.0, self.eps)
        return y.squeeze(0) if single else y


class InstanceNorm1d(_InstanceNorm):
    """Each channel of each sample of [N, C, L] to mean 0 and variance 1.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.InstanceNorm1d(3)(pf.randn([2, 3, 5])).shape
        [2, 3, 5]
    """

    ranks = (2, 3)


class InstanceNorm2d(_InstanceNorm):
    """Each channel of each sample of [N, C, H, W] to mean 0 and variance 1.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.InstanceNorm2d(3)(pf.randn([2, 3, 4, 4])).shape
        [2, 3, 4, 4]
    """

    ranks = (3, 4)


class InstanceNorm3d(_InstanceNorm):
    """Each channel of each sample of [N, C, D, H, W] to mean 0 and variance 1.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.InstanceNorm3d(3)(pf.randn([2, 3, 2, 2, 2])).shape
        [2, 3, 2, 2, 2]
    """

    ranks = (4, 5)


@placed
class LayerNorm(Module):
    """The last dimensions to mean 0 and variance 1, then scaled and shifted.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.LayerNorm(4)(pf.randn([2, 4])).shape
        [2, 4]
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        *,
        dtype: DType | None = None,
    ) -> None:
        super().__init__()
        shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
        self.normalized_shape, self.eps, self.elementwise_affine = shape, eps, elementwise_affine
        self.register_parameter("weight", empty_parameter(shape, dtype) if elementwise_affine else None)
        self.register_parameter("bias", empty_parameter(shape, dtype) if elementwise_affine and bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Scale one, shift zero."""
        if self.weight is not None:
            init.ones_(self.weight)
        if self.bias is not None:
            init.zeros_(self.bias)

    def forward(self, input: Any) -> Tensor:
        """The normalised input."""
        return F.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        """The settings."""
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"


@placed
class RMSNorm(Module):
    """The last dimensions over the root of their mean square, then scaled.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.RMSNorm(4)(pf.randn([2, 4])).shape
        [2, 4]
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None = None,
        elementwise_affine: bool = True,
        *,
        dtype: DType | None = None,
    ) -> None:
        super().__init__()
        shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
        self.normalized_shape, self.eps, self.elementwise_affine = shape, eps, elementwise_affine
        self.register_parameter("weight", empty_parameter(shape, dtype) if elementwise_affine else None)
        if self.weight is not None:
            init.ones_(self.weight)

    def forward(self, input: Any) -> Tensor:
        """The normalised input."""
        return F.rms_norm(input, self.normalized_shape, self.weight, self.eps)

    def extra_repr(self) -> str:
        """The settings."""
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"


@placed
class GroupNorm(Module):
    """Each group of channels of [N, C, ...] to mean 0 and variance 1, then each channel scaled and shifted.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.GroupNorm(2, 4)(pf.randn([1, 4, 3])).shape
        [1, 4, 3]
    """

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        *,
        dtype: DType | None = None,
        bias: bool = True,
    ) -> None:
        super().__init__()
        if num_groups <= 0 or num_channels % num_groups:
            raise ValueError(f"num_groups must divide {num_channels} channels. Received: {num_groups}")
        self.num_groups, self.num_channels, self.eps, self.affine = num_groups, num_channels, eps, affine
        self.register_parameter("weight", empty_parameter([num_channels], dtype) if affine else None)
        self.register_parameter("bias", empty_parameter([num_channels], dtype) if affine and bias else None)
        if affine:
            init.ones_(self.weight)

    def forward(self, input: Any) -> Tensor:
        """The normalised input."""
        return F.group_norm(input, self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        """The settings."""
        return f"{self.num_groups}, {self.num_channels}, eps={self.eps}, affine={self.affine}"


class LocalResponseNorm(Module):
    """Each value over a power of the squares in its neighbouring channels.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.LocalResponseNorm(2)(pf.ones([1, 4, 2])).shape
        [1, 4, 2]
    """

    def __init__(self, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> None:
        super().__init__()
        self.size, self.alpha, self.beta, self.k = size, alpha, beta, k

    def forward(self, input: Any) -> Tensor:
        """The normalised input."""
        return F.local_response_norm(input, self.size, self.alpha, self.beta, self.k)

    def extra_repr(self) -> str:
        """The settings."""
        return f"{self.size}, alpha={self.alpha}, beta={self.beta}, k={self.k}"
