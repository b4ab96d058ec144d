"""Profiles of native runs, explanations, and the memory limit."""

import json
import threading
from pathlib import Path

import numpy as np
import pytest
from onnx import helper, numpy_helper

import pyflame_rt
from pyflame_rt import InferenceSession, OptLevel, SessionOptions
from pyflame_rt.backends.base import RunHooks
from pyflame_rt.backends.cpu.graph.cost_model import StepFacts
from pyflame_rt.backends.cpu.onednn import library
from pyflame_rt.backends.cpu.run import machine_peaks as peaks
from pyflame_rt.explain import MAX_ROWS, Explanation
from tests.tolerances import within
from tests.unit.backends.cpu.models import RNG, convnet, feed, mlp, model, weight


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PYFLAME_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(peaks, "_known", {})


def profiled(data, folder, **options):
    return InferenceSession(
        data, SessionOptions(enable_profiling=True, profile_file_prefix=str(folder / "p"), **options)
    )


@pytest.mark.skipif(not library.available(), reason="about what oneDNN does")
def test_a_profile_has_one_event_for_each_native_step(tmp_path):
    as_loaded = {"optimization_level": OptLevel.NONE}
    plain = InferenceSession(convnet(), SessionOptions(**as_loaded))
    session = profiled(convnet(), tmp_path, **as_loaded)
    x = feed(2, 32)
    for _ in range(3):
        assert np.array_equal(session.run(None, {"x": x})[0], plain.run(None, {"x": x})[0])
    document = json.loads(Path(session.end_profiling()).read_text("utf-8"))
    nodes = [e for e in document["events"] if e["category"] == "Node"]
    runs = [e for e in document["events"] if e["name"] == "model_run"]
    assert len(runs) == 3
    assert len(nodes) % 3 == 0
    fused = next(e for e in nodes if e["op_name"] == "Conv+LeakyRelu")
    assert fused["nodes"] == ["conv1", "relu1"]
    assert fused["name"] == "conv1+relu1_kernel_time"
    assert fused["kernel"].startswith("onednn")
    assert fused["flops"] == 2 * 2 * 16 * 16 * 16 * 27 + 2 * 2 * 16 * 16 * 16  # products, bias and Relu
    assert fused["output_type_shape"] == [{"float32": [2, 16, 16, 16]}]
    assert fused["gflops"] == pytest.approx(fused["flops"] / fused["duration_us"] / 1e3, rel=0.01, abs=0.001)
    assert document["machine_peaks"].keys() == {"gflops", "gb_per_s"}
    assert fused["gflops_of_peak"] == pytest.approx(
        fused["gflops"] / document["machine_peaks"]["gflops"], abs=0.0002, rel=0.01
    )
    assert session.end_profiling() == ""


def test_steps_lie_inside_their_run_and_do_not_overlap(tmp_path):
    session = profiled(convnet(), tmp_path)
    session.run(None, {"x": feed(1, 16)})
    events = json.loads(Path(session.end_profiling()).read_text("utf-8"))["events"]
    run = next(e for e in events if e["name"] == "model_run")
    at = run["start_us"]
    for event in events[:-1]:
        assert event["start_us"] >= at - 0.01
        at = event["start_us"] + event["duration_us"]
    assert at <= run["start_us"] + run["duration_us"] + 0.01


def test_host_steps_are_timed_among_native_ones(tmp_path):
    data = with_host_step()
    session = profiled(data, tmp_path)
    x = RNG.standard_normal((4, 8)).astype(np.float32)
    session.run(None, {"x": x})
    rows = {row.node: row for row in session.explain().rows}
    assert rows["host"].host_step
    assert rows["host"].seconds > 0
    assert rows["before"].seconds > 0
    events = json.loads(Path(session.end_profiling()).read_text("utf-8"))["events"]
    assert [e["op_name"] for e in events[:-1]] == ["Exp", "Det", "Neg"]


