"""Names used in annotations all over the package."""

from collections.abc import Sequence
from typing import Any, TypeAlias

Array: TypeAlias = Any
"""An array of whichever library is in use: `numpy.ndarray`, `torch.Tensor` or `mlx.core.array`."""

ArrayLike: TypeAlias = Any
"""An array, a Python or NumPy scalar, or a nested sequence of them."""

Shape: TypeAlias = Sequence[int]
Axis: TypeAlias = int | Sequence[int] | None
Pairs: TypeAlias = Sequence[tuple[int, int]]

DTypeLike: TypeAlias = Any
"""`numpy.dtype`, a scalar type, a name, or a dtype of torch or MLX."""

__all__ = ["Array", "ArrayLike", "Axis", "DTypeLike", "Pairs", "Shape"]
