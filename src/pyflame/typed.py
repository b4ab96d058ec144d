"""Constructors by element type, under torch's old names: FloatTensor, LongTensor and the others."""

from __future__ import annotations

from typing import Any

from pyflame.dtypes import DType
from pyflame.ops.core import Handle
from pyflame.ops.creation import of_kind

__all__ = [
    "BFloat16Tensor",
    "BoolTensor",
    "ByteTensor",
    "CharTensor",
    "DoubleTensor",
    "FloatTensor",
    "HalfTensor",
    "IntTensor",
    "LongTensor",
    "ShortTensor",
    "name_of",
]


class _Kind(type):
    """Makes `isinstance(x, FloatTensor)` look at the element type."""

    dtype: DType

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, Handle) and instance._value.spec.dtype is cls.dtype


def _constructor(name: str, dtype: DType) -> Any:
    text = f"A tensor of {dtype.name}: of the elements of a list or an array, or of given sizes (zeros)."
    return _Kind(name, (), {"__doc__": text, "dtype": dtype, "__new__": lambda cls, *args: of_kind(args, cls.dtype)})


FloatTensor, DoubleTensor = _constructor("FloatTensor", DType.float32), _constructor("DoubleTensor", DType.float64)
HalfTensor, BFloat16Tensor = _constructor("HalfTensor", DType.float16), _constructor("BFloat16Tensor", DType.bfloat16)
LongTensor, IntTensor = _constructor("LongTensor", DType.int64), _constructor("IntTensor", DType.int32)
ShortTensor, CharTensor = _constructor("ShortTensor", DType.int16), _constructor("CharTensor", DType.int8)
ByteTensor, BoolTensor = _constructor("ByteTensor", DType.uint8), _constructor("BoolTensor", DType.bool)

_NAMES = {
    kind.dtype: kind.__name__
    for kind in (
        FloatTensor, DoubleTensor, HalfTensor, BFloat16Tensor, LongTensor, IntTensor, ShortTensor, CharTensor,
        ByteTensor, BoolTensor,
    )
} | {DType.complex64: "ComplexFloatTensor", DType.complex128: "ComplexDoubleTensor"}  # fmt: skip


def name_of(dtype: DType) -> str:
    """Torch's name for tensors of an element type.

    Example:
        >>> name_of(DType.int64)
        'torch.LongTensor'
    """
    return f"torch.{_NAMES[dtype]}"


def dtype_named(target: Any) -> Any:
    """The element type for one of these constructors, or for its name; anything else as it is."""
    if isinstance(target, _Kind):
        return target.dtype
    if isinstance(target, str) and target.endswith("Tensor"):
        by_name = {name: dtype for dtype, name in _NAMES.items()}
        *path, name = target.split(".")
        if name not in by_name or "cuda" in path:
            raise TypeError(f"there are no tensors of type {target!r} here. Types: {', '.join(sorted(by_name))}")
        return by_name[name]
    return target
