"""The provider: graphs run in the simulator, from the same text that a real system would get."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.backends.base import Executable, Placement, RunHooks
from pyflame_rt.backends.wse.emit.hostrun import HostError, run_program
from pyflame_rt.backends.wse.emit.package import package
from pyflame_rt.backends.wse.forecast import forecast
from pyflame_rt.backends.wse.options import CodeGenOptions
from pyflame_rt.backends.wse.plan.fitting import make_plan
from pyflame_rt.backends.wse.plan.op_support import KNOWN
from pyflame_rt.backends.wse.plan.primitives import flatten
from pyflame_rt.backends.wse.simulate import SimulatedDevice, compile_sources
from pyflame_rt.graph.errors import BackendError, InputError
from pyflame_rt.graph.locks import new_lock
from pyflame_rt.graph.records import dataclass
from wsesim import watch
from wsesim.csl.syntax.diagnostics import CslError
from wsesim.fabric.errors import Deadlock, FabricError, ProgramFault

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyflame_rt.backends.wse.forecast import Forecast
    from pyflame_rt.backends.wse.plan.kernels import WaferPlan
    from pyflame_rt.graph import Graph
    from wsesim.csl.program.elaborated import Program

__all__ = ["SETTINGS", "WseBackend", "WseExecutable"]

SETTINGS = ("cols", "max_passes", "memory_budget", "optimize", "products", "rows", "target")


class WseBackend:
    """Compiles graphs to CSL and runs them in the simulator.

    Example:
        >>> WseBackend().name
        'wse'
    """

    name = "wse"

    def __init__(self) -> None:
        self.options: CodeGenOptions | None = None

    def configure(self, settings: Mapping[str, Any]) -> None:
        """Take the provider's options, which are those of SETTINGS."""
        unknown = sorted(set(settings) - set(SETTINGS))
        if unknown:
            raise InputError(f"WSEExecutionProvider has no option {unknown[0]!r}. Options: {', '.join(SETTINGS)}")
        names = {"rows": "fabric_height", "cols": "fabric_width"}
        self.options = CodeGenOptions(**{"target": "wse3", **{names.get(k, k): v for k, v in settings.items()}})
        self.options.check()

    def compile(self, graph: Graph, options: Any = None) -> WseExecutable:
        """Prepare a graph; where every size is known its program is made at once, so that what cannot be is refused."""
        device = getattr(options, "device", "wse3")
        given = self.options or CodeGenOptions(target="wse2" if device == "wse2" else "wse3")
        made = WseExecutable(graph, given, getattr(options, "plan_cache_size", 16))
        if all(info.type is not None and _static(info) for info in graph.required_inputs):
            made.prepare({}, tuple(info.name for info in graph.outputs))
        return made


def _static(info: Any) -> bool:
    shape = getattr(info.type, "shape", None)
    return shape is not None and shape.is_static


@dataclass(frozen=True, slots=True)
class Prepared:
    """A program for one set of shapes."""

    plan: WaferPlan
    manifest: dict[str, Any]
    program: Program
    expected: Forecast | None = None


class WseExecutable(Executable):
    """A graph with its programs, one for each set of shapes and outputs. Each run has a machine of its own."""

    fresh_outputs = True

    def __init__(self, graph: Graph, options: CodeGenOptions, limit: int) -> None:
        self._graph = graph
        self._options = options
        self._limit = max(1, limit)
        self._lock = new_lock()
        self._plans: OrderedDict[Any, Prepared] = OrderedDict()
        self.cycles = 0.0

    def prepare(self, shapes: Mapping[str, tuple[int, ...]], wanted: tuple[str, ...]) -> Prepared:
        """The program for these shapes, made when it is new."""
        key = (tuple(sorted(shapes.items())), wanted)
        with self._lock:
            found = self._plans.get(key)
            if found is not None:
                self._plans.move_to_end(key)
                return found
        plan = make_plan(flatten(self._graph, KNOWN, shapes, wanted), self._options)
        sources, manifest = package(plan, self._options)
        arch = "wse2" if self._options.target == "wse2" else "wse3"
        try:
            expected = forecast(plan, sources, arch)
            program = compile_sources(sources, manifest, arch)
        except CslError as problem:  # code and data together may be too much for a PE
            raise BackendError(f"the generated program for {plan.grid} PEs is refused: {problem}") from problem
        made = Prepared(plan, manifest, program, expected)
        with self._lock:
            self._plans[key] = made
            while len(self._plans) > self._limit:
                self._plans.popitem(last=False)
        return made

    def run(self, feeds: Mapping[str, Any], output_names: Sequence[str], hooks: RunHooks) -> list[Any]:
        """Outputs (then taps) as NumPy arrays."""
        if hooks.observe is not None:
            raise BackendError("the wafer runs whole programs: to look at single nodes use ReferenceExecutionProvider")
        with watch.watched(hooks.check):
            return self._run(feeds, output_names, hooks)

    def _run(self, feeds: Mapping[str, Any], output_names: Sequence[str], hooks: RunHooks) -> list[Any]:
        watch.poll()
        arrays = {name: np.asarray(value) for name, value in feeds.items() if value is not None}
        open_ones = {i.name for i in self._graph.required_inputs if not _static(i)}
        shapes = {name: tuple(a.shape) for name, a in arrays.items() if name in open_ones}
        wanted = (*output_names, *hooks.taps)
        prepared = self.prepare(shapes, wanted)
        watch.poll()
        if prepared.expected is not None:
            prepared.expected.say()
        device = SimulatedDevice(prepared.program)
        try:
            results = run_program(prepared.manifest, {**prepared.plan.constants, **arrays}, device)
            device.stop()
        except HostError as problem:
            raise InputError(str(problem)) from problem
        except Deadlock as problem:
            raise BackendError(
                f"the program stands still on {prepared.plan.grid} PEs; the .svg of this error's __cause__ draws who "
                f"waits for whom: {problem}"
            ) from problem
        except ProgramFault as problem:
            why = ""
            if "assertion failed" in str(problem):
                why = "an index is outside its dimension, or a number needs more than the 32 bits that PEs have: "
            raise BackendError(f"the program stops on {prepared.plan.grid} PEs: {why}{problem}") from problem
        except FabricError as problem:
            raise BackendError(f"the program stops on {prepared.plan.grid} PEs: {problem}") from problem
        self.cycles = float(device.host.machine.now)
        return [results[name] for name in wanted]

    def placements(self) -> list[Placement]:
        """Every node runs on the wafer; kernels of several nodes are named by one of them."""
        with self._lock:
            plans = list(self._plans.values())
        where = f"wse [{plans[-1].plan.grid} PEs]" if plans else "wse"
        notes = plans[-1].plan.notes if plans else {}
        told = {name: f"simulated; {note}" for name, note in notes.items()}
        return [
            Placement(n.name, n.full_name, where, told.get(n.name, "simulated"), n.outputs) for n in self._graph.nodes
        ]

    def memory(self) -> dict[str, int]:
        """Bytes on each processing element of the program used last."""
        with self._lock:
            plans = list(self._plans.values())
        return {"plans": len(plans), "bytes_per_pe": plans[-1].plan.data_bytes if plans else 0}

    def close(self) -> None:
        """Drop the programs."""
        with self._lock:
            self._plans.clear()
