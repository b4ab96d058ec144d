"""A plan: native steps for one set of input shapes, with everything that runs can share."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pyflame_rt.backends.cpu.plan import lower_dnn, lower_loops, lower_views
from pyflame_rt.backends.cpu.plan.arena import Arena
from pyflame_rt.backends.cpu.plan.claims import keeps
from pyflame_rt.backends.cpu.plan.concrete import concretize
from pyflame_rt.backends.cpu.plan.lower import DnnStep, HostStep, KernelStep, Lowered, Lowering
from pyflame_rt.backends.cpu.plan.memory import assign_offsets
from pyflame_rt.graph import DType, Graph

__all__ = ["Plan", "make_plan"]

# Declaring the lowerings is what importing these modules is for.
_FAMILIES = (lower_dnn, lower_loops, lower_views)


@dataclass(slots=True)
class Plan:
    """Steps, buffers and the pool of arenas of one set of shapes."""

    lowered: Lowered
    arena_bytes: int
    threads: int
    outputs: list[tuple[tuple[int, ...], np.dtype[Any]]]
    pool: list[Arena]
    lock: threading.Lock

    def run(self, feeds: Mapping[str, Any], check: Any = None) -> list[np.ndarray[Any, Any]]:
        """Outputs in fresh arrays."""
        inputs = [np.asarray(feeds[name], order="C") for name in self.lowered.inputs]
        outputs = [np.empty(shape, dtype) for shape, dtype in self.outputs]
        arena = self._take()
        try:
            arena.run(inputs, outputs, check)
        finally:
            with self.lock:
                self.pool.append(arena)
        return outputs

    def _take(self) -> Arena:
        with self.lock:
            if self.pool:
                return self.pool.pop()
        return Arena(self.lowered, self.arena_bytes, self.threads)

    def close(self) -> None:
        """Free native objects; runs under way keep theirs until they end."""
        with self.lock:
            arenas, self.pool = self.pool, []
        for arena in arenas:
            arena.close()
        for step in self.lowered.steps:
            if isinstance(step, DnnStep):
                step.primitive.close()


def make_plan(
    graph: Graph, feeds: Mapping[str, tuple[DType, tuple[int, ...]]], threads: int, extra: Sequence[str] = ()
) -> Plan:
    """Plan a graph for given input types; ``extra`` values are handed out after the outputs."""
    concrete = concretize(graph, feeds, keeps, extra)
    lowered = Lowering(concrete).run()
    note_lives(lowered)
    size = assign_offsets(lowered.buffers)
    outputs = [(view.shape, view.dtype.numpy) for view in lowered.outputs]
    return Plan(lowered, size, threads, outputs, [], threading.Lock())


def note_lives(lowered: Lowered) -> None:
    """From which step to which each buffer must keep its contents."""
    for i, step in enumerate(lowered.steps):
        match step:
            case KernelStep(views=views):
                touched = [v.buffer for v in views]
            case DnnStep(args=args, scratch=scratch):
                touched = [v.buffer for v in args.values()] + ([] if scratch is None else [scratch])
            case HostStep(inputs=inputs, outputs=outputs):
                touched = [v.buffer for v in (*inputs, *outputs) if v is not None]
        for buffer in touched:
            buffer.touch(i)
