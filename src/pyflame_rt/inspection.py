"""Looking into models: a summary of what one holds, and where the first NaN comes from."""

from __future__ import annotations

from collections import Counter
from dataclasses import field
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.arrays import host_array
from pyflame_rt.graph import Graph, Node, NodeArg
from pyflame_rt.graph.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["ModelSummary", "NaNFound", "nan_watcher", "summarize"]


@dataclass(frozen=True, slots=True)
class ModelSummary:
    """What a model holds.

    Example:
        >>> g = Graph("g")
        >>> _ = g.add_input("x", [2]), g.add_node("n", "Neg", ["x"], ["y"]), g.add_output("y", [2])
        >>> summarize(g).operators
        {'Neg': 1}
    """

    name: str
    inputs: list[NodeArg]
    outputs: list[NodeArg]
    overridable: list[NodeArg]
    opsets: dict[str, int]
    operators: dict[str, int]
    node_count: int
    initializer_count: int
    parameter_count: int
    weight_bytes: int
    metadata: dict[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        plain: dict[str, Any] = {name: getattr(self, name) for name in self.__slots__}
        for name in ("inputs", "outputs", "overridable"):
            plain[name] = [_arg(arg) for arg in plain[name]]
        return plain


def _arg(arg: NodeArg) -> dict[str, Any]:
    return {"name": arg.name, "type": arg.type, "shape": None if arg.shape is None else list(arg.shape)}


def summarize(graph: Graph) -> ModelSummary:
    """Count what a graph holds, subgraphs included."""
    operators: Counter[str] = Counter()
    initializers: list[Any] = []
    pending = [graph]
    while pending:
        current = pending.pop()
        operators.update(node.full_name for node in current.nodes)
        initializers.extend(current.initializers.values())
        pending.extend(current.subgraphs())
    required = {info.name for info in graph.required_inputs}
    return ModelSummary(
        name=graph.name,
        inputs=[NodeArg.of(info) for info in graph.inputs if info.name in required],
        outputs=[NodeArg.of(info) for info in graph.outputs],
        overridable=[NodeArg.of(info) for info in graph.inputs if info.name not in required],
        opsets={domain or "ai.onnx": version for domain, version in graph.opsets.items()},
        operators=dict(sorted(operators.items(), key=lambda item: (-item[1], item[0]))),
        node_count=operators.total(),
        initializer_count=len(initializers),
        parameter_count=sum(t.num_elements for t in initializers),
        weight_bytes=sum(t.size_bytes for t in initializers),
        metadata=dict(graph.metadata),
    )


@dataclass(frozen=True, slots=True)
class NaNFound:
    """Where the first NaN (or infinity) of a run appeared.

    Attributes:
        value: name of the tensor that holds it.
        node: name of the node that made it; "" for an input of the model.
        op_type: its operator.
        count: how many elements are affected.
        index: position of the first one.
        inputs: what the node was given: name, type, shape, least and greatest value.
    """

    value: str
    node: str
    op_type: str
    count: int
    index: tuple[int, ...]
    inputs: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        if not self.op_type:
            return f"input {self.value!r} holds {self.count} bad elements, the first at {list(self.index)}"
        given = "".join(f"\n  {text}" for text in self.inputs)
        return (
            f"node {self.node!r} ({self.op_type}) made {self.count} bad elements in {self.value!r}, "
            f"the first at {list(self.index)}, from{given}"
        )


class _Stop(Exception):
    def __init__(self, found: NaNFound) -> None:
        super().__init__(str(found))
        self.found = found


def nan_watcher(infinities: bool) -> tuple[Callable[..., None], type[_Stop]]:
    """A hook that ends a run at the first NaN, and the exception it ends it with."""

    def observe(node: Node, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        for name, array in zip(node.outputs, outputs, strict=False):
            place = first_bad(array, infinities)
            if place is not None:
                given = [_describe(n, a) for n, a in zip(node.inputs, inputs, strict=False)]
                raise _Stop(NaNFound(name, node.name, node.full_name, *place, given))

    return observe, _Stop


def first_bad(array: Any, infinities: bool) -> tuple[int, tuple[int, ...]] | None:
    """How many elements are NaN (or infinite), and where the first is; None when none is."""
    host = host_array(array)
    if host is None or host.dtype.kind not in "fcV":
        return None
    numbers = host if host.dtype.kind in "fc" else host.astype(np.float32)
    bad = ~np.isfinite(numbers) if infinities else np.isnan(numbers)
    count = int(bad.sum())
    if not count:
        return None
    return count, tuple(int(i) for i in np.argwhere(np.atleast_1d(bad))[0][: host.ndim])


def _describe(name: str, array: Any) -> str:
    host = host_array(array)
    if host is None:
        return f"{name or '-'}: {type(array).__name__}"
    text = f"{name}: {host.dtype.name}{list(host.shape)}"
    if host.size and host.dtype.kind in "fiubV":
        numbers = host.astype(np.float64)
        text += f" from {np.nanmin(numbers):.6g} to {np.nanmax(numbers):.6g}"
    return text
