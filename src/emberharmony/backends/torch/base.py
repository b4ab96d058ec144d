"""What a torch tensor is, and how operands meet."""

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch

from emberharmony.cotangents import pulled_back
from emberharmony.dtypes import (
    as_dtype,
    bfloat16,
    canonical,
    checked_scalar,
    compute_dtype,
    float_for,
    is_scalar,
    plain_array,
    result_dtype,
)
from emberharmony.errors import UnsupportedOpError
from emberharmony.hosting import note_host_step
from emberharmony.typing import ArrayLike, DTypeLike

NAME = "torch"
LOOKS_AT_INDICES = False  # gather takes 2**31 for 0, and a GPU stops for good
NATIVE: dict[str, Callable[..., Any]] = {}
F = TypeVar("F", bound=Callable[..., Any])

_COMPUTES = [
    "bool",
    "uint8",
    "int8",
    "int16",
    "int32",
    "int64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "complex64",
    "complex128",
]
_STORES = [
    "uint16",
    "uint32",
    "uint64",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
]
_TO_TORCH: dict[np.dtype[Any], torch.dtype] = {
    as_dtype(name): getattr(torch, name) for name in _COMPUTES + _STORES if hasattr(torch, name)
}
_TO_NUMPY = {native: canonical for canonical, native in _TO_TORCH.items()}
_SUPPORTED = frozenset(as_dtype(name) for name in _COMPUTES)
# NumPy dtypes torch does not read itself, and the integers of equal width it does.
_CARRIERS = {1: (np.uint8, torch.uint8), 2: (np.int16, torch.int16)}


def native(function: F) -> F:
    """Register a function under its name (less a trailing underscore)."""
    NATIVE[function.__name__.rstrip("_")] = function
    return function


def is_array(x: object) -> bool:
    """Whether `x` is a torch tensor."""
    return isinstance(x, torch.Tensor)


def dtype(x: torch.Tensor) -> np.dtype[Any]:
    """The canonical dtype of a tensor."""
    return _TO_NUMPY[x.dtype]


def native_dtype(dtype: DTypeLike) -> torch.dtype:
    """The torch dtype for a dtype."""
    if isinstance(dtype, torch.dtype):
        return dtype
    wanted = as_dtype(dtype)
    found = _TO_TORCH.get(wanted)
    if found is None:
        raise UnsupportedOpError(f"dtype {wanted}", NAME, "cast it on the host, or use numpy")
    return found


def supports(dtype: DTypeLike) -> bool:
    """Whether torch computes with the dtype, not only stores it."""
    return as_dtype(dtype) in _SUPPORTED


def from_numpy(array: np.ndarray) -> torch.Tensor:
    """A tensor of the default device, which may share memory with the array."""
    array = canonical(np.asarray(array))
    if array.dtype.byteorder not in "=|<":
        array = array.astype(array.dtype.newbyteorder("="))
    wanted = native_dtype(array.dtype)
    # torch reads neither backward strides nor memory it could not write.
    if not array.flags.writeable or any(s < 0 for s in array.strides):
        array = array.copy()
    if array.dtype == bfloat16 or array.dtype.name in _STORES[3:]:
        carrier, _ = _CARRIERS[array.dtype.itemsize]
        made = torch.from_numpy(array.view(carrier)).view(wanted)
    else:
        made = torch.from_numpy(array)
    device = torch.get_default_device()
    return made if device.type == "cpu" else made.to(device)


def to_numpy(x: torch.Tensor) -> np.ndarray:
    """The values on the host."""
    host = x.detach().cpu().resolve_conj().resolve_neg()
    canonical = _TO_NUMPY[x.dtype]
    if canonical == bfloat16 or canonical.name in _STORES[3:]:
        _, carrier = _CARRIERS[canonical.itemsize]
        return host.view(carrier).numpy().view(canonical)
    return host.numpy()


def values(x: torch.Tensor) -> np.ndarray:
    """The values on the host."""
    return to_numpy(x)


