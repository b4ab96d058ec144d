"""What was measured, as a table for the terminal, Markdown, and a chart."""

from __future__ import annotations

import math
from html import escape
from typing import Any

from rich.table import Table

OURS = "pyflame"
COLOURS = {
    "pyflame": "#d9480f",
    "onnxruntime": "#1c7ed6",
    "openvino": "#7048e8",
    "torch": "#868e96",
    "torch.compile": "#ced4da",
}
Results = dict[str, dict[str, dict[str, Any]]]


def ratio(rows: dict[str, dict[str, Any]]) -> float | None:
    """Our time over the best peer's; below one is faster."""
    peers = [row["median"] for name, row in rows.items() if name != OURS and "median" in row]
    ours = rows.get(OURS, {}).get("median")
    return ours / min(peers) if peers and ours else None


def geometric_mean(results: Results) -> float | None:
    """Of the ratios of all models."""
    ratios = [r for r in map(ratio, results.values()) if r is not None]
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else None


def disagreement(rows: dict[str, dict[str, Any]]) -> str:
    """Which runtime's outputs are not those of the others, by their sums; "" when all agree."""
    known = {name: row["sums"] for name, row in rows.items() if "sums" in row}
    if len(known) < 2:
        return ""
    base = known.get("onnxruntime") or next(iter(known.values()))
    odd = [
        name
        for name, sums in known.items()
        if len(sums) != len(base)
        or any(abs(a[0] - b[0]) > 1e-3 * max(abs(b[0]), 1e-6) for a, b in zip(sums, base, strict=True))
    ]
    return ", ".join(odd)


def _row(name: str, rows: dict[str, dict[str, Any]], runtimes: list[str]) -> list[str]:
    def cell(runtime: str, key: str, scale: float, digits: int) -> str:
        row = rows.get(runtime, {})
        return f"{row[key] * scale:.{digits}f}" if key in row else "-"

    found, part = ratio(rows), rows.get(OURS, {}).get("of_peak")
    return [
        name,
        *(cell(r, "median", 1e3, 3) for r in runtimes),
        "-" if found is None else f"{found:.2f}",
        " / ".join(cell(r, "first", 1e3, 0) for r in runtimes),
        " / ".join(cell(r, "peak_mb", 1.0, 0) for r in runtimes),
        "-" if part is None else f"{100 * part:.0f} %",
    ]


def columns(runtimes: list[str]) -> list[str]:
    """Titles of the table."""
    return ["model", *(f"{r} ms" for r in runtimes), "ratio", "load + first run, ms", "memory, MB", "of peak"]


def table(results: Results, runtimes: list[str]) -> Table:
    """For the terminal."""
    shown = Table(title=f"first and memory: {' / '.join(runtimes)}", title_justify="left")
    for i, title in enumerate(columns(runtimes)):
        shown.add_column(title, justify="left" if i == 0 else "right")
    for name, rows in results.items():
        shown.add_row(*_row(name, rows, runtimes))
    return shown


def remarks(results: Results) -> list[str]:
    """The mean, failures and disagreements."""
    mean = geometric_mean(results)
    lines = [] if mean is None else [f"geometric mean of the ratios: {mean:.3f}"]
    for name, rows in results.items():
        lines += [f"{name}: {runtime} failed: {row['error']}" for runtime, row in rows.items() if "error" in row]
        odd = disagreement(rows)
        if odd:
            lines.append(f"{name}: outputs differ: {odd}")
    return lines


def markdown(results: Results, runtimes: list[str], about: dict[str, Any]) -> str:
    """For a file."""
    titles = columns(runtimes)
    lines = ["# Benchmark", "", *(f"- {key}: {value}" for key, value in about.items()), ""]
    lines += [f"- {line}" for line in remarks(results)]
    lines += ["", f"Columns of several figures: {' / '.join(runtimes)}.", "", "| " + " | ".join(titles) + " |"]
    lines.append("|" + "|".join(["---", *["---:"] * (len(titles) - 1)]) + "|")
    lines += ["| " + " | ".join(_row(name, rows, runtimes)) + " |" for name, rows in results.items()]
    return "\n".join([*lines, "", "![times](results.svg)", ""])


# ---------------------------------------------------------------------- chart

_FONT = 'font-family="system-ui, sans-serif" font-size="12"'
_LEFT, _WIDTH, _BAR, _GAP, _TOP = 170, 620, 11, 14, 56


def chart(results: Results, runtimes: list[str], limit: float = 4.0) -> str:
    """Times of each model as multiples of the best one's, as SVG."""
    per_unit = _WIDTH / limit
    height = _TOP + len(results) * (len(runtimes) * _BAR + _GAP) + 24
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_LEFT + _WIDTH + 130} {height}" {_FONT}>',
        f'<rect width="100%" height="{height}" fill="#fff"/>',
        _legend(runtimes),
    ]
    for k in range(int(limit) + 1):
        x = _LEFT + k * per_unit
        parts.append(f'<line x1="{x:.0f}" y1="{_TOP - 6}" x2="{x:.0f}" y2="{height - 20}" stroke="#e3e7ed"/>')
        parts.append(f'<text x="{x:.0f}" y="{height - 6}" text-anchor="middle" fill="#5c6672">{k}</text>')
    y = _TOP
    for name, rows in results.items():
        parts += _bars(name, rows, runtimes, y, per_unit, limit)
        y += len(runtimes) * _BAR + _GAP
    return "\n".join([*parts, "</svg>", ""])


def _legend(runtimes: list[str]) -> str:
    texts, x = ['<text x="10" y="18" fill="#1c2430">time, the fastest of each model = 1</text>'], _LEFT
    for runtime in runtimes:
        colour = COLOURS.get(runtime, "#adb5bd")
        texts.append(f'<rect x="{x}" y="28" width="11" height="11" fill="{colour}"/>')
        texts.append(f'<text x="{x + 16}" y="38" fill="#1c2430">{escape(runtime)}</text>')
        x += 34 + 7 * len(runtime)
    return "".join(texts)


def _bars(
    name: str, rows: dict[str, dict[str, Any]], runtimes: list[str], y: float, per_unit: float, limit: float
) -> list[str]:
    times = {r: rows[r]["median"] for r in runtimes if "median" in rows.get(r, {})}
    if not times:
        return []
    best, middle = min(times.values()), y + len(runtimes) * _BAR / 2 + 4
    parts = [f'<text x="{_LEFT - 8}" y="{middle:.0f}" text-anchor="end" fill="#1c2430">{escape(name)}</text>']
    for k, runtime in enumerate(runtimes):
        if runtime not in times:
            continue
        multiple, top = times[runtime] / best, y + k * _BAR
        length = min(multiple, limit) * per_unit
        colour = COLOURS.get(runtime, "#adb5bd")
        parts.append(f'<rect x="{_LEFT}" y="{top}" width="{length:.1f}" height="{_BAR - 2}" fill="{colour}"/>')
        label = f"{times[runtime] * 1e3:.3g} ms" + (f" ({multiple:.1f} x)" if multiple > limit else "")
        parts.append(f'<text x="{_LEFT + length + 4:.1f}" y="{top + 8}" font-size="9" fill="#5c6672">{label}</text>')
    return parts
