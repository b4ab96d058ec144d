"""Channel coupling: which indices of which weights have to go together, by label propagation and connected components.

Every index along an axis of a weight gets a label. A walk over the graph carries labels from axis to axis, and says
which must be equal (the two sides of an Add, a convolution's input and its weight) or may not go (a graph's outputs,
the axis of a Softmax). Labels that are equal in the end form a *channel*: what is removed together, or not at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from pyflame_rt.graph.records import dataclass
from pyflame_rt.ops.onnx.cast import Cast, Identity
from pyflame_rt.ops.onnx.shape import Reshape, Transpose
from pyflame_rt.ops.onnx.slicing import Slice, Split
from pyflame_rt.opt.editor import Editor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyflame_rt.graph import Graph, Node

__all__ = ["Axes", "Coupling", "Family", "Labels", "NotFollowed", "Slot", "analyse"]

Labels: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"
# Operators that a weight may pass between its constant and its layer.
_LAYOUT = frozenset(op.name for op in (Transpose, Slice, Reshape, Identity, Cast, Split))
# One entry for each axis of a value; None for an axis that keeps its size.
Axes: TypeAlias = "list[Labels | None]"


class NotFollowed(Exception):
    """Channels are not followed through a node; everything it reads keeps its size."""


@dataclass(frozen=True, slots=True)
class Slot:
    """One axis of an initializer, and the channel that each of its indices belongs to."""

    name: str
    axis: int
    labels: Labels


@dataclass(frozen=True, slots=True)
class Family:
    """Channels that live in the same weights: what one ratio applies to.

    Attributes:
        channels: their numbers.
        slots: the axes they are removed from.
        owners: the weights whose outputs they are.
        nodes: the nodes that make them.
        heads: whether they are heads of an attention.
        pinned: why they have to stay; empty for channels that can be removed.
        zeroable: whether they may be set to zero instead.
    """

    channels: Labels
    slots: tuple[tuple[str, int], ...]
    owners: tuple[str, ...]
    nodes: tuple[str, ...]
    heads: bool
    pinned: str
    zeroable: bool

    @property
    def name(self) -> str:
        """What reports call it."""
        return " + ".join(self.owners) or " + ".join(name for name, _ in self.slots)


class Coupling:
    """The labels of a graph, while it is walked and afterwards."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.editor = Editor(graph.copy())
        self._read = self._drop_unread()
        self.slots: list[Slot] = []
        self.adjust: list[Callable[[Any], None]] = []
        self.changed: dict[str, Axes] = {}
        self._axes: dict[str, Axes] = {}
        self._count = 0
        self._edges: list[tuple[Labels, Labels]] = []
        self._pins: list[tuple[Labels, str, bool]] = []
        self._owners: list[tuple[Labels, str, str]] = []
        self._heads: list[Labels] = []
        self._fed = {info.name for info in graph.inputs}

    def _drop_unread(self) -> set[str]:
        """Take out nodes that no output depends on, which would keep channels; the names of values that are read."""
        read = {info.name for info in self.graph.outputs}
        for node in reversed(self.editor.nodes()):
            if read.isdisjoint(node.outputs):
                self.editor.remove(node)
            else:
                read.update(node.inputs)
        return read

    def only_first(self, node: Node) -> bool:
        """Whether nobody reads what a node gives out besides its first output."""
        return self._read.isdisjoint(filter(None, node.outputs[1:]))

    # ------------------------------------------------------------------ labels of values

    def of(self, name: str) -> Axes:
        """The labels of a value, axis by axis."""
        if name not in self._axes:
            self._axes[name] = self._first_seen(name)
        return self._axes[name]

    def _first_seen(self, name: str) -> Axes:
        tensor = self.graph.initializers.get(name)
        if tensor is None or name in self._fed:
            rank = self.editor.rank(name)
            if rank is None:
                raise NotFollowed(f"the rank of {name!r} is not known")
            return [None] * rank
        if not tensor.dtype.is_float:
            return [None] * tensor.ndim
        axes: Axes = []
        for axis, size in enumerate(tensor.unread().shape):
            axes.append(None if size <= 1 else self._fresh(size))
            labels = axes[-1]
            if labels is not None:
                self.slots.append(Slot(name, axis, labels))
        return axes

    def _fresh(self, size: int) -> Labels:
        self._count += size
        return np.arange(self._count - size, self._count, dtype=np.int64)

    def give(self, name: str, axes: Axes) -> None:
        """Say what the axes of a value are."""
        if name:
            self._axes[name] = axes

    def give_fixed(self, name: str) -> None:
        """A value whose sizes stay."""
        rank = self.editor.rank(name)
        if name and rank is not None:
            self._axes[name] = [None] * rank

    def size(self, name: str, axis: int) -> Any:
        """A size of a value: a number, a symbol or None."""
        shape = self.editor.shape(name)
        if shape is None:
            raise NotFollowed(f"the shape of {name!r} is not known")
        return shape[axis]

    def sizes(self, name: str) -> tuple[int, ...]:
        """Sizes that have to be numbers."""
        shape = self.editor.static_shape(name)
        if shape is None:
            raise NotFollowed(f"the sizes of {name!r} are not known")
        return shape

    def ints(self, name: str) -> list[int]:
        """A list of integers, constant or worked out from sizes that are numbers."""
        found = self.editor.ints(name)
        known = self.editor.value(name).known if found is None else None
        if known is not None and known.ndim < 2 and all(isinstance(n, (int, np.integer)) for n in known.flat):
            found = [int(n) for n in known.flat]
        if found is None:
            raise NotFollowed(f"{name!r} is only known when running")
        return found

    # ------------------------------------------------------------------ what must hold

    def unify(self, a: Labels | None, b: Labels | None, why: str) -> Labels | None:
        """Two axes are one: their labels are equal, or stay where one of them cannot change."""
        if a is None or b is None or len(a) != len(b):
            self.fix([a, b], why)
            return None
        if a is not b:
            self._edges.append((a, b))
        return a

    def fix(self, axes: Sequence[Labels | None], why: str, *, zeroable: bool = False) -> None:
        """These axes keep their size."""
        self._pins += [(labels, why, zeroable) for labels in axes if labels is not None]

    def own(self, labels: Labels | None, weight: str, node: Node) -> None:
        """These labels are the outputs of a layer with this weight."""
        if labels is not None:
            self._owners.append((labels, self.root(weight), node.name))

    def head(self, labels: Labels) -> None:
        """These labels are heads."""
        self._heads.append(labels)

    def root(self, name: str) -> str:
        """The initializer that a weight comes from, through changes of its layout."""
        while name not in self.graph.initializers:
            maker = self.editor.maker(name)
            if maker is None or maker.op_type not in _LAYOUT:
                return name
            name = maker.inputs[0]
        return name

    # ------------------------------------------------------------------ afterwards

    def solve(self) -> list[Family]:
        """Number the channels, and put those that live in the same weights together."""
        parent = components(self._count, self._edges)
        self.slots = [Slot(slot.name, slot.axis, parent[slot.labels]) for slot in self.slots]
        self.parent = parent
        places: dict[int, set[int]] = {}
        for k, slot in enumerate(self.slots):
            for label in np.unique(slot.labels):
                places.setdefault(int(label), set()).add(k)
        groups: dict[frozenset[int], list[int]] = {}
        for label, found in sorted(places.items()):
            groups.setdefault(frozenset(found), []).append(label)
        return [family for found, labels in groups.items() for family in self._families(found, labels)]

    def _families(self, found: frozenset[int], labels: list[int]) -> list[Family]:
        """One family, or two where some of the channels stay."""
        pins = _first_reason(self._pins, self.parent)
        owners, heads = self._owned(), self._head_labels()
        made = []
        for pinned in (False, True):
            members = [label for label in labels if (label in pins) is pinned]
            if not members:
                continue
            mine = [(weight, node) for weight, node, given in owners if not given.isdisjoint(members)]
            made.append(
                Family(
                    np.array(members, dtype=np.int64),
                    tuple((self.slots[k].name, self.slots[k].axis) for k in sorted(found)),
                    tuple(dict.fromkeys(weight for weight, _ in mine)),
                    tuple(dict.fromkeys(node for _, node in mine)),
                    not heads.isdisjoint(members),
                    pins[members[0]][0] if pinned else "",
                    pinned and all(pins[label][1] for label in members),
                )
            )
        return made

    def _owned(self) -> list[tuple[str, str, set[int]]]:
        if not hasattr(self, "_owner_sets"):
            self._owner_sets = [(w, n, set(self.parent[given].tolist())) for given, w, n in self._owners]
        return self._owner_sets

    def _head_labels(self) -> set[int]:
        return {label for given in self._heads for label in self.parent[given].tolist()}

    def kept(self, labels: Labels, gone: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """True for each index of an axis that stays, where ``gone`` marks channels."""
        return ~gone[self.parent[labels]]

    def known_axes(self) -> dict[str, Axes]:
        """The labels of every value that was met."""
        return self._axes

    @property
    def count(self) -> int:
        """How many labels there are."""
        return self._count


def _first_reason(pins: list[tuple[Labels, str, bool]], parent: Labels) -> dict[int, tuple[str, bool]]:
    """Why a channel stays; one reason that forbids zeros outweighs those that do not."""
    reasons: dict[int, tuple[str, bool]] = {}
    for labels, why, zeroable in pins:
        for label in np.unique(parent[labels]).tolist():
            if label not in reasons or (reasons[label][1] and not zeroable):
                reasons[label] = (why, zeroable)
    return reasons


def components(count: int, edges: list[tuple[Labels, Labels]]) -> Labels:
    """Connected components: the smallest label that each label is joined with.

    Example:
        >>> components(5, [(np.array([3]), np.array([1])), (np.array([3]), np.array([4]))]).tolist()
        [0, 1, 2, 1, 1]
    """
    parent = np.arange(count, dtype=np.int64)
    if not edges:
        return parent
    left, right = (np.concatenate([edge[side] for edge in edges]) for side in (0, 1))
    while True:
        a, b = parent[left], parent[right]
        apart = a != b
        if not apart.any():
            return parent
        np.minimum.at(parent, np.maximum(a, b)[apart], np.minimum(a, b)[apart])
        while not np.array_equal(parent, jumped := parent[parent]):
            parent = jumped


def analyse(graph: Graph) -> tuple[Coupling, list[Family]]:
    """Walk a graph, and give its labels and the families of its channels."""
    from pyflame_rt.pruning.coupling_rules import follow

    coupling = Coupling(graph)
    for node in coupling.editor.nodes():
        follow(coupling, node)
    for info in graph.outputs:
        if info.name in coupling.known_axes() or info.name in graph.initializers:
            coupling.fix(coupling.of(info.name), f"they are the graph's output {info.name!r}")
    return coupling, coupling.solve()