def with_host_step():
    nodes = [
        helper.make_node("Exp", ["x"], ["e"], "before"),
        helper.make_node("Reshape", ["e", "square"], ["s"], "view"),
        helper.make_node("Det", ["s"], ["c"], "host"),
        helper.make_node("Neg", ["c"], ["y"], "after"),
    ]
    return model(nodes, [numpy_helper.from_array(np.array([2, 4, 4]), "square")], [4, 8], 1)


@pytest.mark.skipif(not library.available(), reason="about what oneDNN does")
def test_explain_knows_fusion_layout_cost_and_after_a_profile_time(tmp_path):
    session = InferenceSession(convnet(), SessionOptions(optimization_level=OptLevel.NONE))
    session.run(None, {"x": feed(2, 32)})
    rows = {row.node: row for row in session.explain().nodes}
    assert rows["relu1"].fused_with == "conv1"
    assert rows["conv1"].fused_with == ""
    assert rows["conv1"].flops == 2 * 2 * 16 * 16 * 16 * 27 + 2 * 16 * 16 * 16
    assert rows["relu1"].nbytes == 0 < rows["conv1"].nbytes
    assert {"a", "b", "c", "d"} <= set(rows["conv1"].layout.lower())
    assert session.explain().run_seconds is None
    timed = profiled(convnet(), tmp_path)
    timed.run(None, {"x": feed(2, 32)})
    explanation = timed.explain()
    assert explanation.run_seconds > 0
    assert explanation.reorders == sum(row.op_type in ("reorder", "copy") for row in explanation.rows) > 0
    assert f"{explanation.reorders} reorders" in str(explanation)
    assert "GFLOP/s" in str(explanation)
    assert explanation.to_dict()["rows"][0]["seconds"] is not None


def test_nodes_of_opened_operators_are_found_again():
    node = helper.make_node("GroupNormalization", ["x", "g", "b"], ["y"], "norm", num_groups=2)
    session = InferenceSession(model([node], [weight("g", 4), weight("b", 4)], [1, 4, 3, 3], 4))
    session.run(None, {"x": np.ones((1, 4, 3, 3), np.float32)})
    (row,) = session.explain().nodes
    assert row.runs_on.startswith("native")
    assert row.flops > 0


def test_the_page_stands_alone_and_escapes():
    nodes = [helper.make_node("Neg", ["x"], ["y"], "<b>&node")]
    with pytest.warns(UserWarning, match="enable_mem_pattern"):
        session = InferenceSession(model(nodes, [], [2], 1), SessionOptions(enable_mem_pattern=False))
    session.run(None, {"x": np.zeros(2, np.float32)})
    page = session.explain().to_html()
    assert page.startswith("<!doctype html>")
    assert "&lt;b&gt;&amp;node" in page
    assert "<b>&node" not in page
    assert "src=" not in page
    assert "href=" not in page
    assert "enable_mem_pattern=False has no effect" in page


def test_many_rows_are_shortened_in_text_and_whole_in_the_page():
    from pyflame_rt.backends.base import Placement

    rows = [Placement(f"node{i}", "Neg", "native: Neg", layout="a", nbytes=8, flops=i) for i in range(6000)]
    rows[3] = Placement("slow", "Det", "reference (host step)", "no kernel", host_step=True)
    explanation = Explanation("P", "about", rows)
    text = str(explanation)
    assert len(text.splitlines()) < MAX_ROWS + 40
    assert "slow" in text
    assert "5800 rows not shown" in text
    assert explanation.to_html().count("<tr class=") == 6000
    assert explanation._repr_html_().count("<tr class=") == MAX_ROWS
    assert [w.steps for w in explanation.by_kind()] == [5999, 1]


