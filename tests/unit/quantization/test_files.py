"""Quantized files of others run here, ours run elsewhere."""

import numpy as np
import pytest

import pyflame_rt
from pyflame_rt.exporters.onnx import export_onnx
from pyflame_rt.quantization import QuantConfig, QuantFormat, QuantGranularity, Quantizer
from tests.unit.quantization.nets import convnet, residual, transformer

rng = np.random.default_rng(0)
FEEDS = [{"x": rng.standard_normal((16, 3, 8, 8)).astype(np.float32)} for _ in range(3)]


def onnxruntime_run(path, feed):
    ort = pytest.importorskip("onnxruntime")
    options = ort.SessionOptions()
    options.log_severity_level = 3
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"]).run(None, feed)


def openvino_run(path, feed):
    openvino = pytest.importorskip("openvino")
    model = openvino.Core().compile_model(str(path), "CPU")
    return list(model(feed).values())


def close_steps(found, expected):
    """Equal but for single steps where sums were rounded in another order."""
    scale = np.abs(expected).max()
    assert np.sqrt(np.square(found - expected).mean()) < 0.01 * scale
    assert np.abs(found - expected).max() < 0.05 * scale


@pytest.mark.parametrize("run", [onnxruntime_run, openvino_run])
@pytest.mark.parametrize("granularity", list(QuantGranularity))
@pytest.mark.parametrize("form", list(QuantFormat))
def test_others_read_our_static_files(run, granularity, form, tmp_path):
    if run is openvino_run and form is QuantFormat.Operators:
        pytest.skip("OpenVINO takes QLinearConv with one scale only")
    config = QuantConfig.static_int8()
    config.granularity, config.format = granularity, form
    made = Quantizer(config).quantize_with_calibration(residual(), FEEDS).quantized_graph
    path = tmp_path / "int8.onnx"
    export_onnx(made, path, opset=17)
    expected = pyflame_rt.InferenceSession(made).run(None, FEEDS[0])[0]
    close_steps(run(path, FEEDS[0])[0], expected)
    close_steps(pyflame_rt.InferenceSession(path).run(None, FEEDS[0])[0], expected)


@pytest.mark.parametrize("way", ["quantize_dynamic", "convert_to_fp16", "convert_to_bfloat16"])
def test_onnxruntime_reads_our_other_files(way, tmp_path):
    config = QuantConfig()
    config.granularity = QuantGranularity.PerChannel
    made = getattr(Quantizer(config), way)(residual()).quantized_graph
    path = tmp_path / "small.onnx"
    export_onnx(made, path, opset=17)
    expected = pyflame_rt.InferenceSession(made).run(None, FEEDS[0])[0]
    close_steps(onnxruntime_run(path, FEEDS[0])[0], expected)


@pytest.mark.parametrize("make", [convnet, transformer])
def test_predictions_are_the_same_in_onnxruntime(make, tmp_path):
    net = make()
    made = Quantizer(QuantConfig.static_int8()).quantize_with_calibration(net.graph, net.feeds).quantized_graph
    path = tmp_path / "int8.onnx"
    export_onnx(made, path, opset=17)
    place = [info.name for info in made.outputs].index(net.output)
    theirs = onnxruntime_run(path, {net.input: net.images})[place]
    assert (theirs.argmax(1) == net.scores(made).argmax(1)).mean() >= 0.99


@pytest.mark.filterwarnings("ignore")  # of ONNX Runtime's quantizer
@pytest.mark.parametrize("form", ["QDQ", "QOperator"])
@pytest.mark.parametrize("channels", [True, False])
@pytest.mark.parametrize("make", [convnet, transformer])
def test_files_of_onnxruntimes_quantizer(make, form, channels, tmp_path):
    quantization = pytest.importorskip("onnxruntime.quantization")
    net = make()
    source, target = tmp_path / "float.onnx", tmp_path / "int8.onnx"
    export_onnx(net.graph, source, opset=17)

    class Reader(quantization.CalibrationDataReader):
        left = iter(net.feeds)

        def get_next(self):
            return next(self.left, None)

    quantization.quantize_static(
        str(source), str(target), Reader(), quant_format=quantization.QuantFormat[form], per_channel=channels
    )
    feed = {net.input: net.images}
    theirs = onnxruntime_run(target, feed)
    ours = pyflame_rt.InferenceSession(target).run(None, feed)
    names = [info.name for info in pyflame_rt.InferenceSession(target).get_outputs()]
    found, expected = (r[names.index(net.output)] for r in (ours, theirs))
    assert (found.argmax(1) == expected.argmax(1)).mean() >= 0.99
    assert np.sqrt(np.square(found - expected).mean()) < 0.02 * np.abs(expected).max()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", [convnet, transformer])
def test_dynamic_files_of_onnxruntimes_quantizer(make, tmp_path):
    quantization = pytest.importorskip("onnxruntime.quantization")
    net = make()
    source, target = tmp_path / "float.onnx", tmp_path / "int8.onnx"
    export_onnx(net.graph, source, opset=17)
    quantization.quantize_dynamic(str(source), str(target), op_types_to_quantize=["MatMul"])
    feed = {net.input: net.images}
    for found, expected in zip(
        pyflame_rt.InferenceSession(target).run(None, feed), onnxruntime_run(target, feed), strict=True
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max())
