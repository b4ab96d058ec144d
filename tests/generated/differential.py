"""Random graphs over all operators, run at several sizes, with wrong feeds among them: native = reference.

Model number i depends on nothing but i. The last run has the feeds of the first, lying in memory in other ways. Inputs
of most operators are made from what earlier ones gave, through nodes that bring it to the wanted shape when running, so
that sizes stay open. Against onnxruntime, every difference must be on the list `ONNXRUNTIME` with its reason.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from pyflame_rt.graph import AnyType, Graph, TensorInfo
from tests.generated.build import Answer, agree, answer, names_the_node, session, value_type
from tests.generated.draw import Draw, Sample, draw_sample, operators
from tests.generated.others import explained, onnxruntime_answer
from tests.generated.sweep import RANDOM

__all__ = ["Model", "cases", "check_case", "draw_model"]

COUNT = 6000
RUNS = 3
# Numbers that are drawn anew by each session, or rounded to steps that a last bit decides.
APART = RANDOM | {"Dropout", "DropoutMask", "RandomBits"}
STEPPED = ("Quant", "QLinear", "QGemm", "QAttention", "QEmbed", "Rounded", "MatMulNBits", "BlockQuantized", "Integer")
# Operators whose outputs jump where an input changes by a last bit: what earlier nodes made is no input for these.
JUMPY = {
    "ArgMax", "ArgMin", "TopK", "NonMaxSuppression", "Unique", "Hardmax", "Ceil", "Floor", "Round", "Sign", "Equal",
    "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Cast", "CastLike", "BitCast", "NonZero", "ThresholdedRelu",
    "Shrink", "Det", "Inverse", "Tan", "MaxRoiPool", "RoiAlign", "GridSample", "DeformConv", "Binarizer", "Mod",
    "TreeEnsemble", "TreeEnsembleClassifier", "TreeEnsembleRegressor", "SVMClassifier", "LinearClassifier",
    "MaxPool", "MaxPoolIndices", "IsInf", "IsNaN", "CTCLoss", "CTCLossGrad", "Multinomial", "Bernoulli",
    "Cholesky", "Eigh", "PseudoInverse", "QR", "SVD", "SignLogDet", "Solve",
}  # fmt: skip


class Model(NamedTuple):
    """One random model."""

    number: int

    def __str__(self) -> str:
        return f"model {self.number}"


@dataclass
class Drawn:
    """A graph, what to feed it in each run, and the operators in it."""

    graph: Graph
    feeds: list[dict[str, Any]] = field(default_factory=list)
    ops: list[str] = field(default_factory=list)


@cache
def _names() -> tuple[str, ...]:
    return tuple(op.full_name for op in operators() if op.name not in APART)


@cache
def cases(count: int = COUNT) -> tuple[Model, ...]:
    """All of them."""
    return tuple(map(Model, range(count)))


def draw_model(number: int, runs: int = RUNS) -> Drawn:
    """A graph of one to five operators, its feeds for each run of other sizes."""
    r = Draw(number)
    names = _names()
    ops = [names[number % len(names)]] if number < 2 * len(names) else []
    ops += [r.pick(names) for _ in range(r.k(0 if ops else 1, 4))]
    drawn = Drawn(Graph(f"model_{number}"), [{} for _ in range(runs)], ops)
    pool: list[str] = []  # float32 tensors that are there
    for k, op in enumerate(ops):
        _add(drawn, r, pool, k, [draw_sample(op, 7 * number + k, run) for run in range(runs)])
    made = [name for node in drawn.graph.nodes for name in node.outputs]
    for name in made if r.chance(0.3) else _ends(drawn.graph):
        drawn.graph.add_output(TensorInfo(name, type=AnyType()))
    return drawn


def _ends(graph: Graph) -> list[str]:
    read = {name for node in graph.nodes for name in node.inputs}
    return [name for node in graph.nodes for name in node.outputs if name not in read]


def _add(drawn: Drawn, r: Draw, pool: list[str], k: int, samples: list[Sample]) -> None:
    first = samples[0]
    count = max((i + 1 for i, a in enumerate(first.inputs) if a is not None), default=0)
    names = [_input(drawn, r, pool, f"n{k}_x{i}", first, [s.inputs[i] for s in samples]) for i in range(count)]
    outputs = [f"n{k}_y{i}" for i in range(first.outputs)]
    drawn.graph.add_node(f"n{k}_{first.name}", first.name, names, outputs, first.attributes, domain=first.domain)
    if first.name not in JUMPY and not any(mark in first.name for mark in STEPPED):
        pool += outputs  # a step more or less would be a large difference further on


def _input(drawn: Drawn, r: Draw, pool: list[str], name: str, sample: Sample, values: list[Any]) -> str:
    """A feed, a constant where all runs have the same, or what an earlier node made in the shape of a feed."""
    if values[0] is None:
        return ""
    same = all(isinstance(v, np.ndarray) and v.shape == values[0].shape for v in values)
    if same and values[0].dtype != object and r.chance(0.4):
        for feeds in drawn.feeds:
            feeds.pop(name, None)
        drawn.graph.add_initializer(name, values[0])
        return name
    drawn.graph.add_input(TensorInfo(name, type=value_type(values[0])))
    for feeds, value in zip(drawn.feeds, values, strict=True):
        feeds[name] = value
    plain = isinstance(values[0], np.ndarray) and values[0].dtype == np.float32 and values[0].size > 1
    if pool and plain and sample.name not in JUMPY and r.chance(0.6):
        return _shaped(drawn.graph, r.pick(pool), name)
    return name


def _shaped(graph: Graph, source: str, like: str) -> str:
    """Numbers of an earlier value in the shape of a feed: cut or padded with the feed's own, and bounded."""
    tag = f"{like}_from_{source}"
    minus, zero = f"{tag}_minus", f"{tag}_zero"
    graph.add_initializer(minus, np.array([-1], np.int64))
    graph.add_initializer(zero, np.array([0], np.int64))

    def node(op: str, inputs: list[str], part: str, **attributes: Any) -> str:
        graph.add_node(f"{tag}_{part}", op, inputs, [f"{tag}_{part}"], attributes)
        return f"{tag}_{part}"

    number = node("Cast", [source], "number", to=1)
    flat, own = node("Reshape", [number, minus], "flat"), node("Reshape", [like, minus], "own")
    both = node("Concat", [flat, own], "both", axis=0)
    size = node("Reshape", [node("Size", [like], "size"), minus], "length")
    cut = node("Slice", [both, zero, size], "cut")
    bounded = node("Tanh", [cut], "bounded")
    # A NaN would go on for ever: what is none stays, the feed takes the place of others.
    nan = node("IsNaN", [bounded], "nan")
    mixed = node("Where", [nan, own, node("Add", [bounded, own], "sum")], "mixed")
    return node("Reshape", [mixed, node("Shape", [like], "shape")], "like")


