"""Whole graphs on the native engine: right answers under threads, forks, new shapes, taps and limits."""

import multiprocessing
import threading

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import pyflame_rt
from pyflame_rt.backends.base import RunHooks
from pyflame_rt.backends.cpu.memory.arena import Arena
from pyflame_rt.backends.cpu.onednn import library, live_handles
from pyflame_rt.backends.cpu.run import plan as plans
from tests.tolerances import within
from tests.unit.resting import at_rest

RNG = np.random.default_rng(0)


def weight(name, *shape):
    return numpy_helper.from_array((RNG.standard_normal(shape) * 0.2).astype(np.float32), name)


def model(nodes, weights, shape, out_rank, extra=()):
    infos = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
    outs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * out_rank)]
    graph = helper.make_graph(nodes, "g", infos, outs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20), *extra]).SerializeToString()


def convnet():
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w1", "b1"], ["c1"], "conv1", pads=[1, 1, 1, 1], strides=[2, 2]),
        node("Relu", ["c1"], ["r1"], "relu1"),
        node("Conv", ["r1", "w2"], ["c2"], "conv2", pads=[1, 1, 1, 1]),
        node("Add", ["c2", "r1"], ["a2"], "add"),
        node("HardSwish", ["a2"], ["h2"], "act"),
        node("MaxPool", ["h2"], ["p2"], "pool", kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", ["p2", "w3"], ["c3"], "depthwise", group=16, pads=[1, 1, 1, 1]),
        node("Sigmoid", ["c3"], ["s3"], "sigmoid"),
        node("Mul", ["c3", "s3"], ["m3"], "silu"),
        node("GlobalAveragePool", ["m3"], ["g3"], "mean"),
        node("Flatten", ["g3"], ["f3"], "flat"),
        node("Gemm", ["f3", "w4", "b4"], ["z"], "head", transB=1),
        node("Softmax", ["z"], ["y"], "softmax"),
    ]
    weights = [weight("w1", 16, 3, 3, 3), weight("b1", 16), weight("w2", 16, 16, 3, 3), weight("w3", 16, 1, 3, 3)]
    return model(nodes, [*weights, weight("w4", 10, 16), weight("b4", 10)], ["N", 3, "H", "W"], 2)


def attention():
    node = helper.make_node
    shape = numpy_helper.from_array(np.array([0, -1, 4, 8], np.int64), "split")
    join = numpy_helper.from_array(np.array([0, -1, 32], np.int64), "join")
    nodes = []
    for name, perm in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
        nodes += [
            node("MatMul", ["x", f"w{name}"], [f"{name}0"]),
            node("Reshape", [f"{name}0", "split"], [f"{name}1"]),
            node("Transpose", [f"{name}1"], [name], perm=perm),
        ]
    nodes += [
        node("MatMul", ["q", "k"], ["s"]),
        node("Softmax", ["s"], ["p"]),
        node("MatMul", ["p", "v"], ["o"]),
        node("Transpose", ["o"], ["t"], perm=[0, 2, 1, 3]),
        node("Reshape", ["t", "join"], ["j"]),
        node("Add", ["j", "x"], ["r"]),
        node("LayerNormalization", ["r", "g", "b"], ["n"]),
        node("Gelu", ["n"], ["y"]),
    ]
    weights = [weight(f"w{n}", 32, 32) for n in "qkv"] + [weight("g", 32), weight("b", 32), shape, join]
    return model(nodes, weights, ["N", "S", 32], 3)


def sessions(data):
    return [
        pyflame_rt.InferenceSession(data, providers=[p]) for p in ("CPUExecutionProvider", "ReferenceExecutionProvider")
    ]


