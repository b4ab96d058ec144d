"""The same quantizing program, with ONNX Runtime's functions and with ours under their names."""

import importlib
import inspect

import numpy as np
import onnx
import onnxruntime
import pytest

import pyflame_rt
from pyflame_rt.demo import model_path, test_set
from pyflame_rt.graph.errors import InputError, PyFlameRTError
from pyflame_rt.ort import quantization as ours

THEIRS, OURS = "onnxruntime.quantization", "pyflame_rt.ort.quantization"
IMAGES, LABELS = test_set()


def reader(q, feeds):
    class Reader(q.CalibrationDataReader):
        def __init__(self):
            self.left = iter(feeds)

        def get_next(self):
            return next(self.left, None)

    return Reader()


def batches():
    return reader(ours, [{"image": IMAGES[i : i + 50]} for i in range(0, 200, 50)])


def ops(path):
    return [node.op_type for node in onnx.load(path).graph.node]


def integers(path):
    """The operator of each node that reads a weight of 8 bits, with the size of its scale."""
    graph = onnx.load(path).graph
    weights = {w.name: onnx.numpy_helper.to_array(w) for w in graph.initializer}
    return {
        node.name: (weights[node.input[0]].dtype, weights[node.input[1]].size)
        for node in graph.node
        if node.op_type == "DequantizeLinear" and node.input[0] in weights and weights[node.input[0]].ndim > 1
    }


def right(path, runtime):
    session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (digit,) = session.run(["digit"], {"image": IMAGES})
    return np.mean(digit == LABELS)


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("way", ["quantize_dynamic", "quantize_static"])
def test_the_same_program(way, per_channel, tmp_path):
    """Both files open in both runtimes and tell the digits as well."""
    found = []
    for name in (THEIRS, OURS):
        q, path = importlib.import_module(name), str(tmp_path / f"{name}.onnx")
        given = [] if way == "quantize_dynamic" else [reader(q, [{"image": IMAGES[:200]}])]
        getattr(q, way)(str(model_path()), path, *given, per_channel=per_channel)
        found += [right(path, onnxruntime), right(path, pyflame_rt)]
    assert min(found) > 0.97
    assert max(found) - min(found) < 0.01


@pytest.mark.parametrize("way", ["quantize_dynamic", "quantize_static", "StaticQuantConfig", "DynamicQuantConfig"])
def test_arguments_are_in_their_order(way):
    """What a program gives by position means the same; theirs has one more, which is refused as unknown."""
    theirs, here = (
        list(inspect.signature(getattr(importlib.import_module(name), way)).parameters.values())
        for name in (THEIRS, OURS)
    )
    left = ("self", "calibration_data_reader", "calibration_cache_path")  # ours must be given a reader

    def told(parameters):
        return [(p.name, getattr(p.default, "name", p.default)) for p in parameters if p.name not in left]

    assert told(here) == told(theirs)


@pytest.mark.parametrize("kind", ["QuantType", "QuantFormat", "CalibrationMethod"])
def test_names_of_settings(kind):
    theirs, here = (getattr(importlib.import_module(name), kind) for name in (THEIRS, OURS))
    assert {m.name: m.value for m in here} == {m.name: m.value for m in theirs}
    assert here.from_string(str(next(iter(here)))) is next(iter(here))
    with pytest.raises(ValueError, match=r"'Nothing' is not one of"):
        here.from_string("Nothing")


