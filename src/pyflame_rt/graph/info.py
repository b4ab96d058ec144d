"""Descriptions of values: TensorInfo (a graph's own) and NodeArg (ONNX Runtime's form)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyflame_rt.graph.dtype import DType
from pyflame_rt.graph.errors import UndeterminedError
from pyflame_rt.graph.records import dataclass
from pyflame_rt.graph.types import AnyType, MapType, OptionalType, SequenceType, Shape, TensorType, ValueType

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["NodeArg", "TensorInfo", "Value"]


@dataclass(frozen=True, slots=True)
class Value:
    """A named value of a known type.

    Example:
        >>> print(Value("x", TensorType(DType.Float32, Shape([2]))))
        x: float32[2]
    """

    name: str
    type: ValueType

    def __str__(self) -> str:
        return f"{self.name}: {self.type}"


class TensorInfo:
    """Name, element type and shape of an input, output or intermediate value.

    Values that are no plain tensors (sequences, optionals, maps) carry their full type in ``type``.

    Example:
        >>> info = TensorInfo("x", [None, 3], DType.Float32)
        >>> info.is_dynamic(), info.shape
        (True, [None, 3])
    """

    __slots__ = ("_type", "name")

    def __init__(
        self,
        name: str = "",
        shape: Iterable[object] | None = (),
        dtype: DType = DType.Float32,
        *,
        type: ValueType | None = None,
    ) -> None:
        self.name = name
        self._type = TensorType(DType.of(dtype), None if shape is None else Shape(shape)) if type is None else type

    @property
    def type(self) -> ValueType:
        """The full type."""
        return self._type

    @property
    def tensor_type(self) -> TensorType:
        """The tensor type, or that of the innermost element of a sequence, optional or map."""
        current = self._type
        while not isinstance(current, TensorType):
            if isinstance(current, AnyType):
                raise UndeterminedError(f"the type of {self.name!r} is not known")
            current = current.value if isinstance(current, MapType) else current.elem
        return current

    @property
    def dtype(self) -> DType:
        """Element type."""
        return self.tensor_type.dtype

    @dtype.setter
    def dtype(self, value: DType) -> None:
        self._type = TensorType(DType.of(value), self.tensor_type.shape)

    @property
    def shape(self) -> Shape | None:
        """Dimensions: int, a symbolic Dim, or None; None as a whole when the rank is unknown."""
        try:
            return self.tensor_type.shape
        except UndeterminedError:  # nothing is known of it, or of what it may hold
            return None

    @shape.setter
    def shape(self, value: Iterable[object] | None) -> None:
        self._type = TensorType(self.dtype, None if value is None else Shape(value))

    def is_dynamic(self) -> bool:
        """True when a dimension is not a number."""
        return self.shape is None or not self.shape.is_static

    def num_elements(self) -> int | None:
        """Number of elements, or None when dynamic."""
        return None if self.shape is None else self.shape.num_elements

    def size_bytes(self) -> int | None:
        """Bytes, or None when dynamic."""
        count = self.num_elements()
        return None if count is None else count * self.dtype.itemsize

    def copy(self) -> TensorInfo:
        """An independent copy."""
        return TensorInfo(self.name, type=self._type)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TensorInfo) and (self.name, self._type) == (other.name, other._type)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"TensorInfo({self.name}: {self._type})"


@dataclass(frozen=True, slots=True)
class NodeArg:
    """What ``session.get_inputs()`` and ``get_outputs()`` list.

    Example:
        >>> NodeArg.of(TensorInfo("x", ["N", 3], DType.Float32))
        NodeArg(name='x', type='tensor(float32)', shape=[None, 3])
    """

    name: str
    type: str
    shape: Shape | None

    @classmethod
    def of(cls, info: TensorInfo) -> NodeArg:
        """The description of one graph input or output; unknown sizes read None."""
        shape = info.shape
        dims = None if shape is None else Shape(d if isinstance(d, int) else None for d in shape)
        return cls(info.name, type_text(info.type), dims)


def type_text(kind: ValueType) -> str:
    """``tensor(float32)``, ``seq(tensor(int64))`` and so on."""
    match kind:
        case TensorType(dtype=dtype):
            return f"tensor({dtype.label})"
        case SequenceType(elem=elem):
            return f"seq({type_text(elem)})"
        case OptionalType(elem=elem):
            return f"optional({type_text(elem)})"
        case MapType(key=key, value=value):
            return f"map({key.label},{type_text(value)})"
        case AnyType():
            return "?"
