"""Data from and for other libraries: NumPy, DLPack, torch, buffers."""

from __future__ import annotations

import ctypes
import importlib
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from pyflame_rt.graph.errors import MissingExtra
from pyflame_rt.graph.tensor import whole

if TYPE_CHECKING:
    from pyflame.tensors import Tensor

__all__ = ["apply_ufunc", "dlpack_capsule", "from_dlpack", "from_torch", "plain_arrays", "to_array", "to_torch"]

# NumPy's functions whose name here is another one.
UFUNCS = {"absolute": "abs", "equal": "eq", "power": "pow", "invert": "bitwise_not"}


def to_array(data: Any) -> np.ndarray[Any, Any]:
    """A NumPy array from what users pass: arrays, lists, torch tensors, DLPack or buffer objects."""
    if isinstance(data, np.ndarray):
        return data if type(data) is np.ndarray else whole(data, "the data of a tensor")
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
        array = whole(data, "the data of a tensor")
    except ValueError as error:
        raise ValueError(f"rows of different lengths do not make a tensor: {error}") from error
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
    if str(data.layout) != "torch.strided":
        raise TypeError(f"a tensor of layout {data.layout} has no array of its elements; give x.to_dense()")
    plain = data.detach().cpu().resolve_conj().resolve_neg().contiguous()
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


def dlpack_capsule(array: np.ndarray[Any, Any], options: dict[str, Any]) -> Any:
    """An array for other libraries. NumPy has no name for bfloat16: its bits go out, with the name put in after.

    Example:
        >>> import pyflame as pf, torch
        >>> torch.from_dlpack(pf.tensor([1.5, 2.0], dtype=pf.bfloat16))
        tensor([1.5000, 2.0000], dtype=torch.bfloat16)
    """
    if array.dtype != ml_dtypes.bfloat16:
        return array.__dlpack__(**options)
    capsule = array.view(np.uint16).__dlpack__(**options)
    api = ctypes.pythonapi
    api.PyCapsule_GetName.restype, api.PyCapsule_GetName.argtypes = ctypes.c_char_p, [ctypes.py_object]
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    name = api.PyCapsule_GetName(capsule)
    start = api.PyCapsule_GetPointer(capsule, name) + _DL_TENSORS[name]
    _DLTensor.from_address(start).code = _BFLOAT
    return capsule


# Where the tensor stands in a capsule of each kind, and the code of bfloat16, as DLPack has them.
_DL_TENSORS = {b"dltensor": 0, b"dltensor_versioned": 2 * 4 + 2 * ctypes.sizeof(ctypes.c_void_p) + 8}
_BFLOAT = 4


class _DLTensor(ctypes.Structure):
    """The beginning of DLPack's tensor."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
    )


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


def to_torch(tensor: Tensor, *, copy: bool = False) -> Any:
    """A torch tensor of the same contents, without history; it shares the memory unless ``copy`` is set.

    Tensors here never change their values in place, and graphs that were recorded read them: do not write into what is
    shared. Ask for a copy where torch will.

    Example:
        >>> import pyflame as pf
        >>> pf.to_torch(pf.tensor([1.0, 2.0]))
        tensor([1., 2.])
    """
    try:
        torch = importlib.import_module("torch")
    except ModuleNotFoundError as error:
        raise MissingExtra("to_torch needs torch: pip install 'pyflame[torch]'") from error
    shared = torch.from_dlpack(tensor.detach())
    return shared.clone() if copy else shared
