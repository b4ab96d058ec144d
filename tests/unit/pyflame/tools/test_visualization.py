import json
import re
import shutil
import subprocess
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import numpy as np
import pytest

import pyflame as pf
from pyflame import nn
from pyflame.tools.drawing.layers import lay_out
from pyflame_rt.graph.errors import UnsupportedFormatError

SVG = "{http://www.w3.org/2000/svg}"


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x):
        return x + self.fc2(pf.relu(self.fc1(x)))


class Net(nn.Module):
    def __init__(self, blocks=3):
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(blocks)])

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return pf.softmax(x, dim=-1)


def boxes(svg):
    """(kind, title, left, top, right, bottom) of each box."""
    found = []
    for g in ET.fromstring(svg).iter(f"{SVG}g"):
        rect, text = g.find(f"{SVG}rect"), g.find(f"{SVG}text")
        x, y, w, h = (float(rect.get(name)) for name in ("x", "y", "width", "height"))
        found.append((g.get("class").split()[1], text.text, x, y, x + w, y + h))
    return found


def test_an_svg_has_a_box_for_each_operator_and_no_two_overlap():
    svg = pf.tools.visualize_model(Net(), pf.ones([2, 8]))
    found = boxes(svg)
    titles = [title for _, title, *_ in found]
    assert titles.count("Relu") == 3
    assert titles.count("Softmax") == 1
    assert {"input", "output"} <= {kind for kind, *_ in found}
    for i, (_, _, a, b, c, d) in enumerate(found):
        for _, _, e, f, g, h in found[:i]:
            assert c <= e or g <= a or d <= f or h <= b
    root = ET.fromstring(svg)
    arrows = [p for p in root.iter(f"{SVG}path") if p.get("class") == "e"]
    keys = {g.get("data-key") for g in root.iter(f"{SVG}g")}
    assert arrows
    assert all(p.get("data-from") in keys and p.get("data-to") in keys for p in arrows)


def test_modules_fold():
    deep = boxes(pf.tools.visualize_model(Net(), pf.ones([2, 8])))
    flat = boxes(pf.tools.visualize_model(Net(), pf.ones([2, 8]), depth=2))
    less = boxes(pf.tools.visualize_model(Net(), pf.ones([2, 8]), depth=1))
    one = boxes(pf.tools.visualize_model(Net(), pf.ones([2, 8]), collapse=["blocks.1"]))
    assert [t for k, t, *_ in flat if k == "module"].count("blocks.0.fc1") == 1
    assert len(less) < len(deep)
    assert [t for k, t, *_ in one if k == "module"] == ["blocks.1"]
    assert len(boxes(pf.tools.visualize_model(Net(), pf.ones([2, 8]), depth=0))) == 4
    with pytest.raises(ValueError, match=r"no module 'nowhere'.*blocks\.0"):
        pf.tools.visualize_model(Net(), pf.ones([2, 8]), collapse=["nowhere"])


def test_a_large_graph_is_folded_until_it_is_readable():
    net = Net(130)
    svg = pf.tools.visualize_model(net, pf.ones([1, 8]), max_nodes=140)
    assert len(boxes(svg)) <= 140
    whole = pf.tools.visualize_model(net, pf.ones([1, 8]), max_nodes=2000)
    assert len(boxes(whole)) > 500
    deep = pf.ones([2])
    for _ in range(30):
        deep = pf.relu(deep * 2.0)
    with pytest.raises(ValueError, match="max_nodes allows 10"):
        pf.tools.visualize_graph(deep, max_nodes=10)


class Page(HTMLParser):
    def __init__(self):
        super().__init__()
        self.stack, self.scripts, self.outside = [], {}, []

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        if tag not in ("meta", "input", "path"):
            self.stack.append((tag, attributes.get("id", "")))
        self.outside += [v for k, v in attrs if k in ("src", "href")]

    def handle_endtag(self, tag):
        if tag not in ("meta", "input", "path"):
            assert self.stack.pop()[0] == tag

    def handle_data(self, data):
        if self.stack and self.stack[-1][0] == "script":
            self.scripts[self.stack[-1][1]] = data


