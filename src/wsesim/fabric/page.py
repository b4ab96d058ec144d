"""The report as one HTML page: heat map of the fabric, timeline of tasks, tables."""

from __future__ import annotations

import html
import json
from typing import Any

__all__ = ["page"]

_STYLE = """
:root { color-scheme: light dark; --line: #94a3b8; --soft: #64748b; }
body { font: 14px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 1080px; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
pre { overflow-x: auto; } svg { width: 100%; height: auto; }
table { border-collapse: collapse; }
td, th { padding: .15rem .6rem; text-align: left; border-bottom: 1px solid var(--line); }
select { font: inherit; } .note { color: var(--soft); } #tip { min-height: 1.5em; }
"""

_SCRIPT = """
const data = JSON.parse(document.getElementById("data").textContent);
const ns = "http://www.w3.org/2000/svg";
function make(name, attributes, parent) {
  const node = document.createElementNS(ns, name);
  for (const key in attributes) node.setAttribute(key, attributes[key]);
  parent.appendChild(node);
  return node;
}
function heat(share) {
  const hue = 220 - 220 * share;
  return `hsl(${hue} 75% ${88 - 38 * share}%)`;
}
const tip = document.getElementById("tip");
function drawMap(what) {
  const svg = document.getElementById("map");
  svg.replaceChildren();
  const size = 40, gap = 14, step = size + gap;
  svg.setAttribute("viewBox", `0 0 ${data.width * step + gap} ${data.height * step + gap}`);
  svg.style.maxWidth = `${(data.width * step + gap) * 1.6}px`;
  const most = Math.max(1, ...data.pes.map(p => p[what]));
  const mostWords = Math.max(1, ...data.links.flat());
  data.pes.forEach(p => {
    const x = gap + p.x * step, y = gap + p.y * step;
    const cell = make("rect", { x, y, width: size, height: size, rx: 4, fill: heat(p[what] / most) }, svg);
    const text = `PE (${p.x}, ${p.y}) ${p.program}: busy ${p.busy.toFixed(0)}, idle ${p.idle.toFixed(0)} cycles, ` +
      `${p.tasks} tasks, ${p.operations} operations, ${p.memory} bytes`;
    cell.addEventListener("mouseenter", () => { tip.textContent = text; });
    make("title", {}, cell).textContent = text;
  });
  const ends = [[-1, 0], [1, 0], [0, 1], [0, -1]];
  const names = ["west", "east", "south", "north"];
  data.links.forEach((sides, i) => sides.forEach((words, s) => {
    if (!words) return;
    const px = i % data.width, py = Math.floor(i / data.width), [dx, dy] = ends[s];
    const shift = s % 2 ? 4 : -4;
    const x = gap + px * step + size / 2 + dx * size / 2 + (dy ? shift : 0);
    const y = gap + py * step + size / 2 + dy * size / 2 + (dx ? shift : 0);
    const line = make("line", { x1: x, y1: y, x2: x + dx * gap, y2: y + dy * gap,
      stroke: heat(words / mostWords), "stroke-width": 2 + 4 * words / mostWords }, svg);
    make("title", {}, line).textContent = `(${px}, ${py}) to the ${names[s]}: ${words} words`;
  }));
}
function drawTimeline() {
  const svg = document.getElementById("time");
  const rows = [...new Set(data.timeline.map(t => t[0] + "," + t[1]))].slice(0, 64);
  if (!rows.length) {
    const note = document.createElement("p");
    note.textContent = "No tasks were recorded.";
    svg.replaceWith(note);
    return;
  }
  const width = 1000, left = 60, high = 14;
  const end = Math.max(1, ...data.timeline.map(t => t[3]));
  svg.setAttribute("viewBox", `0 0 ${width} ${rows.length * high + 24}`);
  const at = t => left + (width - left - 10) * t / end;
  const names = [...new Set(data.timeline.map(t => t[4]))];
  rows.forEach((row, i) => {
    make("text", { x: left - 6, y: i * high + 11, "text-anchor": "end", "font-size": 9, fill: "currentColor" }, svg)
      .textContent = row;
  });
  data.timeline.forEach(t => {
    const i = rows.indexOf(t[0] + "," + t[1]);
    if (i < 0) return;
    const hue = names.indexOf(t[4]) * 137 % 360;
    const bar = make("rect", { x: at(t[2]), y: i * high + 2, width: Math.max(.6, at(t[3]) - at(t[2])), height: high - 4,
      fill: `hsl(${hue} 65% 55%)` }, svg);
    make("title", {}, bar).textContent = `${t[4]} on (${t[0]}, ${t[1]}): ${t[2].toFixed(0)} to ${t[3].toFixed(0)}`;
  });
  [0, .25, .5, .75, 1].forEach(f => {
    make("text", { x: at(end * f), y: rows.length * high + 16, "text-anchor": f ? (f < 1 ? "middle" : "end") : "start",
      "font-size": 9, fill: "currentColor" }, svg).textContent = `${Math.round(end * f).toLocaleString("en")} cycles`;
  });
}
document.getElementById("what").addEventListener("change", e => drawMap(e.target.value));
drawMap("busy");
drawTimeline();
"""


def page(data: dict[str, Any], summary: str) -> str:
    """The whole page; the numbers travel inside it as JSON."""
    rows = "".join(
        f"<tr><td>{html.escape(c['name'])}</td><td>{c['value']:g}</td>"
        f"<td>{'published' if c['published'] else 'assumed'}</td><td>{html.escape(c['source'])}</td></tr>"
        for c in data["constants"]
    )
    keep = {k: data[k] for k in ("width", "height", "pes", "links", "timeline")}
    payload = json.dumps(keep).replace("</", "<\\/")
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Run on the simulated wafer</title><style>{_STYLE}</style></head><body>
<h1>Run on the simulated wafer</h1>
<p class="note">{html.escape(data["label"])}. Words, wavelets and hops are counted exactly.</p>
<pre>{html.escape(summary)}</pre>
<h2>Fabric</h2>
<p><label>Colour of the PEs: <select id="what"><option value="busy">busy cycles</option>
<option value="tasks">tasks</option><option value="operations">vector operations</option>
<option value="memory">memory</option></select></label>
<span class="note">Lines between PEs: words on the link.</span></p>
<svg id="map" role="img" aria-label="Heat map of the fabric"></svg>
<p id="tip" class="note"></p>
<h2>Timeline of tasks</h2>
<svg id="time" role="img" aria-label="Timeline of tasks"></svg>
<h2>Constants of the cycle model</h2>
<table><tr><th>name</th><th>value</th><th></th><th>source</th></tr>{rows}</table>
<script type="application/json" id="data">{payload}</script>
<script>{_SCRIPT}</script></body></html>
"""
