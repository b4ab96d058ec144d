"""Shape specialisation: every size becomes a number, composites open, constants fold.

One implementation for every backend. A :class:`BackendTarget` says what of a graph the backend takes as it is, and
which rules of the specialised graph apply; see :mod:`pyflame_rt.opt.rule` for these.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from dataclasses import field
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.graph import DType, Graph, Node, Shape, TensorType
from pyflame_rt.graph.budget import Budget, budgeted
from pyflame_rt.graph.errors import InputError, InvalidModelError, PyFlameRTError, UndeterminedError
from pyflame_rt.graph.graph import node_subgraphs
from pyflame_rt.graph.records import dataclass
from pyflame_rt.ops.core.evaluate import Context, bind_attributes, named, run_op, where
from pyflame_rt.ops.core.guards import Within, enforce
from pyflame_rt.ops.core.inference_memo import InferenceMemo
from pyflame_rt.ops.core.inline import instantiate
from pyflame_rt.ops.core.registry import Op, get_op
from pyflame_rt.ops.core.value import Value
from pyflame_rt.ops.onnx.cast import Cast, Identity
from pyflame_rt.ops.onnx.control import If
from pyflame_rt.ops.onnx.loss import Dropout
from pyflame_rt.ops.onnx.norm import LayerNormalization
from pyflame_rt.ops.onnx.quantize import DequantizeLinear
from pyflame_rt.ops.onnx.shape import Shape as ShapeOp
from pyflame_rt.ops.onnx.shape import Size
from pyflame_rt.ops.pyflame.quantized import CastFromBF16, CastFromFP16
from pyflame_rt.ops.pyflame.within import Look
from pyflame_rt.opt.rule import NoMatch, Rule
from pyflame_rt.opt.rules.exact_integers import dequantized
from pyflame_rt.opt.specialized_graph import Blocker, EarlierStages, ShapesUnknown, SpecializedGraph, SpecializedNode
from pyflame_rt.opt.traced_sizes import is_traced

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

__all__ = ["BackendTarget", "Specializer", "named_apart", "specialize"]

# Folding must not turn a small file into a large plan.
MAX_FOLDED = 64 * 1024 * 1024
_FOLDING = Budget(limit=4 * MAX_FOLDED)  # of what is made on the way
# What is folded from weights is kept for further shapes up to this size: what is packed is kept in that form.
MAX_KEPT = 1 << 16
# Operators that make float32 of numbers of 16 bits, and those numbers.
_WIDENING = (Cast, CastFromBF16, CastFromFP16)
_HALVES = (DType.Float16.numpy, DType.BFloat16.numpy)
# Contents larger than this are kept as constants, not propagated through inference.
MAX_KNOWN = 1024
# Contents that plans may be made for are at most so many numbers.
MAX_CONTENTS = 64
# Inputs of a node that is planned; one that has more runs as it is.
MAX_INPUTS = 2048


@dataclass(frozen=True, slots=True)
class BackendTarget:
    """What a backend takes of a graph.

    Attributes:
        keeps: whether it takes a composite whole; others are opened.
        looks: operators whose kernels look at every index they use.
        guards: whether steps that look at indices stand before other operators.
        hands_on: operators that are their first input under another name.
        rules: of the specialised graph, those that apply.
    """

    keeps: Callable[[Node, Op, Mapping[str, Any], SpecializedGraph], bool]
    looks: Collection[str] = ()
    guards: bool = True
    hands_on: Collection[str] = ()
    rules: tuple[Rule, ...] = field(default=())

    def stage(self, stage: str) -> list[Rule]:
        """Its rules of one stage."""
        return [rule for rule in self.rules if rule.stage == stage]


def specialize(
    graph: Graph,
    feeds: Mapping[str, tuple[DType, tuple[int, ...]]],
    target: BackendTarget,
    wanted: Sequence[str],
    before: EarlierStages | None = None,
    folded: dict[str, list[Any]] | None = None,
) -> SpecializedGraph:
    """Specialise a graph as far as sizes are known.

    Args:
        graph: normalised; shared, not changed.
        feeds: element type and sizes of each input that is fed.
        target: what the backend takes.
        wanted: values to hand out.
        before: what earlier stages of the same run found out.
        folded: what nodes that depend on weights alone gave for other shapes; added to.

    Example:
        >>> graph = Graph("g")
        >>> _ = graph.add_input("x", ["N", 4]), graph.add_node("s", "Shape", ["x"], ["n"])
        >>> _ = graph.add_node("r", "Reshape", ["x", "n"], ["y"]), graph.add_output("y", ["N", 4])
        >>> made = specialize(graph, {"x": (DType.Float32, (2, 4))}, BackendTarget(lambda *_: True), ["y"])
        >>> [step.op.name for step in made.steps], made.shape("y"), made.constants["n"].tolist()
        (['Reshape'], (2, 4), [2, 4])
    """
    return Specializer(graph, feeds, target, wanted, before or EarlierStages(), {} if folded is None else folded).run()


def _without_unread(node: Node, read: set[str]) -> Node:
    """A normalisation without the statistics that nobody reads: kernels give its result alone."""
    if node.full_name != LayerNormalization.name or len(node.outputs) == 1 or not read.isdisjoint(node.outputs[1:]):
        return node
    return node.replace(outputs=node.outputs[:1])


def named_apart(nodes: Sequence[Node]) -> list[Node]:
    """The nodes, each under a name of its own: those without one, or with another's, are called by what they make."""
    count = Counter(node.name for node in nodes)
    return [
        node if node.name and count[node.name] == 1 else node.replace(name=next((o for o in node.outputs if o), ""))
        for node in nodes
    ]


