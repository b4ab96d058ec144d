"""``pyflame-rt partition``: the table, the picture, the comparison."""

import json
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

import pyflame_rt
from pyflame_rt.cli.entry import main

DIGITS = Path(pyflame_rt.__file__).parent / "data" / "digits.onnx"


def call(*arguments):
    with pytest.raises(SystemExit) as ended:
        main([str(a) for a in arguments])
    return ended.value.code or 0


def test_table_picture_and_comparison(tmp_path, capsys):
    picture = tmp_path / "plan.svg"
    arguments = ("partition", DIGITS, "--parts", 2, "--strategy", "pipeline", "--svg", picture, "--run", "threads")
    assert call(*arguments) == 0
    text = capsys.readouterr().out
    assert all(word in text for word in ("cpu:0", "cpu:1", "pipeline: 2 parts", "equals the whole model"))
    assert ET.parse(picture).getroot().tag.endswith("svg")


def test_json_and_errors(capsys):
    assert call("partition", DIGITS, "-n", 2, "-s", "model", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert [p["device"] for p in told["partitions"]] == ["cpu:0", "cpu:1"]
    assert told["strategy"] == "model"
    assert call("partition", DIGITS, "-s", "fastest") == 1
    assert "Strategies: data" in " ".join(capsys.readouterr().err.split())
    assert call("partition", DIGITS, "--memory", 10) == 1
    assert "in no way" in " ".join(capsys.readouterr().err.split())
