"""Trace the body of an operator into a graph, and infer types while doing so."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from emberharmony import library
from pyflame_rt.graph import Dim, DType, Graph, Shape, Tensor, TensorInfo, TensorType, ValueType
from pyflame_rt.graph.errors import DTypeMismatchError, PyFlameRTError, ShapeMismatchError, UndeterminedError
from pyflame_rt.ops.core.guards import enforce
from pyflame_rt.ops.core.oversize import check_outputs
from pyflame_rt.ops.core.value import Value, scope

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyflame_rt.ops.core.registry import Op

__all__ = ["Tracer", "examine", "infer_outputs", "trace", "typed_errors"]

# Contents of larger constants are not propagated: shapes are small.
MAX_KNOWN = 1024


class Tracer:
    """A scope that records operator calls as nodes of a graph."""

    __slots__ = ("_count", "graph")

    def __init__(self, name: str = "body") -> None:
        self.graph = Graph(name)
        self._count = 0

    def fresh(self, hint: str = "v") -> str:
        """A name not used so far."""
        self._count += 1
        return f"{hint}_{self._count}"

    def input(self, name: str, kind: ValueType | None, known: np.ndarray[Any, Any] | None = None) -> Value:
        """Declare an input."""
        if kind is not None:
            self.graph.add_input(TensorInfo(name, type=kind))
        return Value(name, kind, known)

    def output(self, value: Value, name: str | None = None) -> None:
        """Declare an output."""
        if name is not None and name != value.ref:
            value = self._emit_identity(value, name)
        if value.type is not None:
            self.graph.add_output(TensorInfo(value.ref, type=value.type))

    def _emit_identity(self, value: Value, name: str) -> Value:
        self.graph.add_node(name, "Identity", [value.ref], [name])
        return Value(name, value.type, value.known)

    def constant(self, array: np.ndarray[Any, Any]) -> Value:
        """Add an initializer; a list of symbolic sizes becomes a node."""
        name = self.fresh("c")
        if array.dtype == object and any(isinstance(v, Dim) for v in array.ravel()):
            if any(isinstance(v, Dim) and isinstance(v, int) for v in array.ravel()):
                raise UndeterminedError("sizes that are traced have no text that would stand for them")
            node = self.graph.add_node(name, "Dims", [], [name], {"dims": [str(v) for v in array]}, domain="pyflame")
            kind = TensorType(DType.Int64, Shape(array.shape))
            return Value(node.outputs[0], kind, array)
        if array.dtype == object and not (array.size and isinstance(array.ravel()[0], str)):
            array = array.astype(np.int64)
        self.graph.add_initializer(name, Tensor(array))
        return Value(
            name, TensorType(DType.of(array.dtype), Shape(array.shape)), array if array.size <= MAX_KNOWN else None
        )

    def apply(self, op: Op, inputs: Sequence[Value | None], attributes: dict[str, Any]) -> Any:
        """Add a node and infer its outputs: one Value, or a tuple of them."""
        bound = op.signature.bind(attributes, op.full_name)
        outputs = infer_outputs(op, inputs, bound)
        names = [self.fresh(op.name.lower()) for _ in outputs]
        refs = ["" if v is None else v.ref for v in inputs]
        self.graph.add_node(names[0], op.name, refs, names, attributes, domain=op.domain)
        values = tuple(Value(name, out.type, out.known) for name, out in zip(names, outputs, strict=True))
        for value in values:
            if value.type is not None:
                self.graph.types[value.ref] = value.type
        return values[0] if len(values) == 1 else values


def trace(op: Op, inputs: Sequence[Value | None], attributes: dict[str, Any]) -> tuple[Graph, list[Value | None]]:
    """The body of a composite as a graph, for the given input types; and its outputs."""
    tracer = Tracer(op.full_name)
    names = [f"in_{i}" for i in range(len(inputs))]
    values = [None if v is None else tracer.input(n, v.type, v.known) for n, v in zip(names, inputs, strict=True)]
    with typed_errors(op, inputs):
        enforce(op, inputs, attributes)
    check_outputs(op, inputs, attributes)
    with scope(tracer), typed_errors(op, inputs):
        results = op.body(*values, **attributes)
    outputs: list[Value | None] = list(results) if isinstance(results, tuple) else [results]
    for value in outputs:
        if value is not None:
            tracer.output(value)
    return tracer.graph, outputs


def infer_outputs(op: Op, inputs: Sequence[Value | None], attributes: dict[str, Any]) -> list[Value]:
    """Types (and contents, where known) of an operator's outputs; attributes must be bound."""
    try:
        if op.composite and op.infer is None:
            return [Value(None, None) if v is None else v for v in trace(op, inputs, attributes)[1]]
        with typed_errors(op, inputs):
            enforce(op, inputs, attributes)
            outputs = _apply_rule(op, inputs, attributes)
    except UndeterminedError:
        return [Value(None, None)]
    if op.shape_math:
        _propagate_contents(op, inputs, attributes, outputs)
    return outputs


