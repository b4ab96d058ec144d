"""The cpu backend: graphs as native plans, one per set of input shapes."""

from __future__ import annotations

import logging
import os
import threading
from collections import OrderedDict
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pyflame_rt.backends.base import Executable, FastPath, Placement, RunHooks
from pyflame_rt.backends.cpu.driver.entry import prepare_entry
from pyflame_rt.backends.cpu.driver.native_driver import prepare_driver
from pyflame_rt.backends.cpu.faults import FAULTS, note_fault
from pyflame_rt.backends.cpu.graph.placement import place_nodes
from pyflame_rt.backends.cpu.jit.compiler import compiling
from pyflame_rt.backends.cpu.lower.kernel_choice import choosing
from pyflame_rt.backends.cpu.lower.lowering import NotNative
from pyflame_rt.backends.cpu.memory.arena import OutOfRange
from pyflame_rt.backends.cpu.memory.constants import sharing
from pyflame_rt.backends.cpu.memory.donation import donation_of
from pyflame_rt.backends.cpu.memory.ledger import Ledger, drawing
from pyflame_rt.backends.cpu.memory.limits import limit_plan, needed, watching
from pyflame_rt.backends.cpu.run.dynamic_stages import HostNode, Stages, Unplannable, own
from pyflame_rt.backends.cpu.run.fast_path import fast_path
from pyflame_rt.backends.cpu.run.fork_safety import call_native, forget_after_fork, forked, handing_over
from pyflame_rt.backends.cpu.run.machine_peaks import machine_peaks
from pyflame_rt.backends.cpu.run.parallel_branches import branch_out
from pyflame_rt.backends.cpu.run.plan import Plan, Retired, make_plan
from pyflame_rt.backends.cpu.run.plan_template import PLANNED_FIRST, Templates, open_axes, trace_plan
from pyflame_rt.backends.cpu.run.threads import available_threads, use_threads
from pyflame_rt.backends.cpu.run.tuning import Tuned, tune
from pyflame_rt.cache.answers import answering
from pyflame_rt.cache.store import use_store
from pyflame_rt.graph import DType, Graph
from pyflame_rt.graph.budget import EAGER, Budget, budgeted
from pyflame_rt.graph.cached import cached_property
from pyflame_rt.graph.errors import InputError
from pyflame_rt.ops.core.evaluate import Context, Program
from pyflame_rt.opt.specialized_graph import ShapesUnknown

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["CpuBackend", "CpuExecutable"]

MAX_PLANS = 32
# Plans of so many shapes are kept on disk: with ever new lengths, writing them would cost more than it saves.
MAX_STORED = 8
log = logging.getLogger("pyflame_rt")


class CpuBackend:
    """Whole graphs as native code on the CPU."""

    name = "cpu"

    def compile(self, graph: Graph, options: Any = None) -> CpuExecutable:
        """Prepare a graph; plans are made when the first inputs of a shape come."""
        threads = int(getattr(options, "num_threads", 0) or 0) or available_threads()
        budget = Budget(int(getattr(options, "memory_limit", 0) or 0), model=True)
        if getattr(options, "immutable_model", False):
            weights = sum(tensor.size_bytes for tensor in graph.initializers.values())
            budget = replace(budget, in_files=weights > budget.allowed(weights))
        checked = getattr(options, "checked", False) or os.environ.get("PYFLAME_CHECKED", "0") not in ("", "0")
        plans = getattr(options, "plan_cache_size", MAX_PLANS)
        executable = CpuExecutable(graph, threads, plans, budget=budget, checked=checked)
        cache = getattr(options, "cache", None)
        executable.cache = None if cache is None else Path(cache).absolute()  # whatever the directory is later
        executable.strict = bool(getattr(options, "strict_math_mode", False))
        fast = getattr(options, "fast_math", False) or os.environ.get("PYFLAME_FAST_MATH", "0") not in ("", "0")
        executable.fast = bool(fast)
        executable.tune = bool(getattr(options, "tune", False))
        executable.quick = bool(getattr(options, "quick_start", True))
        if getattr(options, "execution_mode", "sequential") == "parallel":
            executable.branches = min(threads, int(getattr(options, "inter_op_num_threads", 0) or threads))
        return executable


class _Recent(NamedTuple):
    names: Sequence[str]
    shapes: list[tuple[str, Any, tuple[int, ...]]]
    plan: Plan


