"""What an MLX array is, and how operands meet."""

from collections.abc import Callable
from typing import Any, TypeVar

import mlx.core as mx
import numpy as np

from emberharmony.cotangents import pulled_back
from emberharmony.dtypes import (
    as_dtype,
    bfloat16,
    canonical,
    checked_scalar,
    compute_dtype,
    float64,
    float_for,
    is_scalar,
    plain_array,
    result_dtype,
)
from emberharmony.errors import UnsupportedOpError
from emberharmony.hosting import note_host_step
from emberharmony.typing import ArrayLike, DTypeLike

NAME = "mlx"
LOOKS_AT_INDICES = False  # it reads and writes wherever an index points at
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
    array = canonical(np.asarray(array))
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


def values(x: mx.array) -> np.ndarray | None:
    """The values on the host; None while `mx.compile` or `mx.vmap` trace, where there are none."""
    try:
        return to_numpy(x)
    except ValueError as error:
        if "during function transformations" not in str(error):
            raise
        return None


def by_host(lib: Any, name: str, function: Callable[..., Any], arrays: tuple[Any, ...], options: Any) -> Any:
    """A function of NumPy's, whose gradient MLX asks the rule for; it would take it for a constant."""
    note_host_step()

    def forward(*given: mx.array) -> Any:
        known = [values(a) for a in given]
        if any(v is None for v in known):
            raise UnsupportedOpError(f"{name} inside mx.compile or mx.vmap", NAME, "NumPy computes it: call it outside")
        found = function(*known)
        return tuple([from_numpy(part) for part in found]) if isinstance(found, tuple) else from_numpy(found)

    def backward(primals: Any, gradients: Any, results: Any) -> Any:
        given = primals if isinstance(primals, tuple | list) else (primals,)
        found = pulled_back(lib, name, gradients, results, given, options)
        return found if isinstance(primals, tuple | list) else found[0]

    def forward_mode(*_: Any) -> Any:
        raise UnsupportedOpError(f"the forward derivative of {name}", NAME, "use mx.vjp or mx.grad")

    hosted = mx.custom_function(forward)
    hosted.vjp(backward)
    hosted.jvp(forward_mode)
    return hosted(*arrays)


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
        or "not implemented" in text
        or "only allowed on" in text
    )


def as_mlx(x: ArrayLike) -> mx.array:
    """`x` as an array: float32 for Python floats, int64 for integers."""
    if isinstance(x, mx.array):
        return x
    if isinstance(x, np.ndarray | np.generic):
        return from_numpy(np.asarray(x))
    if isinstance(x, list | tuple) and any(isinstance(v, mx.array) for v in x):
        return mx.stack([as_mlx(v) for v in x])
    return from_numpy(plain_array(x))


def number(value: Any, wanted: mx.Dtype) -> mx.array:
    """A 0-d array of a scalar, which has to fit."""
    with np.errstate(all="ignore"):
        return from_numpy(np.asarray(checked_scalar(value, _TO_NUMPY[wanted])).astype(_TO_NUMPY[wanted]))


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