def test_each_setting_takes_effect(tmp_path):
    path = str(tmp_path / "q.onnx")

    def static(**given):
        ours.quantize_static(model_path(), path, batches(), **given)
        return integers(path)

    plain = static()
    assert {kind for kind, _ in plain.values()} == {np.dtype(np.int8)}
    assert {size for _, size in plain.values()} == {1}
    assert min(size for _, size in static(per_channel=True).values()) > 1
    assert {kind for kind, _ in static(weight_type=ours.QuantType.QUInt8).values()} == {np.dtype(np.uint8)}
    convolutions = [n for n in onnx.load(str(model_path())).graph.node if n.op_type == "Conv"]
    assert 0 < len(static(op_types_to_quantize=["Conv"])) == len(convolutions) < len(plain)
    assert len(static(nodes_to_quantize=[convolutions[0].name])) == 1
    assert len(static(nodes_to_exclude=[convolutions[0].name])) == len(plain) - 1
    assert len(static(calibrate_method=ours.CalibrationMethod.Entropy)) == len(plain)

    def scales():
        graph = onnx.load(path).graph
        return sorted(
            float(onnx.numpy_helper.to_array(w).item()) for w in graph.initializer if w.name.endswith("scale")
        )

    changed = [
        {},
        {"calibrate_method": ours.CalibrationMethod.Percentile, "extra_options": {"CalibPercentile": 90.0}},
        {"activation_type": ours.QuantType.QUInt8, "extra_options": {"ActivationSymmetric": True}},
        {"extra_options": {"WeightSymmetric": False}},
    ]
    texts = set()
    for given in changed:
        static(**given)
        texts.add(onnx.load(path).SerializeToString())
    assert len(texts) == len(changed)


def test_weights_beside_the_file(tmp_path):
    path = tmp_path / "q.onnx"
    ours.quantize_dynamic(model_path(), path, use_external_data_format=True)
    assert len(list(tmp_path.iterdir())) == 2
    assert right(str(path), onnxruntime) > 0.97


def test_settings_as_one_object(tmp_path):
    one, other, third = (str(tmp_path / f"{i}.onnx") for i in range(3))
    ours.quantize(model_path(), one, ours.StaticQuantConfig(batches(), per_channel=True))
    ours.quantize_static(model_path(), other, batches(), per_channel=True)
    ours.quantize(onnx.load(str(model_path())), third, ours.DynamicQuantConfig())
    assert onnx.load(one).SerializeToString() == onnx.load(other).SerializeToString()
    assert "DynamicQuantizeLinear" in ops(third)


def test_a_model_prepared_for_quantization(tmp_path):
    plain, made = str(tmp_path / "plain.onnx"), str(tmp_path / "made.onnx")
    ours.quant_pre_process(model_path(), plain, skip_optimization=True)
    ours.quant_pre_process(str(model_path()), made)
    assert len(ops(made)) <= len(ops(plain))
    for path in (plain, made):
        np.testing.assert_allclose(right(path, onnxruntime), right(str(model_path()), onnxruntime), atol=0)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"quant_format": ours.QuantFormat.QOperator}, "QOperator: write QuantFormat.QDQ"),
        ({"activation_type": ours.QuantType.QInt16}, "activation_type is QInt16, not one of QInt8, QUInt8"),
        ({"weight_type": ours.QuantType.QInt4}, "weight_type is QInt4"),
        ({"calibrate_method": ours.CalibrationMethod.Distribution}, "calibrate_method is Distribution"),
        ({"calibration_providers": ["CUDAExecutionProvider"]}, "calibration_providers"),
        ({"extra_options": {"CalibMovingAverage": True}}, "'CalibMovingAverage' has no counterpart"),
        ({"nodes_to_quantize": ["nobody"]}, "no node 'nobody'"),
        ({"nodes_to_exclude": ["nobody"]}, "no node 'nobody'"),
        ({"op_types_to_quantize": ["Softmax"]}, "nothing to quantize"),
    ],
)
def test_what_has_no_counterpart_is_refused_by_name(given, said, tmp_path):
    with pytest.raises(PyFlameRTError, match=said):
        ours.quantize_static(model_path(), tmp_path / "q.onnx", batches(), **given)
    assert not list(tmp_path.iterdir())


def test_other_wrong_uses(tmp_path):
    path = tmp_path / "q.onnx"
    with pytest.warns(UserWarning, match="reduce_range has no effect"):
        ours.quantize_dynamic(model_path(), path, reduce_range=True)
    with pytest.raises(InputError, match="MatMulConstBOnly=False"):
        ours.quantize_dynamic(model_path(), path, extra_options={"MatMulConstBOnly": False})
    with pytest.raises(InputError, match="is the model that is read"):
        ours.quantize_dynamic(path, path)
    with pytest.raises(TypeError, match="got dict"):
        ours.quantize(model_path(), path, {})
    with pytest.raises(TypeError, match="get_next"):
        ours.quantize_static(model_path(), path, [{"image": IMAGES}])
