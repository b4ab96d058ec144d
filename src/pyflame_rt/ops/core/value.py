"""Value: what the body of an operator computes with.

A body is ordinary Python over values. Where it runs decides what happens: in an eager scope
every call computes at once, in a tracing scope it adds a node to a graph. The body cannot tell,
except that sizes and contents may be unknown (:class:`UndeterminedError`) while tracing.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from pyflame_rt.graph import Attribute, Dim, DType, Shape, TensorType, ValueType
from pyflame_rt.graph.errors import ShapeMismatchError, UndeterminedError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["Scope", "Value", "active_scope", "constant", "lift", "scope", "wanted"]


class Scope(Protocol):
    """Where operator calls go."""

    def apply(self, op: Any, inputs: Sequence[Value | None], attributes: dict[str, Attribute]) -> Any:
        """Perform or record one operator; a Value, or a tuple when it has several outputs."""
        ...

    def constant(self, array: np.ndarray[Any, Any]) -> Value:
        """A value with known contents."""
        ...


class Value:
    """A tensor (or sequence, optional, map) inside the body of an operator."""

    __slots__ = ("known", "ref", "type")

    # known: the contents where they are known (object arrays may hold symbolic dims), else None.
    # ref: the array itself in an eager scope, the value's name in a tracing one.
    def __init__(self, ref: Any, type: ValueType | None, known: np.ndarray[Any, Any] | None = None) -> None:
        self.ref = ref
        self.type = type
        self.known = known

    @property
    def tensor_type(self) -> TensorType:
        """The type, which must be a tensor's."""
        if not isinstance(self.type, TensorType):
            raise UndeterminedError(f"the type of {self.ref!r} is {self.type}, a tensor is needed")
        return self.type

    @property
    def dtype(self) -> DType:
        """Element type."""
        return self.tensor_type.dtype

    @property
    def shape(self) -> Shape:
        """Dimensions; raises when the rank is unknown."""
        shape = self.tensor_type.shape
        if shape is None:
            raise UndeterminedError(f"the rank of {self.ref!r} is only known when running")
        return shape

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    def contents(self) -> np.ndarray[Any, Any]:
        """The known contents as a NumPy array; raises when they are only known when running."""
        if self.known is None:
            raise UndeterminedError(f"the contents of {self.ref!r} are only known when running")
        return self.known

    def ints(self) -> list[Any]:
        """The known contents, of a vector or scalar, as a list of ints (or symbolic dims)."""
        if self.contents().ndim > 1:
            raise ShapeMismatchError(f"numbers come in a tensor of shape {Shape(self.contents().shape)}, not a vector")
        return [v if isinstance(v, Dim) else int(v) for v in self.contents().ravel().tolist()]

    def __add__(self, other: object) -> Value:
        return _call("Add", self, other)

    def __radd__(self, other: object) -> Value:
        return _call("Add", other, self)

    def __sub__(self, other: object) -> Value:
        return _call("Sub", self, other)

    def __rsub__(self, other: object) -> Value:
        return _call("Sub", other, self)

    def __mul__(self, other: object) -> Value:
        return _call("Mul", self, other)

    def __rmul__(self, other: object) -> Value:
        return _call("Mul", other, self)

    def __truediv__(self, other: object) -> Value:
        return _call("Div", self, other)

    def __rtruediv__(self, other: object) -> Value:
        return _call("Div", other, self)

    def __pow__(self, other: object) -> Value:
        return _call("Pow", self, other)

    def __matmul__(self, other: object) -> Value:
        return _call("MatMul", self, other)

    def __neg__(self) -> Value:
        return _call("Neg", self)

    def __lt__(self, other: object) -> Value:
        return _call("Less", self, other)

    def __le__(self, other: object) -> Value:
        return _call("LessOrEqual", self, other)

    def __gt__(self, other: object) -> Value:
        return _call("Greater", self, other)

    def __ge__(self, other: object) -> Value:
        return _call("GreaterOrEqual", self, other)

    def __and__(self, other: object) -> Value:
        return _call("And", self, other)

    def __or__(self, other: object) -> Value:
        return _call("Or", self, other)

    def __invert__(self) -> Value:
        return _call("Not", self)

    def __bool__(self) -> bool:
        raise TypeError(
            "a Value has no truth value in an operator's body; use Where, or contents() where it must be known"
        )

    def __repr__(self) -> str:
        return f"Value({self.type})"


_local = threading.local()


def active_scope() -> Scope:
    """The innermost scope of this thread."""
    stack = getattr(_local, "stack", None)
    if not stack:
        raise RuntimeError(
            "operators are called inside a body being evaluated or traced; to run one, use pyflame_rt.ops.evaluate"
        )
    return stack[-1]


def wanted(output: int) -> bool:
    """Whether an output of the operator whose body runs is read: False only when it surely is not."""
    count = getattr(active_scope(), "outputs", None)
    return count is None or output < count


@contextmanager
def scope(entered: Scope) -> Iterator[None]:
    """Send operator calls of this thread to ``entered``."""
    stack: list[Scope] = _local.__dict__.setdefault("stack", [])
    stack.append(entered)
    try:
        yield
    finally:
        stack.pop()


def constant(data: Any, dtype: DType | Value | None = None) -> Value:
    """A constant of the active scope; ``dtype`` may be a value to take the type of.

    Lists that contain symbolic dims become int64 values that are known symbolically.
    """
    kind = dtype.dtype if isinstance(dtype, Value) else dtype
    plain = (int, float, bool, str, np.generic)
    if isinstance(data, (list, tuple)) and not all(isinstance(d, plain) and not isinstance(d, Dim) for d in data):
        if any(d is None for d in data):
            raise UndeterminedError("a size is only known when running")
        symbolic = np.empty(len(data), dtype=object)
        symbolic[:] = data
        return active_scope().constant(symbolic)
    if kind is None:
        kind = _default_dtype(data)
    array = np.asarray(data)
    if kind is DType.String:
        return active_scope().constant(np.asarray(data, dtype=object))
    return active_scope().constant(array if array.dtype == kind.numpy else array.astype(kind.numpy))


def lift(value: object, like: Value | None = None) -> Value | None:
    """A Value from what bodies may pass: a Value, None, a Python number, a list or an array."""
    if value is None or isinstance(value, Value):
        return value
    if isinstance(value, (bool, int, float, complex)) and like is not None:
        return constant(value, like)
    return constant(value)


def _default_dtype(data: Any) -> DType:
    if isinstance(data, (np.ndarray, np.generic)):
        return DType.of(data.dtype)
    kind = np.asarray(data).dtype.kind
    if isinstance(data, (list, tuple)) and not data:
        return DType.Int64
    return {"b": DType.Bool, "i": DType.Int64, "u": DType.Int64, "f": DType.Float32, "U": DType.String}[kind]


def _call(name: str, *operands: object) -> Value:
    from pyflame_rt.ops.core.registry import get_op

    return get_op(name)(*operands)
