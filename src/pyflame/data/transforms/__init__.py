"""Changes to one sample: arrays are images as files give them (H, W or H, W, C), tensors are [..., H, W]."""

from pyflame.data.transforms.color import ColorJitter
from pyflame.data.transforms.compose import Compose, Lambda, RandomApply, RandomChoice, RandomOrder
from pyflame.data.transforms.geometry import (
    CenterCrop,
    RandomCrop,
    RandomHorizontalFlip,
    RandomRotation,
    RandomVerticalFlip,
    Resize,
)
from pyflame.data.transforms.values import Normalize, ToTensor

__all__ = [
    "CenterCrop",
    "ColorJitter",
    "Compose",
    "Lambda",
    "Normalize",
    "RandomApply",
    "RandomChoice",
    "RandomCrop",
    "RandomHorizontalFlip",
    "RandomOrder",
    "RandomRotation",
    "RandomVerticalFlip",
    "Resize",
    "ToTensor",
]
