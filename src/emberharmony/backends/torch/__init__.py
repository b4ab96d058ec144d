"""PyTorch."""

from emberharmony.backends.torch import arrays, elementwise, linalg, reductions
from emberharmony.backends.torch.base import (
    NAME,
    NATIVE,
    dtype,
    from_numpy,
    is_array,
    is_unsupported,
    native_dtype,
    supports,
    to_numpy,
)

__all__ = [
    "NAME",
    "NATIVE",
    "arrays",
    "dtype",
    "elementwise",
    "from_numpy",
    "is_array",
    "is_unsupported",
    "linalg",
    "native_dtype",
    "reductions",
    "supports",
    "to_numpy",
]
