"""Kernels chosen by measurement: what is kept, what is taken, what never changes by itself."""

import json

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import pyflame_rt
from pyflame_rt.backends.cpu.lower.kernel_choice import Choices
from pyflame_rt.backends.cpu.onednn import library
from pyflame_rt.backends.cpu.run import tuned_choices as measured
from pyflame_rt.backends.cpu.run import tuning
from pyflame_rt.cli import main
from tests.tolerances import within


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("PYFLAME_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("PYFLAME_CACHE", raising=False)
    return tmp_path


@pytest.fixture
def model():
    rng = np.random.default_rng(0)
    weights = {"w1": rng.standard_normal((16, 16, 3, 3)), "w2": rng.standard_normal((24, 16, 1, 1))}
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"], "first", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["r"], "relu"),
        helper.make_node("Conv", ["r", "w2"], ["y"], "second"),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 16, 10, 10])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(a.astype(np.float32) * np.float32(0.1), n) for n, a in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]).SerializeToString()


X = np.random.default_rng(1).standard_normal((1, 16, 10, 10)).astype(np.float32)


def ways(model, **options):
    """The result, and node -> kernel."""
    settings = {"num_threads": 1, "fast_math": True, "optimization_level": "none", **options}
    with pyflame_rt.InferenceSession(model, pyflame_rt.SessionOptions(**settings)) as session:
        (y,) = session.run(None, {"x": X})
        cases = session._compile(overrides=False).executable._last.lowered.cases
        return y, {nodes[0]: case.way for case in cases.values() for nodes in case.places}, session.explain().notes


def stored(folder):
    (found,) = json.loads((folder / "tuning.json").read_text())["contents"].values()
    return found


def test_rules_decide_without_measurements(model, folder):
    y, taken, _ = ways(model)
    assert taken == {"first": "winograd4", "second": "product"}
    assert not (folder / "tuning.json").exists()
    exact = pyflame_rt.InferenceSession(model, providers=["ReferenceExecutionProvider"]).run(None, {"x": X})[0]
    np.testing.assert_allclose(y, exact, **within("sums"))


@pytest.mark.skipif(not library.available(), reason="about what oneDNN does")
def test_tuning_times_every_way_and_keeps_the_fastest(model, folder, monkeypatch):
    times = {"winograd4": 3.0, "winograd2": 2.0, "padded": 2.5, "library": 1.0, "product": 0.5}

    def pretend(plan, _feeds, _hooks):
        return {place: times[case.way] for case in plan.lowered.cases.values() for place in case.places}

    monkeypatch.setattr(tuning, "_node_times", pretend)
    plain = ways(model)[0]
    y, taken, _ = ways(model, tune=True)
    assert taken == {"first": "library", "second": "product"}
    assert sorted(stored(folder).values()) == ["library", "product"]
    np.testing.assert_allclose(y, plain, **within("sums"))
    assert ways(model)[1] == taken  # remembered, without the option
    assert [case.split(" ")[0] for case in sorted(stored(folder))] == ["Conv", "Conv+Relu"]  # not the first one alone
    times.update(library=9.0)
    assert ways(model, tune=True)[1] == taken  # and not measured a second time
    assert ways(model, num_threads=2)[1]["first"] == "winograd4"  # another number of threads is another case


@pytest.mark.skipif(not library.available(), reason="about what oneDNN does")
def test_measuring_for_real(model, folder):
    exact = ways(model)[0]
    y, taken, notes = ways(model, tune=True)
    assert set(taken) == {"first", "second"}
    assert len(stored(folder)) == 2
    assert not any("tune" in note for note in notes)
    np.testing.assert_allclose(y, exact, **within("sums"))


def test_strict_mode_sums_as_written(model):
    y, taken, notes = ways(model, strict_math_mode=True)
    assert taken == {"first": "padded", "second": "product"}
    assert ways(model, fast_math=False)[1] == taken
    assert not any("strict_math_mode" in note for note in notes)
    x = X.copy()
    x[0, :, 0, 0] = np.inf
    with pyflame_rt.InferenceSession(model, pyflame_rt.SessionOptions(strict_math_mode=True)) as session:
        far = session.run(None, {"x": x})[0][0, :, 4:, 4:]
    np.testing.assert_allclose(far, y[0, :, 4:, 4:], **within("elements"))


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"a": 3}', "null"])
def test_a_damaged_file_is_ignored_and_replaced(model, folder, text):
    (folder / "tuning.json").write_text(text)
    assert ways(model)[1]["first"] == "winograd4"
    assert measured.keep_ways(1, {"case": "way"})
    assert measured.measured_ways(1) == {"case": "way"}


def test_a_kernel_that_no_longer_exists_is_not_taken(model):
    ways(model, tune=True)
    for case in measured.measured_ways(1):
        measured.keep_ways(1, {case: "vanished"})
    assert ways(model)[1] == {"first": "winograd4", "second": "product"}


def test_nothing_is_kept_when_caching_is_off(model, folder, monkeypatch):
    monkeypatch.setenv("PYFLAME_CACHE", "0")
    ways(model, tune=True)
    assert not (folder / "tuning.json").exists()


@pytest.mark.skipif(not library.available(), reason="about what oneDNN does")
def test_the_command_line(model, folder, capsys, tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(model)

    def call(*arguments):
        with pytest.raises(SystemExit) as ended:
            main(["tune", str(path), "--threads", "1", *arguments])
        assert not ended.value.code
        return capsys.readouterr().out

    rows = json.loads(call("--json"))["measured"]
    assert len(rows) == 2
    assert all(row["chosen"] in row["microseconds"] for row in rows)
    assert json.loads(call("--json"))["measured"] == []
    assert "chosen" in call("--again")
    assert len(stored(folder)) == 2


def test_options_say_what_is_wrong():
    assert pyflame_rt.SessionOptions(tune=3).validate() == ["tune is 3, not a bool"]
    assert Choices(strict=True).pick("case", ("winograd4", "winograd2", "library"), "n") == "library"


def test_plans_kept_on_disk_follow_the_choices(model, tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(model)
    for _ in range(2):
        assert ways(str(path))[1]["first"] == "winograd4"
    assert ways(str(path), strict_math_mode=True)[1]["first"] == "padded"
    assert ways(str(path), fast_math=False)[1]["first"] == "padded"
    (case,) = [c for c in stored_cases(str(path)) if "[16,16,3,3]" in c]
    measured.keep_ways(1, {case: "winograd2"})
    for _ in range(2):
        assert ways(str(path))[1]["first"] == "winograd2"


def stored_cases(path):
    with pyflame_rt.InferenceSession(path, pyflame_rt.SessionOptions(num_threads=1, fast_math=True)) as session:
        session.run(None, {"x": X})
        return list(session._compile(overrides=False).executable._last.lowered.cases)


def test_a_loop_left_apart_counts_with_its_product():
    times = {("conv", "relu"): 3.0, ("conv",): 1.0, ("relu",): 0.5, ("other",): 7.0}
    assert tuning._seconds_at(("conv", "relu"), times) == 4.5
    assert tuning._seconds_at(("other",), times) == 7.0
