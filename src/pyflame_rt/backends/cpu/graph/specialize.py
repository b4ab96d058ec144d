"""A graph for given input shapes: every size a number, composites opened, constants folded."""

from __future__ import annotations

import math
from collections import Counter, deque
from dataclasses import field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pyflame_rt.backends.cpu.graph.exact_integers import (
    BLOCK_PRODUCT,
    INTEGER_PRODUCTS,
    dequantized,
    float_form,
    is_block_product,
    is_integer_product,
)
from pyflame_rt.backends.cpu.graph.op_support import LOOK_THEMSELVES, PARAMETERS
from pyflame_rt.backends.cpu.graph.quantized_forms import integer_forms
from pyflame_rt.backends.cpu.graph.traced_sizes import is_traced
from pyflame_rt.graph import DType, Graph, Node, Shape, TensorType
from pyflame_rt.graph.budget import Budget, budgeted
from pyflame_rt.graph.errors import InputError, InvalidModelError, PyFlameRTError, UndeterminedError
from pyflame_rt.graph.graph import node_subgraphs
from pyflame_rt.graph.records import dataclass
from pyflame_rt.ops.core.evaluate import Context, bind_attributes, named, run_op, where
from pyflame_rt.ops.core.guards import Within, enforce
from pyflame_rt.ops.core.inline import instantiate
from pyflame_rt.ops.core.registry import Op, get_op
from pyflame_rt.ops.core.value import Value
from pyflame_rt.opt.inference import InferenceMemo

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

__all__ = ["Before", "Blocker", "Concrete", "ShapesUnknown", "SpecializedNode", "concretize", "named_apart"]

# Folding must not turn a small file into a large plan.
MAX_FOLDED = 64 * 1024 * 1024
_FOLDING = Budget(limit=4 * MAX_FOLDED)  # of what is made on the way
# What is folded from weights is kept for further shapes up to this size: what is packed is kept in that form.
MAX_KEPT = 1 << 16
# Contents larger than this are kept as constants, not propagated through inference.
MAX_KNOWN = 1024


# Contents that plans may be made for are at most so many numbers.
MAX_CONTENTS = 64


class ShapesUnknown(Exception):
    """A size depends on data, so nothing after it can be planned."""


class Blocker(NamedTuple):
    """A node that cannot be planned yet.

    Attributes:
        step: the node, its operator and attributes.
        reason: why.
        needs: values whose contents would let it be planned; none when only running it helps.
    """

    step: SpecializedNode
    reason: str
    needs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SpecializedNode:
    """One operator on values whose types are fully known."""

    node: Node
    op: Op
    attributes: Mapping[str, Any]
    origin: str = ""
    at: str = ""  # how errors name the node of the model