def test_the_limit_counts_weights_intermediate_values_and_outputs():
    session = InferenceSession(mlp(), SessionOptions(memory_limit=80_000))
    x = RNG.standard_normal((4, 64)).astype(np.float32)
    wanted = InferenceSession(mlp(), providers=["ReferenceExecutionProvider"]).run(None, {"x": x})[0]
    np.testing.assert_allclose(session.run(None, {"x": x})[0], wanted, **within("sums"))
    with pytest.raises(pyflame_rt.MemoryLimitError) as caught:
        session.run(None, {"x": np.zeros((1000, 64), np.float32)})  # one value alone is too large
    assert "node 'first' (Gemm): an output of shape [1000, 128] needs 512000 bytes" in str(caught.value)
    with pytest.raises(pyflame_rt.MemoryLimitError) as caught:
        session.run(None, {"x": np.zeros((150, 64), np.float32)})  # each value would do, not all together
    text = str(caught.value)
    assert "memory_limit allows 80000" in text
    needed = int(text.partition("needs ")[2].split()[0])
    parts = [int(text.partition(name)[2].split(",")[0].rstrip(")")) for name in ("weights ", "values ", "outputs ")]
    assert sum(parts) == needed > 80_000
    assert parts[2] == 150 * 10 * 4
    assert session.explain().nodes[0].runs_on.startswith("native")


def test_a_limit_drops_old_plans_and_lets_runs_take_turns():
    session = InferenceSession(mlp(), SessionOptions(memory_limit=90_000))
    reference = InferenceSession(mlp(), providers=["ReferenceExecutionProvider"])
    sizes = (1, 2, 3, 5, 8, 13)
    inputs = [RNG.standard_normal((n, 64)).astype(np.float32) for n in sizes]
    wanted = [reference.run(None, {"x": x})[0] for x in inputs]
    wrong = []

    def work(seed):
        for i in np.random.default_rng(seed).integers(0, len(sizes), 30):
            got = session.run(None, {"x": inputs[i]})[0]
            if not np.allclose(got, wanted[i], **within("sums")):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert session.memory_stats()["arenas"] <= 90_000


def test_a_waiting_run_hears_that_it_has_to_stop():
    session = InferenceSession(mlp(), SessionOptions(memory_limit=200_000))
    x = np.zeros((2, 64), np.float32)
    session.run(None, {"x": x})
    executable = session._compile(overrides=False).executable
    (plan,) = executable._plans.values()
    plan.limit_runs(1)
    assert plan.slots.acquire()

    def stop():
        raise pyflame_rt.RunCancelledError("stop")

    with pytest.raises(pyflame_rt.RunCancelledError):
        plan.run({"x": x}, RunHooks(check=stop))
    plan.slots.release()
    session.run(None, {"x": x})


def test_peaks_are_measured_once_and_damage_is_no_harm(tmp_path, monkeypatch):
    monkeypatch.setenv("PYFLAME_CACHE_DIR", str(tmp_path / "own"))  # other processes write to the usual one
    monkeypatch.setattr(peaks, "_known", {})
    first = peaks.machine_peaks(1)
    monkeypatch.setattr(peaks, "_known", {})
    monkeypatch.setattr(peaks, "measure_peaks", lambda threads: pytest.fail("measured again"))
    assert peaks.machine_peaks(1) == first
    monkeypatch.undo()
    monkeypatch.setenv("PYFLAME_CACHE_DIR", str(tmp_path / "other"))
    monkeypatch.setattr(peaks, "_known", {})
    for text in ("{", "[]", '{"x": 3}', json.dumps({"x": {"gflops": -1, "gb_per_s": "many"}})):
        (tmp_path / "other").mkdir(exist_ok=True)
        (tmp_path / "other" / "peaks.json").write_text(text)
        assert peaks._read() == {}
    monkeypatch.setenv("PYFLAME_CACHE_DIR", "/proc/nowhere")
    assert peaks.machine_peaks(1)["gflops"] > 0


def test_a_cold_first_run_does_not_count_as_what_a_step_takes():
    fact = StepFacts("MaxPool", "llvm", ("p",), 0, {}, 0, "ab")
    assert fact.seconds is None
    fact.measured(16_000_000)
    assert fact.seconds == 0.016  # all that is known
    for _ in range(3):
        fact.measured(2_000)
    assert fact.seconds == 2e-6
    for _ in range(100):
        fact.measured(3_000)
    assert fact.seconds == 3e-6  # the latest ones count
    assert len(fact.times) < 50
