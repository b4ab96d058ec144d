"""Kernels that are addresses of machine code (ctypes, numba), or write into arrays they are given."""

from __future__ import annotations

import ctypes
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.graph import DType
from pyflame_rt.graph.errors import InputError
from pyflame_rt.ops.core.native_call import NativeCall

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["ARRAYS", "BUFFERS", "call_buffers", "call_elements", "is_machine_code", "native_call"]

ARRAYS, BUFFERS = "arrays", "buffers"  # what a signature may say besides T(T, ...)
# Of these a C compiler, LLVM and ctypes agree how they are handed over, whatever the machine.
_C_TYPES: dict[str, Any] = {
    "float32": ctypes.c_float,
    "float64": ctypes.c_double,
    "int32": ctypes.c_int32,
    "int64": ctypes.c_int64,
}
_POINTER = "a pointer"
_ADDRESSES = 2 ** (8 * ctypes.sizeof(ctypes.c_void_p))
_NEEDS_GIL = 4  # FUNCFLAG_PYTHONAPI of ctypes
_FUNCTION: Any = ctypes.CFUNCTYPE(None).__mro__[1]  # what functions of libraries and of prototypes have in common


def native_call(kernel: Any, signature: str, at: str) -> NativeCall:
    """The address behind a kernel, with the stated signature, which must be the one it has where that is known.

    Args:
        kernel: a numba ``cfunc``, a function of ctypes, or an address.
        signature: ``buffers``, or such as ``float32(float32, float32)``.
        at: what messages begin with.
    """
    form, dtypes = ("buffers", ()) if signature == BUFFERS else ("elements", _element_types(signature, at))
    function: Any = kernel if isinstance(kernel, (int, _FUNCTION)) else getattr(kernel, "ctypes", None)
    if isinstance(function, bool) or not isinstance(function, (int, _FUNCTION)):
        raise InputError(
            f"{at}: {signature!r} is the signature of machine code: a numba cfunc, a function of ctypes or an address. "
            f"Got {type(kernel).__name__}; state a Python function over operators with function=, one that writes "
            f"into arrays with signature='arrays'"
        )
    if isinstance(function, _FUNCTION):
        if function._flags_ & _NEEDS_GIL:
            raise InputError(f"{at}: a function of ctypes.PyDLL or PYFUNCTYPE holds the GIL, and is called without it")
        _check_types(function, form, dtypes, signature, at)
    address = function if isinstance(function, int) else ctypes.cast(function, ctypes.c_void_p).value
    if not address or not 0 < address < _ADDRESSES:
        raise InputError(f"{at}: {address!r} is no address of a function")
    return NativeCall(address, form, dtypes, kernel)


def is_machine_code(kernel: Any) -> bool:
    """True for a numba ``cfunc`` and a function of ctypes."""
    return isinstance(kernel, _FUNCTION) or isinstance(getattr(kernel, "ctypes", None), _FUNCTION)


def _element_types(signature: str, at: str) -> tuple[str, ...]:
    found = re.fullmatch(r"\s*(\w+)\s*\(([\w\s,]+)\)\s*", signature)
    names = [] if found is None else [*(part.strip() for part in found[2].split(",")), found[1]]
    if not names or any(name not in _C_TYPES for name in names):
        raise InputError(
            f"{at}: signature {signature!r} is not understood. Give 'arrays', 'buffers', or result and arguments of a "
            f"function of single elements, such as 'float32(float32, float32)', of {', '.join(_C_TYPES)}"
        )
    return tuple(names)


def _check_types(function: Any, form: str, dtypes: Sequence[str], signature: str, at: str) -> None:
    """What a function of ctypes says about itself; one from a library may say nothing."""
    if function.argtypes is None:
        return
    has = [*map(_label, function.argtypes), _label(function.restype)]
    wanted = [_POINTER, _POINTER, _POINTER, "void"] if form == "buffers" else list(dtypes)
    if has != wanted:
        told = f"{has[-1]}({', '.join(has[:-1])})"
        raise InputError(f"{at}: its signature was stated as {signature!r}, but the function has {told}")


def _label(kind: Any) -> str:
    if kind is None:
        return "void"
    if not isinstance(kind, type):  # ctypes takes any function that makes something of an int
        return f"what {kind!r} makes"
    if kind is ctypes.c_void_p or issubclass(kind, ctypes._Pointer):
        return _POINTER
    return next((name for name, own in _C_TYPES.items() if kind is own), kind.__name__)


def call_elements(call: NativeCall) -> Callable[..., Any]:
    """The function on arrays, element by element: for the interpreter."""
    *given, made = call.dtypes
    function = ctypes.CFUNCTYPE(_C_TYPES[made], *(_C_TYPES[name] for name in given))(call.address)
    dtype = DType.of(made).numpy

    def run(*arrays: Any) -> Any:
        return np.asarray(np.frompyfunc(lambda *xs: function(*xs), len(given), 1)(*arrays)).astype(dtype)

    return run


def call_buffers(call: NativeCall, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
    """Run the function on arrays without gaps."""
    sides = [(ctypes.c_void_p * max(len(side), 1))(*(a.ctypes.data for a in side)) for side in (inputs, outputs)]
    numbers = [n for a in (*inputs, *outputs) for n in (a.ndim, *a.shape)]
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)(call.address)
    function(sides[0], sides[1], (ctypes.c_int64 * max(len(numbers), 1))(*numbers))
