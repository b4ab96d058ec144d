"""``pyflame-rt bench``: figures of every runtime, equal answers, a picture, typed errors."""

import json
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest

import pyflame_rt
from pyflame_rt.cli.bench import bars
from pyflame_rt.cli.entry import main
from pyflame_rt.format import save_model
from pyflame_rt.peers import Measured, measure_peers

DIGITS = Path(pyflame_rt.__file__).parent / "data" / "digits.onnx"
QUICK = ("--rounds", "1", "--seconds", "0")


def call(*arguments):
    with pytest.raises(SystemExit) as ended:
        main([str(a) for a in arguments])
    return ended.value.code or 0


def test_figures_of_both(tmp_path, capsys):
    pytest.importorskip("onnxruntime")
    picture = tmp_path / "times.svg"
    assert call("bench", DIGITS, "--against", "onnxruntime", *QUICK, "--svg", picture, "--json") == 0
    ours, theirs = json.loads(capsys.readouterr().out)
    assert (ours["runtime"], theirs["runtime"]) == ("pyflame", "onnxruntime")
    for one in (ours, theirs):
        assert one["runs"] >= 5
        assert 0 < one["median_ms"] <= one["p90_ms"]
        assert min(one["load_ms"], one["first_run_ms"], one["memory_bytes"]) > 0
    assert ours["difference"] == 0
    assert 0 < theirs["difference"] < 1e-4
    assert theirs["ratio"] == pytest.approx(ours["median_ms"] / theirs["median_ms"])
    names = [element.text for element in ET.parse(picture).iter() if element.tag.endswith("text")]
    assert {"pyflame", "onnxruntime"} <= set(names)


def test_files_that_others_cannot_read_are_written_for_them(tmp_path, capsys):
    pytest.importorskip("onnxruntime")
    save_model(pyflame_rt.InferenceSession(str(DIGITS)).graph(), tmp_path / "d.pfm")
    assert call("bench", tmp_path / "d.pfm", "--against", "onnxruntime", *QUICK) == 0
    out = capsys.readouterr().out
    assert "onnxruntime" in out
    assert "ratio" in out


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [(("--against", "tensorrt"), 1, "'tensorrt' is no runtime"), (("--size", "Q=4"), 2, "Q")],
)
def test_what_cannot_be_measured_is_refused(capsys, arguments, code, said):
    assert call("bench", DIGITS, *arguments) == code
    assert said in capsys.readouterr().err


def test_a_runtime_that_fails_is_named(tmp_path):
    pytest.importorskip("onnxruntime")
    (tmp_path / "m.onnx").write_bytes(b"nothing")
    with pytest.raises(pyflame_rt.PyFlameRTError, match=r"pyflame failed: .*m\.onnx"):
        measure_peers(str(tmp_path / "m.onnx"), {}, [])


def test_the_picture_has_a_bar_for_each():
    found = [Measured(f"r{i}", 1.0, 1.0, (1.0 + i, 2.0 + i), 1, 0.0) for i in range(3)]
    tree = ET.fromstring(bars("a<b", found))
    widths = [float(e.get("width")) for e in tree.iter() if e.tag.endswith("rect") and "%" not in e.get("width")]
    assert np.all(np.diff(widths) > 0)
    assert len(widths) == 3


def test_latency_against_load(tmp_path, capsys):
    picture = tmp_path / "load.svg"
    load = ("--clients", "3", "--rounds", "1", "--seconds", "0.1", "--threads", "1")
    assert call("bench", DIGITS, *load, "--svg", picture, "--json") == 0
    points = json.loads(capsys.readouterr().out)
    assert [point["clients"] for point in points] == [1, 2, 3]
    for point in points:
        assert point["requests"] >= point["clients"]
        assert 0 < point["p50_ms"] <= point["p99_ms"]
        # Nobody is answered twice: so many clients, each waiting p50 or longer half of the time.
        assert point["requests_per_second"] <= 2.5e3 * point["clients"] / point["p50_ms"]
        assert 1 <= point["rows_per_run"] <= point["clients"]
    lines = [e.get("points").split() for e in ET.parse(picture).iter() if e.tag.endswith("polyline")]
    assert [len(line) for line in lines] == [3, 3]


def test_load_of_a_model_that_cannot_be_batched(tmp_path, capsys):
    graph = pyflame_rt.Graph("fixed")
    graph.add_input("x", [1, 2])
    graph.add_node("n", "Neg", ["x"], ["y"])
    graph.add_output("y", [1, 2])
    save_model(graph, tmp_path / "fixed.pfm")
    assert call("bench", tmp_path / "fixed.pfm", "--clients", "2", "--rounds", "1", "--seconds", "0.05") == 0
    assert "requests ran one after the other" in capsys.readouterr().out


def test_load_has_no_peers(capsys):
    assert call("bench", DIGITS, "--clients", "2", "--against", "onnxruntime") == 2
    assert "the load is this runtime's alone" in capsys.readouterr().err
