"""Type rules that primitives share: functions from input values to output types."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyflame_rt.graph import Dim, DimLike, DType, Shape, TensorType
from pyflame_rt.graph.errors import DTypeMismatchError, InputError, ShapeMismatchError, UndeterminedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyflame_rt.ops.core.value import Value

__all__ = [
    "boolean",
    "broadcast",
    "broadcast_shapes",
    "merge_dims",
    "normalize_axes",
    "normalize_axis",
    "same",
    "static_size",
    "tensor_like",
    "to_dtype",
]


def same(x: Value, /, *_: Value | None, **__: Any) -> TensorType:
    """The output has the type of the first input."""
    return x.tensor_type


def boolean(x: Value, /, *_: Value | None, **__: Any) -> TensorType:
    """Like the first input, but Bool."""
    return TensorType(DType.Bool, x.tensor_type.shape)


def to_dtype(dtype: DType) -> Any:
    """A rule: like the first input, with this element type."""

    def rule(x: Value, /, *_: Value | None, **__: Any) -> TensorType:
        return TensorType(dtype, x.tensor_type.shape)

    return rule


def broadcast(*inputs: Value | None, dtype: DType | None = None, **_: Any) -> TensorType:
    """Multidirectional broadcasting; every input must have the same element type."""
    given = [v for v in inputs if v is not None]
    if not given:
        raise InputError("it needs at least one input")
    if dtype is None:
        dtype = given[0].dtype
        for v in given[1:]:
            if v.dtype is not dtype:
                raise DTypeMismatchError(f"inputs have different element types: {dtype.label} and {v.dtype.label}")
    return TensorType(dtype, broadcast_shapes(*[v.tensor_type.shape for v in given]))


def broadcast_shapes(*shapes: Shape | None) -> Shape | None:
    """NumPy's rule on shapes whose sizes may be symbolic or unknown."""
    if any(s is None for s in shapes):
        return None
    rank = max((len(s) for s in shapes if s is not None), default=0)
    dims: list[DimLike] = []
    for i in range(rank):
        column = [s[len(s) - rank + i] for s in shapes if s is not None and len(s) - rank + i >= 0]
        dims.append(_broadcast_dims(column, shapes))
    return Shape(dims)


def _broadcast_dims(column: Sequence[DimLike], shapes: Sequence[Shape | None]) -> DimLike:
    sizes = [d for d in column if d != 1]
    if not sizes:
        return 1
    numbers = [d for d in sizes if isinstance(d, int)]
    if any(d != numbers[0] for d in numbers[1:]):
        raise ShapeMismatchError(f"shapes do not broadcast: {' and '.join(map(str, shapes))}")
    if numbers:
        return numbers[0]
    first = sizes[0]
    # Two different symbols may still be equal, or 1: nothing is known then.
    return first if all(d == first for d in sizes) else None


def merge_dims(a: DimLike, b: DimLike) -> DimLike:
    """One dimension that is both: the more precise of the two; different numbers are an error."""
    if isinstance(a, int) and isinstance(b, int) and a != b:
        raise ShapeMismatchError(f"sizes differ: {a} and {b}")
    if isinstance(a, int) or b is None:
        return a
    return b if isinstance(b, int) or not isinstance(a, Dim) else a


def normalize_axis(axis: int, rank: int, name: str = "axis") -> int:
    """A non-negative axis; out of range is an error."""
    if not -rank <= axis < rank:
        raise ShapeMismatchError(f"{name} {axis} is out of range for a tensor of rank {rank}")
    return axis + rank if axis < 0 else axis


def normalize_axes(axes: Sequence[int], rank: int, name: str = "axes") -> list[int]:
    """Non-negative axes; a repeated one is an error."""
    result = [normalize_axis(int(a), rank, name) for a in axes]
    if len(set(result)) != len(result):
        raise ShapeMismatchError(f"{name} {list(axes)} names one axis twice")
    return result


def tensor_like(x: Value, shape: Sequence[DimLike] | None, dtype: DType | None = None) -> TensorType:
    """A tensor type with the element type of ``x``, or another."""
    return TensorType(x.dtype if dtype is None else dtype, None if shape is None else Shape(shape))


def static_size(dim: DimLike) -> int:
    """A size that must be a number by now."""
    if dim is None:
        raise UndeterminedError("a size is only known when running")
    return int(dim)