@dataclass(slots=True)
class Concrete:
    """What is left of a graph for one set of shapes.

    Attributes:
        inputs: fed values.
        outputs: values handed out.
        steps: what can be planned.
        constants: contents known by now.
        types: element type and sizes of every value known by now.
        deferred: nodes that wait for a blocker, and the blockers, in order, with the node of the model each stands for.
        blockers: what keeps the deferred nodes waiting.
        same: values that are others under a second name.
        count: how many names were made up.
        exact: values that must be the sums as they are written, because they stand for integers.
        sizes: values made of traced sizes alone, with these as contents.
        derived: what makes the other values that depend on traced sizes and constants alone, in order.
        places: by the name of a node of the model, how errors name it.
    """

    inputs: list[str]
    outputs: list[str]
    steps: list[SpecializedNode] = field(default_factory=list)
    constants: dict[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    types: dict[str, tuple[DType, tuple[int, ...]]] = field(default_factory=dict)
    deferred: list[tuple[Node, str]] = field(default_factory=list)
    blockers: list[Blocker] = field(default_factory=list)
    same: dict[str, str] = field(default_factory=dict)
    count: int = 0
    exact: set[str] = field(default_factory=set)
    sizes: dict[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    derived: list[SpecializedNode] = field(default_factory=list)
    places: Mapping[str, str] = field(default_factory=dict)

    def shape(self, name: str) -> tuple[int, ...]:
        """Sizes of a value."""
        return self.types[name][1]

    def dtype(self, name: str) -> DType:
        """Element type of a value."""
        return self.types[name][0]

    def form(self, node: Node, op: Op, attributes: Mapping[str, Any]) -> Any:
        """What decides whether a kernel takes a node: equal for nodes of equal operator, types and constants."""
        inputs = [(self.types.get(n), n in self.constants) for n in node.inputs]
        return (op.full_name, repr(attributes), tuple(inputs), tuple(bool(o) for o in node.outputs))


@dataclass(slots=True)
class Before:
    """What is known when a later part of a graph is specialised.

    Attributes:
        contents: arrays the plan may be made for; they are constants in it.
        opaque: values that are there but no arrays of numbers (strings, sequences, nothing).
        origins: by name, the node of the model a node stands for; none in the first stage.
        places: by the name of such a node, how errors name it.
        count: how many names were made up.
        staged: hand out only what is made here; the rest is there already.
    """

    contents: Mapping[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    opaque: Collection[str] = ()
    origins: Mapping[str, str] = field(default_factory=dict)
    places: Mapping[str, str] = field(default_factory=dict)
    count: int = 0
    staged: bool = False


def concretize(
    graph: Graph,
    feeds: Mapping[str, tuple[DType, tuple[int, ...]]],
    keeps: Callable[[Op, Mapping[str, Any]], bool],
    wanted: Sequence[str],
    before: Before | None = None,
    folded: dict[str, list[Any]] | None = None,
    refused: Collection[Any] = (),
    *,
    integers: bool = True,
) -> Concrete:
    """Specialise a graph as far as sizes are known.

    Args:
        graph: normalised; shared, not changed.
        feeds: element type and sizes of each input that is fed.
        keeps: whether the engine takes a composite whole; others are opened.
        wanted: values to hand out.
        before: what earlier stages of the same run found out.
        folded: what nodes that depend on weights alone gave for other shapes; added to.
        refused: forms of composites (see `Concrete.form`) that no kernel takes after all.
        integers: products of dequantized numbers may be computed as products of integers.
    """
    worker = _Worker(graph, feeds, keeps, wanted, before or Before(), {} if folded is None else folded)
    worker.refused, worker.as_integers = refused, integers
    return worker.run()


def _without_unread(node: Node, read: set[str]) -> Node:
    """A normalisation without the statistics that nobody reads: kernels give its result alone."""
    if node.op_type != "LayerNormalization" or len(node.outputs) == 1 or not read.isdisjoint(node.outputs[1:]):
        return node
    return node.replace(outputs=node.outputs[:1])


def named_apart(nodes: Sequence[Node]) -> list[Node]:
    """The nodes, each under a name of its own: those without one, or with another's, are called by what they make."""
    count = Counter(node.name for node in nodes)
    return [
        node if node.name and count[node.name] == 1 else node.replace(name=next((o for o in node.outputs if o), ""))
        for node in nodes
    ]


class _Worker:
    def __init__(
        self,
        graph: Graph,
        feeds: Mapping[str, tuple[DType, tuple[int, ...]]],
        keeps: Callable[[Op, Mapping[str, Any]], bool],
        wanted: Sequence[str],
        before: Before,
        folded: dict[str, list[Any]],
    ) -> None:
        self.graph = graph
        self.folded = folded
        self.own = {name for node in graph.nodes for name in node.outputs}
        self.fixed = {name for name in graph.initializers if name not in feeds}
        self.keeps = keeps
        self.same: dict[str, str] = {}
        self.values: dict[str, Value] = {}
        self.count = before.count
        self.origins = before.origins
        self.places = dict(before.places)
        self.looked: dict[Any, str] = {}  # values that a step looks through, and what it hands on
        self.opaque = frozenset(before.opaque)
        self.staged = before.staged
        self.waiting: set[str] = set()
        self.refused: Collection[Any] = ()
        self.as_integers = False
        self.integers: dict[str, str] = {}
        self.defaults: dict[Op, Mapping[str, Any]] = {}
        self.inferred = InferenceMemo()
        self.settled: set[str] = set()  # what depends on traced sizes and constants alone
        self.context: Context | None = None  # made where something is computed: it loads every operation
        self.wanted = list(wanted)
        self.out = Concrete([name for name in feeds if name not in before.contents], [])
        for name, tensor in graph.initializers.items():
            if name not in feeds:
                self._constant(name, tensor.stored())
        for name, (dtype, shape) in feeds.items():
            if name in before.contents:
                self._constant(name, before.contents[name])
            else:
                self._value(name, TensorType(dtype, Shape(shape)))

    def run(self) -> Concrete:
        nodes = self.graph.topological_sort()
        if not (self.staged and self.origins):
            apart = named_apart(nodes)
            self.places = {own.name: where(node) for own, node in zip(apart, nodes, strict=True)}
            nodes = apart
        pairs = [(node, node.name) for node in nodes]
        if self.as_integers:
            pairs = integer_forms(nodes, self.out.constants, self.wanted, self._fresh, self._constant)
        read = {name for node, _ in pairs for name in node.inputs}.union(self.wanted)
        pending = deque((_without_unread(node, read), self.origins.get(origin, origin)) for node, origin in pairs)
        while pending:
            node, origin = pending.popleft()
            node = node.replace(inputs=[self.same.get(n, n) for n in node.inputs])
            pending.extendleft((inner, origin) for inner in reversed(self._take(node, origin)))
        self.out.same, self.out.count, self.out.places = self.same, self.count, self.places
        self._choose_outputs()
        self._drop_dead()
        return self.out

    def _choose_outputs(self) -> None:
        """What was asked for, as far as it is made here, and what the rest reads."""
        asked = [self.same.get(name, name) for name in self.wanted]
        made_later = {o for node, _ in self.out.deferred for o in node.outputs} | self.opaque
        missing = [name for name in asked if name not in self.out.types and name not in made_later]
        if missing:
            maker = next((node for node in self.graph.nodes if missing[0] in node.outputs), None)
            if maker is not None:
                raise InputError(f"{where(maker)}: it gave fewer outputs than are asked for, {missing[0]!r} is not one")
            raise InputError(f"the model has no value {missing[0]!r}")
        read = [n for node, _ in self.out.deferred for n in node.inputs if n and n not in self.out.constants]
        if not self.staged:
            self.out.outputs = [n for n in asked if n in self.out.types]
            return
        there = set(self.out.inputs)
        self.out.outputs = [n for n in dict.fromkeys([*asked, *read]) if n in self.out.types and n not in there]

    def _take(self, node: Node, origin: str) -> list[Node]:
        """Take one node, or put it off until what it waits for is known."""
        if any(n in self.waiting for n in node.inputs):
            self._defer(node, origin)
            return []
        op = get_op(node.op_type, node.domain)
        try:
            needs = self._unknown_parameters(node)
            if any(n in self.opaque for n in node.inputs):
                raise ShapesUnknown("works on strings, sequences or optional values")
            if needs:
                raise ShapesUnknown(f"the contents of {needs[0]!r} decide about sizes")
            return self._node(node, op, origin)
        except ShapesUnknown as error:
            step = SpecializedNode(node, op, bind_attributes(node, op), origin, self._at(origin))
            self.out.blockers.append(Blocker(step, str(error), self._helpful(node, op)))
            self._defer(node, origin)
            return []
        except PyFlameRTError as error:
            raise named(error, self._at(origin)) from error

    def _at(self, origin: str) -> str:
        """How errors name the node of the model."""
        return self.places.get(origin, f"node {origin!r}")

    def _defer(self, node: Node, origin: str) -> None:
        self.out.deferred.append((node, origin))
        for name in filter(None, node.outputs):
            self.waiting.add(name)
            self.values.pop(name, None)
            self.out.types.pop(name, None)

    def _unknown_parameters(self, node: Node) -> list[str]:
        """Inputs that say sizes or axes, with contents that are not known."""
        places = () if node.domain else PARAMETERS.get(node.op_type, ())
        names = [node.inputs[i] for i in places if i < len(node.inputs) and node.inputs[i]]
        return [n for n in names if n not in self.out.constants and n not in self.out.sizes]

    def _helpful(self, node: Node, op: Op) -> tuple[str, ...]:
        """Inputs whose contents would let the node be planned, if they are few numbers."""
        names = self._unknown_parameters(node)
        if not names and op.composite:
            names = [n for n in node.inputs if n and n not in self.out.constants]
        if any(n not in self.out.types for n in names):
            return ()
        small = [n for n in names if math.prod(self.out.types[n][1]) <= MAX_CONTENTS]
        return tuple(small) if op.composite or len(small) == len(names) else ()

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
        if kind.dtype is DType.String:
            raise ShapesUnknown("works on strings, sequences or optional values")
        self.values[name] = Value(name, kind, known)
        self.out.types[name] = (kind.dtype, tuple(kind.shape))  # type: ignore[arg-type]

    def _fresh(self, hint: str) -> str:
        self.count += 1
        return f"{hint}%{self.count}"

    def _node(self, node: Node, op: Op, origin: str) -> list[Node]:
        """Take one node; returns the nodes that replace it when it is opened."""
        if next(node_subgraphs(node), None) is not None:
            return self._control(node, op)
        if op.name in ("Identity", "Dropout") and not op.domain and self._is_identity(node):
            self.same[node.outputs[0]] = node.inputs[0]
            return []
        if not op.random and all(n in self.out.constants for n in node.inputs if n) and self._fold(node, op):
            return []
        values = [self.values[n] if n else None for n in node.inputs]
        attributes = self._bound(node, op)
        if op.requires is not None:
            node = self._looked_through(node, op, values, attributes, origin)
            values = [self.values[n] if n else None for n in node.inputs]
        if self._derive(SpecializedNode(node, op, attributes, origin), values):
            return []
        if op.name == "Cast" and not op.domain and self._is_exact_cast(node, attributes["to"]):
            return []
        if op.full_name in INTEGER_PRODUCTS and not self._stays_whole(node, op, attributes):
            form = float_form(node, self.out.constants, self.out.types, self._fresh)
            if form is not None:
                if form.weights is not None:
                    self._constant(*form.weights)
                self.out.exact.add(form.exact)
                return form.nodes
        if op.composite and not self._stays_whole(node, op, attributes):
            if op.infer is not None:
                self._infer(op, values, attributes)  # what its own rule refuses, its parts may not
            return self._open(node, op, values)
        self._keep(SpecializedNode(node, op, attributes, origin, self._at(origin)), values)
        return []

    def _stays_whole(self, node: Node, op: Op, attributes: Mapping[str, Any]) -> bool:
        """Whether a composition is one that kernels take as it is."""
        if op.full_name in INTEGER_PRODUCTS and not is_integer_product(node, self.out.constants, self.out.types):
            return False
        if op.full_name == BLOCK_PRODUCT and not is_block_product(node, self.out.constants, self.out.types, attributes):
            return False
        return self.keeps(op, attributes) and not (self.refused and self.out.form(node, op, attributes) in self.refused)

    def _looked_through(
        self, node: Node, op: Op, values: Sequence[Value | None], attributes: Mapping[str, Any], origin: str
    ) -> Node:
        """The node, reading values that a step before it looks through where their contents must be within limits."""
        if op.full_name in LOOK_THEMSELVES and (not op.composite or self._stays_whole(node, op, attributes)):
            return node
        for need in enforce(op, values, attributes):
            source = need.value.ref
            if source not in node.inputs or need.value.type is None:
                continue
            key = (source, *(v.terms if is_traced(v) else v for v in (need.low, need.high)), need.without)
            if key not in self.looked:
                self.looked[key] = self._look(source, need, origin)
            node = node.replace(inputs=[self.looked[key] if n == source else n for n in node.inputs])
        return node

    def _look(self, source: str, need: Within, origin: str) -> str:
        name, at = self._fresh(source), self._at(origin)
        limits = {"low": need.low, "high": need.high, "without": need.without, "what": f"{at}: {need.name}"}
        op = get_op("Within", "pyflame")
        node = Node(self._fresh(origin), op.name, [source], [name], {}, op.domain)
        self._value(name, need.value.type)
        self.out.steps.append(SpecializedNode(node, op, limits, origin, at))
        return name

    def _derive(self, step: SpecializedNode, values: Sequence[Value | None]) -> bool:
        """Take a node that depends on traced sizes and constants alone: it is worked out anew for other sizes."""
        node, constants = step.node, self.out.constants
        asks = step.op.name in ("Shape", "Size") and not step.op.domain
        traced = asks and any(is_traced(d) for d in self.out.types[node.inputs[0]][1])
        if step.op.random or not (traced or any(n in self.settled for n in node.inputs)):
            return False
        if not traced and any(n and n not in self.settled and n not in constants for n in node.inputs):
            return False
        outputs = self._infer(step.op, values, step.attributes)
        pairs = [(n, o) for n, o in zip(node.outputs, outputs, strict=False) if n]
        if len(pairs) < len([n for n in node.outputs if n]):
            raise ShapesUnknown(f"node {node.name!r} ({node.full_name}): types of its outputs are not known")
        if all(o.known is not None and o.known.dtype != object for _, o in pairs):
            return False
        for name, out in pairs:
            self._value(name, out.type, out.known)
            self.settled.add(name)
            if out.known is not None:
                self.out.sizes[name] = out.known
        if not all(name in self.out.sizes for name, _ in pairs):
            self.out.derived.append(step)
        return True

    def _is_exact_cast(self, node: Node, to: int) -> bool:
        """A type stays what it is, and whole numbers that were float32 all along go back to it without a step."""
        source, result = node.inputs[0], node.outputs[0]
        if to == self.out.types[source][0].onnx:
            self.same[result] = source
            return True
        if to == DType.Int32.onnx and source in self.out.exact:
            self.integers[result] = source
        if to == DType.Float32.onnx and source in self.integers:
            self.same[result] = self.integers[source]
            return True
        return False

    def _control(self, node: Node, op: Op) -> list[Node]:
        """An If whose condition is known is the branch it takes; other control flow iterates."""
        if op.name == "If" and not op.domain and self.out.constants[node.inputs[0]].size == 1:
            branch = node.attributes["then_branch" if self.out.constants[node.inputs[0]].any() else "else_branch"]
            assert isinstance(branch, Graph)
            return self._inline(branch, node.inputs[1:], node.outputs, node.name)
        if op.composite:
            return self._open(node, op, [self.values[n] if n else None for n in node.inputs])
        raise ShapesUnknown(f"{node.full_name} has subgraphs")

    def _inline(self, graph: Graph, inputs: Sequence[str], outputs: Sequence[str], name: str) -> list[Node]:
        if len(graph.inputs) != len(inputs) or len(graph.outputs) < len(outputs):
            counts = f"takes {len(graph.inputs)} and gives {len(graph.outputs)} values"
            asked = f"{len(inputs)} are given and {len(outputs)} asked for"
            raise InvalidModelError(f"{self._at(name)}: the graph {graph.name!r} {counts}, {asked}")
        names = {"": ""} | {info.name: given for info, given in zip(graph.inputs, inputs, strict=True)}
        for inner, tensor in graph.initializers.items():
            if inner not in names:
                names[inner] = self._fresh(inner)
                self._constant(names[inner], tensor.raw())

        def place(inner: str) -> str:
            if inner not in names:
                names[inner] = self._fresh(inner)
            return names[inner]

        nodes = [
            n.replace(name=self._fresh(name), inputs=map(place, n.inputs), outputs=map(place, n.outputs))
            for n in graph.topological_sort()
        ]
        handed = zip(graph.outputs, outputs, strict=False)
        nodes += [Node(self._fresh(name), "Identity", [place(info.name)], [out]) for info, out in handed if out]
        return nodes

    def _bound(self, node: Node, op: Op) -> Mapping[str, Any]:
        """Attributes with defaults; nodes that give none share one mapping."""
        if node.attributes:
            return bind_attributes(node, op)
        if op not in self.defaults:
            self.defaults[op] = bind_attributes(node, op)
        return self.defaults[op]

    def _infer(self, op: Op, values: Sequence[Value | None], attributes: Mapping[str, Any]) -> list[Value]:
        """Types of the outputs, worked out once for equal inputs: models repeat their layers."""
        return self.inferred.infer(op, values, attributes)

    def _is_identity(self, node: Node) -> bool:
        if node.op_type == "Identity":
            return True
        training = node.inputs[2] if len(node.inputs) > 2 else ""
        off = not training or (training in self.out.constants and not self.out.constants[training].any())
        return off and len([o for o in node.outputs if o]) == 1

    def _fold(self, node: Node, op: Op) -> bool:
        first = next(iter(node.outputs), "")
        fixed = bool(first) and first in self.own and self.fixed.issuperset(n for n in node.inputs if n)
        results = self.folded.get(first) if fixed else None
        if results is None:
            results = self._evaluated(node, op)
            if results is None:
                return False
            if fixed and all(_cheap_to_keep(r) for r in results):
                self.folded[first] = results
        for name, array in zip(node.outputs, results, strict=False):
            if name:
                self._constant(name, array)
                if fixed:
                    self.fixed.add(name)
        return True

    def _evaluated(self, node: Node, op: Op) -> list[Any] | None:
        """What a node makes of constants; None when it fails or makes too much."""
        arrays = [self.out.constants[n] if n else None for n in node.inputs]
        quantized = op.name == "DequantizeLinear" and not op.domain
        try:
            attributes = bind_attributes(node, op)
            weights = dequantized(arrays, attributes) if quantized else None
            if weights is None:
                self.context = self.context or Context.of("numpy")
                with budgeted(_FOLDING):
                    results = list(run_op(op, arrays, attributes, self.context))
            else:
                results = [weights]
        except (PyFlameRTError, ValueError, TypeError, LookupError, ArithmeticError, RuntimeError, MemoryError):
            return None  # let it fail when it runs, as it would unfolded
        made = [r for n, r in zip(node.outputs, results, strict=False) if n]
        return None if any(not isinstance(r, np.ndarray) or r.nbytes > MAX_FOLDED for r in made) else results

    def _open(self, node: Node, op: Op, values: Sequence[Value | None]) -> list[Node]:
        try:
            body = instantiate(node, op, values, self._fresh)
        except UndeterminedError as error:
            raise ShapesUnknown(str(error)) from error
        for name, tensor in body.constants.items():
            self._constant(name, tensor.raw())
        return body.nodes

    def _keep(self, step: SpecializedNode, values: Sequence[Value | None]) -> None:
        node = step.node
        outputs = self._infer(step.op, values, step.attributes)
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
        self.out.steps.append(step)

    def _drop_dead(self) -> None:
        """Forget steps and constants nothing reads; what an operator requires holds also of what it makes no use of."""
        used, kept = set(self.out.outputs), []
        for step in reversed(self.out.steps):
            if step.op.full_name == "pyflame::Within" or any(o in used for o in step.node.outputs):
                used.update(n for n in step.node.inputs if n)
                kept.append(step)
        self.out.steps = kept[::-1]
        for step in reversed(self.out.derived):
            used.update(n for n in step.node.inputs if n)
        used.update(n for node, _ in self.out.deferred for n in node.inputs)
        self.out.constants = {n: a for n, a in self.out.constants.items() if n in used}


def _cheap_to_keep(array: Any) -> bool:
    """Whether an array costs little memory: a view of another, or a small one."""
    return not isinstance(array, np.ndarray) or array.base is not None or array.nbytes <= MAX_KEPT
