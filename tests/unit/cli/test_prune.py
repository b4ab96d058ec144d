"""``pyflame-rt prune``: the file it writes, and what it tells."""

import json

import numpy as np
import pytest

import pyflame_rt
from pyflame_rt.cli.entry import main
from pyflame_rt.pruning import analyze_sparsity
from tests.unit.pruning.nets import mlp


def call(*arguments):
    with pytest.raises(SystemExit) as ended:
        main([str(a) for a in arguments])
    return ended.value.code or 0


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "model.onnx"
    pyflame_rt.export_onnx(mlp(), path)
    return path


def test_channels_are_removed(model, tmp_path, capsys):
    out = tmp_path / "small.onnx"
    assert call("prune", model, "-o", out, "--sparsity", 0.5, "--exclude", "fc1", "--repeat", 1, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    shapes = {n: list(t.shape) for n, t in pyflame_rt.InferenceSession(str(out)).graph().initializers.items()}
    assert shapes["fc1.weight"] == [32, 16]
    assert shapes["fc2.weight"] == [16, 32]
    assert told["removed_channels"] == {"fc2.weight": [16, 32]}
    assert told["after"]["bytes"] < told["before"]["bytes"]
    assert told["warnings"] == []


def test_weights_become_zero(model, tmp_path, capsys):
    out = tmp_path / "sparse.pfm"
    arguments = ["--granularity", "nm", "--pattern", "1:4", "--repeat", 1]
    assert call("prune", model, "-o", out, *arguments) == 0
    text = capsys.readouterr().out
    assert "fc2.weight" in text
    assert "75.0%" in text
    found = analyze_sparsity(pyflame_rt.load_model(out))
    assert found["fc1.weight"].sparsity == 0.75
    blocks = ["--granularity", "block", "--block", "2x2", "--layer", "fc1.weight=0.25", "--repeat", 1]
    assert call("prune", model, "-o", out, *blocks) == 0
    found = analyze_sparsity(pyflame_rt.load_model(out))
    assert found["fc1.weight"].sparsity == 0.25
    assert np.isclose(found["fc2.weight"].sparsity, 0.5)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--granularity", "rows"], 2),
        (["--criterion", "best"], 2),
        (["--pattern", "2-4"], 2),
        (["--layer", "fc1"], 2),
        (["--sparsity", "1.5"], 1),
        (["--exclude", "nothing"], 1),
        (["--criterion", "taylor"], 1),
    ],
    ids=lambda value: str(value),
)
def test_what_is_not_understood(model, tmp_path, capsys, arguments, code):
    out = tmp_path / "out.onnx"
    assert call("prune", model, "-o", out, *arguments) == code
    assert capsys.readouterr().err
    assert not out.exists()
