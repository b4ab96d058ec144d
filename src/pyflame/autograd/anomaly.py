"""Find the operator that made the first NaN."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame.evaluation import make_plan
from pyflame.runtime_graph import to_graph
from pyflame_rt.executable import RunHooks

if TYPE_CHECKING:
    from pyflame.evaluation import Work

__all__ = ["AnomalyError", "run_watching"]


class AnomalyError(RuntimeError):
    """An operator made NaN from numbers."""


def run_watching(work: Work) -> list[Any]:
    """Run node by node, and stop at the first NaN that did not come in."""
    graph = to_graph(work.exprs, work.leaves, work.outputs)
    notes = {node.name: expr.note for node, expr in zip(graph.nodes, work.exprs, strict=True)}

    def observe(node: Any, inputs: Any, outputs: Any) -> None:
        if any(_nans(v) for v in inputs):
            return
        for out in outputs:
            bad = _nans(out)
            if bad:
                called = notes.get(node.name)
                at = f"\ncalled at:\n{called}" if called else ""
                size = np.asarray(out).size
                raise AnomalyError(
                    f"operator {node.full_name} made the first NaN: {bad} of {size} elements, its inputs had none{at}"
                )

    plan = make_plan(graph, native=False)
    feeds = dict(zip(plan.inputs, [v.array for v in work.leaves], strict=True))
    return plan.executable.run(feeds, plan.outputs, RunHooks(observe=observe))


def _nans(value: Any) -> int:
    if value is None or not hasattr(value, "dtype") or value.dtype.kind not in "fV":
        return 0
    return int(np.isnan(np.asarray(value, np.float64)).sum())
