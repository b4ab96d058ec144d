"""``pyflame-rt quantize``: files, figures, budgets and refusals."""

import json

import numpy as np
import pytest

import pyflame_rt
from pyflame_rt.cli.entry import main
from pyflame_rt.demo import model_path, test_set

IMAGES, LABELS = test_set()


def call(*arguments):
    with pytest.raises(SystemExit) as ended:
        main([str(a) for a in arguments])
    return ended.value.code or 0


@pytest.fixture
def data(tmp_path):
    np.save(tmp_path / "images.npy", IMAGES[:96])
    np.save(tmp_path / "labels.npy", LABELS[:96])
    return tmp_path


def test_the_table_the_file_and_the_page(data, capsys):
    out, page = data / "int8.onnx", data / "page.html"
    code = call("quantize", model_path(), "-o", out, "--data", data / "images.npy", "--labels", data / "labels.npy",
                "--html", page, "--method", "mse", "--bias-correction")  # fmt: skip
    text = capsys.readouterr().out
    assert code == 0
    assert all(word in text for word in ("constants", "right or equal", "time of a run", "StaticInt8: 4 of"))
    assert "conv2" in page.read_text("utf-8")
    got = pyflame_rt.InferenceSession(out).run(["digit"], {"image": IMAGES})[0]
    assert np.mean(got == LABELS) > 0.98


@pytest.mark.parametrize("mode", ["fp16", "bfloat16", "dynamic-int8", "static-int8", "weight-only"])
def test_modes(mode, data, capsys):
    out = data / "small.pfm"
    code = call("quantize", model_path(), "-o", out, "--mode", mode, "--data", f"image={data / 'images.npy'}", "--json")
    told = json.loads(capsys.readouterr().out)
    assert code == 0
    assert told["mode"] == mode.replace("-", "_")
    assert told["after"] >= 0.98
    assert told["compression_ratio"] > 1.5
    assert told["time_ratio"] > 0
    assert (told["time_ratio"] > 1) == bool(told["notes"])
    got = pyflame_rt.InferenceSession(out).run(["digit"], {"image": IMAGES})[0]
    assert np.mean(got == LABELS) > 0.97


def test_budgets_smoothing_and_exclusions(data, capsys):
    common = ("quantize", model_path(), "-o", data / "int8.onnx", "--data", data / "images.npy", "--json")
    assert call(*common, "--budget", 0.01, "--equalize", "--smooth", 0.5, "--exclude", "fc2") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["before"] - told["after"] <= 0.01
    assert "exclude_nodes" in told["skipped"]["fc2"]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--mode", "int3"], 2, "int3"),
        (["--method", "luck"], 2, "luck"),
        ([], 1, "--data"),
        (["--data", "nowhere.npy"], 2, "nowhere.npy"),
        (["--data", "labels.txt"], 2, "no .npy or .npz"),
        (["--data", "other=images.npy"], 2, "no input 'other'"),
        (["--data", "images.npy", "--exclude", "conv9"], 1, "no node 'conv9'"),
        (["--mode", "fp16", "--labels", "labels.npy"], 2, "--data"),
        (["--data", "images.npy", "--labels", "short.npy"], 2, "3 labels"),
        (["--data", "images.npy", "--labels", "images.npy"], 2, "float32 numbers"),
        (["--data", "images.npy", "--labels", "onehot.npy"], 2, "9 labels"),
        (["--data", "images.npy", "--exclude-op", "Gem"], 1, "Did you mean 'Gemm'?"),
        (["--data", "images.npy", "--budget", "2"], 2, "--budget"),
        (["--mode", "weight-only", "--bits", "3"], 1, "bits is 3"),
    ],
)
def test_refusals(arguments, code, said, data, capsys, monkeypatch):
    monkeypatch.chdir(data)
    (data / "labels.txt").write_text("no array")
    np.save("short.npy", LABELS[:3])
    np.save("onehot.npy", np.eye(10, dtype=np.int64)[LABELS[:9]])
    assert call("quantize", model_path(), "-o", "out.onnx", *arguments) == code
    told = capsys.readouterr()
    assert said in " ".join((told.out + told.err).split())


def test_suffixes(data, capsys):
    assert call("quantize", model_path(), "-o", data / "x.txt", "--mode", "fp16") == 1
    assert "suffix" in capsys.readouterr().err


def numbers(shape):
    """Two products, the second with a matrix or a vector of this shape."""
    graph = pyflame_rt.Graph("numbers")
    graph.add_input("x", ["N", 8])
    rng = np.random.default_rng(0)
    for name, sizes in (("v", (8, 8)), ("w", shape)):
        graph.add_initializer(name, rng.standard_normal(sizes).astype(np.float32))
    graph.add_node("first", "MatMul", ["x", "v"], ["h"])
    graph.add_node("last", "MatMul", ["h", "w"], ["y"])
    graph.add_output("y", None)
    return graph


@pytest.mark.parametrize("shape", [(8, 1), (8,)])
def test_a_model_of_single_numbers_has_no_right_answers(shape, tmp_path, capsys):
    """The largest of one number is always the first: all answers were right. In a row of them samples are counted."""
    pyflame_rt.save_model(numbers(shape), tmp_path / "one.pfm")
    np.save(tmp_path / "x.npy", np.ones((64, 8), np.float32))
    common = ("quantize", tmp_path / "one.pfm", "-o", tmp_path / "int8.pfm", "--data", tmp_path / "x.npy")
    assert call(*common, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["before"] is None
    assert told["after"] is None
    assert call(*common, "--budget", "0.01") == 1
    assert "scores of classes" in " ".join(capsys.readouterr().err.split())


def test_that_a_mode_is_slower_is_said_once(data, capsys, monkeypatch):
    monkeypatch.setattr("pyflame_rt.quantization.measured_ratio", lambda *_: 2.0)
    assert call("quantize", model_path(), "-o", data / "half.onnx", "--mode", "fp16") == 0
    told = capsys.readouterr()
    assert (told.out + told.err).count("slower than float32") == 1
