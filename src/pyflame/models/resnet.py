"""Residual networks, with torchvision's names, so that its weights load."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyflame import nn
from pyflame.ops.activation import relu

if TYPE_CHECKING:
    from pyflame.tensors import Tensor

__all__ = [
    "ResNet",
    "ResNetConfig",
    "resnet18",
    "resnet34",
    "resnet50",
    "resnet101",
    "resnet152",
    "resnext50_32x4d",
    "resnext101_32x8d",
    "wide_resnet50_2",
    "wide_resnet101_2",
]


@dataclass(frozen=True)
class ResNetConfig:
    """The shape of a residual network.

    Attributes:
        layers: Blocks in each of the four stages.
        bottleneck: Blocks of 1x1, 3x3, 1x1 convolutions in place of two 3x3 ones.
        num_classes: Outputs.
        in_channels: Channels of the image.
        groups: Groups of the middle convolution (ResNeXt).
        width_per_group: Channels in each of them (wide networks).
        small_images: A 3x3 first layer without pooling, for images of about 32x32.

    Example:
        >>> from pyflame.models import ResNetConfig
        >>> ResNetConfig(layers=(2, 2, 2, 2)).num_classes
        1000
    """

    layers: tuple[int, int, int, int] = (2, 2, 2, 2)
    bottleneck: bool = False
    num_classes: int = 1000
    in_channels: int = 3
    groups: int = 1
    width_per_group: int = 64
    small_images: bool = False


def _conv3(cin: int, cout: int, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    return nn.Conv2d(cin, cout, 3, stride=stride, padding=1, groups=groups, bias=False)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions beside a straight path."""

    expansion = 1

    def __init__(self, cin: int, planes: int, stride: int, shortcut: nn.Module | None, config: ResNetConfig) -> None:
        super().__init__()
        if config.groups != 1 or config.width_per_group != 64:
            raise ValueError("Groups and widths need bottleneck blocks")
        self.conv1 = _conv3(cin, planes, stride)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = _conv3(planes, planes)
        self.bn2 = nn.BatchNorm2d(planes)
        self.downsample = shortcut

    def forward(self, x: Any) -> Tensor:
        """The block's output."""
        straight = x if self.downsample is None else self.downsample(x)
        y = relu(self.bn1(self.conv1(x)))
        return relu(self.bn2(self.conv2(y)) + straight)


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions beside a straight path."""

    expansion = 4

    def __init__(self, cin: int, planes: int, stride: int, shortcut: nn.Module | None, config: ResNetConfig) -> None:
        super().__init__()
        width = planes * config.width_per_group // 64 * config.groups
        self.conv1 = nn.Conv2d(cin, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = _conv3(width, width, stride, config.groups)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, planes * 4, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(planes * 4)
        self.downsample = shortcut

    def forward(self, x: Any) -> Tensor:
        """The block's output."""
        straight = x if self.downsample is None else self.downsample(x)
        y = relu(self.bn1(self.conv1(x)))
        y = relu(self.bn2(self.conv2(y)))
        return relu(self.bn3(self.conv3(y)) + straight)


class ResNet(nn.Module):
    """A residual network for images [N, C, H, W].

    Example:
        >>> import pyflame as pf
        >>> config = pf.models.ResNetConfig(layers=(1, 1, 1, 1), num_classes=10, small_images=True)
        >>> pf.models.ResNet(config)(pf.ones([2, 3, 32, 32])).shape
        [2, 10]
    """

    def __init__(self, config: ResNetConfig | None = None) -> None:
        super().__init__()
        self.config = config = config or ResNetConfig()
        block = Bottleneck if config.bottleneck else BasicBlock
        size, stride = (3, 1) if config.small_images else (7, 2)
        self.conv1 = nn.Conv2d(config.in_channels, 64, size, stride=stride, padding=size // 2, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.maxpool = nn.Identity() if config.small_images else nn.MaxPool2d(3, stride=2, padding=1)
        channels = 64
        for stage, (planes, blocks) in enumerate(zip((64, 128, 256, 512), config.layers, strict=True)):
            layers = []
            for number in range(blocks):
                step = 2 if stage and not number else 1
                layers.append(block(channels, planes, step, self._shortcut(block, channels, planes, step), config))
                channels = planes * block.expansion
            self.register_module(f"layer{stage + 1}", nn.Sequential(*layers))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(channels, config.num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    @staticmethod
    def _shortcut(block: Any, channels: int, planes: int, step: int) -> nn.Module | None:
        out = planes * block.expansion
        if step == 1 and channels == out:
            return None
        return nn.Sequential(nn.Conv2d(channels, out, 1, stride=step, bias=False), nn.BatchNorm2d(out))

    def features(self, x: Any) -> Tensor:
        """What the four stages make of an image."""
        x = self.maxpool(relu(self.bn1(self.conv1(x))))
        return self.layer4(self.layer3(self.layer2(self.layer1(x))))

    def forward(self, x: Any) -> Tensor:
        """The scores of the classes."""
        return self.fc(self.avgpool(self.features(x)).flatten(1))


def _resnet(layers: tuple[int, int, int, int], settings: dict[str, Any], **fixed: Any) -> ResNet:
    return ResNet(ResNetConfig(layers=layers, **{**fixed, **settings}))


def resnet18(**settings: Any) -> ResNet:
    """ResNet-18; settings are those of ResNetConfig.

    Example:
        >>> from pyflame.models import resnet18
        >>> sum(p.numel for p in resnet18().parameters())
        11689512
    """
    return _resnet((2, 2, 2, 2), settings)


def resnet34(**settings: Any) -> ResNet:
    """ResNet-34."""
    return _resnet((3, 4, 6, 3), settings)


def resnet50(**settings: Any) -> ResNet:
    """ResNet-50."""
    return _resnet((3, 4, 6, 3), settings, bottleneck=True)


def resnet101(**settings: Any) -> ResNet:
    """ResNet-101."""
    return _resnet((3, 4, 23, 3), settings, bottleneck=True)


def resnet152(**settings: Any) -> ResNet:
    """ResNet-152."""
    return _resnet((3, 8, 36, 3), settings, bottleneck=True)


def resnext50_32x4d(**settings: Any) -> ResNet:
    """ResNeXt-50, 32 groups of 4 channels."""
    return _resnet((3, 4, 6, 3), settings, bottleneck=True, groups=32, width_per_group=4)


def resnext101_32x8d(**settings: Any) -> ResNet:
    """ResNeXt-101, 32 groups of 8 channels."""
    return _resnet((3, 4, 23, 3), settings, bottleneck=True, groups=32, width_per_group=8)


def wide_resnet50_2(**settings: Any) -> ResNet:
    """ResNet-50 with middle layers twice as wide."""
    return _resnet((3, 4, 6, 3), settings, bottleneck=True, width_per_group=128)


def wide_resnet101_2(**settings: Any) -> ResNet:
    """ResNet-101 with middle layers twice as wide."""
    return _resnet((3, 4, 23, 3), settings, bottleneck=True, width_per_group=128)
