"""The graph of one set of sizes, and what is known of the stages before it: plain records."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any, NamedTuple

from pyflame_rt.graph.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    import numpy as np

    from pyflame_rt.graph import DType, Node
    from pyflame_rt.ops.core.registry import Op

__all__ = ["Blocker", "EarlierStages", "ShapesUnknown", "SpecializedGraph", "SpecializedNode"]


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
class Attention:
    """softmax(scale * q k + mask) v; ``k`` has its keys on the last axis if ``k_turned``, else on the one before.

    ``repeat`` heads of q in a row share one of k and of v. ``guarded`` takes shares that are no numbers for zeros.
    ``steps`` are those it stands for, the last makes ``out``.
    """

    q: str
    k: str
    v: str
    out: str
    mask: str = ""
    scale: float = 1.0
    repeat: int = 1
    k_turned: bool = True
    guarded: bool = False
    steps: list[SpecializedNode] = field(default_factory=list)


@dataclass(slots=True)
class SpecializedGraph:
    """What is left of a graph for one set of shapes.

    Attributes:
        inputs: fed values.
        outputs: values handed out.
        steps: what can be planned.
        constants: contents known by now.
        narrow: of constants that are numbers of 16 bits as float32, those of 16 bits.
        types: element type and sizes of every value known by now.
        deferred: nodes that wait for a blocker, and the blockers, in order, with the node of the model each stands for.
        blockers: what keeps the deferred nodes waiting.
        same: values that are others under a second name.
        count: how many names were made up.
        exact: values that must be the sums as they are written, because they stand for integers.
        sizes: values made of traced sizes alone, with these as contents.
        derived: what makes the other values that depend on traced sizes and constants alone, in order.
        places: by the name of a node of the model, how errors name it.
        attentions: steps among these that are an attention, where a rule noted them.
    """

    inputs: list[str]
    outputs: list[str]
    steps: list[SpecializedNode] = field(default_factory=list)
    constants: dict[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    narrow: dict[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    types: dict[str, tuple[DType, tuple[int, ...]]] = field(default_factory=dict)
    deferred: list[tuple[Node, str]] = field(default_factory=list)
    blockers: list[Blocker] = field(default_factory=list)
    same: dict[str, str] = field(default_factory=dict)
    count: int = 0
    exact: set[str] = field(default_factory=set)
    sizes: dict[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    derived: list[SpecializedNode] = field(default_factory=list)
    places: Mapping[str, str] = field(default_factory=dict)
    attentions: list[Attention] = field(default_factory=list)

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
class EarlierStages:
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