class CpuExecutable(Executable):
    """A graph with its plans. Safe for concurrent runs: each takes an arena of its own."""

    fresh_outputs = True
    times_steps = True

    def __init__(
        self, graph: Graph, threads: int, max_plans: int = MAX_PLANS, *, budget: Budget = EAGER, checked: bool = False
    ) -> None:
        self.graph = graph
        self.outputs = tuple(info.name for info in graph.outputs)
        self.max_plans = max(max_plans, 1)
        self.threads = threads
        self.budget = budget
        self.checked = checked
        self.branches = 1  # of the graph that may run at the same time
        if graph.origin is None or not graph.origin.checked:
            _ = self.reference  # says what is wrong with attributes
        self._required = [info.name for info in graph.required_inputs]
        self._plans: OrderedDict[Any, Plan | None] = OrderedDict()
        self._lock = threading.Lock()
        self._turns: dict[Any, threading.RLock] = {}  # of those who want a plan that is being made
        self._last: Plan | None = None
        self._why = ""
        self.cache: Any = None  # folder for what is compiled, where not the usual one
        self.strict = False  # sums are computed as they are written
        self.fast = False  # outputs of convolutions may depend on their neighbours' inputs
        self.tune = False  # time the kernels that can do a step before its first run
        self.tune_again = False
        self.tuned: list[Tuned] = []
        self.quick = True  # the first runs may use kernels in their quick form
        self._folded: dict[str, list[Any]] = {}  # what nodes gave that depend on weights alone
        self._templates: dict[Any, Templates] = {}  # by names and types of inputs
        self._recent: _Recent | None = None
        self._stages = self._staging()
        self.fast_path: FastPath | None = None
        self._donors: tuple[tuple[str, int], ...] = ()
        self.ledger = Ledger()
        forget_after_fork(self)

    def donate(self, pairs: Sequence[tuple[str, int]]) -> None:
        """Say before the first run which output (by number) may later be written into which input (by name)."""
        self._donors = tuple(pairs)

    @property
    def donated(self) -> Mapping[int, int]:
        """Outputs that :attr:`fast_path` may be given the array of an input for; both by number."""
        recent = self._recent
        donation = None if recent is None else recent.plan.donation
        return {} if donation is None else donation.pairs

    @cached_property
    def reference(self) -> Program:
        """The graph for running node by node."""
        return Program(self.graph)

    def _staging(self) -> Stages:
        budget, checked = self.budget, self.checked

        def body(graph: Graph) -> CpuExecutable:
            made = CpuExecutable(graph, self.threads, self.max_plans, budget=budget, checked=checked)
            made.ledger = self.ledger
            return made

        return Stages(self.graph, self.threads, self.max_plans, body, budget=budget, checked=checked)

    def forget(self) -> None:
        """Drop what belongs to the parent process, without touching it."""
        self._plans, self._last, self._lock, self._turns = OrderedDict(), None, threading.Lock(), {}
        self._recent, self._stages = None, self._staging()
        self.fast_path, self._templates = None, {}

    def run(self, feeds: Mapping[str, Any], output_names: Sequence[str], hooks: RunHooks) -> list[Any]:
        """Outputs, then taps."""
        recent = self._recent
        if recent is not None and hooks.observe is None and not hooks.taps and output_names == recent.names:
            shapes = [(name, array.dtype, array.shape) for name, array in feeds.items() if array is not None]
            if shapes == recent.shapes and not (recent.plan.parallel and forked()):
                with suppress(Retired, OutOfRange):  # the longer way says what is out of range
                    return recent.plan.run(feeds, hooks)
        with budgeted(self.budget):
            return self._run_slowly(feeds, output_names, hooks)

    def _run_slowly(self, feeds: Mapping[str, Any], output_names: Sequence[str], hooks: RunHooks) -> list[Any]:
        wanted = [*output_names, *hooks.taps]
        given = {name: value for name, value in feeds.items() if value is not None}
        if hooks.observe is not None or any(name not in given for name in self._required):
            return self._interpret(given, wanted, hooks)
        names = tuple(dict.fromkeys(wanted if hooks.only_needed else (*self.outputs, *hooks.taps, *output_names)))
        run = partial(self._run_native, given, names, hooks)
        try:
            results = call_native(run) if forked() else run()
        except OutOfRange as error:
            self._interpret(given, wanted, hooks)  # says at which node, which number and what its limits are
            raise InputError(str(error)) from error
        if results is None:
            self._recent = self.fast_path = None
            return self._interpret(given, wanted, hooks)
        if names == self.outputs and tuple(output_names) == names:
            self._remember(given, output_names)
        if len(wanted) == len(names) and tuple(wanted) == names:
            return results
        by_name = dict(zip(names, results, strict=True))
        return [by_name[name] for name in wanted]

    def _remember(self, feeds: Mapping[str, Any], output_names: Sequence[str]) -> None:
        """The next call is most often like this one: keep what it compares with."""
        if not self._plannable(feeds):
            return
        shapes = [(name, array.dtype, array.shape) for name, array in feeds.items()]
        plan = self._plans.get((self.outputs, *shapes))
        if plan is not None:
            self._recent = _Recent(output_names, shapes, plan)
            with use_store(self.cache), compiling(quick=self.quick):
                self.fast_path = None if plan.parallel and handing_over() else fast_path(plan, shapes)

    def _run_native(self, feeds: Mapping[str, Any], names: tuple[str, ...], hooks: RunHooks) -> list[Any] | None:
        """Outputs of one plan, else of stages; None when neither can be made."""
        with (
            use_store(self.cache),
            choosing(strict=self.strict, fast=self.fast, checked=self.checked),
            compiling(quick=self.quick, ahead=not self.checked),
            drawing(self.ledger),
        ):
            results = self._run_plan(feeds, names, hooks) if self._plannable(feeds) else None
            if results is not None:
                return results
            try:
                return self._stages.run(feeds, names, hooks)
            except Unplannable as error:
                # The answer is still right, only slower, and we say so.
                self._why = str(error)
                log.warning("graph %r runs node by node: %s", self.graph.name, self._why)
                return None

    def _run_plan(self, feeds: Mapping[str, Any], names: tuple[str, ...], hooks: RunHooks) -> list[Any] | None:
        """Outputs of the plan for these shapes; None when they cannot be planned."""
        while True:
            with ExitStack() as first:
                plan = self._plan(feeds, names, hooks, first)
                if plan is None:
                    return None
                try:
                    return plan.run(feeds, hooks)
                except Retired:
                    if hooks.check is not None:
                        hooks.check()  # a closed session says so

    def _plannable(self, feeds: Mapping[str, Any]) -> bool:
        """Whether every input is an array of numbers."""
        return all(isinstance(v, np.ndarray) and v.dtype != object for v in feeds.values())

    def _plan(
        self,
        feeds: Mapping[str, np.ndarray[Any, Any]],
        names: tuple[str, ...],
        hooks: RunHooks,
        first: ExitStack,
    ) -> Plan | None:
        """The plan for these inputs; where it must be made, an answer is under way as long as ``first`` is open."""
        key = (names, *((name, array.dtype, array.shape) for name, array in feeds.items()))
        found = self._found(key)
        if found is not None:
            return found[0]
        first.enter_context(answering())
        with self._lock:
            turn = self._turns.setdefault(key, threading.RLock())
        with turn:
            try:
                found = self._found(key)  # others may have come at the same time: one of them makes it
                return self._planned(key, feeds, names, hooks) if found is None else found[0]
            finally:
                self._turns.pop(key, None)

    def _found(self, key: Any) -> tuple[Plan | None] | None:
        """What is known of a key: its plan, or that there can be none."""
        with self._lock:
            if key not in self._plans:
                return None
            self._plans.move_to_end(key)
            return (self._plans[key],)

    def _planned(
        self, key: Any, feeds: Mapping[str, np.ndarray[Any, Any]], names: tuple[str, ...], hooks: RunHooks
    ) -> Plan | None:
        types = {name: (DType.of(array.dtype), array.shape) for name, array in feeds.items()}
        try:
            graph = self.graph if set(self.outputs) <= set(names) else self.graph.needed_for(names)
            # Primitives divide their work among threads when they are made.
            make = partial(self._make, graph, types, names)
            with use_threads(self.threads), sharing(self):
                prepare_driver()
                prepare_entry()
                if self.tune:
                    with compiling(quick=False):
                        self.tuned += tune(make, feeds, hooks, self.threads, again=self.tune_again)
                plan = make()
        except ShapesUnknown as error:
            plan, self._why = None, str(error)
        except NotNative as error:
            plan, self._why = None, str(error)
        except FAULTS as error:
            plan, self._why = None, note_fault(f"graph {self.graph.name!r}", error, checked=self.checked)
        with self._lock:
            self._plans[key] = plan
            self._last = plan or self._last
            dropped = [self._plans.popitem(last=False)[1]] if len(self._plans) > self.max_plans else []
            limit, in_files = self.budget.limit, self.budget.in_files
            while limit and len(self._plans) > 1 and needed(self._plans.values(), in_files=in_files) > limit:
                dropped.append(self._plans.popitem(last=False)[1])
        for old in dropped:
            if old is not None:
                old.retire()
        return plan

    def _make(self, graph: Graph, types: Mapping[str, Any], names: tuple[str, ...]) -> Plan:
        plan = None if self.tune else self._from_template(graph, types, names)
        if plan is None:
            few = len(self._plans) < MAX_STORED
            stored = not self.checked and not self.budget.in_files  # plans of the store have their weights in memory
            plan = make_plan(graph, types, self.threads, names, self._folded, stored=stored, keep=few)
        plan.checked = self.checked
        if self._donors and names == self.outputs and not self.checked:
            plan.donation = donation_of(plan.lowered, self._donors)
        if self.branches > 1 and not self.checked:
            branch_out(plan, self.branches)
        if self.budget is not EAGER:
            limit_plan(plan, self.budget, self.graph.name)
        return plan

    def _from_template(self, graph: Graph, types: Mapping[str, Any], names: tuple[str, ...]) -> Plan | None:
        """A plan made from that of other sizes, once a few have been met."""
        with self._lock:
            kinds = [(name, dtype, len(shape)) for name, (dtype, shape) in types.items()]
            templates = self._templates.setdefault((names, *kinds), Templates())
            plans = [(key, plan) for key, plan in self._plans.items() if key[0] == names and plan is not None]
        with templates.lock:
            found = templates.find(types, self.threads)
            if found is not None or not templates.wanted:
                return found
            known = [({n: (DType.of(d), s) for n, d, s in key[1:]}, plan) for key, plan in plans]
            known = [(t, p) for t, p in known if [(n, d, len(s)) for n, (d, s) in t.items()] == kinds]
            symbols = open_axes(graph, types, [t for t, _ in known]) if len(known) >= PLANNED_FIRST else []
            if not symbols:
                return None
            template = trace_plan(graph, types, symbols, self.threads, names, self._folded)
            templates.add(template, known)
            return templates.find(types, self.threads)

    def _interpret(self, feeds: Mapping[str, Any], wanted: Sequence[str], hooks: RunHooks) -> list[Any]:
        """Node by node, where a size depends on data or every node is to be seen."""
        outputs = {info.name for info in self.graph.outputs}
        keep = [name for name in wanted if name not in outputs]
        graph = self.graph.needed_for(wanted) if hooks.only_needed else self.graph
        program = Program(graph, keep) if keep or hooks.only_needed else self.reference
        context = Context.of("numpy")
        context.check, context.observe = watching(hooks, self.budget.limit)
        values = program.run_values([feeds.get(info.name) for info in self.graph.inputs], context)
        unknown = [name for name in wanted if name not in program.slots]
        if unknown:
            raise InputError(f"the model has no value {unknown[0]!r}")
        return [own(values[program.slots[name]]) for name in wanted]

    def placements(self) -> list[Placement]:
        """Where each node runs, as the latest plans have it."""
        plans, hosts = self._latest()
        if plans is None:
            reason = self._why or "no inputs have come yet, so nothing is planned"
            ran = bool(self._why)
            return [Placement(n.name, n.full_name, "reference", reason, n.outputs, ran) for n in self.graph.nodes]
        return place_nodes(self.graph, [*(fact for plan in plans for fact in plan.facts()), *(h.fact for h in hosts)])

    def peaks(self) -> dict[str, float]:
        """What this machine reaches at most with as many threads."""
        return machine_peaks(self.threads)

    def _latest(self) -> tuple[list[Plan] | None, list[HostNode]]:
        """The plans of the latest run, and what ran between them."""
        path = self._stages.last
        if path:
            return [s.plan for s in path if s.plan is not None], [host for s in path for host in s.hosts]
        return (None if self._last is None else [self._last]), []

    def memory(self) -> dict[str, int]:
        """Bytes in the pool: arenas of plans, outputs that callers keep, weights packed for this graph."""
        with self._lock:
            plans = [p for p in self._plans.values() if p is not None]
        plans += self._stages.plans
        held = self.ledger
        return {
            "arenas": held.arenas.used,
            "output_bytes": held.outputs.used,
            "packed_bytes": held.packed.used,
            "plans": len(plans),
        }

    def let_go(self) -> None:
        """Free every plan as soon as no run is under way; others may go on using the executable, which plans anew."""
        self.close(cancel=False)

    def close(self, *, cancel: bool = True) -> None:
        """Free every plan; ``cancel`` stops runs under way, which else end as they would."""
        with self._lock:
            plans, self._plans, self._last = list(self._plans.values()), OrderedDict(), None
            self._recent, self.fast_path, self._templates = None, None, {}
        self._stages.close(cancel=cancel)
        for plan in plans:
            if plan is not None:
                plan.retire(cancel=cancel)
