"""Tensor: an eager container of numbers (or strings), the weights of a graph."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import numpy as np

from emberharmony.kinds import hides_elements
from pyflame_rt.graph.arguments import expect
from pyflame_rt.graph.dtype import DType
from pyflame_rt.graph.errors import DTypeMismatchError, InputError, ShapeMismatchError
from pyflame_rt.graph.pages import verified
from pyflame_rt.graph.types import Shape

__all__ = ["Tensor", "from_numpy", "to_numpy", "whole"]


def whole(array: Any, where: str) -> np.ndarray[Any, Any]:
    """An array, or a list of arrays, without a mask; one array on the same memory.

    Raises:
        InputError: Something in it is masked.

    Example:
        >>> whole(np.ma.masked_array([1, 2]), "input 'x'")
        array([1, 2])
    """
    if hides_elements(array):
        raise InputError(
            f"{where} is a masked array, and some of its elements are masked: give x.filled(value), or x.data to "
            "ignore the mask"
        )
    return np.asarray(array)


class Tensor:
    """A shape, an element type and the data, held in a NumPy array.

    Example:
        >>> t = Tensor([2, 3], DType.Float32)
        >>> t.shape, t.dtype, t.num_elements, t.size_bytes
        ([2, 3], DType.Float32, 6, 24)
    """

    __slots__ = ("_array", "_dtype", "_unverified")

    def __init__(self, data: Any, dtype: DType | None = None) -> None:
        self._array: np.ndarray[Any, Any]
        if dtype is not None:
            expect(dtype, DType, "dtype")
        if isinstance(data, (bytes, str)):
            raise TypeError(f"Tensor takes a shape or a NumPy array, got {type(data).__name__}")
        if isinstance(data, np.ndarray):
            self._array = whole(data, "the tensor")
            if dtype is not None and DType.of(self._array.dtype) is not dtype:
                raise DTypeMismatchError(f"array holds {self._array.dtype}, not {dtype.label}; cast it first")
        elif isinstance(data, Iterable):
            self._array = _zeros(cast("Iterable[object]", data), DType.Float32 if dtype is None else dtype)
        else:
            raise TypeError(f"Tensor takes a shape or a NumPy array, got {type(data).__name__}")
        self._dtype = DType.of(self._array.dtype)
        self._unverified = False

    @classmethod
    def unverified(cls, array: np.ndarray[Any, Any]) -> Tensor:
        """A tensor on memory that is checked when it is first read (:func:`pyflame_rt.graph.pages.verified`)."""
        made = cls(array)
        made._unverified = True
        return made

    @property
    def shape(self) -> Shape:
        """Dimensions, printed as a list."""
        return Shape(self._array.shape)

    @property
    def dtype(self) -> DType:
        """Element type."""
        return self._dtype

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return self._array.ndim

    @property
    def num_elements(self) -> int:
        """Number of elements."""
        return int(self._array.size)

    @property
    def size_bytes(self) -> int:
        """Bytes of data (the text itself, for strings)."""
        if self._dtype is DType.String:
            return sum(len(str(s).encode()) for s in self._array.ravel())
        return int(self._array.nbytes)

    @property
    def is_valid(self) -> bool:
        """True: a Tensor always has data."""
        return True

    @property
    def owns_data(self) -> bool:
        """True when the memory is its own, not a view of another tensor or a mapped file."""
        return bool(self._array.flags.owndata)

    def numpy(self) -> np.ndarray[Any, Any]:
        """The values as a NumPy array; bfloat16, which NumPy lacks, as float32. See :meth:`raw`."""
        array = self.raw()
        return array.astype(np.float32) if self._dtype is DType.BFloat16 else array

    def raw(self) -> np.ndarray[Any, Any]:
        """The array as held, small types in their ml_dtypes form."""
        array = self.stored()
        if not array.flags.aligned:
            array = self._array = array.copy()
        return array

    def stored(self) -> np.ndarray[Any, Any]:
        """The array as it lies in the file it was read from, perhaps not aligned, for code that copies it anyway."""
        if self._unverified:
            self._array = verified(self._array)
            self._unverified = False
        return self._array

    def unread(self) -> np.ndarray[Any, Any]:
        """The same, for code that looks at its form and place alone."""
        return self._array

    def clone(self) -> Tensor:
        """A deep copy."""
        return Tensor(self.stored().copy())

    def view(self) -> Tensor:
        """A tensor on the same memory."""
        return Tensor(self.raw().view())

    def reshape(self, *shape: Any) -> Tensor:
        """The same elements in another shape; one dimension may be -1."""
        listed = len(shape) == 1 and isinstance(shape[0], Iterable)
        dims = list(cast("Iterable[Any]", shape[0] if listed else shape))
        try:
            return Tensor(self.stored().reshape(dims).copy())
        except ValueError as error:
            raise ShapeMismatchError(f"cannot reshape {self.shape} ({self.num_elements} elements) to {dims}") from error

    def zero(self) -> None:
        """Set every element to zero, in place."""
        self.fill("" if self._dtype is DType.String else 0)

    def fill(self, value: object) -> None:
        """Set every element to ``value``, in place."""
        if not self._array.flags.writeable:
            raise TypeError("this tensor is a view of read-only memory; clone() it first")
        self._array[...] = value

    def data_ptr(self) -> int:
        """Address of the first element."""
        return int(self.raw().ctypes.data)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        array = self.numpy()
        if dtype is not None and array.dtype != np.dtype(dtype):
            return array.astype(dtype)
        return array.copy() if copy else array

    def __len__(self) -> int:
        return len(self._array)

    def __repr__(self) -> str:
        return f"Tensor({self._dtype.label}{self.shape})"


def from_numpy(array: object) -> Tensor:
    """A tensor holding a copy of ``array``, its element type kept.

    Example:
        >>> from_numpy(np.ones((2, 2), np.int8))
        Tensor(int8[2, 2])
    """
    try:
        source = np.asarray(array)
    except ValueError as error:
        raise InputError(f"{type(array).__name__} cannot be read as an array: {error}") from error
    if source.dtype.kind in "US":
        source = source.astype(object)
    elif source.dtype == object and not all(isinstance(item, (str, bytes)) for item in source.flat):
        raise TypeError(f"from_numpy takes an array of numbers or strings, got {type(array).__name__} of objects")
    try:
        DType.of(source.dtype)
    except DTypeMismatchError as error:
        raise TypeError(str(error)) from error
    # A fresh array, not a view: asarray().copy() alone would keep a reversed memory order.
    return Tensor(np.array(source, order="C", copy=True))


def to_numpy(tensor: Tensor) -> np.ndarray[Any, Any]:
    """The values of a tensor as a NumPy array.

    Example:
        >>> to_numpy(Tensor([2], DType.Int32))
        array([0, 0], dtype=int32)
    """
    if not isinstance(tensor, Tensor):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may be untyped
        raise TypeError(f"to_numpy takes a Tensor, got {type(tensor).__name__}")
    return tensor.numpy()


def _zeros(shape: Iterable[object], dtype: DType) -> np.ndarray[Any, Any]:
    dims = Shape(shape)
    if not dims.is_static:
        raise ShapeMismatchError(f"a tensor needs a static shape, got {dims}")
    if dtype is DType.String:
        return np.full(tuple(dims), "", dtype=object)  # type: ignore[arg-type]
    return np.zeros(tuple(dims), dtype=dtype.numpy)  # type: ignore[arg-type]
