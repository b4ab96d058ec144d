"""Models that carry a state: a step at a time gives what the whole gives."""

import numpy as np
import pytest

import pyflame_rt
from pyflame_rt import Graph, InferenceSession, InputError, SessionClosedError, ShapeMismatchError
from pyflame_rt.streaming import StreamingInference
from pyflame_rt.streaming.states import state_pairs

RNG = np.random.default_rng(3)


def lstm(names=("h_0", "c_0", "h_n", "c_n")) -> Graph:
    """An LSTM over [length, batch, 3] with 4 hidden units, as it comes from an exporter."""
    graph = Graph("lstm")
    h_in, c_in, h_out, c_out = names
    graph.add_input("x", ["length", "batch", 3])
    graph.add_input(h_in, [1, "batch", 4])
    graph.add_input(c_in, [1, "batch", 4])
    weights = np.random.default_rng(0)
    for name, shape in {"w": (1, 16, 3), "r": (1, 16, 4), "b": (1, 32)}.items():
        graph.add_initializer(name, weights.standard_normal(shape).astype(np.float32))
    graph.add_node("lstm", "LSTM", ["x", "w", "r", "b", "", h_in, c_in], ["y4", h_out, c_out], attrs={"hidden_size": 4})
    graph.add_initializer("one", np.array([1], np.int64))
    graph.add_node("squeeze", "Squeeze", ["y4", "one"], ["y"])
    graph.add_output("y", ["length", "batch", 4])
    graph.add_output(h_out, [1, "batch", 4])
    graph.add_output(c_out, [1, "batch", 4])
    return graph


@pytest.mark.parametrize(
    "names",
    [("h_0", "c_0", "h_n", "c_n"), ("initial_h", "initial_c", "Y_h", "Y_c"), ("h", "c", "hn", "cn")],
)
def test_an_lstm_step_by_step_is_the_lstm(names):
    session = InferenceSession(lstm(names))
    x = RNG.standard_normal((7, 2, 3)).astype(np.float32)
    zeros = np.zeros((1, 2, 4), np.float32)
    whole = session.run(["y"], {"x": x, names[0]: zeros, names[1]: zeros})[0]
    with StreamingInference(session) as stream:
        steps = [stream.step(x[i : i + 1]) for i in range(7)]
        assert stream.state_pairs == {names[2]: names[0], names[3]: names[1]}
        assert set(stream.state) == set(names[:2])
    np.testing.assert_allclose(np.concatenate(steps), whole, rtol=1e-5, atol=1e-6)


def test_a_state_can_be_kept_and_begun_with_again():
    stream = StreamingInference(InferenceSession(lstm()))
    x = RNG.standard_normal((4, 1, 3)).astype(np.float32)
    stream.start()
    stream.step(x[:2])
    kept = {name: array.copy() for name, array in stream.state.items()}
    expected = stream.step(x[2:])
    stream.start(kept)
    np.testing.assert_array_equal(stream.step(x[2:]), expected)


def voice_activity() -> Graph:
    """The interface of silero-vad: a frame, a state of two layers, a sample rate that stays; a probability."""
    graph = Graph("vad")
    graph.add_input("input", ["batch", 8])
    graph.add_input("state", [2, "batch", 8])
    graph.add_input("sr", [], pyflame_rt.DType.Int64)
    graph.add_node("rate", "Cast", ["sr"], ["rate"], attrs={"to": 1})
    graph.add_node("scale", "Div", ["input", "rate"], ["scaled"])
    graph.add_node("mix", "Add", ["state", "scaled"], ["stateN"])
    graph.add_node("mean", "ReduceMean", ["stateN"], ["m"], attrs={"keepdims": 1})
    graph.add_node("p", "Sigmoid", ["m"], ["output"])
    graph.add_output("output", None)
    graph.add_output("stateN", [2, "batch", 8])
    return graph


def test_audio_frames_with_a_state_and_a_setting():
    stream = StreamingInference(InferenceSession(voice_activity()))
    assert stream.state_pairs == {"stateN": "state"}
    frames = RNG.standard_normal((5, 1, 8)).astype(np.float32)
    told: list[float] = []
    stream.set_step_callback(lambda output: told.append(float(output.ravel()[0])))
    stream.start({"sr": np.array(2, np.int64)})
    total = np.zeros((2, 1, 8), np.float32)
    for frame in frames:
        total += frame / 2
        np.testing.assert_allclose(stream.step(frame).ravel(), 1 / (1 + np.exp(-total.mean())), rtol=1e-5)
    assert len(told) == len(stream.get_outputs()) == 5
    assert stream.input_name == "input"
    stream.stop()
    assert len(stream.get_outputs()) == 5
    with pytest.raises(SessionClosedError, match=r"call start\(\)"):
        stream.step(frames[0])


def decoder() -> Graph:
    """Attention's kind of state: each step adds to it, and the output counts what the mask lets through."""
    graph = Graph("decoder")
    integer = pyflame_rt.DType.Int64
    graph.add_input("input_ids", ["batch", "length"], integer)
    graph.add_input("attention_mask", ["batch", "total"], integer)
    graph.add_input("position_ids", ["batch", "length"], integer)
    graph.add_input("past_key_values.0.key", ["batch", "past", 2])
    graph.add_node("f", "Cast", ["input_ids"], ["ids"], attrs={"to": 1})
    graph.add_initializer("two", np.array([2], np.int64))
    graph.add_node("u", "Unsqueeze", ["ids", "two"], ["column"])
    graph.add_node("c", "Concat", ["column", "column"], ["pair"], attrs={"axis": 2})
    graph.add_node("grow", "Concat", ["past_key_values.0.key", "pair"], ["present.0.key"], attrs={"axis": 1})
    graph.add_initializer("axis", np.array([1], np.int64))
    graph.add_node("seen", "ReduceSum", ["present.0.key", "axis"], ["sum"], attrs={"keepdims": 0})
    graph.add_node("open", "ReduceSum", ["attention_mask", "axis"], ["count"], attrs={"keepdims": 0})
    graph.add_node("last", "ReduceMax", ["position_ids", "axis"], ["at"], attrs={"keepdims": 0})
    graph.add_output("sum", ["batch", 2])
    graph.add_output("count", ["batch"], integer)
    graph.add_output("at", ["batch"], integer)
    graph.add_output("present.0.key", ["batch", "all", 2])
    return graph


