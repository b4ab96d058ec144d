"""Graphs whose sizes depend on data run as native plans around host steps, and give the reference's numbers."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import pyflame_rt
from tests.tolerances import within
from tests.unit.resting import at_rest

CPU, REFERENCE = "CPUExecutionProvider", "ReferenceExecutionProvider"
F, I64, B = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def info(name, kind, shape=None):
    return helper.make_tensor_value_info(name, kind, shape)


def model(nodes, inputs, outputs, constants=()):
    graph = helper.make_graph(nodes, "g", inputs, outputs, [onnx.numpy_helper.from_array(a, n) for n, a in constants])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]).SerializeToString()


def both(data, feeds_list):
    """Outputs of the engine, checked against the reference; and its session, still open."""
    engine = pyflame_rt.InferenceSession(data, providers=[CPU])
    reference = pyflame_rt.InferenceSession(data, providers=[REFERENCE])
    for feeds in feeds_list:
        for got, wanted in zip(engine.run(None, feeds), reference.run(None, feeds), strict=True):
            assert got.dtype == wanted.dtype
            np.testing.assert_allclose(got, wanted, **within("elements"))
    return engine


def places(session):
    return {row.op_type: row.runs_on for row in session.explain().rows}


def test_a_shape_fed_as_data_is_part_of_the_key():
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["r"]), helper.make_node("Exp", ["r"], ["y"])]
    data = model(nodes, [info("x", F, [6]), info("shape", I64, [2])], [info("y", F, None)])
    x = np.arange(6, dtype=np.float32)
    session = both(data, [{"x": x, "shape": np.array(s)} for s in ([2, 3], [3, 2], [2, 3], [1, -1])])
    assert session.explain().host_step_count == 0
    session.close()


def test_a_parameter_that_never_repeats_is_left_to_the_host():
    nodes = [
        helper.make_node("Slice", ["x", "start", "end"], ["s"]),
        helper.make_node("ReduceSum", ["s"], ["y"], keepdims=0),
    ]
    inputs = [info("x", F, [64]), info("start", I64, [1]), info("end", I64, [1])]
    x = np.arange(64, dtype=np.float32)
    feeds = [{"x": x, "start": np.array([k]), "end": np.array([k + 8])} for k in range(40)]
    session = both(model(nodes, inputs, [info("y", F, [])]), feeds)
    assert "host step" in places(session)["Slice"]
    assert places(session)["ReduceSum"].startswith("native")
    session.close()


def test_nonzero_between_native_segments():
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("NonZero", ["r"], ["at"]),
        helper.make_node("Transpose", ["at"], ["rows"], perm=[1, 0]),
        helper.make_node("GatherND", ["r", "rows"], ["picked"]),
        helper.make_node("Exp", ["picked"], ["y"]),
    ]
    data = model(nodes, [info("x", F, [3, 4])], [info("y", F, None), info("r", F, [3, 4])])
    rng = np.random.default_rng(0)
    session = both(data, [{"x": rng.standard_normal((3, 4)).astype(np.float32)} for _ in range(6)])
    found = places(session)
    assert "host step" in found["NonZero"]
    assert found["Relu"].startswith("native")
    assert found["Exp"].startswith("native")
    session.close()


@pytest.mark.parametrize("flag", [True, False])
def test_an_if_is_the_branch_it_takes(flag):
    weights = np.arange(12, dtype=np.float32).reshape(3, 4)
    yes = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["a"])], "yes", [], [info("a", F, None)])
    no = helper.make_graph([helper.make_node("Neg", ["x"], ["b"])], "no", [], [info("b", F, None)])
    nodes = [
        helper.make_node("If", ["c"], ["t"], then_branch=yes, else_branch=no),
        helper.make_node("Tanh", ["t"], ["y"]),
    ]
    data = model(nodes, [info("x", F, [2, 3]), info("c", B, [])], [info("y", F, None)], [("w", weights)])
    x = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)
    session = both(data, [{"x": x, "c": np.array(flag)}, {"x": x, "c": np.array(not flag)}])
    assert session.explain().host_step_count == 0
    session.close()


def loop_model(body_nodes):
    body = helper.make_graph(
        body_nodes,
        "body",
        [info("i", I64, []), info("go", B, []), info("s", F, [4])],
        [info("on", B, []), info("s2", F, [4]), info("out", F, None)],
    )
    nodes = [
        helper.make_node("Relu", ["x"], ["s0"]),
        helper.make_node("Loop", ["n", "", "s0"], ["last", "all"], body=body),
        helper.make_node("Neg", ["all"], ["y"]),
    ]
    constants = [("w", np.eye(4, dtype=np.float32) * 0.5 + 0.1)]
    outputs = [info("y", F, None), info("last", F, [4])]
    return model(nodes, [info("x", F, [4]), info("n", I64, [])], outputs, constants)


def test_the_body_of_a_loop_runs_natively():
    data = loop_model(
        [
            helper.make_node("Identity", ["go"], ["on"]),
            helper.make_node("MatMul", ["s", "w"], ["m"]),
            helper.make_node("Tanh", ["m"], ["s2"]),
            helper.make_node("Cast", ["i"], ["f"], to=F),
            helper.make_node("Add", ["s2", "f"], ["out"]),
        ]
    )
    x = np.linspace(-1, 2, 4, dtype=np.float32)
    session = both(data, [{"x": x, "n": np.array(n)} for n in (3, 5, 0, 3)])
    found = places(session)
    assert found["Loop"] == "native: body, iterated by the host"
    assert session.explain().host_step_count == 0
    session.close()


def test_values_a_loop_grows():
    """The state's size changes with every turn."""
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["on"]),
            helper.make_node("Concat", ["s", "x"], ["s2"], axis=0),
        ],
        "body",
        [info("i", I64, []), info("go", B, []), info("s", F, None)],
        [info("on", B, []), info("s2", F, None)],
    )
    nodes = [helper.make_node("Loop", ["n", "", "x"], ["last"], body=body), helper.make_node("Exp", ["last"], ["y"])]
    data = model(nodes, [info("x", F, [2]), info("n", I64, [])], [info("y", F, None)])
    session = both(data, [{"x": np.array([0.5, 1], np.float32), "n": np.array(n)} for n in (4, 1, 4)])
    session.close()


def test_strings_and_sequences_between_native_segments():
    nodes = [
        helper.make_node("Exp", ["x"], ["e"]),
        helper.make_node("SplitToSequence", ["e"], ["parts"], axis=0),
        helper.make_node("SequenceAt", ["parts", "k"], ["one"]),
        helper.make_node("Sqrt", ["one"], ["y"]),
    ]
    data = model(nodes, [info("x", F, [3, 2]), info("k", I64, [])], [info("y", F, None)])
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    session = both(data, [{"x": x, "k": np.array(k)} for k in (0, 2)])
    found = places(session)
    assert found["Exp"].startswith("native")
    assert found["Sqrt"].startswith("native")
    session.close()


def test_every_native_object_goes_with_the_session():
    from pyflame_rt.backends.cpu.onednn.runtime import live_handles

    data = loop_model(
        [
            helper.make_node("Identity", ["go"], ["on"]),
            helper.make_node("MatMul", ["s", "w"], ["s2"]),
            helper.make_node("Tanh", ["s2"], ["out"]),
        ]
    )
    at_rest()  # what other tests left behind is not counted
    before = live_handles()
    session = both(data, [{"x": np.ones(4, np.float32), "n": np.array(n)} for n in (2, 3)])
    session.close()
    assert live_handles() == before
