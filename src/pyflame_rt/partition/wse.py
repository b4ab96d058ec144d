"""Several wafers: a part of the model on each chip, compiled to CSL and run in the simulator."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pyflame_rt.graph import Graph, Node
from pyflame_rt.graph.errors import InputError
from pyflame_rt.ops.core.inference import infer_types
from pyflame_rt.ops.pyflame.markers import ChipTransfer
from pyflame_rt.opt import OptLevel, PassManager
from pyflame_rt.partition.config import (
    DeviceSpec,
    DeviceType,
    PartitionConfig,
    PartitionStrategy,
    WSEChipConfig,
    count_of,
)
from pyflame_rt.partition.cost import CostModel, bytes_of, concrete_graph
from pyflame_rt.partition.partitioner import GraphPartitioner
from pyflame_rt.wafer import CodeGenOptions, CSLCodeGenerator

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyflame_rt.partition.plan import PartitionPlan

__all__ = [
    "generate_csl",
    "insert_wse_communication",
    "optimize_for_wse_dataflow",
    "partition_for_multi_chip",
    "partition_for_wse",
]

# A PE of the wafer does one float operation a cycle at 0.875 GHz; 750,000 of them, a tenth of which are busy.
_CHIP_FLOPS = 0.875e9 * 750_000 / 10


def partition_for_wse(
    graph: Graph,
    chip_config: WSEChipConfig | None = None,
    *,
    batch_size: int = 1,
    sizes: Mapping[str, int] | None = None,
) -> PartitionPlan:
    """Parts for a grid of chips, at most one on each; consecutive parts are on neighbouring chips.

    Args:
        graph: the model.
        chip_config: the chips; two side by side when None.
        batch_size: rows of a request, where the model leaves that open.
        sizes: other open sizes by name.

    Returns:
        A plan whose parts run in the simulator; fewer parts than chips where the model has fewer nodes, as a note says.

    Example:
        >>> g = Graph("g")
        >>> _ = g.add_input("x", [4, 4]), g.add_output("z", [4, 4])
        >>> _ = g.add_node("a", "Relu", ["x"], ["y"]), g.add_node("b", "Neg", ["y"], ["z"])
        >>> [p.device.label for p in partition_for_wse(g).partitions]
        ['wse:0', 'wse:1']
    """
    chips = WSEChipConfig() if chip_config is None else chip_config
    chips.check()
    devices = [
        DeviceSpec(DeviceType.WSE, i, int(chips.chip_memory_bytes), _CHIP_FLOPS) for i in range(chips.num_chips)
    ]  # fmt: skip
    config = PartitionConfig(PartitionStrategy.MODEL_PARALLEL, devices, batch_size=batch_size, sizes=dict(sizes or {}))
    model = CostModel()
    model.set_inter_device_bandwidth(chips.inter_chip_bandwidth)
    model.set_inter_device_latency(chips.inter_chip_latency / 1e3)
    model.part_us = 1.0  # a launch
    partitioner = GraphPartitioner(config)
    partitioner.set_cost_model(model)
    count = max(1, min(len(devices), partitioner.parts_possible(graph)))
    plan = partitioner.partition_model_parallel(graph, count)
    plan.chips = chips
    numbers = {p.index: p.device.device_id for p in plan.partitions}
    plan.communications = [
        replace(c, hops=max(1, chips.hops(numbers[c.source], numbers[c.target]))) for c in plan.communications
    ]  # fmt: skip
    plan.total_latency_us = partitioner.estimate_execution_time(plan)
    if count < len(devices):
        plan.notes.append(f"{count} of {len(devices)} chips are used: the model has no more nodes to give out")
    return plan


def partition_for_multi_chip(graph: Graph, num_chips: int, chip_config: WSEChipConfig | None = None) -> PartitionPlan:
    """Parts for so many chips in a row; the rest of the configuration as given."""
    chips = WSEChipConfig() if chip_config is None else chip_config
    row = WSEChipConfig(
        (1, count_of(num_chips, "num_chips")),
        chips.inter_chip_bandwidth,
        chips.inter_chip_latency,
        chips.chip_memory_bytes,
        chips.target,
        chips.grid,
    )
    return partition_for_wse(graph, row)


def optimize_for_wse_dataflow(graph: Graph) -> Graph:
    """A graph for the wafer: constants computed, no-ops gone, nodes in an order that keeps few bytes alive.

    Constant folding, simplification and dead-code elimination do not change a bit of the answer; the order is a greedy
    list schedule that prefers the node which frees the most.

    Example:
        >>> import numpy as np
        >>> g = Graph("g")
        >>> _ = g.add_input("x", [4]), g.add_output("z", [4]), g.add_initializer("one", np.ones(4, np.float32))
        >>> _ = g.add_node("a", "Exp", ["one"], ["e"]), g.add_node("b", "Add", ["x", "e"], ["z"])
        >>> [node.name for node in optimize_for_wse_dataflow(g).nodes]
        ['b']
    """
    twin = graph.copy()
    PassManager.create_default(OptLevel.BASIC).run(twin)
    twin.nodes = _short_lived(twin)
    return twin


def _short_lived(graph: Graph) -> list[Node]:
    """Nodes in running order, at each step the one after which the fewest bytes are alive."""
    sized = concrete_graph(graph, {}, 1)
    size = {name: bytes_of(sized.value_type(name)) for n in sized.nodes for name in n.outputs if name}
    left = {name: len(readers) for name, readers in graph.consumers().items()}
    for info in graph.outputs:
        left[info.name] = left.get(info.name, 0) + 1
    made = {name for node in graph.nodes for name in node.outputs}
    waiting = {id(n): sum(1 for name in set(n.inputs) if name in made) for n in graph.nodes}
    readers = graph.consumers()
    ready = [n for n in graph.nodes if not waiting[id(n)]]
    order: list[Node] = []
    while ready:
        best = min(ready, key=lambda n: _growth(n, left, size, made))
        ready.remove(best)
        order.append(best)
        for name in {n for n in best.inputs if n}:
            left[name] -= 1
        for name in filter(None, best.outputs):
            for reader in readers.get(name, ()):
                waiting[id(reader)] -= 1
                if not waiting[id(reader)]:
                    ready.append(reader)
    return order


def _growth(node: Node, left: Mapping[str, int], size: Mapping[str, int], made: set[str]) -> int:
    """Bytes that are alive after a node, less those before it."""
    freed = sum(size.get(n, 0) for n in {n for n in node.inputs if n in made} if left[n] == 1)
    return sum(size.get(n, 0) for n in node.outputs if n) - freed


def insert_wse_communication(graph: Graph, plan: PartitionPlan) -> Graph:
    """The whole graph with a ``pyflame::ChipTransfer`` node for each value that goes from chip to chip.

    The node leaves its value as it is, so the graph computes what it did before; tools that lay out links see what
    crosses, from where to where and over how many hops.

    Args:
        graph: the graph that the plan was made of.
        plan: of :func:`partition_for_wse`.
    """
    maker = {name: i for i, part in enumerate(plan.partitions) for n in part.graph.nodes for name in n.outputs}
    home = {n.outputs[0]: i for i, part in enumerate(plan.partitions) for n in part.graph.nodes if n.outputs}
    strange = [n for n in graph.needed_for([i.name for i in graph.outputs]).nodes if n.outputs[0] not in home]
    strange = [n for n in strange if any(name in maker for name in n.inputs)]
    if strange:
        raise InputError(
            f"node {strange[0].name!r} of graph {graph.name!r} is in no part of the plan: make a plan of it"
        )
    twin = graph.copy()
    sent: dict[tuple[str, int], str] = {}
    nodes: list[Node] = []
    links = {(c.value, c.target): c for c in plan.communications}
    for node in twin.topological_sort():
        own = home.get(node.outputs[0]) if node.outputs else None
        inputs = []
        for name in node.inputs:
            link = None if own is None else links.get((name, own))
            if link is None or own is None:
                inputs.append(name)
                continue
            if (name, own) not in sent:
                sent[name, own] = f"{name}>chip{own}"
                numbers = {"source": _chip(plan, link.source), "target": _chip(plan, link.target), "hops": link.hops}
                made = sent[name, own]
                nodes.append(Node(f"send_{made}", ChipTransfer.name, [name], [made], numbers, "pyflame"))
            inputs.append(sent[name, own])
        nodes.append(node.replace(inputs=inputs))
    twin.nodes = nodes
    infer_types(twin)
    return twin


def _chip(plan: PartitionPlan, part: int) -> int:
    return plan.partitions[part].device.device_id


def generate_csl(
    plan: PartitionPlan, *, shapes: Mapping[str, Sequence[int]] | None = None, options: CodeGenOptions | None = None
) -> list[dict[str, str]]:
    """The CSL program of each part: text of every file by name.

    Args:
        plan: of :func:`partition_for_wse`.
        shapes: sizes of the model's inputs, and of values between parts, where the model leaves them open.
        options: of the generator; target and grid are the plan's where None.
    """
    chips = plan.chips or WSEChipConfig()
    if options is None:
        rows, cols = chips.grid or (0, 0)
        options = CodeGenOptions(target=chips.target, fabric_height=rows, fabric_width=cols)
    return [
        CSLCodeGenerator().generate_source(
            p.graph, options, shapes={n: s for n, s in (shapes or {}).items() if n in p.inputs} or None
        )
        for p in plan.partitions
    ]
