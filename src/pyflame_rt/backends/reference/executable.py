"""Run a graph node by node with the meaning its operators give themselves."""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import TYPE_CHECKING, Any

from emberharmony import library as find_library
from pyflame_rt.backends.base import Executable, Placement, RunHooks
from pyflame_rt.graph.budget import EAGER, Budget, budgeted
from pyflame_rt.graph.locks import new_lock
from pyflame_rt.ops.core.evaluate import Context, Program, to_host, to_library

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyflame_rt.graph import Graph

__all__ = ["ReferenceBackend", "ReferenceExecutable"]


class ReferenceBackend:
    """Interpreter on one array library.

    Example:
        >>> ReferenceBackend("numpy").name
        'reference[numpy]'
    """

    def __init__(self, library: str = "numpy") -> None:
        self.library = library
        self.name = f"reference[{library}]"

    def compile(self, graph: Graph, options: Any = None) -> ReferenceExecutable:
        """Prepare a graph; unknown operators are refused here, by name."""
        made = ReferenceExecutable(graph, self.library, getattr(options, "plan_cache_size", 16))
        made.budget = Budget(int(getattr(options, "memory_limit", 0) or 0), model=True)
        return made


class ReferenceExecutable(Executable):
    """A graph prepared for interpretation. Safe for concurrent runs: each has its own values."""

    fresh_outputs = False

    def __init__(self, graph: Graph, library: str, plan_cache_size: int = 16) -> None:
        self._library = find_library(library)
        self._program = Program(graph)
        self._outputs = {info.name for info in graph.outputs}
        self._lock = new_lock()
        self._plans: OrderedDict[tuple[Any, ...], Program] = OrderedDict()
        self._plan_limit = plan_cache_size
        self._subprograms: dict[int, Program] = {}
        self.budget = EAGER
        self._host_steps: Counter[tuple[str, str]] = Counter()

    def run(self, feeds: Mapping[str, Any], output_names: Sequence[str], hooks: RunHooks) -> list[Any]:
        """Outputs (then taps) as NumPy arrays."""
        wanted = (*output_names, *hooks.taps)
        program = self._plan(wanted, hooks.only_needed)
        lib = self._library
        context = Context(lib, check=hooks.check, observe=hooks.observe, programs=self._subprograms)
        inputs = [to_library(feeds.get(info.name), lib) for info in program.graph.inputs]
        with budgeted(self.budget):
            values = program.run_values(inputs, context)
        if context.host_steps:
            with self._lock:
                self._host_steps.update(context.host_steps)
        return [to_host(values[program.slots[name]], lib) for name in wanted]

    def _plan(self, wanted: tuple[str, ...], only_needed: bool) -> Program:
        """The program that keeps every wanted value; plans other than the usual one are bounded."""
        keep = tuple(name for name in wanted if name not in self._outputs)
        if not keep and not only_needed:
            return self._program
        key = (keep, frozenset(wanted) if only_needed else None)
        with self._lock:
            if key in self._plans:
                self._plans.move_to_end(key)
                return self._plans[key]
        graph = self._program.graph.needed_for(wanted) if only_needed else self._program.graph
        plan = Program(graph, keep)
        with self._lock:
            self._plans[key] = plan
            while len(self._plans) > self._plan_limit:
                self._plans.popitem(last=False)
        return plan

    def host_steps(self) -> Mapping[tuple[str, str], int]:
        """How often nodes left the device: by operator and reason."""
        return self._host_steps

    def placements(self) -> list[Placement]:
        """Every node runs in the interpreter; further host steps are known once a run made them."""
        with self._lock:
            stepped = dict(self._host_steps.keys())
        name = self._library.name
        rows: list[Placement] = []
        for step in self._program.steps:
            node, reason = step.node, stepped.get(step.op.full_name, "")
            if not reason and step.op.host and name != "numpy":
                reason = "the algorithm runs on NumPy arrays"
            where = "numpy" if reason else name
            rows.append(Placement(node.name, node.full_name, where, reason, node.outputs, bool(reason)))
        return rows

    def memory(self) -> dict[str, int]:
        """Nothing is held between runs but the weights."""
        return {"plans": 1 + len(self._plans)}

    def close(self) -> None:
        """Drop prepared programs, and with them constants held for the library."""
        with self._lock:
            self._plans.clear()
        self._subprograms.clear()
