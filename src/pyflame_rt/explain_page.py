"""An explanation as HTML: one page without further files, and a smaller piece for notebooks."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from pyflame_rt.explain import in_units, milliseconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyflame_rt.executable import Placement
    from pyflame_rt.explain import Explanation

__all__ = ["fragment", "page"]

_STYLE = """
.pfx{font:13px/1.45 system-ui,sans-serif;color:#1c2430;background:#fff;max-width:1500px}
.pfx h1{font-size:19px;margin:0 0 2px}.pfx h2{font-size:14px;margin:22px 0 6px}.pfx p{margin:3px 0;color:#4a5565}
.pfx .cards{display:flex;flex-wrap:wrap;gap:8px;margin:12px 0}
.pfx .card{border:1px solid #d6dce5;border-radius:6px;padding:6px 12px;min-width:74px}
.pfx .card b{display:block;font-size:17px}.pfx .card span{color:#4a5565;font-size:12px}
.pfx .bad b{color:#b3261e}
.pfx ul{margin:4px 0 4px 18px;padding:0;color:#4a5565}
.pfx table{border-collapse:collapse;width:100%;font-size:12px;font-variant-numeric:tabular-nums}
.pfx th{position:sticky;top:0;background:#eef1f6;text-align:left;padding:5px 8px;cursor:pointer;white-space:nowrap}
.pfx th.r,.pfx td.r{text-align:right;white-space:nowrap}
.pfx td{padding:3px 8px;border-top:1px solid #e6eaf0;vertical-align:top;overflow-wrap:anywhere}
.pfx tr.host td{background-color:#fdeceb}.pfx tr.move td{background-color:#fff6e0}.pfx tr.fused td{color:#667080}
.pfx tr.none td{color:#8b94a3}
.pfx td.bar{background-image:linear-gradient(#b9d2fa,#b9d2fa);background-repeat:no-repeat}
.pfx td.bar{background-position:right;background-size:var(--w) 100%}
.pfx input{font:inherit;padding:5px 9px;border:1px solid #b8c1cf;border-radius:6px;width:300px;margin:2px 10px 8px 0}
.pfx .key i{display:inline-block;width:11px;height:11px;margin:0 5px 0 14px;border:1px solid #d6dce5}
"""

_SCRIPT = """
for(const table of document.querySelectorAll('.pfx table')){
 const body=table.tBodies[0];
 table.tHead.addEventListener('click',event=>{
  const head=event.target.closest('th');if(!head)return;
  const k=head.cellIndex,up=head.dataset.up!=='1';head.dataset.up=up?'1':'0';
  const value=row=>{const c=row.cells[k],v=c.dataset.v;return v===undefined?c.textContent:+v};
  const rows=[...body.rows].sort((a,b)=>{const x=value(a),y=value(b);
   return (typeof x==='number'?y-x:x.localeCompare(y,undefined,{numeric:true}))*(up?1:-1)});
  body.append(...rows);
 });
}
const find=document.querySelector('.pfx input'),count=document.querySelector('.pfx .count');
find.addEventListener('input',()=>{
 const words=find.value.toLowerCase().split(/\\s+/).filter(Boolean);let shown=0;
 for(const row of document.querySelector('#nodes').tBodies[0].rows){
  const text=row.textContent.toLowerCase(),hit=words.every(w=>text.includes(w));
  row.hidden=!hit;shown+=hit;
 }
 count.textContent=shown+' rows';
});
"""


def page(explanation: Explanation) -> str:
    """A whole page, with every row, to sort and to search."""
    title = f"{explanation.provider}: {len(explanation.nodes)} nodes"
    search = (
        '<input type="search" placeholder="find nodes, operators, layouts" aria-label="find">'
        f'<span class="count">{len(explanation.rows)} rows</span>'
    )
    body = _head(explanation) + _kinds(explanation) + f"<h2>Nodes</h2>{search}{_key()}" + _nodes(explanation.rows)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>body{{margin:18px}}{_STYLE}</style></head>\n"
        f'<body><div class="pfx">{body}</div><script>{_SCRIPT}</script></body></html>\n'
    )


def fragment(explanation: Explanation, limit: int) -> str:
    """The same without script, and without the cheaper rows where there are many."""
    rows = explanation._costliest(limit)
    left = len(explanation.rows) - len(rows)
    more = f"<p>{left} cheaper rows are not shown; <code>to_html()</code> has all of them.</p>" if left else ""
    return f'<style>{_STYLE}</style><div class="pfx">{_head(explanation)}{_key()}{_nodes(rows)}{more}</div>'


def _key() -> str:
    kinds = (("#fdeceb", "runs on the host"), ("#fff6e0", "changes a layout"))
    return '<span class="key">' + "".join(f'<i style="background:{c}"></i>{t}' for c, t in kinds) + "</span>"


def _head(e: Explanation) -> str:
    flops, nbytes = sum(row.flops for row in e.rows), sum(row.nbytes for row in e.rows)
    steps = sum(bool(row.nbytes or row.seconds) for row in e.rows)
    cards = [
        ("nodes", str(len(e.nodes)), False),
        ("steps", str(steps), False),
        ("host steps", str(e.host_step_count), e.host_step_count > 0),
        ("reorders", str(e.reorders), False),
        ("arithmetic", in_units(flops, "FLOP") or "-", False),
        ("read and written", in_units(nbytes, "B") or "-", False),
    ]
    if e.run_seconds:
        cards.append(("a run", f"{e.run_seconds * 1e3:.3f} ms", False))
        cards.append(("speed", f"{flops / e.run_seconds / 1e9:.1f} GFLOP/s", False))
    shown = "".join(
        f'<div class="card{" bad" if bad else ""}"><b>{escape(value)}</b><span>{name}</span></div>'
        for name, value, bad in cards
    )
    notes = "".join(f"<li>{escape(line)}</li>" for line in e.remarks())
    return f'<h1>{escape(e.provider)}</h1><p>{escape(e.about)}</p><div class="cards">{shown}</div><ul>{notes}</ul>'


def _kinds(e: Explanation) -> str:
    whole = e.run_seconds or 0.0
    rows = "".join(
        f"<tr><td>{escape(w.label)}</td>{_number(w.steps, str(w.steps))}{_number(w.flops, in_units(w.flops, ''))}"
        f"{_number(w.nbytes, in_units(w.nbytes, 'B'))}{_time(w.seconds, whole)}</tr>"
        for w in e.by_kind()
    )
    head = _header([("kind of step", False), ("steps", True), ("FLOP", True), ("bytes", True), ("ms", True)])
    return f"<h2>By kind of step</h2><table>{head}<tbody>{rows}</tbody></table>"


def _nodes(rows: Sequence[Placement]) -> str:
    longest = max((row.seconds or 0.0 for row in rows), default=0.0)
    columns = ["node", "operator", "runs on", "fused with", "layout", "FLOP", "bytes", "ms", "why"]
    head = _header([(name, name in ("FLOP", "bytes", "ms")) for name in columns])
    body = "".join(_node(row, longest) for row in rows)
    return f'<table id="nodes">{head}<tbody>{body}</tbody></table>'


def _node(row: Placement, longest: float) -> str:
    kind = "host" if row.host_step else "move" if row.moves else "fused" if row.fused_with else ""
    if not kind and not row.layout and row.runs_on.startswith("folded"):
        kind = "none"
    texts = [row.node or "-", row.op_type, row.runs_on, row.fused_with, row.layout]
    cells = "".join(f"<td>{escape(text)}</td>" for text in texts)
    numbers = _number(row.flops, in_units(row.flops, "")) + _number(row.nbytes, in_units(row.nbytes, "B"))
    return f'<tr class="{kind}">{cells}{numbers}{_time(row.seconds, longest)}<td>{escape(row.reason)}</td></tr>'


def _header(columns: Sequence[tuple[str, bool]]) -> str:
    cells = "".join(f"<th{' class=r' if right else ''}>{name}</th>" for name, right in columns)
    return f"<thead><tr>{cells}</tr></thead>"


def _number(value: float, text: str) -> str:
    return f'<td class="r" data-v="{value:g}">{text}</td>'


def _time(seconds: float | None, whole: float) -> str:
    part = 100 * (seconds or 0.0) / whole if whole else 0.0
    return f'<td class="r bar" style="--w:{part:.1f}%" data-v="{seconds or 0.0:.9f}">{milliseconds(seconds)}</td>'