def examine(op: Op, inputs: Sequence[Value | None], attributes: dict[str, Any]) -> None:
    """Refuse inputs as planning would: by what the operator requires, and by its rule for types."""
    if _has_nothing(op, inputs):
        return  # an empty optional: what that means, the body says
    try:
        with typed_errors(op, inputs):
            enforce(op, inputs, attributes)
            if op.infer is not None and not op.control:
                op.infer(*inputs, **attributes)
    except UndeterminedError:
        return


def _has_nothing(op: Op, inputs: Sequence[Value | None]) -> bool:
    """Whether nothing came where the operator needs something."""
    if None not in inputs:
        return False
    formal = op.signature.inputs
    return any(v is None and not (f.nullable or f.optional) for v, f in zip(inputs, formal, strict=False))


@contextmanager
def typed_errors(op: Op, inputs: Sequence[Value | None]) -> Iterator[None]:
    """Bodies and rules take for granted that inputs suit the operator; what fails says they do not."""
    try:
        yield
    except PyFlameRTError:
        raise
    except (ValueError, IndexError, ArithmeticError, MemoryError) as error:
        raise ShapeMismatchError(_misfit(op, inputs, error)) from error
    except (TypeError, AttributeError, KeyError, AssertionError) as error:
        raise DTypeMismatchError(_misfit(op, inputs, error)) from error


def _misfit(op: Op, inputs: Sequence[Value | None], error: Exception) -> str:
    kinds = ", ".join("-" if v is None else str(v.type) for v in inputs)
    return f"{op.full_name} does not take ({kinds}): {error}"


def _apply_rule(op: Op, inputs: Sequence[Value | None], attributes: dict[str, Any]) -> list[Value]:
    assert op.infer is not None
    results = op.infer(*inputs, **attributes)
    listed = list(results) if isinstance(results, tuple) else [results]
    return [r if isinstance(r, Value) else Value(None, r) for r in listed]


def _propagate_contents(
    op: Op, inputs: Sequence[Value | None], attributes: dict[str, Any], outputs: list[Value]
) -> None:
    knowns = [None if v is None else v.known for v in inputs]
    if any(k is None and v is not None for k, v in zip(knowns, inputs, strict=True)):
        return
    if not knowns or any(k is not None and k.size > MAX_KNOWN for k in knowns):
        return
    if not all(_is_small(value.type) for value in outputs):
        return
    try:
        results = op.body(library("numpy"), *knowns, **attributes)
    except (UndeterminedError, TypeError, ValueError, AttributeError, LookupError, OverflowError):
        return
    for value, result in zip(outputs, results if isinstance(results, tuple) else (results,), strict=False):
        value.known = _plain_contents(np.asarray(result), value.type)


def _is_small(kind: ValueType | None) -> bool:
    """True for a static shape of few elements: only then are contents worked out."""
    if not isinstance(kind, TensorType) or kind.shape is None or kind.shape.num_elements is None:
        return False
    return kind.shape.num_elements <= MAX_KNOWN


def _plain_contents(array: np.ndarray[Any, Any], kind: ValueType | None) -> np.ndarray[Any, Any]:
    """Numbers again, once no symbolic size is left among the objects."""
    if array.dtype != object or not isinstance(kind, TensorType) or kind.dtype is DType.String:
        return array
    return array if any(isinstance(v, Dim) for v in array.ravel()) else array.astype(kind.dtype.numpy)
