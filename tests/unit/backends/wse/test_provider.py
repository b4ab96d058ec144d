"""Sessions on the simulated wafer."""

import threading

import numpy as np
import pytest

import pyflame_rt
from pyflame_rt import InferenceSession, SessionOptions
from pyflame_rt.backends.wse.executable import SETTINGS
from pyflame_rt.graph import DType, Graph
from pyflame_rt.graph.errors import BackendError
from pyflame_rt.providers import find_provider


def mlp(batch=None):
    rng = np.random.default_rng(0)
    graph = Graph("mlp")
    graph.add_input("x", [batch, 8])
    graph.add_initializer("w", rng.standard_normal((8, 6)).astype(np.float32))
    graph.add_initializer("b", rng.standard_normal(6).astype(np.float32))
    graph.add_node("fc", "Gemm", ["x", "w", "b"], ["h"])
    graph.add_node("act", "Relu", ["h"], ["r"])
    graph.add_node("soft", "Softmax", ["r"], ["y"])
    graph.add_output("y", [batch, 6])
    return graph


def wafer(graph, **settings):
    return InferenceSession(graph, providers=[("WSEExecutionProvider", settings)])


@pytest.mark.parametrize(
    "settings", [{}, {"rows": 2, "cols": 2}, {"target": "wse2", "rows": 1, "cols": 3, "optimize": False}]
)
def test_a_session_agrees_with_the_reference_for_any_batch(settings):
    session = wafer(mlp("N"), **settings)
    reference = InferenceSession(mlp("N"), providers=["ReferenceExecutionProvider"])
    for batch in (1, 5, 4, 5):
        x = np.random.default_rng(batch).standard_normal((batch, 8)).astype(np.float32)
        np.testing.assert_allclose(
            session.run(None, {"x": x})[0], reference.run(None, {"x": x})[0], rtol=1e-5, atol=1e-6
        )


def test_taps_and_threads():
    session = wafer(mlp(3), rows=2, cols=2)
    x = np.ones((3, 8), np.float32)
    want, hidden = session.run(None, {"x": x}, taps=["h"])
    assert hidden.shape == (3, 6)
    results = []
    threads = [threading.Thread(target=lambda: results.append(session.run(None, {"x": x})[0])) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(np.array_equal(r, want) for r in results)
    assert len(results) == 3


def test_the_device_chooses_the_provider():
    session = InferenceSession(mlp(2), SessionOptions(device="wse2"))
    assert session.get_providers() == ["WSEExecutionProvider"]
    assert "wse [1 x 1 PEs]" in str(session.explain())


def test_what_the_wafer_lacks_goes_to_the_next_provider():
    graph = Graph("g")
    graph.add_input("x", [4])
    graph.add_initializer("k", np.array([2]))
    graph.add_node("n", "TopK", ["x", "k"], ["v", "i"])
    graph.add_output("v", [2])
    names = ["WSEExecutionProvider", "ReferenceExecutionProvider"]
    assert InferenceSession(graph, providers=names).get_providers()[0] == "ReferenceExecutionProvider"
    with pytest.raises(pyflame_rt.UnsupportedOperatorError, match="TopK has no rule"):
        InferenceSession(graph, providers=names[:1])


def test_bad_options_and_types_are_named():
    assert find_provider("WSEExecutionProvider").settings == SETTINGS
    with pytest.raises(pyflame_rt.InputError, match="only the options cols"):
        wafer(mlp(2), colour=3)
    with pytest.raises(pyflame_rt.PyFlameRTError, match="target 'wse9'"):
        wafer(mlp(2), target="wse9")
    graph = Graph("g")
    graph.add_input("x", [4], DType.Float64)
    graph.add_node("n", "Neg", ["x"], ["y"])
    graph.add_output("y", [4], DType.Float64)
    with pytest.raises(pyflame_rt.PyFlameRTError, match="float32, float16, bool"):
        wafer(graph)


def test_numbers_the_wafer_cannot_hold_are_named():
    graph = Graph("g")
    graph.add_input("x", [4], DType.Int64)
    graph.add_node("n", "Neg", ["x"], ["y"])
    graph.add_output("y", [4], DType.Int64)
    session = wafer(graph)
    assert session.run(None, {"x": np.arange(4)})[0].tolist() == [0, -1, -2, -3]
    with pytest.raises(pyflame_rt.InputError, match="'x' has numbers beyond int32"):
        session.run(None, {"x": np.array([1, 2, 3, 2**40])})


def test_an_index_outside_is_named():
    graph = Graph("g")
    graph.add_input("x", [4, 3])
    graph.add_input("i", [2], DType.Int64)
    graph.add_node("n", "Gather", ["x", "i"], ["y"])
    graph.add_output("y", [2, 3])
    with pytest.raises(pyflame_rt.InputError, match="index 4 is outside a dimension of size 4"):
        wafer(graph, rows=2).run(None, {"x": np.ones((4, 3), np.float32), "i": np.array([0, 4])})


def test_a_deadlock_offers_its_drawing(monkeypatch):
    from wsesim.fabric.errors import Deadlock, ProgramFault

    graph = Graph("g")
    graph.add_input("x", [4, 4])
    graph.add_node("n", "Relu", ["x"], ["y"])
    graph.add_output("y", [4, 4])
    session = InferenceSession(graph, providers=["WSEExecutionProvider"])
    feed = {"x": np.zeros((4, 4), np.float32)}

    def stuck(self):
        raise self.host.machine.deadlock("nobody sends")

    def broken(self):
        raise ProgramFault("an access outside memory")

    where = "pyflame_rt.backends.wse.simulate.SimulatedDevice.stop"
    monkeypatch.setattr(where, stuck)
    with pytest.raises(BackendError, match=r"stands still on 1 x 1 PEs; the \.svg") as caught:
        session.run(None, feed)
    assert isinstance(caught.value.__cause__, Deadlock)
    assert caught.value.__cause__.svg.startswith("<svg")
    monkeypatch.setattr(where, broken)
    with pytest.raises(BackendError, match="stops on 1 x 1 PEs: an access outside memory"):
        session.run(None, feed)
