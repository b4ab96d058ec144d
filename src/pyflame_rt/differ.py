"""Run a model on two providers and compare every value they compute."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.feeds import random_feed
from pyflame_rt.graph.arguments import expect
from pyflame_rt.graph.named_arguments import names_arguments
from pyflame_rt.graph.records import dataclass
from pyflame_rt.loading import load_graph
from pyflame_rt.options import OptLevel, SessionOptions
from pyflame_rt.session import InferenceSession

if TYPE_CHECKING:
    from pyflame_rt.graph import Graph

__all__ = ["DiffResult", "DiffRow", "compare", "diff"]


@dataclass(frozen=True, slots=True)
class DiffRow:
    """One value that both providers computed.

    Attributes:
        node: the node that made it.
        op_type: its operator.
        value: its name.
        max_abs: greatest absolute difference.
        max_rel: greatest difference relative to the first provider's value.
        mismatched: elements outside the tolerance.
        total: elements in all.
        problem: why the values cannot be compared (shape, type); "" when they can.
        introduced: True when the node's inputs agree and this does not.
    """

    node: str
    op_type: str
    value: str
    max_abs: float = 0.0
    max_rel: float = 0.0
    mismatched: int = 0
    total: int = 0
    problem: str = ""
    introduced: bool = False

    @property
    def ok(self) -> bool:
        """True when the values agree."""
        return not self.mismatched and not self.problem


@dataclass(frozen=True, slots=True)
class DiffResult:
    """The comparison of two providers, value by value in the order of computation.

    True when everything agrees; prints as a table.
    """

    provider_a: str
    provider_b: str
    rows: list[DiffRow]
    rtol: float
    atol: float
    feed: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def equal(self) -> bool:
        """True when all values agree."""
        return all(row.ok for row in self.rows)

    @property
    def first_divergence(self) -> DiffRow | None:
        """The first value that differs although its inputs agree; None when nothing differs."""
        found = (row for row in self.rows if row.introduced)
        return next(found, next((row for row in self.rows if not row.ok), None))

    def __bool__(self) -> bool:
        return self.equal

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        first = self.first_divergence
        return {
            "provider_a": self.provider_a,
            "provider_b": self.provider_b,
            "equal": self.equal,
            "rtol": self.rtol,
            "atol": self.atol,
            "first_divergence": None if first is None else first.value,
            "rows": [{**{n: getattr(r, n) for n in DiffRow.__slots__}, "ok": r.ok} for r in self.rows],
        }

    def __rich__(self) -> Any:
        from rich.console import Group
        from rich.table import Table

        table = Table(
            "node", "operator", "value", "max abs", "max rel", "outside", "",
            title=f"{self.provider_a} | {self.provider_b}", title_justify="left",
        )  # fmt: skip
        for row in self.rows:
            mark = "ok" if row.ok else "first" if row is self.first_divergence else "differs"
            outside = row.problem or f"{row.mismatched}/{row.total}"
            table.add_row(row.node, row.op_type, row.value, f"{row.max_abs:.2e}", f"{row.max_rel:.2e}", outside, mark)
        return Group(table, self.verdict())

    def verdict(self) -> str:
        """The finding in one line."""
        first = self.first_divergence
        if first is None:
            return f"all {len(self.rows)} values agree within rtol {self.rtol:g}, atol {self.atol:g}"
        detail = first.problem or f"{first.mismatched} of {first.total} elements, up to {first.max_abs:.3g}"
        return f"first divergence: {first.value!r} by node {first.node!r} ({first.op_type}): {detail}"

    def __str__(self) -> str:
        from rich.console import Console

        console = Console(file=io.StringIO(), width=120, no_color=True, highlight=False)
        with console.capture() as text:
            console.print(self)
        return text.get().rstrip()


@names_arguments
def diff(
    model: Any,
    provider_a: str = "ReferenceExecutionProvider",
    provider_b: str = "CPUExecutionProvider",
    feed: Mapping[str, Any] | None = None,
    *,
    rtol: float = 1e-4,
    atol: float = 1e-5,
    seed: int = 0,
    sizes: Mapping[str, int] | None = None,
) -> DiffResult:
    """Compare two providers on a model, node by node.

    Both run the graph as loaded, unoptimised, so that every value exists on both sides; all of
    them are held in memory at once.

    Args:
        model: whatever InferenceSession takes.
        provider_a: the one to trust.
        provider_b: the one to doubt.
        feed: inputs; random ones when None.
        rtol: relative tolerance.
        atol: absolute tolerance.
        seed: of the random inputs.
        sizes: of symbolic dimensions of the random inputs; 1 where not given.

    Example:
        >>> from pyflame_rt.graph import Graph
        >>> g = Graph("g")
        >>> _ = g.add_input("x", [2]), g.add_node("n", "Neg", ["x"], ["y"]), g.add_output("y", [2])
        >>> diff(g).verdict()
        'all 1 values agree within rtol 0.0001, atol 1e-05'
    """
    graph, _ = load_graph(model)
    if feed is not None:
        expect(feed, Mapping, "feed")
    given = random_feed(graph.required_inputs, seed=seed, sizes=sizes) if feed is None else dict(feed)
    values = [_every_value(graph, provider, given) for provider in (provider_a, provider_b)]
    rows: list[DiffRow] = []
    differing: set[str] = set()
    for node in graph.topological_sort():
        clean = differing.isdisjoint(node.inputs)
        for name in filter(None, node.outputs):
            row = compare(values[0][name], values[1][name], rtol, atol)
            rows.append(DiffRow(node.name, node.full_name, name, *row, introduced=clean and bool(row[2] or row[4])))
            if not rows[-1].ok:
                differing.add(name)
    return DiffResult(provider_a, provider_b, rows, rtol, atol, given)


def _every_value(graph: Graph, provider: str, feed: Mapping[str, Any]) -> dict[str, Any]:
    names = [name for node in graph.nodes for name in node.outputs if name]
    options = SessionOptions(optimization_level=OptLevel.NONE)
    with InferenceSession(graph, options, [provider]) as session:
        results = session.run(None, feed, taps=names)
    return dict(zip(names, results[len(graph.outputs) :], strict=True))


def compare(a: Any, b: Any, rtol: float, atol: float) -> tuple[float, float, int, int, str]:
    """Greatest absolute and relative difference, elements outside and in all, and a problem.

    Example:
        >>> compare(np.array([1.0, 2.0]), np.array([1.0, 2.5]), 1e-3, 1e-3)
        (0.5, 0.25, 1, 2, '')
    """
    if isinstance(a, list) and isinstance(b, list):
        return _compare_lists(a, b, rtol, atol)
    if not isinstance(a, np.ndarray) or not isinstance(b, np.ndarray):
        same = a is None and b is None
        return 0.0, 0.0, 0, 0, "" if same else f"{type(a).__name__} and {type(b).__name__}"
    if a.dtype != b.dtype or a.shape != b.shape:
        return 0.0, 0.0, 0, a.size, f"{a.dtype.name}{list(a.shape)} and {b.dtype.name}{list(b.shape)}"
    if a.dtype == object or a.dtype.kind == "b":
        wrong = int(np.count_nonzero(a != b))
        return float(wrong > 0), float(wrong > 0), wrong, a.size, ""
    return _compare_numbers(a, b, rtol, atol)


def _compare_numbers(
    a: np.ndarray[Any, Any], b: np.ndarray[Any, Any], rtol: float, atol: float
) -> tuple[float, float, int, int, str]:
    wide = np.complex128 if a.dtype.kind == "c" else np.float64
    x, y = a.astype(wide), b.astype(wide)
    with np.errstate(all="ignore"):
        gap = np.abs(x - y)
        agree = (gap <= atol + rtol * np.abs(x)) | (x == y) | (np.isnan(x) & np.isnan(y))
        finite = np.isfinite(gap)
        greatest = float(gap[finite].max()) if finite.any() else 0.0
        scaled = np.where(finite & (x != 0), gap / np.abs(np.where(x == 0, 1, x)), 0)
    relative = float(scaled.max()) if scaled.size else 0.0
    return greatest, relative, int(agree.size - np.count_nonzero(agree)), int(agree.size), ""


def _compare_lists(a: list[Any], b: list[Any], rtol: float, atol: float) -> tuple[float, float, int, int, str]:
    if len(a) != len(b):
        return 0.0, 0.0, 0, 0, f"sequences of {len(a)} and {len(b)}"
    parts = [compare(x, y, rtol, atol) for x, y in zip(a, b, strict=True)]
    return (
        max((p[0] for p in parts), default=0.0),
        max((p[1] for p in parts), default=0.0),
        sum(p[2] for p in parts),
        sum(p[3] for p in parts),
        next((p[4] for p in parts if p[4]), ""),
    )
