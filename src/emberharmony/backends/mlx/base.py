"""What an MLX array is, and how operands meet."""

from collections.abc import Callable
from typing import Any, TypeVar

import mlx.core as mx
import numpy as np

from emberharmony.dtypes import (
    as_dtype,
    bfloat16,
    compute_dtype,
    float64,
    float_for,
    is_scalar,
    result_dtype,
)
from emberharmony.errors import UnsupportedOpError
from emberharmony.typing import ArrayLike, DTypeLike

NAME = "mlx"
NATIVE: dict[str, Callable[..., Any]] = {}
F = TypeVar("F", bound=Callable[..., Any])

_NAMES = [
    "bool_",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "int8",
    "int16",
    "int32",
    "int64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "complex64",
]
_TO_MLX: dict[np.dtype[Any], mx.Dtype] = {as_dtype(n): getattr(mx, n) for n in _NAMES}
_TO_NUMPY = {native: canonical for canonical, native in _TO_MLX.items()}


def native(function: F) -> F:
    """Register a function under its name (less a trailing underscore)."""
    NATIVE[function.__name__.rstrip("_")] = function
    return function


def is_array(x: object) -> bool:
    """Whether `x` is an MLX array."""
    return isinstance(x, mx.array)


def dtype(x: mx.array) -> np.dtype[Any]:
    """The canonical dtype of an array."""
    return _TO_NUMPY[x.dtype]


def native_dtype(dtype: DTypeLike) -> mx.Dtype:
    """The MLX dtype for a dtype."""
    if isinstance(dtype, mx.Dtype):
        return dtype
    wanted = as_dtype(dtype)
    found = _TO_MLX.get(wanted)
    if found is None:
        raise UnsupportedOpError(f"dtype {wanted}", NAME, "cast it on the host, or use numpy")
    return found


def supports(dtype: DTypeLike) -> bool:
    """Whether MLX computes with the dtype; float64 works on its CPU device only."""
    wanted = as_dtype(dtype)
    if wanted == float64:
        return mx.default_device().type == mx.DeviceType.cpu
    return wanted in _TO_MLX


def from_numpy(array: np.ndarray) -> mx.array:
    """A copy with exactly that dtype: MLX would make float32 of float64 unless told."""
    array = np.asarray(array)
    wanted = native_dtype(array.dtype.newbyteorder("="))
    if array.dtype.byteorder not in "=|<":
        array = array.astype(array.dtype.newbyteorder("="))
    if any(s < 0 for s in array.strides):
        array = array.copy()
    return mx.array(array, dtype=wanted)


def to_numpy(x: mx.array) -> np.ndarray:
    """The values, evaluated in this thread."""
    mx.eval(x)
    if x.dtype == mx.bfloat16:
        return np.array(x.view(mx.uint16)).view(bfloat16)
    return np.array(x)


def is_unsupported(error: BaseException) -> bool:
    """Whether MLX says that it has no such operation for a dtype."""
    if isinstance(error, NotImplementedError):
        return True
    text = str(error).lower()
    return isinstance(error, ValueError | RuntimeError | TypeError) and (
        "types are supported" in text
        or "not supported" in text
        or "unsupported type" in text
        or "not yet implemented" in text
    )


def as_mlx(x: ArrayLike) -> mx.array:
    """`x` as an array: float32 for Python floats, int64 for integers."""
    if isinstance(x, mx.array):
        return x
    if isinstance(x, np.ndarray | np.generic):
        return from_numpy(np.asarray(x))
    if isinstance(x, list | tuple) and any(isinstance(v, mx.array) for v in x):
        return mx.stack([as_mlx(v) for v in x])
    made = np.asarray(x)
    narrow = {np.dtype(float): np.float32, np.dtype(complex): np.complex64}
    return from_numpy(made.astype(narrow.get(made.dtype, made.dtype)))


def number(value: Any, wanted: mx.Dtype) -> mx.array:
    """A 0-d array of a scalar."""
    # Through NumPy, where an integer out of range wraps instead of raising.
    with np.errstate(all="ignore"):
        return from_numpy(np.asarray(value).astype(_TO_NUMPY[wanted]))


def meet(*values: ArrayLike) -> list[mx.array]:
    """The values as arrays of the dtype they promote to."""
    known = [v if is_scalar(v) else as_mlx(v) for v in values]
    strong = [_TO_NUMPY[v.dtype] for v in known if isinstance(v, mx.array)]
    weak = [v for v in known if not isinstance(v, mx.array)]
    wanted = native_dtype(result_dtype(strong, weak))
    return [v.astype(wanted) if isinstance(v, mx.array) else number(v, wanted) for v in known]


def is_float(x: mx.array) -> bool:
    """Whether the elements are real floats."""
    return mx.issubdtype(x.dtype, mx.floating)


def as_float(x: ArrayLike) -> mx.array:
    """`x` as an array of floats: float32 for integers."""
    x = as_mlx(x)
    return x if mx.issubdtype(x.dtype, mx.inexact) else x.astype(mx.float32)


def widened(x: mx.array) -> mx.array:
    """Half precision as float32, other dtypes as they are; integers as float32."""
    return x.astype(native_dtype(compute_dtype(float_for(_TO_NUMPY[x.dtype]))))


def plain_axes(axis: Any, rank: int) -> tuple[int, ...]:
    """The axes as numbers from 0, all if there is none given."""
    if axis is None:
        return tuple(range(rank))
    wanted = (axis,) if isinstance(axis, int | np.integer) else tuple(axis)
    for a in wanted:
        if not -max(rank, 1) <= a < max(rank, 1):
            raise ValueError(f"axis {a} is out of range for {rank} axes")
    return tuple(int(a) % max(rank, 1) for a in wanted)
