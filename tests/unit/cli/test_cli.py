import json

import numpy as np
import pytest

import pyflame_rt
from pyflame_rt.cli import main
from pyflame_rt.demo import model_path


@pytest.fixture
def cli(capsys):
    """Run a command; gives exit code, output and errors."""

    def call(*arguments):
        with pytest.raises(SystemExit) as ended:
            main([str(a) for a in arguments])
        captured = capsys.readouterr()
        return ended.value.code or 0, captured.out, captured.err

    return call


@pytest.fixture
def digits():
    return model_path()


def test_info(cli, digits):
    code, out, _ = cli("info", digits)
    assert code == 0
    assert "tensor(float32)" in out
    assert "Conv" in out
    facts = json.loads(cli("info", digits, "--json")[1])
    assert facts["inputs"] == [{"name": "image", "type": "tensor(float32)", "shape": [None, 1, 8, 8]}]
    assert facts["operators"]["Relu"] == 3
    assert facts["opsets"] == {"ai.onnx": 17}
    assert facts["parameter_count"] > 30_000


def test_run_with_files_and_random_inputs(cli, digits, tmp_path):
    image = np.zeros((2, 1, 8, 8), np.float32)
    np.save(tmp_path / "image.npy", image)
    np.savez(tmp_path / "feed.npz", image=image)
    expected = pyflame_rt.InferenceSession(digits).run(None, {"image": image})
    for given in (
        f"image={tmp_path}/image.npy",
        f"{tmp_path}/image.npy",
        f"{tmp_path}/feed.npz",
        f"image={tmp_path}/feed.npz",
    ):
        code, out, _ = cli("run", digits, "-i", given, "--json", "--save", tmp_path / "out.npz")
        assert code == 0
        assert json.loads(out)["outputs"][1]["values"] == expected[1].tolist()
        np.testing.assert_array_equal(np.load(tmp_path / "out.npz")["probabilities"], expected[0])
    code, out, _ = cli("run", digits, "--random", "--size", "N=3", "--repeat", 2)
    assert code == 0
    assert "[3, 10]" in out


def test_convert_there_and_back(cli, digits, tmp_path):
    assert cli("convert", digits, tmp_path / "d.pfm")[0] == 0
    code, out, _ = cli("convert", tmp_path / "d.pfm", tmp_path / "d.onnx", "--json")
    assert code == 0
    assert json.loads(out)["nodes"] == 13
    feed = {"image": np.ones((1, 1, 8, 8), np.float32)}
    a, b = (pyflame_rt.InferenceSession(p).run(None, feed)[0] for p in (digits, tmp_path / "d.onnx"))
    np.testing.assert_array_equal(a, b)
    code, _, err = cli("convert", digits, tmp_path / "d.txt")
    assert code == 1
    assert ".pfm or .onnx" in err


def test_verify(cli, digits, tmp_path, monkeypatch):
    code, out, _ = cli("verify", digits, "--size", "N=4", "--json")
    assert code == 0
    assert json.loads(out)["agree"]
    cli("convert", digits, tmp_path / "d.pfm")
    assert "agrees" in cli("verify", tmp_path / "d.pfm")[1]
    import pyflame_rt.cli.oracle as oracle

    monkeypatch.setattr(oracle.importlib.util, "find_spec", lambda name: None)
    assert "onnx.reference" in cli("verify", digits)[1]
    wrong = lambda graph, path, feed: ("wrong", [np.zeros((1, 10), np.float32), np.zeros(1, np.int64)])  # noqa: E731
    monkeypatch.setattr("pyflame_rt.cli.commands.run_oracle", wrong)
    code, out, _ = cli("verify", digits)
    assert code == 1
    assert "DIFFERS" in out


def test_explain_and_diff(cli, digits):
    assert "native" in cli("explain", digits)[1]
    row = json.loads(cli("explain", digits, "--json")[1])["rows"][1]
    assert row["op_type"] == "pyflame::FusedConvBNRelu"
    assert row["reason"].startswith("conv_bn_relu of ")
    assert "agree" in cli("diff", digits)[1]
    assert json.loads(cli("diff", digits, "--json")[1])["equal"]


