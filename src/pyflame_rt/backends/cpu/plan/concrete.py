"""A graph for given input shapes: every size a number, composites opened, constants folded."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.graph import DType, Graph, Node, Shape, TensorType
from pyflame_rt.graph.errors import InputError, PyFlameRTError, UndeterminedError
from pyflame_rt.graph.graph import node_subgraphs
from pyflame_rt.ops.evaluate import Context, bind_attributes, run_op
from pyflame_rt.ops.inline import instantiate
from pyflame_rt.ops.registry import Op, get_op
from pyflame_rt.ops.rules import boolean, broadcast, same
from pyflame_rt.ops.trace import infer_outputs
from pyflame_rt.ops.value import Value

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["Concrete", "ShapesUnknown", "Step", "concretize"]

# Folding must not turn a small file into a large plan.
MAX_FOLDED = 64 * 1024 * 1024
# Contents larger than this are kept as constants, not propagated through inference.
MAX_KNOWN = 1024


# Rules that look at the types of inputs only, never at contents or attributes.
_TYPE_RULES = (same, broadcast, boolean)


class ShapesUnknown(Exception):
    """A size depends on data, so nothing after it can be planned."""


@dataclass(frozen=True, slots=True)
class Step:
    """One operator on values whose types are fully known."""

    node: Node
    op: Op
    attributes: Mapping[str, Any]


@dataclass(slots=True)
class Concrete:
    """What is left of a graph for one set of shapes."""

    inputs: list[str]
    outputs: list[str]
    steps: list[Step] = field(default_factory=list)
    constants: dict[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    types: dict[str, tuple[DType, tuple[int, ...]]] = field(default_factory=dict)

    def shape(self, name: str) -> tuple[int, ...]:
        """Sizes of a value."""
        return self.types[name][1]

    def dtype(self, name: str) -> DType:
        """Element type of a value."""
        return self.types[name][0]


def concretize(
    graph: Graph,
    feeds: Mapping[str, tuple[DType, tuple[int, ...]]],
    keeps: Callable[[Op, Mapping[str, Any]], bool],
    wanted: Sequence[str],
) -> Concrete:
    """Specialise a graph.

    Args:
        graph: normalised; shared, not changed.
        feeds: element type and sizes of each input that is fed.
        keeps: whether the engine takes a composite whole; others are opened.
        wanted: values to hand out.
    """
    return _Worker(graph, feeds, keeps, wanted).run()


class _Worker:
    def __init__(
        self,
        graph: Graph,
        feeds: Mapping[str, tuple[DType, tuple[int, ...]]],
        keeps: Callable[[Op, Mapping[str, Any]], bool],
        wanted: Sequence[str],
    ) -> None:
        self.graph = graph
        self.keeps = keeps
        self.same: dict[str, str] = {}
        self.values: dict[str, Value] = {}
        self.count = 0
        self.defaults: dict[Op, Mapping[str, Any]] = {}
        self.inferred: dict[Any, list[Value]] = {}
        self.context = Context.of("numpy")
        self.wanted = list(wanted)
        self.out = Concrete(list(feeds), [])
        for name, tensor in graph.initializers.items():
            if name not in feeds:
                self._constant(name, tensor.raw())
        for name, (dtype, shape) in feeds.items():
            self._value(name, TensorType(dtype, Shape(shape)))

    def run(self) -> Concrete:
        pending = deque(self.graph.topological_sort())
        while pending:
            node = pending.popleft()
            pending.extendleft(reversed(self._node(node)))
        self.out.outputs = [self.same.get(name, name) for name in self.wanted]
        missing = [name for name in self.out.outputs if name not in self.out.types]
        if missing:
            raise InputError(f"the model has no value {missing[0]!r}")
        self._drop_dead()
        return self.out

    def _constant(self, name: str, array: np.ndarray[Any, Any]) -> None:
        kind = DType.of(array.dtype)
        self.out.constants[name] = array
        self.out.types[name] = (kind, array.shape)
        self.values[name] = Value(
            name, TensorType(kind, Shape(array.shape)), array if array.size <= MAX_KNOWN else None
        )

    def _value(self, name: str, kind: Any, known: np.ndarray[Any, Any] | None = None) -> None:
        if not isinstance(kind, TensorType) or kind.shape is None or not kind.shape.is_static:
            raise ShapesUnknown(f"{name!r} has the type {kind}")
        self.values[name] = Value(name, kind, known)
        self.out.types[name] = (kind.dtype, tuple(int(d) for d in kind.shape))  # type: ignore[arg-type]

    def _fresh(self, hint: str) -> str:
        self.count += 1
        return f"{hint}%{self.count}"

    def _node(self, node: Node) -> list[Node]:
        """Take one node; returns the nodes that replace it when it is opened."""
        op = get_op(node.op_type, node.domain)
        node = node.replace(inputs=[self.same.get(n, n) for n in node.inputs])
        if next(node_subgraphs(node), None) is not None:
            raise ShapesUnknown(f"node {node.name!r} ({node.full_name}) has subgraphs")
        if op.name in ("Identity", "Dropout") and not op.domain and self._is_identity(node):
            self.same[node.outputs[0]] = node.inputs[0]
            return []
        if not op.random and all(n in self.out.constants for n in node.inputs if n) and self._fold(node, op):
            return []
        values = [self.values[n] if n else None for n in node.inputs]
        attributes = self._bound(node, op)
        if op.composite and not self.keeps(op, attributes):
            return self._open(node, op, values)
        self._keep(node, op, values, attributes)
        return []

    def _bound(self, node: Node, op: Op) -> Mapping[str, Any]:
        """Attributes with defaults; nodes that give none share one mapping."""
        if node.attributes:
            return bind_attributes(node, op)
        if op not in self.defaults:
            self.defaults[op] = bind_attributes(node, op)
        return self.defaults[op]

    def _infer(self, op: Op, values: Sequence[Value | None], attributes: Mapping[str, Any]) -> list[Value]:
        """Types of the outputs, worked out once for equal input types where only those matter."""
        contents = op.shape_math and all(v is None or v.known is not None for v in values)
        if op.infer not in _TYPE_RULES or contents:
            return infer_outputs(op, values, dict(attributes))
        key = (op, *(None if v is None else v.type for v in values))
        if key not in self.inferred:
            self.inferred[key] = infer_outputs(op, values, dict(attributes))
        return self.inferred[key]

    def _is_identity(self, node: Node) -> bool:
        if node.op_type == "Identity":
            return True
        training = node.inputs[2] if len(node.inputs) > 2 else ""
        off = not training or (training in self.out.constants and not self.out.constants[training].any())
        return off and len([o for o in node.outputs if o]) == 1

    def _fold(self, node: Node, op: Op) -> bool:
        arrays = [self.out.constants[n] if n else None for n in node.inputs]
        try:
            results = run_op(op, arrays, bind_attributes(node, op), self.context)
        except (PyFlameRTError, ValueError, TypeError, LookupError, ArithmeticError, RuntimeError, MemoryError):
            return False  # let it fail when it runs, as it would unfolded
        made = [(n, r) for n, r in zip(node.outputs, results, strict=False) if n]
        if any(not isinstance(r, np.ndarray) or r.nbytes > MAX_FOLDED for _, r in made):
            return False
        for name, array in made:
            self._constant(name, array)
        return True

    def _open(self, node: Node, op: Op, values: Sequence[Value | None]) -> list[Node]:
        try:
            body = instantiate(node, op, values, self._fresh)
        except UndeterminedError as error:
            raise ShapesUnknown(str(error)) from error
        for name, tensor in body.constants.items():
            self._constant(name, tensor.raw())
        return body.nodes

    def _keep(self, node: Node, op: Op, values: Sequence[Value | None], attributes: Mapping[str, Any]) -> None:
        outputs = self._infer(op, values, attributes)
        names = [n for n in node.outputs if n]
        if len(outputs) < len(node.outputs):
            raise ShapesUnknown(f"node {node.name!r} ({node.full_name}): types of its outputs are not known")
        known = [o for n, o in zip(node.outputs, outputs, strict=False) if n]
        if all(o.known is not None and o.known.dtype != object for o in known):
            for name, out in zip(names, known, strict=True):
                self._constant(name, np.asarray(out.known, dtype=out.dtype.numpy))
            return
        for name, out in zip(names, known, strict=True):
            self._value(name, out.type, out.known)
        self.out.steps.append(Step(node, op, attributes))

    def _drop_dead(self) -> None:
        """Forget steps and constants nothing reads."""
        used, kept = set(self.out.outputs), []
        for step in reversed(self.out.steps):
            if any(o in used for o in step.node.outputs):
                used.update(n for n in step.node.inputs if n)
                kept.append(step)
        self.out.steps = kept[::-1]
        self.out.constants = {n: a for n, a in self.out.constants.items() if n in used}