@pytest.mark.parametrize("shape", [(1, 3, 32, 32), (2, 3, 17, 23), (5, 3, 8, 8)])
def test_convolutions_agree_with_the_reference(shape):
    x = RNG.standard_normal(shape).astype(np.float32)
    ours, reference = (s.run(None, {"x": x})[0] for s in sessions(convnet()))
    np.testing.assert_allclose(ours, reference, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("shape", [(1, 1, 32), (1, 7, 32), (3, 64, 32)])
def test_attention_agrees_with_the_reference(shape):
    x = RNG.standard_normal(shape).astype(np.float32)
    ours, reference = (s.run(None, {"x": x})[0] for s in sessions(attention()))
    np.testing.assert_allclose(ours, reference, **within("sums"))


@pytest.mark.skipif(not library.available(), reason="about what oneDNN does")
def test_everything_is_native_and_activations_are_fused():
    plain = pyflame_rt.SessionOptions(optimization_level=pyflame_rt.OptLevel.NONE)
    session, optimised = (pyflame_rt.InferenceSession(convnet(), options) for options in (plain, None))
    for one in (session, optimised):
        one.run(None, {"x": np.zeros((1, 3, 32, 32), np.float32)})
        assert one.explain().host_step_count == 0
    rows = {row.node: row.runs_on for row in session.explain().rows}
    assert (rows["conv1"], rows["relu1"]) == ("native: Conv", "native: Relu")  # the library's Relu makes 0 of NaN
    assert rows["silu"] == "native: Conv+Sigmoid+Mul"
    rows = {row.node: row.runs_on for row in optimised.explain().rows}
    assert rows["relu1"] == "native: Relu"
    assert rows["silu"] == "native: Conv+Swish"


def test_an_epilogue_that_reads_its_start_again():
    """x * clip(x + 3) / 6 behind a convolution, spelled out, and a residual that is the convolution itself."""
    node = helper.make_node
    three, six, low = (numpy_helper.from_array(np.float32(v), n) for v, n in ((3, "three"), (6, "six"), (0, "low")))
    nodes = [
        node("Conv", ["x", "w"], ["c"], "conv", pads=[1, 1, 1, 1]),
        node("Add", ["c", "three"], ["a"], "shift"),
        node("Clip", ["a", "low", "six"], ["k"], "clip"),
        node("Mul", ["c", "k"], ["m"], "gate"),
        node("Div", ["m", "six"], ["y"], "scale"),
    ]
    data = model(nodes, [weight("w", 8, 4, 3, 3), three, six, low], [1, 4, 9, 9], 4)
    x = RNG.standard_normal((1, 4, 9, 9)).astype(np.float32)
    ours, reference = (s.run(None, {"x": x})[0] for s in sessions(data))
    np.testing.assert_allclose(ours, reference, **within("sums"))


def test_repeats_are_bit_identical():
    session = pyflame_rt.InferenceSession(convnet())
    x = RNG.standard_normal((2, 3, 32, 32)).astype(np.float32)
    first = session.run(None, {"x": x})[0]
    for _ in range(5):
        assert np.array_equal(session.run(None, {"x": x})[0], first)


def test_many_shapes_keep_a_bounded_number_of_plans():
    session, reference = sessions(attention())
    for length in [*range(1, 40), 3, 17, 39]:
        x = RNG.standard_normal((1, length, 32)).astype(np.float32)
        np.testing.assert_allclose(
            session.run(None, {"x": x})[0], reference.run(None, {"x": x})[0], rtol=1e-4, atol=1e-5
        )
    assert session.memory_stats()["plans"] <= pyflame_rt.SessionOptions().plan_cache_size < 40


def test_taps_see_values_inside_fused_steps():
    x = RNG.standard_normal((1, 3, 16, 16)).astype(np.float32)
    ours, reference = (s.run(None, {"x": x}, taps=["c1", "a2"]) for s in sessions(convnet()))
    for a, b in zip(ours, reference, strict=True):
        np.testing.assert_allclose(a, b, **within("sums"))


def test_threads_share_a_session():
    session, reference = sessions(attention())
    inputs = [RNG.standard_normal((n, 9, 32)).astype(np.float32) for n in (1, 2, 3)]
    wanted = [reference.run(None, {"x": x})[0] for x in inputs]
    wrong = []

    def work(seed):
        rng = np.random.default_rng(seed)
        for i in rng.integers(0, 3, 30):
            got = session.run(None, {"x": inputs[i]})[0]
            if not np.allclose(got, wanted[i], **within("sums")):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def _in_child(session, x, queue):
    queue.put(session.run(None, {"x": x})[0])


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_computes_too():
    session = pyflame_rt.InferenceSession(convnet())
    x = RNG.standard_normal((2, 3, 64, 64)).astype(np.float32)
    wanted = session.run(None, {"x": x})[0]
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_in_child, args=(session, x, queue))
    child.start()
    got = queue.get(timeout=120)
    child.join(timeout=120)
    np.testing.assert_allclose(got, wanted, rtol=1e-5)
    assert child.exitcode == 0


