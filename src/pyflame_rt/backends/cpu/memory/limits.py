"""The memory limit of a session, and what watches a run that goes node by node."""

from __future__ import annotations

import mmap
from math import prod
from typing import TYPE_CHECKING, Any

from pyflame_rt.backends.cpu.memory.buffer_views import Place
from pyflame_rt.graph.budget import Budget, check_memory
from pyflame_rt.graph.errors import MemoryLimitError
from pyflame_rt.graph.pages import root_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pyflame_rt.backends.base import RunHooks
    from pyflame_rt.backends.cpu.run.plan import Plan
    from pyflame_rt.graph import DType, Node
    from pyflame_rt.opt.specialized_graph import SpecializedGraph

__all__ = ["check_values", "limit_plan", "needed", "watching"]


def check_values(concrete: SpecializedGraph, feeds: Mapping[str, tuple[DType, tuple[int, ...]]]) -> None:
    """Refuse a graph with a value that the budget does not allow, before anything is laid out for it."""
    given = sum(array.nbytes for array in concrete.constants.values())
    given += sum(prod(shape) * dtype.numpy.itemsize for dtype, shape in feeds.values())
    for step in concrete.steps:
        for name in step.node.outputs:
            dtype, shape = concrete.types.get(name, (None, ()))
            if dtype is not None and all(type(size) is int for size in shape):  # not a size that is being traced
                node = f"node {step.origin!r} ({step.node.full_name})"
                check_memory(f"{node}: an output of shape {list(shape)}", prod(shape) * dtype.numpy.itemsize, given)


def limit_plan(plan: Plan, budget: Budget, model: str) -> None:
    """Refuse a plan that needs more than the budget allows; concurrent runs wait rather than exceed a set limit."""
    weights, outputs = needed([plan], in_files=budget.in_files) - plan.arena_bytes, plan.output_bytes
    limit = budget.allowed(weights + plan.input_bytes)
    fixed, each = weights, plan.arena_bytes + outputs
    if fixed + each > limit and (budget.limit or each > limit):
        plan.retire()
        raise MemoryLimitError(
            f"model {model!r} needs {fixed + each} bytes for inputs of these shapes (weights {weights}, intermediate "
            f"values {plan.arena_bytes}, outputs {outputs}), {budget.why()} {limit}"
        )
    if budget.limit:
        plan.limit_runs((limit - fixed) // max(each, 1))


def needed(plans: Iterable[Plan | None], *, in_files: bool = False) -> int:
    """Bytes of weights and of one arena of each plan; weights that plans share are counted once.

    Args:
        plans: None stands for a plan that cannot be made.
        in_files: leave out weights in mapped files.
    """
    there = [plan for plan in plans if plan is not None]
    weights = {
        buffer.array.ctypes.data: buffer.nbytes
        for plan in there
        for buffer in plan.lowered.buffers
        if buffer.place is Place.CONSTANT
        and buffer.first >= 0  # read by a step
        and not (in_files and isinstance(root_of(buffer.array), mmap.mmap))
    }
    return sum(weights.values()) + sum(plan.arena_bytes for plan in there)


def watching(hooks: RunHooks, limit: int) -> tuple[Callable[[], None] | None, Callable[..., None] | None]:
    """What is called before and after each node when the graph runs node by node."""
    before = [hooks.check, None if hooks.timeline is None else hooks.timeline.check]
    after = [
        hooks.observe,
        None if hooks.timeline is None else hooks.timeline.observe,
        _limiter(limit) if limit else None,
    ]
    return _all_of(before), _all_of(after)


def _all_of(calls: Sequence[Callable[..., None] | None]) -> Callable[..., None] | None:
    there = [call for call in calls if call is not None]
    if len(there) < 2:
        return there[0] if there else None

    def call_all(*args: Any) -> None:
        for call in there:
            call(*args)

    return call_all


def _limiter(limit: int) -> Callable[..., None]:
    def observe(node: Node, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        del inputs
        size = sum(int(getattr(array, "nbytes", 0)) for array in outputs)
        if size > limit:
            raise MemoryLimitError(
                f"node {node.name!r} ({node.full_name}) made {size} bytes, memory_limit allows {limit}"
            )

    return observe
