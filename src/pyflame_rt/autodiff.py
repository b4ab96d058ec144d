"""Reverse-mode differentiation: a graph in, a graph with gradient nodes out.

Primitives bring their rule (``vjp``) with them; a composition without one of its own is replaced by
its body and differentiated there. Gradients are ordinary nodes: they can be optimised, compiled,
exported and differentiated again.
"""

from __future__ import annotations

from collections import deque
from operator import add
from typing import TYPE_CHECKING, Any, TypeVar

from pyflame_rt.graph import (
    Dim,
    Graph,
    Node,
    OptionalType,
    SequenceType,
    TensorInfo,
    TensorType,
    ValueType,
)
from pyflame_rt.graph.errors import InputError, UndeterminedError, UnsupportedOperatorError
from pyflame_rt.graph.records import dataclass
from pyflame_rt.ops.core.evaluate import bind_attributes, where
from pyflame_rt.ops.core.inference import merge_types
from pyflame_rt.ops.core.registry import Op, get_op
from pyflame_rt.ops.core.trace import MAX_KNOWN, Tracer, infer_outputs, trace
from pyflame_rt.ops.core.value import Value, constant, scope
from pyflame_rt.ops.onnx.arithmetic import runtime_shape, zeros_like
from pyflame_rt.ops.onnx.cast import Identity
from pyflame_rt.ops.onnx.creation import Dims
from pyflame_rt.ops.onnx.shape import Expand, Shape
from pyflame_rt.ops.onnx.slicing import Concat

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import numpy as np

__all__ = ["gradient", "pull_back", "walk_back"]

S = TypeVar("S")
K = TypeVar("K")
G = TypeVar("G")


def gradient(graph: Graph, outputs: Sequence[str], wrt: Sequence[str], *, seeded: bool = False) -> Graph:
    """The graph that computes ``outputs`` and, after them, their gradient for each name in ``wrt``.

    Args:
        graph: left as it is.
        outputs: values to differentiate; the gradient is that of the sum of all their elements.
        wrt: inputs, initializers or intermediate values to differentiate for.
        seeded: weigh the elements of each output by a further input, ``<output>_seed``.

    Returns:
        A graph with the inputs of ``graph`` and the outputs ``[*outputs, *(f"{w}_grad" for w in wrt)]``.

    Raises:
        UnsupportedOperatorError: an operator between ``wrt`` and ``outputs`` has no gradient.
        InputError: a name is not a value of the graph, or an output is not made of real numbers.

    Example:
        >>> from pyflame_rt.graph import DType, Graph
        >>> g = Graph("square")
        >>> _ = g.add_input("x", [2], DType.Float32)
        >>> _ = g.add_node("sq", "Mul", ["x", "x"], ["y"])
        >>> _ = g.add_output("y", [2], DType.Float32)
        >>> [info.name for info in gradient(g, ["y"], ["x"]).outputs]
        ['y', 'x_grad']
    """
    _check_names(graph, [*outputs, *wrt])
    tape = _Tape(graph, outputs, wrt)
    with scope(tape):
        tape.record()
        tape.play_back(tape.seeds(outputs, seeded))
        return tape.finish(outputs, wrt)


def walk_back(
    seeds: Iterable[tuple[K, G]],
    steps: Sequence[S],
    outputs: Callable[[S], Iterable[K]],
    rule: Callable[[S, list[G | None]], Iterable[tuple[K, G]]],
    plus: Callable[[G, G], G],
) -> dict[K, G]:
    """Carry gradients from the outputs of steps to their inputs, last step first; those of what no step gave are left.

    Args:
        seeds: keys of values with the gradients to begin with.
        steps: in running order.
        outputs: the keys of what a step gave.
        rule: the gradients of a step's inputs, by key, from those of its outputs, of which some came.
        plus: the sum of two gradients of one value.
    """
    found: dict[K, G] = {}

    def arrivals() -> Iterator[tuple[K, G]]:
        yield from seeds
        for step in reversed(steps):
            arrived = [found.pop(key, None) for key in outputs(step)]
            if arrived.count(None) < len(arrived):
                yield from rule(step, arrived)

    for key, more in arrivals():
        have = found.get(key)
        found[key] = more if have is None else plus(have, more)
    return found


