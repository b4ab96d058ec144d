"""Commands never write over what they read."""

import shutil

import numpy as np
import pytest

from pyflame_rt.cli import main
from pyflame_rt.demo import model_path


def refused(capsys, *arguments):
    with pytest.raises(SystemExit) as ended:
        main([str(a) for a in arguments])
    text = " ".join(capsys.readouterr().err.split())
    return ended.value.code == 1 and "is what this reads: give another file to write" in text


@pytest.fixture
def model(tmp_path):
    shutil.copyfile(model_path(), tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


@pytest.mark.parametrize("name", ["model.onnx", "./model.onnx", "link.onnx"])
@pytest.mark.parametrize("command", ["quantize --mode fp16 -o", "prune -o", "optimize -o", "convert"])
def test_models_are_not_written_over_their_source(command, name, model, capsys):
    before = model.read_bytes()
    model.with_name("link.onnx").symlink_to(model)
    first, *others = command.split()
    assert refused(capsys, first, model, *others, model.parent / name)
    assert model.read_bytes() == before


@pytest.mark.parametrize("command", ["optimize {} --html", "explain {} --html", "bench {} --svg", "partition {} --svg"])
def test_pages_and_pictures_are_not_either(command, model, capsys):
    before = model.read_bytes()
    output = ["-o", model.with_name("out.onnx")] if command.startswith("optimize") else []
    assert refused(capsys, *command.format(model).split(), model, *output)
    assert model.read_bytes() == before


def test_nor_are_data(model, capsys):
    x = model.with_name("x.npz")
    np.savez(x, image=np.zeros((1, 1, 8, 8), np.float32))
    before = x.read_bytes()
    for given in (x, f"image={x}"):
        assert refused(capsys, "run", model, "-i", given, "--save", x)
    assert x.read_bytes() == before
