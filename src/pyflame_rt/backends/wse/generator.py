"""The generator: a graph in, a directory of CSL out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.backends.wse.flatten import flatten
from pyflame_rt.backends.wse.lower import KNOWN, lower
from pyflame_rt.backends.wse.memory import plan_memory
from pyflame_rt.backends.wse.options import TARGETS, CodeGenOptions, CodeGenResult
from pyflame_rt.backends.wse.package import package
from pyflame_rt.backends.wse.tiling import Grid
from pyflame_rt.graph.errors import MemoryLimitError, PyFlameRTError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyflame_rt.backends.wse.flatten import Flat
    from pyflame_rt.backends.wse.kernels import Plan
    from pyflame_rt.graph import Graph

__all__ = ["CSLCodeGenerator", "make_plan"]


class CSLCodeGenerator:
    """Makes CSL programs of graphs.

    Example:
        >>> from pyflame_rt.graph import Graph
        >>> graph = Graph("tiny")
        >>> _ = graph.add_input("x", [4, 4]), graph.add_node("n", "Relu", ["x"], ["y"]), graph.add_output("y", [4, 4])
        >>> sources = CSLCodeGenerator().generate_source(graph, CodeGenOptions(fabric_width=2, fabric_height=2))
        >>> "@fmaxs" in sources["pe_program.csl"]
        True
    """

    def generate_source(
        self,
        graph: Graph,
        options: CodeGenOptions | None = None,
        *,
        shapes: Mapping[str, Sequence[int]] | None = None,
        grid: tuple[int, int] | None = None,
    ) -> dict[str, str]:
        """Text of every file by name; nothing is written.

        Args:
            graph: static, or with open sizes that ``shapes`` settles.
            options: how; the defaults when None.
            shapes: sizes of inputs.
            grid: rows and columns of PEs where the options leave them open.

        Raises:
            PyFlameRTError: there is no program: an operator without a rule, too little memory.
        """
        return self._make(graph, options or CodeGenOptions(), shapes, grid)[0]

    def generate(
        self,
        graph: Graph,
        options: CodeGenOptions | None = None,
        *,
        shapes: Mapping[str, Sequence[int]] | None = None,
        grid: tuple[int, int] | None = None,
        feeds: Mapping[str, np.ndarray[Any, Any]] | None = None,
    ) -> CodeGenResult:
        """Write a program to ``options.output_dir``. Failure is reported in the result, not raised.

        Args:
            graph: static, or with open sizes that ``shapes`` settles.
            options: how; the defaults when None.
            shapes: sizes of inputs.
            grid: rows and columns of PEs where the options leave them open.
            feeds: contents of the inputs, for ``inputs.npz``; with them ``expected.npz`` holds the reference's answer.
        """
        options = options or CodeGenOptions()
        try:
            sources, manifest, plan = self._make(graph, options, shapes, grid)
        except PyFlameRTError as problem:
            return CodeGenResult(False, error_message=str(problem))
        target = Path(options.output_dir)
        for name, text in sources.items():
            path = target / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        written = list(sources)
        arrays = {"weights.npz": plan.constants, "inputs.npz": dict(feeds or {})}
        if feeds:
            arrays["expected.npz"] = reference(graph, feeds)
        for name, held in arrays.items():
            (target / name).unlink(missing_ok=True)
            if held:
                np.savez(target / name, **held)
                written.append(name)
        paths = [str(target / name) for name in written]
        return CodeGenResult(True, str(target), paths, "", sources, manifest)

    def _make(
        self,
        graph: Graph,
        options: CodeGenOptions,
        shapes: Mapping[str, Sequence[int]] | None,
        grid: tuple[int, int] | None,
    ) -> tuple[dict[str, str], dict[str, Any], Plan]:
        options.check()
        flat = flatten(graph, KNOWN, shapes)
        plan = make_plan(flat, options, grid)
        sources, manifest = package(plan, options)
        return sources, manifest, plan


def reference(graph: Graph, feeds: Mapping[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
    """What the operators' own definitions give."""
    from pyflame_rt.ops.evaluate import Context, Program

    program = Program(graph)
    values = program.run([np.asarray(feeds[i.name]) for i in graph.required_inputs], Context.of("numpy"))
    return {info.name: np.asarray(v) for info, v in zip(graph.outputs, values, strict=True)}


def make_plan(flat: Flat, options: CodeGenOptions, grid: tuple[int, int] | None = None) -> Plan:
    """A plan that fits the memory, on the grid asked for or on the smallest square.

    Raises:
        MemoryLimitError: it does not fit; the message says what it needs and which grid would do.
    """
    rows, cols = options.fabric_height, options.fabric_width
    if not rows and not cols and grid is not None:
        rows, cols = grid
    if rows or cols:
        asked = Grid(rows or 1, cols or 1)
        plan = _planned(flat, asked, options)
        if plan.data_bytes <= options.memory_budget:
            return plan
        fitting = _smallest(flat, options)
        where = (
            f"the smallest square grid that fits is {fitting.grid}"
            if fitting
            else "no grid of the target is large enough"
        )
        raise MemoryLimitError(
            f"the program needs {plan.data_bytes} bytes on each of {asked} PEs, the budget for data is "
            f"{options.memory_budget} bytes; {where}"
        )
    fitting = _smallest(flat, options)
    if fitting is None:
        least = _planned(flat, _largest(options), options)
        raise MemoryLimitError(
            f"the program needs {least.data_bytes} bytes on each PE even on {least.grid} PEs, the budget for data is "
            f"{options.memory_budget} bytes"
        )
    return fitting


def _planned(flat: Flat, grid: Grid, options: CodeGenOptions) -> Plan:
    return plan_memory(lower(flat, grid, optimize=options.optimize), share=options.optimize)


def _largest(options: CodeGenOptions) -> Grid:
    side = min(TARGETS[options.target])
    return Grid(side, side)


def _smallest(flat: Flat, options: CodeGenOptions) -> Plan | None:
    """The smallest square grid with room: doubled until it fits, then halved back."""
    most = _largest(options).rows
    low, high = 0, 1
    best = _planned(flat, Grid(1, 1), options)
    while best.data_bytes > options.memory_budget:
        if high == most:
            return None
        low, high = high, min(2 * high, most)
        best = _planned(flat, Grid(high, high), options)
    while high - low > 1:
        middle = (low + high) // 2
        plan = _planned(flat, Grid(middle, middle), options)
        if plan.data_bytes <= options.memory_budget:
            high, best = middle, plan
        else:
            low = middle
    return best
