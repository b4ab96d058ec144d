"""What lowerings share: numbers that are only known when running, sizes, and torch's rules of type promotion."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from pyflame_rt.graph import Dim, DType, TensorType
from pyflame_rt.graph.errors import InputError, UndeterminedError, UnsupportedOperatorError
from pyflame_rt.ops.core.type_rules import normalize_axis
from pyflame_rt.ops.core.value import Value, active_scope, constant
from pyflame_rt.ops.onnx.cast import Cast
from pyflame_rt.ops.onnx.index import Gather
from pyflame_rt.ops.onnx.shape import Reshape, Shape, Squeeze, Unsqueeze
from pyflame_rt.ops.onnx.slicing import Concat

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = [
    "TORCH_DTYPES",
    "Num",
    "Size",
    "axis",
    "cast",
    "computed",
    "dtype_of",
    "floated",
    "is_known",
    "is_static",
    "number",
    "number_kind",
    "promoted",
    "refuse",
    "result_type",
    "shape_value",
    "sizes",
    "static",
    "torch_dtype",
    "wrap",
]

# torch's numbers for element types, as TorchScript writes them.
TORCH_DTYPES = {
    0: DType.UInt8, 1: DType.Int8, 2: DType.Int16, 3: DType.Int32, 4: DType.Int64, 5: DType.Float16, 6: DType.Float32,
    7: DType.Float64, 9: DType.Complex64, 10: DType.Complex128, 11: DType.Bool, 15: DType.BFloat16,
}  # fmt: skip
_NUMBERS = {dtype: number for number, dtype in TORCH_DTYPES.items()}
# The element type of a bare number, by its Python type.
_KINDS: dict[type, DType] = {bool: DType.Bool, int: DType.Int64, float: DType.Float32}


class Num:
    """A Python number that is only known when running: a value of rank 0 and the type it has in Python."""

    __slots__ = ("kind", "value")

    def __init__(self, value: Value, kind: type) -> None:
        self.value = value
        self.kind = kind

    def __repr__(self) -> str:
        return f"Num({self.kind.__name__})"

    def __bool__(self) -> bool:
        raise UndeterminedError("whether a number holds is only known when running")


Size: TypeAlias = "int | Dim | Num"


def torch_dtype(number: Any) -> DType:
    """The element type torch has a number for."""
    if isinstance(number, DType):
        return number
    if number not in TORCH_DTYPES:
        raise UnsupportedOperatorError(f"element type {number} of torch has no counterpart here")
    return TORCH_DTYPES[number]


def dtype_of(value: Value) -> int:
    """Torch's number for the element type of a tensor."""
    return _NUMBERS[value.dtype]


def refuse(what: str) -> UnsupportedOperatorError:
    """The error for a form of an operator that is not lowered."""
    return UnsupportedOperatorError(f"{what} is not lowered; export the model to ONNX, or write it in other operators")


def is_static(x: object) -> bool:
    """Whether a number is known now, and is no symbol."""
    return isinstance(x, (bool, int, float)) and not isinstance(x, Dim)


def is_known(x: object) -> bool:
    """Whether a number is known now, perhaps up to symbols."""
    return isinstance(x, (bool, int, float, Dim))


def static(x: Any, what: str) -> Any:
    """A number that must be known now."""
    if isinstance(x, (list, tuple)):
        return [static(item, what) for item in x]
    if isinstance(x, (Num, Dim)):
        raise UndeterminedError(f"{what} must be known before running")
    if isinstance(x, Value):
        return x.contents().reshape(()).item()
    return x


def number_kind(x: Any) -> type:
    """The Python type of a number."""
    if isinstance(x, Num):
        return x.kind
    return int if isinstance(x, Dim) else type(x)


def number(x: Any, dtype: DType | None = None) -> Value:
    """A number as a value of rank 0."""
    if isinstance(x, Value):
        return x if dtype is None else cast(x, dtype)
    if isinstance(x, Num):
        return x.value if dtype is None else cast(x.value, dtype)
    if isinstance(x, Dim):
        value = Squeeze(constant([x]), [0])
        return value if dtype is None else cast(value, dtype)
    return constant(x, _KINDS[type(x)] if dtype is None else dtype)