@pytest.mark.skipif(not library.available(), reason="about what oneDNN does")
def test_closing_frees_every_native_handle():
    at_rest()  # sessions of other tests, else freed in the middle of this one
    before = live_handles()
    session = pyflame_rt.InferenceSession(convnet())
    session.run(None, {"x": np.zeros((1, 3, 16, 16), np.float32)})
    assert live_handles() > before
    session.close()
    assert live_handles() == before


def test_a_bad_index_is_an_error_not_a_crash():
    nodes = [helper.make_node("Gather", ["x", "i"], ["y"], "pick")]
    infos = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 3]),
        helper.make_tensor_value_info("i", TensorProto.INT64, [2]),
    ]
    out = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3])]
    graph = onnx.helper.make_graph(nodes, "g", infos, out)
    data = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]).SerializeToString()
    session = pyflame_rt.InferenceSession(data)
    x = np.zeros((4, 3), np.float32)
    assert session.run(None, {"x": x, "i": np.array([0, -4])})[0].shape == (2, 3)
    with pytest.raises(pyflame_rt.PyFlameRTError, match="out of range"):
        session.run(None, {"x": x, "i": np.array([0, 4])})


def test_a_time_limit_stops_native_code():
    nodes, last = [], "x"
    for i in range(300):
        nodes.append(helper.make_node("MatMul", [last, "w"], [f"v{i}"]))
        last = f"v{i}"
    nodes.append(helper.make_node("Identity", [last], ["y"]))
    session = pyflame_rt.InferenceSession(model(nodes, [weight("w", 512, 512)], [512, 512], 2))
    x = np.zeros((512, 512), np.float32)
    session.run(None, {"x": x})
    options = pyflame_rt.RunOptions()
    options.timeout_ms = 5
    with pytest.raises(TimeoutError):
        session.run(None, {"x": x}, options)
    session.run(None, {"x": x})


def test_an_executable_that_is_let_go_ends_its_runs_as_ever(monkeypatch):
    inside, gate, original, results = threading.Event(), threading.Event(), Arena._run_segments, []

    def held(self, check, clock):
        inside.set()
        assert gate.wait(120)
        original(self, check, clock)

    monkeypatch.setattr(Arena, "_run_segments", held)
    executable = pyflame_rt.InferenceSession(convnet())._compile(overrides=False).executable
    x, names = np.ones((1, 3, 16, 16), np.float32), executable.outputs
    runner = threading.Thread(target=lambda: results.extend(executable.run({"x": x}, names, RunHooks())))
    runner.start()
    assert inside.wait(120)
    executable.let_go()
    gate.set()
    runner.join()
    assert executable.memory()["plans"] == 0
    np.testing.assert_array_equal(executable.run({"x": x}, names, RunHooks())[0], results[0])


@pytest.mark.usefixtures("unchecked")
def test_a_plan_that_many_want_at_once_is_made_once(monkeypatch):
    made, original, start = [], plans.specialise, threading.Barrier(6)
    monkeypatch.setattr(plans, "specialise", lambda *a, **k: made.append(1) or original(*a, **k))
    session, x, results = pyflame_rt.InferenceSession(convnet()), np.ones((1, 3, 16, 16), np.float32), []

    def work():
        start.wait(120)
        results.append(session.run(None, {"x": x})[0])

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
    assert len({result.tobytes() for result in results}) == 1
    assert len(results) == 6


def test_planning_that_fails_is_tried_again_by_who_waited(monkeypatch):
    original, failed = plans.specialise, []

    def fail(*args, **kwargs):
        if not failed:
            failed.append(1)
            raise KeyboardInterrupt
        return original(*args, **kwargs)

    monkeypatch.setattr(plans, "specialise", fail)
    session, x = pyflame_rt.InferenceSession(convnet()), np.ones((1, 3, 16, 16), np.float32)
    with pytest.raises(KeyboardInterrupt):
        session.run(None, {"x": x})
    assert session.run(None, {"x": x})[0].shape[0] == 1
    assert not session._compile(overrides=False).executable._turns


def test_parts_without_a_name():
    """Nobody reads the second part of a Split: the others are where they were."""
    node = helper.make_node("Split", ["x"], ["a", "", "y"], "split", num_outputs=3)
    data = model([node], [], [6], 1)
    x = np.arange(6, dtype=np.float32)
    session = pyflame_rt.InferenceSession(data, providers=["CPUExecutionProvider"])
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], x[4:])
