"""Evaluate lazy values: find the work, find or make the executable for its structure, run it."""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections import deque
from itertools import repeat
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame import instrumentation, threads
from pyflame.calls import inline_all
from pyflame.devices import Backend, chosen
from pyflame.doubles import HostFirst, split_off
from pyflame.instrumentation import labels_of
from pyflame.lazy import Val, ancestors, modes, next_serial, unusual
from pyflame.runtime_graph import to_graph
from pyflame.unread import unread
from pyflame_rt.compiler import compile as rt_compile
from pyflame_rt.executable import RunHooks
from pyflame_rt.graph.addresses import address_of
from pyflame_rt.graph.locks import new_lock, new_rlock
from pyflame_rt.options import OptLevel, SessionOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyflame.lazy import Expr
    from pyflame_rt.executable import Executable, FastPath
    from pyflame_rt.graph import Graph

__all__ = ["EvaluationPlan", "cache_info", "clear_cache", "evaluate", "graphs", "plan_for"]

# So many executables are kept; one that was not used for long goes first.
MAX_PLANS = 512
# So many evaluations back, and up to twice as many, it is known what was recorded before them.
MAX_LOOKS = 64
_HOOKS = RunHooks()
_NO_TABLE = struct.Struct("").pack


class EvaluationPlan:
    """An executable for one structure: how its inputs and outputs are called.

    Attributes:
        used: it was run since it was last its turn to go.
    """

    __slots__ = ("_fast", "_order", "_table", "executable", "graph", "inputs", "native", "outputs", "used")

    def __init__(self, executable: Executable, graph: Graph, native: bool) -> None:
        self.executable = executable
        self.graph = graph
        self.inputs = tuple(info.name for info in graph.inputs)
        self.outputs = tuple(info.name for info in graph.outputs)
        self.native = native
        self.used = False
        self._fast: FastPath | None = None
        self._order: list[int] | None = None
        self._table: Callable[..., bytes] = _NO_TABLE

    def run(self, leaves: Sequence[Val]) -> tuple[list[Any], list[int]]:
        """Outputs for the contents of values in the order of the inputs, and where they are as far as that is known."""
        fast = self.executable.fast_path
        if fast is not None:
            if fast is not self._fast:
                self._bind(fast)
            places = [v.address or located(v) for v in leaves]
            if self._order is not None:
                places = [places[i] for i in self._order]
            outputs, results = [], []
            for make in fast.makers:
                array = make()
                outputs.append(array)
                results.append(address_of(array))
            if fast.run(self._table(*places, *results)):
                return outputs, results
        return self.run_long([v.array for v in leaves]), []

    def _bind(self, fast: FastPath) -> None:
        self._order = None if fast.order == self.inputs else [self.inputs.index(name) for name in fast.order]
        self._table = struct.Struct(f"{len(self.inputs) + len(self.outputs)}q").pack
        self._fast = fast

    def run_long(self, arrays: Sequence[Any]) -> list[Any]:
        """The same for arrays, not on the fast path."""
        return self.executable.run(dict(zip(self.inputs, arrays, strict=True)), self.outputs, _HOOKS)


def located(v: Val) -> int:
    """Where the contents of a value are; native code reads them row by row."""
    with _lock:  # two threads must not put two copies in its place: the address has to be that of the one kept
        array = v.array
        assert array is not None
        flags = array.flags
        if not flags.c_contiguous or not flags.aligned or array.dtype != v.spec.numpy:
            array = v.array = np.require(array, v.spec.numpy, ["C", "A"])
        v.address = address_of(array)
        return v.address


_plans: dict[Any, EvaluationPlan] = {}
_lock = new_lock()
# Held by whoever looks through a graph: contents that another thread gives to a value change its structure.
graphs = new_rlock()
_counts = {"hits": 0, "misses": 0}
_looks: list[int] = []


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
    """What an evaluation has to do; whoever makes it holds :data:`graphs`.

    Attributes:
        leaves: values with contents that its expressions read.
        outputs: values to keep.
        key: the structure; equal keys, equal executables.
    """

    __slots__ = ("_order", "_roots", "key", "leaves", "outputs")

    def __init__(self, roots: Sequence[Val], looks: Sequence[int] = (), *, exact: bool = False) -> None:
        """Find it.

        Args:
            roots: values to compute.
            looks: what the latest evaluations had as the next expression's number, in order. What an expression
                reads that was recorded before a look, and itself after it, is kept: a loop that updates its state
                before it looks at a result would compute that state from its beginning each time.
            exact: keep these alone, not what tensors refer to on the way.
        """
        latest = looks[-1] if looks else 0
        self._roots = roots
        self._order: list[Expr] | None = None
        key: list[int] = []
        leaves: list[Val] = []
        found: list[Any] = []  # expressions, as they are met
        wanted: dict[Val, int] = {}
        walk = object()
        for v in roots:
            if v.array is None:
                maker: Any = v.expr
                if maker.walk is not walk:
                    maker.walk = walk
                    maker.mark = len(found)
                    found.append(maker)
                wanted[v] = maker.mark + (v.index << 32)
        for expr in found:
            key.append(expr.rule.number)
            for v in expr.inputs:
                if v is None:
                    continue
                if v.array is None:
                    maker = v.expr
                    if maker.walk is not walk:
                        maker.walk = walk
                        maker.mark = len(found)
                        found.append(maker)
                    number = maker.mark
                    if v.index:
                        number += v.index << 32
                    key.append(number)
                    if (v.handles and not exact) or (maker.serial < latest and _crosses(v, maker, expr, looks)):
                        wanted[v] = number
                elif v.spec.known is None:
                    if v.walk is not walk:
                        v.walk = walk
                        v.mark = ~len(leaves)
                        leaves.append(v)
                    key.append(v.mark)
            if expr.outputs and not exact:
                for ref in expr.outputs:
                    sibling = ref()
                    if sibling is not None and sibling.handles and sibling.array is None:
                        wanted[sibling] = expr.mark + (sibling.index << 32)
        key.append(-1 << 62)
        key += wanted.values()
        self.key = tuple(key)
        self.leaves = leaves
        self.outputs = list(wanted)

    @property
    def exprs(self) -> list[Expr]:
        """Expressions in running order, as of when they are first asked for."""
        if self._order is None:
            self._order = ancestors(self._roots)
        return self._order


