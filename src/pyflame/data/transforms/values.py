"""From pictures to numbers a model wants."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from pyflame.arrays import adopt
from pyflame.tensors import Tensor


class ToTensor:
    """An image [H, W] or [H, W, C] as a float32 tensor [C, H, W]; 8-bit values become 0 to 1.

    Example:
        >>> import numpy as np
        >>> from pyflame.data.transforms import ToTensor
        >>> ToTensor()(np.full((2, 2, 3), 255, np.uint8)).shape
        [3, 2, 2]
    """

    def __call__(self, image: Any) -> Tensor:
        """The image as numbers."""
        array = np.asarray(image)
        if array.ndim not in (2, 3):
            raise ValueError(f"ToTensor needs [H, W] or [H, W, C]. Received: {array.shape}")
        planes = array[None] if array.ndim == 2 else np.moveaxis(array, -1, 0)
        if array.dtype == np.uint8:
            return adopt(np.ascontiguousarray(planes, np.float32) / np.float32(255))
        return adopt(np.ascontiguousarray(planes, np.float32))


class Normalize:
    """Each channel less its mean, over its spread; for [..., C, H, W].

    Example:
        >>> import numpy as np
        >>> from pyflame.data.transforms import Normalize
        >>> Normalize(mean=[0.5], std=[0.5])(np.ones((1, 2, 2), np.float32)).tolist()
        [[[1.0, 1.0], [1.0, 1.0]]]
    """

    def __init__(self, mean: Sequence[float] | float, std: Sequence[float] | float) -> None:
        self.mean = np.atleast_1d(np.asarray(mean, np.float32))
        self.std = np.atleast_1d(np.asarray(std, np.float32))
        if not self.std.all():
            raise ValueError(f"std must not hold zeros. Received: {std}")

    def __call__(self, image: Any) -> Any:
        """The image as numbers."""
        if isinstance(image, Tensor):
            return adopt(self(image.numpy()))
        array = np.asarray(image)
        if array.dtype.kind != "f":
            raise TypeError(f"Normalize needs floats; use ToTensor first. Received: {array.dtype}")
        if array.ndim < 3 or (self.mean.size > 1 and array.shape[-3] != self.mean.size):
            raise ValueError(f"Normalize needs [..., {self.mean.size}, H, W]. Received: {array.shape}")
        return ((array - self.mean[:, None, None]) / self.std[:, None, None]).astype(array.dtype)
