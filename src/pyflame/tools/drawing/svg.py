"""A drawing as SVG: boxes by layers, arrows as curves, modules as frames."""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.sax.saxutils import escape, quoteattr

from pyflame.tools.drawing.layers import Layout, lay_out

if TYPE_CHECKING:
    from pyflame.tools.drawing.boxes import Box, Drawing

__all__ = ["COLOURS", "svg_of"]

# fill and border by kind
COLOURS = {
    "input": ("#ffffff", "#475569"),
    "output": ("#ffffff", "#475569"),
    "weight": ("#fef9c3", "#a16207"),
    "module": ("#e2e8f0", "#334155"),
    "product": ("#dbeafe", "#1d4ed8"),
    "activation": ("#ffedd5", "#c2410c"),
    "norm": ("#dcfce7", "#15803d"),
    "move": ("#f1f5f9", "#94a3b8"),
    "reduce": ("#f3e8ff", "#7e22ce"),
    "plain": ("#f8fafc", "#64748b"),
}
LETTER, PAD, TITLE_HEIGHT, LINE_HEIGHT = 6.7, 18.0, 26.0, 13.0
_STYLE = (
    "text{font:12px system-ui,sans-serif;text-anchor:middle;fill:#0f172a}"
    ".s{font-size:10px;fill:#475569}.e{fill:none;stroke:#94a3b8;stroke-width:1.2}"
)


def box_size(box: Box) -> tuple[float, float]:
    """Room that a box's text needs."""
    longest = max(len(box.title) * LETTER, *(len(line) * LETTER * 0.85 for line in box.lines), 30.0)
    return longest + PAD, TITLE_HEIGHT + LINE_HEIGHT * len(box.lines)


def svg_of(drawing: Drawing) -> str:
    """The picture, as a document of its own."""
    sizes = {key: box_size(box) for key, box in drawing.boxes.items()}
    anchors = [key for key, box in drawing.boxes.items() if box.kind == "input"]
    layout = lay_out(sizes, [(source, target) for source, target, _ in drawing.arrows], anchors)
    width, height = max(layout.width, 40.0), max(layout.height, 40.0)
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
            f'height="{height:.0f}" role="img">'
        ),
        f"<title>{escape(drawing.title or 'graph')}</title><style>{_STYLE}</style>",
        (
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
            '<path d="M0 0L8 4L0 8z" fill="#94a3b8"/></marker></defs>'
        ),
        f'<rect width="{width:.0f}" height="{height:.0f}" fill="#ffffff"/>',
    ]
    parts += [_arrow(source, target, what, layout, sizes) for source, target, what in drawing.arrows]
    parts += [_box(box, *layout.places[key], *sizes[key]) for key, box in drawing.boxes.items()]
    return "".join([*parts, "</svg>\n"])


def _box(box: Box, x: float, y: float, width: float, height: float) -> str:
    fill, line = COLOURS[box.kind]
    left, top = x - width / 2, y - height / 2
    corner = height / 2 if box.kind in ("input", "output") else 5
    heavy = 2 if box.kind == "module" else 1
    texts = [f'<text x="{x:.1f}" y="{top + 17:.1f}">{escape(box.title)}</text>']
    for n, text in enumerate(box.lines):
        texts.append(f'<text class="s" x="{x:.1f}" y="{top + 17 + LINE_HEIGHT * (n + 1):.1f}">{escape(text)}</text>')
    tip = "\n".join(part for part in (".".join(box.path), box.tip or box.title) if part)
    return (
        f"<g class={quoteattr('n ' + box.kind)} data-key={quoteattr(box.key)}><title>{escape(tip)}</title>"
        f'<rect x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{height:.1f}" rx="{corner:.0f}" '
        f'fill="{fill}" stroke="{line}" stroke-width="{heavy}"/>{"".join(texts)}</g>'
    )


def _arrow(source: str, target: str, what: str, layout: Layout, sizes: dict[str, tuple[float, float]]) -> str:
    points = layout.routes.get((source, target))
    if points is None:  # it closes a cycle, and was laid out the other way
        points = layout.routes[target, source][::-1]
    down = points[0][1] <= points[-1][1]
    sign = 1 if down else -1
    start = (points[0][0], points[0][1] + sign * sizes[source][1] / 2)
    end = (points[-1][0], points[-1][1] - sign * sizes[target][1] / 2)
    path = [f"M{start[0]:.1f} {start[1]:.1f}"]
    before = start
    for point in [*points[1:-1], end]:
        middle = (before[1] + point[1]) / 2
        path.append(f"C{before[0]:.1f} {middle:.1f} {point[0]:.1f} {middle:.1f} {point[0]:.1f} {point[1]:.1f}")
        before = point
    return (
        f'<path class="e" d="{"".join(path)}" marker-end="url(#tip)" data-from={quoteattr(source)} '
        f"data-to={quoteattr(target)}><title>{escape(what)}</title></path>"
    )
