"""Rules: a picture of what is replaced, a condition with a reason, and what takes its place.

    @rule(lambda op, x: op.Mul(x, op.Sigmoid(x)), switch="fuse_activations")
    def silu(m: Match, x: str) -> str | NoMatch:
        if m.dtype(x) is not DType.Float32:
            return NoMatch("the elements are not float32")
        return m.emit(Swish, [x])

The picture's parameters are values; equal ones must be equal in the graph, and ``op.constant(c)`` is one that must be a
constant. What the picture shows, but for its last node, must be read by nobody else. The function names the values it
asks for (those its picture lacks are empty) and gives the name of the value that stands for the picture's result.

Rules that need numbers for sizes run on the specialised graph instead (:func:`specialized_rule`).
"""

from __future__ import annotations

import importlib
import pkgutil
from collections import deque
from dataclasses import field
from functools import cache, lru_cache
from itertools import repeat
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import ml_dtypes

from pyflame_rt.graph import Node
from pyflame_rt.graph.records import dataclass
from pyflame_rt.ops.onnx.arithmetic import Add, Mul
from pyflame_rt.ops.onnx.cast import Identity
from pyflame_rt.ops.onnx.logic import And, Equal, Or
from pyflame_rt.opt.base import PassResult, Rewrite

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import numpy as np

    from pyflame_rt.graph import Attribute, DimLike, DType
    from pyflame_rt.ops.core.registry import Op
    from pyflame_rt.opt.editor import Editor

__all__ = ["Match", "NoMatch", "Rule", "all_rules", "apply_rules", "graph_rule", "rule", "specialized_rule"]

_COMMUTATIVE = frozenset({Add.name, Mul.name, And.name, Or.name, Equal.name})


class NoMatch(str):
    """Why a rule leaves a place alone that looks like its picture."""

    __slots__ = ()


class Term(NamedTuple):
    """A node of a picture: operators it may be, what it reads, attributes it must have, and its name there."""

    ops: tuple[str, ...]
    args: tuple[Any, ...]
    attributes: Mapping[str, Any]
    label: str


class _Operators:
    """Builds terms: ``op.Relu(x)``, ``op.any_of("Relu", "Elu")(x)``; ``label=`` names a node for the rule.

    A term that stands in a picture twice is one node of the graph; two terms are two nodes.
    """

    def __init__(self) -> None:
        self._labels: set[str] = set()

    def _free(self, hint: str) -> str:
        name, count = hint, 1
        while name in self._labels:
            count += 1
            name = f"{hint}{count}"
        self._labels.add(name)
        return name

    def __getattr__(self, name: str) -> Callable[..., Term]:
        return self.any_of(name)

    def constant(self, variable: Variable) -> Constant:
        """A value that is a constant."""
        return Constant(variable.name)

    def output(self, term: Term, index: int) -> TermOutput:
        """Output number ``index`` of a node; a node itself stands for its first."""
        return TermOutput(term, index)

    def any_of(self, *names: str) -> Callable[..., Term]:
        """A node of one of several operators."""

        def make(*args: object, label: str = "", **attributes: object) -> Term:
            return Term(names, args, attributes, self._free(label or names[0].rpartition("::")[2].lower()))

        return make


class TermOutput(NamedTuple):
    """An output of a node of a picture, besides its first."""

    term: Term
    number: int


class Variable(NamedTuple):
    """A parameter of a picture."""

    name: str


class Constant(NamedTuple):
    """A parameter of a picture that is a constant."""

    name: str


@dataclass(slots=True, eq=False)
class Rule:
    """A rewrite, with what it promises.

    Attributes:
        name: of the function that makes the replacement.
        pictures: what is replaced, in several ways of writing it.
        build: the condition and the replacement.
        family: "simplify" for fewer steps of the same kind, "fuse" for operators that do several.
        switch: the field of FusionConfig that turns it off.
        bound: what it may change, in units of the last place of the largest number involved; 0 keeps every bit.
        own: makes operators of our own domain, which other runtimes lack.
        about: what it does.
        whole: works on the whole graph instead of looking for pictures.
        parameters: values its function asks for.
        turn: rules of lower turns are applied to the end first, so that small pictures take no parts of large ones.
        stage: "load" for rules over graphs with open sizes; else when the specialiser applies it.
        ops: of the nodes that a rule of stage "node" takes; a rule for whole graphs looks at those that have one.
    """

    name: str
    pictures: tuple[Term, ...]
    build: Callable[..., Any]
    family: str
    switch: str = ""
    bound: float = 0.0
    own: bool = False
    about: str = ""
    whole: bool = False
    parameters: tuple[str, ...] = field(default=())
    turn: int = 1
    stage: str = "load"
    ops: tuple[str, ...] = ()

    @property
    def exact(self) -> bool:
        """Whether it keeps every bit of the reference's answer."""
        return self.bound == 0.0


