"""Independent branches at the same time: which steps go together, right answers, profiles, failures."""

import gc
import json
from pathlib import Path

import numpy as np
import pytest
from onnx import helper, numpy_helper

import pyflame_rt
import pyflame_rt.ort
from pyflame_rt import InferenceSession, SessionOptions
from pyflame_rt.backends.cpu.memory.checked_arena import check_offsets
from pyflame_rt.backends.cpu.onednn import live_handles
from pyflame_rt.backends.cpu.run.parallel_branches import find_windows
from tests.tolerances import within
from tests.unit.backends.cpu.models import RNG, convnet, feed, model, weight
from tests.unit.resting import at_rest


def towers(count=2, layers=6, width=192):
    """Towers of small layers on one input, joined at the end."""
    nodes, weights, tops = [], [], []
    for t in range(count):
        last = "x"
        for i in range(layers):
            weights.append(weight(f"w{t}_{i}", width, width))
            nodes.append(helper.make_node("MatMul", [last, f"w{t}_{i}"], [f"m{t}_{i}"], f"matmul{t}_{i}"))
            nodes.append(helper.make_node("Softmax", [f"m{t}_{i}"], [f"s{t}_{i}"], f"softmax{t}_{i}"))
            last = f"s{t}_{i}"
        tops.append(last)
    nodes.append(helper.make_node("Concat", tops, ["c"], "join", axis=1))
    nodes.append(helper.make_node("Softmax", ["c"], ["y"], "end"))
    return model(nodes, weights, ["N", width], 2)


def parallel(data, **options):
    return InferenceSession(data, SessionOptions(execution_mode="parallel", num_threads=2, **options))


def plan_of(session):
    (plan,) = session._compile(overrides=False).executable._plans.values()
    return plan


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("count", [2, 3])
def test_towers_run_side_by_side_with_the_same_answers(count):
    at_rest()  # what other tests left behind is not counted
    before = live_handles()
    data, x = towers(count), RNG.standard_normal((1, 192)).astype(np.float32)
    with parallel(data) as session, InferenceSession(data, SessionOptions(num_threads=2)) as plain:
        wanted = plain.run(None, {"x": x})[0]
        for _ in range(20):
            assert np.array_equal(session.run(None, {"x": x})[0], wanted)
        (window,) = plan_of(session).lowered.windows
        assert len(window.lists) == 2
        assert sorted(k for part in window.lists for k in part) == list(range(window.begin, window.end))
        check_offsets(plan_of(session).lowered.buffers)
        assert not plan_of(plain).lowered.windows
    gc.collect()
    assert live_handles() <= before


def test_lists_of_a_window_share_nothing_they_write():
    with parallel(towers(3)) as session:
        session.run(None, {"x": np.zeros((1, 192), np.float32)})
        lowered = plan_of(session).lowered
        for window in lowered.windows:
            homes = {}
            for lane, numbers in enumerate(window.lists):
                for k in numbers:
                    homes.setdefault(lowered.steps[k].views[-1].buffer, set()).add(lane)
            assert all(len(lanes) == 1 for lanes in homes.values())


def test_a_chain_has_no_branches():
    with parallel(convnet()) as session:
        session.run(None, {"x": feed(1, 32)})
        assert all(len(w.lists) > 1 for w in plan_of(session).lowered.windows)
    nodes = [helper.make_node("Softmax", ["x" if i == 0 else f"v{i}"], [f"v{i + 1}"]) for i in range(30)]
    nodes.append(helper.make_node("Identity", ["v30"], ["y"]))
    with parallel(model(nodes, [], [4, 8], 2)) as session:
        session.run(None, {"x": np.zeros((4, 8), np.float32)})
        assert plan_of(session).lowered.windows == []


def test_work_that_divides_well_is_not_dealt_to_branches():
    """Two large products: each takes both threads anyway."""
    with parallel(towers(2, 2, 512)) as session:
        session.run(None, {"x": np.zeros((512, 512), np.float32)})
        plan = plan_of(session)
        assert find_windows(plan.lowered, plan.facts(), 2) == plan.lowered.windows == []


