"""What happened while training, as numbers and as a picture."""

from __future__ import annotations

import json
import math
from html import escape
from pathlib import Path
from typing import Any

__all__ = ["History"]

WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 720, 360, 70, 40, 30, 20
COLOURS = ("#1f6fb4", "#d1495b", "#2e933c", "#8e5cb5", "#c47f17", "#37808a")


class History(dict[str, list[float]]):
    """One list for each thing measured, one number for each epoch; the losses of all steps are in `steps`.

    Example:
        >>> from pyflame.training import History
        >>> history = History()
        >>> history.add({"loss": 0.5, "val_loss": 0.6})
        >>> history["loss"], history.epochs
        ([0.5], 1)
    """

    def __init__(self, *args: Any, steps: list[float] | None = None) -> None:
        super().__init__(*args)
        self.steps: list[float] = steps or []

    @property
    def epochs(self) -> int:
        """How many epochs are in it."""
        return max((len(values) for values in self.values()), default=0)

    def add(self, logs: dict[str, float]) -> None:
        """Take in the numbers of one epoch; what was not measured in an epoch is NaN there."""
        before = self.epochs
        for name, value in logs.items():
            if isinstance(value, int | float):
                values = self.setdefault(name, [math.nan] * before)
                values.extend([math.nan] * (before - len(values)))
                values.append(float(value))

    def drop_last(self) -> None:
        """Forget the newest epoch."""
        last = self.epochs
        for name in [name for name, values in self.items() if len(values) == last]:
            self[name].pop()
            if not self[name]:
                del self[name]

    def best(self, name: str, mode: str = "min") -> tuple[int, float]:
        """The epoch (from 0) and value where a measure was best."""
        known = [(value, epoch) for epoch, value in enumerate(self[name]) if not math.isnan(value)]
        if not known:
            raise ValueError(f"{name!r} was never measured")
        value, epoch = min(known) if mode == "min" else max(known, key=lambda pair: (pair[0], -pair[1]))
        return epoch, value

    def save(self, path: str | Path) -> None:
        """Write the numbers as JSON."""
        Path(path).write_text(json.dumps({"epochs": dict(self), "steps": self.steps}, indent=1), "utf-8")

    def plot(self, path: str | Path | None = None, names: list[str] | None = None) -> str:
        """The curves as an SVG picture, written to a file where one is given.

        Args:
            path: The file.
            names: Which measures; by default all whose name ends in "loss", with the losses of all steps behind them.
        """
        chosen = names or [name for name in self if name.endswith("loss")]
        curves = {name: [(float(i + 1), v) for i, v in enumerate(self[name])] for name in chosen}
        if names is None and len(self.steps) > 1 and self.epochs:
            scale = self.epochs / len(self.steps)
            curves = {"step loss": [((i + 1) * scale, v) for i, v in enumerate(self.steps)], **curves}
        picture = draw(curves)
        if path is not None:
            Path(path).write_text(picture, "utf-8")
        return picture


def draw(curves: dict[str, list[tuple[float, float]]]) -> str:
    """Curves over epochs as SVG."""
    points = [p for curve in curves.values() for p in curve if math.isfinite(p[1])]
    if not points:
        return f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}"/>\n'
    x_end = max(x for x, _ in points) or 1.0
    low, high = min(y for _, y in points), max(y for _, y in points)
    low, high = (low, high) if high > low else (low - 0.5, high + 0.5)

    def place(x: float, y: float) -> str:
        across = LEFT + x / x_end * (WIDTH - LEFT - RIGHT)
        up = HEIGHT - BOTTOM - (y - low) / (high - low) * (HEIGHT - TOP - BOTTOM)
        return f"{across:.1f},{up:.1f}"

    parts = [_frame(low, high, x_end)]
    for number, (name, curve) in enumerate(curves.items()):
        faint = name == "step loss"
        colour = "#9db7cc" if faint else COLOURS[number % len(COLOURS)]
        line = " ".join(place(x, y) for x, y in _thinned(curve) if math.isfinite(y))
        parts.append(f'<polyline fill="none" stroke="{colour}" stroke-width="{1 if faint else 2}" points="{line}"/>')
        at = LEFT + 10 + 130 * number
        parts.append(f'<text x="{at}" y="18" fill="{colour}">{escape(name)}</text>')
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
        f'font-family="sans-serif" font-size="12">\n<rect width="100%" height="100%" fill="white"/>\n{body}\n</svg>\n'
    )


def _thinned(curve: list[tuple[float, float]], most: int = 1000) -> list[tuple[float, float]]:
    step = max(1, len(curve) // most)
    return curve[::step]


def _frame(low: float, high: float, x_end: float) -> str:
    lines = []
    for i in range(5):
        value = low + (high - low) * i / 4
        y = HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * i / 4
        lines.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e3e3e3"/>')
        lines.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end" fill="#555">{value:.4g}</text>')
        x = LEFT + (WIDTH - LEFT - RIGHT) * i / 4
        lines.append(f'<text x="{x:.1f}" y="{HEIGHT - 20}" text-anchor="middle" fill="#555">{x_end * i / 4:.4g}</text>')
    lines.append(f'<text x="{WIDTH / 2}" y="{HEIGHT - 4}" text-anchor="middle" fill="#555">epoch</text>')
    return "\n".join(lines)
