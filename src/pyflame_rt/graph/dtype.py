"""Element types: the documented ten, then everything else ONNX knows."""

from __future__ import annotations

from enum import Enum
from functools import lru_cache
from typing import Any

import ml_dtypes
import numpy as np

from pyflame_rt.graph.errors import DTypeMismatchError

__all__ = ["DType"]


# By value, which counts from 0: asked for far more often than anything else of a type.
_names: list[str] = []
_hashes: list[int] = []


class DType(Enum):
    """The element type of a tensor.

    Members are reachable in CamelCase, UPPER_CASE and lower case.

    Example:
        >>> DType.Float32, DType.FLOAT32 is DType.Float32, DType.Float32.itemsize
        (DType.Float32, True, 4)
        >>> DType.of(np.dtype("int8"))
        DType.Int8
    """

    Float32 = 0
    Float16 = 1
    BFloat16 = 2
    Float64 = 3
    Int64 = 4
    Int32 = 5
    Int16 = 6
    Int8 = 7
    UInt8 = 8
    Bool = 9
    UInt16 = 10
    UInt32 = 11
    UInt64 = 12
    Complex64 = 13
    Complex128 = 14
    Float8E4M3FN = 15
    Float8E4M3FNUZ = 16
    Float8E5M2 = 17
    Float8E5M2FNUZ = 18
    Float8E8M0 = 19
    Float4E2M1 = 20
    Int4 = 21
    UInt4 = 22
    Int2 = 23
    UInt2 = 24
    String = 25
    Float6E2M3 = 26
    Float6E3M2 = 27

    def __repr__(self) -> str:
        return f"DType.{self.name}"

    def __str__(self) -> str:
        return f"DType.{self.name}"

    def __eq__(self, other: object) -> bool:
        # Equal by name across the packages, so that pf.float32 == DType.Float32.
        if isinstance(other, DType):
            return self is other
        if isinstance(other, Enum) and type(other).__name__ == "DType":
            return other.name.lower() == self.label
        return NotImplemented

    def __hash__(self) -> int:
        return _hashes[self._value_]

    @property
    def label(self) -> str:
        """The lower-case name, as in ``tensor(float32)``."""
        return _names[self._value_]

    @property
    def numpy(self) -> np.dtype[Any]:
        """The NumPy (or ml_dtypes) type that holds it."""
        return _NUMPY[self._name_]

    @property
    def itemsize(self) -> int:
        """Bytes per element in memory (packed 4- and 2-bit types take one here; strings 0)."""
        return 0 if self is DType.String else self.numpy.itemsize

    @property
    def size(self) -> int:
        """Same as :attr:`itemsize`."""
        return self.itemsize

    @property
    def bits(self) -> int:
        """Bits per element on disk."""
        return _BITS.get(self._name_, self.itemsize * 8)

    @property
    def onnx(self) -> int:
        """The number of this type in ONNX's TensorProto.DataType."""
        return _ONNX[self._name_]

    @property
    def is_float(self) -> bool:
        """True for every floating-point kind, small ones included."""
        return "Float" in self.name

    @property
    def is_integer(self) -> bool:
        """True for signed and unsigned integers, not for Bool."""
        return "Int" in self.name

    @property
    def is_complex(self) -> bool:
        """True for the two complex kinds."""
        return "Complex" in self.name

    @property
    def is_signed(self) -> bool:
        """True where values may be negative."""
        return not (self.name.startswith("UInt") or self in (DType.Bool, DType.String))

    @classmethod
    def of(cls, dtype: object) -> DType:
        """The member for anything that names a type: a DType, NumPy dtype, scalar type or name."""
        if isinstance(dtype, DType):
            return dtype
        try:
            if dtype is None:  # NumPy would read it as float64
                raise TypeError("no element type")
            return _of(dtype)
        except (TypeError, KeyError, ValueError, SyntaxError) as error:  # NumPy reads names such as "2i4, f8", too
            raise DTypeMismatchError(
                f"element type {dtype!r} is not supported. Supported: {', '.join(d.label for d in cls)}"
            ) from error

    @classmethod
    def from_onnx(cls, number: int) -> DType:
        """The member for a TensorProto.DataType number."""
        try:
            return _FROM_ONNX[number]
        except KeyError:
            raise DTypeMismatchError(f"ONNX element type {number} is not known") from None


