"""A batcher whose requests have priorities."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyflame_rt.batching.batcher import DynamicBatcher
from pyflame_rt.batching.requests import as_request
from pyflame_rt.graph.arguments import expect_whole

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from pyflame_rt.batching.requests import BatchFuture, InferenceRequest

__all__ = ["PriorityBatcher"]


class PriorityBatcher(DynamicBatcher):
    """A batcher whose requests have priorities.

    One of a higher priority goes before those of lower ones that came up to ``config.priority_rows`` rows a level
    earlier: all requests are run in the end, however many urgent ones come.

    Example:
        >>> import pyflame_rt
        >>> g = pyflame_rt.Graph("g")
        >>> _ = g.add_input("x", ["N"]), g.add_node("n", "Neg", ["x"], ["y"]), g.add_output("y", ["N"])
        >>> with PriorityBatcher(pyflame_rt.InferenceSession(g)) as batcher:
        ...     urgent, other = batcher.submit_priority({"x": [1]}, 10), batcher.submit_priority({"x": [2]}, 1)
        ...     urgent.result()["y"], other.result()["y"]
        (array([-1.], dtype=float32), array([-2.], dtype=float32))
    """

    def submit_priority(
        self,
        inputs: Mapping[str, Any] | InferenceRequest,
        priority: int,
        *,
        output_names: Sequence[str] | None = None,
        timeout_ms: float | None = None,
        caller: Hashable = None,
    ) -> BatchFuture:
        """Ask for a run, as :meth:`submit` does (which has priority 0); higher is sooner."""
        return self._submit(as_request(inputs, output_names, timeout_ms, caller), expect_whole(priority, "priority"))
