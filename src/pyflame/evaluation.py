"""Evaluate lazy values: find the work, find or make the executable for its structure, run it."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame import threads, watching
from pyflame.calls import inline_all
from pyflame.devices import Backend, chosen
from pyflame.doubles import HostFirst, split_off
from pyflame.lazy import Val, ancestors, modes
from pyflame.runtime_graph import to_graph
from pyflame.watching import labels_of
from pyflame_rt.backends.base import RunHooks
from pyflame_rt.compiler import compile as rt_compile
from pyflame_rt.graph.locks import new_lock, new_rlock
from pyflame_rt.options import OptLevel, SessionOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyflame.lazy import Expr
    from pyflame_rt.backends.base import Executable
    from pyflame_rt.graph import Graph

__all__ = ["EvaluationPlan", "cache_info", "clear_cache", "evaluate", "graphs", "plan_for"]

# So many executables are kept; the one used longest ago goes first.
MAX_PLANS = 512
_HOOKS = RunHooks()


class EvaluationPlan:
    """An executable for one structure: how its inputs and outputs are called."""

    __slots__ = ("_fast", "_order", "executable", "graph", "inputs", "native", "outputs")

    def __init__(self, executable: Executable, graph: Graph, native: bool) -> None:
        self.executable = executable
        self.graph = graph
        self.inputs = tuple(info.name for info in graph.inputs)
        self.outputs = tuple(info.name for info in graph.outputs)
        self.native = native
        self._fast: Any = None
        self._order: list[int] = []

    def run(self, arrays: Sequence[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
        """Outputs for arrays in the order of the inputs."""
        fast = self.executable.fast_path
        if fast is not None:
            if fast is not self._fast:
                self._fast, self._order = fast, [self.inputs.index(name) for name in fast.order]
            results = fast.on([arrays[i] for i in self._order])
            if results is not None:
                return results
        return self.run_long(arrays)

    def run_long(self, arrays: Sequence[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
        """The same, not on the fast path."""
        return self.executable.run(dict(zip(self.inputs, arrays, strict=True)), self.outputs, _HOOKS)


_plans: OrderedDict[tuple[Any, ...], EvaluationPlan] = OrderedDict()
_lock = new_lock()
# Held by whoever looks through a graph: contents that another thread gives to a value change its structure.
graphs = new_rlock()
_counts = {"hits": 0, "misses": 0}


def cache_info() -> dict[str, int]:
    """How often an executable was found (hits) or made (misses), and how many there are.

    Example:
        >>> sorted(cache_info())
        ['hits', 'misses', 'size']
    """
    return {**_counts, "size": len(_plans)}


def clear_cache() -> None:
    """Forget all executables."""
    with _lock:
        dropped = list(_plans.values())
        _plans.clear()
    for plan in dropped:
        _let_go(plan)


def _let_go(plan: EvaluationPlan) -> None:
    """Give back what an executable holds; another thread may be running it, and goes on."""
    plan.executable.let_go()


class Work:
    """What an evaluation has to do.

    Attributes:
        exprs: expressions in running order.
        leaves: values with contents that they read.
        outputs: values to keep.
        key: the structure; equal keys, equal executables.
    """

    __slots__ = ("exprs", "key", "leaves", "outputs")

    def __init__(self, roots: Sequence[Val], *, exact: bool = False) -> None:
        self.exprs = exprs = ancestors(roots)
        self.leaves: list[Val] = []
        wanted = {id(v): v for v in roots if v.array is None}
        numbers: dict[Expr | None, int] = {}
        places: dict[int, int] = {}
        key: list[int] = []
        for n, expr in enumerate(exprs):
            numbers[expr] = n
            key.append(expr.rule.number)
            for v in expr.inputs:
                if v is None or v.spec.known is not None:
                    continue
                if v.array is None:
                    key.append(numbers[v.expr] + (v.index << 32))
                    if v.handles and not exact:
                        wanted[id(v)] = v
                    continue
                place = places.setdefault(id(v), len(self.leaves))
                if place == len(self.leaves):
                    self.leaves.append(v)
                key.append(~place)
            if expr.outputs and not exact:
                for ref in expr.outputs:
                    sibling = ref()
                    if sibling is not None and sibling.handles and sibling.array is None:
                        wanted[id(sibling)] = sibling
        self.outputs = list(wanted.values())
        key.append(-1 << 62)
        key += [numbers[v.expr] + (v.index << 32) for v in self.outputs]
        self.key = tuple(key)


def plan_for(work: Work) -> EvaluationPlan:
    """The executable for a structure, made when it is new."""
    key = work.key if chosen.provider is None else (*work.key, chosen.provider, chosen.target)
    with _lock:
        plan = _plans.get(key)
        if plan is not None:
            _plans.move_to_end(key)
            _counts["hits"] += 1
            return plan
    plan = make_plan(to_graph(work.exprs, work.leaves, work.outputs), native=True)
    with _lock:
        _counts["misses"] += 1
        _plans[key] = plan
        dropped = _plans.popitem(last=False)[1] if len(_plans) > MAX_PLANS else None
    if dropped is not None:
        _let_go(dropped)
    return plan


def make_plan(graph: Graph, *, native: bool) -> EvaluationPlan:
    """Compile a graph for the device that was chosen; ``native`` says with which engine on the CPU."""
    provider = chosen.provider or ("CPUExecutionProvider" if native else "ReferenceExecutionProvider")
    # Graphs of tensors are small, made anew all the time, and replayed by the names of their inputs and outputs.
    options = SessionOptions(
        device=chosen.target or "cpu", optimization_level=OptLevel.NONE, num_threads=threads.wanted()
    )

    def compiled(part: Graph, by_host: bool) -> Executable:
        return rt_compile(part, "ReferenceExecutionProvider" if by_host else provider, options).executable

    parts = split_off(graph) if chosen.backend is Backend.SIMULATOR else None
    executable = compiled(graph, False) if parts is None else HostFirst(*parts, compiled)
    return EvaluationPlan(executable, graph, native)


def evaluate(roots: Sequence[Val]) -> None:
    """Give every root its contents, and with them the values on the way that tensors refer to."""
    if modes.tracer is not None:
        modes.tracer.refuse_evaluation(roots)
    if not [v for v in roots if v.array is None]:
        return
    with graphs:
        pending = [v for v in roots if v.array is None]
        if not pending:
            return
        for v in [v for v in pending if v.mates]:
            pending += [m for ref in v.mates if (m := ref()) is not None and m.handles and m.array is None]
        if modes.anomaly:
            _settle_all(*_watched(pending))
            return
        work = Work(pending)
        plan, arrays = plan_for(work), [v.array for v in work.leaves]
        labels = None if watching.active is None else labels_of(work, modes.spans, scoped=False)
    active = watching.active
    if active is None or labels is None:
        _settle_all(work, plan.run(arrays))  # type: ignore[arg-type]
    else:
        _settle_all(work, active.run(plan, arrays, labels, "evaluation"))


def _watched(roots: Sequence[Val]) -> tuple[Work, Sequence[Any]]:
    """What a search for the first NaN found on its way, when there is none."""
    from pyflame.autograd.anomaly import run_watching

    inline_all(roots)
    work = Work(roots)
    return work, run_watching(work)


def _settle_all(work: Work, results: Sequence[Any]) -> None:
    with graphs:
        for v, result in zip(work.outputs, results, strict=True):
            if v.array is None:  # else another thread was quicker
                settle(v, result)


def settle(v: Val, result: Any) -> None:
    """Give a value its contents, and let go of what made it unless a gradient needs that."""
    array = result
    if type(array) is not np.ndarray or not array.flags.c_contiguous:
        array = np.asarray(result, order="C")  # the interpreter may hand out stretched views
    kind = v.spec.dtype.numpy
    if array.dtype is not kind and array.dtype != kind:
        array = array.astype(kind)
    v.array = array
    v.mates = ()
    if not v.needs_grad or v.leaf is not None or v.spent:
        v.expr = None
