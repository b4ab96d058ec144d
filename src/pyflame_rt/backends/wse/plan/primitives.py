"""A specialised graph as calls of the primitives the wafer has, each with one output."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any

from pyflame_rt.graph import DType, Graph, TensorType
from pyflame_rt.graph.errors import InputError, UnsupportedOperatorError
from pyflame_rt.graph.records import dataclass
from pyflame_rt.ops.pyflame.markers import After
from pyflame_rt.opt.rules.slices import split_as_slices
from pyflame_rt.opt.specialize import BackendTarget, specialize
from wsesim import watch

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import numpy as np

    from pyflame_rt.graph import TensorInfo
    from pyflame_rt.opt.specialized_graph import SpecializedGraph

__all__ = ["Flat", "PrimitiveCall", "flatten"]


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
    feeds = {info.name: _sized(info, (shapes or {}).get(info.name)) for info in graph.required_inputs}
    watch.poll()
    rules = (split_as_slices,)
    opened = {op for rule in rules for op in rule.ops}
    target = BackendTarget(
        lambda _, op, *_rest: op.full_name in known and op.full_name not in opened,
        guards=False,
        hands_on=(After.full_name,),
        rules=rules,
    )
    made = specialize(graph, feeds, target, names)
    watch.poll()
    _check_made(made, names, known)
    flat = Flat(made.inputs, [(name, made.same.get(name, name)) for name in names], [], made.constants, made.types)
    for step in made.steps:
        if step.op.full_name not in known:
            raise _no_rule(step.origin, step.op.full_name, known)
        if len(step.node.outputs) == 1:
            inputs, output = tuple(step.node.inputs), step.node.outputs[0]
            flat.steps.append(PrimitiveCall(step.op.full_name, inputs, output, step.attributes, step.origin))
        else:
            raise UnsupportedOperatorError(
                f"node {step.origin!r}: {step.op.full_name} with several outputs has no rule"
            )
    return flat


def _check_made(made: SpecializedGraph, names: Sequence[str], known: Collection[str]) -> None:
    """Refuse a graph with an output that waits for sizes, naming the node that makes it wait."""
    missing = {made.same.get(name, name) for name in names} - made.types.keys()
    for node, _ in reversed(made.deferred):
        if missing.intersection(node.outputs):
            missing.update(node.inputs)
    for step, reason, _ in made.blockers:
        if missing.isdisjoint(step.node.outputs):
            continue
        if not step.op.composite and step.op.full_name not in known:
            raise _no_rule(step.origin, step.op.full_name, known)
        raise InputError(f"{step.at}: {reason}: the wafer's program needs every size; give shapes for the inputs")


def _no_rule(origin: str, op: str, known: Collection[str]) -> UnsupportedOperatorError:
    return UnsupportedOperatorError(
        f"node {origin!r}: operator {op} has no rule for the wafer. "
        f"Rules exist for {', '.join(sorted(known))} and every operator composed of them"
    )


def _sized(info: TensorInfo, given: Sequence[int] | None) -> tuple[DType, tuple[int, ...]]:
    kind = info.type
    if not isinstance(kind, TensorType) or (given is None and (kind.shape is None or not kind.shape.is_static)):
        raise InputError(
            f"{info.name!r} has type {kind}: the wafer's program needs every size; give shapes for the inputs"
        )
    sizes = kind.shape if given is None else given
    assert sizes is not None
    if kind.shape is not None and len(kind.shape) != len(sizes):
        raise InputError(
            f"input {info.name!r} has {len(kind.shape)} dimensions, the given shape {list(sizes)} has another number"
        )
    return kind.dtype, tuple(int(size) for size in sizes)  # type: ignore[arg-type]  # they are numbers
