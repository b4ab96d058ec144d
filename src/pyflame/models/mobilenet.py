"""MobileNet-v2, with torchvision's names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyflame import nn
from pyflame.nn import functional as F

if TYPE_CHECKING:
    from pyflame.tensors import Tensor

__all__ = ["MobileNetV2", "mobilenet_v2"]

# expansion, channels, repeats, stride
STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


def _conv(cin: int, cout: int, size: int = 3, stride: int = 1, groups: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(cin, cout, size, stride=stride, padding=size // 2, groups=groups, bias=False),
        nn.BatchNorm2d(cout),
        nn.ReLU6(),
    )


class InvertedResidual(nn.Module):
    """Widen, filter each channel alone, narrow."""

    def __init__(self, cin: int, cout: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = cin * expansion
        self.straight = stride == 1 and cin == cout
        widen = [_conv(cin, wide, 1)] if expansion != 1 else []
        narrow = [nn.Conv2d(wide, cout, 1, bias=False), nn.BatchNorm2d(cout)]
        self.conv = nn.Sequential(*widen, _conv(wide, wide, 3, stride, wide), *narrow)

    def forward(self, x: Any) -> Tensor:
        """The block's output."""
        return x + self.conv(x) if self.straight else self.conv(x)


class MobileNetV2(nn.Module):
    """A small network for images [N, 3, H, W].

    Example:
        >>> import pyflame as pf
        >>> model = pf.models.MobileNetV2(num_classes=10).eval()
        >>> model(pf.ones([1, 3, 64, 64])).shape
        [1, 10]
    """

    def __init__(self, num_classes: int = 1000, width_mult: float = 1.0, dropout: float = 0.2) -> None:
        super().__init__()
        channels = _rounded(32 * width_mult)
        layers: list[nn.Module] = [_conv(3, channels, 3, 2)]
        for expansion, planes, repeats, stride in STAGES:
            out = _rounded(planes * width_mult)
            for number in range(repeats):
                layers.append(InvertedResidual(channels, out, stride if not number else 1, expansion))
                channels = out
        last = _rounded(1280 * max(1.0, width_mult))
        self.features = nn.Sequential(*layers, _conv(channels, last, 1))
        self.classifier = nn.Sequential(nn.Dropout(dropout), nn.Linear(last, num_classes))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out")
            elif isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, 0, 0.01)
                nn.init.zeros_(module.bias)

    def forward(self, x: Any) -> Tensor:
        """The scores of the classes."""
        return self.classifier(F.adaptive_avg_pool2d(self.features(x), 1).flatten(1))


def _rounded(channels: float) -> int:
    """The nearest multiple of 8 that loses no more than a tenth."""
    near = max(8, int(channels + 4) // 8 * 8)
    return near + 8 if near < 0.9 * channels else near


def mobilenet_v2(**settings: Any) -> MobileNetV2:
    """MobileNet-v2.

    Example:
        >>> from pyflame.models import mobilenet_v2
        >>> sum(p.numel for p in mobilenet_v2().parameters())
        3504872
    """
    return MobileNetV2(**settings)
