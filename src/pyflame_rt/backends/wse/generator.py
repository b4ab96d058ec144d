"""The generator: a graph in, a directory of CSL out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.backends.wse.emit.package import package
from pyflame_rt.backends.wse.options import CodeGenOptions, CodeGenResult
from pyflame_rt.backends.wse.plan.fitting import make_plan
from pyflame_rt.backends.wse.plan.footprint import measure
from pyflame_rt.backends.wse.plan.op_support import KNOWN
from pyflame_rt.backends.wse.plan.primitives import flatten
from pyflame_rt.graph.errors import PyFlameRTError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyflame_rt.backends.wse.plan.kernels import WaferPlan
    from pyflame_rt.graph import Graph

__all__ = ["CSLCodeGenerator", "make_plan", "reference"]


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
    ) -> tuple[dict[str, str], dict[str, Any], WaferPlan]:
        options.check()
        flat = flatten(graph, KNOWN, shapes)
        plan = make_plan(flat, options, grid)
        plan.footprint = plan.footprint or measure(plan, options)
        sources, manifest = package(plan, options)
        return sources, manifest, plan


def reference(graph: Graph, feeds: Mapping[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
    """What the operators' own definitions give."""
    from pyflame_rt.ops.core.evaluate import Context, Program

    program = Program(graph)
    values = program.run([np.asarray(feeds[i.name]) for i in graph.required_inputs], Context.of("numpy"))
    return {info.name: np.asarray(v) for info, v in zip(graph.outputs, values, strict=True)}
