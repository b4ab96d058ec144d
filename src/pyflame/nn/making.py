"""Parameters and buffers before they have their values."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pyflame.arrays import adopt
from pyflame.dtypes import DType, get_default_dtype
from pyflame.nn.parameter import Parameter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyflame.layout import MeshLayout
    from pyflame.tensors import Tensor

__all__ = ["empty_parameter", "filled"]


def empty_parameter(shape: Sequence[int], dtype: DType | None = None, layout: MeshLayout | None = None) -> Parameter:
    """A parameter of zeros, placed on the mesh where a layout is given."""
    if any(size < 0 for size in shape):
        raise ValueError(f"Sizes must not be negative. Received: {list(shape)}")
    value = filled(shape, 0.0, dtype)
    return Parameter(value if layout is None else value.to_layout(layout))


def filled(shape: Sequence[int], value: float, dtype: DType | None = None) -> Tensor:
    """A tensor with one value everywhere."""
    return adopt(np.full(tuple(shape), value, (dtype or get_default_dtype()).numpy))
