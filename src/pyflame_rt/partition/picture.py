"""A picture of a plan: parts by device along the order they run in, arrows for what crosses."""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.sax.saxutils import escape, quoteattr

if TYPE_CHECKING:
    from pyflame_rt.partition.plan import Partition, PartitionPlan

__all__ = ["picture"]

_HUES = ("#4c78a8", "#f58518", "#54a24b", "#b279a2", "#e45756", "#72b7b2", "#eeca3b", "#9d755d")
_LEFT, _TOP, _LANE, _BOX, _GAP, _LINE = 120, 70, 96, 190, 60, 16
_MOST = 200  # boxes and arrows that are drawn
_NAMES = 3


def picture(plan: PartitionPlan) -> str:
    """The plan as SVG."""
    devices = [d.label for d in plan.devices]
    parts = plan.partitions[:_MOST]
    level = _levels(plan)
    place = {
        p.index: (_LEFT + level[p.index] * (_BOX + _GAP), _TOP + devices.index(p.device.label) * _LANE) for p in parts
    }
    width = max((x for x, _ in place.values()), default=_LEFT) + _BOX + 40
    notes = [*_totals(plan), *(f"note: {note}" for note in plan.notes)]
    below = _TOP + len(devices) * _LANE + 10
    height = below + _LINE * (len(notes) + 1)
    body = [_text(16, 28, f"{plan.graph.name or 'model'}: {plan.strategy.value}, {len(plan.partitions)} parts", 18)]
    body += [_text(16, _TOP + i * _LANE + 34, name, 13) for i, name in enumerate(devices)]
    for c in plan.communications[:_MOST]:
        if c.source in place and c.target in place:
            body.append(_arrow(place[c.source], place[c.target], f"{c.value}: {_bytes(c.num_bytes)}"))
    worst = max((p.compute_us for p in plan.partitions), default=0.0) or 1.0
    body += [_box(p, place[p.index], _HUES[devices.index(p.device.label) % len(_HUES)], worst) for p in parts]
    body += [_text(16, below + _LINE * i, line, 12) for i, line in enumerate(notes)]
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="sans-serif" role="img">'
    )
    marker = (
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" '
        'orient="auto"><path d="M0 0 8 4 0 8z" fill="#666"/></marker></defs>'
    )
    return "\n".join([head, "<title>Partition plan</title>", marker, *body, "</svg>"]) + "\n"


def _levels(plan: PartitionPlan) -> dict[int, int]:
    """How many parts come before each."""
    maker = {name: p.index for p in plan.partitions for name in p.outputs}
    level: dict[int, int] = {}
    for part in plan.partitions:
        before = [level[maker[n]] for n in part.inputs if maker.get(n, part.index) < part.index]
        level[part.index] = 1 + max(before, default=-1)
    return level


def _box(part: Partition, at: tuple[int, int], hue: str, worst: float) -> str:
    x, y = at
    names = ", ".join(part.nodes[:_NAMES]) + (
        f" and {len(part.nodes) - _NAMES} more" if len(part.nodes) > _NAMES else ""
    )
    told = f"part {part.index} on {part.device.label}: {', '.join(part.nodes[:40])}"
    full = max(2.0, (_BOX - 2) * part.compute_us / worst)
    lines = [f"part {part.index}: {len(part.nodes)} nodes", f"{part.compute_us:,.1f} us, {_bytes(part.memory_bytes)}"]
    frame = (
        f'<g><title>{escape(told)}</title><rect x="{x}" y="{y}" width="{_BOX}" height="{_LANE - 24}" rx="4" '
        f'fill="{hue}" fill-opacity="0.25" stroke="{hue}"/>'
    )
    return "\n".join(
        [
            frame,
            f'<rect x="{x + 1}" y="{y + _LANE - 31}" width="{full:.1f}" height="6" fill="{hue}"/>',
            *(_text(x + 8, y + 18 + _LINE * i, line, 12) for i, line in enumerate(lines)),
            _text(x + 8, y + 18 + 2 * _LINE, names if len(names) < 30 else names[:27] + "...", 11),
            "</g>",
        ]
    )


def _arrow(start: tuple[int, int], end: tuple[int, int], label: str) -> str:
    x, y = start[0] + _BOX, start[1] + 30
    u, v = end[0], end[1] + 30
    middle = (x + u) / 2
    return (
        f'<path d="M{x} {y} C{middle} {y} {middle} {v} {u} {v}" fill="none" stroke="#666" '
        f'marker-end="url(#tip)"><title>{escape(label)}</title></path>'
    )


def _totals(plan: PartitionPlan) -> list[str]:
    line = (
        f"{_bytes(plan.total_comm_bytes)} cross between devices; imbalance {plan.load_imbalance:.0%}; predicted "
        f"{plan.total_latency_us:,.0f} us for {plan.batch_size} rows, {plan.predicted_speedup:.2f}x one device"
    )
    return [line, *([f"micro-batches of {plan.micro_batch_size} rows"] if plan.micro_batch_size else [])]


def _bytes(count: float) -> str:
    for unit in ("B", "KB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"


def _text(x: float, y: float, text: str, size: int) -> str:
    return f'<text x="{x}" y="{y}" font-size={quoteattr(str(size))}>{escape(text)}</text>'
