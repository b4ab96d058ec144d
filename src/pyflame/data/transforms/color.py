"""Brightness, contrast, saturation and hue."""

from typing import Any

import numpy as np

from pyflame.data.transforms.base import RandomTransform, like

GREY = np.array([0.299, 0.587, 0.114])


class ColorJitter(RandomTransform):
    """Brightness, contrast, saturation and hue changed by random amounts, in random order.

    Args:
        brightness: A factor from 1 - b to 1 + b, or a range of factors; likewise contrast and saturation.
        contrast: See brightness.
        saturation: See brightness; needs three channels.
        hue: A turn of the colour circle from -h to h (at most 0.5), or a range; needs three channels.
        generator: A NumPy generator or a seed.

    Example:
        >>> import numpy as np
        >>> from pyflame.data.transforms import ColorJitter
        >>> ColorJitter(brightness=(2.0, 2.0))(np.full((1, 1, 3), 40, np.uint8)).tolist()
        [[[80, 80, 80]]]
    """

    def __init__(
        self,
        brightness: float | tuple[float, float] = 0.0,
        contrast: float | tuple[float, float] = 0.0,
        saturation: float | tuple[float, float] = 0.0,
        hue: float | tuple[float, float] = 0.0,
        *,
        generator: np.random.Generator | int | None = None,
    ) -> None:
        super().__init__(generator=generator)
        self.brightness = _factors(brightness, "brightness")
        self.contrast = _factors(contrast, "contrast")
        self.saturation = _factors(saturation, "saturation")
        self.hue = (-hue, hue) if isinstance(hue, int | float) else hue
        if not -0.5 <= self.hue[0] <= self.hue[1] <= 0.5:
            raise ValueError(f"hue must lie within -0.5 and 0.5. Received: {hue}")

    def planes(self, image: np.ndarray) -> np.ndarray:
        """The planes [..., C, H, W] in other colours."""
        top = float(np.iinfo(image.dtype).max) if image.dtype.kind in "iu" else 1.0
        values, random = image.astype(np.float64) / top, self.random
        steps: list[Any] = [
            (_brighten, self.brightness, 1.0),
            (_contrast, self.contrast, 1.0),
            (_saturate, self.saturation, 1.0),
            (_turn, self.hue, 0.0),
        ]
        for which in random.permutation(len(steps)):
            change, limits, neutral = steps[which]
            if limits != (neutral, neutral):
                values = np.clip(change(values, float(random.uniform(*limits))), 0, 1)
        return like(values * top, image)


def _factors(amount: float | tuple[float, float], role: str) -> tuple[float, float]:
    low, high = (max(0.0, 1 - amount), 1 + amount) if isinstance(amount, int | float) else amount
    if not 0 <= low <= high:
        raise ValueError(f"{role} must not be negative. Received: {amount}")
    return float(low), float(high)


def _grey(image: np.ndarray) -> np.ndarray:
    if image.ndim < 3 or image.shape[-3] == 1:
        return image
    return np.tensordot(_colours(image), GREY, axes=(-3, 0))[..., None, :, :]


def _colours(image: np.ndarray) -> np.ndarray:
    if image.ndim < 3 or image.shape[-3] != 3:
        raise ValueError(f"This change of colours needs three channels. Received: {image.shape}")
    return image


def _brighten(image: np.ndarray, factor: float) -> np.ndarray:
    return image * factor


def _contrast(image: np.ndarray, factor: float) -> np.ndarray:
    mean = _grey(image).mean(axis=(-2, -1) if image.ndim < 3 else (-3, -2, -1), keepdims=True)
    return factor * image + (1 - factor) * mean


def _saturate(image: np.ndarray, factor: float) -> np.ndarray:
    return factor * _colours(image) + (1 - factor) * _grey(image)


def _turn(image: np.ndarray, amount: float) -> np.ndarray:
    """Turn the colour circle, keeping saturation and value."""
    red, green, blue = np.moveaxis(_colours(image), -3, 0)
    value, low = np.max([red, green, blue], axis=0), np.min([red, green, blue], axis=0)
    spread = np.where(value > low, value - low, 1)
    sector = np.where(
        value == red,
        (green - blue) / spread % 6,
        np.where(value == green, (blue - red) / spread + 2, (red - green) / spread + 4),
    )
    hue = (sector / 6 + amount) % 1
    parts = [
        value - (value - low) * np.clip(np.minimum(k, 4 - k), 0, 1) for k in ((n + hue * 6) % 6 for n in (5, 3, 1))
    ]
    return np.stack(parts, axis=-3)
