"""Graph: inputs, outputs, initializers and nodes, all by name."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from pyflame_rt.graph.dtype import DType
from pyflame_rt.graph.errors import InputError, InvalidModelError
from pyflame_rt.graph.info import TensorInfo
from pyflame_rt.graph.node import Attribute, Node
from pyflame_rt.graph.tensor import Tensor
from pyflame_rt.graph.types import TensorType, ValueType

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

__all__ = ["Graph"]


class Origin(NamedTuple):
    """Where an unchanged graph came from: equal keys, equal graphs.

    Attributes:
        key: names the file, its state and what was done to the graph since.
        checked: it was found to be valid when it was loaded before.
    """

    key: str
    checked: bool = False


class Graph:
    """A model: named values connected by nodes.

    Nodes may be added in any order; :meth:`topological_sort` puts them in running order.
    Initializers are shared, never copied, between copies of a graph.

    Example:
        >>> g = Graph("tiny")
        >>> _ = g.add_input("x", [None, 3], DType.Float32)
        >>> _ = g.add_node("act", "Relu", inputs=["x"], outputs=["y"])
        >>> _ = g.add_output("y", [None, 3], DType.Float32)
        >>> g.validate()
        []
    """

    __slots__ = ("doc", "initializers", "inputs", "metadata", "name", "nodes", "opsets", "origin", "outputs", "types")

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.doc = ""
        self.inputs: list[TensorInfo] = []
        self.outputs: list[TensorInfo] = []
        self.initializers: dict[str, Tensor] = {}
        self.nodes: list[Node] = []
        self.types: dict[str, ValueType] = {}
        self.opsets: dict[str, int] = {}
        self.metadata: dict[str, str] = {}
        self.origin: Origin | None = None  # whoever changes the graph must take it away; copies have none

    # ------------------------------------------------------------------ building

    def add_input(
        self, name: str | TensorInfo, shape: Iterable[object] | None = (), dtype: DType = DType.Float32
    ) -> TensorInfo:
        """Add an input and return its description."""
        info = name if isinstance(name, TensorInfo) else TensorInfo(name, shape, dtype)
        self.inputs.append(info)
        return info

    def add_output(
        self, name: str | TensorInfo, shape: Iterable[object] | None = (), dtype: DType = DType.Float32
    ) -> TensorInfo:
        """Add an output and return its description."""
        info = name if isinstance(name, TensorInfo) else TensorInfo(name, shape, dtype)
        self.outputs.append(info)
        return info

    def add_initializer(self, name: str, tensor: Tensor | np.ndarray[Any, Any]) -> Tensor:
        """Add a constant; an initializer with an input's name is that input's default."""
        value = tensor if isinstance(tensor, Tensor) else Tensor(np.asanyarray(tensor))
        if value.dtype is DType.String and not all(isinstance(item, (str, bytes)) for item in value.raw().flat):
            raise TypeError(f"initializer {name!r} is an array of numbers or strings, got {type(tensor).__name__}")
        self.initializers[name] = value
        return value

    def add_node(
        self,
        name: str | Node,
        op_type: str = "",
        inputs: Iterable[str] = (),
        outputs: Iterable[str] = (),
        attrs: Mapping[str, Attribute] | None = None,
        *,
        attributes: Mapping[str, Attribute] | None = None,
        domain: str = "",
        **more: Attribute,
    ) -> Node:
        """Add a node and return it; attributes as ``attrs=``, ``attributes=`` or keywords."""
        if isinstance(name, Node):
            self.nodes.append(name)
            return name
        node = Node(name, op_type, inputs, outputs, {**(attrs or {}), **(attributes or {}), **more}, domain)
        self.nodes.append(node)
        return node

    # ------------------------------------------------------------------ looking up

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return len(self.nodes)

    @property
    def required_inputs(self) -> list[TensorInfo]:
        """Inputs without a default."""
        return [info for info in self.inputs if info.name not in self.initializers]

    def has_initializer(self, name: str) -> bool:
        """True when ``name`` is an initializer."""
        return name in self.initializers

    def get_initializer(self, name: str) -> Tensor:
        """The initializer called ``name``."""
        try:
            return self.initializers[name]
        except KeyError:
            raise InputError(
                f"graph {self.name!r} has no initializer {name!r}. It has {_some(self.initializers)}"
            ) from None

    def get_node(self, name: str) -> Node | None:
        """The node called ``name``, or None."""
        return next((node for node in self.nodes if node.name == name), None)

    def get_producer(self, value: str) -> Node | None:
        """The node that makes ``value``, or None."""
        return next((node for node in self.nodes if value in node.outputs), None)

    def get_consumers(self, value: str) -> list[Node]:
        """The nodes that read ``value``."""
        return [node for node in self.nodes if value in node.inputs]

    def producers(self) -> dict[str, Node]:
        """Which node makes each value."""
        return {output: node for node in self.nodes for output in node.outputs if output}

    def consumers(self) -> dict[str, list[Node]]:
        """Which nodes read each value."""
        readers: dict[str, list[Node]] = {}
        for node in self.nodes:
            for name in dict.fromkeys(filter(None, node.inputs)):
                readers.setdefault(name, []).append(node)
        return readers

    def value_type(self, name: str) -> ValueType | None:
        """The type of any value, as declared or inferred; None when not known."""
        if name in self.types:
            return self.types[name]
        if name in self.initializers:
            tensor = self.initializers[name]
            return TensorType(tensor.dtype, tensor.shape)
        return next((info.type for info in (*self.inputs, *self.outputs) if info.name == name), None)

    def get_tensor_info(self, name: str) -> TensorInfo:
        """Name, element type and shape of any value."""
        kind = self.value_type(name)
        if kind is None:
            raise InputError(f"graph {self.name!r} has no value {name!r}, or its type was not inferred")
        return TensorInfo(name, type=kind)

    def subgraphs(self) -> Iterator[Graph]:
        """Graphs held by attributes of the nodes (one level)."""
        for node in self.nodes:
            yield from node_subgraphs(node)

    # ------------------------------------------------------------------ whole-graph work

    def validate(self) -> list[str]:
        """Messages about everything that is wrong; empty when all is well."""
        from pyflame_rt.graph.verify import find_errors

        return find_errors(self)

    def topological_sort(self) -> list[Node]:
        """Nodes in an order in which each value is made before it is read."""
        order = sort_nodes(self.nodes)
        if len(order) != len(self.nodes):
            stuck = [n for n in self.nodes if n not in set(order)]
            raise InvalidModelError(
                f"graph {self.name!r} has a cycle through {_some([n.name or n.op_type for n in stuck])}"
            )
        return order

    def copy(self) -> Graph:
        """An independent graph that shares the weights."""
        twin = Graph(self.name)
        twin.doc = self.doc
        twin.inputs = [info.copy() for info in self.inputs]
        twin.outputs = [info.copy() for info in self.outputs]
        twin.initializers = dict(self.initializers)
        twin.nodes = [node.clone() for node in self.nodes]
        twin.types = dict(self.types)
        twin.opsets = dict(self.opsets)
        twin.metadata = dict(self.metadata)
        return twin

    def needed_for(self, names: Iterable[str]) -> Graph:
        """A copy without the nodes and outputs that none of these values needs."""
        live = set(names)
        kept: list[Node] = []
        for node in reversed(self.topological_sort()):
            if live.intersection(node.outputs):
                live.update(node.inputs)
                kept.append(node)
        twin = self.copy()
        twin.nodes = kept[::-1]
        twin.outputs = [info for info in self.outputs if info.name in live]
        return twin

    def fingerprint(self, *, weights: bool = False) -> str:
        """A hash of the structure (names do not matter); with ``weights``, of the data too."""
        from pyflame_rt.graph.fingerprint import fingerprint

        return fingerprint(self, weights=weights)

    def __str__(self) -> str:
        from pyflame_rt.graph.text import print_graph

        return print_graph(self)

    def __repr__(self) -> str:
        return f"Graph({self.name!r}: {len(self.inputs)} inputs, {len(self.nodes)} nodes, {len(self.outputs)} outputs)"


def node_subgraphs(node: Node) -> Iterator[Graph]:
    """Graphs among the attributes of a node."""
    for value in node.attributes.values():
        if isinstance(value, Graph):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from (item for item in cast("Sequence[Any]", value) if isinstance(item, Graph))


def sort_nodes(nodes: list[Node]) -> list[Node]:
    """Kahn's algorithm, stable: nodes that lie on a cycle are left out."""
    producer = {output: i for i, node in enumerate(nodes) for output in node.outputs if output}
    waiting = [0] * len(nodes)
    readers: dict[int, list[int]] = {}
    for i, node in enumerate(nodes):
        for source in {producer[name] for name in node.inputs if name in producer}:
            waiting[i] += 1
            readers.setdefault(source, []).append(i)
    ready = deque(i for i, count in enumerate(waiting) if count == 0)
    order: list[int] = []
    while ready:
        i = ready.popleft()
        order.append(i)
        for reader in readers.get(i, ()):
            waiting[reader] -= 1
            if waiting[reader] == 0:
                ready.append(reader)
    return [nodes[i] for i in order]


def _some(names: Iterable[str], limit: int = 8) -> str:
    listed = list(names)
    more = f" and {len(listed) - limit} more" if len(listed) > limit else ""
    return ", ".join(repr(n) for n in listed[:limit]) + more if listed else "none"
