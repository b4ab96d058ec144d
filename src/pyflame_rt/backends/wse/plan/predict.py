"""Scale on paper: cycles, memory and wavelets of a graph on grids up to the whole wafer.

The generator plans and writes the program as it always does; one PE of it runs alone, and formulas say how long the
collectives would take (:mod:`wsesim.model`). Where the grid is small enough the simulator runs all of it, and the
report says how far the prediction was off.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.backends.wse.emit.hostrun import run_program
from pyflame_rt.backends.wse.emit.package import package
from pyflame_rt.backends.wse.generator import make_plan
from pyflame_rt.backends.wse.options import TARGETS, CodeGenOptions
from pyflame_rt.backends.wse.plan.op_support import KNOWN
from pyflame_rt.backends.wse.plan.primitives import flatten
from pyflame_rt.backends.wse.simulate import SimulatedDevice, compile_sources
from pyflame_rt.graph.errors import BackendError, InputError, MemoryLimitError
from wsesim.csl.program.driver import compile_texts
from wsesim.csl.syntax.diagnostics import CslError
from wsesim.fabric.errors import FabricError
from wsesim.fabric.timing import LABEL, TIMING
from wsesim.model import PredictionError, chart, estimate, measure_lines

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyflame_rt.backends.wse.plan.kernels import WaferPlan
    from pyflame_rt.graph import Graph
    from wsesim.csl.program.driver import Arch

__all__ = ["GridPrediction", "ScaleReport", "predict_scale"]


@dataclass(frozen=True)
class GridPrediction:
    """One grid. What was simulated is None where the grid was too large for that.

    Attributes:
        cycles: from each call of the host to its end, all calls together.
        seconds: the same at the clock of the table of constants.
        memory: bytes of a PE: data, code, stack and reserve.
        collectives: operations between PEs, as one PE sees them.
    """

    rows: int
    cols: int
    cycles: float
    seconds: float
    wavelets: int
    hops: int
    memory: int
    data_bytes: int
    collectives: dict[str, int]
    simulated_cycles: float | None = None
    simulated_wavelets: int | None = None
    simulated_hops: int | None = None
    simulated_memory: int | None = None

    @property
    def pes(self) -> int:
        """Processing elements."""
        return self.rows * self.cols

    @property
    def error(self) -> float | None:
        """Predicted cycles against simulated ones, as a share; None without a simulation."""
        if self.simulated_cycles is None:
            return None
        return self.cycles / self.simulated_cycles - 1.0


@dataclass(frozen=True)
class ScaleReport:
    """Predictions for several grids, and how far they are off where the simulator could check.

    Example:
        >>> row = GridPrediction(2, 2, 110.0, 1e-7, 5, 9, 4096, 64, {}, simulated_cycles=100.0)
        >>> round(ScaleReport("tiny", "wse3", (row,)).worst_error, 3)
        0.1
    """

    name: str
    target: str
    grids: tuple[GridPrediction, ...]
    skipped: dict[str, str] = field(default_factory=dict)
    label: str = LABEL

    @property
    def worst_error(self) -> float | None:
        """The largest relative error of cycles, without its sign; None when nothing was simulated."""
        errors = [abs(g.error) for g in self.grids if g.error is not None]
        return max(errors) if errors else None

    def text(self) -> str:
        """A table for the terminal."""
        lines = [
            f"{self.name} on {self.target}; {self.label}",
            f"{'grid':>11} {'memory':>7} {'cycles':>13} {'time':>10} {'wavelets':>14} {'simulated':>13} {'error':>7}",
        ]
        for g in self.grids:
            checked = "" if g.simulated_cycles is None else f"{g.simulated_cycles:,.0f}"
            off = "" if g.error is None else f"{100 * g.error:+.1f} %"
            lines.append(
                f"{f'{g.rows} x {g.cols}':>11} {g.memory:>7,} {g.cycles:>13,.0f} {1e6 * g.seconds:>7,.1f} us "
                f"{g.wavelets:>14,} {checked:>13} {off:>7}"
            )
        lines += [f"{grid:>11} left out: {why}" for grid, why in self.skipped.items()]
        worst = self.worst_error
        lines.append("not checked: no grid was simulated" if worst is None else f"largest error {100 * worst:.1f} %")
        return "\n".join(lines) + "\n"

    def json(self) -> str:
        """The same as JSON, with the table of constants."""
        from wsesim.fabric.timing import constants

        rows = [asdict(g) | {"pes": g.pes, "error": g.error} for g in self.grids]
        found = {"name": self.name, "target": self.target, "label": self.label, "worst_error": self.worst_error}
        table = [asdict(c) for c in constants()]
        return json.dumps(found | {"grids": rows, "skipped": self.skipped, "constants": table}, indent=1) + "\n"

    def svg(self) -> str:
        """Cycles over the number of PEs, predicted and simulated."""
        rows = [(g.pes, g.cycles, g.simulated_cycles) for g in self.grids]
        return chart(rows, title=f"{self.name} on {self.target}")


def predict_scale(
    graph: Graph,
    grids: Sequence[tuple[int, int]],
    *,
    target: str = "wse3",
    shapes: Mapping[str, Sequence[int]] | None = None,
    simulate_up_to: int = 64,
    optimize: bool = True,
    products: str = "auto",
) -> ScaleReport:
    """Predict what a graph costs on each grid of ``(rows, cols)`` PEs.

    Args:
        graph: static, or with open sizes that ``shapes`` settles.
        grids: rows and columns of PEs, up to the size of the target.
        target: ``wse2`` or ``wse3``.
        shapes: sizes of inputs.
        simulate_up_to: grids of at most so many PEs are also simulated, with random inputs; 0 checks nothing.
        optimize: as for the generator.
        products: likewise.

    Returns:
        A report; grids on which the program does not fit are in its ``skipped``, with the reason.

    Raises:
        InputError: no such target or grid.
        BackendError: the model does not cover the program.

    Example:
        >>> from pyflame_rt.graph import Graph
        >>> graph = Graph("tiny")
        >>> _ = graph.add_input("x", [8, 8]), graph.add_node("n", "Relu", ["x"], ["y"]), graph.add_output("y", [8, 8])
        >>> report = predict_scale(graph, [(2, 2), (8, 8)], simulate_up_to=4)
        >>> report.grids[0].error, report.grids[1].simulated_cycles
        (0.0, None)
    """
    if target not in TARGETS:
        raise InputError(f"target {target!r} is not known. Targets: {', '.join(TARGETS)}")
    if not grids:
        raise InputError("no grid to predict; give at least one (rows, cols)")
    flat = flatten(graph, KNOWN, shapes)
    arch: Arch = "wse2" if target == "wse2" else "wse3"
    found: list[GridPrediction] = []
    skipped: dict[str, str] = {}
    for rows, cols in grids:
        options = CodeGenOptions(
            target=target, fabric_height=rows, fabric_width=cols, optimize=optimize, products=products
        )
        if rows < 1 or cols < 1:
            raise InputError(f"a grid has at least one row and one column, got {rows} x {cols}")
        options.check()
        try:
            plan = make_plan(flat, options)
            found.append(_one(plan, options, arch, checked=rows * cols <= simulate_up_to))
        except PredictionError as problem:
            raise BackendError(f"{graph.name!r} on {rows} x {cols} PEs: {problem}") from problem
        except (MemoryLimitError, CslError) as problem:
            skipped[f"{rows} x {cols}"] = " ".join(str(problem).split())
    return ScaleReport(graph.name, target, tuple(found), skipped)


def _one(plan: WaferPlan, options: CodeGenOptions, arch: Arch, *, checked: bool) -> GridPrediction:
    sources, manifest = package(plan, options)
    rows, cols = plan.grid.rows, plan.grid.cols
    texts = {"layout.csl": first_tile(sources["layout.csl"], rows, cols)}
    texts |= {name: text for name, text in sources.items() if name.endswith(".csl") and name not in texts}
    alone = compile_texts(texts, arch=arch, memcpy=True, channels=1, strict=True, partial=True)
    calls = [f"phase{i}" for i in range(len(plan.phases))]
    costs = measure_lines(arch, TIMING)
    guess = estimate(alone, calls, timing=TIMING, costs=costs)
    passes = plan.fold.passes if plan.fold is not None else 1
    found = GridPrediction(
        rows,
        cols,
        guess.total_cycles * passes,
        guess.total_cycles * passes / TIMING.clock_hz,
        guess.wavelets * passes,
        guess.hops * passes,
        guess.memory,
        plan.data_bytes,
        guess.collectives,
    )
    return _checked(found, plan, sources, manifest, arch) if checked else found


def first_tile(layout: str, rows: int, cols: int) -> str:
    """The layout with code for its first PE only: the others run the same."""
    for axis, count in (("x", cols), ("y", rows)):
        loop = f"for (@range(i16, {count})) |{axis}|"
        if layout.count(loop) != 1:
            raise PredictionError(f"the layout has no loop {loop!r} over its PEs")
        layout = layout.replace(loop, f"for (@range(i16, 1)) |{axis}|")
    return layout


def _checked(
    found: GridPrediction, plan: WaferPlan, sources: Mapping[str, str], manifest: dict[str, Any], arch: Arch
) -> GridPrediction:
    """The same with what the simulator counts."""
    from dataclasses import replace

    device = SimulatedDevice(compile_sources(sources, manifest, arch))
    try:
        run_program(manifest, {**plan.constants, **_inputs(plan)}, device)
        device.stop()
    except FabricError as problem:
        raise BackendError(f"the simulator stops on {plan.grid} PEs: {problem}") from problem
    machine = device.host.machine
    return replace(
        found,
        simulated_cycles=sum(end - begin for _, begin, end in device.host.spans),
        simulated_wavelets=machine.wavelets,
        simulated_hops=machine.hops,
        simulated_memory=max(p.memory.total for p in machine.program.programs),
    )


def _inputs(plan: WaferPlan) -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    made: dict[str, np.ndarray[Any, Any]] = {}
    for name, (dtype, shape) in plan.inputs.items():
        kind = np.dtype(dtype)
        made[name] = rng.random(shape).astype(kind) if kind.kind == "f" else np.zeros(shape, kind)
    return made
