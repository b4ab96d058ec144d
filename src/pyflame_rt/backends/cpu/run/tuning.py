"""Time the kernels that can do each product and convolution of a graph, and keep the fastest for this machine."""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import field
from typing import TYPE_CHECKING, Any

from pyflame_rt.backends.base import RunHooks
from pyflame_rt.backends.cpu.lower.kernel_choice import measuring
from pyflame_rt.backends.cpu.run.tuned_choices import keep_ways, measured_ways
from pyflame_rt.graph.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyflame_rt.backends.cpu.run.plan import Plan

__all__ = ["Tuned", "tune"]

ROUNDS = 9
SECONDS = 2.0  # of runs for each way, after the first three
_Times = dict[tuple[str, ...], float]
CLEARLY = 0.97  # the rule of thumb stays unless another way takes less than so much of its time


@dataclass(slots=True)
class Tuned:
    """One case that was measured.

    Attributes:
        case: operators and sizes.
        way: the kernel that was chosen.
        seconds: time of each that could do it.
    """

    case: str
    way: str
    seconds: dict[str, float] = field(default_factory=dict)


def tune(
    make: Callable[[], Plan], feeds: Mapping[str, Any], hooks: RunHooks, threads: int, *, again: bool
) -> list[Tuned]:
    """Measure the cases of a graph that were not measured before, or all of them ``again``; the results are kept.

    Args:
        make: plans the graph, under the choices in force.
        feeds: inputs to run it with.
        hooks: of the run that asks for it.
        threads: threads of a run.
        again: forget earlier measurements of these cases.
    """
    quiet = RunHooks(check=hooks.check, urgent=hooks.urgent)
    known = {} if again else measured_ways(threads)
    seconds: dict[str, dict[str, float]] = defaultdict(dict)
    rules: dict[str, str] = {}
    ways = [""]
    while ways:
        with measuring(ways.pop(0)):
            plan = make()
        try:
            fresh = {k: c for k, c in plan.lowered.cases.items() if k not in known and len(c.ways) > 1}
            if not rules:
                rules = {key: case.ways[0] for key, case in fresh.items()}
                ways = sorted({way for case in fresh.values() for way in case.ways})
            times = _node_times(plan, feeds, quiet) if fresh else {}
            for key, case in fresh.items():
                took = sum(_seconds_at(place, times) for place in case.places) / len(case.places)
                seconds[key][case.way] = min(took, seconds[key].get(case.way, took))
        finally:
            plan.retire()
    found = [Tuned(case, _best(took, rules.get(case, "")), took) for case, took in seconds.items()]
    keep_ways(threads, {tuned.case: tuned.way for tuned in found})
    return found


def _best(seconds: Mapping[str, float], rule: str) -> str:
    best = min(seconds, key=lambda way: seconds[way])
    return best if rule not in seconds or seconds[best] < CLEARLY * seconds[rule] else rule


def _seconds_at(place: tuple[str, ...], times: _Times) -> float:
    """Of all steps for some of the nodes of a place: one, or one after the other."""
    return sum(took for nodes, took in times.items() if not set(place).isdisjoint(nodes))


def _node_times(plan: Plan, feeds: Mapping[str, Any], hooks: RunHooks) -> _Times:
    """Least seconds of the steps for each set of nodes, reorders included."""
    plan.run(feeds, hooks)
    least: list[int] = []
    end = time.perf_counter() + SECONDS
    for k in range(ROUNDS):
        if k >= 3 and time.perf_counter() > end:
            break
        times = plan.step_times(feeds, hooks)
        least = times if not least else [min(a, b) for a, b in zip(least, times, strict=True)]
    result: _Times = defaultdict(float)
    for step, took in zip(plan.lowered.steps, least, strict=True):
        result[step.nodes] += took / 1e9
    return result
