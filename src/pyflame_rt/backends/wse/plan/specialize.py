"""A graph as the primitives the wafer has, with every size known."""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import field
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.graph import DType, Graph, Node, Shape, TensorType
from pyflame_rt.graph.errors import InputError, UnsupportedOperatorError
from pyflame_rt.graph.records import dataclass
from pyflame_rt.ops.core.evaluate import Context, bind_attributes, evaluate
from pyflame_rt.ops.core.inline import instantiate
from pyflame_rt.ops.core.registry import get_op
from pyflame_rt.ops.core.trace import infer_outputs
from pyflame_rt.ops.core.value import Value
from wsesim import watch

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from pyflame_rt.ops.core.registry import Op

__all__ = ["Flat", "PrimitiveCall", "flatten"]

_SAME = {"Identity", "pyflame::ChipTransfer", "pyflame::LayoutTransform", "pyflame::After"}


@dataclass(frozen=True, slots=True)
class PrimitiveCall:
    """One primitive; ``origin`` is the node of the model it stands for."""

    op: str
    inputs: tuple[str, ...]
    output: str
    attributes: Mapping[str, Any]
    origin: str


@dataclass(slots=True)
class Flat:
    """A graph of primitives.

    Attributes:
        inputs: what the caller feeds, in order.
        outputs: names given outside, and the value each stands for.
        constants: contents known now.
        types: element type and sizes of every value.
    """

    inputs: list[str]
    outputs: list[tuple[str, str]] = field(default_factory=list)
    steps: list[PrimitiveCall] = field(default_factory=list)
    constants: dict[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    types: dict[str, tuple[DType, tuple[int, ...]]] = field(default_factory=dict)

    def copy(self) -> Flat:
        """The same graph, to be changed by itself."""
        return Flat(self.inputs, self.outputs, list(self.steps), dict(self.constants), dict(self.types))

    def shape(self, name: str) -> tuple[int, ...]:
        """Sizes of a value."""
        return self.types[name][1]

    def dtype(self, name: str) -> DType:
        """Element type of a value."""
        return self.types[name][0]


def flatten(
    graph: Graph,
    known: Collection[str],
    shapes: Mapping[str, Sequence[int]] | None = None,
    wanted: Sequence[str] | None = None,
) -> Flat:
    """Open compositions until only ``known`` primitives are left, and compute what does not depend on inputs.

    Args:
        graph: left as it is.
        known: names of the primitives that have a rule.
        shapes: sizes of inputs whose shape the graph leaves open.
        wanted: values to compute; the graph's outputs when None.
    """
    names = [info.name for info in graph.outputs] if wanted is None else list(wanted)
    return _Flattener(graph, known, shapes or {}).run(names)


class _Flattener:
    def __init__(self, graph: Graph, known: Collection[str], shapes: Mapping[str, Sequence[int]]) -> None:
        self.graph = graph
        self.known = known
        self.values: dict[str, Value] = {}
        self.same: dict[str, str] = {}
        self.numbers = itertools.count()
        self.context = Context.of("numpy")
        self.flat = Flat([info.name for info in graph.required_inputs])
        for name, tensor in graph.initializers.items():
            self._constant(name, tensor.raw())
        for info in graph.required_inputs:
            self._value(info.name, Value(info.name, _sized(info, shapes.get(info.name))))

    def run(self, wanted: Sequence[str]) -> Flat:
        pending = deque((node, node.name or node.outputs[0]) for node in self.graph.topological_sort())
        while pending:
            watch.poll()
            node, origin = pending.popleft()
            node = node.replace(inputs=[self.same.get(n, n) for n in node.inputs])
            pending.extendleft((inner, origin) for inner in reversed(self._node(node, origin)))
        self.flat.outputs = [(name, self.same.get(name, name)) for name in wanted]
        for name, value in self.flat.outputs:
            if value not in self.flat.types:
                raise InputError(f"graph {self.graph.name!r} has no value {name!r}")
        self._drop_dead()
        return self.flat

    def _node(self, node: Node, origin: str) -> list[Node]:
        """Take a node, or give the nodes that stand for it."""
        op = get_op(node.op_type, node.domain)
        inputs = [self.values[n] if n else None for n in node.inputs]
        if op.full_name in _SAME:
            self.same[node.outputs[0]] = node.inputs[0]
            return []
        if not (op.random or op.control) and all(v is None or v.known is not None for v in inputs):
            arrays = [None if v is None else v.known for v in inputs]
            for name, array in zip(node.outputs, evaluate(node, arrays, self.context), strict=False):
                self._constant(name, np.asarray(array))
            return []
        if op.full_name in self.known:
            return self._take(node, op, inputs, origin)
        if not op.composite:
            self._refuse(node, op, inputs, origin)
            return []
        body = instantiate(node, op, inputs, lambda hint: f"{hint}.{next(self.numbers)}")
        for name, tensor in body.constants.items():
            self._constant(name, tensor.raw())
        return body.nodes

    def _take(self, node: Node, op: Op, inputs: Sequence[Value | None], origin: str) -> list[Node]:
        attributes = bind_attributes(node, op)
        outs = infer_outputs(op, inputs, attributes)
        for name, value in zip(node.outputs, outs, strict=False):
            if value.known is not None and value.known.dtype != object:
                self._constant(name, value.known)
            else:
                self._value(name, Value(name, value.type))
        if op.name == "Split":
            self._split(node, attributes["axis"], origin)
            return []
        if len(node.outputs) == 1 and node.outputs[0] not in self.flat.constants:
            self.flat.steps.append(PrimitiveCall(op.full_name, node.inputs, node.outputs[0], attributes, origin))
        elif len(node.outputs) != 1:
            raise UnsupportedOperatorError(f"node {origin!r}: {op.full_name} with several outputs has no rule")
        return []

    def _refuse(self, node: Node, op: Op, inputs: Sequence[Value | None], origin: str) -> None:
        """An operator without a rule, which is an error only where somebody needs its result."""
        for name, value in zip(node.outputs, infer_outputs(op, inputs, bind_attributes(node, op)), strict=False):
            if value.known is not None and value.known.dtype != object:
                self._constant(name, value.known)
                continue
            self._value(name, Value(name, value.type))
            self.flat.steps.append(PrimitiveCall(op.full_name, node.inputs, name, {}, origin))

    def _split(self, node: Node, axis: int, origin: str) -> None:
        """Parts along an axis as slices."""
        first = 0
        for name in node.outputs:
            size = self.flat.shape(name)[axis]
            bounds = {"start": first, "end": first + size, "axis": axis % len(self.flat.shape(name))}
            for word, number in bounds.items():
                self._constant(f"{name}.{word}", np.array([number]))
            given = tuple(f"{name}.{word}" for word in bounds)
            self.flat.steps.append(PrimitiveCall("Slice", (node.inputs[0], *given), name, {}, origin))
            first += size

    def _constant(self, name: str, array: np.ndarray[Any, Any]) -> None:
        if not name:
            return
        dtype = DType.of(array.dtype)
        self.values[name] = Value(name, TensorType(dtype, Shape(array.shape)), array)
        self.flat.constants[name] = array
        self.flat.types[name] = (dtype, tuple(array.shape))

    def _value(self, name: str, value: Value) -> None:
        kind = value.type
        if not isinstance(kind, TensorType) or kind.shape is None or not kind.shape.is_static:
            raise InputError(
                f"{name!r} has type {kind}: the wafer's program needs every size; give shapes for the inputs"
            )
        self.values[name] = value
        self.flat.types[name] = (kind.dtype, tuple(int(d) for d in kind.shape))  # type: ignore[arg-type]

    def _drop_dead(self) -> None:
        live = {value for _, value in self.flat.outputs}
        kept: list[PrimitiveCall] = []
        for step in reversed(self.flat.steps):
            if step.output in live:
                live.update(step.inputs)
                kept.append(step)
        self.flat.steps = kept[::-1]
        for step in self.flat.steps:
            if step.op not in self.known:
                raise UnsupportedOperatorError(
                    f"node {step.origin!r}: operator {step.op} has no rule for the wafer. "
                    f"Rules exist for {', '.join(sorted(self.known))} and every operator composed of them"
                )


def _sized(info: Any, given: Sequence[int] | None) -> Any:
    kind = info.type
    if given is None or not isinstance(kind, TensorType):
        return kind
    if kind.shape is not None and len(kind.shape) != len(given):
        raise InputError(
            f"input {info.name!r} has {len(kind.shape)} dimensions, the given shape {list(given)} has another number"
        )
    return TensorType(kind.dtype, Shape(given))
