"""A plan: native steps for one set of input shapes, with everything that runs can share."""

from __future__ import annotations

import threading
from dataclasses import field
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.backends.cpu.graph.cost_model import step_facts
from pyflame_rt.backends.cpu.graph.op_support import checked_ops, keeps
from pyflame_rt.backends.cpu.lower import load_lowerings
from pyflame_rt.backends.cpu.lower.kernel_choice import choices_key, current_choices
from pyflame_rt.backends.cpu.lower.lowering import DnnStep, HostStep, KernelStep, Lowered, Lowering
from pyflame_rt.backends.cpu.memory.arena import Arena
from pyflame_rt.backends.cpu.memory.buffer_views import Place
from pyflame_rt.backends.cpu.memory.constants import packing_beside
from pyflame_rt.backends.cpu.memory.ledger import Ledger, current_ledger
from pyflame_rt.backends.cpu.memory.limits import check_values
from pyflame_rt.backends.cpu.memory.offsets import assign_offsets
from pyflame_rt.backends.cpu.memory.output_pool import makers, room_of
from pyflame_rt.backends.cpu.run.fork_safety import handing_over
from pyflame_rt.backends.cpu.run.plan_store import StoredPlan, keep_plan, plan_key, stored_plan
from pyflame_rt.backends.cpu.run.small_work import HANDED_OVER, brief
from pyflame_rt.backends.cpu.run.step_timing import StepClock, report
from pyflame_rt.backends.cpu.run.threads import set_threads
from pyflame_rt.graph.records import dataclass
from pyflame_rt.ops.core.evaluate import where
from pyflame_rt.opt.rules.attention_steps import attention_steps
from pyflame_rt.opt.rules.exact_integers import exact_float_product
from pyflame_rt.opt.rules.gather_matmul import gather_matmul
from pyflame_rt.opt.rules.quantized_products import quantized_products
from pyflame_rt.opt.specialize import BackendTarget, specialize
from pyflame_rt.opt.specialized_graph import EarlierStages, ShapesUnknown, SpecializedGraph
from pyflame_rt.registry import replaced_ops

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyflame_rt.backends.base import RunHooks, Timeline
    from pyflame_rt.backends.cpu.graph.cost_model import StepFacts
    from pyflame_rt.backends.cpu.memory.donation import Donation
    from pyflame_rt.graph import DType, Graph, Node
    from pyflame_rt.ops.core.registry import Op
    from pyflame_rt.opt.specialized_graph import SpecializedNode

__all__ = ["Plan", "Retired", "lower_graph", "make_plan", "plan_of", "specialise"]

load_lowerings()


class Retired(Exception):
    """The plan was given up between finding it and running it."""


