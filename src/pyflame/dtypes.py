"""Element types: ``pf.float32`` and its relatives."""

from __future__ import annotations

from enum import Enum
from typing import Any

import ml_dtypes
import numpy as np

from pyflame_rt.graph import DType as RtDType
from pyflame_rt.graph.errors import DTypeMismatchError

__all__ = [
    "DType",
    "WrongTypeError",
    "default_dtype",
    "dtype_name",
    "dtype_size",
    "finfo",
    "get_default_dtype",
    "iinfo",
    "promote_types",
    "result_dtype",
    "set_default_dtype",
    "to_dtype",
]


class WrongTypeError(DTypeMismatchError, TypeError):
    """Elements of a type that something does not take."""


class DType(Enum):
    """The element type of a tensor.

    Example:
        >>> import pyflame as pf
        >>> pf.float32, pf.float32.itemsize, pf.int8.is_floating_point
        (DType.float32, 4, False)
    """

    float32 = 0
    float16 = 1
    bfloat16 = 2
    float64 = 3
    int64 = 4
    int32 = 5
    int16 = 6
    int8 = 7
    uint8 = 8
    bool = 9
    complex64 = 13
    complex128 = 14
    bool_ = bool

    numpy: np.dtype[Any]
    rt: RtDType
    itemsize: int
    is_floating_point: bool
    is_integer: bool
    is_complex: bool

    def __repr__(self) -> str:
        return f"DType.{self.name}"

    __str__ = __repr__

    def __eq__(self, other: object) -> Any:
        if isinstance(other, DType):
            return self is other
        if isinstance(other, RtDType):
            return self.rt is other
        return NotImplemented

    def __hash__(self) -> int:
        return hash(self._name_)

    @property
    def is_inexact(self) -> Any:
        """Whether gradients can flow through it: floating point, real or complex."""
        return self.is_floating_point or self.is_complex

    def to_complex(self) -> DType:
        """The complex type whose parts hold numbers of this type.

        Example:
            >>> DType.float64.to_complex(), DType.int32.to_complex(), DType.complex64.to_complex()
            (DType.complex128, DType.complex64, DType.complex64)
        """
        wide = self if self.is_inexact else _default[0]
        return DType.complex128 if wide in (DType.float64, DType.complex128) else DType.complex64

    def to_real(self) -> DType:
        """The type of the parts of a complex type; other types as they are.

        Example:
            >>> DType.complex64.to_real(), DType.float16.to_real()
            (DType.float32, DType.float16)
        """
        return {DType.complex64: DType.float32, DType.complex128: DType.float64}.get(self, self)


_RANK = {
    DType.bool: 0, DType.uint8: 1, DType.int8: 1, DType.int16: 2, DType.int32: 3, DType.int64: 4,
    DType.float16: 5, DType.bfloat16: 5, DType.float32: 6, DType.float64: 7, DType.complex64: 8, DType.complex128: 9,
}  # fmt: skip
_FLOATS = (DType.float16, DType.bfloat16, DType.float32, DType.float64)

for _member in DType:
    _member.rt = RtDType(_member.value)
    _member.numpy = _member.rt.numpy
    _member.itemsize = _member.rt.itemsize
    _member.is_floating_point = _member in _FLOATS
    _member.is_complex = _member.rt.is_complex
    _member.is_integer = 1 <= _RANK[_member] <= 4

_FROM_RT = {member.rt: member for member in DType}
_FROM_TYPE: dict[object, DType] = {
    float: DType.float32, int: DType.int64, bool: DType.bool, complex: DType.complex64,
}  # fmt: skip
_FROM_TYPE |= {member.numpy: member for member in DType} | {member.numpy.type: member for member in DType}
_FROM_TYPE |= {member.name: member for member in DType} | _FROM_RT
_FROM_TYPE |= {"bool_": DType.bool, "float": DType.float32, "half": DType.float16, "double": DType.float64}
_FROM_TYPE |= {"int": DType.int32, "long": DType.int64, "short": DType.int16}
_FROM_TYPE |= {"cfloat": DType.complex64, "cdouble": DType.complex128}


def to_dtype(dtype: object) -> DType:
    """The member for anything that names a type: a DType, a NumPy or torch dtype, a Python type, a name.

    Example:
        >>> to_dtype("float16"), to_dtype(np.int32), to_dtype(float)
        (DType.float16, DType.int32, DType.float32)
    """
    if isinstance(dtype, DType):
        return dtype
    try:
        return _FROM_TYPE[dtype]
    except (KeyError, TypeError):
        pass
    if type(dtype).__module__ == "torch":
        name = str(dtype).removeprefix("torch.")
        if name in _FROM_TYPE:
            return _FROM_TYPE[name]
    else:
        try:
            return _FROM_RT[RtDType.of(dtype)]
        except (KeyError, DTypeMismatchError):
            pass
    known = ", ".join(member.name for member in DType)
    raise TypeError(f"element type {dtype!r} is not supported. Supported: {known}")


