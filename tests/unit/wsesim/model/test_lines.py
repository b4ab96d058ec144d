"""Costs of collectives along a line: fitted on short lines, checked on others."""

from __future__ import annotations

import pytest

from wsesim.csl.program.driver import compile_texts
from wsesim.fabric.timing import TIMING
from wsesim.model import LineCosts, chart, measure_lines
from wsesim.model.lines import _LAYOUT, _PE, _Line

BOUND = 0.06


@pytest.mark.parametrize("size", [4, 8, 32])
@pytest.mark.parametrize("kind", ["broadcast", "reduce", "allreduce", "scatter"])
def test_formula_holds_on_lines_it_was_not_made_from(kind, size):
    program = compile_texts({"layout.csl": _LAYOUT, "pe.csl": _PE}, arch="wse3", params={"size": size}, memcpy=True)
    line = _Line(program, TIMING)
    costs = measure_lines("wse3", TIMING)
    for words in (2, 64):
        took = max(line.times(kind, words))
        assert costs.cycles(kind, words, size - 1) == pytest.approx(took, rel=BOUND)


@pytest.mark.parametrize("size", [2, 5, 7])
@pytest.mark.parametrize("kind", ["broadcast", "reduce", "allreduce", "scatter", "gather"])
def test_words_and_hops_are_exact(kind, size):
    program = compile_texts({"layout.csl": _LAYOUT, "pe.csl": _PE}, arch="wse2", params={"size": size}, memcpy=True)
    line = _Line(program, TIMING)
    line.times(kind, 13)
    line.machine.run()
    assert LineCosts.wavelets(kind, 13, size) == (line.machine.wavelets, line.machine.hops)


def test_a_line_of_one_sends_nothing():
    assert LineCosts.wavelets("allreduce", 10, 1) == (0, 0)
    assert LineCosts.wavelets("gather", 0, 8) == (0, 0)


def test_chart_is_well_formed_and_names_its_points():
    import xml.etree.ElementTree as ET

    text = chart([(1, 100.0, 101.0), (64, 900.0, None)], title="a < b & c")
    root = ET.fromstring(text)
    rings = [e for e in root.iter("{http://www.w3.org/2000/svg}circle") if e.get("class") == "s"]
    dots = [e for e in root.iter("{http://www.w3.org/2000/svg}circle") if e.get("class") == "d"]
    assert (len(rings), len(dots)) == (1, 2)
    assert rings[0][0].text == "1 PEs: predicted 100, simulated 101"


@pytest.mark.parametrize("rows", [[], [(0, 1.0, None)], [(1, 0.0, None)]])
def test_chart_refuses_what_it_cannot_draw(rows):
    with pytest.raises(ValueError, match="positive"):
        chart(rows, title="")
