"""CSL for the wafer from lazy tensors: their graph, their layouts and the data they hold become a program."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame.calls import inline_all
from pyflame.evaluation import Work, evaluate, graphs
from pyflame.inspection import Graph
from pyflame.lazy import Expr, ancestors
from pyflame.ops.core import Handle
from pyflame.runtime_graph import to_graph
from pyflame_rt.graph.errors import InputError
from pyflame_rt.graph.named_arguments import names_arguments
from pyflame_rt.wafer import CodeGenOptions, CodeGenResult
from pyflame_rt.wafer import CSLCodeGenerator as RuntimeGenerator

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyflame.lazy import Val
    from pyflame.tensors import Tensor
    from pyflame_rt.graph import Graph as RtGraph

__all__ = ["CSLCodeGenerator", "CodeGenOptions", "CodeGenResult", "compile_to_csl"]


class CSLCodeGenerator:
    """Makes CSL programs of the graphs of tensors.

    Example:
        >>> import pyflame as pf
        >>> graph = pf.get_graph(pf.relu(pf.ones([4, 4], layout=pf.MeshLayout.grid(2, 2)) - 2))
        >>> sorted(pf.CSLCodeGenerator().generate_source(graph))[:3]
        ['README.md', 'commands_wse2.sh', 'commands_wse3.sh']
    """

    def generate(self, graph: Graph | RtGraph, options: CodeGenOptions | None = None) -> CodeGenResult:
        """Write a program to ``options.output_dir``; a program that cannot be is reported in the result.

        Args:
            graph: from ``pf.get_graph``, or a graph of ``pyflame_rt``.
            options: how; the defaults when None.
        """
        if not isinstance(graph, Graph):
            return RuntimeGenerator().generate(graph, options)
        runtime, feeds, grid = _prepared(graph._roots)
        return RuntimeGenerator().generate(runtime, options, grid=grid, feeds=feeds)

    def generate_source(self, graph: Graph | RtGraph, options: CodeGenOptions | None = None) -> dict[str, str]:
        """Text of every file by name; nothing is written, and a program that cannot be is an error."""
        if not isinstance(graph, Graph):
            return RuntimeGenerator().generate_source(graph, options)
        runtime, _, grid = _prepared(graph._roots)
        return RuntimeGenerator().generate_source(runtime, options, grid=grid)


@names_arguments
def compile_to_csl(
    tensor: Tensor | Sequence[Tensor],
    options: CodeGenOptions | str | os.PathLike[str] | None = None,
    output_dir: str | os.PathLike[str] | None = None,
) -> CodeGenResult:
    """Write a CSL program that computes a tensor.

    The tensor's graph runs on the grid that the layouts in it ask for (the largest of them); without layouts on the
    smallest square grid with enough memory. Memory is planned for each processing element: a program that does not fit
    is not written, and the result says how many bytes it needs and which grid would do.

    What the tensor takes from random numbers or integers alone is evaluated first and given to the program as data.

    Args:
        tensor: a tensor that is not evaluated yet, or several.
        options: how; or the directory to write to.
        output_dir: the directory to write to; ``options.output_dir`` when None.

    Returns:
        What was made. ``sources`` has the text of each file.

    Example:
        >>> import pyflame as pf, tempfile
        >>> x = pf.ones([8, 8], layout=pf.MeshLayout.grid(2, 2))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     result = pf.compile_to_csl(pf.relu(x @ x), folder)
        >>> result.success, result.manifest["grid"]
        (True, {'rows': 2, 'cols': 2})
    """
    if isinstance(options, (str, os.PathLike)):
        if output_dir is not None:
            raise InputError("the output directory is given twice")
        options, output_dir = None, options
    if options is not None and not isinstance(options, CodeGenOptions):
        raise TypeError(f"options must be CodeGenOptions or a directory, got {type(options).__name__}")
    tensors: list[Any] = list(tensor) if isinstance(tensor, (list, tuple)) else [tensor]
    if not tensors or not all(isinstance(t, Handle) for t in tensors):
        raise TypeError(f"compile_to_csl takes a tensor or several, got {type(tensor).__name__}")
    settings = options or CodeGenOptions()
    if output_dir is not None:
        settings = replace(settings, output_dir=output_dir)
    runtime, feeds, grid = _prepared([t._value for t in tensors])
    return RuntimeGenerator().generate(runtime, settings, grid=grid, feeds=feeds)


def _drawn(roots: list[Val]) -> list[Val]:
    """Values that come from seeds, counters and other integers alone: the host makes them, the wafer gets the data."""
    made: set[Expr] = set()
    found: dict[int, Val] = {}
    with graphs:
        inline_all(roots)
        exprs = ancestors(roots)
    for expr in exprs:
        given = [v for v in expr.inputs if v is not None]
        if given and all(_is_number(v) and (v.array is not None or v.expr in made) for v in given):
            made.add(expr)
        else:
            found.update({id(v): v for v in given if v.array is None and v.expr in made})
    return list(found.values())


def _is_number(v: Val) -> bool:
    """Whether a value is part of the structure, or holds integers."""
    return v.spec.known is not None or not v.spec.dtype.is_floating_point


def _prepared(roots: list[Val]) -> tuple[RtGraph, dict[str, Any], tuple[int, int] | None]:
    """The runtime's graph, the contents of its inputs, and the grid that layouts ask for."""
    if any(v.array is not None for v in roots):
        raise InputError(
            "the tensor is evaluated: there is nothing left to compute on the wafer. Compile it before pf.eval"
        )
    evaluate(_drawn(roots))
    with graphs:
        work = Work(roots, exact=True)
        graph = to_graph(work.exprs, work.leaves, work.outputs)
    feeds = {info.name: np.asarray(v.array) for info, v in zip(graph.inputs, work.leaves, strict=True)}
    layouts = [node.spec.layout for node in Graph(roots).nodes]
    rows = max((layout.pe_rows for layout in layouts), default=1)
    cols = max((layout.pe_cols for layout in layouts), default=1)
    return graph, feeds, (rows, cols) if rows * cols > 1 else None
