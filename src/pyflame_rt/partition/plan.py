"""A plan: which nodes run on which device, what crosses between them, and what that should cost."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any

from pyflame_rt.graph.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyflame_rt.graph import Graph
    from pyflame_rt.partition.config import DeviceSpec, PartitionStrategy, WSEChipConfig
    from pyflame_rt.partition.rows import RowSplit

__all__ = ["Communication", "Partition", "PartitionAnalysis", "PartitionPlan", "PartitionStats"]


@dataclass(slots=True)
class Partition:
    """One part of a graph, a graph itself.

    Attributes:
        index: its place in ``plan.partitions``; parts read what parts before them make.
        device: where it runs.
        graph: what it computes.
        nodes: names of the model's nodes in it.
        compute_us: microseconds of one request, as the cost model sees it.
        memory_bytes: weights and the most bytes of values that are alive at once.
    """

    index: int
    device: DeviceSpec
    graph: Graph
    nodes: tuple[str, ...]
    compute_us: float = 0.0
    memory_bytes: int = 0

    @property
    def inputs(self) -> list[str]:
        """Names of the values it reads."""
        return [info.name for info in self.graph.inputs]

    @property
    def outputs(self) -> list[str]:
        """Names of the values others read of it."""
        return [info.name for info in self.graph.outputs]


@dataclass(frozen=True, slots=True)
class Communication:
    """A value that one part makes and another reads.

    Attributes:
        value: its name.
        source: index of the part that makes it.
        target: index of the part that reads it.
        num_bytes: of one request.
        hops: links between the two devices.
    """

    value: str
    source: int
    target: int
    num_bytes: int
    hops: int = 1


@dataclass(slots=True)
class PartitionPlan:
    """What :class:`PartitionedExecutor` runs.

    Attributes:
        graph: the model as it was given.
        strategy: how it was divided.
        partitions: its parts, in an order in which they can run.
        communications: what crosses between devices.
        split: along which axes requests are cut into rows; None where a request stays whole.
        micro_batch_size: rows that go through the parts together; 0 for no micro-batches.
        batch_size: rows of the request that was reckoned with.
        total_latency_us: predicted time of that request.
        single_us: predicted time of that request on one device.
        notes: what the user should know.
        chips: the chips of a plan for wafers.

    Example:
        >>> from pyflame_rt import Graph, partition
        >>> g = Graph("tiny")
        >>> _ = g.add_input("x", [4]), g.add_output("z", [4])
        >>> _ = g.add_node("a", "Exp", ["x"], ["y"]), g.add_node("b", "Neg", ["y"], ["z"])
        >>> plan = partition.GraphPartitioner().partition_model_parallel(g, num_partitions=2)
        >>> plan.total_comm_bytes, [p.nodes for p in plan.partitions]
        (16, [('a',), ('b',)])
    """

    graph: Graph
    strategy: PartitionStrategy
    partitions: list[Partition] = field(default_factory=list)
    communications: list[Communication] = field(default_factory=list)
    split: RowSplit | None = None
    micro_batch_size: int = 0
    batch_size: int = 0
    total_latency_us: float = 0.0
    single_us: float = 0.0
    notes: list[str] = field(default_factory=list)
    chips: WSEChipConfig | None = None

    @property
    def devices(self) -> list[DeviceSpec]:
        """The devices in use, each once."""
        return list({p.device.label: p.device for p in self.partitions}.values())

    @property
    def total_comm_bytes(self) -> int:
        """Bytes that cross between devices for one request."""
        return sum(c.num_bytes for c in self.communications)

    @property
    def load_imbalance(self) -> float:
        """How much longer the busiest device works than the average one: 0 is perfect balance."""
        loads = list(self.loads().values())
        mean = sum(loads) / len(loads) if loads else 0.0
        return max(loads) / mean - 1.0 if mean > 0 else 0.0

    def loads(self) -> Mapping[str, float]:
        """Predicted microseconds of each device."""
        loads: dict[str, float] = {}
        for part in self.partitions:
            loads[part.device.label] = loads.get(part.device.label, 0.0) + part.compute_us
        return loads

    @property
    def predicted_speedup(self) -> float:
        """Predicted time on one device over that of the plan."""
        return self.single_us / self.total_latency_us if self.total_latency_us > 0 else 1.0

    def svg(self) -> str:
        """A picture: parts by device, and what crosses between them."""
        from pyflame_rt.partition.picture import picture

        return picture(self)

    _repr_svg_ = svg

    def to_dict(self) -> dict[str, Any]:
        """The plan without weights, for JSON."""
        return {
            "model": self.graph.name,
            "strategy": self.strategy.value,
            "partitions": [
                {
                    "index": p.index,
                    "device": p.device.label,
                    "nodes": list(p.nodes),
                    "inputs": p.inputs,
                    "outputs": p.outputs,
                    "compute_us": p.compute_us,
                    "memory_bytes": p.memory_bytes,
                }
                for p in self.partitions
            ],
            "communications": [
                {"value": c.value, "source": c.source, "target": c.target, "bytes": c.num_bytes, "hops": c.hops}
                for c in self.communications
            ],
            "total_comm_bytes": self.total_comm_bytes,
            "load_imbalance": self.load_imbalance,
            "predicted_us": self.total_latency_us,
            "predicted_speedup": self.predicted_speedup,
            "micro_batch_size": self.micro_batch_size,
            "rows_are_split": self.split is not None,
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        first = (
            f"{self.strategy.value}: {len(self.partitions)} parts on {len(self.devices)} devices, "
            f"{self.total_comm_bytes:,} bytes cross, imbalance {self.load_imbalance:.0%}, "
            f"predicted {self.total_latency_us:,.0f} us ({self.predicted_speedup:.2f}x)"
        )
        lines = [first]
        lines += [
            f"  {p.index} {p.device.label}: {len(p.nodes)} nodes, {p.compute_us:,.1f} us, {p.memory_bytes:,} bytes; "
            f"{', '.join(p.inputs)} -> {', '.join(p.outputs)}"
            for p in self.partitions
        ]
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])


@dataclass(frozen=True, slots=True)
class PartitionStats:
    """Figures of a plan.

    Attributes:
        nodes_per_partition: how many nodes each part has.
        edge_cut_ratio: edges between parts over all edges.
        compute_per_partition: predicted microseconds of each part.
        memory_per_partition: bytes of each part.
        total_comm_bytes: bytes that cross.
        load_imbalance: the busiest device over the average, less 1.
    """

    nodes_per_partition: list[int]
    edge_cut_ratio: float
    compute_per_partition: list[float]
    memory_per_partition: list[int]
    total_comm_bytes: int
    load_imbalance: float


@dataclass(frozen=True, slots=True)
class PartitionAnalysis:
    """What the cost model says of a graph before it is cut.

    Attributes:
        recommended_strategy: the fastest by prediction.
        estimated_speedup: of that one over a single device.
        communication_bytes: that cross with it for one request.
        bottleneck_nodes: names of the nodes that take most of the time, the longest first.
        predicted_us: microseconds of a request by strategy, and on one device (``single``).
        compute_us: of all nodes together.
        memory_bytes: weights and values alive at once, on one device.
        splits_rows: True where a request can be cut into rows.
        reason: why it cannot, or "".
    """

    recommended_strategy: PartitionStrategy
    estimated_speedup: float
    communication_bytes: int
    bottleneck_nodes: list[str]
    predicted_us: dict[str, float]
    compute_us: float
    memory_bytes: int
    splits_rows: bool
    reason: str