def by_host(lib: Any, name: str, function: Callable[..., Any], arrays: tuple[Any, ...], options: Any) -> Any:
    """A function of NumPy's, whose gradient torch asks the rule for."""
    note_host_step()

    def computed(*tensors: torch.Tensor) -> Any:
        found = function(*(to_numpy(t) for t in tensors))
        made = [from_numpy(np.asarray(part)).to(arrays[0].device) for part in _parts(found)]
        return tuple(made) if isinstance(found, tuple) else made[0]

    class Hosted(torch.autograd.Function):
        """One call: forward on the host, backward by the rule."""

        @staticmethod
        def forward(ctx: Any, *tensors: torch.Tensor) -> Any:
            found = computed(*tensors)
            ctx.single = not isinstance(found, tuple)
            ctx.save_for_backward(*tensors, *_parts(found))
            return found

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
            given, results = ctx.saved_tensors[: len(arrays)], ctx.saved_tensors[len(arrays) :]
            g, y = (gradients[0], results[0]) if ctx.single else (gradients, results)
            return tuple(pulled_back(lib, name, g, y, given, options))

    if torch.is_grad_enabled() and any(a.requires_grad for a in arrays):
        return Hosted.apply(*arrays)
    return computed(*arrays)


def _parts(found: Any) -> tuple[Any, ...]:
    return found if isinstance(found, tuple) else (found,)


def is_unsupported(error: BaseException) -> bool:
    """Whether torch says that it has no such operation for a dtype."""
    if isinstance(error, NotImplementedError):
        return True
    text = str(error)
    return isinstance(error, RuntimeError | TypeError) and any(part in text for part in _UNSUPPORTED)


_UNSUPPORTED = (
    "not implemented for",
    "not supported for",
    "is not supported",
    "does not support",
    "Unsupported dtype",
    "unsupported ScalarType",
    "Promotion for uint16, uint32, uint64",
)


def as_tensor(x: ArrayLike) -> torch.Tensor:
    """`x` as a tensor: float32 for Python floats, int64 for integers."""
    if isinstance(x, torch.Tensor):
        return x
    if isinstance(x, np.ndarray | np.generic):
        return from_numpy(np.asarray(x))
    if isinstance(x, list | tuple) and any(isinstance(v, torch.Tensor) for v in x):
        return torch.stack([as_tensor(v) for v in x])
    return from_numpy(plain_array(x))


def number(value: Any, wanted: torch.dtype, device: torch.device | None = None) -> torch.Tensor:
    """A 0-d tensor of a scalar, which has to fit."""
    checked_scalar(value, _TO_NUMPY[wanted])
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not wanted.is_floating_point and not wanted.is_complex:
        return torch.tensor(value, dtype=torch.float64, device=device).to(wanted)
    return torch.tensor(value, dtype=wanted, device=device)


def meet(*values: ArrayLike) -> list[torch.Tensor]:
    """The values as tensors of the dtype they promote to."""
    known = [v if is_scalar(v) else as_tensor(v) for v in values]
    tensors = [v for v in known if isinstance(v, torch.Tensor)]
    weak = [v for v in known if not isinstance(v, torch.Tensor)]
    wanted = native_dtype(result_dtype([_TO_NUMPY[t.dtype] for t in tensors], weak))
    device = tensors[0].device if tensors else torch.get_default_device()
    return [v.to(wanted) if isinstance(v, torch.Tensor) else number(v, wanted, device) for v in known]


def as_float(x: ArrayLike) -> torch.Tensor:
    """`x` as a tensor of floats: float32 for integers."""
    x = as_tensor(x)
    return x if x.is_floating_point() or x.is_complex() else x.to(torch.float32)


def widened(x: torch.Tensor) -> torch.Tensor:
    """Half precision as float32, other dtypes as they are; integers as float32."""
    return x.to(native_dtype(compute_dtype(float_for(_TO_NUMPY[x.dtype]))))