def test_masks_and_positions_grow_with_the_past():
    session = InferenceSession(decoder())
    stream = StreamingInference(session)
    seen = []
    run = session.run
    session.run = lambda *args: seen.append(args[1]) or run(*args)  # type: ignore[method-assign]
    first = stream.start({"input_ids": np.array([[3, 1, 4]], np.int64)})
    assert first.tolist() == [[8, 8]]
    assert stream.step(5).tolist() == [[13, 13]]
    assert stream.step(pyflame_rt.from_numpy(np.array([[9]], np.int64))).tolist() == [[22, 22]]
    assert stream.state["past_key_values.0.key"].shape == (1, 5, 2)
    assert [feed["attention_mask"].tolist() for feed in seen] == [[[1] * 3], [[1] * 4], [[1] * 5]]
    assert [feed["position_ids"].tolist() for feed in seen] == [[[0, 1, 2]], [[3]], [[4]]]


def test_without_state_the_sequence_grows():
    graph = Graph("g")
    graph.add_input("ids", ["N", "L"])
    graph.add_node("n", "Neg", ["ids"], ["y"])
    graph.add_output("y", ["N", "L"])
    stream = StreamingInference(InferenceSession(graph), max_outputs=2)
    assert stream.start({"ids": [[1, 2]]}).tolist() == [[-1, -2]]
    assert stream.step([[3]]).tolist() == [[-1, -2, -3]]
    assert stream.step(4.0).tolist() == [[-1, -2, -3, -4]]
    assert [output.shape for output in stream.get_outputs()] == [(1, 3), (1, 4)]
    with pytest.raises(ShapeMismatchError, match="'ids'"):
        stream.step(np.zeros((1, 1, 1), np.float32))
    stream.start()  # begins anew
    assert stream.step([[7]]).tolist() == [[-7]]


def test_a_fixed_input_is_replaced():
    graph = Graph("g")
    graph.add_input("x", [1, 2])
    graph.add_node("n", "Neg", ["x"], ["y"])
    graph.add_output("y", [1, 2])
    with StreamingInference(InferenceSession(graph)) as stream:
        assert stream.step([[1, 2]]).tolist() == [[-1, -2]]
        assert stream.step([[3, 4]]).tolist() == [[-3, -4]]


def test_pairs_that_are_given():
    graph = Graph("g")
    for name in ("x", "memory", "other"):
        graph.add_input(name, [1])
    graph.add_node("n", "Add", ["x", "memory"], ["y"])
    graph.add_node("m", "Add", ["y", "other"], ["z"])
    graph.add_output("z", [1])
    graph.add_output("y", [1])
    assert state_pairs(graph) == {}
    assert state_pairs(graph, {"memory": "y"}) == state_pairs(graph, {"y": "memory"}) == {"y": "memory"}
    with pytest.raises(InputError, match="'y' with 'nothing'"):
        state_pairs(graph, {"y": "nothing"})
    stream = StreamingInference(InferenceSession(graph), {"y": "memory"})
    stream.start({"other": [100]})
    assert [float(stream.step([x])[0]) for x in (1, 2, 3)] == [101, 103, 106]


def test_names_must_be_the_models():
    stream = StreamingInference(InferenceSession(lstm()))
    with pytest.raises(InputError, match="no input 'z'"):
        stream.start({"z": 1})
    unknown = Graph("g")
    unknown.add_input("x", ["N", 2])
    unknown.add_input("state", ["M", 2])
    unknown.add_node("n", "Identity", ["state"], ["stateN"])
    unknown.add_node("m", "Neg", ["x"], ["y"])
    unknown.add_output("y", ["N", 2])
    unknown.add_output("stateN", ["M", 2])
    with (
        StreamingInference(InferenceSession(unknown)) as stream,
        pytest.raises(InputError, match="size M is not known"),
    ):
        stream.step([[1, 2]])


@pytest.mark.parametrize("token", ["a", [[1], [2, 3]], object()])
def test_what_is_no_token_is_refused_and_changes_no_state(token):
    graph = Graph("sum")
    graph.add_input("x", [1, 2])
    graph.add_input("state_in", [1, 2])
    graph.add_node("add", "Add", ["x", "state_in"], ["state_out"])
    graph.add_node("out", "Neg", ["state_out"], ["y"])
    graph.add_output("y", [1, 2])
    graph.add_output("state_out", [1, 2])
    stream = StreamingInference(pyflame_rt.InferenceSession(graph))
    with pytest.raises(TypeError, match="callback must be callable"):
        stream.set_step_callback(5)
    stream.start()
    stream.step(np.ones((1, 2), np.float32))
    with pytest.raises(InputError, match="'x'"):
        stream.step(token)
    assert stream.step(np.ones((1, 2), np.float32)).tolist() == [[-2, -2]]
