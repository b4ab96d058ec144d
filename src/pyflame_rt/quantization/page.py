"""A page about a quantization: sizes, time, and where the accuracy went."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyflame_rt.quantization.report import QuantizationReport
    from pyflame_rt.quantization.sensitivity import LayerError

__all__ = ["quantization_page"]

_STYLE = """
body{font:13px/1.45 system-ui,sans-serif;color:#1c2430;margin:18px;max-width:1000px}h1{font-size:19px}h2{font-size:14px}
table{border-collapse:collapse;width:100%;font-size:12px}
td,th{padding:3px 8px;border-top:1px solid #e6eaf0;text-align:left}
th{background:#eef1f6}td{overflow-wrap:anywhere}td.r{text-align:right}.bar{background:#c8442f;height:9px}
.note{background:#fff4d6;padding:6px 10px}
"""


def quantization_page(
    name: str,
    report: QuantizationReport,
    layers: Sequence[LayerError],
    figures: Mapping[str, tuple[str, str]],
    excluded: Iterable[str] = (),
) -> str:
    """HTML that needs no other file.

    Args:
        name: of the model.
        report: what was done.
        layers: what each layer costs alone.
        figures: rows of what, before and after.
        excluded: layers that were left in float32 to hold a budget.

    Example:
        >>> from pyflame_rt.quantization import QuantizationReport, QuantMode, QuantStats
        >>> "<h1>net" in quantization_page("net", QuantizationReport.of(QuantStats(), QuantMode.FP16), [], {})
        True
    """
    rows = "".join(_cells(what, *pair) for what, pair in figures.items())
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in report.notes)
    stay = "".join(f"<tr><td>{escape(n)}</td><td>{escape(reason)}</td></tr>" for n, reason in report.skipped.items())
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(name)}, quantized</title>'
        f"<style>{_STYLE}</style></head><body><h1>{escape(name or 'model')} in {escape(report.mode.name)}</h1>{notes}"
        f"<table><tr><th></th><th>before</th><th>after</th></tr>{rows}</table>{_layers(layers, set(excluded))}"
        f"<h2>What stays in float32</h2><table><tr><th>node</th><th>why</th></tr>{stay}</table></body></html>\n"
    )


def _cells(what: str, before: str, after: str) -> str:
    return f"<tr><td>{escape(what)}</td><td class=r>{escape(before)}</td><td class=r>{escape(after)}</td></tr>"


def _layers(layers: Sequence[LayerError], excluded: set[str]) -> str:
    """One bar a layer: what it alone changes in the outputs."""
    if not layers:
        return ""
    worst = max(layer.error for layer in layers) or 1.0
    rows = "".join(
        f"<tr><td>{escape(layer.name)}</td><td>{escape(layer.op_type)}</td><td class=r>{layer.weight_bytes:,}</td>"
        f"<td class=r>{layer.error:.3%}</td><td style='width:30%'><div class=bar style='width:"
        f"{100 * layer.error / worst:.1f}%'></div></td><td>{'float32' if layer.name in excluded else ''}</td></tr>"
        for layer in layers
    )
    head = "<tr><th>layer</th><th>operator</th><th>bytes of weights</th><th>error</th><th></th><th>kept in</th></tr>"
    return f"<h2>Where the accuracy went: each layer quantized alone</h2><table>{head}{rows}</table>"
