"""The kernel for LSTMs of quantized weights: odd sizes, directions, types of weights, thread counts."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import pyflame_rt
from pyflame_rt.backends.cpu.jit.target import host
from pyflame_rt.backends.cpu.kernels.quantized_lstm import by_fours
from pyflame_rt.backends.cpu.lower import rnn_timesteps

RNG = np.random.default_rng(41)
SIZES = [(1, 1, 1), (4, 1, 16), (3, 5, 8), (5, 2, 33), (6, 3, 40)]  # steps, batch, hidden


def drawn(kind, *shape):
    limits = np.iinfo(kind)
    return RNG.integers(limits.min, limits.max, shape, endpoint=True).astype(kind)


def model(sizes, direction, kind, columns, inputs=6):
    """A layer of quantized weights, and what is fed to it."""
    _, batch, hidden = sizes
    count = 2 if direction == "bidirectional" else 1
    places = (count, 4 * hidden) if columns else (count,)
    spread = np.float32(1.5 / (255 * np.sqrt(hidden)))
    constants = {
        "w": drawn(kind, count, inputs, 4 * hidden),
        "r": drawn(kind, count, hidden, 4 * hidden),
        "b": RNG.normal(size=(count, 8 * hidden)).astype(np.float32) * np.float32(0.3),
        "ws": np.full(places, spread),
        "wz": np.zeros(places, kind) if kind is np.int8 else RNG.integers(90, 160, places).astype(kind),
        "rs": RNG.uniform(0.5, 1, places).astype(np.float32) * spread,
        "rz": np.zeros(places, kind) if kind is np.int8 else RNG.integers(90, 160, places).astype(kind),
    }
    names = ["x", "w", "r", "b", "", "h", "c", "", "ws", "wz", "rs", "rz"]
    node = helper.make_node("DynamicQuantizeLSTM", names, ["y", "hn", "cn"], domain="com.microsoft",
                            direction=direction, hidden_size=hidden)  # fmt: skip
    feeds = {"x": RNG.normal(size=(sizes[0], batch, inputs)).astype(np.float32)}
    feeds |= {n: RNG.normal(size=(count, batch, hidden)).astype(np.float32) * np.float32(0.4) for n in "hc"}
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, a.shape) for n, a in feeds.items()]
    outs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("y", "hn", "cn")]
    kept = [numpy_helper.from_array(a, n) for n, a in constants.items()]
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph([node], "g", infos, outs, kept)
    return helper.make_model(graph, opset_imports=opsets).SerializeToString(), feeds


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize(("kind", "columns"), [(np.int8, False), (np.int8, True), (np.uint8, False), (np.uint8, True)])
def test_steps_are_the_references(direction, kind, columns):
    for sizes in SIZES:
        content, feeds = model(sizes, direction, kind, columns)
        native = pyflame_rt.InferenceSession(content)
        got = native.run(None, feeds)
        explained = native.explain()
        assert explained.host_step_count == 0
        assert any("RoundedLSTMSteps" in work.label for work in explained.by_kind())
        oracle = pyflame_rt.InferenceSession(content, providers=["ReferenceExecutionProvider"])
        for mine, theirs in zip(got, oracle.run(None, feeds), strict=True):
            # A state halfway between two numbers may become either: by so little a gate may differ.
            np.testing.assert_allclose(mine, theirs, rtol=0, atol=0.02)
            assert np.mean(abs(mine - theirs)) < 2e-4


@pytest.mark.skipif(not by_fours(host()), reason="a machine without products of four bytes")
@pytest.mark.parametrize("kind", [np.int8, np.uint8])
def test_products_of_four_bytes_give_the_bits_of_those_of_two_numbers(kind, monkeypatch):
    """Weights at their ends among them: sums of both are exact."""
    for sizes in [*SIZES, (4, 2, 256)]:
        content, feeds = model(sizes, "bidirectional", kind, True)
        fours = pyflame_rt.InferenceSession(content).run(None, feeds)
        with monkeypatch.context() as patched:
            patched.setattr(rnn_timesteps, "by_fours", lambda _host: False)
            pairs = pyflame_rt.InferenceSession(content).run(None, feeds)
        for one, two in zip(fours, pairs, strict=True):
            np.testing.assert_array_equal(one, two)


def test_any_number_of_threads_gives_the_same_bits():
    content, feeds = model((7, 3, 72), "bidirectional", np.int8, False)
    runs = [
        pyflame_rt.InferenceSession(content, pyflame_rt.SessionOptions(num_threads=n)).run(None, feeds) for n in (1, 2)
    ]
    for one, two in zip(*runs, strict=True):
        np.testing.assert_array_equal(one, two)


def test_states_of_zeros_and_of_one_value():
    content, feeds = model((3, 2, 8), "forward", np.int8, False)
    for value in (0.0, 0.25, -0.25):
        feeds["h"] = np.full_like(feeds["h"], value)
        got = pyflame_rt.InferenceSession(content).run(None, feeds)
        want = pyflame_rt.InferenceSession(content, providers=["ReferenceExecutionProvider"]).run(None, feeds)
        for mine, theirs in zip(got, want, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=0, atol=2e-3)
