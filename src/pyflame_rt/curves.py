"""Curves as an SVG picture."""

from __future__ import annotations

import math
from html import escape

__all__ = ["draw"]

WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 720, 360, 70, 40, 15, 20  # without the names, which are below
ROW, LETTER, GAP = 18, 7.2, 20  # of the names: height of a row, width of a letter, and between two names
COLOURS = ("#1f6fb4", "#d1495b", "#2e933c", "#8e5cb5", "#c47f17", "#37808a")
DASHES = ("none", "7 4", "2 3")  # for the curves that have a colour again


def draw(curves: dict[str, list[tuple[float, float]]], across: str = "epoch") -> str:
    """Named curves of (x, y) points as SVG, from x = 0 on; ``across`` is what x counts.

    Example:
        >>> "polyline" in draw({"loss": [(1.0, 0.5), (2.0, 0.25)]})
        True
    """
    points = [p for curve in curves.values() for p in curve if math.isfinite(p[1])]
    if not points:
        return f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}"/>\n'
    x_end = max(x for x, _ in points) or 1.0
    low, high = min(y for _, y in points), max(y for _, y in points)
    low, high = (low, high) if high > low else (low - 0.5, high + 0.5)

    def place(x: float, y: float) -> str:
        right = LEFT + x / x_end * (WIDTH - LEFT - RIGHT)
        up = HEIGHT - BOTTOM - (y - low) / (high - low) * (HEIGHT - TOP - BOTTOM)
        return f"{right:.1f},{up:.1f}"

    parts = [_frame(low, high, x_end, across)]
    labels = _labels(list(curves))
    height = labels[-1][1] + ROW / 2
    for number, (name, curve) in enumerate(curves.items()):
        faint = name == "step loss"
        colour = "#9db7cc" if faint else COLOURS[number % len(COLOURS)]
        line = " ".join(place(x, y) for x, y in _thinned(curve) if math.isfinite(y))
        dashes = DASHES[number // len(COLOURS) % len(DASHES)]
        drawn = f'fill="none" stroke="{colour}" stroke-width="{1 if faint else 2}" stroke-dasharray="{dashes}"'
        parts.append(f'<polyline {drawn} points="{line}"/>')
        x, y, text = labels[number]
        parts.append(f'<path {drawn} d="M{x:.0f} {y - 4:.0f}h16"/>')
        parts.append(f'<text x="{x + 20:.0f}" y="{y:.0f}" fill="{colour}">{escape(text)}</text>')
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height:.0f}" '
        f'font-family="sans-serif" font-size="12">\n<rect width="100%" height="100%" fill="white"/>\n{body}\n</svg>\n'
    )


def _labels(names: list[str]) -> list[tuple[float, float, str]]:
    """Where each name goes below the picture, in rows; one that is wider than a row is cut at its beginning."""
    most = int((WIDTH - LEFT - RIGHT - 20) / LETTER)
    found, x, y = [], float(LEFT), HEIGHT + ROW
    for name in names:
        text = name if len(name) <= most else "\u2026" + name[1 - most :]
        width = 20 + LETTER * len(text)
        if x > LEFT and x + width > WIDTH - RIGHT:
            x, y = float(LEFT), y + ROW
        found.append((x, y, text))
        x += width + GAP
    return found


def _thinned(curve: list[tuple[float, float]], most: int = 1000) -> list[tuple[float, float]]:
    step = max(1, len(curve) // most)
    return curve[::step]


def _frame(low: float, high: float, x_end: float, across: str) -> str:
    lines = []
    for i in range(5):
        value = low + (high - low) * i / 4
        y = HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * i / 4
        lines.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e3e3e3"/>')
        lines.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end" fill="#555">{_number(value)}</text>')
        x = LEFT + (WIDTH - LEFT - RIGHT) * i / 4
        side = "end" if i == 4 else "middle"
        number = _number(x_end * i / 4)
        lines.append(f'<text x="{x:.1f}" y="{HEIGHT - 20}" text-anchor="{side}" fill="#555">{number}</text>')
    lines.append(f'<text x="{WIDTH / 2}" y="{HEIGHT - 4}" text-anchor="middle" fill="#555">{escape(across)}</text>')
    return "\n".join(lines)


def _number(value: float) -> str:
    return f"{value:.0f}" if 1e3 <= abs(value) < 1e7 else f"{value:.4g}"
