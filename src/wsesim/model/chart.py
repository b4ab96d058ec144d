"""Predicted against simulated, as a picture."""

from __future__ import annotations

import html
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["chart"]

_WIDE, _HIGH, _LEFT, _RIGHT, _TOP, _BOTTOM = 720, 400, 84, 24, 44, 56
_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#475569}.t{font-size:15px;font-weight:600;fill:#1e293b}"
    ".g{stroke:#cbd5e1}.p{fill:none;stroke:#2563eb;stroke-width:2}.d{fill:#2563eb}"
    ".s{fill:none;stroke:#dc2626;stroke-width:2.5}"
    "@media(prefers-color-scheme:dark){text{fill:#cbd5e1}.t{fill:#f1f5f9}.g{stroke:#475569}.p{stroke:#60a5fa}"
    ".d{fill:#60a5fa}.s{stroke:#f87171}}"
)


def chart(rows: Sequence[tuple[int, float, float | None]], *, title: str, unit: str = "cycles") -> str:
    """An SVG of ``(PEs, predicted, simulated or None)``, both axes logarithmic.

    >>> chart([(1, 100.0, 101.0), (64, 900.0, None)], title="matmul").startswith("<svg")
    True
    """
    if not rows or any(n < 1 or p <= 0 for n, p, _ in rows):
        raise ValueError("a chart needs at least one row, with positive numbers")
    values = [v for _, p, s in rows for v in (p, s) if v is not None and v > 0]
    across = _Axis(min(n for n, _, _ in rows), max(n for n, _, _ in rows), _LEFT, _WIDE - _RIGHT)
    up = _Axis(min(values), max(values), _HIGH - _BOTTOM, _TOP)
    parts = [f'<text class="t" x="{_LEFT}" y="22">{html.escape(title)}</text>']
    parts += [
        f'<line class="g" x1="{across.at(v):.1f}" x2="{across.at(v):.1f}" y1="{_TOP}" y2="{_HIGH - _BOTTOM}"/>'
        f'<text x="{across.at(v):.1f}" y="{_HIGH - _BOTTOM + 18}" text-anchor="middle">{_short(v)}</text>'
        for v in across.ticks()
    ]
    parts += [
        f'<line class="g" x1="{_LEFT}" x2="{_WIDE - _RIGHT}" y1="{up.at(v):.1f}" y2="{up.at(v):.1f}"/>'
        f'<text x="{_LEFT - 8}" y="{up.at(v) + 4:.1f}" text-anchor="end">{_short(v)}</text>'
        for v in up.ticks()
    ]
    line = " ".join(f"{across.at(n):.1f},{up.at(p):.1f}" for n, p, _ in sorted(rows))
    parts.append(f'<polyline class="p" points="{line}"/>')
    for n, p, s in rows:
        parts.append(f'<circle class="d" cx="{across.at(n):.1f}" cy="{up.at(p):.1f}" r="3"/>')
        if s is not None and s > 0:
            tip = f"{n} PEs: predicted {p:.0f}, simulated {s:.0f}"
            parts.append(
                f'<circle class="s" cx="{across.at(n):.1f}" cy="{up.at(s):.1f}" r="7"><title>{tip}</title></circle>'
            )
    middle = (_LEFT + _WIDE - _RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{_HIGH - 14}" text-anchor="middle">processing elements</text>')
    parts.append(
        f'<text x="{_WIDE - _RIGHT}" y="22" text-anchor="end">{html.escape(unit)}: '
        "line and dots predicted, rings simulated</text>"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDE} {_HIGH}" role="img" '
        f'aria-label="{html.escape(title, quote=True)}"><style>{_STYLE}</style>{"".join(parts)}</svg>\n'
    )


class _Axis:
    """A logarithmic axis from ``first`` to ``last`` in pixels."""

    def __init__(self, low: float, high: float, first: float, last: float) -> None:
        self.low, self.high = math.log10(low), math.log10(high)
        if self.high - self.low < 0.3:
            self.low, self.high = self.low - 0.15, self.high + 0.15
        self.first, self.last = first, last

    def at(self, value: float) -> float:
        share = (math.log10(value) - self.low) / (self.high - self.low)
        return self.first + (self.last - self.first) * share

    def ticks(self) -> list[float]:
        """Powers of ten inside; with few of them also their doubles and fivefolds."""
        steps = (1,) if self.high - self.low > 3 else (1, 2, 5)
        powers = range(math.floor(self.low), math.ceil(self.high) + 1)
        found = [10.0**p * s for p in powers for s in steps]
        return [v for v in found if self.low - 1e-9 <= math.log10(v) <= self.high + 1e-9]


def _short(value: float) -> str:
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"
