"""U-Net: down, up, and straight across."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyflame import nn
from pyflame.ops.shaping import cat

if TYPE_CHECKING:
    from pyflame.tensors import Tensor

__all__ = ["UNet"]


def _double(cin: int, cout: int) -> nn.Sequential:
    parts: list[nn.Module] = []
    for source in (cin, cout):
        parts += [nn.Conv2d(source, cout, 3, padding=1, bias=False), nn.BatchNorm2d(cout), nn.ReLU()]
    return nn.Sequential(*parts)


class UNet(nn.Module):
    """Scores for every pixel of an image [N, C, H, W] whose sizes are multiples of 2**depth.

    Example:
        >>> import pyflame as pf
        >>> pf.models.UNet(3, 2, width=8, depth=2)(pf.ones([1, 3, 16, 16])).shape
        [1, 2, 16, 16]
    """

    def __init__(self, in_channels: int = 3, num_classes: int = 2, width: int = 64, depth: int = 4) -> None:
        super().__init__()
        self.depth = depth
        widths = [width * 2**level for level in range(depth + 1)]
        sources = [in_channels, *widths[:-1]]
        self.down = nn.ModuleList([_double(a, b) for a, b in zip(sources, widths, strict=True)])
        self.pool = nn.MaxPool2d(2)
        pairs = list(zip(widths[::-1], widths[-2::-1], strict=False))
        self.up = nn.ModuleList([nn.ConvTranspose2d(a, b, 2, stride=2) for a, b in pairs])
        self.join = nn.ModuleList([_double(a, b) for a, b in pairs])
        self.head = nn.Conv2d(width, num_classes, 1)

    def forward(self, x: Any) -> Tensor:
        """The scores of the pixels."""
        if any(size % 2**self.depth for size in x.shape[2:]):
            raise ValueError(f"Sizes must be multiples of {2**self.depth}. Received: {list(x.shape)}")
        kept = []
        for level, block in enumerate(self.down):
            x = block(x if level == 0 else self.pool(x))
            kept.append(x)
        for up, join, across in zip(self.up, self.join, kept[-2::-1], strict=True):
            x = join(cat([across, up(x)], dim=1))
        return self.head(x)
