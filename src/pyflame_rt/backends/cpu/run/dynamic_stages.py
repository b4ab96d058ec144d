"""Graphs with sizes that depend on data: native plans around the steps that decide them.

A stage plans all that is known, runs it, and then settles what blocks the rest: a parameter such as a shape that the
model computes becomes part of the next stage's key, and what only running can tell (`NonZero`, `Loop`, strings) is run.
Stages are kept, so that the next run with equal sizes finds them.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from contextlib import ExitStack
from dataclasses import field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pyflame_rt.backends.cpu.faults import FAULTS, note_fault
from pyflame_rt.backends.cpu.graph.cost_model import StepFacts
from pyflame_rt.backends.cpu.lower.lowering import NotNative
from pyflame_rt.backends.cpu.memory.limits import limit_plan
from pyflame_rt.backends.cpu.run.control_flow import ControlContext, bind_constants
from pyflame_rt.backends.cpu.run.plan import Plan, Retired, specialise
from pyflame_rt.backends.cpu.run.threads import use_threads
from pyflame_rt.cache.answers import answering
from pyflame_rt.graph import DType, Graph, Tensor
from pyflame_rt.graph.budget import EAGER, Budget
from pyflame_rt.graph.errors import DTypeMismatchError, InputError, ShapeMismatchError
from pyflame_rt.graph.graph import node_subgraphs
from pyflame_rt.graph.records import dataclass
from pyflame_rt.ops.core.evaluate import Context, run_node
from pyflame_rt.opt.specialized_graph import Blocker, EarlierStages, SpecializedGraph

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pyflame_rt.backends.base import RunHooks
    from pyflame_rt.opt.specialized_graph import SpecializedNode

__all__ = ["HostNode", "Stage", "Stages", "Unplannable", "own"]

# A parameter with more different contents than this, most of them new, is no parameter: its reader runs on the host.
MAX_VARIANTS = 8
# Stages kept for each plan the session may keep.
STAGES_PER_PLAN = 8


class Unplannable(Exception):
    """A fault of the engine, not of the model."""


class HostNode(NamedTuple):
    """A node that runs between plans."""

    step: SpecializedNode
    control: ControlContext | None
    fact: StepFacts


@dataclass(eq=False)
class Stage:
    """A plan, what runs on the host after it, and the stages that may follow."""

    concrete: SpecializedGraph
    plan: Plan | None
    names: tuple[str, ...] = ()
    hosts: list[HostNode] = field(default_factory=list)
    contents: tuple[str, ...] = ()
    rest: Graph | None = None
    before: EarlierStages = field(default_factory=EarlierStages)
    live: frozenset[str] = frozenset()
    following: dict[Any, Stage] = field(default_factory=dict)
    parent: tuple[Stage, Any] | None = None
    hits: int = 0
    misses: int = 0

    def close(self, *, cancel: bool) -> None:
        """Give up the plan and what control flow holds; ``cancel`` stops runs under way."""
        if self.plan is not None:
            self.plan.retire(cancel=cancel)
        for host in self.hosts:
            if host.control is not None:
                host.control.close(cancel=cancel)


class Stages:
    """The staged form of one graph."""

    def __init__(
        self,
        graph: Graph,
        threads: int,
        limit: int,
        body: Callable[[Graph], Any],
        *,
        budget: Budget = EAGER,
        checked: bool = False,
    ) -> None:
        self.graph, self.threads, self.limit = graph, threads, max(limit, 1) * STAGES_PER_PLAN
        self.body, self.budget, self.checked = body, budget, checked
        self.by_host: set[str] = set()
        self.last: list[Stage] = []
        self._roots: dict[Any, Stage] = {}
        self._used: OrderedDict[Stage, None] = OrderedDict()
        self._lock = threading.RLock()

    def run(self, feeds: Mapping[str, Any], names: Sequence[str], hooks: RunHooks) -> list[Any]:
        """The values called ``names``, in arrays the caller may keep."""
        while True:
            try:
                return self._run(feeds, names, hooks)
            except Retired:
                if hooks.check is not None:
                    hooks.check()  # a closed session says so

    def _run(self, feeds: Mapping[str, Any], names: Sequence[str], hooks: RunHooks) -> list[Any]:
        values: dict[str, Any] = dict(feeds)
        given = set(values)
        with ExitStack() as first:
            stage = self._root(values, tuple(names), first)
            path = [stage]
            while True:
                self._run_plan(stage, values, hooks)
                for host in stage.hosts:
                    given.update(self._run_host(stage, host, values, hooks))
                if stage.rest is None:
                    break
                values = {name: value for name, value in values.items() if name in stage.live}
                stage = self._next(stage, values, first)
                path.append(stage)
        with self._lock:
            self.last = path
            for used in reversed(path):
                if used in self._used:
                    self._used.move_to_end(used)
        results = [values[name] for name in stage.names]
        return [own(r) if name in given else r for name, r in zip(stage.names, results, strict=True)]

    def _run_plan(self, stage: Stage, values: dict[str, Any], hooks: RunHooks) -> None:
        if stage.plan is not None:
            results = stage.plan.run(values, hooks)
            values.update(zip(stage.concrete.outputs, results, strict=True))

    def _run_host(self, stage: Stage, host: HostNode, values: dict[str, Any], hooks: RunHooks) -> list[str]:
        step, constants = host.step, stage.concrete.constants
        arrays = [values[n] if n in values else constants[n] if n else None for n in step.node.inputs]
        if hooks.check is not None:
            hooks.check()
        context = Context.of("numpy") if host.control is None else host.control.fresh(hooks.timeline)
        context.check = hooks.check
        begin = time.perf_counter_ns()
        results = run_node(step.node, step.op, dict(step.attributes), arrays, context, step.at)
        if hooks.timeline is not None:
            end = time.perf_counter_ns()
            host.fact.measured(end - begin)
            hooks.timeline.step(host.fact, begin, end)
        made = [(n, r) for n, r in zip(step.node.outputs, results, strict=False) if n]
        values.update(made)
        return [name for name, _ in made]

    # ------------------------------------------------------------------ finding and making stages

    def _root(self, values: Mapping[str, Any], names: tuple[str, ...], first: ExitStack) -> Stage:
        key = (names, _key(values, ()))
        with self._lock:
            found = self._roots.get(key)
            if found is None:
                outputs = {info.name for info in self.graph.outputs}
                graph = self.graph if outputs <= set(names) else self.graph.needed_for(names)
                first.enter_context(answering())
                found = self._roots[key] = self._make(graph, values, names, EarlierStages(), None)
            return found

    def _next(self, stage: Stage, values: Mapping[str, Any], first: ExitStack) -> Stage:
        with self._lock:
            key = _key(values, stage.contents)
            found = stage.following.get(key)
            if found is not None:
                stage.hits += 1
                return found
            stage.misses += 1
            if stage.contents and stage.misses > MAX_VARIANTS and stage.misses > stage.hits:
                self._give_up_contents(stage)
                raise Retired  # once more, with what the contents decided left to the host
            assert stage.rest is not None
            first.enter_context(answering())
            found = self._make(stage.rest, values, stage.names, stage.before, (stage, key))
            stage.following[key] = found
            return found

    def _make(
        self, graph: Graph, values: Mapping[str, Any], names: tuple[str, ...], before: EarlierStages, parent: Any
    ) -> Stage:
        contents = () if parent is None else parent[0].contents
        plain = {n: v for n, v in values.items() if isinstance(v, np.ndarray) and v.dtype != object}
        types = {name: (DType.of(array.dtype), array.shape) for name, array in plain.items()}
        known = {name: plain[name].copy() for name in contents}
        opaque = [name for name in values if name not in plain]
        here = EarlierStages(known, opaque, before.origins, before.places, before.count, staged=True)
        try:
            with use_threads(self.threads):  # primitives divide their work when they are made
                concrete, plan = specialise(graph, types, self.threads, names, here)
        except NotNative as error:
            raise Unplannable(str(error)) from error
        except FAULTS as error:
            raise Unplannable(note_fault(f"graph {self.graph.name!r}", error, checked=self.checked)) from error
        except (ShapeMismatchError, DTypeMismatchError, InputError) as error:
            # A fault of the model or its inputs: the interpreter meets it too, and names the node.
            raise Unplannable(str(error)) from error
        if plan is not None:
            plan.checked = self.checked
        if plan is not None and self.budget is not EAGER:
            limit_plan(plan, self.budget, self.graph.name)
        stage = Stage(concrete, plan, tuple(concrete.same.get(n, n) for n in names), parent=parent)
        self._settle(stage)
        self._used[stage] = None
        while len(self._used) > self.limit:
            self._drop(next(iter(self._used)))
        return stage

    def _settle(self, stage: Stage) -> None:
        """Decide which blockers run on the host and which contents the next stage is made for."""
        concrete = stage.concrete
        running = [b for b in concrete.blockers if not b.needs or b.step.origin in self.by_host]
        waiting = [b for b in concrete.blockers if b not in running]
        stage.contents = tuple(dict.fromkeys(n for b in waiting for n in b.needs))
        stage.hosts = [self._host(b, concrete) for b in running]
        done = {b.step.node.outputs for b in running}
        deferred = [(node, origin) for node, origin in concrete.deferred if node.outputs not in done]
        if not deferred:
            stage.rest = None
            return
        rest = Graph(self.graph.name)
        rest.nodes = [node for node, _ in deferred]
        read = {n for node in rest.nodes for n in node.inputs if n}
        rest.initializers = {n: Tensor(a) for n, a in concrete.constants.items() if n in read}
        rest.outputs = []
        origins = {node.name: origin for node, origin in deferred}
        stage.rest = rest
        stage.before = EarlierStages(origins=origins, places=concrete.places, count=concrete.count)
        stage.live = frozenset(read | set(stage.names))

    def _host(self, blocker: Blocker, concrete: SpecializedGraph) -> HostNode:
        step = blocker.step
        control = next(node_subgraphs(step.node), None) is not None
        label = "body, iterated by the host" if control else step.node.full_name
        kind = "llvm" if control else "reference"
        fact = StepFacts(label, kind, (step.node.name,), 0, {}, 0, "", reason=blocker.reason)
        if not control:
            return HostNode(step, None, fact)
        return HostNode(bind_constants(step, concrete.constants), ControlContext.over(self.body), fact)

    def _give_up_contents(self, stage: Stage) -> None:
        self.by_host.update(b.step.origin for b in stage.concrete.blockers if b.needs)
        self._drop(stage)

    def _drop(self, stage: Stage) -> None:
        """Forget a stage and all that follow it."""
        if stage.parent is not None:
            stage.parent[0].following.pop(stage.parent[1], None)
        else:
            self._roots = {key: root for key, root in self._roots.items() if root is not stage}
        for one in list(_tree(stage)):
            self._used.pop(one, None)
            one.close(cancel=False)  # another thread may be running it

    # ------------------------------------------------------------------ accounts

    @property
    def plans(self) -> list[Plan]:
        """Plans of every stage."""
        with self._lock:
            return [stage.plan for stage in self._used if stage.plan is not None]

    def close(self, *, cancel: bool = True) -> None:
        """Free everything; ``cancel`` stops runs under way."""
        with self._lock:
            stages, self._used, self._roots, self.last = list(self._used), OrderedDict(), {}, []
        for stage in stages:
            stage.close(cancel=cancel)


def _tree(stage: Stage) -> Iterator[Stage]:
    yield stage
    for other in stage.following.values():
        yield from _tree(other)


def _key(values: Mapping[str, Any], contents: Sequence[str]) -> Any:
    parts = tuple(
        (name, v.dtype, v.shape) if isinstance(v, np.ndarray) and v.dtype != object else (name, type(v).__name__)
        for name, v in values.items()
    )
    return parts, tuple(values[name].tobytes() for name in contents)


def own(value: Any) -> Any:
    """A value the caller may keep and change: the host may hand out an input or a weight itself."""
    if isinstance(value, list):
        return [own(item) for item in value]
    return value.copy() if isinstance(value, np.ndarray) else value