def pull_back(
    op: Op,
    arrived: Sequence[Value | None],
    outputs: Sequence[Value],
    inputs: Sequence[Value | None],
    attributes: Mapping[str, Any],
) -> Sequence[Value | None]:
    """The gradients of an operator's inputs, by its rule, from those of its outputs.

    Args:
        op: an operator with a rule.
        arrived: the gradient of each output; None where none came, which the rule sees as zeros unless it is partial.
        outputs: what the operator gave.
        inputs: what it was given.
        attributes: its attributes, with defaults.
    """
    assert op.vjp is not None
    if len(outputs) == 1:
        return op.vjp(arrived[0], outputs[0], *inputs, **attributes)
    full = [
        zeros_like(y) if g is None and not op.partial and _is_real(y.type) else g
        for g, y in zip(arrived, outputs, strict=True)
    ]
    return op.vjp(tuple(full), tuple(outputs), *inputs, **attributes)


def _check_names(graph: Graph, names: Iterable[str]) -> None:
    known = {info.name for info in graph.inputs} | set(graph.initializers) | set(graph.producers())
    for name in names:
        if name not in known:
            raise InputError(f"graph {graph.name!r} has no value {name!r} to differentiate")


@dataclass(frozen=True, slots=True)
class _ForwardNode:
    """A node that gradients flow through."""

    node: Node
    op: Op
    attributes: dict[str, Any]
    inputs: list[Value | None]
    outputs: list[Value]