def dtype_size(dtype: object) -> int:
    """Bytes of one element.

    Example:
        >>> dtype_size("float16")
        2
    """
    return to_dtype(dtype).itemsize


def dtype_name(dtype: object) -> str:
    """The name of a type.

    Example:
        >>> dtype_name(np.float64)
        'float64'
    """
    return to_dtype(dtype).name


def finfo(dtype: object = None) -> Any:
    """The limits of a floating-point type, the default one if none is named: ``eps``, ``min``, ``max``, ``bits``.

    Those of a complex type are those of its parts.

    Example:
        >>> finfo("float32").bits, float(finfo("bfloat16").eps)
        (32, 0.0078125)
    """
    kind = get_default_dtype() if dtype is None else to_dtype(dtype).to_real()
    if not kind.is_floating_point:
        raise TypeError(f"finfo takes a floating-point type, got {kind}; use iinfo")
    return ml_dtypes.finfo(kind.numpy)


def iinfo(dtype: object) -> Any:
    """The limits of a type of integers: ``min``, ``max``, ``bits``.

    Example:
        >>> iinfo("int8").max
        127
    """
    kind = to_dtype(dtype)
    if not kind.is_integer:
        raise TypeError(f"iinfo takes a type of integers, got {kind}; use finfo")
    return np.iinfo(kind.numpy)


_default = [DType.float32]


def get_default_dtype() -> DType:
    """The type of floating-point results whose inputs do not say.

    Example:
        >>> get_default_dtype()
        DType.float32
    """
    return _default[0]


default_dtype = get_default_dtype


def set_default_dtype(dtype: object) -> None:
    """Choose the type that creation functions use; a floating-point one.

    Example:
        >>> set_default_dtype("float32")
    """
    chosen = to_dtype(dtype)
    if not chosen.is_floating_point:
        raise TypeError(f"the default element type must be a floating-point one, got {chosen}")
    _default[0] = chosen


_promoted: dict[tuple[DType, DType], DType] = {}


def promote_types(a: object, b: object) -> DType:
    """The smallest type that holds both: bool < integers < float16, bfloat16 < float32 < float64 < complex.

    Example:
        >>> promote_types("float16", "bfloat16"), promote_types("uint8", "int8"), promote_types("int64", "float16")
        (DType.float32, DType.int16, DType.float16)
    """
    first, second = to_dtype(a), to_dtype(b)
    found = _promoted.get((first, second))
    if found is None:
        found = _promoted[first, second] = _promote(first, second)
    return found


def _promote(a: DType, b: DType) -> DType:
    if a is b:
        return a
    if {a, b} == {DType.float16, DType.bfloat16}:
        return DType.float32
    if DType.complex64 in (a, b) and DType.float64 in (a, b):
        return DType.complex128
    if _RANK[a] == _RANK[b]:
        return DType.int16  # the two bytes, signed and unsigned
    return a if _RANK[a] > _RANK[b] else b


def category(dtype: DType) -> int:
    """0 for bool, 1 for integers, 2 for floating point, 3 for complex numbers."""
    return 3 if dtype.is_complex else 2 if dtype.is_floating_point else (1 if dtype.is_integer else 0)


def result_dtype(operands: list[tuple[DType, bool]], scalars: list[object]) -> DType:
    """The type in which operands meet, as PyTorch has it.

    Args:
        operands: element type of each tensor, and whether it has dimensions; one without dimensions
            only counts where it is of a higher category than all that have some.
        scalars: Python numbers, which are weaker still.
    """
    best: DType | None = None
    for level in (True, False):
        group = [dtype for dtype, has_dims in operands if has_dims is level]
        if group:
            together = group[0]
            for dtype in group[1:]:
                together = promote_types(together, dtype)
            best = together if best is None else _meet(best, together)
    for scalar in scalars:
        kind = _scalar_dtype(scalar)
        best = kind if best is None else _meet(best, kind)
    if best is None:
        raise TypeError("there is no tensor or number to take an element type from")
    return best


def _meet(strong: DType, weak: DType) -> DType:
    """Where a type meets another that only counts if it is of a higher category; parts keep the width they have."""
    if category(weak) <= category(strong):
        return strong
    return strong.to_complex() if weak.is_complex and strong.is_floating_point else weak


def _scalar_dtype(value: object) -> DType:
    if isinstance(value, (bool, np.bool_)):
        return DType.bool
    if isinstance(value, (int, np.integer)):
        return DType.int64
    if isinstance(value, (float, np.floating)):
        return _default[0]
    if isinstance(value, (complex, np.complexfloating)):
        return _default[0].to_complex()
    if getattr(getattr(value, "dtype", None), "kind", "") in ("f", "V"):
        return _default[0]  # ml_dtypes scalars
    raise TypeError(f"a tensor does not combine with {type(value).__name__} ({value!r})")


def scalar_dtype(value: object) -> DType:
    """The type a Python or NumPy number has on its own."""
    return _scalar_dtype(value)