def wrap(value: Value, kind: type) -> Any:
    """The number a value of one element holds: itself where it is known, else a :class:`Num`."""
    if value.known is not None and value.known.size == 1:
        found = value.known.reshape(())[()]
        if isinstance(found, Dim):
            return found if kind is int else Num(value, kind)
        return kind(found)
    flat = value if value.rank == 0 else Reshape(value, constant([], DType.Int64))
    return Num(cast(flat, _KINDS[kind]), kind)


def computed(value: Value, kind: type) -> Num:
    """A number made by an operator."""
    return Num(value, kind)


def cast(value: Value, dtype: DType) -> Value:
    """The value in another element type."""
    return value if value.dtype is dtype else Cast(value, to=dtype)


def sizes(x: Value) -> list[Any]:
    """The dimensions of a tensor: numbers, symbols, or values where neither is known."""
    return [
        d if _is_readable(d) else Num(Gather(Shape(x), constant(i, DType.Int64)), int) for i, d in enumerate(x.shape)
    ]


def _is_readable(d: object) -> bool:
    """Whether a size is known, or can be computed from those of the inputs."""
    if not isinstance(d, Dim) or isinstance(d, int):
        return d is not None
    symbols = getattr(active_scope(), "symbols", None)
    return symbols is None or d.symbols() <= set(symbols)


def shape_value(dims: Sequence[Size]) -> Value:
    """Sizes as a tensor of one axis."""
    if all(is_known(d) for d in dims):
        return constant([d if isinstance(d, Dim) else int(d) for d in dims], DType.Int64)  # type: ignore[arg-type]
    parts = [Unsqueeze(number(d, DType.Int64), [0]) for d in dims]
    return parts[0] if len(parts) == 1 else Concat(*parts, axis=0)


def axis(dim: Any, rank: int) -> int:
    """A dimension from the front; torch lets scalars have one axis."""
    return normalize_axis(int(static(dim, "a dimension")), max(rank, 1))


# ---------------------------------------------------------------------- promotion


def _category(dtype: DType) -> int:
    if dtype is DType.Bool:
        return 0
    return 1 if dtype.is_integer else 3 if dtype.is_complex else 2


def _wider(a: DType, b: DType) -> DType:
    if a is b:
        return a
    if _category(a) != _category(b):
        first, second = (a, b) if _category(a) > _category(b) else (b, a)
        if first is DType.Complex64 and second is DType.Float64:
            return DType.Complex128
        return first
    if {a, b} == {DType.Float16, DType.BFloat16}:
        return DType.Float32
    if DType.BFloat16 in (a, b):
        return b if a is DType.BFloat16 else a
    return DType.of(np.promote_types(a.numpy, b.numpy))


def _widest(kinds: Iterable[DType]) -> DType | None:
    found: DType | None = None
    for kind in kinds:
        found = kind if found is None else _wider(found, kind)
    return found


def _rank_of(value: Value) -> int:
    kind = value.type
    return 1 if not isinstance(kind, TensorType) or kind.shape is None else len(kind.shape)


def result_type(*operands: Any) -> DType:
    """The element type of an operation: tensors with axes count first, then those without, numbers last."""
    tensors = [x for x in operands if isinstance(x, Value)]
    groups = [
        _widest(v.dtype for v in tensors if _rank_of(v)),
        _widest(v.dtype for v in tensors if not _rank_of(v)),
        _widest(_KINDS[number_kind(x)] for x in operands if not isinstance(x, Value) and x is not None),
    ]
    found: DType | None = None
    for kind in groups:
        if kind is None:
            continue
        if found is None:
            found = kind
        elif _category(kind) > _category(found):
            found = DType.Complex64 if kind.is_complex and found is not DType.Float64 else kind
    if found is None:
        raise InputError("an operation on no tensors has no element type")
    return found


def promoted(*operands: Any) -> list[Value]:
    """The operands as values of one element type."""
    kind = result_type(*operands)
    return [number(x, kind) for x in operands]


def floated(x: Any) -> Value:
    """A tensor of floating point: integers become float32, as torch has it."""
    value = number(x)
    return value if value.dtype.is_float or value.dtype.is_complex else cast(value, DType.Float32)
