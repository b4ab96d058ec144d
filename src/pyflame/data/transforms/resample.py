"""Resizing and rotating planes."""

from collections.abc import Callable
from functools import lru_cache
from typing import Literal, TypeAlias

import numpy as np

Interpolation: TypeAlias = Literal["nearest", "bilinear", "bicubic"]


def _triangle(x: np.ndarray) -> np.ndarray:
    return np.maximum(0, 1 - np.abs(x))


def _cubic(x: np.ndarray) -> np.ndarray:
    a, x = -0.5, np.abs(x)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * a
    return np.where(x < 1, near, np.where(x < 2, far, 0))


FILTERS: dict[str, tuple[Callable[[np.ndarray], np.ndarray], float]] = {
    "bilinear": (_triangle, 1.0),
    "bicubic": (_cubic, 2.0),
}


@lru_cache(maxsize=256)
def weights(source: int, target: int, how: str) -> np.ndarray:
    """The matrix [target, source] that resizes one axis; when shrinking, the filter widens to cover every pixel."""
    scale = source / target
    centre = (np.arange(target) + 0.5) * scale
    if how == "nearest":
        return np.eye(source)[np.minimum(np.floor(np.arange(target) * scale).astype(int), source - 1)]
    filter_fn, _ = FILTERS[how]
    spread = max(scale, 1.0)
    rows = filter_fn((np.arange(source) + 0.5 - centre[:, None]) / spread)
    return rows / rows.sum(axis=1, keepdims=True)


def resize(image: np.ndarray, height: int, width: int, how: Interpolation) -> np.ndarray:
    """Planes [..., H, W] at another size, in float64."""
    down = weights(image.shape[-2], height, how)
    across = weights(image.shape[-1], width, how)
    return down @ image.astype(np.float64) @ across.T


def rotate(image: np.ndarray, degrees: float, fill: float, how: Interpolation) -> np.ndarray:
    """Planes turned counter-clockwise about their centre, in float64."""
    height, width = image.shape[-2:]
    angle = np.deg2rad(degrees)
    y, x = np.meshgrid(np.arange(height) - (height - 1) / 2, np.arange(width) - (width - 1) / 2, indexing="ij")
    from_x = np.cos(angle) * x - np.sin(angle) * y + (width - 1) / 2
    from_y = np.sin(angle) * x + np.cos(angle) * y + (height - 1) / 2
    if how == "nearest":
        return _pick(image, np.rint(from_y).astype(int), np.rint(from_x).astype(int), fill)
    top, left = np.floor(from_y).astype(int), np.floor(from_x).astype(int)
    down, right = from_y - top, from_x - left
    return (
        _pick(image, top, left, fill) * (1 - down) * (1 - right)
        + _pick(image, top, left + 1, fill) * (1 - down) * right
        + _pick(image, top + 1, left, fill) * down * (1 - right)
        + _pick(image, top + 1, left + 1, fill) * down * right
    )


def _pick(image: np.ndarray, y: np.ndarray, x: np.ndarray, fill: float) -> np.ndarray:
    height, width = image.shape[-2:]
    inside = (y >= 0) & (y < height) & (x >= 0) & (x < width)
    values = image[..., np.clip(y, 0, height - 1), np.clip(x, 0, width - 1)].astype(np.float64)
    return np.where(inside, values, fill)
