"""The handwritten digits that come with the package."""

from __future__ import annotations

from importlib import resources
from typing import Any, NamedTuple

import numpy as np

from pyflame_rt.graph.named_arguments import names_arguments

__all__ = ["Digits", "load_digits"]


class Digits(NamedTuple):
    """Images (float32, [N, 1, 8, 8], 0 to 1) and their labels (int64), to train and to test with."""

    train_images: np.ndarray[Any, Any]
    train_labels: np.ndarray[Any, Any]
    test_images: np.ndarray[Any, Any]
    test_labels: np.ndarray[Any, Any]


@names_arguments
def load_digits() -> Digits:
    """1,797 images of 8x8 pixels: 1,347 to train with and 450 to test with.

    They are from "Optical Recognition of Handwritten Digits" (E. Alpaydin and C. Kaynak, 1998, UCI Machine Learning
    Repository, CC BY 4.0).

    Example:
        >>> from pyflame.data import load_digits
        >>> digits = load_digits()
        >>> digits.train_images.shape, digits.test_labels.shape
        ((1347, 1, 8, 8), (450,))
    """
    return Digits(*_read("pyflame", "digits_train.npz"), *_read("pyflame_rt", "digits_test.npz"))


def _read(package: str, name: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    source = resources.files(package) / "data" / name
    with source.open("rb") as stream, np.load(stream) as file:
        images = file["images"].reshape(-1, 1, 8, 8).astype(np.float32) / 16
        return images, file["labels"].astype(np.int64)