def test_a_page_is_whole_and_needs_no_other_file():
    page = Page()
    page.feed(pf.tools.visualize_model(Net(), pf.ones([2, 8]), format="html"))
    assert not page.stack
    assert not page.outside
    data = json.loads(page.scripts["data"])
    assert sum(b["t"] == "Relu" for b in data["boxes"]) == 3
    assert data["modules"][:3] == ["blocks", "blocks/0", "blocks/0/fc1"]
    assert "blocks/0" in data["closed"]
    assert all(0 <= a < len(data["boxes"]) and 0 <= b < len(data["boxes"]) for a, b, _ in data["arrows"])


def test_names_cannot_break_out_of_a_picture():
    from pyflame_rt.graph import Graph

    g = Graph("</script><script>alert(1)</script>")
    g.add_input("<x>&\"'", [2])
    g.add_node('<b>"/n', "Relu", ["<x>&\"'"], ["y"])
    g.add_output("y", [2])
    page = Page()
    page.feed(pf.tools.visualize_graph(g, format="html"))
    assert not page.stack
    assert json.loads(page.scripts["data"])["boxes"][0]["t"] == "<x>&\"'"
    ET.fromstring(pf.tools.visualize_graph(g))
    assert '\\"' in pf.tools.visualize_graph(g, format="dot")


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs a browser")
def test_a_browser_draws_the_page(tmp_path):
    path = tmp_path / "page.html"
    pf.tools.visualize_model(Net(), pf.ones([2, 8]), path, depth=9)
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/profile"]
    done = subprocess.run([*command, "--dump-dom", path.as_uri()], capture_output=True, text=True, timeout=250)
    wanted = len(boxes(pf.tools.visualize_model(Net(), pf.ones([2, 8]))))
    assert len(re.findall(r'<g class="n ', done.stdout)) == wanted
    assert f"{wanted} boxes" in done.stdout


def test_what_is_drawn():
    x = pf.ones([2, 3])
    y = pf.relu(x + 1.0)
    assert "Relu" in pf.tools.visualize_graph(y)
    assert "Relu" in pf.tools.visualize_graph(pf.get_graph(y))
    model = nn.Linear(3, 2)
    optimizer = pf.optim.SGD(model.parameters(), lr=0.1)

    @pf.compile
    def step(x):
        loss = model(x).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    with pytest.raises(RuntimeError, match="not called yet"):
        pf.tools.visualize_graph(step)
    step(np.ones((4, 3), np.float32))
    modules = {t for k, t, *_ in boxes(pf.tools.visualize_graph(step, depth=0)) if k == "module"}
    assert {"Linear", "optimizer"} <= modules
    with pytest.raises(ValueError, match="evaluated"):
        pf.tools.visualize_graph(pf.eval(y))
    with pytest.raises(TypeError, match="Received: int"):
        pf.tools.visualize_graph(3)


def test_files(tmp_path):
    for suffix, start in ((".svg", "<svg"), (".html", "<!doctype"), (".dot", "digraph")):
        path = tmp_path / f"graph{suffix}"
        assert pf.tools.visualize_model(nn.ReLU(), pf.ones([2]), path) == path.read_text("utf-8")
        assert path.read_text("utf-8").startswith(start)
    with pytest.raises(UnsupportedFormatError, match="png"):
        pf.tools.visualize_model(nn.ReLU(), pf.ones([2]), tmp_path / "graph.png")
    model = tmp_path / "m.onnx"
    pf.export(Net(), pf.ones([1, 8]), model)
    drawn = pf.tools.visualize_graph(str(model), show_weights=True, depth=9)
    assert any(kind == "weight" for kind, *_ in boxes(drawn))


def test_cycles_of_folded_modules_are_laid_out():
    sizes = dict.fromkeys("abc", (40.0, 20.0))
    placed = lay_out(sizes, [("a", "b"), ("b", "a"), ("b", "c"), ("c", "c")])
    assert set(placed.places) == set("abc")
    assert lay_out({}, []).places == {}
