"""Shapes and the types a value can have: Tensor | Sequence | Optional | Map."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias, cast

from pyflame_rt.graph.dim import Dim, DimLike, dim_from_text
from pyflame_rt.graph.errors import ShapeMismatchError
from pyflame_rt.graph.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyflame_rt.graph.dtype import DType

__all__ = [
    "MapType",
    "OptionalType",
    "SequenceType",
    "Shape",
    "TensorType",
    "ValueType",
    "make_dim",
]


def make_dim(value: object) -> DimLike:
    """One dimension from what users write: an int, a name, None or -1 for unknown.

    Example:
        >>> make_dim(3), make_dim("N"), make_dim(None), make_dim(-1)
        (3, N, None, None)
    """
    if isinstance(value, str):
        value = dim_from_text(value)
    if value is None or isinstance(value, Dim):
        return value
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise ShapeMismatchError(f"a dimension must be an int, a name or None, got {value!r}")
    size = int(value)  # type: ignore[call-overload]
    if size < -1:
        raise ShapeMismatchError(f"a dimension must not be negative, got {size}")
    return None if size == -1 else size


class Shape(tuple[DimLike, ...]):
    """Dimensions of a tensor: a tuple that prints as a list and equals one.

    Example:
        >>> Shape([2, None]), Shape([2, 3]) == [2, 3], Shape((2, 3)) == (2, 3)
        ([2, None], True, True)
    """

    __slots__ = ()

    def __new__(cls, dims: Iterable[object] = ()) -> Shape:
        """Dimensions from what users write: ints, names, None."""
        if not hasattr(dims, "__iter__"):
            raise TypeError(f"a Shape is made of sizes, got {type(dims).__name__}")
        return super().__new__(cls, [d if type(d) is int and d >= 0 else make_dim(d) for d in dims])

    @property
    def is_static(self) -> bool:
        """True when every dimension is a number."""
        return all(isinstance(d, int) for d in self)

    @property
    def num_elements(self) -> int | None:
        """Product of the dimensions, or None when one is not a number."""
        total = 1
        for d in self:
            if not isinstance(d, int) or isinstance(d, Dim):
                return None
            total *= d
        return total

    def __eq__(self, other: object) -> bool:
        if isinstance(other, list):
            return super().__eq__(tuple(cast("list[object]", other)))
        return super().__eq__(other)

    def __ne__(self, other: object) -> bool:
        result = self.__eq__(other)
        return result if result is NotImplemented else not result

    __hash__ = tuple.__hash__  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]

    def __repr__(self) -> str:
        return "[" + ", ".join(str(d) for d in self) + "]"

    __str__ = __repr__

    def __reduce__(self) -> tuple[object, ...]:
        return (Shape, (tuple(self),))


@dataclass(frozen=True, slots=True)
class TensorType:
    """A tensor of one element type; ``shape`` is None when even the rank is unknown.

    Example:
        >>> from pyflame_rt.graph import DType
        >>> print(TensorType(DType.Float32, Shape(["N", 3])))
        float32[N, 3]
    """

    dtype: DType
    shape: Shape | None = None

    @property
    def rank(self) -> int | None:
        """Number of dimensions, or None."""
        return None if self.shape is None else len(self.shape)

    def __str__(self) -> str:
        return f"{self.dtype.label}{'[*]' if self.shape is None else self.shape}"


@dataclass(frozen=True, slots=True)
class SequenceType:
    """A list of values of one type."""

    elem: ValueType

    def __str__(self) -> str:
        return f"seq({self.elem})"


@dataclass(frozen=True, slots=True)
class OptionalType:
    """A value or nothing."""

    elem: ValueType

    def __str__(self) -> str:
        return f"optional({self.elem})"


@dataclass(frozen=True, slots=True)
class MapType:
    """A dictionary from one scalar type to values of one type."""

    key: DType
    value: ValueType

    def __str__(self) -> str:
        return f"map({self.key.label}, {self.value})"


@dataclass(frozen=True, slots=True)
class AnyType:
    """Nothing is known yet (inputs of subgraphs often come without a type)."""

    def __str__(self) -> str:
        return "?"


ValueType: TypeAlias = "TensorType | SequenceType | OptionalType | MapType | AnyType"
