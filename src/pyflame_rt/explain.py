"""What ``session.explain()`` gives: which node runs where, fused with what, what it costs, and why."""

from __future__ import annotations

import io
from collections import Counter
from dataclasses import asdict, field
from typing import TYPE_CHECKING, Any

from pyflame_rt.graph.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from pyflame_rt.executable import Placement

__all__ = ["Explanation", "Work", "in_units"]

# More rows than this are not read but searched: text shows the costly ones and says so.
MAX_ROWS = 200


def in_units(value: float, unit: str, step: int = 1000) -> str:
    """A number with a prefix, three digits long.

    Example:
        >>> in_units(1_234_567, "B"), in_units(12, "FLOP"), in_units(0, "B")
        ('1.23 MB', '12 FLOP', '')
    """
    if not value:
        return ""
    for prefix in ("", "k", "M", "G"):
        if value < step:
            return f"{value:.3g} {prefix}{unit}"
        value /= step
    return f"{value:.3g} T{unit}"


def milliseconds(seconds: float | None) -> str:
    """A time in milliseconds, or nothing when it was not measured."""
    return "" if seconds is None else f"{seconds * 1e3:.4f}"


@dataclass(frozen=True, slots=True)
class Work:
    """What all steps of one kind take together."""

    label: str
    steps: int
    flops: int
    nbytes: int
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Explanation:
    """Where each node runs and what it costs; prints as a table, shows as one in notebooks.

    Attributes:
        provider: who runs the model.
        about: what that provider is.
        rows: one Placement for each node, and one for each change of a value's layout.
        notes: what else is worth knowing, such as settings without effect.
        host_steps: how often runs so far left the provider's library for NumPy, by operator and
            reason.
        seconds: what loading took, by stage.

    Example:
        >>> from pyflame_rt.executable import Placement
        >>> rows = [Placement("n", "Relu", "numpy")]
        >>> Explanation("CPUExecutionProvider", "the reference interpreter", rows).places
        {'numpy': 1}
    """

    provider: str
    about: str
    rows: list[Placement]
    notes: list[str] = field(default_factory=list)
    host_steps: dict[tuple[str, str], int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def nodes(self) -> list[Placement]:
        """The rows that are nodes of the graph."""
        return [row for row in self.rows if not row.moves]

    @property
    def steps(self) -> int:
        """How many nodes a run executes: views, what is folded, and what another node's step does as well are none."""
        return sum(row.steps > 0 for row in self.nodes)

    @property
    def native_steps(self) -> int:
        """How many steps these nodes take, and how often a value is brought into another layout."""
        return sum(row.steps for row in self.rows)

    @property
    def host_step_count(self) -> int:
        """Nodes that run on the host although the provider computes elsewhere."""
        return sum(row.host_step for row in self.rows)

    @property
    def reorders(self) -> int:
        """How often a value is brought into another layout."""
        return sum(row.moves for row in self.rows)

    @property
    def places(self) -> dict[str, int]:
        """How many nodes run in each place."""
        return dict(Counter(row.runs_on.partition(":")[0] for row in self.nodes))

    @property
    def run_seconds(self) -> float | None:
        """What all steps take in a profiled run; None when no run was profiled."""
        times = [row.seconds for row in self.rows if row.seconds is not None]
        return sum(times) if times else None

    def by_kind(self) -> list[Work]:
        """What each kind of step takes, the costliest first."""
        kinds: dict[str, list[Placement]] = {}
        for row in self.rows:
            kinds.setdefault(row.runs_on.partition(": ")[2] or row.runs_on, []).append(row)
        work = [_sum(label, rows) for label, rows in kinds.items()]
        return sorted(work, key=lambda w: (-(w.seconds or 0.0), -w.flops, -w.nbytes))

    def summary(self) -> list[str]:
        """The findings in a few lines."""
        places = ", ".join(f"{count} on {place}" for place, count in self.places.items())
        nodes = self.nodes
        lines = [
            f"{self.provider}: {self.about}",
            f"{len(nodes)} nodes: {places or 'none'}; {self.host_step_count} host steps, {self.reorders} reorders",
        ]
        flops, nbytes = sum(row.flops for row in self.rows), sum(row.nbytes for row in self.rows)
        if flops or nbytes:
            lines.append(
                f"a run: {in_units(flops, 'FLOP')}, {in_units(nbytes, 'B')} read and written{self._speed(flops)}"
            )
        return lines + self.remarks()

    def remarks(self) -> list[str]:
        """Notes, host steps that runs took, and what the start took."""
        lines = list(self.notes)
        for (op, reason), count in self.host_steps.items():
            lines.append(f"{op} ran on NumPy {count} times: {reason}")
        if self.seconds:
            spent = ", ".join(f"{stage} {s * 1e3:.1f} ms" for stage, s in self.seconds.items())
            lines.append(f"start: {spent}")
        return lines

    def _speed(self, flops: int) -> str:
        if not self.run_seconds:
            return "; times come with enable_profiling"
        return f", {self.run_seconds * 1e3:.3f} ms, {flops / self.run_seconds / 1e9:.1f} GFLOP/s"

    def table(self, limit: int | None = None) -> Table:
        """The rows as a rich table.

        Args:
            limit: show only so many rows, the costliest, in their order.
        """
        from rich.table import Table

        shown = self._costliest(limit)
        columns = _columns(shown)
        title = self.provider if len(shown) == len(self.rows) else f"{self.provider}: the costliest {len(shown)} rows"
        table = Table(title=title, title_justify="left")
        for name, right, _ in columns:
            table.add_column(name, justify="right" if right else "left", overflow="fold")
        for row in shown:
            table.add_row(*(cell(row) for _, _, cell in columns))
        return table

    def _costliest(self, limit: int | None) -> list[Placement]:
        if limit is None or len(self.rows) <= limit:
            return self.rows
        order = sorted(
            range(len(self.rows)),
            key=lambda i: (
                not self.rows[i].host_step,
                -(self.rows[i].seconds or 0.0),
                -self.rows[i].flops,
                -self.rows[i].nbytes,
            ),
        )
        return [self.rows[i] for i in sorted(order[:limit])]

    def kinds_table(self) -> Table:
        """What each kind of step takes, as a rich table."""
        from rich.table import Table

        table = Table(title="by kind of step", title_justify="left")
        for name, right in (("steps", True), ("kind", False), ("FLOP", True), ("bytes", True), ("ms", True)):
            table.add_column(name, justify="right" if right else "left", overflow="fold")
        for w in self.by_kind():
            table.add_row(
                str(w.steps), w.label, in_units(w.flops, ""), in_units(w.nbytes, "B"), milliseconds(w.seconds)
            )
        return table

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return {
            "provider": self.provider,
            "about": self.about,
            "places": self.places,
            "host_step_count": self.host_step_count,
            "reorders": self.reorders,
            "run_seconds": self.run_seconds,
            "host_steps": [
                {"operator": op, "reason": reason, "count": n} for (op, reason), n in self.host_steps.items()
            ],
            "notes": list(self.notes),
            "seconds": dict(self.seconds),
            "kinds": [asdict(work) for work in self.by_kind()],
            "rows": [{**asdict(row), "outputs": list(row.outputs)} for row in self.rows],
        }

    def to_html(self) -> str:
        """A page of its own: needs no other file, sorts by any column, finds nodes by name."""
        from pyflame_rt.explain_page import page

        return page(self)

    def _repr_html_(self) -> str:
        from pyflame_rt.explain_page import fragment

        return fragment(self, MAX_ROWS)

    def __rich__(self) -> Any:
        from rich.console import Group

        if len(self.rows) <= MAX_ROWS:
            return Group(self.table(), *self.summary())
        more = f"{len(self.rows) - MAX_ROWS} rows not shown: explain().table() and explain().to_html() have all"
        return Group(self.kinds_table(), self.table(MAX_ROWS), *self.summary(), more)

    def __str__(self) -> str:
        from rich.console import Console

        console = Console(file=io.StringIO(), width=150, no_color=True, highlight=False)
        with console.capture() as text:
            console.print(self)
        return text.get().rstrip()

    def __len__(self) -> int:
        return len(self.rows)


def _sum(label: str, rows: Sequence[Placement]) -> Work:
    times = [row.seconds for row in rows if row.seconds is not None]
    steps = sum(not row.fused_with for row in rows)
    flops, nbytes = sum(row.flops for row in rows), sum(row.nbytes for row in rows)
    return Work(label, steps, flops, nbytes, sum(times) if times else None)


def _columns(rows: Sequence[Placement]) -> list[tuple[str, bool, Any]]:
    """(title, to the right, cell) of the columns that have something to show."""
    known = [
        ("node", False, lambda r: r.node or "-"),
        ("operator", False, lambda r: r.op_type),
        ("runs on", False, lambda r: r.runs_on),
        ("fused with", False, lambda r: r.fused_with),
        ("layout", False, lambda r: r.layout),
        ("FLOP", True, lambda r: in_units(r.flops, "")),
        ("bytes", True, lambda r: in_units(r.nbytes, "B")),
        ("ms", True, lambda r: milliseconds(r.seconds)),
        ("why", False, lambda r: r.reason),
    ]
    always = ("node", "operator", "runs on")
    return [column for column in known if column[0] in always or any(column[2](row) for row in rows)]
