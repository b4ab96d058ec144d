"""Accuracy on trained models, beside ONNX Runtime's quantizer with the same data."""

import numpy as np
import pytest

from pyflame_rt.exporters.onnx import export_onnx
from pyflame_rt.quantization import CalibrationMethod, QuantConfig, QuantGranularity, Quantizer
from tests.unit.quantization.nets import convnet, transformer

POINTS = 0.005


def static(net, granularity, method=CalibrationMethod.MinMax):
    config = QuantConfig.static_int8()
    config.granularity, config.calibration_method = granularity, method
    return net.scores(Quantizer(config).quantize_with_calibration(net.graph, net.feeds).quantized_graph)


@pytest.mark.parametrize("make", [convnet, transformer])
@pytest.mark.parametrize("granularity", list(QuantGranularity))
@pytest.mark.parametrize("method", list(CalibrationMethod))
def test_static_int8_loses_half_a_point_at_most(make, granularity, method):
    net = make()
    scores = static(net, granularity, method)
    assert net.accuracy(scores) >= net.accuracy(net.scores(net.graph)) - POINTS
    assert net.agreement(scores) >= 0.99


@pytest.mark.parametrize("make", [convnet, transformer])
def test_dynamic_int8_and_halves_lose_as_little(make):
    net, quantizer = make(), Quantizer()
    for way in (quantizer.quantize_dynamic, quantizer.convert_to_fp16, quantizer.convert_to_bfloat16):
        scores = net.scores(way(net.graph).quantized_graph)
        assert net.accuracy(scores) >= net.accuracy(net.scores(net.graph)) - POINTS
        assert net.agreement(scores) >= 0.99


def onnxruntime_scores(net, folder, granularity):
    """What ONNX Runtime's quantizer makes of the model with the same data, run by ONNX Runtime."""
    ort = pytest.importorskip("onnxruntime")
    quantization = pytest.importorskip("onnxruntime.quantization")
    source, target = folder / "float.onnx", folder / "int8.onnx"
    export_onnx(net.graph, source, opset=17)

    class Reader(quantization.CalibrationDataReader):
        def __init__(self):
            self.left = iter(net.feeds)

        def get_next(self):
            return next(self.left, None)

    quantization.quantize_static(
        str(source), str(target), Reader(), per_channel=granularity is QuantGranularity.PerChannel
    )
    session = ort.InferenceSession(str(target), providers=["CPUExecutionProvider"])
    return session.run([net.output], {net.input: net.images})[0]


@pytest.mark.filterwarnings("ignore")  # of ONNX Runtime's quantizer
@pytest.mark.parametrize("make", [convnet, transformer])
@pytest.mark.parametrize("granularity", list(QuantGranularity))
def test_never_worse_than_onnxruntime(make, granularity, tmp_path):
    net = make()
    ours, theirs = static(net, granularity), onnxruntime_scores(net, tmp_path, granularity)
    real = net.scores(net.graph)
    # An error that happens to mend a wrong answer of the model is no merit.
    assert net.accuracy(ours) >= min(net.accuracy(theirs), net.accuracy(real))
    assert net.agreement(ours) >= net.agreement(theirs)
    assert np.square(ours - real).mean() <= np.square(theirs - real).mean()
