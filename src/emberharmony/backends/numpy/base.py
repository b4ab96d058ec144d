"""What a NumPy array is, and how operands meet."""

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from emberharmony.dtypes import (
    FLOAT,
    as_dtype,
    checked_scalar,
    float16,
    float32,
    float64,
    is_scalar,
    kind,
    plain_array,
    result_dtype,
)
from emberharmony.errors import UnsupportedOpError
from emberharmony.kinds import refuse_masked
from emberharmony.typing import ArrayLike, DTypeLike

NAME = "numpy"
LOOKS_AT_INDICES = True
OBJECT = np.dtype(object)
NATIVE: dict[str, Callable[..., Any]] = {}
F = TypeVar("F", bound=Callable[..., Any])
HARDWARE = frozenset((float16, float32, float64, np.dtype(np.longdouble)))


def native(function: F) -> F:
    """Register a function under its name (less a trailing underscore)."""
    NATIVE[function.__name__.rstrip("_")] = function
    return function


def is_array(x: object) -> bool:
    """Whether `x` is a NumPy array."""
    return isinstance(x, np.ndarray)


def dtype(x: np.ndarray) -> np.dtype[Any]:
    """The dtype of an array, whose bytes may be in any order."""
    return x.dtype if x.dtype.isnative else x.dtype.newbyteorder("=")


def native_dtype(dtype: DTypeLike) -> np.dtype[Any]:
    """NumPy's dtypes are the canonical ones."""
    return as_dtype(dtype)


def supports(dtype: DTypeLike) -> bool:
    """NumPy with ml_dtypes has arrays of every dtype."""
    return as_dtype(dtype) is not None


def from_numpy(array: np.ndarray) -> np.ndarray:
    """The array itself, its bytes in this machine's order."""
    array = np.asarray(array)
    return array if array.dtype.isnative else array.astype(dtype(array))


to_numpy = from_numpy


def values(x: np.ndarray) -> np.ndarray:
    """The array itself."""
    return x


def by_host(lib: Any, name: str, function: Callable[..., Any], arrays: tuple[Any, ...], options: Any) -> Any:  # noqa: ARG001
    """NumPy is the host."""
    found = function(*arrays)
    return tuple([np.asarray(part) for part in found]) if isinstance(found, tuple) else np.asarray(found)


def is_unsupported(error: BaseException) -> bool:
    """Whether NumPy says that it has no such operation for a dtype."""
    if isinstance(error, UnsupportedOpError | NotImplementedError):
        return True
    return isinstance(error, TypeError) and (
        "not supported for the input types" in str(error)
        or "did not contain a loop" in str(error)
        or isinstance(error, np.exceptions.DTypePromotionError)
    )


def is_small(dtype: np.dtype[Any]) -> bool:
    """Whether a float dtype comes from ml_dtypes, and is better computed in float32."""
    return dtype not in HARDWARE and kind(dtype) == FLOAT


def boxed(value: Any, dtype: np.dtype[Any] | None = None) -> np.ndarray:
    """A 0-d array of what NumPy gave back as a scalar."""
    if isinstance(value, np.ndarray):
        return value
    if dtype == OBJECT or not is_scalar(value):
        made = np.empty((), object if dtype is None else dtype)
        made[()] = value
        return made
    return np.asarray(value)


def as_array(x: ArrayLike) -> np.ndarray:
    """`x` as an array: float32 for Python floats."""
    if isinstance(x, np.ndarray):
        if type(x) is not np.ndarray:
            refuse_masked(x)
        return x if x.dtype.isnative else from_numpy(x)
    if isinstance(x, np.generic):
        return np.asarray(x)
    return plain_array(x)


def scalar_array(value: Any, dtype: np.dtype[Any]) -> np.ndarray:
    """A 0-d array of a scalar, which has to fit."""
    return boxed(value, dtype) if dtype == OBJECT else np.asarray(checked_scalar(value, dtype)).astype(dtype)


def meet(*values: ArrayLike) -> list[np.ndarray]:
    """The values as arrays of the dtype they promote to."""
    arrays = [v if is_scalar(v) or isinstance(v, np.ndarray) else _listed(v) for v in values]
    strong = [dtype(a) for a in arrays if isinstance(a, np.ndarray)]
    weak = [a for a in arrays if not isinstance(a, np.ndarray)]
    answer = result_dtype(strong, weak)
    return [a.astype(answer, copy=False) if isinstance(a, np.ndarray) else scalar_array(a, answer) for a in arrays]


def _listed(value: ArrayLike) -> np.ndarray:
    """Lists are data; any other object, such as a symbolic number, is one element."""
    if isinstance(value, list | tuple | str) or hasattr(value, "__array__"):
        return as_array(value)
    return boxed(value, np.dtype(object))
