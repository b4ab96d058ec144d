"""Tensors, graphs and profiles that show themselves in notebooks."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

from pyflame_rt.graph.errors import MissingExtra

__all__ = ["JupyterConfig", "setup_jupyter"]


@dataclass
class JupyterConfig:
    """What notebooks show.

    Attributes:
        max_rows: Of a tensor's table.
        max_columns: Of a tensor's table.
        precision: Digits after the point.
        evaluate: Compute a lazy tensor to show its values; else only its type is shown.
        show_graphs: Draw graphs as pictures.

    Example:
        >>> from pyflame.integrations import JupyterConfig
        >>> JupyterConfig(precision=2).max_rows
        10
    """

    max_rows: int = 10
    max_columns: int = 10
    precision: int = 4
    evaluate: bool = True
    show_graphs: bool = True

    def __post_init__(self) -> None:
        if self.max_rows < 1 or self.max_columns < 1 or self.precision < 0:
            raise ValueError("max_rows and max_columns must be at least 1, and precision not negative")


def setup_jupyter(config: JupyterConfig | None = None, *, shell: Any = None) -> JupyterConfig:
    """Let the notebook that runs this show tensors as tables and graphs as pictures.

    Args:
        config: What is shown.
        shell: IPython's shell; the running one by default.

    Raises:
        MissingExtra: IPython is not installed.
        RuntimeError: no notebook runs this.
    """
    from pyflame.inspection import Graph
    from pyflame.tensors import Tensor

    chosen = config or JupyterConfig()
    formatters = _shell(shell).display_formatter.formatters
    formatters["text/html"].for_type(Tensor, lambda tensor: tensor_html(tensor, chosen))
    if chosen.show_graphs:
        formatters["image/svg+xml"].for_type(Graph, _graph_svg)
    return chosen


def _shell(given: Any) -> Any:
    if given is not None:
        return given
    try:
        from IPython import get_ipython  # type: ignore[import-not-found]
    except ModuleNotFoundError as error:
        raise MissingExtra("setup_jupyter needs the package 'ipython': pip install ipython") from error
    shell = get_ipython()
    if shell is None:
        raise RuntimeError("no notebook runs this: call setup_jupyter() in a notebook or in IPython")
    return shell


def _graph_svg(graph: Any) -> str:
    from pyflame.tools import GraphVisualizer

    return GraphVisualizer(graph).to_svg()


def tensor_html(tensor: Any, config: JupyterConfig) -> str:
    """A tensor as a table: rows and columns of its last two axes, the first of the others.

    Example:
        >>> import pyflame as pf
        >>> "<td>1.00</td>" in tensor_html(pf.ones([2, 2]), JupyterConfig(precision=2))
        True
    """
    head = f"tensor {escape(str(list(tensor.shape)))} {tensor.dtype.name}"
    if not tensor.is_evaluated() and not config.evaluate:
        return f"<p>{head}, lazy</p>"
    array = np.asarray(tensor.numpy())
    while array.ndim > 2 and array.size:
        array, head = array[0], head + ", the first along its leading axis"
    if not array.size:
        return f"<p>{head}, empty</p>"
    table = array.reshape(-1, array.shape[-1]) if array.ndim else array.reshape(1, 1)
    rows = "".join(_row(row, config) for row in table[: config.max_rows])
    cut = len(table) > config.max_rows or table.shape[1] > config.max_columns
    return f"<p>{head}{', cut' if cut else ''}</p><table>{rows}</table>"


def _row(row: Any, config: JupyterConfig) -> str:
    cells = []
    for value in row[: config.max_columns]:
        plain = value.item()
        cells.append(f"<td>{plain:.{config.precision}f}</td>" if isinstance(plain, float) else f"<td>{plain}</td>")
    return f"<tr>{''.join(cells)}</tr>"