@pytest.mark.parametrize("command", ["info", "run", "verify", "explain", "diff"])
def test_errors_are_one_line(cli, command):
    code, out, err = cli(command, "missing.onnx")
    assert (code, out) == (1, "")
    assert err.strip().splitlines() == ["error: there is no file 'missing.onnx'"]


def test_errors_of_runs_and_usage(cli, digits):
    code, _, err = cli("run", digits)
    assert code == 1
    assert "'image' is missing" in err
    assert cli("run", digits, "--random", "-p", "Nope")[0] == 1
    assert cli("run", digits, "-i", "image=missing.npy")[0] == 2
    assert cli("run", digits, "--random", "--size", "N")[0] == 2
    for command in ("run", "verify", "explain", "diff", "tune", "wafer"):
        code, _, err = cli(command, digits, "--size", "Q=4")
        assert (code, "'Q'" in err, "N" in err) == (2, True, True)
    assert cli("nonsense")[0] == 2
    assert cli("--version")[1].strip() == pyflame_rt.__version__


def test_demo(capsys):
    from pyflame_rt import demo

    demo.main()
    out = capsys.readouterr().out
    general = [name for name in pyflame_rt.get_available_providers() if name != "WSEExecutionProvider"]
    for name in general:
        assert name in out
    assert out.count("99.33%") == len(general)


def test_errors_are_json_where_output_would_be(cli, digits, tmp_path):
    (tmp_path / "empty.npy").touch()
    wrong = {
        ("info", "missing.onnx"): (1, "ModelNotFoundError", "'missing.onnx'"),
        ("run", digits): (1, "InputError", "'image'"),
        ("run", digits, "--random", "-p", "Nope"): (1, "BackendError", "'Nope'"),
        ("run", digits, "--random", "--size", "Q=4"): (2, "UsageError", "'Q'"),
        ("run", digits, "-i", f"image={tmp_path}/empty.npy"): (2, "UsageError", "empty.npy"),
        ("convert", digits, tmp_path / "no" / "d.pfm"): (1, "FileWriteError", str(tmp_path / "no")),
        ("nonsense",): (2, "UsageError", "'nonsense'"),
        ("info", digits, "--bogus"): (2, "UsageError", "--bogus"),
        ("wafer", digits, "--grid", "x"): (1, "InputError", "'x'"),
    }
    for arguments, (status, kind, words) in wrong.items():
        code, out, err = cli(*arguments, "--json")
        found = json.loads(err)["error"]
        assert (code, out, found["type"]) == (status, "", kind)
        assert words in found["message"]


@pytest.mark.parametrize("suffix", [".pfm", ".onnx"])
def test_errors_of_writing_name_the_file_asked_for(cli, digits, tmp_path, suffix):
    (tmp_path / f"folder{suffix}").mkdir()
    for name in (f"absent/model{suffix}", f"folder{suffix}"):
        code, _, err = cli("convert", digits, tmp_path / name)
        assert code == 1
        assert err.strip().startswith(f"error: cannot write '{tmp_path / name}': ")
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"folder{suffix}"]


def test_a_first_run_is_told_apart(cli, digits):
    found = json.loads(cli("run", digits, "--random", "--repeat", 3, "--json")[1])
    assert found["first_milliseconds"] > 0 < found["milliseconds"]
    only = json.loads(cli("run", digits, "--random", "--repeat", 0, "--json")[1])
    assert only["milliseconds"] is None
    assert "first run, compiling included" in cli("run", digits, "--random")[1]


def test_json_has_no_bare_nan(cli, tmp_path):
    graph = pyflame_rt.Graph("root")
    graph.add_input("x", [2])
    graph.add_node("root", "Sqrt", ["x"], ["y"])
    graph.add_output("y", [2])
    pyflame_rt.save_model(graph, tmp_path / "root.pfm")
    np.save(tmp_path / "x.npy", np.full(2, -1, np.float32))
    text = cli("run", tmp_path / "root.pfm", "-i", tmp_path / "x.npy", "--json")[1]
    assert json.loads(text, parse_constant=pytest.fail)["outputs"][0]["mean"] == "nan"
