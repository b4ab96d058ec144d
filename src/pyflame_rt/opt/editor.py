"""Editor: a graph being rewritten, with who makes and who reads each value, its type and contents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.graph import AnyType, DType, Graph, Node, Shape, Tensor, TensorType
from pyflame_rt.graph.arguments import expect
from pyflame_rt.graph.errors import PyFlameRTError
from pyflame_rt.ops.core.evaluate import bind_attributes
from pyflame_rt.ops.core.inference import merge_types
from pyflame_rt.ops.core.inference_memo import InferenceMemo
from pyflame_rt.ops.core.registry import find_op
from pyflame_rt.ops.core.size_arithmetic import public_type
from pyflame_rt.ops.core.trace import MAX_KNOWN
from pyflame_rt.ops.core.value import Value

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyflame_rt.graph import DimLike

__all__ = ["Editor"]

Array = np.ndarray[Any, Any]


class Editor:
    """Edits one graph in place; :meth:`commit` writes the nodes back.

    Nodes keep their places; what replaces a group stands where its last node stood, so that an order in which the
    nodes can run stays one.
    """

    def __init__(self, graph: Graph) -> None:
        expect(graph, Graph, "what is optimised")
        self.graph = graph
        self.outputs = frozenset(info.name for info in graph.outputs)
        self.modified = False
        self.has_new_constants = True  # since equal ones were merged
        self._slots: list[list[Node]] = [[node] for node in graph.topological_sort()]
        self._place: dict[Node, int] = {}
        self._maker: dict[str, Node] = {}
        self._readers: dict[str, dict[Node, None]] = {}
        for i, (node,) in enumerate(self._slots):
            self._enter(node, i)
        self._inputs = {info.name for info in graph.inputs}
        self._used = {*self._inputs, *graph.initializers, *self._maker, *graph.types, *(n.name for n in graph.nodes)}
        self._count = 0
        self._memo = InferenceMemo()
        self._values: dict[str, Value] | None = None
        self._new: set[str] = set()

    # ------------------------------------------------------------------ looking

    def nodes(self) -> list[Node]:
        """All nodes, in an order in which they can run."""
        return [node for slot in self._slots for node in slot]

    def walk(self) -> Iterator[Node]:
        """All nodes in running order, as they are when their turn comes: they may be changed meanwhile."""
        for slot in self._slots:
            for node in slot if len(slot) == 1 else list(slot):
                if node in self._place:
                    yield node

    def __contains__(self, node: Node) -> bool:
        return node in self._place

    def those_left(self, nodes: Iterable[Node]) -> list[Node]:
        """Of some nodes those that are still there."""
        return [node for node in nodes if node in self._place]

    def place(self, node: Node) -> tuple[int, int]:
        """Where a node stands: what runs later has a larger one."""
        at = self._place[node]
        slot = self._slots[at]
        return at, 0 if len(slot) == 1 else slot.index(node)

    def maker(self, name: str) -> Node | None:
        """The node that makes a value; None for inputs and constants."""
        return self._maker.get(name)

    def readers(self, name: str) -> list[Node]:
        """The nodes that read a value."""
        return list(self._readers.get(name, ()))

    def is_seen(self, name: str) -> bool:
        """Whether a node reads the value, or the graph gives it out."""
        return bool(self._readers.get(name)) or name in self.outputs

    def is_output(self, name: str) -> bool:
        """Whether the graph gives the value out."""
        return name in self.outputs

    def read_only_by(self, name: str, nodes: Iterable[Node]) -> bool:
        """Whether nobody but these nodes sees a value."""
        return name not in self.outputs and set(self._readers.get(name, ())) <= set(nodes)

    def is_constant(self, name: str) -> bool:
        """Whether a value is a constant; an input with a default is none."""
        return name in self.graph.initializers and name not in self._inputs

    def constant(self, name: str) -> Array | None:
        """The contents of a constant; None for anything else, an input with a default too."""
        tensor = self.graph.initializers.get(name)
        return None if tensor is None or name in self._inputs else tensor.stored()

    def scalar(self, name: str) -> Any:
        """The one number a constant holds; None for anything else."""
        array = self.constant(name)
        return None if array is None or array.size != 1 or array.dtype == object else array.reshape(-1)[0].item()

    def ints(self, name: str) -> list[int] | None:
        """A constant of integers, a vector or one number, as a list; None for anything else."""
        array = self.constant(name)
        if array is None or array.dtype.kind not in "iu" or array.ndim > 1:
            return None
        return [int(n) for n in array.reshape(-1)]

    # ------------------------------------------------------------------ types

    def value(self, name: str) -> Value:
        """Type of a value, and its contents where they are known (sizes may stand in them as symbols)."""
        if self._values is None:
            self._values = {}
            self._infer_all()
        found = self._values.get(name)
        return Value(name, None) if found is None else found

    def type(self, name: str) -> TensorType | None:
        """The type of a tensor; None where it is not known, or no tensor."""
        kind = self.value(name).type
        return kind if isinstance(kind, TensorType) else None

    def dtype(self, name: str) -> DType | None:
        """Element type; None where it is not known."""
        kind = self.type(name)
        return None if kind is None else kind.dtype

    def shape(self, name: str) -> tuple[DimLike, ...] | None:
        """Sizes, of which some may be symbols or None; None where not even the rank is known."""
        kind = self.type(name)
        return None if kind is None or kind.shape is None else tuple(kind.shape)

    def static_shape(self, name: str) -> tuple[int, ...] | None:
        """Sizes that are all numbers; None otherwise."""
        shape = self.shape(name)
        return tuple(d for d in shape if isinstance(d, int)) if shape is not None and _is_static(shape) else None

    def rank(self, name: str) -> int | None:
        """Number of axes; None where it is not known."""
        shape = self.shape(name)
        return None if shape is None else len(shape)

    def _infer_all(self) -> None:
        assert self._values is not None
        for name, tensor in self.graph.initializers.items():
            self._values[name] = _constant_value(name, tensor)
        for info in self.graph.inputs:
            self._values[info.name] = Value(info.name, None if isinstance(info.type, AnyType) else info.type)
        for node in self.nodes():
            self._infer(node)

    def _infer(self, node: Node) -> None:
        """Types of what a node makes, as far as they can be told."""
        assert self._values is not None
        declared = self.graph.types
        op = find_op(node.op_type, node.domain)
        values = [self._values.get(name, Value(name, declared.get(name))) if name else None for name in node.inputs]
        outputs: Sequence[Value] = ()
        untyped = [v.ref for v in values if v is not None and v.type is None]
        if op is not None and (op.control or not untyped):
            try:
                outputs = self._memo.infer(op, values, bind_attributes(node, op))
            except PyFlameRTError:
                outputs = ()  # it does not fit: whoever runs it says so
        for i, name in enumerate(node.outputs):
            if name:
                found = outputs[i] if i < len(outputs) else Value(name, None)
                self._values[name] = Value(name, merge_types(found.type, declared.get(name)), found.known)

    # ------------------------------------------------------------------ changing

    def fresh(self, hint: str) -> str:
        """A name nobody uses."""
        name = hint
        while not name or name in self._used:
            self._count += 1
            name = f"{hint}_{self._count}"
        self._used.add(name)
        return name

    def add_constant(self, hint: str, array: Array) -> str:
        """A new constant, under a name made from ``hint``."""
        name = self.fresh(hint)
        self._set_constant(name, array)
        return name

    def _set_constant(self, name: str, array: Array) -> None:
        tensor = Tensor(array)
        self.graph.initializers[name] = tensor
        self.has_new_constants = True
        self.graph.types.pop(name, None)
        if self._values is not None:
            self._values[name] = _constant_value(name, tensor)

    def fold(self, node: Node, arrays: Sequence[Array]) -> None:
        """What a node makes is known: constants under the same names take its place."""
        self.remove(node)
        for name, array in zip(node.outputs, arrays, strict=False):
            if name:
                self._set_constant(name, array)

    def remove(self, node: Node) -> None:
        """Take a node out; whoever reads what it made must be given something else."""
        place = self._place.pop(node)
        self._slots[place].remove(node)
        for name in node.inputs:
            self._readers.get(name, {}).pop(node, None)
        for name in node.outputs:
            if self._maker.get(name) is node:
                del self._maker[name]
        self.modified = True

    def _enter(self, node: Node, place: int) -> None:
        self._place[node] = place
        for name in filter(None, node.inputs):
            self._readers.setdefault(name, {})[node] = None
        for name in filter(None, node.outputs):
            self._maker[name] = node

    def replace(self, old: Sequence[Node], new: Sequence[Node]) -> None:
        """Put nodes in the place of others, the last of which says where; types of what they make are inferred."""
        place = max(self._place[node] for node in old)
        at = len(self._slots[place])
        for node in old:
            if self._place[node] == place:
                at = min(at, self._slots[place].index(node))
            self.remove(node)
        for i, node in enumerate(new):
            self._slots[place].insert(at + i, node)
            self._enter(node, place)
            self._new.update(filter(None, node.outputs))
            if self._values is not None:
                self._infer(node)
        self.modified = True

    def rewire(self, node: Node, names: Mapping[str, str]) -> Node:
        """The node with other inputs, in its place."""
        new = node.replace(inputs=[names.get(name, name) for name in node.inputs])
        place = self._place.pop(node)
        slot = self._slots[place]
        slot[slot.index(node)] = new
        for name in node.inputs:
            self._readers.get(name, {}).pop(node, None)
        self._enter(new, place)
        self.modified = True
        return new

    def substitute(self, old: str, new: str) -> list[Node]:
        """Whoever reads ``old`` reads ``new``; the nodes that changed. A graph's output keeps its maker."""
        return [self.rewire(node, {old: new}) for node in self.readers(old)]

    def rename(self, node: Node, old: str, new: str) -> list[Node]:
        """What a node makes under one name it makes under another; the nodes that changed."""
        made = node.replace(outputs=[new if name == old else name for name in node.outputs])
        place = self._place[node]
        at = self._slots[place].index(node)
        self.remove(node)
        self._slots[place].insert(at, made)
        self._enter(made, place)
        if self._values is not None and old in self._values:
            self._values[new] = self._values[old]
        return [made, *self.substitute(old, new)]

    def commit(self) -> None:
        """Write the nodes back into the graph, and the types of values that are new."""
        if not self.modified:
            return
        self.modified = False
        self.graph.nodes = self.nodes()
        self.graph.origin = None
        for name in list(self.graph.types):
            if name not in self._maker and name not in self._inputs:
                del self.graph.types[name]
        for name in self._new:
            kind = self.value(name).type if name in self._maker else None
            if kind is not None:
                self.graph.types[name] = public_type(kind)
        self._new = set()


def _is_static(shape: Sequence[object]) -> bool:
    return all(isinstance(d, int) for d in shape)


def _constant_value(name: str, tensor: Tensor) -> Value:
    contents = tensor.raw() if tensor.num_elements <= MAX_KNOWN else None
    return Value(name, TensorType(tensor.dtype, Shape(tensor.shape)), contents)
