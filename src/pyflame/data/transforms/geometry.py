"""Where pixels go."""

from typing import Literal

import numpy as np

from pyflame.data.transforms.base import ImageTransform, RandomTransform, like, pair, probability
from pyflame.data.transforms.resample import Interpolation, resize, rotate

METHODS = ("nearest", "bilinear", "bicubic")


def _method(interpolation: str) -> None:
    if interpolation not in METHODS:
        raise ValueError(f"interpolation must be one of {METHODS}. Received: {interpolation!r}")


class Resize(ImageTransform):
    """The image at another size: (height, width), or the shorter side for one number.

    Example:
        >>> import numpy as np
        >>> from pyflame.data.transforms import Resize
        >>> Resize(4)(np.zeros((8, 16, 3), np.uint8)).shape
        (4, 8, 3)
    """

    def __init__(self, size: int | tuple[int, int] | list[int], interpolation: Interpolation = "bilinear") -> None:
        _method(interpolation)
        pair(size)
        self.size = size
        self.interpolation: Interpolation = interpolation

    def planes(self, image: np.ndarray) -> np.ndarray:
        """The resized planes."""
        height, width = self._target(*image.shape[-2:])
        return like(resize(image, height, width, self.interpolation), image)

    def _target(self, height: int, width: int) -> tuple[int, int]:
        if not isinstance(self.size, int):
            return pair(self.size)
        if height <= width:
            return self.size, max(1, int(self.size * width / height))
        return max(1, int(self.size * height / width)), self.size


def _cropped(image: np.ndarray, top: int, left: int, height: int, width: int) -> np.ndarray:
    return image[..., top : top + height, left : left + width]


def _padded(image: np.ndarray, pads: tuple[int, int, int, int], fill: float, mode: str) -> np.ndarray:
    top, bottom, left, right = pads
    widths = [(0, 0)] * (image.ndim - 2) + [(top, bottom), (left, right)]
    if mode == "constant":
        return np.pad(image, widths, constant_values=image.dtype.type(fill))
    return np.pad(image, widths, mode="edge" if mode == "edge" else "reflect")


class CenterCrop(ImageTransform):
    """The middle of the image; smaller images are padded with zeros first.

    Example:
        >>> import numpy as np
        >>> from pyflame.data.transforms import CenterCrop
        >>> CenterCrop(2)(np.arange(16).reshape(4, 4)).tolist()
        [[5, 6], [9, 10]]
    """

    def __init__(self, size: int | tuple[int, int]) -> None:
        self.size = pair(size)

    def planes(self, image: np.ndarray) -> np.ndarray:
        """The middle of the planes."""
        height, width = self.size
        missing_y, missing_x = max(height - image.shape[-2], 0), max(width - image.shape[-1], 0)
        pads = (missing_y // 2, missing_y - missing_y // 2, missing_x // 2, missing_x - missing_x // 2)
        image = _padded(image, pads, 0, "constant")
        top, left = round((image.shape[-2] - height) / 2), round((image.shape[-1] - width) / 2)
        return _cropped(image, top, left, height, width)


class RandomCrop(RandomTransform):
    """A piece of the image at a random place, after padding all sides by `padding`.

    Example:
        >>> import numpy as np
        >>> from pyflame.data.transforms import RandomCrop
        >>> RandomCrop(4, padding=1)(np.zeros((5, 5))).shape
        (4, 4)
    """

    def __init__(
        self,
        size: int | tuple[int, int],
        padding: int = 0,
        *,
        pad_if_needed: bool = False,
        fill: float = 0,
        padding_mode: Literal["constant", "edge", "reflect"] = "constant",
        generator: np.random.Generator | int | None = None,
    ) -> None:
        super().__init__(generator=generator)
        if padding < 0:
            raise ValueError(f"padding must not be negative. Received: {padding}")
        if padding_mode not in ("constant", "edge", "reflect"):
            raise ValueError(f"padding_mode must be constant, edge or reflect. Received: {padding_mode!r}")
        self.size, self.padding, self.fill = pair(size), padding, fill
        self.pad_if_needed, self.padding_mode = pad_if_needed, padding_mode

    def planes(self, image: np.ndarray) -> np.ndarray:
        """A piece of the planes."""
        height, width = self.size
        edge = self.padding
        image = _padded(image, (edge, edge, edge, edge), self.fill, self.padding_mode)
        if self.pad_if_needed:
            y, x = max(height - image.shape[-2], 0), max(width - image.shape[-1], 0)
            image = _padded(image, (y, y, x, x), self.fill, self.padding_mode)
        room_y, room_x = image.shape[-2] - height, image.shape[-1] - width
        if room_y < 0 or room_x < 0:
            raise ValueError(f"A crop of {self.size} does not fit in {image.shape[-2:]}; pass padding or pad_if_needed")
        random = self.random
        return _cropped(image, int(random.integers(room_y + 1)), int(random.integers(room_x + 1)), height, width)


class RandomHorizontalFlip(RandomTransform):
    """The image mirrored left to right with chance `p`.

    Example:
        >>> import numpy as np
        >>> from pyflame.data.transforms import RandomHorizontalFlip
        >>> RandomHorizontalFlip(p=1.0)(np.array([[1, 2, 3]])).tolist()
        [[3, 2, 1]]
    """

    def __init__(self, p: float = 0.5, *, generator: np.random.Generator | int | None = None) -> None:
        super().__init__(generator=generator)
        self.p = probability(p)

    def planes(self, image: np.ndarray) -> np.ndarray:
        """The planes, mirrored or not."""
        return image[..., ::-1] if self.random.random() < self.p else image


class RandomVerticalFlip(RandomTransform):
    """The image mirrored top to bottom with chance `p`.

    Example:
        >>> import numpy as np
        >>> from pyflame.data.transforms import RandomVerticalFlip
        >>> RandomVerticalFlip(p=1.0)(np.array([[1], [2]])).tolist()
        [[2], [1]]
    """

    def __init__(self, p: float = 0.5, *, generator: np.random.Generator | int | None = None) -> None:
        super().__init__(generator=generator)
        self.p = probability(p)

    def planes(self, image: np.ndarray) -> np.ndarray:
        """The planes, mirrored or not."""
        return image[..., ::-1, :] if self.random.random() < self.p else image


class RandomRotation(RandomTransform):
    """The image turned by an angle between -degrees and degrees, or in the given range.

    Example:
        >>> import numpy as np
        >>> from pyflame.data.transforms import RandomRotation
        >>> RandomRotation((90, 90))(np.array([[1, 2], [3, 4]])).tolist()
        [[2, 4], [1, 3]]
    """

    def __init__(
        self,
        degrees: float | tuple[float, float],
        interpolation: Interpolation = "nearest",
        *,
        fill: float = 0,
        generator: np.random.Generator | int | None = None,
    ) -> None:
        super().__init__(generator=generator)
        if interpolation not in ("nearest", "bilinear"):
            raise ValueError(f"interpolation must be nearest or bilinear. Received: {interpolation!r}")
        low, high = (-degrees, degrees) if isinstance(degrees, int | float) else degrees
        if low > high:
            raise ValueError(f"degrees must be a positive number or (low, high). Received: {degrees}")
        self.degrees, self.fill = (low, high), fill
        self.interpolation: Interpolation = interpolation

    def planes(self, image: np.ndarray) -> np.ndarray:
        """The turned planes."""
        angle = float(self.random.uniform(*self.degrees))
        return like(rotate(image, angle, self.fill, self.interpolation), image)
