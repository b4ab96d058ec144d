"""Pooling as layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyflame.nn import functional as F
from pyflame.nn.functional.fractional import check_output, ratios
from pyflame.nn.functional.windows import sizes
from pyflame.nn.module import Module
from pyflame.nn.simple import FunctionLayer

if TYPE_CHECKING:
    from pyflame.tensors import Tensor

__all__ = [
    "AdaptiveAvgPool1d",
    "AdaptiveAvgPool2d",
    "AdaptiveAvgPool3d",
    "AdaptiveMaxPool1d",
    "AdaptiveMaxPool2d",
    "AdaptiveMaxPool3d",
    "AvgPool1d",
    "AvgPool2d",
    "AvgPool3d",
    "FractionalMaxPool2d",
    "FractionalMaxPool3d",
    "GlobalAvgPool2d",
    "LPPool1d",
    "LPPool2d",
    "LPPool3d",
    "MaxPool1d",
    "MaxPool2d",
    "MaxPool3d",
    "MaxUnpool1d",
    "MaxUnpool2d",
    "MaxUnpool3d",
]


class MaxPool1d(FunctionLayer):
    """The largest values of windows of an input with 1 spatial dimension.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.MaxPool1d(2)(pf.ones([1, 1, 4])).shape
        [1, 1, 2]
    """

    function = F.max_pool1d


class MaxPool2d(FunctionLayer):
    """The largest values of windows of an input with 2 spatial dimensions.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.MaxPool2d(2)(pf.ones([1, 1, 4, 4])).shape
        [1, 1, 2, 2]
    """

    function = F.max_pool2d


class MaxPool3d(FunctionLayer):
    """The largest values of windows of an input with 3 spatial dimensions.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.MaxPool3d(2)(pf.ones([1, 1, 4, 4, 4])).shape
        [1, 1, 2, 2, 2]
    """

    function = F.max_pool3d


class AvgPool1d(FunctionLayer):
    """The means of windows of an input with 1 spatial dimension.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.AvgPool1d(2)(pf.ones([1, 1, 4])).shape
        [1, 1, 2]
    """

    function = F.avg_pool1d


class AvgPool2d(FunctionLayer):
    """The means of windows of an input with 2 spatial dimensions.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.AvgPool2d(2)(pf.ones([1, 1, 4, 4])).shape
        [1, 1, 2, 2]
    """

    function = F.avg_pool2d


class AvgPool3d(FunctionLayer):
    """The means of windows of an input with 3 spatial dimensions.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.AvgPool3d(2)(pf.ones([1, 1, 4, 4, 4])).shape
        [1, 1, 2, 2, 2]
    """

    function = F.avg_pool3d


class LPPool1d(FunctionLayer):
    """The p-norms of windows of an input with 1 spatial dimension.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.LPPool1d(2, 2)(pf.ones([1, 1, 4])).shape
        [1, 1, 2]
    """

    function = F.lp_pool1d


class LPPool2d(FunctionLayer):
    """The p-norms of windows of an input with 2 spatial dimensions.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.LPPool2d(2, 2)(pf.ones([1, 1, 4, 4])).shape
        [1, 1, 2, 2]
    """

    function = F.lp_pool2d


class LPPool3d(FunctionLayer):
    """The p-norms of windows of an input with 3 spatial dimensions.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.LPPool3d(2, 2)(pf.ones([1, 1, 4, 4, 4])).shape
        [1, 1, 2, 2, 2]
    """

    function = F.lp_pool3d


class AdaptiveAvgPool1d(FunctionLayer):
    """Means of windows chosen so that the result has `output_size`, over 1 dimension.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.AdaptiveAvgPool1d(1)(pf.ones([1, 1, 4])).shape
        [1, 1, 1]
    """

    function = F.adaptive_avg_pool1d


class AdaptiveAvgPool2d(FunctionLayer):
    """Means of windows chosen so that the result has `output_size`, over 2 dimensions.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.AdaptiveAvgPool2d(1)(pf.ones([1, 1, 4, 4])).shape
        [1, 1, 1, 1]
    """

    function = F.adaptive_avg_pool2d


class AdaptiveAvgPool3d(FunctionLayer):
    """Means of windows chosen so that the result has `output_size`, over 3 dimensions.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.AdaptiveAvgPool3d(1)(pf.ones([1, 1, 4, 4, 4])).shape
        [1, 1, 1, 1, 1]
    """

    function = F.adaptive_avg_pool3d


class AdaptiveMaxPool1d(FunctionLayer):
    """Largest values of windows chosen so that the result has `output_size`, over 1 dimension.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.AdaptiveMaxPool1d(1)(pf.ones([1, 1, 4])).shape
        [1, 1, 1]
    """

    function = F.adaptive_max_pool1d


class AdaptiveMaxPool2d(FunctionLayer):
    """Largest values of windows chosen so that the result has `output_size`, over 2 dimensions.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.AdaptiveMaxPool2d(1)(pf.ones([1, 1, 4, 4])).shape
        [1, 1, 1, 1]
    """

    function = F.adaptive_max_pool2d


class AdaptiveMaxPool3d(FunctionLayer):
    """Largest values of windows chosen so that the result has `output_size`, over 3 dimensions.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.AdaptiveMaxPool3d(1)(pf.ones([1, 1, 4, 4, 4])).shape
        [1, 1, 1, 1, 1]
    """

    function = F.adaptive_max_pool3d


class GlobalAvgPool2d(Module):
    """The mean of each channel of [N, C, H, W], as [N, C, 1, 1].

    Example:
        >>> import pyflame as pf
        >>> pf.nn.GlobalAvgPool2d()(pf.ones([1, 3, 4, 4])).shape
        [1, 3, 1, 1]
    """

    def forward(self, input: Any) -> Tensor:
        """The means."""
        return F.adaptive_avg_pool2d(input, 1)


class _MaxUnpool(Module):
    function: Any

    def __init__(self, kernel_size: Any, stride: Any = None, padding: Any = 0) -> None:
        super().__init__()
        self.kernel_size, self.stride, self.padding = kernel_size, stride, padding

    def forward(self, input: Any, indices: Any, output_size: Any = None) -> Tensor:
        """The values at their places, zeros elsewhere."""
        return type(self).function(input, indices, self.kernel_size, self.stride, self.padding, output_size)

    def extra_repr(self) -> str:
        """The settings."""
        return f"kernel_size={self.kernel_size!r}, stride={self.stride!r}, padding={self.padding!r}"


class MaxUnpool1d(_MaxUnpool):
    """The largest values of windows put back where `MaxPool1d` found them, with 1 spatial dimension.

    Example:
        >>> import pyflame as pf
        >>> y, places = pf.nn.MaxPool1d(2, return_indices=True)(pf.ones([1, 1, 4]))
        >>> pf.nn.MaxUnpool1d(2)(y, places).shape
        [1, 1, 4]
    """

    function = staticmethod(F.max_unpool1d)


class MaxUnpool2d(_MaxUnpool):
    """The largest values of windows put back where `MaxPool2d` found them, with 2 spatial dimensions.

    Example:
        >>> import pyflame as pf
        >>> y, places = pf.nn.MaxPool2d(2, return_indices=True)(pf.ones([1, 1, 4, 4]))
        >>> pf.nn.MaxUnpool2d(2)(y, places).shape
        [1, 1, 4, 4]
    """

    function = staticmethod(F.max_unpool2d)


class MaxUnpool3d(_MaxUnpool):
    """The largest values of windows put back where `MaxPool3d` found them, with 3 spatial dimensions.

    Example:
        >>> import pyflame as pf
        >>> y, places = pf.nn.MaxPool3d(2, return_indices=True)(pf.ones([1, 1, 4, 4, 4]))
        >>> pf.nn.MaxUnpool3d(2)(y, places).shape
        [1, 1, 4, 4, 4]
    """

    function = staticmethod(F.max_unpool3d)


class _FractionalMaxPool(Module):
    function: Any
    rank: int

    def __init__(
        self,
        kernel_size: Any,
        output_size: Any = None,
        output_ratio: Any = None,
        return_indices: bool = False,
        _random_samples: Any = None,
    ) -> None:
        super().__init__()
        check_output(type(self).__name__, output_size, output_ratio)
        self.kernel_size, self.return_indices = sizes(kernel_size, self.rank, "kernel_size"), return_indices
        self.register_buffer("_random_samples", _random_samples)
        self.output_size = None if output_size is None else sizes(output_size, self.rank, "output_size")
        self.output_ratio = None if output_ratio is None else ratios(output_ratio, self.rank)

    def forward(self, input: Any) -> Any:
        """The largest value of each window, perhaps with its place."""
        wanted = self.output_size, self.output_ratio, self.return_indices
        return type(self).function(input, self.kernel_size, *wanted, _random_samples=self._random_samples)

    def extra_repr(self) -> str:
        """The settings."""
        size, ratio = self.output_size, self.output_ratio
        return f"kernel_size={self.kernel_size}, output_size={size}, output_ratio={ratio}"


class FractionalMaxPool2d(_FractionalMaxPool):
    """The largest values of windows at places that chance chooses, for an output of any smaller size.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.FractionalMaxPool2d(2, output_ratio=0.7)(pf.ones([1, 1, 10, 10])).shape
        [1, 1, 7, 7]
    """

    function, rank = staticmethod(F.fractional_max_pool2d), 2


class FractionalMaxPool3d(_FractionalMaxPool):
    """The largest values of windows at places that chance chooses, with 3 spatial dimensions.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.FractionalMaxPool3d(2, output_size=3)(pf.ones([1, 1, 5, 5, 5])).shape
        [1, 1, 3, 3, 3]
    """

    function, rank = staticmethod(F.fractional_max_pool3d), 3
