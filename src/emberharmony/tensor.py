"""A thin class around an array of any library, with operators and methods."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from emberharmony import ops
from emberharmony.declared import DECLARED
from emberharmony.guards.indexing import safe_key
from emberharmony.kinds import array_library, register_wrapper, unwrapped
from emberharmony.library import library
from emberharmony.typing import Array, ArrayLike, DTypeLike


def _wrapped(value: Any) -> Any:
    """Arrays in a result as tensors; anything else as it is."""
    if isinstance(value, list | tuple):
        return type(value)(_wrapped(v) for v in value)
    return EmberTensor(value) if array_library(value) is not None else value


def _operator(name: str, *, swapped: bool = False) -> Callable[..., "EmberTensor"]:
    """A Python operator that calls an operation."""

    def call(self: "EmberTensor", other: ArrayLike) -> "EmberTensor":
        operands = (other, self) if swapped else (self, other)
        return _wrapped(getattr(ops, name)(*operands))

    return call


class EmberTensor:
    """An array with the same operators and methods on every library.

    Every operation of `ops` is a method, and `ops` takes tensors where it takes arrays.

    Args:
        value: An array of any library, or data for one of the current backend.
        dtype: The dtype, if another than that of `value`.

    >>> t = EmberTensor(np.array([1.0, 2.0]))
    >>> (t + 1).mean()
    EmberTensor(array(2.5))
    """

    __slots__ = ("array",)
    # NumPy scalars on the left then leave the operator to us.
    __array_ufunc__ = None
    array: Array

    def __init__(self, value: ArrayLike, dtype: DTypeLike = None) -> None:
        value = unwrapped(value)
        known = array_library(value) is not None
        made = value if known else ops.convert_to_tensor(value, dtype)
        self.array = made if dtype is None else ops.cast(made, dtype)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_") or name not in DECLARED:
            raise AttributeError(f"EmberTensor has no attribute {name!r}")
        function = getattr(ops, name)
        return lambda *args, **options: _wrapped(function(self.array, *args, **options))

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of all axes."""
        return ops.shape(self.array)

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return ops.size(self.array)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The canonical dtype."""
        return ops.get_dtype(self.array)

    @property
    def device(self) -> str:
        """Name of the device the array lives on."""
        return ops.get_device(self.array)

    @property
    def T(self) -> "EmberTensor":
        """Axes reversed."""
        return _wrapped(ops.transpose(self.array))

    def astype(self, dtype: DTypeLike) -> "EmberTensor":
        """Elements converted to another dtype."""
        return _wrapped(ops.cast(self.array, dtype))

    def numpy(self) -> np.ndarray:
        """The values on the host."""
        return ops.to_numpy(self.array)

    def item(self) -> Any:
        """The one element as a Python number."""
        return self.numpy().item()

    def tolist(self) -> Any:
        """The values as nested lists."""
        return self.numpy().tolist()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.numpy(), dtype=dtype, copy=copy)

    def __len__(self) -> int:
        return len(self.array)

    def __iter__(self) -> Iterator["EmberTensor"]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, key: Any) -> "EmberTensor":
        lib = library(array_library(self.array) or "numpy")
        return EmberTensor(lib.as_array(self.array[safe_key(lib, self.array, unwrapped(key))]))

    def __bool__(self) -> bool:
        return bool(self.numpy())

    def __float__(self) -> float:
        return float(self.numpy())

    def __int__(self) -> int:
        return int(self.numpy())

    def __index__(self) -> int:
        return self.numpy().__index__()

    def __repr__(self) -> str:
        return f"EmberTensor({self.array!r})"

    __hash__ = object.__hash__

    def __neg__(self) -> "EmberTensor":
        return _wrapped(ops.negative(self.array))

    def __pos__(self) -> "EmberTensor":
        return self

    def __abs__(self) -> "EmberTensor":
        return _wrapped(ops.abs(self.array))

    def __invert__(self) -> "EmberTensor":
        return _wrapped(ops.bitwise_not(self.array))

    __add__, __radd__ = _operator("add"), _operator("add", swapped=True)
    __sub__, __rsub__ = _operator("subtract"), _operator("subtract", swapped=True)
    __mul__, __rmul__ = _operator("multiply"), _operator("multiply", swapped=True)
    __truediv__, __rtruediv__ = _operator("divide"), _operator("divide", swapped=True)
    __floordiv__, __rfloordiv__ = (
        _operator("floor_divide"),
        _operator("floor_divide", swapped=True),
    )
    __mod__, __rmod__ = _operator("mod"), _operator("mod", swapped=True)
    __pow__, __rpow__ = _operator("power"), _operator("power", swapped=True)
    __matmul__, __rmatmul__ = _operator("matmul"), _operator("matmul", swapped=True)
    __and__, __rand__ = _operator("bitwise_and"), _operator("bitwise_and", swapped=True)
    __or__, __ror__ = _operator("bitwise_or"), _operator("bitwise_or", swapped=True)
    __xor__, __rxor__ = _operator("bitwise_xor"), _operator("bitwise_xor", swapped=True)
    __lt__, __le__ = _operator("less"), _operator("less_equal")
    __gt__, __ge__ = _operator("greater"), _operator("greater_equal")
    __eq__ = _operator("equal")  # pyright: ignore[reportAssignmentType]
    __ne__ = _operator("not_equal")  # pyright: ignore[reportAssignmentType]


register_wrapper(EmberTensor)

__all__ = ["EmberTensor"]