class Specializer:
    """Work in progress; rules read ``out`` and ``wanted``, and make names and constants."""

    def __init__(
        self,
        graph: Graph,
        feeds: Mapping[str, tuple[DType, tuple[int, ...]]],
        target: BackendTarget,
        wanted: Sequence[str],
        before: EarlierStages,
        folded: dict[str, list[Any]],
    ) -> None:
        self.graph = graph
        self.folded = folded
        self.own = {name for node in graph.nodes for name in node.outputs}
        self.fixed = {name for name in graph.initializers if name not in feeds}
        self.target = target
        self.node_rules = {op: rule for rule in target.stage("node") for op in rule.ops}
        self.same: dict[str, str] = {}
        self.values: dict[str, Value] = {}
        self.count = before.count
        self.origins = before.origins
        self.places = dict(before.places)
        self.looked: dict[Any, str] = {}  # values that a step looks through, and what it hands on
        self.opaque = frozenset(before.opaque)
        self.staged = before.staged
        self.waiting: set[str] = set()
        self.integers: dict[str, str] = {}
        self.defaults: dict[Op, Mapping[str, Any]] = {}
        traced = any(is_traced(size) for _, shape in feeds.values() for size in shape)
        self.inferred = InferenceMemo(alone=traced or before.staged)
        self.settled: set[str] = set()  # what depends on traced sizes and constants alone
        self.context: Context | None = None  # made where something is computed: it loads every operation
        self.wanted = list(wanted)
        self.out = SpecializedGraph([name for name in feeds if name not in before.contents], [])
        for name, tensor in graph.initializers.items():
            if name not in feeds:
                self.constant(name, tensor.stored())
        for name, (dtype, shape) in feeds.items():
            if name in before.contents:
                self.constant(name, before.contents[name])
            else:
                self._value(name, TensorType(dtype, Shape(shape)))

    def run(self) -> SpecializedGraph:
        """Take every node."""
        nodes = self.graph.topological_sort()
        if not (self.staged and self.origins):
            apart = named_apart(nodes)
            self.places = {own.name: where(node) for own, node in zip(apart, nodes, strict=True)}
            nodes = apart
        pairs = [(node, node.name) for node in nodes]
        for rule in self.target.stage("first"):
            pairs = rule.build(self, pairs)
        read = {name for node, _ in pairs for name in node.inputs}.union(self.wanted)
        pending = deque((_without_unread(node, read), self.origins.get(origin, origin)) for node, origin in pairs)
        while pending:
            node, origin = pending.popleft()
            node = node.replace(inputs=[self.same.get(n, n) for n in node.inputs])
            pending.extendleft((inner, origin) for inner in reversed(self._take(node, origin)))
        self.out.same, self.out.count, self.out.places = self.same, self.count, self.places
        self._choose_outputs()
        self._drop_dead()
        for rule in self.target.stage("last"):
            rule.build(self.out)
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
            needs = self._unknown_parameters(node, op)
            if any(n in self.opaque for n in node.inputs):
                raise ShapesUnknown("works on strings, sequences or optional values")
            if needs:
                raise ShapesUnknown(f"the contents of {needs[0]!r} decide about sizes")
            if len(node.inputs) > MAX_INPUTS:
                raise ShapesUnknown(f"has {len(node.inputs):,} inputs: a plan for so many costs more than a run")
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

    def _unknown_parameters(self, node: Node, op: Op) -> list[str]:
        """Inputs that say sizes or axes, with contents that are not known."""
        if not op.known:
            return []
        names = [node.inputs[i] for i in op.known if i < len(node.inputs) and node.inputs[i]]
        return [n for n in names if n not in self.out.constants and n not in self.out.sizes]

    def _helpful(self, node: Node, op: Op) -> tuple[str, ...]:
        """Inputs whose contents would let the node be planned, if they are few numbers."""
        names = self._unknown_parameters(node, op)
        if not names and op.composite:
            names = [n for n in node.inputs if n and n not in self.out.constants]
        if any(n not in self.out.types for n in names):
            return ()
        small = [n for n in names if math.prod(self.out.types[n][1]) <= MAX_CONTENTS]
        return tuple(small) if op.composite or len(small) == len(names) else ()

    def constant(self, name: str, array: np.ndarray[Any, Any]) -> None:
        """A value whose contents are known."""
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

    def fresh(self, hint: str) -> str:
        """A name nobody uses."""
        self.count += 1
        return f"{hint}%{self.count}"

    def _node(self, node: Node, op: Op, origin: str) -> list[Node]:
        """Take one node; returns the nodes that replace it when it is opened."""
        if next(node_subgraphs(node), None) is not None:
            return self._control(node, op)
        if op.full_name in self.target.hands_on or (op in (Identity, Dropout) and self._is_identity(node, op)):
            self.same[node.outputs[0]] = node.inputs[0]
            return []
        if not op.random and all(n in self.out.constants for n in node.inputs if n) and self._fold(node, op):
            return []
        values = [self.values[n] if n else None for n in node.inputs]
        attributes = self._bound(node, op)
        if op.requires is not None and self.target.guards:
            node = self._looked_through(node, op, values, attributes, origin)
            values = [self.values[n] if n else None for n in node.inputs]
        if self._derive(SpecializedNode(node, op, attributes, origin), values):
            return []
        if op.name == Cast.name and not op.domain and self._is_exact_cast(node, attributes["to"]):
            return []
        rule = self.node_rules.get(op.full_name)
        if rule is not None and not self._stays_whole(node, op, attributes):
            nodes = rule.build(self, node)
            if not isinstance(nodes, NoMatch):
                return nodes
        if op.composite and not self._stays_whole(node, op, attributes):
            if op.infer is not None:
                self._infer(op, values, attributes)  # what its own rule refuses, its parts may not
            return self._open(node, op, values)
        self._keep(SpecializedNode(node, op, attributes, origin, self._at(origin)), values)
        return []

    def _stays_whole(self, node: Node, op: Op, attributes: Mapping[str, Any]) -> bool:
        """Whether a composition is one that kernels take as it is."""
        return self.target.keeps(node, op, attributes, self.out)

    def _looked_through(
        self, node: Node, op: Op, values: Sequence[Value | None], attributes: Mapping[str, Any], origin: str
    ) -> Node:
        """The node, reading values that a step before it looks through where their contents must be within limits."""
        if op.full_name in self.target.looks and (not op.composite or self._stays_whole(node, op, attributes)):
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
        name, at = self.fresh(source), self._at(origin)
        limits = {"low": need.low, "high": need.high, "without": need.without, "what": f"{at}: {need.name}"}
        op = Look
        node = Node(self.fresh(origin), op.name, [source], [name], {}, op.domain)
        self._value(name, need.value.type)
        self.out.steps.append(SpecializedNode(node, op, limits, origin, at))
        return name

    def _derive(self, step: SpecializedNode, values: Sequence[Value | None]) -> bool:
        """Take a node that depends on traced sizes and constants alone: it is worked out anew for other sizes."""
        node, constants = step.node, self.out.constants
        asks = step.op.name in (ShapeOp.name, Size.name) and not step.op.domain
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
        if op.name == If.name and not op.domain and self.out.constants[node.inputs[0]].size == 1:
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
                names[inner] = self.fresh(inner)
                self.constant(names[inner], tensor.raw())

        def place(inner: str) -> str:
            if inner not in names:
                names[inner] = self.fresh(inner)
            return names[inner]

        nodes = [
            n.replace(name=self.fresh(name), inputs=map(place, n.inputs), outputs=map(place, n.outputs))
            for n in graph.topological_sort()
        ]
        handed = zip(graph.outputs, outputs, strict=False)
        nodes += [Node(self.fresh(name), Identity.name, [place(info.name)], [out]) for info, out in handed if out]
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

    def _is_identity(self, node: Node, op: Op) -> bool:
        if op is Identity:
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
                self.constant(name, array)
                if fixed:
                    self.fixed.add(name)
        if op in _WIDENING:
            self._note_narrow(node)
        return True

    def _note_narrow(self, node: Node) -> None:
        """Remember the numbers of 16 bits that a constant was widened from: kernels that widen take these."""
        source, made = self.out.constants[node.inputs[0]], self.out.constants[node.outputs[0]]
        if source.dtype in _HALVES and made.dtype == np.float32 and source.size > MAX_KNOWN:
            self.out.narrow[node.outputs[0]] = source

    def _evaluated(self, node: Node, op: Op) -> list[Any] | None:
        """What a node makes of constants; None when it fails or makes too much."""
        arrays = [self.out.constants[n] if n else None for n in node.inputs]
        quantized = op.name == DequantizeLinear.name and not op.domain
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
            body = instantiate(node, op, values, self.fresh)
        except UndeterminedError as error:
            raise ShapesUnknown(str(error)) from error
        for name, tensor in body.constants.items():
            self.constant(name, tensor.raw())
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
                self.constant(name, np.asarray(out.known, dtype=out.dtype.numpy))
            return
        for name, out in zip(names, known, strict=True):
            self._value(name, out.type, out.known)
        self.out.steps.append(step)

    def _drop_dead(self) -> None:
        """Forget steps and constants nothing reads; what an operator requires holds also of what it makes no use of."""
        used, kept = set(self.out.outputs), []
        for step in reversed(self.out.steps):
            if step.op.full_name == Look.full_name or any(o in used for o in step.node.outputs):
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
