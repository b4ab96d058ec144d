"""Predicted time of a plan: a list schedule of micro-batches over devices and links."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyflame_rt.partition.config import PartitionStrategy

if TYPE_CHECKING:
    from pyflame_rt.partition.cost import CostModel
    from pyflame_rt.partition.plan import PartitionPlan

__all__ = ["micro_batches", "predict_us", "row_bounds"]


def row_bounds(rows: int, pieces: int) -> list[tuple[int, int]]:
    """Nearly equal pieces of so many rows, none empty.

    Example:
        >>> row_bounds(7, 3), row_bounds(1, 4)
        ([(0, 3), (3, 5), (5, 7)], [(0, 1)])
    """
    count = max(1, min(rows, pieces))
    small, more = divmod(rows, count)
    bounds, start = [], 0
    for i in range(count):
        end = start + small + (i < more)
        bounds.append((start, end))
        start = end
    return bounds


def micro_batches(rows: int, size: int) -> list[tuple[int, int]]:
    """Pieces of ``size`` rows, the last one smaller where they do not divide.

    Example:
        >>> micro_batches(5, 2), micro_batches(0, 2)
        ([(0, 2), (2, 4), (4, 5)], [(0, 0)])
    """
    return [(i, min(i + size, rows)) for i in range(0, rows, size)] or [(0, rows)]


def jobs_of(plan: PartitionPlan, rows: int) -> list[tuple[int, int]]:
    """Which rows go through the plan together."""
    if plan.split is None:
        return [(0, rows)]
    if plan.strategy is PartitionStrategy.DATA_PARALLEL:
        return row_bounds(rows, len(plan.partitions))
    return micro_batches(rows, plan.micro_batch_size) if plan.micro_batch_size else [(0, rows)]


def predict_us(plan: PartitionPlan, model: CostModel, rows: int | None = None) -> float:
    """Microseconds of a request of so many rows, those of the plan by default."""
    total = plan.batch_size if rows is None else rows
    jobs = jobs_of(plan, total)
    free: dict[str, float] = {}
    end = 0.0
    for number, (first, last) in enumerate(jobs):
        share = (last - first) / max(plan.batch_size, 1) if plan.split is not None else 1.0
        if plan.strategy is PartitionStrategy.DATA_PARALLEL:
            part = plan.partitions[number % len(plan.partitions)]
            finish = free.get(part.device.label, 0.0) + model.part_us + part.compute_us * share
            free[part.device.label] = finish
            end = max(end, finish)
            continue
        end = max(end, _pass(plan, model, share, free))
    return end


def _pass(plan: PartitionPlan, model: CostModel, share: float, free: dict[str, float]) -> float:
    """When one piece of a request has gone through all parts."""
    arrives = [0.0] * len(plan.partitions)
    coming: dict[int, list[tuple[int, float]]] = {}
    for c in plan.communications:
        cost = model.estimate_comm_cost(int(c.num_bytes * share), c.hops)
        coming.setdefault(c.target, []).append((c.source, cost))
    inside = _local_edges(plan)
    done = [0.0] * len(plan.partitions)
    for part in plan.partitions:
        i = part.index
        arrives[i] = max([done[s] + cost for s, cost in coming.get(i, [])] + [done[s] for s in inside[i]], default=0.0)
        start = max(arrives[i], free.get(part.device.label, 0.0))
        done[i] = start + model.part_us + part.compute_us * share
        free[part.device.label] = done[i]
    return max(done, default=0.0)


def _local_edges(plan: PartitionPlan) -> list[set[int]]:
    """Parts that each part reads on its own device."""
    maker = {name: p for p in plan.partitions for name in p.outputs}
    return [
        {maker[n].index for n in p.inputs if n in maker and maker[n].device.label == p.device.label}
        for p in plan.partitions
    ]