_rules: dict[str, Rule] = {}


def rule(
    *pictures: Callable[..., Term],
    family: str = "fuse",
    switch: str = "",
    bound: float = 0.0,
    own: bool = False,
    turn: int = 1,
) -> Callable[[Callable[..., Any]], Rule]:
    """Declare a rule; see the module's text for an example. The fields of :class:`Rule` say what is what."""

    def declare(build: Callable[..., Any]) -> Rule:
        parameters = _parameters(build)[1:]
        terms = tuple(_drawn(picture) for picture in pictures)
        name, about = build.__name__, (build.__doc__ or "").partition("\n")[0]
        made = Rule(name, terms, build, family, switch, bound, own, about, parameters=parameters, turn=turn)
        _rules[name] = made
        return made

    return declare


def _drawn(picture: Callable[..., Term]) -> Term:
    return picture(_Operators(), *map(Variable, _parameters(picture)[1:]))


def _parameters(function: Callable[..., Any]) -> tuple[str, ...]:
    """Names of a plain function's parameters; ``inspect.signature`` takes long for a hundred of them."""
    return function.__code__.co_varnames[: function.__code__.co_argcount]


def graph_rule(*ops: str, family: str = "simplify") -> Callable[[Callable[[Editor], list[Rewrite]]], Rule]:
    """Declare a rule for whole graphs that have one of some operators: a function that edits one and says what it did.

    It must be exact.
    """

    def declare(build: Callable[[Editor], list[Rewrite]]) -> Rule:
        about = (build.__doc__ or "").partition("\n")[0]
        made = Rule(build.__name__, (), build, family, about=about, whole=True, ops=ops)
        _rules[made.name] = made
        return made

    return declare


def specialized_rule(stage: str, *ops: str, bound: float = 0.0) -> Callable[[Callable[..., Any]], Rule]:
    """Declare a rule for one set of sizes, which targets of :mod:`pyflame_rt.opt.specialize` may ask for.

    Args:
        stage: "first" for a function of the specialiser and all (node, origin) pairs as written, which gives such
            pairs; "node" for one of the specialiser and a node of ``ops`` that the target does not take whole, which
            gives nodes or :class:`NoMatch`; "last" for one that edits the specialised graph.
        ops: operators, for stage "node".
        bound: as in :class:`Rule`.
    """

    def declare(build: Callable[..., Any]) -> Rule:
        about = (build.__doc__ or "").partition("\n")[0]
        made = Rule(build.__name__, (), build, "specialize", bound=bound, about=about, stage=stage, ops=ops)
        _rules[made.name] = made
        return made

    return declare


def all_rules() -> list[Rule]:
    """Every rule, found by listing the folder of rules.

    Example:
        >>> "transpose_pair" in [rule.name for rule in all_rules()]
        True
    """
    _load()
    return list(_rules.values())


@cache
def _load() -> None:
    package = importlib.import_module("pyflame_rt.opt.rules")
    for module in sorted(m.name for m in pkgutil.iter_modules(package.__path__)):
        importlib.import_module(f"pyflame_rt.opt.rules.{module}")


Bindings: TypeAlias = "dict[str, str]"