@pytest.mark.usefixtures("unchecked")
def test_a_profile_shows_two_lanes(tmp_path):
    session = parallel(towers(), enable_profiling=True, profile_file_prefix=str(tmp_path / "p"))
    for _ in range(3):
        session.run(None, {"x": np.zeros((1, 192), np.float32)})
    assert session.explain().run_seconds > 0
    events = json.loads(Path(session.end_profiling()).read_text("utf-8"))["events"]
    steps = [e for e in events if e["category"] == "Node"]
    assert len({e["thread"] for e in steps}) == 2
    assert len(steps) == 3 * len(plan_of(session).lowered.steps)
    assert all(e["duration_us"] >= 0 for e in steps)


def test_a_fault_in_a_branch_is_told():
    nodes = []
    for t in range(2):
        last = "x"
        for i in range(8):
            nodes.append(helper.make_node("Softmax", [last], [f"s{t}_{i}"], f"softmax{t}_{i}"))
            last = f"s{t}_{i}"
        nodes.append(helper.make_node("Gather", [last, "far" if t else "near"], [f"g{t}"], f"gather{t}", axis=0))
    nodes.append(helper.make_node("Add", ["g0", "g1"], ["y"], "join"))
    near, far = (numpy_helper.from_array(np.array([k]), n) for k, n in ((0, "near"), (900, "far")))
    session = parallel(model(nodes, [near, far], ["N", 64], 2))
    with pytest.raises(pyflame_rt.PyFlameRTError, match="out of range"):
        session.run(None, {"x": np.zeros((8, 64), np.float32)})
    assert session.run(None, {"x": np.zeros((901, 64), np.float32)})[0].shape == (1, 64)


def test_a_time_limit_reaches_into_branches():
    session = parallel(towers(2, 60))
    x = np.zeros((1, 192), np.float32)
    session.run(None, {"x": x})
    with pytest.raises(TimeoutError):
        session.run(None, {"x": x}, pyflame_rt.RunOptions(timeout_ms=0))
    session.run(None, {"x": x})


@pytest.mark.usefixtures("unchecked")
def test_the_setting_is_used_and_says_so():
    text = " ".join(str(parallel(towers(1, 1)).explain()).split())
    assert "makes no use" not in text
    options = pyflame_rt.ort.SessionOptions()
    options.execution_mode = pyflame_rt.ort.ExecutionMode.ORT_PARALLEL
    options.intra_op_num_threads = 2
    session = pyflame_rt.ort.InferenceSession(towers(), options)
    session.run(None, {"x": np.zeros((1, 192), np.float32)})
    assert plan_of(session).lowered.windows
    single = InferenceSession(
        towers(), SessionOptions(execution_mode="parallel", num_threads=2, inter_op_num_threads=1)
    )
    single.run(None, {"x": np.zeros((1, 192), np.float32)})
    assert not plan_of(single).lowered.windows


@pytest.mark.usefixtures("unchecked")
def test_a_branch_with_a_step_of_the_library_on_what_callers_give():
    """Where all such steps were inside branches, the plan around them had no call to tell them the addresses."""
    graph = pyflame_rt.Graph("gates")
    feeds = {}
    for i in range(4):
        graph.add_input(f"a{i}", ["N", 1, 4])
        graph.add_input(f"b{i}", [4, 2])
        graph.add_node(f"gate{i}", "GemmFastGelu", [f"a{i}", f"b{i}"], [f"g{i}"], domain="com.microsoft")
        last = f"g{i}"
        for k in range(8):
            graph.add_node(f"norm{i}_{k}", "Softmax", [last], [f"y{i}_{k}"])
            last = f"y{i}_{k}"
        graph.add_output(f"g{i}", ["N", 1, 2])
        graph.add_output(last, ["N", 1, 2])
        feeds |= {f"a{i}": RNG.standard_normal((4, 1, 4)), f"b{i}": RNG.standard_normal((4, 2))}
    feeds = {name: array.astype(np.float32) for name, array in feeds.items()}
    wanted = InferenceSession(graph, providers=["ReferenceExecutionProvider"]).run(None, feeds)
    with parallel(graph) as session:
        for _ in range(3):
            for found, expected in zip(session.run(None, feeds), wanted, strict=True):
                np.testing.assert_allclose(found, expected, **within("elements"))
        assert plan_of(session).lowered.windows