def _wrong(drawn: Drawn, r: Draw) -> dict[str, Any] | None:
    """The feeds of the first run with one of them wrong."""
    arrays = [name for name, v in drawn.feeds[0].items() if isinstance(v, np.ndarray) and v.ndim]
    if not arrays:
        return None
    name = r.pick(arrays)
    value = drawn.feeds[0][name]
    axis = int(r.run.integers(value.ndim))
    kinds = {
        "shorter": lambda: np.delete(value, slice(0, 1), axis),
        "longer": lambda: np.concatenate([value, value], axis),
        "empty": lambda: np.take(value, [], axis),
        "less rank": lambda: np.asarray(value[0], value.dtype),
    }
    changed = kinds[r.pick(list(kinds))]() if value.shape[axis] else value[None]
    return {**drawn.feeds[0], name: np.ascontiguousarray(changed) if changed.ndim else changed}


def _other_way(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    other = np.empty((*array.shape, 2), array.dtype)
    other[..., 0] = array
    return other[..., 0]


def _frozen(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    kept = array.copy()
    kept.flags.writeable = False
    return kept


# Other forms of the same array, in which callers have them.
FORMS = {
    "columns first": lambda a: np.asarray(a, order="F"),
    "every second": _other_way,
    "backwards": lambda a: np.flip(np.flip(a).copy()),
    "read-only": _frozen,
    "the other byte order": lambda a: a.astype(a.dtype.newbyteorder()) if a.dtype.kind in "iuf" else a,
    "unaligned": lambda a: np.frombuffer(b"\0" + a.tobytes(), np.uint8)[1:].view(a.dtype).reshape(a.shape),
}


def _in_other_form(feeds: dict[str, Any], r: Draw) -> dict[str, Any]:
    """The same numbers, lying in memory in another way."""
    made = dict(feeds)
    for name, value in feeds.items():
        plain = isinstance(value, np.ndarray) and value.dtype.isbuiltin == 1 and value.dtype != object
        if plain and value.size:
            made[name] = FORMS[r.pick(list(FORMS))](value)
    return made


def check_case(case: Model, *, onnxruntime: bool = False, **options: Any) -> str:
    """ "" when backends agree on every run, else what they did."""
    drawn = draw_model(case.number)
    runs = [*drawn.feeds, _wrong(drawn, Draw(case.number, 99))]
    runs.append(_in_other_form(drawn.feeds[0], Draw(case.number, 98)))
    loose = 4.0 if any(mark in op for op in drawn.ops for mark in STEPPED) else 1.0
    said = []
    sessions = [_opened(drawn.graph, "Reference"), _opened(drawn.graph, "CPU", **options)]
    names = [node.name for node in drawn.graph.nodes]
    first = Answer()
    for i, feeds in enumerate(runs):
        if feeds is None:
            continue
        expected, found = (s if isinstance(s, Answer) else answer(s, feeds) for s in sessions)
        first = expected if i == 0 else first
        expected = first if i == len(runs) - 1 else expected  # how an array lies in memory changes nothing
        differs = agree(expected, found, 3.0 * loose)
        if not differs and not names_the_node(found, names):
            differs = "the node is not named"
        if differs:
            said.append(f"run {i}: {differs}: reference {expected.said} | native {found.said}")
        if onnxruntime and i < RUNS and expected.outputs is not None:
            other = onnxruntime_answer(drawn.graph, feeds)
            differ = other is not None and bool(agree(expected, other, 20.0 * loose))
            if other is not None and differ and not explained(drawn.graph, feeds, 20.0 * loose):
                said.append(f"run {i}: onnxruntime differs: ours {expected.said} | theirs {other.said}")
    return f"{' '.join(drawn.ops)}: {'; '.join(said[:2])}" if said else ""


def _opened(graph: Graph, provider: str, **options: Any) -> Any:
    """A session, or the refusal to make one."""
    made: list[Any] = []
    found = answer(lambda: made.append(session(graph, provider, **options)) or _Nothing())
    return made[0] if made else found


class _Nothing:
    def run(self, _names: Any, _feeds: Any) -> list[Any]:
        return []