class Match:
    """A place where a rule's picture was found; collects what shall stand there."""

    __slots__ = ("editor", "labels", "made", "matched", "rule")

    def __init__(self, editor: Editor, rule: Rule, labels: Mapping[str, Node]) -> None:
        self.editor = editor
        self.rule = rule
        self.labels = labels
        self.matched = list(dict.fromkeys(labels.values()))
        self.made: list[Node] = []

    def node(self, label: str) -> Node:
        """A node of the picture; its label is the operator in lower case unless the picture says otherwise."""
        return self.labels[label]

    def attr(self, label: str, name: str, default: Attribute = None) -> Attribute:
        """An attribute of a node of the picture."""
        return self.labels[label].get_attr(name, default)

    def emit(
        self,
        op: Op | str,
        inputs: Sequence[str],
        attributes: Mapping[str, Attribute] | None = None,
        *,
        domain: str = "",
        outputs: int = 1,
    ) -> str:
        """Add a node and give the name of its first output.

        Args:
            op: its operator; one that is not ours by name, with ``domain``.
            inputs: names of values; empty ones at the end fall away.
            attributes: those that are not None.
            domain: of an operator that is named.
            outputs: how many it has.
        """
        op_type, domain = (op, domain) if isinstance(op, str) else (op.name, op.domain)
        last = self.matched[0]
        names = [self.editor.fresh(f"{last.outputs[0]}/{op_type}") for _ in range(outputs)]
        given = {name: value for name, value in (attributes or {}).items() if value is not None}
        trimmed = list(inputs)
        while trimmed and not trimmed[-1]:
            trimmed.pop()
        self.made.append(Node(self.editor.fresh(f"{last.name}/{op_type}"), op_type, trimmed, names, given, domain))
        return names[0]

    def constant(self, name: str) -> np.ndarray[Any, Any] | None:
        """Contents of a constant; None for anything else."""
        return self.editor.constant(name)

    def scalar(self, name: str) -> Any:
        """The one number a constant holds; None for anything else."""
        return self.editor.scalar(name)

    def new_constant(self, hint: str, array: np.ndarray[Any, Any]) -> str:
        """A new constant."""
        return self.editor.add_constant(hint, array)

    def dtype(self, name: str) -> DType | None:
        """Element type; None where it is not known."""
        return self.editor.dtype(name)

    def shape(self, name: str) -> tuple[DimLike, ...] | None:
        """Sizes; None where not even the rank is known."""
        return self.editor.shape(name)


class _Sketch(NamedTuple):
    """A picture as it is looked for: operators that the graph must have, and those that must make the root's inputs."""

    rule: Rule
    picture: Term
    present: tuple[frozenset[str], ...]
    near: tuple[frozenset[str], ...]


