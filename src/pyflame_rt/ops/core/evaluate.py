"""Evaluate operators on arrays: one node, or a whole graph node by node.

The only place where the meaning of an operator is turned into numbers. Constant folding, host
steps between native segments and the reference backend all come here.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import field
from typing import TYPE_CHECKING, Any

import numpy as np

from emberharmony import library as find_library
from emberharmony.hosting import host_steps
from pyflame_rt.graph import (
    DType,
    Graph,
    Node,
    SequenceType,
    Shape,
    TensorType,
    ValueType,
)
from pyflame_rt.graph.errors import (
    BackendError,
    InputError,
    InvalidModelError,
    PyFlameRTError,
    ShapeMismatchError,
    UndeterminedError,
)
from pyflame_rt.graph.records import dataclass
from pyflame_rt.ops.core.oversize import check_outputs
from pyflame_rt.ops.core.registry import Op, get_op, plain_attribute
from pyflame_rt.ops.core.trace import examine, typed_errors
from pyflame_rt.ops.core.value import Value, scope

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Context", "Interpreter", "Program", "describe", "evaluate", "named", "run_node", "run_op", "where"]

Array = Any  # an array of the library; a NumPy array where the library lacks the type; a list; None


@dataclass(slots=True)
class Context:
    """What one evaluation shares: the library, and a record of what it could not do itself.

    Attributes:
        library: an emberharmony library.
        host_steps: how often a primitive ran on NumPy instead, by (operator, reason).
        check: called between nodes; raises to stop (time is up, cancelled).
        observe: called after each node with its outputs (profilers, taps, NaN finders).
    """

    library: Any
    host_steps: Counter[tuple[str, str]] = field(default_factory=Counter)
    check: Callable[[], None] | None = None
    observe: Callable[[Node, Sequence[Array], Sequence[Array]], None] | None = None
    programs: dict[int, Program] = field(default_factory=dict)

    @classmethod
    def of(cls, name: str = "numpy") -> Context:
        """A fresh context for a library by name."""
        return cls(find_library(name))

    def program(self, graph: Graph) -> Program:
        """The prepared form of a subgraph, made once."""
        found = self.programs.get(id(graph))
        if found is None:
            found = self.programs[id(graph)] = Program(graph)
        return found


@dataclass(slots=True)
class Interpreter:
    """What the body of a control-flow primitive gets: the library, and a way to run subgraphs."""

    context: Context

    @property
    def ops(self) -> Any:
        """The library."""
        return self.context.library

    def run(self, graph: Graph, inputs: Sequence[Array]) -> list[Array]:
        """Outputs of a subgraph."""
        if len(inputs) != len(graph.inputs):
            raise InvalidModelError(
                f"the graph {graph.name!r} takes {len(graph.inputs)} inputs, {len(inputs)} are given"
            )
        return self.context.program(graph).run(inputs, self.context)


class _EagerScope:
    """Operator calls inside a body compute at once."""

    __slots__ = ("context", "outputs")

    def __init__(self, context: Context, outputs: int | None = None) -> None:
        self.context = context
        self.outputs = outputs

    def apply(self, op: Op, inputs: Sequence[Value | None], attributes: dict[str, Any]) -> Any:
        arrays = [None if v is None else v.ref for v in inputs]
        bound = op.signature.bind(attributes, op.full_name)
        results = [_eager_value(r, self.context) for r in run_op(op, arrays, bound, self.context)]
        return results[0] if len(results) == 1 else tuple(results)

    def constant(self, array: np.ndarray[Any, Any]) -> Value:
        if array.dtype == object and not (array.size and isinstance(array.ravel()[0], str)):
            array = array.astype(np.int64)
        return _eager_value(to_library(array, self.context.library), self.context)


class _EagerValue(Value):
    """A Value that holds an array; its type and contents are read off it when first asked for."""

    __slots__ = ("_library", "_type")

    def __init__(self, ref: Array, lib: Any) -> None:
        self.ref = ref
        self._library = lib

    @property
    def type(self) -> ValueType | None:
        try:
            return self._type
        except AttributeError:
            self._type = describe(self.ref, self._library)
            return self._type

    @property
    def known(self) -> np.ndarray[Any, Any] | None:
        return None if isinstance(self.ref, list) else to_host(self.ref, self._library)

    @property
    def shape(self) -> Shape:
        return Shape(self.ref.shape)


def _eager_value(array: Array, context: Context) -> Value:
    return _EagerValue(array, context.library)


def describe(array: Array, lib: Any) -> ValueType | None:
    """The type of an array, list or None as a run sees it."""
    if array is None:
        return None
    if isinstance(array, list):
        elem = describe(array[0], lib) if array else None
        return SequenceType(elem if elem is not None else TensorType(DType.Float32))
    if isinstance(array, dict):
        return None
    kind = array.dtype if isinstance(array, (np.ndarray, np.generic)) else lib.dtype(array)
    return TensorType(DType.of(kind), Shape(array.shape))


def to_host(array: Array, lib: Any) -> Any:
    """NumPy arrays from arrays of the library, lists and optionals element by element."""
    if isinstance(array, list):
        return [to_host(item, lib) for item in array]
    return lib.to_numpy(array) if lib.is_array(array) else array


def to_library(array: Any, lib: Any) -> Array:
    """Arrays of the library from NumPy arrays; types it lacks stay NumPy arrays."""
    if isinstance(array, list):
        return [to_library(item, lib) for item in array]
    if isinstance(array, np.ndarray) and lib.name != "numpy" and lib.supports(array.dtype):
        return lib.from_numpy(array)
    return array


def run_op(
    op: Op, arrays: Sequence[Array], attributes: dict[str, Any], context: Context, outputs: int | None = None
) -> list[Array]:
    """Outputs of one operator, at least the first ``outputs``; attributes must be bound (defaults filled in)."""
    if context.check is not None:
        context.check()  # inside compositions, too: a node may be many operators
    values = [None if a is None else _eager_value(a, context) for a in arrays]
    examine(op, values, attributes)
    if op.infer is not None and not op.control:
        check_outputs(op, values, attributes)
    if op.composite:
        return _run_composite(op, arrays, attributes, context, outputs)
    if op.control:
        return _as_list(op.body(Interpreter(context), *arrays, **attributes))
    lib = context.library
    if lib.name == "numpy":
        return _as_list(op.body(lib, *arrays, **attributes))
    reason = _host_reason(op, arrays, lib)
    if reason is None:
        before = host_steps()
        try:
            results = _as_list(op.body(lib, *arrays, **attributes))
            if host_steps() > before:
                context.host_steps[op.full_name, f"{lib.name} computes this through NumPy"] += 1
            return results
        except Exception as error:
            if isinstance(error, PyFlameRTError) or not lib.is_unsupported(error):
                raise
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    context.host_steps[op.full_name, reason] += 1
    results = op.body(find_library("numpy"), *[to_host(a, lib) for a in arrays], **attributes)
    return [to_library(r, lib) for r in _as_list(results)]


def _run_composite(
    op: Op, arrays: Sequence[Array], attributes: dict[str, Any], context: Context, outputs: int | None
) -> list[Array]:
    values = [None if a is None else _eager_value(a, context) for a in arrays]
    try:
        with scope(_EagerScope(context, outputs)), typed_errors(op, values):
            results = op.body(*values, **attributes)
    except ShapeMismatchError as error:
        if isinstance(error.__cause__, MemoryError):
            raise error.__cause__ from error
        raise
    return [None if r is None else r.ref for r in _as_list(results)]


def _as_list(results: Any) -> list[Array]:
    values = list(results) if isinstance(results, tuple) else [results]
    # NumPy hands out scalars for 0-d results; everything downstream expects arrays.
    return [np.asarray(v) if isinstance(v, np.generic) else v for v in values]


def _host_reason(op: Op, arrays: Sequence[Array], lib: Any) -> str | None:
    if op.host:
        return "the algorithm runs on NumPy arrays"
    for array in arrays:
        items = array if isinstance(array, list) else [array]
        for item in items:
            if isinstance(item, np.ndarray):
                return f"{lib.name} has no {item.dtype}" if item.dtype != object else f"{lib.name} has no strings"
    return None


def evaluate(node: Node, arrays: Sequence[Array], context: Context | str = "numpy") -> list[Array]:
    """Outputs of one node on arrays.

    Args:
        node: the node; its operator is looked up by domain and name.
        arrays: one per input, None where an optional input is not given.
        context: a Context, or the name of a library.

    Returns:
        The output arrays.

    Example:
        >>> evaluate(Node("n", "Relu", ["x"], ["y"]), [np.array([-1.0, 2.0], np.float32)])
        [array([0., 2.], dtype=float32)]
    """
    ctx = Context.of(context) if isinstance(context, str) else context
    op = get_op(node.op_type, node.domain)
    return run_node(node, op, bind_attributes(node, op), arrays, ctx)


def bind_attributes(node: Node, op: Op) -> dict[str, Any]:
    """Attributes of a node with the operator's defaults; a node that has not the operator's form is refused."""
    plain = {name: plain_attribute(value) for name, value in node.attributes.items()}
    signature, at = op.signature, where(node)
    bound = signature.bind(plain, at)
    signature.check_kinds(plain, at)
    signature.check_given(node.inputs, at)
    return bound


def where(node: Node) -> str:
    """How errors name a node."""
    return (
        f"node {node.name!r} ({node.full_name})"
        if node.name
        else f"node {node.full_name} making {node.outputs[0] if node.outputs else '?'!r}"
    )


def run_node(
    node: Node, op: Op, attributes: dict[str, Any], arrays: Sequence[Array], context: Context, at: str = ""
) -> list[Array]:
    """Outputs of one node; errors name it, or ``at``, the node of the model that it is a part of."""
    at = at or where(node)
    try:
        results = run_op(op, arrays, attributes, context, len(node.outputs))
        if any(node.outputs[len(results) :]):
            raise InputError(f"it gave {len(results)} outputs, {len(node.outputs)} are asked for")
        return results
    except UndeterminedError as error:
        raise BackendError(f"{at}: {error}") from error
    except PyFlameRTError as error:
        raise named(error, at) from error
    except (
        ValueError,
        TypeError,
        IndexError,
        KeyError,
        AttributeError,  # a sequence where an operator takes a tensor
        ArithmeticError,
        RuntimeError,
        NotImplementedError,
        MemoryError,
    ) as error:
        shapes = ", ".join(str(describe(a, context.library)) for a in arrays)
        raise BackendError(f"{at} failed on ({shapes}): {error}") from error


def named(error: PyFlameRTError, at: str) -> PyFlameRTError:
    """The error, saying at which node it came up."""
    return error if str(error).startswith("node ") else type(error)(f"{at}: {error}")


@dataclass(frozen=True, slots=True)
class _EvaluatedNode:
    node: Node
    op: Op
    attributes: dict[str, Any]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    frees: tuple[int, ...]


class Program:
    """A graph prepared for node-by-node evaluation: order, slots, and when values die."""

    __slots__ = ("_constants", "_input_slots", "_output_slots", "_size", "graph", "slots", "steps")

    def __init__(self, graph: Graph, keep: Sequence[str] = ()) -> None:
        self.graph = graph
        self.slots: dict[str, int] = {"": -1}
        self._constants: dict[str, dict[int, Array]] = {}
        order = graph.topological_sort()
        self._input_slots = [self._slot(info.name) for info in graph.inputs]
        for name in graph.initializers:
            self._slot(name)
        kept = {self._slot(info.name) for info in graph.outputs} | {self._slot(n) for n in graph.initializers}
        kept |= {self._slot(name) for name in keep}
        self.steps = self._make_steps(order, kept)
        self._output_slots = [self._slot(info.name) for info in graph.outputs]
        self._size = len(self.slots)

    def _slot(self, name: str) -> int:
        return self.slots.setdefault(name, len(self.slots) - 1)

    def _make_steps(self, order: Sequence[Node], kept: set[int]) -> list[_EvaluatedNode]:
        wired = [(n, tuple(map(self._slot, n.inputs)), tuple(map(self._slot, n.outputs))) for n in order]
        last: dict[int, int] = {}
        for i, (_, inputs, outputs) in enumerate(wired):
            last.update(dict.fromkeys((*inputs, *outputs), i))
        dying: dict[int, list[int]] = {}
        for slot, i in last.items():
            if slot >= 0 and slot not in kept:
                dying.setdefault(i, []).append(slot)
        steps = []
        for i, (node, inputs, outputs) in enumerate(wired):
            op = get_op(node.op_type, node.domain)
            steps.append(_EvaluatedNode(node, op, bind_attributes(node, op), inputs, outputs, tuple(dying.get(i, ()))))
        return steps

    def _constant_slots(self, lib: Any) -> dict[int, Array]:
        found = self._constants.get(lib.name)
        if found is None:
            found = {self.slots[n]: to_library(t.raw(), lib) for n, t in self.graph.initializers.items()}
            self._constants[lib.name] = found
        return found

    def run(self, inputs: Sequence[Array], context: Context) -> list[Array]:
        """Outputs for inputs in the order of ``graph.inputs``; None takes an input's default."""
        values = self.run_values(inputs, context)
        return [values[slot] for slot in self._output_slots]

    def run_values(self, inputs: Sequence[Array], context: Context) -> list[Array]:
        """Every slot that is kept, after running all nodes."""
        values: list[Array] = [None] * self._size
        for slot, array in self._constant_slots(context.library).items():
            values[slot] = array
        for slot, array in zip(self._input_slots, inputs, strict=True):
            if array is not None:
                values[slot] = array
        for step in self.steps:
            if context.check is not None:
                context.check()
            _run_step(step, values, context)
        return values


def _run_step(step: _EvaluatedNode, values: list[Array], context: Context) -> None:
    arrays = [None if slot < 0 else values[slot] for slot in step.inputs]
    results = run_node(step.node, step.op, step.attributes, arrays, context)
    for slot, result in zip(step.outputs, results, strict=False):
        if slot >= 0:
            values[slot] = result
    if context.observe is not None:
        context.observe(step.node, arrays, results)
    for slot in step.frees:
        values[slot] = None
