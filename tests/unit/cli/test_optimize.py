"""``pyflame-rt optimize``: files, figures and the page."""

import importlib
import json
from pathlib import Path

import numpy as np
import pytest

import pyflame_rt
from pyflame_rt.cli.entry import main
from pyflame_rt.cli.optimize import rewrite
from pyflame_rt.options import OptLevel

DIGITS = Path(pyflame_rt.__file__).parent / "data" / "digits.onnx"


def call(*arguments):
    with pytest.raises(SystemExit) as ended:
        main([str(a) for a in arguments])
    return ended.value.code or 0


def test_the_table_the_file_and_the_page(tmp_path, capsys):
    better, page = tmp_path / "better.onnx", tmp_path / "page.html"
    assert call("optimize", DIGITS, "-o", better, "--html", page, "--repeat", 1) == 0
    text = capsys.readouterr().out
    assert all(word in text for word in ("nodes", "steps", "bytes", "flops", "milliseconds"))
    html = page.read_text("utf-8")
    assert "conv_bn_relu" in html
    assert "pyflame::FusedConvBNRelu" in html
    assert "<script>" in html
    x = {info.name: value for info, value in _feed()}
    want = pyflame_rt.InferenceSession(str(DIGITS)).run(None, x)
    got = pyflame_rt.InferenceSession(str(better)).run(None, x)
    for a, b in zip(want, got, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def _feed():
    session = pyflame_rt.InferenceSession(str(DIGITS))
    inputs = session.graph().required_inputs
    return zip(inputs, pyflame_rt.random_feed(inputs).values(), strict=True)


def test_portable_files_load_in_onnxruntime(tmp_path, capsys):
    ort = pytest.importorskip("onnxruntime")
    better = tmp_path / "better.onnx"
    assert call("optimize", DIGITS, "-o", better, "--portable", "--repeat", 1, "--json") == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["after"]["nodes"] < figures["before"]["nodes"]
    x = {info.name: value for info, value in _feed()}
    options = ort.SessionOptions()
    options.log_severity_level = 4
    want, got = (
        ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"]).run(None, x)
        for path in (DIGITS, better)
    )
    for a, b in zip(want, got, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_portable_graphs_have_operators_of_onnx_alone():
    graph = pyflame_rt.InferenceSession(str(DIGITS)).graph()
    own, _ = rewrite(graph, OptLevel.ALL, portable=False)
    plain, _ = rewrite(graph, OptLevel.ALL, portable=True)
    assert any(node.domain == "pyflame" for node in own.nodes)
    assert not any(node.domain for node in plain.nodes)
    assert "BatchNormalization" not in [node.op_type for node in plain.nodes]


def test_other_suffixes_are_refused(tmp_path, capsys):
    assert call("optimize", DIGITS, "-o", tmp_path / "model.txt") == 1
    assert "the suffix must be" in " ".join(capsys.readouterr().err.split())


def test_times_are_those_of_the_code_that_stays(monkeypatch):
    """After a run that is not counted, so that what is compiled first is in neither column."""
    command = importlib.import_module("pyflame_rt.cli.optimize")
    made = []

    class Watched(pyflame_rt.InferenceSession):
        def __init__(self, graph, options):
            super().__init__(graph, options)
            self.runs, self.timed = 0, 0
            made.append((options, self))

        def run(self, *args):
            self.runs += 1
            return super().run(*args)

    def seconds(session, feed):
        assert session.runs > 0
        session.timed += 1
        return 0.5

    monkeypatch.setattr(command, "InferenceSession", Watched)
    monkeypatch.setattr(command, "_seconds", seconds)
    graph = pyflame_rt.Graph("g")
    graph.add_input("x", [2, 2])
    graph.add_node("n", "Exp", ["x"], ["y"])
    graph.add_output("y", [2, 2])
    assert command.measure(graph, {"x": np.zeros((2, 2), np.float32)}, 3)["milliseconds"] == 500.0
    ((options, session),) = [pair for pair in made if pair[1].timed]
    assert session.timed == 3
    assert not options.quick_start
