"""Layers that change an image's size or frame: padding, upsampling, shuffling, patches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pyflame.nn import functional as F
from pyflame.nn.module import Module
from pyflame_rt.graph.errors import ShapeMismatchError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyflame.tensors import Tensor

__all__ = [
    "ChannelShuffle",
    "CircularPad1d",
    "CircularPad2d",
    "CircularPad3d",
    "ConstantPad1d",
    "ConstantPad2d",
    "ConstantPad3d",
    "Fold",
    "PixelShuffle",
    "PixelUnshuffle",
    "ReflectionPad1d",
    "ReflectionPad2d",
    "ReflectionPad3d",
    "ReplicationPad1d",
    "ReplicationPad2d",
    "ReplicationPad3d",
    "Unfold",
    "Upsample",
    "UpsamplingBilinear2d",
    "UpsamplingNearest2d",
    "ZeroPad1d",
    "ZeroPad2d",
    "ZeroPad3d",
]


class Upsample(Module):
    """Another size, by nearest values or by interpolation.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.Upsample(scale_factor=2, mode="bilinear")(pf.ones([1, 3, 4, 5])).shape
        [1, 3, 8, 10]
    """

    def __init__(
        self,
        size: int | Sequence[int] | None = None,
        scale_factor: float | Sequence[float] | None = None,
        mode: str = "nearest",
        align_corners: bool | None = None,
        recompute_scale_factor: bool | None = None,
    ) -> None:
        super().__init__()
        self.size, self.scale_factor, self.mode = size, scale_factor, mode
        self.align_corners, self.recompute_scale_factor = align_corners, recompute_scale_factor

    def forward(self, input: Any) -> Tensor:
        """The input in its new size."""
        return F.interpolate(
            input, self.size, self.scale_factor, self.mode, self.align_corners, self.recompute_scale_factor
        )

    def extra_repr(self) -> str:
        """The size or the factor, and how."""
        to = f"scale_factor={self.scale_factor}" if self.scale_factor is not None else f"size={self.size}"
        return f"{to}, mode={self.mode!r}"


class UpsamplingNearest2d(Upsample):
    """Another size of images, by nearest values.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.UpsamplingNearest2d(size=6)(pf.ones([1, 1, 3, 3])).shape
        [1, 1, 6, 6]
    """

    def __init__(self, size: Any = None, scale_factor: Any = None) -> None:
        super().__init__(size, scale_factor, "nearest")


class UpsamplingBilinear2d(Upsample):
    """Another size of images, by interpolation between corners that stay where they are.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.UpsamplingBilinear2d(size=6)(pf.ones([1, 1, 3, 3])).shape
        [1, 1, 6, 6]
    """

    def __init__(self, size: Any = None, scale_factor: Any = None) -> None:
        super().__init__(size, scale_factor, "bilinear", align_corners=True)


class PixelShuffle(Module):
    """Channels become pixels: [N, C * r * r, H, W] to [N, C, H * r, W * r].

    Example:
        >>> import pyflame as pf
        >>> pf.nn.PixelShuffle(2)(pf.ones([1, 8, 3, 4])).shape
        [1, 2, 6, 8]
    """

    def __init__(self, upscale_factor: int) -> None:
        super().__init__()
        self.upscale_factor = upscale_factor

    def forward(self, input: Any) -> Tensor:
        """The larger image."""
        return F.pixel_shuffle(input, self.upscale_factor)

    def extra_repr(self) -> str:
        """The factor."""
        return f"upscale_factor={self.upscale_factor}"


class PixelUnshuffle(Module):
    """Pixels become channels: what `PixelShuffle` does, undone.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.PixelUnshuffle(2)(pf.ones([1, 2, 6, 8])).shape
        [1, 8, 3, 4]
    """

    def __init__(self, downscale_factor: int) -> None:
        super().__init__()
        self.downscale_factor = downscale_factor

    def forward(self, input: Any) -> Tensor:
        """The smaller image."""
        return F.pixel_unshuffle(input, self.downscale_factor)

    def extra_repr(self) -> str:
        """The factor."""
        return f"downscale_factor={self.downscale_factor}"


class ChannelShuffle(Module):
    """The channels of all groups in turn.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.ChannelShuffle(2)(pf.arange(4.0).reshape([1, 4, 1])).flatten().tolist()
        [0.0, 2.0, 1.0, 3.0]
    """

    def __init__(self, groups: int) -> None:
        super().__init__()
        if groups <= 0:
            raise ValueError(f"groups must be positive. Received: {groups}")
        self.groups = groups

    def forward(self, input: Any) -> Tensor:
        """The same channels in another order."""
        batch, channels, *sizes = input.shape
        if channels % self.groups:
            raise ShapeMismatchError(f"{channels} channels cannot be shuffled between {self.groups} groups")
        parts = input.reshape([batch, self.groups, channels // self.groups, *sizes])
        return parts.transpose(1, 2).reshape([batch, channels, *sizes])

    def extra_repr(self) -> str:
        """The groups."""
        return f"groups={self.groups}"


class Unfold(Module):
    """The patches that a convolution would see, as columns.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.Unfold(2)(pf.ones([1, 3, 4, 4])).shape
        [1, 12, 9]
    """

    def __init__(self, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1) -> None:
        super().__init__()
        self.kernel_size, self.dilation, self.padding, self.stride = kernel_size, dilation, padding, stride

    def forward(self, input: Any) -> Tensor:
        """[N, C * kernel, patches]."""
        return F.unfold(input, self.kernel_size, self.dilation, self.padding, self.stride)

    def extra_repr(self) -> str:
        """The settings."""
        names = ("kernel_size", "dilation", "padding", "stride")
        return ", ".join(f"{name}={getattr(self, name)}" for name in names)


class Fold(Module):
    """Patches as columns, summed up into images: what `Unfold` took apart.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.Fold((4, 4), 2)(pf.ones([1, 12, 9])).shape
        [1, 3, 4, 4]
    """

    def __init__(
        self, output_size: Any, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1
    ) -> None:
        super().__init__()
        self.output_size, self.kernel_size = output_size, kernel_size
        self.dilation, self.padding, self.stride = dilation, padding, stride

    def forward(self, input: Any) -> Tensor:
        """[N, C, *output_size]."""
        return F.fold(input, self.output_size, self.kernel_size, self.dilation, self.padding, self.stride)

    def extra_repr(self) -> str:
        """The settings."""
        names = ("output_size", "kernel_size", "dilation", "padding", "stride")
        return ", ".join(f"{name}={getattr(self, name)}" for name in names)


class _Padding(Module):
    """Elements around the last dimensions; one number is for every side, pairs begin with the last dimension."""

    mode: ClassVar[str] = "constant"
    dims: ClassVar[int]

    def __init__(self, padding: int | Sequence[int]) -> None:
        super().__init__()
        sides = 2 * self.dims
        self.padding = (padding,) * sides if isinstance(padding, int) else tuple(int(p) for p in padding)
        if len(self.padding) != sides:
            raise ValueError(f"{type(self).__name__} takes one number or {sides}. Received: {padding}")

    def forward(self, input: Any) -> Tensor:
        """The input with its frame."""
        return F.pad(input, self.padding, mode=self.mode)

    def extra_repr(self) -> str:
        """The widths."""
        return f"{self.padding}"


class _ConstantPadding(_Padding):
    def __init__(self, padding: int | Sequence[int], value: float) -> None:
        super().__init__(padding)
        self.value = value

    def forward(self, input: Any) -> Tensor:
        """The input in a frame of one value."""
        return F.pad(input, self.padding, mode="constant", value=self.value)

    def extra_repr(self) -> str:
        """The widths and the value."""
        return f"padding={self.padding}, value={self.value}"


class ConstantPad1d(_ConstantPadding):
    """A frame of one value around sequences.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.ConstantPad1d(1, 0.5)(pf.ones([1, 1, 4])).shape
        [1, 1, 6]
    """

    dims = 1


class ConstantPad2d(_ConstantPadding):
    """A frame of one value around images.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.ConstantPad2d(1, 0.5)(pf.ones([1, 1, 4, 4])).shape
        [1, 1, 6, 6]
    """

    dims = 2


class ConstantPad3d(_ConstantPadding):
    """A frame of one value around volumes.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.ConstantPad3d(1, 0.5)(pf.ones([1, 1, 4, 4, 4])).shape
        [1, 1, 6, 6, 6]
    """

    dims = 3


class ZeroPad1d(_Padding):
    """A frame of zeros around sequences.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.ZeroPad1d(1)(pf.ones([1, 1, 4])).shape
        [1, 1, 6]
    """

    dims = 1


class ZeroPad2d(_Padding):
    """A frame of zeros around images.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.ZeroPad2d(1)(pf.ones([1, 1, 4, 4])).shape
        [1, 1, 6, 6]
    """

    dims = 2


class ZeroPad3d(_Padding):
    """A frame of zeros around volumes.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.ZeroPad3d(1)(pf.ones([1, 1, 4, 4, 4])).shape
        [1, 1, 6, 6, 6]
    """

    dims = 3


class ReflectionPad1d(_Padding):
    """A frame of the input's mirror image around sequences.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.ReflectionPad1d(1)(pf.ones([1, 1, 4])).shape
        [1, 1, 6]
    """

    dims = 1
    mode = "reflect"


class ReflectionPad2d(_Padding):
    """A frame of the input's mirror image around images.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.ReflectionPad2d(1)(pf.ones([1, 1, 4, 4])).shape
        [1, 1, 6, 6]
    """

    dims = 2
    mode = "reflect"


class ReflectionPad3d(_Padding):
    """A frame of the input's mirror image around volumes.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.ReflectionPad3d(1)(pf.ones([1, 1, 4, 4, 4])).shape
        [1, 1, 6, 6, 6]
    """

    dims = 3
    mode = "reflect"


class ReplicationPad1d(_Padding):
    """A frame of copies of the border around sequences.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.ReplicationPad1d(1)(pf.ones([1, 1, 4])).shape
        [1, 1, 6]
    """

    dims = 1
    mode = "replicate"


class ReplicationPad2d(_Padding):
    """A frame of copies of the border around images.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.ReplicationPad2d(1)(pf.ones([1, 1, 4, 4])).shape
        [1, 1, 6, 6]
    """

    dims = 2
    mode = "replicate"


class ReplicationPad3d(_Padding):
    """A frame of copies of the border around volumes.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.ReplicationPad3d(1)(pf.ones([1, 1, 4, 4, 4])).shape
        [1, 1, 6, 6, 6]
    """

    dims = 3
    mode = "replicate"


class CircularPad1d(_Padding):
    """A frame of the input's other end around sequences.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.CircularPad1d(1)(pf.ones([1, 1, 4])).shape
        [1, 1, 6]
    """

    dims = 1
    mode = "circular"


class CircularPad2d(_Padding):
    """A frame of the input's other end around images.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.CircularPad2d(1)(pf.ones([1, 1, 4, 4])).shape
        [1, 1, 6, 6]
    """

    dims = 2
    mode = "circular"


class CircularPad3d(_Padding):
    """A frame of the input's other end around volumes.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.CircularPad3d(1)(pf.ones([1, 1, 4, 4, 4])).shape
        [1, 1, 6, 6, 6]
    """

    dims = 3
    mode = "circular"