@dataclass(slots=True)
class Plan:
    """Steps, buffers and the pool of arenas of one set of shapes."""

    lowered: Lowered
    arena_bytes: int
    threads: int
    outputs: list[tuple[tuple[int, ...], np.dtype[Any]]]
    free: list[Arena] = field(default_factory=list)
    busy: list[Arena] = field(default_factory=list)
    active: list[int] = field(default_factory=list)  # one item for each run on the fast path
    made: list[Arena] = field(default_factory=list)
    retired: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)
    sources: Sequence[SpecializedNode] = ()
    types: Mapping[str, tuple[DType, tuple[int, ...]]] = field(default_factory=dict)
    known: list[StepFacts] | None = None
    kept: Callable[[], None] | None = None  # waits until the plan was written to the cache
    recall: Callable[[], tuple[Sequence[SpecializedNode], Any]] | None = (
        None  # gives sources and types of a stored plan
    )
    slots: threading.Semaphore | None = None
    checked: bool = False
    parallel: bool = True  # whether any step may begin a parallel region
    donation: Donation | None = None
    ledger: Ledger = field(default_factory=current_ledger)  # whose memory its arenas and outputs are

    def run(self, feeds: Mapping[str, Any], hooks: RunHooks) -> list[np.ndarray[Any, Any]]:
        """Outputs in fresh arrays."""
        inputs = [np.asarray(feeds[name], order="C") for name in self.lowered.inputs]
        outputs = self._new_outputs()
        if self.slots is not None:
            return self._run_in_turn(self.slots, inputs, outputs, hooks)
        self._run(inputs, outputs, hooks)
        return outputs

    def _run_in_turn(self, slots: threading.Semaphore, inputs: Any, outputs: Any, hooks: RunHooks) -> Any:
        """A memory limit lets only so many runs go at once."""
        while not slots.acquire(timeout=0.01):
            if hooks.check is not None:
                hooks.check()
        try:
            self._run(inputs, outputs, hooks)
        finally:
            slots.release()
        return outputs

    def _run(self, inputs: Any, outputs: Any, hooks: RunHooks) -> None:
        arena = self._take()
        before = set_threads(self.threads)
        try:
            if hooks.timeline is not None:
                self._run_timed(arena, inputs, outputs, hooks, hooks.timeline)
            else:
                arena.run(inputs, outputs, hooks.check, urgent=hooks.urgent)
        finally:
            set_threads(before)
            self._give_back(arena)

    def _run_timed(self, arena: Arena, inputs: Any, outputs: Any, hooks: RunHooks, timeline: Timeline) -> None:
        with StepClock(arena) as clock:
            arena.run(inputs, outputs, hooks.check, urgent=hooks.urgent, clock=clock)
        facts = self.facts()
        with self.lock:
            report(clock, facts, timeline)

    def step_times(self, feeds: Mapping[str, Any], hooks: RunHooks) -> list[int]:
        """Nanoseconds of every step in one run."""
        inputs = [np.asarray(feeds[name], order="C") for name in self.lowered.inputs]
        outputs = self._new_outputs()
        arena = self._take()
        before = set_threads(self.threads)
        try:
            with StepClock(arena) as clock:
                arena.run(inputs, outputs, hooks.check, urgent=hooks.urgent, clock=clock)
        finally:
            set_threads(before)
            self._give_back(arena)
        times = [0] * len(self.lowered.steps)
        for number, _, begin, end in clock.spans():
            times[number] += end - begin
        return times

    def facts(self) -> list[StepFacts]:
        """What each step is and costs; worked out when first asked for."""
        with self.lock:
            if self.known is None:
                if self.recall is not None:
                    self.sources, self.types = self.recall()
                self.known = step_facts(self.lowered, self.sources, self.types)
            return self.known

    def _take(self) -> Arena:
        with self.lock:
            if self.retired:
                raise Retired
            try:
                arena = self.free.pop()
            except IndexError:  # the fast path takes arenas without the lock
                arena = self._new_arena()
                self.made.append(arena)
            self.busy.append(arena)
            return arena

    def _new_outputs(self) -> list[np.ndarray[Any, Any]]:
        return [make() for make in makers(self.outputs, self.ledger.outputs)]

    def _new_arena(self) -> Arena:
        if not self.checked:
            commit = -1 if self.donation is None else self.donation.commit
            return Arena(self.lowered, self.arena_bytes, self.threads, commit, self.ledger.arenas)
        from pyflame_rt.backends.cpu.memory.checked_arena import CheckedArena

        return CheckedArena(self.lowered, self.threads)

    def _give_back(self, arena: Arena) -> None:
        with self.lock:
            self.busy.remove(arena)
            self.free.append(arena)
        if self.retired:
            self.settle()

    def retire(self, *, cancel: bool = False) -> None:
        """Give the plan up: free it now, or when the last run under way ends (``cancel`` stops those)."""
        with self.lock:
            self.retired = True
            if cancel:
                for arena in self.made:
                    arena.cancel[0] = 1
        self.settle()

    def settle(self) -> None:
        """Free what a plan that was given up holds, unless a run is still under way."""
        with self.lock:
            if self.retired and not self.busy and not self.active:
                self._release()

    def _release(self) -> None:
        if self.kept is not None:
            self.kept()
        while self.free:
            self.free.pop().close()
        self.made.clear()
        for step in self.lowered.steps:
            if isinstance(step, DnnStep):
                step.primitive.close()

    @property
    def held_bytes(self) -> int:
        """Bytes of its arenas."""
        return self.arena_bytes * len(self.made)

    @property
    def output_bytes(self) -> int:
        """Bytes of the outputs of one run, as the pool gives them."""
        return room_of(self.outputs)

    @property
    def input_bytes(self) -> int:
        """Bytes of the inputs of one run."""
        return sum(buffer.nbytes for buffer in self.lowered.buffers if buffer.place is Place.INPUT)

    def limit_runs(self, count: int) -> None:
        """Let no more than ``count`` runs go at once: others wait."""
        self.slots = threading.Semaphore(max(count, 1))


