"""A page that shows a graph before and after its optimisation, side by side, with what each rule did."""

from __future__ import annotations

from collections import Counter
from html import escape
from typing import TYPE_CHECKING

from pyflame_rt.opt.rule import all_rules

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyflame_rt.graph import Graph, Node
    from pyflame_rt.opt.base import PassResult

__all__ = ["comparison_page"]

_STYLE = """
body{font:13px/1.45 system-ui,sans-serif;color:#1c2430;margin:18px}h1{font-size:19px}h2{font-size:14px}
.two{display:grid;grid-template-columns:1fr 1fr;gap:18px}
.two>div{max-height:75vh;overflow:auto;border:1px solid #d6dce5}
table{border-collapse:collapse;width:100%;font-size:12px}
td,th{padding:3px 8px;border-top:1px solid #e6eaf0;text-align:left}
th{background:#eef1f6;position:sticky;top:0}td{overflow-wrap:anywhere}tr.gone td{background:#fdeceb}
tr.made td{background:#e7f4ea}tr.lit td{outline:2px solid #3b6fd4;outline-offset:-2px}td.r{text-align:right}
"""
_SCRIPT = """
for(const row of document.querySelectorAll('tr[data-with]'))row.addEventListener('mouseenter',()=>{
 for(const lit of document.querySelectorAll('.lit'))lit.classList.remove('lit');
 for(const id of [row.id,...row.dataset.with.split(' ')])document.getElementById(id)?.classList.add('lit');
});
"""


def comparison_page(before: Graph, after: Graph, result: PassResult, figures: Sequence[tuple[str, str, str]]) -> str:
    """HTML that needs no other file; pointing at a node shows what became of it, or what it stands for.

    Args:
        before: the graph as loaded.
        after: the optimised graph.
        result: what the passes did.
        figures: rows of (what, before, after).
    """
    origins = result.origins()
    old = {node.name: f"a{i}" for i, node in enumerate(before.nodes)}
    new = {node.name: f"b{i}" for i, node in enumerate(after.nodes)}
    became: dict[str, list[str]] = {}
    for name in new:
        for source in origins.get(name, ("", (name,)))[1]:
            became.setdefault(source, []).append(new[name])
    rules = {name: rule for name, (rule, _) in origins.items()}
    left = _table(before.nodes, old, became, {n.name: _fate(result, n.name) for n in before.nodes}, "gone")
    stands = {name: [old[s] for s in origins[name][1] if s in old] for name in new if name in origins}
    right = _table(after.nodes, new, stands, rules, "made")
    head = "".join(f"<tr><td>{escape(a)}</td><td class=r>{b}</td><td class=r>{c}</td></tr>" for a, b, c in figures)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(before.name)}, optimised</title>'
        f"<style>{_STYLE}</style></head><body><h1>{escape(before.name or 'model')}, before and after</h1>"
        f"<table><tr><th></th><th>before</th><th>after</th></tr>{head}</table>{_rules(result)}"
        f'<div class="two"><div>{left}</div><div>{right}</div></div><script>{_SCRIPT}</script></body></html>\n'
    )


def _fate(result: PassResult, name: str) -> str:
    """The first rule that took a node away."""
    return next((r.rule for r in result.rewrites if name in r.removed and name not in r.made), "")


def _rules(result: PassResult) -> str:
    about = {rule.name: rule.about for rule in all_rules()}
    rows = "".join(
        f"<tr><td>{escape(name)}</td><td class=r>{count}</td><td>{escape(about.get(name, ''))}</td></tr>"
        for name, count in Counter(r.rule for r in result.rewrites).most_common()
    )
    return (
        f"<h2>What was done</h2><table><tr><th>rule</th><th>times</th><th></th></tr>{rows}</table><h2>The graphs</h2>"
    )


def _table(
    nodes: Sequence[Node],
    ids: Mapping[str, str],
    others: Mapping[str, Sequence[str]],
    rules: Mapping[str, str],
    kind: str,
) -> str:
    rows = "".join(
        _row(node, ids[node.name], others.get(node.name, ()), rules.get(node.name, ""), kind) for node in nodes
    )
    return f"<table><tr><th>node</th><th>operator</th><th>reads</th><th>rule</th></tr>{rows}</table>"


def _row(node: Node, place: str, others: Sequence[str], rule: str, kind: str) -> str:
    cells = "".join(f"<td>{escape(text)}</td>" for text in (node.name, node.full_name, ", ".join(node.inputs), rule))
    return f'<tr id="{place}" class="{kind if rule else ""}" data-with="{" ".join(others)}">{cells}</tr>'
