"""Scalars of 16 bits: IEEE half precision and bfloat16."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import ml_dtypes
import numpy as np

__all__ = ["BFloat16", "Float16"]


class _Half:
    """A number kept in 16 bits."""

    __slots__ = ("_value",)
    _kind: ClassVar[Any]

    def __init__(self, bits: int = 0) -> None:
        self._value = np.uint16(bits).view(self._kind)

    @classmethod
    def from_float(cls, value: float) -> Any:
        """The nearest number of 16 bits; ties go to the even one, too large ones to infinity."""
        made = cls()
        with np.errstate(over="ignore"):
            made._value = np.asarray(np.float32(value)).astype(cls._kind)[()]
        return made

    def to_float(self) -> float:
        """The number; every one of 16 bits is a float exactly."""
        return float(self._value)

    __float__ = to_float

    @property
    def bits(self) -> int:
        """The 16 bits as a number."""
        return int(np.asarray(self._value).view(np.uint16)[()])

    def is_nan(self) -> bool:
        """Whether it is not a number."""
        return math.isnan(self.to_float())

    def is_inf(self) -> bool:
        """Whether it is infinite."""
        return math.isinf(self.to_float())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, (_Half, int, float)):
            return self.to_float() == float(other)
        return NotImplemented

    def __hash__(self) -> int:
        return hash(self.to_float())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.to_float()!r})"


class Float16(_Half):
    """A number of IEEE 754 half precision: 5 bits of exponent, 10 of fraction.

    Example:
        >>> Float16.from_float(3.14).to_float(), Float16.from_float(1e38).is_inf()
        (3.140625, True)
    """

    __slots__ = ()
    _kind = np.dtype(np.float16)


class BFloat16(_Half):
    """The upper half of a float32: 8 bits of exponent, 7 of fraction.

    Example:
        >>> BFloat16.from_float(3.14).to_float(), BFloat16.from_float(1e38).is_inf()
        (3.140625, False)
    """

    __slots__ = ()
    _kind = np.dtype(ml_dtypes.bfloat16)
