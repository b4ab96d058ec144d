"""Quantization while a session loads its model."""

import pickle

import numpy as np
import pytest

import pyflame_rt
from pyflame_rt import InferenceSession, SessionOptions
from pyflame_rt.graph import Graph
from pyflame_rt.graph.errors import InputError
from pyflame_rt.quantization import QuantConfig, QuantMode
from tests.unit.quantization.nets import residual

rng = np.random.default_rng(0)


def feed():
    return {"x": rng.standard_normal((4, 3, 8, 8)).astype(np.float32)}


@pytest.mark.parametrize("mode", [m for m in QuantMode if m is not QuantMode.NONE])
def test_modes(mode):
    static = {"calibration_data": feed, "calibration_batches": 3} if mode is QuantMode.StaticInt8 else {}
    with InferenceSession(residual(), SessionOptions(quantization=QuantConfig(mode=mode), **static)) as session:
        assert session.is_quantized()
        report = session.quantization_report()
        assert report.mode is mode
        assert 1 <= report.nodes_quantized <= report.nodes_total
        few = mode is QuantMode.WeightOnly  # of the model's weights: convolutions stay
        assert report.compression_ratio == report.compression_ratio() > (1.05 if few else 1.4)
        given = feed()
        real = InferenceSession(residual()).run(None, given)[0]
        got = session.run(None, given)[0]
        assert got.dtype == np.float32
        assert 0 < np.abs(got - real).max() < 0.3 * np.abs(real).max()
        assert [node.op_type for node in session.graph().nodes] == [node.op_type for node in residual().nodes]


def test_no_mode_is_no_quantization():
    session = InferenceSession(residual(), SessionOptions(quantization=QuantConfig()))
    assert not session.is_quantized()
    assert session.quantization_report() is None


@pytest.mark.parametrize(("samples", "batches", "calls"), [(7, 100, 7), (7, 3, 3), (100, 100, 100)])
def test_how_many_batches(samples, batches, calls):
    seen = []
    options = SessionOptions(
        quantization=QuantConfig.static_int8(samples),
        calibration_data=lambda: seen.append(1) or feed(),
        calibration_batches=batches,
    )
    InferenceSession(residual(), options)
    assert len(seen) == calls


def test_iterables_are_data_too():
    options = SessionOptions(quantization=QuantConfig.static_int8(), calibration_data=[feed(), feed()])
    assert InferenceSession(residual(), options).quantization_report().activations_quantized > 0


def test_static_without_data_is_dynamic_and_says_so():
    with pytest.warns(UserWarning, match="DynamicInt8") as caught:
        session = InferenceSession(residual(), SessionOptions(quantization=QuantConfig.static_int8()))
    assert caught[0].filename == __file__
    assert session.quantization_report().mode is QuantMode.DynamicInt8
    assert "DynamicInt8" in str(session.quantization_report())


def test_nothing_to_quantize_is_told():
    graph = Graph("plain")
    graph.add_input("x", [2])
    graph.add_node("n", "Exp", ["x"], ["y"])
    graph.add_output("y", [2])
    with pytest.warns(UserWarning, match="nothing to quantize"):
        session = InferenceSession(graph, SessionOptions(quantization=QuantConfig.dynamic_int8()))
    assert not session.is_quantized()
    assert session.quantization_report().nodes_quantized == 0


@pytest.mark.parametrize("wrong", ["fp16", QuantMode.FP16, QuantConfig(calibration_samples=-1)])
def test_wrong_settings_are_refused(wrong):
    with pytest.raises(InputError, match="QuantConfig"):
        InferenceSession(residual(), SessionOptions(quantization=wrong))


def test_data_without_use_is_told():
    options = SessionOptions(quantization=QuantConfig.fp16(), calibration_data=feed)
    with pytest.warns(UserWarning, match="calibration_data=.*FP16"):
        InferenceSession(residual(), options)


def test_files_and_pickles(tmp_path):
    path = tmp_path / "model.pfm"
    pyflame_rt.save_model(residual(), path)
    session = InferenceSession(path, SessionOptions(quantization=QuantConfig.dynamic_int8()))
    given = feed()
    expected = session.run(None, given)[0]
    twin = pickle.loads(pickle.dumps(session))  # noqa: S301 - our own
    np.testing.assert_array_equal(twin.run(None, given)[0], expected)
    again = InferenceSession(path, SessionOptions(quantization=QuantConfig.dynamic_int8()))
    np.testing.assert_array_equal(again.run(None, given)[0], expected)
    plain = InferenceSession(path).run(None, given)[0]
    assert np.abs(plain - expected).max() > 0


def test_a_session_knows_models_that_were_quantized_before():
    from pyflame_rt.quantization import QuantFormat, Quantizer

    for form in QuantFormat:
        config = QuantConfig.static_int8()
        config.format = form
        made = Quantizer(config).quantize_with_calibration(residual(), [feed()]).quantized_graph
        assert InferenceSession(made).is_quantized()
