"""MLX."""

from emberharmony.backends.mlx import arrays, elementwise, reductions
from emberharmony.backends.mlx.base import (
    LOOKS_AT_INDICES,
    NAME,
    NATIVE,
    by_host,
    dtype,
    from_numpy,
    is_array,
    is_unsupported,
    native_dtype,
    supports,
    to_numpy,
    values,
)

__all__ = [
    "LOOKS_AT_INDICES",
    "NAME",
    "NATIVE",
    "arrays",
    "by_host",
    "dtype",
    "elementwise",
    "from_numpy",
    "is_array",
    "is_unsupported",
    "native_dtype",
    "reductions",
    "supports",
    "to_numpy",
    "values",
]
