"""A drawing as a page of its own, whose modules fold and unfold."""

from __future__ import annotations

import json
from html import escape
from typing import TYPE_CHECKING

from pyflame.tools.drawing.layers import depths_of
from pyflame.tools.drawing.script import SCRIPT
from pyflame.tools.drawing.svg import COLOURS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyflame.tools.drawing.boxes import Drawing

__all__ = ["page_of"]

_STYLE = """
html,body{margin:0;height:100%;font:13px/1.4 system-ui,sans-serif;color:#0f172a;background:#fff}
body{display:grid;grid-template:auto 1fr/220px 1fr}
header{grid-column:1/3;display:flex;gap:10px;align-items:center;padding:8px 14px;border-bottom:1px solid #cbd5e1}
header h1{font-size:16px;margin:0 10px 0 0}header input{padding:4px 8px;width:220px}
#count{color:#475569;margin-left:auto}
#tree{overflow:auto;border-right:1px solid #cbd5e1;padding:6px 0}
#tree button{display:block;width:100%;border:0;background:none;text-align:left;font:inherit;padding:2px 6px}
#tree button:hover{background:#e2e8f0}
svg{width:100%;height:100%;touch-action:none;cursor:grab}
svg text{font:12px system-ui,sans-serif;text-anchor:middle;fill:#0f172a;pointer-events:none}
svg .s{font-size:10px;fill:#475569}.e{fill:none;stroke:#94a3b8;stroke-width:1.2}
g.module{cursor:pointer}g.dim{opacity:.15}
"""


def _in_order(drawing: Drawing) -> list[tuple[str, ...]]:
    """Modules, each before those in it, neighbours in the order in which they begin."""
    anchors = [key for key, box in drawing.boxes.items() if box.kind == "input"]
    depths = depths_of(list(drawing.boxes), [(a, b) for a, b, _ in drawing.arrows], anchors)
    begins: dict[tuple[str, ...], int] = {}
    for key, box in drawing.boxes.items():
        for n in range(1, len(box.path) + 1):
            path = box.path[:n]
            begins[path] = min(begins.get(path, depths[key]), depths[key])
    return sorted(begins, key=lambda path: [(begins[path[:n]], path[n - 1]) for n in range(1, len(path) + 1)])


def page_of(drawing: Drawing, closed: Iterable[tuple[str, ...]], title: str) -> str:
    """The page.

    Args:
        drawing: nothing folded; the page folds.
        closed: paths of the modules that are folded at first.
        title: of the page.
    """
    numbers = {key: n for n, key in enumerate(drawing.boxes)}
    data = {
        "boxes": [
            {"t": b.title, "l": list(b.lines), "k": b.kind, "p": list(b.path), "tip": b.tip, "n": b.count}
            for b in drawing.boxes.values()
        ],
        "arrows": [[numbers[a], numbers[b], what] for a, b, what in drawing.arrows],
        "modules": ["/".join(path) for path in _in_order(drawing)],
        "closed": ["/".join(path) for path in sorted(closed)],
        "colours": COLOURS,
    }
    text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")  # no tag may end the script early
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{_STYLE}</style></head><body><header><h1>{escape(title)}</h1>"
        '<input id="find" type="search" placeholder="find boxes" aria-label="find boxes">'
        '<button id="all">open all</button><button id="none">fold all</button><button id="fit">fit</button>'
        '<span id="count"></span></header><nav id="tree" aria-label="modules"></nav>'
        '<svg id="graph" role="img"><defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" fill="#94a3b8"/></marker></defs><g id="view"></g></svg>'
        f'<script id="data" type="application/json">{text}</script><script>{SCRIPT}</script></body></html>\n'
    )