class _Tape(Tracer):
    """The graph being built: first the forward nodes, then their gradients."""

    __slots__ = ("_active", "_gradients", "_names", "_places", "_source", "_steps", "_values")

    def __init__(self, source: Graph, outputs: Sequence[str], wrt: Sequence[str]) -> None:
        super().__init__(f"{source.name}_gradient")
        self._source = _ancestors_of(source, [*outputs, *wrt])
        self._active = set(wrt)
        self._steps: list[_ForwardNode] = []
        self._values: dict[str, Value] = {}
        self._gradients: dict[str, Value] = {}
        self._places: dict[str, tuple[str, int]] = {}
        self._names = {info.name for info in source.inputs} | set(source.initializers)
        self._names.update(output for node in source.nodes for output in node.outputs)
        self.graph.initializers = dict(source.initializers)
        self.graph.inputs = [info.copy() for info in source.inputs]
        self.graph.types = dict(source.types)
        self.graph.opsets = dict(source.opsets)
        for info in source.inputs:
            self._keep(Value(info.name, info.type if isinstance(info.type, TensorType) else None))

    def fresh(self, hint: str = "v") -> str:
        name = super().fresh(hint)
        while name in self._names:
            name = super().fresh(hint)
        self._names.add(name)
        return name

    # ------------------------------------------------------------------ forward

    def record(self) -> None:
        """Copy the nodes, bodies in place of compositions that gradients flow through."""
        pending = deque(self._source)
        while pending:
            node = pending.popleft()
            if node.full_name == Dims.full_name:
                self._keep_as(node.outputs[0], self._sizes(node.get_attr("dims")))
                continue
            op = get_op(node.op_type, node.domain)
            active = any(name in self._active for name in node.inputs)
            inputs = [self._value(name) if name else None for name in node.inputs]
            attributes = bind_attributes(node, op)
            if active and op.composite and op.vjp is None:
                pending.extendleft(reversed(self._inline(node, op, inputs, attributes)))
            else:
                self._record_node(node, op, inputs, attributes, active)

    def _record_node(
        self, node: Node, op: Op, inputs: list[Value | None], attributes: dict[str, Any], active: bool
    ) -> None:
        inferred = infer_outputs(op, inputs, attributes)
        count = max(len(inferred), len(node.outputs))
        inferred += [Value(None, None)] * (count - len(inferred))
        # A rule may need an output that the model left unnamed.
        names = [n or self.fresh(op.name.lower()) for n in node.outputs]
        if active and op.vjp is not None:
            names += [self.fresh(op.name.lower()) for _ in range(count - len(names))]
        node = node.replace(outputs=names) if tuple(names) != node.outputs else node
        self.graph.nodes.append(node)
        values = []
        for name, value in zip(names, inferred, strict=False):
            kind = merge_types(value.type, self.graph.types.get(name))
            values.append(self._keep(Value(name, kind, value.known)))
        if not active:
            return
        reached = [v.ref for v in values if _is_real(v.type)]
        self._active.update(reached)
        if reached:
            self._steps.append(_ForwardNode(node, op, attributes, inputs, values))

    def _inline(self, node: Node, op: Op, inputs: list[Value | None], attributes: dict[str, Any]) -> list[Node]:
        """The nodes of a composition's body, in names of this graph."""
        try:
            body, results = trace(op, inputs, attributes)
        except UndeterminedError as error:
            raise UndeterminedError(f"{where(node)}: to differentiate it, {error}") from error
        rename = {f"in_{i}": v.ref for i, v in enumerate(inputs) if v is not None} | {"": ""}
        for name, tensor in body.initializers.items():
            rename[name] = self.fresh("c")
            self.graph.initializers[rename[name]] = tensor
        made = dict.fromkeys(output for inner in body.nodes for output in inner.outputs)
        passed = []
        for name, result in zip(node.outputs, results, strict=False):
            if not name or result is None:
                continue
            if result.ref in made and result.ref not in rename:
                rename[result.ref] = name
            else:
                passed.append((name, result.ref))
        for output in made:
            if output not in rename:
                rename[output] = self.fresh(op.name.lower())
        nodes = [_renamed(inner, rename, node.name) for inner in body.topological_sort()]
        return nodes + [Node(name, Identity.name, [rename[ref]], [name]) for name, ref in passed]

    # ------------------------------------------------------------------ values

    def _keep(self, value: Value) -> Value:
        self._values[value.ref] = value
        if value.type is not None:
            self.graph.types[value.ref] = value.type
        if isinstance(value.type, TensorType) and value.type.shape is not None:
            for axis, size in enumerate(value.type.shape):
                if isinstance(size, Dim):
                    self._places.setdefault(str(size), (value.ref, axis))
        return value

    def _keep_as(self, name: str, value: Value) -> None:
        self.graph.add_node(name, Identity.name, [value.ref], [name])
        self._keep(Value(name, value.type, value.known))

    def _value(self, name: str) -> Value:
        found = self._values.get(name)
        if found is not None:
            return found
        tensor = self.graph.initializers.get(name)
        if tensor is None:
            return Value(name, self.graph.types.get(name))
        contents = tensor.raw() if tensor.num_elements <= MAX_KNOWN else None
        return self._keep(Value(name, TensorType(tensor.dtype, tensor.shape), contents))

    def constant(self, array: np.ndarray[Any, Any]) -> Value:
        if array.dtype == object and any(isinstance(v, Dim) for v in array.ravel()):
            return self._sizes([str(v) for v in array])
        return super().constant(array)

    def _sizes(self, dims: Sequence[str]) -> Value:
        """Symbolic sizes as a tensor: each read off a value that has it."""
        parts = [self._size(text) for text in dims]
        return parts[0] if len(parts) == 1 else Concat(*parts, axis=0)

    def _size(self, text: str) -> Value:
        if text.lstrip("-").isdigit():
            return constant([int(text)])
        if text not in self._places:
            raise UndeterminedError(f"the size {text} is only known when running")
        name, axis = self._places[text]
        return Shape(self._value(name), start=axis, end=axis + 1)

    # ------------------------------------------------------------------ backward

    def seeds(self, outputs: Sequence[str], seeded: bool) -> Iterator[tuple[str, Value]]:
        """Each output's own gradient: ones, or an input."""
        for name in outputs:
            value = self._value(name)
            if not isinstance(value.type, TensorType) or not _is_real(value.type):
                raise InputError(f"output {name!r} of type {value.type} cannot be differentiated")
            if seeded:
                unique = f"{name}_seed" if f"{name}_seed" not in self._names else self.fresh(f"{name}_seed")
                yield name, self.input(unique, value.type)
            else:
                shape, one = runtime_shape(value), constant(1.0, value)
                yield name, one if value.type.shape == () else Expand(one, shape)

    def play_back(self, seeds: Iterable[tuple[str, Value]]) -> None:
        """Apply the rules."""
        self._gradients |= walk_back(seeds, self._steps, lambda step: step.node.outputs, self._apply_rule, add)

    def _apply_rule(self, step: _ForwardNode, arrived: list[Value | None]) -> Iterator[tuple[str, Value]]:
        self._gradients.update((v.ref, g) for v, g in zip(step.outputs, arrived, strict=True) if g is not None)
        if step.op.vjp is None:
            raise UnsupportedOperatorError(
                f"{where(step.node)}: operator {step.op.full_name} has no gradient. "
                f"Give its declaration a rule with vjp=, or cut the path to it from what is differentiated."
            )
        try:
            results = pull_back(step.op, arrived, step.outputs, step.inputs, step.attributes)
        except UndeterminedError as error:
            raise UndeterminedError(f"{where(step.node)}: its gradient: {error}") from error
        for name, result in zip(step.node.inputs, results, strict=False):
            if result is not None and name in self._active:
                yield name, result

    # ------------------------------------------------------------------ result

    def finish(self, outputs: Sequence[str], wrt: Sequence[str]) -> Graph:
        """Declare the outputs, and drop what none of them needs."""
        for name in outputs:
            self._declare(name, self._value(name).type)
        for name in wrt:
            found = self._gradients.get(name)
            value = zeros_like(self._value(name)) if found is None else found
            unique = f"{name}_grad" if f"{name}_grad" not in self._names else self.fresh(f"{name}_grad")
            self._keep_as(unique, value)
            self._declare(unique, value.type)
        names = [info.name for info in self.graph.outputs]
        self.graph.nodes = _ancestors_of(self.graph, names)
        used = {name for node in self.graph.nodes for name in node.inputs} | set(names)
        declared = {info.name for info in self.graph.inputs}
        self.graph.initializers = {n: t for n, t in self.graph.initializers.items() if n in used | declared}
        return self.graph

    def _declare(self, name: str, kind: ValueType | None) -> None:
        if kind is None:
            raise UndeterminedError(f"the type of {name!r} is only known when running")
        self.graph.outputs.append(TensorInfo(name, type=kind))


def _is_real(kind: ValueType | None) -> bool:
    """True where a small change makes sense; unknown types may be such."""
    match kind:
        case TensorType(dtype=dtype):
            return dtype.is_float or dtype.is_complex
        case SequenceType(elem=elem) | OptionalType(elem=elem):
            return _is_real(elem)
        case _:
            return kind is None


def _renamed(node: Node, rename: dict[str, str], prefix: str) -> Node:
    return node.replace(
        name=f"{prefix}/{node.name}",
        inputs=[rename[name] for name in node.inputs],
        outputs=[rename[name] for name in node.outputs],
    )


def _ancestors_of(graph: Graph, names: Iterable[str]) -> list[Node]:
    """The nodes that these values depend on, in running order."""
    producers = graph.producers()
    wanted: set[int] = set()
    pending = list(names)
    while pending:
        node = producers.get(pending.pop())
        if node is not None and id(node) not in wanted:
            wanted.add(id(node))
            pending.extend(filter(None, node.inputs))
    return [node for node in graph.topological_sort() if id(node) in wanted]
