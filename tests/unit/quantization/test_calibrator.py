"""Calibration: what is observed, from which sources, in how much memory."""

import math
import tracemalloc

import numpy as np
import pytest

import pyflame_rt
from pyflame_rt.graph import Graph
from pyflame_rt.graph.errors import DTypeMismatchError, InputError, ShapeMismatchError
from pyflame_rt.quantization import CalibrationMethod, Calibrator, GraphQuantInfo, QuantConfig, Quantizer
from tests.unit.quantization.nets import dense, residual


def batches(count=4, rows=8, seed=0):
    rng = np.random.default_rng(seed)
    return [{"x": rng.standard_normal((rows, 6)).astype(np.float32)} for _ in range(count)]


def test_ranges_are_those_of_the_values():
    graph, feeds = dense(), batches()
    calibrator = Calibrator(graph, QuantConfig.static_int8())
    for feed in feeds:
        calibrator.observe(feed)
    assert calibrator.names == ["x", "a0"]
    session = pyflame_rt.InferenceSession(graph, providers=["ReferenceExecutionProvider"])
    hidden = np.concatenate([session.run([], feed, taps=["a0"])[-1] for feed in feeds])
    stats = calibrator.get_stats("a0")
    np.testing.assert_allclose([stats.min, stats.max], [hidden.min(), hidden.max()], rtol=1e-5)
    assert stats.count == hidden.size
    inputs = np.concatenate([feed["x"] for feed in feeds])
    assert calibrator.get_stats("x").max == inputs.max()
    with pytest.raises(InputError, match="'h0' is not observed"):
        calibrator.get_stats("h0")


def from_function(feeds):
    left = iter(feeds)
    return lambda: next(left)


def until_none(feeds):
    left = iter([*feeds, None, None])
    return lambda: next(left)


@pytest.mark.parametrize("source", [list, iter, from_function, until_none])
@pytest.mark.parametrize(("asked", "taken"), [(2, 2), (4, 4), (9, 4), (None, 4)])
def test_sources_of_feeds(source, asked, taken):
    calibrator = Calibrator(dense())
    assert calibrator.calibrate(source(batches()), asked) == taken
    assert calibrator.batches == taken


def test_a_function_is_called_once_for_each_batch():
    calls = []
    Calibrator(dense()).calibrate(lambda: calls.append(1) or batches(1)[0], 3)
    assert len(calls) == 3


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (7, "got a int"),
        ({"x": np.zeros((1, 6), np.float32)}, r"write \[feed\]"),
        ([np.zeros((1, 6), np.float32)], "number 1 is a ndarray"),
        (lambda: 3, "number 1 is a int"),
    ],
)
def test_what_is_no_source_is_refused(source, said):
    with pytest.raises(InputError, match=said):
        Calibrator(dense()).calibrate(source, 2)


def test_feeds_are_checked_like_those_of_a_session():
    calibrator = Calibrator(dense())
    with pytest.raises(InputError, match="'z'"):
        calibrator.observe({"z": np.zeros((1, 6), np.float32)})
    with pytest.raises(ShapeMismatchError):
        calibrator.observe({"x": np.zeros((1, 5), np.float32)})
    with pytest.raises(DTypeMismatchError):
        calibrator.observe({"x": np.zeros((1, 6), np.float64)})
    one_layer = Calibrator(dense(sizes=(6, 4)))  # nothing but the input is observed
    with pytest.raises(DTypeMismatchError):
        one_layer.observe({"x": np.zeros((1, 6), np.float64)})
    with pytest.raises(InputError, match="no calibration data"):
        one_layer.compute_quant_params()


def test_errors_of_the_source_reach_the_caller():
    def broken():
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        Calibrator(dense()).calibrate(broken, 2)


def test_values_that_are_not_finite_keep_their_nodes_in_float32():
    feeds = batches(1)
    feeds[0]["x"][0, 0] = math.inf
    result = Quantizer(QuantConfig.static_int8()).quantize_with_calibration(dense(), feeds)
    assert "'x' was infinite or NaN 1 times" in result.skipped["fc0"]
    assert "'a0'" in result.skipped["fc1"]  # what comes of it is infinite too
    assert not result.success
    assert "nothing to quantize" in result.error_message


def test_empty_information_is_refused():
    with pytest.raises(InputError, match="empty"):
        Quantizer(QuantConfig.static_int8()).quantize(dense(), GraphQuantInfo())
    with pytest.raises(TypeError, match="GraphQuantInfo, got dict"):
        Quantizer(QuantConfig.static_int8()).quantize(dense(), {})


def test_memory_does_not_grow_with_the_data():
    """Ten times the batches, the same peak: no batch is kept."""
    graph = residual()

    def peak(count):
        rng = np.random.default_rng(0)
        config = QuantConfig.static_int8()
        config.calibration_method = CalibrationMethod.Entropy
        calibrator = Calibrator(graph, config)
        calibrator.calibrate(lambda: {"x": rng.standard_normal((512, 3, 8, 8), np.float32)}, 3)
        tracemalloc.start()
        try:
            calibrator.calibrate(lambda: {"x": rng.standard_normal((512, 3, 8, 8), np.float32)}, count)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    one_value = 512 * 8 * 8 * 8 * 4  # of the five that are observed of each batch
    assert peak(30) < peak(3) + one_value


def test_a_progress_bar_on_a_terminal_only(capsys, monkeypatch):
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    Calibrator(dense()).calibrate(batches(), 4)
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    Calibrator(dense()).calibrate(batches(), 4)
    said = capsys.readouterr()
    assert said.out == ""
    assert "calibrating" in said.err


def test_inputs_with_defaults_and_graphs_without_candidates():
    graph = dense()
    graph.add_initializer("x", np.ones((1, 6), np.float32))
    calibrator = Calibrator(graph)
    calibrator.observe({})
    assert calibrator.get_stats("x").max == 1.0
    plain = Graph("plain")
    plain.add_input("x", [2])
    plain.add_node("n", "Exp", ["x"], ["y"])
    plain.add_output("y", [2])
    empty = Calibrator(plain)
    empty.observe({"x": np.zeros(2, np.float32)})
    assert len(empty.compute_quant_params()) == 0
