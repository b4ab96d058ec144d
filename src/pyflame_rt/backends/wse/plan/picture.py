"""A picture of a program: which part of the tensors each PE holds, what its memory is spent on, what it does."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from pyflame_rt.backends.wse.emit.hostrun import parts_of
from pyflame_rt.backends.wse.emit.pe_program import describe
from pyflame_rt.backends.wse.plan.footprint import MEMORY
from pyflame_rt.backends.wse.plan.kernels import BYTES

if TYPE_CHECKING:
    from pyflame_rt.backends.wse.plan.kernels import PeBuffer, WaferPlan

__all__ = ["picture"]

# Larger grids are drawn as so many cells along a side, each standing for several PEs.
_CELLS = 32
_SIDE, _TOP, _LINE = 384, 64, 17
_MOST = 60  # kernels that are listed
_HUES = ("#4c78a8", "#f58518", "#54a24b", "#b279a2", "#e45756", "#72b7b2", "#eeca3b", "#9d755d")


def picture(plan: WaferPlan) -> str:
    """The plan as SVG."""
    shown = _largest(plan)
    bars = _memory(plan)
    lines = [
        f"phase {n}: {describe(i, kernel)}"
        for n, phase in enumerate(plan.phases)
        for i, kernel in enumerate(phase.kernels)
    ]
    if len(lines) > _MOST:
        lines = [*lines[:_MOST], f"and {len(lines) - _MOST} kernels more; manifest.json has all of them"]
    below = _TOP + max(_drawn(plan)[1] + 40, _LINE * (len(bars) + 2) + 60)
    height = below + _LINE * len(lines) + 32
    body = [
        _text(16, 28, f"{plan.grid.cols} columns x {plan.grid.rows} rows of PEs", size=18),
        _text(16, 48, f"the fuller the colour, the more of a tile of {_shortened({shown.value: None})!r} "
              f"{list(shown.tiling.shape)} is on the PE"
              if shown else "no data"),
        *_grid(plan, shown),
        *_bar(bars),
        *[_text(16, below + _LINE * i, t) for i, t in enumerate(lines)],
    ]  # fmt: skip
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1000 {height}" width="1000" height="{height}" '
        'font-family="sans-serif" role="img">'
    )
    return "\n".join([head, "<title>Placement on the wafer</title>", *body, "</svg>"]) + "\n"


def _largest(plan: WaferPlan) -> PeBuffer | None:
    """The buffer that shows the placement best: the one cut into most pieces, the largest of those."""
    found = [b for b in plan.buffers if b.shares is None]
    return max(
        found, key=lambda b: (len({*"".join(b.tiling.axes)}), math.prod(b.tiling.shape)), default=None
    )  # fmt: skip


def _text(x: float, y: float, text: str, size: int = 12) -> str:
    return f'<text x="{x}" y="{y}" font-size="{size}">{escape(text)}</text>'


def _grid(plan: WaferPlan, shown: PeBuffer | None) -> list[str]:
    rows, cols = plan.grid.rows, plan.grid.cols
    per, _, size = _drawn(plan)
    drawn: list[str] = []
    for row in range(-(-rows // per)):
        for col in range(-(-cols // per)):
            top, left = row * per, col * per
            down, right = min(top + per, rows) - 1, min(left + per, cols) - 1
            corners = {(y, x) for y in (top, down) for x in (left, right)}
            share = sum(_held(plan, shown, y, x)[0] for y, x in corners) / len(corners)
            more = (down - top + 1) * (right - left + 1) - 1
            place = f"PE ({left}, {top})"
            label = _held(plan, shown, top, left)[1] + (f"; the cell stands for {more} PEs more" if more else "")
            drawn.append(
                f'<rect x="{16 + col * size:.1f}" y="{_TOP + row * size:.1f}" width="{size - 1:.1f}" '
                f'height="{size - 1:.1f}" fill="#4c78a8" fill-opacity="{0.12 + 0.88 * share:.2f}" stroke="#999">'
                f"<title>{escape(f'{place}: {label}')}</title></rect>"
            )
    return drawn


def _drawn(plan: WaferPlan) -> tuple[int, float, float]:
    """How many PEs a cell stands for along a side, the height of the drawing and the side of a cell."""
    rows, cols = plan.grid.rows, plan.grid.cols
    per = max(1, -(-max(rows, cols) // _CELLS))
    size = _SIDE / max(-(-rows // per), -(-cols // per))
    return per, -(-rows // per) * size, size


def _held(plan: WaferPlan, shown: PeBuffer | None, row: int, col: int) -> tuple[float, str]:
    """The share of a PE's tile that is data, and where in the tensor it is."""
    if shown is None:
        return 0.0, "nothing"
    tiling = shown.tiling
    buffer = {"shape": list(tiling.shape), "axes": list(tiling.axes)}
    parts = parts_of(buffer, row, col, plan.grid.rows, plan.grid.cols)
    inside = ", ".join(f"{p.start}:{p.stop}" for p in parts)
    return math.prod(p.stop - p.start for p in parts) / max(1, tiling.elements), f"{shown.value} [{inside}]"


def _memory(plan: WaferPlan) -> list[tuple[str, int]]:
    """What a PE's bytes are spent on."""
    arrays = {**plan.slots, **plan.scratch}
    values: dict[str, list[str]] = {}
    for buffer in plan.buffers:
        values.setdefault(buffer.slot, []).append(buffer.value)
    bytes_of = {name: -(-count * BYTES[dtype] // 4) * 4 for name, (dtype, count) in arrays.items()}  # whole words
    bars = [
        (f"{name} {_shortened(dict.fromkeys(values.get(name, [])))}".strip(), bytes_of[name])
        for name in sorted(arrays, key=lambda n: -bytes_of[n])
    ]
    rest = bars[12:]
    bars = bars[:12] + ([(f"{len(rest)} more arrays", sum(n for _, n in rest))] if rest else [])
    if plan.footprint is not None:
        found = plan.footprint
        bars += [("code, about", found.code), ("stack", found.stack), ("reserved", found.reserve)]
    rest_is = "free" if plan.footprint is not None else "code, stack and what is free"
    return [*bars, (rest_is, max(0, MEMORY - sum(n for _, n in bars)))]


def _shortened(names: dict[str, None]) -> str:
    text = ", ".join(names)
    return text if len(text) < 48 else text[:45] + "..."


def _bar(bars: list[tuple[str, int]]) -> list[str]:
    """A bar of 48 KB with its legend."""
    left, width, at = 440.0, 540.0, 440.0
    drawn = [_text(left, _TOP - 8, f"memory of a PE: {MEMORY} bytes")]
    for i, (name, size) in enumerate(bars):
        hue = "#e6e6e6" if i == len(bars) - 1 else _HUES[i % len(_HUES)]
        part = width * size / MEMORY
        drawn.append(
            f'<rect x="{at:.1f}" y="{_TOP}" width="{part:.1f}" height="22" fill="{hue}">'
            f"<title>{escape(f'{name}: {size} bytes')}</title></rect>"
        )
        y = _TOP + 44 + _LINE * i
        drawn.append(f'<rect x="{left}" y="{y - 10}" width="10" height="10" fill="{hue}"/>')
        drawn.append(_text(left + 16, y, f"{name}: {size}"))
        at += part
    return drawn
