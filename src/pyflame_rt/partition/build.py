"""From nodes given to parts to a plan: a graph for each part, what crosses, what it costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pyflame_rt.graph import Graph, TensorInfo
from pyflame_rt.graph.types import AnyType
from pyflame_rt.partition.plan import Communication, Partition, PartitionPlan

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyflame_rt.graph import Node, ValueType
    from pyflame_rt.partition.config import DeviceSpec, PartitionStrategy
    from pyflame_rt.partition.cost import CostModel, GraphCosts

__all__ = ["Piece", "build_plan", "memory_of", "part_graph"]


class Piece(NamedTuple):
    """Nodes that run together on a device."""

    device: DeviceSpec
    nodes: list[Node]


def build_plan(
    graph: Graph,
    pieces: Sequence[Piece],
    strategy: PartitionStrategy,
    costs: GraphCosts,
    model: CostModel,
    types: Mapping[str, ValueType],
    hops: Callable[[DeviceSpec, DeviceSpec], int] = lambda a, b: int(a.label != b.label),
) -> PartitionPlan:
    """A plan of pieces, each of which reads only what pieces before it make.

    Args:
        graph: what the pieces were cut from.
        pieces: nodes by device; nodes that depend on no input are added wherever they are read.
        strategy: what the plan is called.
        costs: of the graph.
        model: for times on devices.
        types: of the graph's values.
        hops: links between two devices; 0 where they are the same.
    """
    given = {id(node) for piece in pieces for node in piece.nodes}
    free = {name: n for n in graph.nodes if id(n) not in given for name in n.outputs if name}
    maker = {name: i for i, piece in enumerate(pieces) for n in piece.nodes for name in n.outputs if name}
    finals = {info.name for info in graph.outputs}
    readers: dict[str, set[int]] = {}
    full = [_with_free(piece.nodes, free) for piece in pieces]
    for i, nodes in enumerate(full):
        for name in (n for node in nodes for n in node.inputs if maker.get(n, i) != i):
            readers.setdefault(name, set()).add(i)
    plan = PartitionPlan(graph, strategy)
    for i, (piece, nodes) in enumerate(zip(pieces, full, strict=True)):
        made = [n for node in piece.nodes for n in node.outputs if n and (n in readers or n in finals)]
        part = part_graph(graph, nodes, made, types, f"{graph.name or 'graph'}.{i}")
        us = sum(costs.us.get(n.outputs[0], 0.0) for n in piece.nodes if n.outputs)
        names = tuple(n.name or n.outputs[0] for n in piece.nodes)
        plan.partitions.append(
            Partition(i, piece.device, part, names, model.on(piece.device, us), memory_of(part, costs))
        )
    for name, targets in readers.items():
        for target in sorted(targets):
            source = maker[name]
            far = hops(pieces[source].device, pieces[target].device)
            if far:
                plan.communications.append(Communication(name, source, target, costs.value_bytes.get(name, 0), far))
    return plan


def _with_free(nodes: Sequence[Node], free: Mapping[str, Node]) -> list[Node]:
    """The nodes, and before them those without inputs that they read."""
    wanted: dict[int, Node] = {}
    pending = [n for node in nodes for n in node.inputs]
    while pending:
        found = free.get(pending.pop())
        if found is not None and id(found) not in wanted:
            wanted[id(found)] = found
            pending.extend(found.inputs)
    return [*wanted.values(), *nodes]


def part_graph(
    graph: Graph, nodes: Sequence[Node], outputs: Sequence[str], types: Mapping[str, ValueType], name: str
) -> Graph:
    """A graph of some nodes: inputs are what they read from outside, weights are shared."""
    part = Graph(name)
    part.opsets, part.metadata = dict(graph.opsets), dict(graph.metadata)
    part.nodes = list(nodes)
    part.nodes = [node.clone() for node in part.topological_sort()]
    made = {n for node in nodes for n in node.outputs}
    inputs = {info.name: info for info in graph.inputs}
    for value in dict.fromkeys(n for node in part.nodes for n in node.inputs if n and n not in made):
        if value in graph.initializers:
            part.initializers[value] = graph.initializers[value]
        if value in inputs or value not in graph.initializers:
            declared = inputs[value].type if value in inputs else graph.value_type(value)
            part.add_input(TensorInfo(value, type=types.get(value) or declared or AnyType()))
    for value in outputs:
        part.add_output(TensorInfo(value, type=types.get(value) or graph.value_type(value) or AnyType()))
    return part


def memory_of(part: Graph, costs: GraphCosts) -> int:
    """Bytes of a part's weights and of the values that are alive at once, at most."""
    last: dict[str, int] = {}
    for i, node in enumerate(part.nodes):
        last.update((name, i) for name in node.inputs if name)
    kept = {info.name for info in part.outputs}
    ends: dict[int, int] = {}
    for name, at in last.items():
        if name not in kept and name not in part.initializers:
            ends[at] = ends.get(at, 0) + costs.value_bytes.get(name, 0)
    live = peak = sum(costs.value_bytes.get(i.name, 0) for i in part.inputs if i.name not in part.initializers)
    for i, node in enumerate(part.nodes):
        live += sum(costs.value_bytes.get(name, 0) for name in node.outputs if name)
        peak = max(peak, live)
        live -= ends.get(i, 0)
    return peak + sum(t.size_bytes for t in part.initializers.values())
