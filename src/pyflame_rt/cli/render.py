"""How the command line shows things: tables for people, JSON for machines."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Iterable
    from contextlib import AbstractContextManager

    from pyflame_rt.inspection import ModelSummary

__all__ = ["console", "errors", "print_json", "size_text", "status", "summary_tables", "value_row"]

console = Console()
errors = Console(stderr=True)
MAX_VALUES = 64


def status(text: str) -> AbstractContextManager[Any]:
    """A spinner on standard error while something takes time; nothing when that is no terminal."""
    return errors.status(text)


def print_json(data: Any) -> None:
    """One JSON document on standard output."""
    text = json.dumps(_plain(data), indent=2, allow_nan=False)
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def _plain(value: Any) -> Any:
    """What JSON has words for; numbers it has none for become "nan", "inf" and "-inf"."""
    match value:
        case dict():
            return {str(key): _plain(item) for key, item in value.items()}
        case list() | tuple():
            return [_plain(item) for item in value]
        case np.generic() | np.ndarray():
            return _plain(value.tolist())
        case float():
            return value if math.isfinite(value) else str(value)
        case bool() | int() | str() | None:
            return value
        case _:
            return str(value)


def size_text(count: float) -> str:
    """Bytes in readable units.

    Example:
        >>> size_text(1536)
        '1.5 KiB'
    """
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def summary_tables(summary: ModelSummary) -> Iterable[Any]:
    """A model's inputs and outputs, its operators, and a line of totals."""
    values = Table("", "name", "type", "shape", title=f"model {summary.name!r}", title_justify="left")
    for kind, args in (("input", summary.inputs), ("optional", summary.overridable), ("output", summary.outputs)):
        for arg in args:
            values.add_row(kind, arg.name, arg.type, "?" if arg.shape is None else str(arg.shape))
    yield values
    operators = Table("operator", "nodes", title="operators", title_justify="left")
    for name, count in summary.operators.items():
        operators.add_row(name, str(count))
    yield operators
    opsets = ", ".join(f"{domain} {version}" for domain, version in summary.opsets.items())
    yield (
        f"{summary.node_count} nodes, {summary.initializer_count} initializers, "
        f"{summary.parameter_count:,} parameters, {size_text(summary.weight_bytes)} of weights"
        + (f"; opset {opsets}" if opsets else "")
    )


def value_row(name: str, value: Any) -> dict[str, Any]:
    """What is shown of one output: type, shape, range, and the values when they are few."""
    if not isinstance(value, np.ndarray):
        kind = "sequence" if isinstance(value, list) else type(value).__name__
        length = len(value) if isinstance(value, list) else None
        return {"name": name, "type": kind, "length": length}
    row: dict[str, Any] = {"name": name, "type": value.dtype.name, "shape": list(value.shape)}
    if value.size and value.dtype.kind in "fiub":
        numbers = value.astype(np.float64)
        row |= {"min": float(numbers.min()), "max": float(numbers.max()), "mean": float(numbers.mean())}
    if value.size <= MAX_VALUES:
        row["values"] = value.tolist()
    return row