def _crosses(v: Val, maker: Expr, reader: Expr, looks: Sequence[int]) -> bool:
    """Whether a value is from before an evaluation and its reader from after it.

    What a gradient may flow through is no state of a loop: it is computed again in one go with its gradient.
    """
    return (not v.needs_grad or v.leaf is not None) and bisect_right(looks, maker.serial) < bisect_right(
        looks, reader.serial
    )


def plan_for(work: Work) -> EvaluationPlan:
    """The executable for a structure, made when it is new; :data:`graphs` is held."""
    key = work.key if chosen.provider is None else (*work.key, chosen.provider, chosen.target)
    plan = _plans.get(key)
    if plan is not None:
        plan.used = True
        _counts["hits"] += 1
        return plan
    plan = make_plan(to_graph(work.exprs, work.leaves, work.outputs), native=True)
    with _lock:
        _counts["misses"] += 1
        dropped = _oldest() if len(_plans) >= MAX_PLANS else None  # first, or it could be the new one
        _plans[key] = plan
    if dropped is not None:
        _let_go(dropped)
    return plan


def _oldest() -> EvaluationPlan:
    """Take out an executable that was not used since it was last its turn to go."""
    while True:
        key = next(iter(_plans))
        plan = _plans.pop(key)
        if not plan.used:
            return plan
        plan.used = False
        _plans[key] = plan


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
    if unusual and modes.tracer is not None:
        modes.tracer.refuse_evaluation(roots)
    labels = None
    graphs.acquire()  # not by "with", which takes twice as long
    try:
        for v in roots:
            if v.mates:
                roots = [*roots, *[m for ref in v.mates if (m := ref()) is not None and m.handles]]
        if unusual and modes.anomaly:
            _search(roots)
            return
        work = Work(roots, _looks)  # a class called by keywords takes longer by a sixth
        _looks.append(next_serial())
        if len(_looks) > 2 * MAX_LOOKS:
            del _looks[:MAX_LOOKS]
        if not work.outputs:
            return
        plan = plan_for(work)
        active = instrumentation.active
        if active is not None:
            labels = labels_of(work, modes.spans, scoped=False)
    finally:
        graphs.release()
    if active is None or labels is None:
        results, places = plan.run(work.leaves)
    else:
        results, places = active.run(plan, [v.array for v in work.leaves], labels, "evaluation"), []
    graphs.acquire()
    try:
        for v, result, place in zip(work.outputs, results, places or repeat(0)):  # noqa: B905 - zeros without end
            settle(v, result, place)
    finally:
        graphs.release()
    if unread.held and unread.enough():
        evaluate(unread.take())


def _search(roots: Sequence[Val]) -> None:
    """Evaluate node by node, in search of the first NaN."""
    from pyflame.autograd.anomaly import run_watching

    inline_all([v for v in roots if v.array is None])
    work = Work(roots)
    deque(map(settle, work.outputs, run_watching(work) if work.outputs else ()), 0)


def settle(v: Val, result: Any, place: int = 0) -> None:
    """Give a value its contents, and let go of what made it unless a gradient needs that.

    Args:
        v: the value.
        result: its contents.
        place: where native code wrote them into an array as it should be; 0 where something else made them.
    """
    if v.array is not None:
        return  # another thread was quicker
    array, kind = result, v.spec.numpy
    if (not place and (type(array) is not np.ndarray or not array.flags.c_contiguous)) or array.dtype is not kind:
        array, place = np.asarray(result, kind, order="C"), 0  # the interpreter may hand out stretched views
    v.array = array
    v.address = place
    v.mates = ()
    if not v.needs_grad or (v.leaf is not None and v.leaf.requires_grad) or v.spent:
        v.expr = None
