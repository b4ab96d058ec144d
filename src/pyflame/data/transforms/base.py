"""What image transforms share: planes in, planes out, whatever came in."""

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from pyflame.arrays import adopt, as_generator
from pyflame.tensors import Tensor


class ImageTransform(ABC):
    """A change of the planes [..., H, W] of an image, given as tensor, array or PIL image."""

    def __call__(self, image: Any) -> Any:
        """The changed image: a tensor for a tensor, else an array."""
        if isinstance(image, Tensor):
            return adopt(np.ascontiguousarray(self.planes(image.numpy())))
        array = np.asarray(image)
        if array.ndim == 2:
            return np.ascontiguousarray(self.planes(array))
        if array.ndim == 3:
            return np.ascontiguousarray(np.moveaxis(self.planes(np.moveaxis(array, -1, 0)), 0, -1))
        raise ValueError(f"An image array must be [H, W] or [H, W, C]. Received: {array.shape}")

    @abstractmethod
    def planes(self, image: np.ndarray) -> np.ndarray:
        """The changed planes [..., H, W]."""


class RandomTransform(ImageTransform):
    """A transform that draws from the framework's generator, or from its own."""

    def __init__(self, *, generator: np.random.Generator | int | None = None) -> None:
        self._generator = generator if generator is None else as_generator(generator)

    @property
    def random(self) -> np.random.Generator:
        """Where the next numbers come from."""
        return as_generator(self._generator)


def pair(size: int | tuple[int, int] | list[int], role: str = "size") -> tuple[int, int]:
    """(height, width) from one positive number or two."""
    height, width = (size, size) if isinstance(size, int) else size
    if height <= 0 or width <= 0:
        raise ValueError(f"{role} must be positive. Received: {size}")
    return int(height), int(width)


def probability(p: float) -> float:
    """A chance between 0 and 1."""
    if not 0 <= p <= 1:
        raise ValueError(f"p must be from 0 to 1. Received: {p}")
    return p


def like(values: np.ndarray, image: np.ndarray) -> np.ndarray:
    """Computed values in the dtype of the image: rounded and clipped for integers."""
    if image.dtype.kind in "iu":
        limits = np.iinfo(image.dtype)
        return np.clip(np.rint(values), limits.min, limits.max).astype(image.dtype)
    return values.astype(image.dtype)
