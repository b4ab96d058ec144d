"""What ``session.explain()`` gives: which node runs where, and why."""

from __future__ import annotations

import io
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

    from pyflame_rt.backends.base import Placement

__all__ = ["Explanation"]


@dataclass(frozen=True, slots=True)
class Explanation:
    """Where each node runs; prints as a table, shows as one in notebooks.

    Attributes:
        provider: who runs the model.
        about: what that provider is.
        rows: one Placement for each node.
        notes: what else is worth knowing, such as settings without effect.
        host_steps: how often runs so far left the provider's library for NumPy, by operator and
            reason.
        seconds: what loading took, by stage.

    Example:
        >>> from pyflame_rt.backends.base import Placement
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
    def host_step_count(self) -> int:
        """Nodes that run on the host although the provider computes elsewhere."""
        return sum(row.host_step for row in self.rows)

    @property
    def places(self) -> dict[str, int]:
        """How many nodes run in each place."""
        return dict(Counter(row.runs_on for row in self.rows))

    def summary(self) -> list[str]:
        """The findings in a few lines."""
        places = ", ".join(f"{count} on {place}" for place, count in self.places.items())
        lines = [
            f"{self.provider}: {self.about}",
            f"{len(self.rows)} nodes: {places or 'none'}; {self.host_step_count} host steps",
            *self.notes,
        ]
        for (op, reason), count in self.host_steps.items():
            lines.append(f"{op} ran on NumPy {count} times: {reason}")
        if self.seconds:
            spent = ", ".join(f"{stage} {s * 1e3:.1f} ms" for stage, s in self.seconds.items())
            lines.append(f"start: {spent}")
        return lines

    def table(self) -> Table:
        """The rows as a rich table."""
        from rich.table import Table

        table = Table("node", "operator", "runs on", "why", title=f"{self.provider}", title_justify="left")
        for row in self.rows:
            table.add_row(row.node or "-", row.op_type, row.runs_on, row.reason)
        return table

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return {
            "provider": self.provider,
            "about": self.about,
            "places": self.places,
            "host_step_count": self.host_step_count,
            "host_steps": [
                {"operator": op, "reason": reason, "count": n} for (op, reason), n in self.host_steps.items()
            ],
            "notes": list(self.notes),
            "seconds": dict(self.seconds),
            "rows": [{**asdict(row), "outputs": list(row.outputs)} for row in self.rows],
        }

    def to_html(self) -> str:
        """The table and summary as an HTML fragment."""
        from rich.console import Console

        console = Console(record=True, file=io.StringIO(), width=120)
        console.print(self)
        return console.export_html(inline_styles=True, code_format="<pre>{code}</pre>")

    _repr_html_ = to_html

    def __rich__(self) -> Any:
        from rich.console import Group

        return Group(self.table(), *self.summary())

    def __str__(self) -> str:
        from rich.console import Console

        console = Console(file=io.StringIO(), width=110, no_color=True, highlight=False)
        with console.capture() as text:
            console.print(self)
        return text.get().rstrip()

    def __len__(self) -> int:
        return len(self.rows)
