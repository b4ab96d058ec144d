"""The partitioner: plans by strategy, and the strategy that the cost model says is fastest."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pyflame_rt.graph import Graph
from pyflame_rt.graph.arguments import expect
from pyflame_rt.graph.errors import InputError, MemoryLimitError, ValidationError
from pyflame_rt.graph.named_arguments import names_arguments
from pyflame_rt.ops.core.inference import infer_types
from pyflame_rt.partition.build import Piece, build_plan
from pyflame_rt.partition.config import (
    DeviceSpec,
    DeviceType,
    PartitionConfig,
    PartitionStrategy,
    count_of,
    cpu_devices,
)
from pyflame_rt.partition.cost import CostModel
from pyflame_rt.partition.cuts import cut_graph, units_of
from pyflame_rt.partition.plan import PartitionAnalysis, PartitionPlan, PartitionStats
from pyflame_rt.partition.rows import RowSplit, find_rows
from pyflame_rt.partition.schedule import predict_us
from pyflame_rt.partition.tensor_parallel import shard_graph

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyflame_rt.graph import Node, ValueType
    from pyflame_rt.partition.cost import GraphCosts

__all__ = ["GraphPartitioner", "auto_partition"]

_TOP = 5  # bottleneck nodes that are named
_MARGIN = 1.05  # parts must promise this much over a single device: predictions are no better


class GraphPartitioner:
    """Cuts graphs.

    Args:
        config: how; the defaults of PartitionConfig when None.

    Example:
        >>> from pyflame_rt import Graph
        >>> g = Graph("g")
        >>> _ = g.add_input("x", [None, 4]), g.add_output("y", [None, 4])
        >>> _ = g.add_node("n", "Relu", ["x"], ["y"])
        >>> plan = GraphPartitioner().partition_data_parallel(g, num_replicas=2)
        >>> len(plan.partitions), GraphPartitioner.get_stats(plan).nodes_per_partition
        (2, [1, 1])
    """

    def __init__(self, config: PartitionConfig | None = None) -> None:
        self.config = PartitionConfig() if config is None else config
        self.cost_model = CostModel()

    def set_cost_model(self, model: CostModel) -> None:
        """Predict with this model from now on."""
        if not isinstance(model, CostModel):
            raise InputError(f"set_cost_model takes a CostModel, got {type(model).__name__}")
        self.cost_model = model

    # ------------------------------------------------------------------ plans

    def partition(self, graph: Graph, num_parts: int | None = None) -> PartitionPlan:
        """A plan by the strategy of the configuration.

        Args:
            graph: the model; left as it is.
            num_parts: how many parts; one for each device of the configuration, or 2, by default.
        """
        self.config.check()
        count = count_of(num_parts or len(self.config.devices) or 2, "num_parts")
        match self.config.strategy:
            case PartitionStrategy.DATA_PARALLEL:
                return self.partition_data_parallel(graph, count)
            case PartitionStrategy.MODEL_PARALLEL:
                return self.partition_model_parallel(graph, count)
            case PartitionStrategy.PIPELINE_PARALLEL:
                return self.partition_pipeline(graph, count)
            case PartitionStrategy.TENSOR_PARALLEL:
                return self.partition_tensor_parallel(graph, count)
            case PartitionStrategy.AUTOMATIC:
                return self._automatic(graph, count)[0]

    def partition_data_parallel(self, graph: Graph, num_replicas: int | None = None) -> PartitionPlan:
        """Every device has the whole model; requests are cut into rows, or go to one device each in turn."""
        work = _Work(self, graph)
        devices = self._devices(num_replicas)
        nodes = [unit.node for unit in work.units]
        strategy = PartitionStrategy.DATA_PARALLEL
        pieces = [Piece(devices[0], nodes)]
        plan = build_plan(work.graph, pieces, strategy, work.costs, self.cost_model, work.open_types)
        part, us = plan.partitions[0], work.costs.total_us
        plan.graph, plan.partitions = graph, []
        for i, device in enumerate(devices):
            _refuse_memory(device, part.memory_bytes, i)
            copy = replace(part, index=i, device=device, compute_us=self.cost_model.on(device, us))
            plan.partitions.append(copy)
        if work.split is None:
            plan.notes.append(f"requests stay whole and go to the replicas in turn: {work.reason}")
        return self._finished(plan, work)

    def partition_model_parallel(self, graph: Graph, num_partitions: int | None = None) -> PartitionPlan:
        """Every device has a part of the model; few bytes cross, and loads are balanced."""
        return self._cut(
            _Work(self, graph, whole=True), self._devices(num_partitions), PartitionStrategy.MODEL_PARALLEL
        )

    def partition_pipeline(self, graph: Graph, num_stages: int | None = None) -> PartitionPlan:
        """Every device has a stage; micro-batches, and several requests, are in different stages at once."""
        wanted = num_stages or len(self.config.devices) or 2
        most = self.config.max_pipeline_stages
        devices = self._devices(min(wanted, most) if most else wanted)
        work = _Work(self, graph)
        plan = self._cut(work, devices, PartitionStrategy.PIPELINE_PARALLEL)
        if most and wanted > most:
            plan.notes.append(f"{most} stages instead of {wanted}: max_pipeline_stages")
        return plan

    def partition_tensor_parallel(self, graph: Graph, num_parts: int | None = None) -> PartitionPlan:
        """Weights of products and convolutions are cut over all devices, which work on the same request together."""
        devices = self._devices(num_parts)
        work = _Work(self, graph, whole=True)
        sharded = shard_graph(work.graph, len(devices), work.types)
        infer_types(sharded.graph)
        costs = _as_measured(self.cost_model.survey(sharded.graph, self.config), work, sharded.origin)
        pieces = _segments(sharded.graph, sharded.device, devices)
        plan = build_plan(
            sharded.graph, pieces, PartitionStrategy.TENSOR_PARALLEL, costs, self.cost_model, sharded.graph.types
        )
        for device in devices:
            held = {
                n: t.size_bytes for p in plan.partitions if p.device is device for n, t in p.graph.initializers.items()
            }
            values = max((p.memory_bytes for p in plan.partitions if p.device is device), default=0)
            _refuse_memory(device, max(sum(held.values()), values), device.device_id)
        if not sharded.cut and len(devices) > 1:
            plan.notes.append("no node has a constant weight that can be cut: the first device does it all")
        plan.graph = graph
        return self._finished(plan, work)

    def _devices(self, count: int | None) -> list[DeviceSpec]:
        """So many devices: those of the configuration, or CPU devices where it has none."""
        self.config.check()
        given = self.config.devices
        wanted = count_of(count if count is not None else len(given) or 2, "the number of parts")
        if not given:
            return cpu_devices(wanted)
        if wanted > len(given):
            raise InputError(f"{wanted} parts need {wanted} devices; PartitionConfig.devices has {len(given)}")
        return list(given[:wanted])

    def _cut(self, work: _Work, devices: Sequence[DeviceSpec], strategy: PartitionStrategy) -> PartitionPlan:
        parts = cut_graph(work.units, work.costs, devices, self.cost_model, self.config)
        pieces = [Piece(device, []) for device in devices]
        for unit, part in zip(work.units, parts, strict=True):
            pieces[part].nodes.append(unit.node)
        plan = build_plan(work.graph, pieces, strategy, work.costs, self.cost_model, work.open_types)
        plan.graph = work.given
        if strategy is PartitionStrategy.PIPELINE_PARALLEL and work.split is None:
            plan.notes.append(f"a request goes through the stages whole, only requests overlap: {work.reason}")
        return self._finished(plan, work)

    def _finished(self, plan: PartitionPlan, work: _Work) -> PartitionPlan:
        plan.batch_size = self.config.batch_size
        if work.split is not None and plan.strategy is not PartitionStrategy.MODEL_PARALLEL:
            plan.split = work.split
            if plan.strategy is PartitionStrategy.PIPELINE_PARALLEL:
                plan.micro_batch_size = self.config.micro_batch_size or self._micro_batch(plan)
        alone = plan.partitions[0].device if plan.partitions else None
        plan.single_us = self.cost_model.on(alone, work.costs.total_us) + self.cost_model.part_us
        plan.total_latency_us = predict_us(plan, self.cost_model)
        return plan

    def _micro_batch(self, plan: PartitionPlan) -> int:
        """The size that the schedule likes best: small ones overlap more, large ones cost less each."""
        rows = plan.batch_size
        sizes = sorted({-(-rows // n) for n in (1, 2, 4, 8, 16, 32) if n <= rows})
        found: dict[int, float] = {}
        for size in sizes:
            plan.micro_batch_size = size
            found[size] = predict_us(plan, self.cost_model)
        return min(found, key=lambda size: (found[size], -size))

    def parts_possible(self, graph: Graph) -> int:
        """The most parts that the graph can be cut into: its nodes that depend on inputs."""
        return len(_Work(self, graph, whole=True).units)

    # ------------------------------------------------------------------ choosing

    def _automatic(self, graph: Graph, count: int) -> tuple[PartitionPlan, dict[str, float], PartitionPlan]:
        """The plan with the least predicted time, the times of all strategies, and the best of several devices."""
        plans: dict[str, PartitionPlan] = {}
        refusals: list[str] = []
        for name, make in (
            ("single", lambda: self.partition_model_parallel(graph, 1)),
            (PartitionStrategy.DATA_PARALLEL.value, lambda: self.partition_data_parallel(graph, count)),
            (PartitionStrategy.MODEL_PARALLEL.value, lambda: self.partition_model_parallel(graph, count)),
            (PartitionStrategy.PIPELINE_PARALLEL.value, lambda: self.partition_pipeline(graph, count)),
            (PartitionStrategy.TENSOR_PARALLEL.value, lambda: self.partition_tensor_parallel(graph, count)),
        ):
            try:
                plans[name] = make()
            except (InputError, MemoryLimitError) as error:
                refusals.append(f"{name}: {error}")
        if not plans:
            raise MemoryLimitError(f"model {graph.name!r} fits these devices in no way: {'; '.join(refusals)}")
        times = {name: plan.total_latency_us for name, plan in plans.items()}
        several = {name: us for name, us in times.items() if name != "single"} or times
        best = min(several, key=lambda name: several[name])
        chosen = best
        if "single" in times and times["single"] <= several[best] * _MARGIN:
            chosen = "single"
            plans["single"].notes.append("one device is as fast as several by prediction")
        return plans[chosen], times, plans[best]

    def analyze(self, graph: Graph, num_devices: int | None = None) -> PartitionAnalysis:
        """What the cost model says of a graph: strategies with their predicted times, bottlenecks, memory."""
        self.config.check()
        count = num_devices or len(self.config.devices) or 2
        _, times, best = self._automatic(graph, count_of(count, "num_devices"))
        work = _Work(self, graph)
        slowest = sorted(work.units, key=lambda u: -u.us)[:_TOP]
        single = times.get("single") or work.costs.total_us + self.cost_model.part_us
        pieces = [Piece(cpu_devices(1)[0], [unit.node for unit in work.units])]
        whole = build_plan(work.graph, pieces, best.strategy, work.costs, self.cost_model, work.types)
        return PartitionAnalysis(
            recommended_strategy=best.strategy,
            estimated_speedup=single / max(best.total_latency_us, 1e-9),
            communication_bytes=best.total_comm_bytes,
            bottleneck_nodes=[u.node.name or u.node.outputs[0] for u in slowest],
            predicted_us=times,
            compute_us=work.costs.total_us,
            memory_bytes=whole.partitions[0].memory_bytes,
            splits_rows=work.split is not None,
            reason=work.reason,
        )

    # ------------------------------------------------------------------ about plans

    @staticmethod
    def get_stats(plan: PartitionPlan) -> PartitionStats:
        """Figures of a plan."""
        inside = cut = 0
        for part in plan.partitions:
            made = {name for node in part.graph.nodes for name in node.outputs}
            outside = {n for n in part.inputs if any(n in p.outputs for p in plan.partitions if p is not part)}
            for name in (n for node in part.graph.nodes for n in node.inputs):
                inside, cut = inside + (name in made), cut + (name in outside)
        return PartitionStats(
            nodes_per_partition=[len(p.nodes) for p in plan.partitions],
            edge_cut_ratio=cut / (inside + cut) if inside + cut else 0.0,
            compute_per_partition=[p.compute_us for p in plan.partitions],
            memory_per_partition=[p.memory_bytes for p in plan.partitions],
            total_comm_bytes=plan.total_comm_bytes,
            load_imbalance=plan.load_imbalance,
        )

    @staticmethod
    def validate(plan: PartitionPlan) -> list[str]:
        """What is wrong with a plan; empty when all is well."""
        problems: list[str] = []
        made = {info.name for info in plan.graph.inputs} | set(plan.graph.initializers)
        for part in plan.partitions:
            problems += [f"part {part.index}: {text}" for text in part.graph.validate()]
            problems += [
                f"part {part.index} reads {n!r}, which no part before it makes" for n in part.inputs if n not in made
            ]
            if plan.strategy is not PartitionStrategy.DATA_PARALLEL:
                made.update(part.outputs)
        if plan.strategy is PartitionStrategy.DATA_PARALLEL:
            made.update(*(part.outputs for part in plan.partitions))
        return problems + [f"no part makes output {i.name!r}" for i in plan.graph.outputs if i.name not in made]

    def estimate_execution_time(self, plan: PartitionPlan, rows: int | None = None) -> float:
        """Predicted microseconds of a request of so many rows, those of the plan by default."""
        return predict_us(plan, self.cost_model, rows)


class _Work:
    """What all strategies need to know of a graph."""

    def __init__(self, partitioner: GraphPartitioner, graph: Graph, *, whole: bool = False) -> None:
        expect(graph, Graph, "what is partitioned")
        problems = graph.validate()
        if problems:
            raise ValidationError(f"graph {graph.name!r} is not valid", problems)
        config = partitioner.config
        self.given = graph
        self.graph = graph.needed_for([info.name for info in graph.outputs])
        self.costs: GraphCosts = partitioner.cost_model.survey(self.graph, config)
        by_output: dict[str, Node] = {n.outputs[0]: n for n in self.graph.nodes if n.outputs}
        self.costs = self.costs._replace(order=[by_output[n.outputs[0]] for n in self.costs.order])
        self.units = units_of(self.graph, self.costs)
        infer_types(self.graph)
        self.types: Mapping[str, ValueType] = self.graph.types
        found = "the model is cut for whole requests" if whole else find_rows(self.graph, config.batch_inputs)
        self.split = found if isinstance(found, RowSplit) else None
        self.reason = found if isinstance(found, str) else ""

    @property
    def open_types(self) -> Mapping[str, ValueType]:
        """Types with the number of rows left open where requests are cut."""
        return self.types if self.split is None else self.split.types


def _as_measured(costs: GraphCosts, work: _Work, origin: Mapping[str, str]) -> GraphCosts:
    """Costs of shares of nodes: what was measured of the whole node, divided as the roofline divides it."""
    kinds = {n.outputs[0]: n.op_type for n in work.costs.order if n.outputs}
    us = dict(costs.us)
    for node in costs.order:
        name = node.outputs[0]
        whole = origin.get(name, "")
        if kinds.get(whole) == node.op_type and work.costs.roofline[whole] > 0:
            us[name] = work.costs.us[whole] * costs.roofline[name] / work.costs.roofline[whole]
    return costs._replace(us=us)


def _segments(graph: Graph, device: Mapping[str, int], devices: Sequence[DeviceSpec]) -> list[Piece]:
    """Nodes by device and by how many changes of device come before them: such pieces never wait for each other."""
    level: dict[str, int] = {}
    place: dict[str, int] = {}
    pieces: dict[tuple[int, int], Piece] = {}
    for node in graph.topological_sort():
        own = device[node.outputs[0]]
        at = 0
        for name in node.inputs:
            if name in level:
                at = max(at, level[name] + (place[name] != own))
        for name in node.outputs:
            level[name], place[name] = at, own
        pieces.setdefault((at, own), Piece(devices[own], [])).nodes.append(node)
    return [pieces[key] for key in sorted(pieces)]


def _refuse_memory(device: DeviceSpec, need: int, part: int) -> None:
    if device.memory_bytes and need > device.memory_bytes:
        raise MemoryLimitError(
            f"part {part} needs {need:,} bytes of weights and values; device {device.label!r} has "
            f"{device.memory_bytes:,}. Cut the model (MODEL_PARALLEL, PIPELINE_PARALLEL) or give more memory"
        )


@names_arguments
def auto_partition(
    graph: Graph, num_devices: int = 2, *, batch_size: int = 32, memory_bytes: int = 0, calibrate: bool = False
) -> PartitionPlan:
    """The plan that should be fastest on so many CPU devices; one part where several would not help.

    Args:
        graph: the model.
        num_devices: how many.
        batch_size: rows of a request, where the model leaves that open.
        memory_bytes: weights and values a device may hold; 0 for no limit.
        calibrate: measure the model on this machine first, instead of assuming a typical one.

    Example:
        >>> from pyflame_rt import Graph
        >>> g = Graph("g")
        >>> _ = g.add_input("x", [None, 4]), g.add_output("y", [None, 4])
        >>> _ = g.add_node("n", "Relu", ["x"], ["y"])
        >>> len(auto_partition(g, num_devices=4).partitions)
        1
    """
    devices = [
        DeviceSpec(DeviceType.CPU, i, memory_bytes) for i in range(count_of(num_devices, "num_devices"))
    ]  # fmt: skip
    partitioner = GraphPartitioner(PartitionConfig(devices=devices, batch_size=batch_size))
    if calibrate:
        partitioner.cost_model.calibrate(graph, batch_size=batch_size)
        partitioner.cost_model.calibrate_transfers()
    return partitioner.partition(graph)
