"""Data from and for other libraries: NumPy, DLPack, torch, buffers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

if TYPE_CHECKING:
    from pyflame.tensors import Tensor

__all__ = ["apply_ufunc", "from_dlpack", "from_torch", "plain_arrays", "to_array"]

# NumPy's functions whose name here is another one.
UFUNCS = {"absolute": "abs", "equal": "eq", "power": "pow", "invert": "bitwise_not"}


def to_array(data: Any) -> np.ndarray[Any, Any]:
    """A NumPy array from what users pass: arrays, lists, torch tensors, DLPack or buffer objects."""
    if isinstance(data, np.ndarray) and data.dtype.kind != "c":
        return data
    if type(data).__module__.split(".")[0] == "torch":
        return _from_torch(data)
    if not isinstance(data, (list, tuple)) and hasattr(data, "__dlpack__") and not hasattr(data, "__array__"):
        return np.from_dlpack(data)
    if isinstance(data, (list, tuple)) and _holds_tensors(data):
        return np.stack([to_array(item) for item in data]) if data else np.zeros(0)
    if hasattr(data, "_value") and hasattr(data, "numpy"):
        tensor: Any = data
        return tensor.numpy(copy=False)
    try:
        array = np.asarray(data)
    except ValueError as error:
        raise ValueError(f"rows of different lengths do not make a tensor: {error}") from error
    if array.dtype.kind == "c":
        raise TypeError("an array of complex numbers does not make a tensor; keep real and imaginary parts apart")
    if array.dtype == object:
        raise TypeError(f"{type(data).__name__} of {type(array.ravel()[0]).__name__} does not make a tensor of numbers")
    return array


def apply_ufunc(ufunc: Any, method: str, inputs: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """What NumPy's elementwise functions do with tensors: the operator of the same name, lazily; else NumPy's result.

    Example:
        >>> import numpy as np, pyflame as pf
        >>> np.sqrt(pf.tensor([4.0, 9.0])).tolist()
        [2.0, 3.0]
    """
    import pyflame

    name: str = ufunc.__name__
    own = getattr(pyflame, UFUNCS.get(name, name), None)
    if own is not None and method == "__call__" and not options:
        return own(*(pyflame.tensor(x) if isinstance(x, np.ndarray) else x for x in inputs))
    if any(hasattr(x, "_value") for x in options.get("out") or ()):
        raise TypeError(f"np.{name}: tensors do not change in place; leave out= away")
    plain = (to_array(x) if hasattr(x, "_value") else x for x in inputs)
    return getattr(ufunc, method)(*plain, **options)


def plain_arrays(nest: Any) -> Any:
    """Arguments of a function of NumPy, with arrays in place of tensors.

    Example:
        >>> import numpy as np, pyflame as pf
        >>> float(np.mean(pf.tensor([1.0, 2.0])))
        1.5
    """
    if hasattr(nest, "_value"):
        return to_array(nest)
    if isinstance(nest, dict):
        return {key: plain_arrays(value) for key, value in nest.items()}
    if isinstance(nest, (list, tuple)) and type(nest) in (list, tuple):
        return type(nest)(plain_arrays(value) for value in nest)
    return nest


def _holds_tensors(data: Any) -> bool:
    while isinstance(data, (list, tuple)) and data:
        data = data[0]
    return hasattr(data, "_value") or type(data).__module__.split(".")[0] == "torch"


def _from_torch(data: Any) -> np.ndarray[Any, Any]:
    """Shares the memory of a tensor on the CPU; bfloat16 goes through its bits."""
    plain = data.detach().cpu().contiguous()
    if str(plain.dtype) == "torch.bfloat16":
        bits = plain.view(dtype=_torch_type("int16")).numpy()
        return bits.view(ml_dtypes.bfloat16)
    return plain.numpy()


def _torch_type(name: str) -> Any:
    """A dtype of the library a tensor came from, without importing that library here."""
    import sys

    return getattr(sys.modules["torch"], name)


def from_dlpack(data: Any) -> Tensor:
    """A tensor that shares the memory of an object with ``__dlpack__`` (NumPy, torch, JAX, ...).

    Example:
        >>> import numpy as np
        >>> from_dlpack(np.ones(2, np.float32))
        tensor([1., 1.])
    """
    from pyflame.ops.creation import asarray

    if not hasattr(data, "__dlpack__"):
        raise TypeError(f"{type(data).__name__} has no __dlpack__; use pf.tensor")
    if str(getattr(data, "dtype", "")) == "torch.bfloat16":
        return from_torch(data)  # NumPy has no name for it
    return asarray(np.from_dlpack(data))


def from_torch(data: Any) -> Tensor:
    """A tensor that shares the memory of a torch tensor on the CPU, without its history.

    Example:
        >>> import torch
        >>> from_torch(torch.ones(2))
        tensor([1., 1.])
    """
    from pyflame.ops.creation import asarray

    if type(data).__module__.split(".")[0] != "torch" or not hasattr(data, "detach"):
        raise TypeError(f"{type(data).__name__} is not a torch tensor; use pf.tensor")
    return asarray(_from_torch(data))
