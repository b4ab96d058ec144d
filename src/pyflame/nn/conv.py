"""Convolution layers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from pyflame.nn import functional as F
from pyflame.nn import init
from pyflame.nn.functional.windows import sizes
from pyflame.nn.making import empty_parameter
from pyflame.nn.module import Module
from pyflame.nn.placing import placed
from pyflame.ops.shaping import pad

if TYPE_CHECKING:
    from pyflame.dtypes import DType
    from pyflame.layout import MeshLayout
    from pyflame.tensors import Tensor

__all__ = ["Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d"]

Sizes: TypeAlias = int | Sequence[int]
PADDING_MODES = ("zeros", "reflect", "replicate", "circular")


class _ConvBase(Module):
    """What all convolutions share: sizes, weights and their first values."""

    rank: ClassVar[int]
    transposed: ClassVar[bool] = False

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Sizes,
        stride: Sizes,
        padding: Sizes | str,
        dilation: Sizes,
        groups: int,
        bias: bool,
        layout: MeshLayout | None,
        dtype: DType | None,
    ) -> None:
        super().__init__()
        if groups <= 0 or in_channels % groups or out_channels % groups:
            raise ValueError(f"groups must divide {in_channels} in and {out_channels} out channels. Received: {groups}")
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        self.kernel_size = sizes(kernel_size, self.rank, "kernel_size")
        self.stride, self.dilation = sizes(stride, self.rank, "stride"), sizes(dilation, self.rank, "dilation")
        self.padding = padding if isinstance(padding, str) else sizes(padding, self.rank, "padding")
        if isinstance(padding, str) and padding not in ("valid", "same"):
            raise ValueError(f"padding must be numbers, 'valid' or 'same'. Received: {padding!r}")
        if padding == "same" and any(s != 1 for s in self.stride):
            raise ValueError("padding='same' is not supported for strided convolutions")
        first, second = (in_channels, out_channels) if self.transposed else (out_channels, in_channels)
        self.weight = empty_parameter([first, second // groups, *self.kernel_size], dtype, layout)
        self.register_parameter("bias", empty_parameter([out_channels], dtype, None) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new weights."""
        init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            fan_in = int(self.weight.shape[1]) * math.prod(self.kernel_size)
            bound = 1 / math.sqrt(fan_in) if fan_in else 0.0
            init.uniform_(self.bias, -bound, bound)

    def extra_repr(self) -> str:
        """The settings that differ from the defaults."""
        parts = [f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"]
        if isinstance(self.padding, str) or any(self.padding):
            parts.append(f"padding={self.padding}")
        if any(d != 1 for d in self.dilation):
            parts.append(f"dilation={self.dilation}")
        if any(getattr(self, "output_padding", ())):
            parts.append(f"output_padding={self.output_padding}")
        if self.groups != 1:
            parts.append(f"groups={self.groups}")
        if self.bias is None:
            parts.append("bias=False")
        if getattr(self, "padding_mode", "zeros") != "zeros":
            parts.append(f"padding_mode={self.padding_mode}")
        return ", ".join(parts)


@placed
class _Conv(_ConvBase):
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Sizes,
        stride: Sizes = 1,
        padding: Sizes | str = 0,
        dilation: Sizes = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        *,
        layout: MeshLayout | None = None,
        dtype: DType | None = None,
    ) -> None:
        if padding_mode not in PADDING_MODES:
            raise ValueError(f"padding_mode must be one of {PADDING_MODES}. Received: {padding_mode!r}")
        self.padding_mode = padding_mode
        super().__init__(in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, layout, dtype)

    def forward(self, input: Any) -> Tensor:
        """The convolution."""
        padding = self.padding
        if self.padding_mode != "zeros":
            input, padding = pad(input, self._pads(), mode=self.padding_mode), 0
        convolve = (F.conv1d, F.conv2d, F.conv3d)[self.rank - 1]
        return convolve(input, self.weight, self.bias, self.stride, padding, self.dilation, self.groups)

    def _pads(self) -> list[int]:
        """Before and after each dimension, the last first."""
        if self.padding == "valid":
            return [0] * (2 * self.rank)
        if self.padding == "same":
            total = [d * (k - 1) for k, d in zip(self.kernel_size, self.dilation, strict=True)]
            return [part for t in reversed(total) for part in (t // 2, t - t // 2)]
        return [int(p) for p in reversed(self.padding) for _ in range(2)]


class Conv1d(_Conv):
    """Convolution over [N, C, L]; `padding` may be "same" or "valid".

    Example:
        >>> import pyflame as pf
        >>> pf.nn.Conv1d(3, 8, 3, padding=1)(pf.ones([2, 3, 10])).shape
        [2, 8, 10]
    """

    rank = 1


class Conv2d(_Conv):
    """Convolution over [N, C, H, W]; `padding` may be "same" or "valid".

    Example:
        >>> import pyflame as pf
        >>> pf.nn.Conv2d(3, 8, 3, stride=2, padding=1)(pf.ones([2, 3, 8, 8])).shape
        [2, 8, 4, 4]
    """

    rank = 2


class Conv3d(_Conv):
    """Convolution over [N, C, D, H, W]; `padding` may be "same" or "valid".

    Example:
        >>> import pyflame as pf
        >>> pf.nn.Conv3d(1, 2, 2)(pf.ones([1, 1, 3, 3, 3])).shape
        [1, 2, 2, 2, 2]
    """

    rank = 3


@placed
class _ConvTranspose(_ConvBase):
    transposed = True

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Sizes,
        stride: Sizes = 1,
        padding: Sizes = 0,
        output_padding: Sizes = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Sizes = 1,
        *,
        layout: MeshLayout | None = None,
        dtype: DType | None = None,
    ) -> None:
        self.output_padding = sizes(output_padding, self.rank, "output_padding")
        super().__init__(in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, layout, dtype)

    def forward(self, input: Any, output_size: Sequence[int] | None = None) -> Tensor:
        """The transposed convolution, of the given size where several are possible."""
        convolve = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[self.rank - 1]
        extra = self.output_padding if output_size is None else self._extra(input, output_size)
        padding = self.padding
        assert not isinstance(padding, str)
        return convolve(input, self.weight, self.bias, self.stride, padding, extra, self.groups, self.dilation)

    def _extra(self, input: Any, output_size: Sequence[int]) -> tuple[int, ...]:
        wanted = tuple(output_size)[-self.rank :]
        extra = []
        for axis, want in enumerate(wanted):
            size, stride = int(input.shape[axis - self.rank]), self.stride[axis]
            least = (
                (size - 1) * stride
                - 2 * int(self.padding[axis])
                + self.dilation[axis] * (self.kernel_size[axis] - 1)
                + 1
            )
            if not least <= want < least + stride:
                raise ValueError(f"output_size {want} must be from {least} to {least + stride - 1}")
            extra.append(want - least)
        return tuple(extra)


class ConvTranspose1d(_ConvTranspose):
    """The gradient of Conv1d by its input, as a layer.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.ConvTranspose1d(2, 3, 2, stride=2)(pf.ones([1, 2, 4])).shape
        [1, 3, 8]
    """

    rank = 1


class ConvTranspose2d(_ConvTranspose):
    """The gradient of Conv2d by its input, as a layer.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.ConvTranspose2d(2, 3, 2, stride=2)(pf.ones([1, 2, 4, 4])).shape
        [1, 3, 8, 8]
    """

    rank = 2


class ConvTranspose3d(_ConvTranspose):
    """The gradient of Conv3d by its input, as a layer.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.ConvTranspose3d(1, 1, 2)(pf.ones([1, 1, 1, 1, 1])).shape
        [1, 1, 2, 2, 2]
    """

    rank = 3
