"""NumPy, with the dtypes of ml_dtypes."""

from emberharmony.backends.numpy import arrays, elementwise, reductions
from emberharmony.backends.numpy.base import (
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
    "native_dtype",
    "reductions",
    "supports",
    "to_numpy",
]