def make_plan(
    graph: Graph,
    feeds: Mapping[str, tuple[DType, tuple[int, ...]]],
    threads: int,
    wanted: Sequence[str],
    folded: dict[str, list[Any]] | None = None,
    *,
    stored: bool = True,
    keep: bool = True,
) -> Plan:
    """Plan a graph for given input types.

    Args:
        graph: normalised.
        feeds: element type and sizes of each input.
        threads: how many each step may use.
        wanted: values to hand out.
        folded: for :func:`pyflame_rt.opt.specialize.specialize`.
        stored: take the plan from the cache if it is there.
        keep: put it there if it is not.
    """
    chosen = choices_key(threads)
    key = plan_key(graph, feeds, threads, wanted) if stored and chosen is not None else None
    key = None if key is None else f"{key} {chosen}"
    found = None if key is None else stored_plan(key)
    if found is not None:

        def recall() -> tuple[Sequence[SpecializedNode], Any]:
            concrete, again = specialise(graph, feeds, threads, wanted)
            if again is not None:
                again.retire()
            return concrete.steps, concrete.types

        plan = plan_of(found.lowered, threads, found.arena_bytes)
        plan.recall = recall
        return plan
    concrete, plan = specialise(graph, feeds, threads, wanted, folded=folded)
    if plan is None:
        blocker = concrete.blockers[0]
        raise ShapesUnknown(f"{where(blocker.step.node)}: {blocker.reason}")
    if key is not None and keep:
        plan.kept = keep_plan(key, StoredPlan(plan.lowered, plan.arena_bytes))
    return plan


def plan_of(lowered: Lowered, threads: int, size: int = -1) -> Plan:
    """The plan of what was lowered; without its size, places in the arena are given out."""
    size = assign_offsets(lowered.buffers) if size < 0 else size
    if threads > 1 and handing_over() and brief(lowered.steps, HANDED_OVER):
        threads = 1  # the thread that forked may then run it itself
    outputs = [(view.shape, view.dtype.numpy) for view in lowered.outputs]
    return Plan(lowered, size, threads, outputs, parallel=threads > 1 and any(map(_splits, lowered.steps)))


# Forms of composites that no kernel takes: found out once in a process.
_refused: set[Any] = set()
MAX_REFUSED = 4096


def specialise(
    graph: Graph,
    feeds: Mapping[str, tuple[DType, tuple[int, ...]]],
    threads: int,
    wanted: Sequence[str],
    before: EarlierStages | None = None,
    folded: dict[str, list[Any]] | None = None,
) -> tuple[SpecializedGraph, Plan | None]:
    """What is known of a graph for these types, and its plan; composites that no kernel takes are opened.

    Without ``before`` there is a plan only for the whole graph, with it for what can be planned.
    """
    concrete, lowered = lower_graph(graph, feeds, threads, wanted, before, folded, _refused)
    if lowered is None:
        return concrete, None
    made = plan_of(lowered, threads)
    made.sources, made.types = concrete.steps, concrete.types
    return concrete, made


def lower_graph(
    graph: Graph,
    feeds: Mapping[str, tuple[DType, tuple[int, ...]]],
    threads: int,
    wanted: Sequence[str],
    before: EarlierStages | None,
    folded: dict[str, list[Any]] | None,
    refused: set[Any],
) -> tuple[SpecializedGraph, Lowered | None]:
    """Like :func:`specialise`, without places in memory; ``refused`` are forms no kernel takes, and is added to."""
    while True:
        choices = current_choices(threads)
        concrete = specialize(graph, feeds, _target(refused, strict=choices.strict), wanted, before, folded)
        if (before is None and concrete.blockers) or (before is not None and not concrete.outputs):
            return concrete, None
        check_values(concrete, feeds)
        lowering = Lowering(concrete, threads, choices)
        with packing_beside():
            lowered = lowering.run()
        fresh = lowering.refused - refused
        if not fresh:
            break
        for step in lowered.steps:
            if isinstance(step, DnnStep):
                step.primitive.close()
        if len(refused) > MAX_REFUSED:
            refused.clear()
        refused.update(fresh)
    note_lives(lowered)
    drop_unread(lowered)
    return concrete, lowered


# Rules for one set of sizes; `strict_math_mode` leaves out those that change the last bits.
_RULES = (quantized_products, exact_float_product, gather_matmul, attention_steps)


def _target(refused: set[Any], *, strict: bool) -> BackendTarget:
    """What the engine takes of a graph, but for the forms that a kernel refused as they lie in memory."""

    def whole(node: Node, op: Op, attributes: Mapping[str, Any], made: SpecializedGraph) -> bool:
        return keeps(node, op, attributes, made) and not (refused and made.form(node, op, attributes) in refused)

    rules = () if replaced_ops() else tuple(rule for rule in _RULES if rule.exact or not strict)
    return BackendTarget(whole, checked_ops(), rules=rules)


def _splits(step: KernelStep | DnnStep | HostStep) -> bool:
    """Whether several threads may work on a step."""
    match step:
        case KernelStep(rows=rows, grain=grain):
            return rows > grain
        case DnnStep(primitive=primitive):
            return primitive.threads > 1
        case HostStep():
            return False


def drop_unread(lowered: Lowered) -> None:
    """Let go of constants no step reads: those that were packed."""
    read = {id(view.buffer) for view in lowered.outputs}
    lowered.buffers = [b for b in lowered.buffers if b.place is not Place.CONSTANT or b.first >= 0 or id(b) in read]


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