class _Turn:
    """Rules that are applied to the end together: those for whole graphs, pictures by their last node's operator."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self.whole = [one for one in rules if one.whole]
        self.by_root: dict[str, list[tuple[Rule, Term]]] = {}
        self._sketches: dict[str, list[_Sketch]] = {}
        for one in rules:
            for picture in one.pictures:
                for name in picture.ops:
                    self.by_root.setdefault(name, []).append((one, picture))

    def sketches(self, root: str) -> list[_Sketch]:
        """The pictures with an operator at the end; of most operators no graph has a node."""
        found = self._sketches.get(root)
        if found is None:
            found = self._sketches[root] = [_sketch(*pair) for pair in self.by_root[root]]
        return found


def _sketch(one: Rule, picture: Term) -> _Sketch:
    near = (_inner(arg).ops for arg in picture.args if isinstance(arg, (Term, TermOutput)))
    present: list[frozenset[str]] = []
    _note_operators(picture, present)
    return _Sketch(one, picture, tuple(present), tuple(map(frozenset, near)))


def apply_rules(editor: Editor, rules: Sequence[Rule], supported: Callable[[Node], bool] | None = None) -> PassResult:
    """Apply rules until none of them finds its picture any more; ``supported`` says which new nodes may be made."""
    result = PassResult()
    for turn in _turns(tuple(rules)):
        _take_turn(editor, turn, supported, result)
    return result


@lru_cache(maxsize=32)
def _turns(rules: tuple[Rule, ...]) -> list[_Turn]:
    """Sessions apply the same few sets of rules, each several times."""
    return [_Turn([one for one in rules if one.turn == turn]) for turn in sorted({one.turn for one in rules})]


def _inner(arg: Term | TermOutput) -> Term:
    return arg if isinstance(arg, Term) else arg.term


def _note_operators(picture: Term, found: list[frozenset[str]]) -> None:
    """Add the operators that each node of a picture may be."""
    found.append(frozenset(picture.ops))
    for arg in picture.args:
        if isinstance(arg, (Term, TermOutput)):
            _note_operators(_inner(arg), found)


def _take_turn(editor: Editor, turn: _Turn, supported: Callable[[Node], bool] | None, result: PassResult) -> None:
    nodes = editor.nodes()
    present = {node.full_name for node in nodes}
    for one in turn.whole:
        if not present.isdisjoint(one.ops):
            _count(result, one.build(editor))
            nodes = editor.nodes()
            present = {node.full_name for node in nodes}
    pending = deque(nodes)
    possible: dict[str, list[_Sketch]] = {}  # pictures of which every operator is present
    while pending:
        node = pending.popleft()
        name = node.full_name
        if name not in turn.by_root:
            continue
        here = possible.get(name)
        if here is None:
            here = [sketch for sketch in turn.sketches(name) if not any(map(present.isdisjoint, sketch.present))]
            possible[name] = here
        if not here or node not in editor:
            continue
        touched = _rewritten(editor, here, node, supported, result)
        pending.extend(touched)
        if not present.issuperset(new := [made.full_name for made in touched]):
            present.update(new)
            possible.clear()


def _rewritten(
    editor: Editor,
    sketches: Sequence[_Sketch],
    node: Node,
    supported: Callable[[Node], bool] | None,
    result: PassResult,
) -> list[Node]:
    """Apply the first rule that fits at a node; the nodes to look at again."""
    makers = [maker.full_name for name in node.inputs if (maker := editor.maker(name)) is not None]
    for one, picture, _, near in sketches:
        if near and any(map(frozenset.isdisjoint, near, repeat(makers))):
            continue
        rewrite, touched = _try(editor, one, picture, node, supported)
        if rewrite is not None:
            result.stats.nodes_fused += one.family == "fuse"
            _count(result, [rewrite])
            return touched
    return []


def _count(result: PassResult, rewrites: Sequence[Rewrite]) -> None:
    result.rewrites += rewrites
    for rewrite in rewrites:
        result.modified = True
        result.stats.nodes_removed += len(rewrite.removed)
        result.stats.nodes_added += len(rewrite.made)


def _try(
    editor: Editor, one: Rule, picture: Term, root: Node, supported: Callable[[Node], bool] | None
) -> tuple[Rewrite | None, list[Node]]:
    """Apply a rule at a node if its picture is there and its condition holds."""
    if not _may_lie(editor, picture, root):
        return None, []
    for bindings, labels in _at(editor, picture, root, {}, {picture.label: root}):
        match = Match(editor, one, labels)
        inner = {name for node in match.matched for name in node.outputs}
        if not inner.isdisjoint(bindings.values()) or not _closed(editor, match.matched, root):
            continue
        found = one.build(match, *[bindings.get(name, "") for name in one.parameters])
        if isinstance(found, NoMatch) or (supported is not None and not all(map(supported, match.made))):
            continue
        return _apply(editor, match, root, found)
    return None, []


def _closed(editor: Editor, matched: Sequence[Node], root: Node) -> bool:
    """Whether nobody outside sees what the inner nodes make, nor more than the first output of the last."""
    inner = len(matched) == 1 or all(
        editor.read_only_by(name, matched) for node in matched if node is not root for name in node.outputs if name
    )
    return inner and not any(name and editor.is_seen(name) for name in root.outputs[1:])


def _apply(editor: Editor, match: Match, root: Node, found: str) -> tuple[Rewrite, list[Node]]:
    """Put what a rule made in the place of what it matched; the nodes to look at again."""
    target = root.outputs[0]
    made = match.made
    if made and root.name:
        made[-1] = made[-1].replace(name=root.name)
    if made and found in made[-1].outputs:
        made[-1] = made[-1].replace(outputs=[target if name == found else name for name in made[-1].outputs])
    elif editor.is_output(target):
        made.append(Node(editor.fresh(f"{root.name}/Identity"), Identity.name, [found], [target]))
    # Who else reads a constant is not concerned: no picture goes through it, and after CSE that may be every node.
    read = {found, *(i for node in match.matched for i in node.inputs)} - editor.graph.initializers.keys()
    before = [n for name in read for n in editor.readers(name)]
    editor.replace(match.matched, made)
    changed = [] if made and target in made[-1].outputs else editor.substitute(target, found)
    rewrite = Rewrite(match.rule.name, tuple(n.name for n in match.matched), tuple(n.name for n in made))
    again = [n for node in made for name in node.outputs for n in editor.readers(name)]
    return rewrite, [*made, *changed, *again, *editor.those_left(before)]


# ---------------------------------------------------------------------- finding pictures


def _may_lie(editor: Editor, term: Term, node: Node) -> bool:
    """Whether the operators of a picture are there; most pictures fail here, which takes no time."""
    if node.full_name not in term.ops:
        return False
    if _may_read(editor, term.args, node.inputs):
        return True
    return _commutes(node) and _may_read(editor, term.args, node.inputs[::-1])


def _may_read(editor: Editor, args: Sequence[Any], names: Sequence[str]) -> bool:
    for i, arg in enumerate(args):
        if isinstance(arg, Variable):
            continue
        name = names[i] if i < len(names) else ""
        maker = editor.maker(name)
        if not isinstance(arg, (Term, TermOutput)):
            if maker is not None or not editor.is_constant(name):
                return False
        elif maker is None or not _may_lie(editor, _inner(arg), maker):
            return False
    return True


def _commutes(node: Node) -> bool:
    return node.op_type in _COMMUTATIVE and not node.domain and len(node.inputs) == 2


def _at(
    editor: Editor, term: Term, node: Node, bound: Bindings, labels: dict[str, Node]
) -> Iterator[tuple[Bindings, dict[str, Node]]]:
    """Ways in which a term lies over the graph with its last node on ``node``."""
    if node.full_name not in term.ops:
        return
    if term.attributes and any(node.get_attr(k) != v for k, v in term.attributes.items()):
        return
    if len(node.inputs) > len(term.args) and any(node.inputs[len(term.args) :]):
        return
    given = [*node.inputs, *[""] * (len(term.args) - len(node.inputs))]
    orders = [given]
    if _commutes(node) and len(given) == 2 and given[0] != given[1]:
        orders.append(given[::-1])
    for names in orders:
        yield from _inputs(editor, list(zip(term.args, names, strict=True)), bound, labels)


def _inputs(
    editor: Editor, pairs: Sequence[tuple[Any, str]], bound: Bindings, labels: dict[str, Node]
) -> Iterator[tuple[Bindings, dict[str, Node]]]:
    """Bindings under which every term of ``pairs`` lies over the value beside it."""
    bound, rest = dict(bound), []
    for term, name in pairs:
        if not isinstance(term, Variable):
            rest.append((term, name))
        elif bound.setdefault(term.name, name) != name:
            return
    if not rest:
        yield bound, labels
        return
    term, name = rest.pop(0)
    for more, names in _value(editor, term, name, bound, labels):
        yield from _inputs(editor, rest, more, names)


def _value(
    editor: Editor, term: Any, name: str, bound: Bindings, labels: dict[str, Node]
) -> Iterator[tuple[Bindings, dict[str, Node]]]:
    if isinstance(term, Constant):
        if bound.get(term.name, name) == name and editor.is_constant(name):
            yield {**bound, term.name: name}, labels
        return
    if isinstance(term, (Term, TermOutput)):
        inner, index = (term, 0) if isinstance(term, Term) else (term.term, term.number)
        node = editor.maker(name)
        taken = labels.get(inner.label)
        if node is not None and node.outputs[index : index + 1] == (name,) and taken in (None, node):
            yield from _at(editor, inner, node, bound, {**labels, inner.label: node})
        return
    number = editor.scalar(name)
    if number is not None and _is_number(number, term, editor.dtype(name)):
        yield bound, labels


def _is_number(number: Any, wanted: float, kind: DType | None) -> bool:
    """Whether a constant is a number of a picture, as exactly as its type holds it."""
    if number == wanted:
        return True
    if kind is None or not kind.is_float:
        return False
    return abs(number - wanted) <= 4 * float(ml_dtypes.finfo(kind.numpy).eps) * abs(wanted)
