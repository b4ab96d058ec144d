"""Pictures of curves: what is drawn can be told apart and lies within the picture."""

import itertools
import xml.etree.ElementTree as ET

import pytest

from pyflame_rt.curves import WIDTH, draw


@pytest.mark.parametrize("count", [1, 3, 20])
@pytest.mark.parametrize("length", [3, 33, 300])
def test_names_do_not_meet(count, length):
    names = [f"{i:02d}{'<' * length}" for i in range(count)]
    picture = ET.fromstring(draw({name: [(1.0, 0.5), (2.0, 0.25)] for name in names}))
    height = float(picture.get("height"))
    labels = [t for t in picture.findall(".//{*}text") if "<" in t.text]
    assert len(labels) == count
    rows = {}
    for label in labels:
        x, y = float(label.get("x")), float(label.get("y"))
        rows.setdefault(y, []).append((x, x + 6.7 * len(label.text)))  # as wide as browsers make a letter, on average
        assert y < height
    for row in rows.values():
        assert row[-1][1] <= WIDTH
        assert all(end < begin for (_, end), (begin, _) in itertools.pairwise(row))


def test_many_curves_are_told_apart():
    picture = ET.fromstring(draw({f"layer {i}": [(1.0, 0.5), (2.0, 0.25)] for i in range(15)}))
    lines = {(p.get("stroke"), p.get("stroke-dasharray")) for p in picture.findall(".//{*}polyline")}
    assert len(lines) == 15
