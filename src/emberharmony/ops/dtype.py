# ruff: noqa: ARG001 - every body takes the library, and parameters some backend needs
"""Dtypes by name and of arrays."""

from typing import Any

import numpy as np

from emberharmony import dtypes
from emberharmony.library import Library
from emberharmony.registry import op
from emberharmony.typing import ArrayLike, DTypeLike


@op
def get_dtype(lib: Library, x: ArrayLike | DTypeLike) -> np.dtype[Any]:
    """The canonical dtype of an array, a scalar, or anything that names a dtype.

    >>> ops.get_dtype(np.ones(1)), ops.get_dtype("int8")
    (dtype('float64'), dtype('int8'))
    """
    if lib.is_array(x):
        return lib.dtype(x)
    if isinstance(x, list | tuple) or dtypes.is_scalar(x):
        return lib.dtype(lib.as_array(x))
    return dtypes.as_dtype(x)


@op
def to_numpy_dtype(lib: Library, dtype: DTypeLike) -> np.dtype[Any]:
    """The NumPy dtype for a dtype of any library.

    >>> ops.to_numpy_dtype("float16")
    dtype('float16')
    """
    return dtypes.as_dtype(dtype)


@op
def from_numpy_dtype(lib: Library, dtype: DTypeLike) -> Any:
    """The current library's own dtype object, such as `torch.float32`.

    >>> with ops.use_backend("numpy"):
    ...     ops.from_numpy_dtype("float16")
    dtype('float16')
    """
    return lib.native_dtype(dtype)


class _DType:
    """`ops.dtype(x)` is the dtype of an array; `ops.dtype.float32` names one.

    >>> _DType()(np.ones(1, np.float32)) == _DType().float32
    True
    """

    bool = bool_ = dtypes.bool_
    int8, int16, int32, int64 = dtypes.int8, dtypes.int16, dtypes.int32, dtypes.int64
    uint8, uint16, uint32, uint64 = dtypes.uint8, dtypes.uint16, dtypes.uint32, dtypes.uint64
    float16, bfloat16 = dtypes.float16, dtypes.bfloat16
    float32, float64 = dtypes.float32, dtypes.float64
    complex64, complex128 = dtypes.complex64, dtypes.complex128

    def __call__(self, x: ArrayLike | DTypeLike) -> np.dtype[Any]:
        """The canonical dtype of an array, a scalar, or anything that names a dtype."""
        return get_dtype(x)

    def __repr__(self) -> str:
        return "ops.dtype"


dtype = _DType()