_names.extend(_member.name.lower() for _member in DType)
_hashes.extend(map(hash, _names))
_BITS = {"Int4": 4, "UInt4": 4, "Int2": 2, "UInt2": 2, "Float4E2M1": 4, "Float6E2M3": 6, "Float6E3M2": 6}
_NUMPY: dict[str, np.dtype[Any]] = {
    "Float32": np.dtype(np.float32),
    "Float16": np.dtype(np.float16),
    "BFloat16": np.dtype(ml_dtypes.bfloat16),
    "Float64": np.dtype(np.float64),
    "Int64": np.dtype(np.int64),
    "Int32": np.dtype(np.int32),
    "Int16": np.dtype(np.int16),
    "Int8": np.dtype(np.int8),
    "UInt8": np.dtype(np.uint8),
    "Bool": np.dtype(np.bool_),
    "UInt16": np.dtype(np.uint16),
    "UInt32": np.dtype(np.uint32),
    "UInt64": np.dtype(np.uint64),
    "Complex64": np.dtype(np.complex64),
    "Complex128": np.dtype(np.complex128),
    "Float8E4M3FN": np.dtype(ml_dtypes.float8_e4m3fn),
    "Float8E4M3FNUZ": np.dtype(ml_dtypes.float8_e4m3fnuz),
    "Float8E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "Float8E5M2FNUZ": np.dtype(ml_dtypes.float8_e5m2fnuz),
    "Float8E8M0": np.dtype(ml_dtypes.float8_e8m0fnu),
    "Float4E2M1": np.dtype(ml_dtypes.float4_e2m1fn),
    "Int4": np.dtype(ml_dtypes.int4),
    "UInt4": np.dtype(ml_dtypes.uint4),
    "Int2": np.dtype(ml_dtypes.int2),
    "UInt2": np.dtype(ml_dtypes.uint2),
    "Float6E2M3": np.dtype(ml_dtypes.float6_e2m3fn),
    "Float6E3M2": np.dtype(ml_dtypes.float6_e3m2fn),
    "String": np.dtype(object),
}
_ONNX = {
    "Float32": 1, "UInt8": 2, "Int8": 3, "UInt16": 4, "Int16": 5, "Int32": 6, "Int64": 7, "String": 8, "Bool": 9,
    "Float16": 10, "Float64": 11, "UInt32": 12, "UInt64": 13, "Complex64": 14, "Complex128": 15, "BFloat16": 16,
    "Float8E4M3FN": 17, "Float8E4M3FNUZ": 18, "Float8E5M2": 19, "Float8E5M2FNUZ": 20, "UInt4": 21, "Int4": 22,
    "Float4E2M1": 23, "Float8E8M0": 24, "UInt2": 25, "Int2": 26, "Float6E2M3": 27, "Float6E3M2": 28,
}  # fmt: skip
_FROM_ONNX = {number: DType[name] for name, number in _ONNX.items()}
_FROM_NUMPY = {dtype: DType[name] for name, dtype in _NUMPY.items()}
_FROM_LABEL = {member.label: member for member in DType} | {
    "float": DType.Float32, "double": DType.Float64, "half": DType.Float16, "str": DType.String, "bool_": DType.Bool,
}  # fmt: skip

for _member in list(DType):
    for _alias in (_member.name.upper(), _member.label):
        if _alias not in DType.__members__:
            setattr(DType, _alias, _member)
            DType._member_map_[_alias] = _member


@lru_cache(maxsize=256)
def _of(dtype: str | np.dtype[Any] | type) -> DType:
    if isinstance(dtype, str) and dtype.lower() in _FROM_LABEL:
        return _FROM_LABEL[dtype.lower()]
    resolved = np.dtype(dtype)
    if resolved.kind in "US" or resolved.kind == "T":
        return DType.String
    return _FROM_NUMPY[resolved.newbyteorder("=") if resolved.kind in "iufc" else resolved]
