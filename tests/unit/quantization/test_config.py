"""Settings, scalars of 16 bits, scales and zero points."""

import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyflame_rt.graph import DType
from pyflame_rt.graph.errors import InputError
from pyflame_rt.quantization import (
    BFloat16,
    CalibrationMethod,
    Float16,
    GraphQuantInfo,
    QuantConfig,
    QuantGranularity,
    QuantMode,
    QuantParams,
)

REALS = st.floats(width=32, allow_nan=False)
FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False, min_value=-(2.0**100), max_value=2.0**100)


@pytest.mark.parametrize("name", ["STATIC_INT8", "StaticInt8", "static_int8"])
def test_members_answer_to_every_spelling(name):
    assert getattr(QuantMode, name) is QuantMode.StaticInt8


def test_none_has_a_name_in_python():
    assert QuantMode.None_ is QuantMode.NONE is QuantConfig().mode


@pytest.mark.parametrize(
    ("setting", "value", "said"),
    [
        ("mode", "fp16", "QuantMode"),
        ("granularity", 1, "PerChannel"),
        ("calibration_method", None, "Entropy"),
        ("weight_dtype", DType.Float32, "DType.Int8"),
        ("activation_dtype", DType.Int4, "DType.Int8"),
        ("symmetric", "yes", "True or False"),
        ("exclude_ops", "Conv", "\\['Conv'\\]"),
        ("exclude_nodes", [3], "list of names"),
        ("exclude_nodes", 3, "list of names"),
        ("calibration_samples", 0, "from 1"),
        ("calibration_samples", True, "from 1"),
        ("calibration_samples", 10**12, "from 1"),
        ("calibration_percentile", 50, "above 50"),
        ("calibration_percentile", math.nan, "above 50"),
    ],
)
def test_what_is_wrong_is_said(setting, value, said):
    config = QuantConfig(**{setting: value})
    assert not config.is_valid()
    with pytest.raises(InputError, match=f"QuantConfig: {setting} is .*{said}"):
        config.check()


@given(REALS)
def test_halves_round_as_their_libraries_do(value):
    half, brain = Float16.from_float(value), BFloat16.from_float(value)
    with np.errstate(over="ignore"):
        assert half.bits == int(np.float16(np.float32(value)).view(np.uint16))
        assert brain.bits == int(np.asarray(np.float32(value)).astype(ml_dtypes.bfloat16).view(np.uint16))
    assert Float16(half.bits) == half
    assert half.is_inf() == math.isinf(half.to_float())


def test_not_a_number_is_told():
    assert Float16.from_float(math.nan).is_nan()
    assert BFloat16.from_float(math.nan).is_nan()
    assert Float16.from_float(math.nan) != Float16.from_float(math.nan)
    assert repr(Float16.from_float(0.5)) == "Float16(0.5)"


@given(FINITE, FINITE, st.booleans(), st.sampled_from([DType.Int8, DType.UInt8]))
def test_ranges_become_scales_that_reach_both_ends(a, b, symmetric, dtype):
    low, high = min(a, b), max(a, b)
    params = QuantParams.compute_from_minmax(low, high, dtype, symmetric)
    scale = float(params.scales[0])
    assert 0 < scale < math.inf
    assert params.dequantize(params.quantize(np.float32([0.0])))[0] == 0  # padding with zeros stays exact
    ends = np.float32([low, high])
    error = np.abs(params.dequantize(params.quantize(ends)).astype(np.float64) - ends.astype(np.float64))
    assert (error <= 0.5 * scale * 1.001 + 1e-6 * np.abs(ends)).all()


@given(FINITE, st.sampled_from([DType.Int8, DType.UInt8]))
def test_symmetric_means_zero_in_the_middle(a, dtype):
    params = QuantParams.compute_from_minmax(-abs(a) - 1, abs(a), dtype)
    assert params.zero_points.tolist() == [0 if dtype is DType.Int8 else 128]


@pytest.mark.parametrize(("low", "high"), [(1, 0), (math.nan, 1), (-math.inf, 0), ([0, 2], [1, 1])])
def test_ranges_that_are_none_are_refused(low, high):
    with pytest.raises(InputError, match="range"):
        QuantParams.compute_from_minmax(low, high)


def test_scales_by_channel():
    params = QuantParams.per_channel([0.5, 2.0], [0, 1], axis=1)
    assert params.is_per_channel
    assert params.num_channels == 2
    got = params.dequantize(params.quantize(np.float32([[1, 2], [3, 4]])))
    np.testing.assert_array_equal(got, [[1, 2], [3, 4]])


@pytest.mark.parametrize("scales", [[0.0, 1.0], [math.inf, 1.0], [-1.0, 1.0], [1.0]])
def test_scales_that_are_none_are_refused(scales):
    with pytest.raises(InputError, match="scales"):
        QuantParams.per_channel(scales, [0, 0])


def test_zero_points_outside_of_the_type_are_refused():
    with pytest.raises(InputError, match="-128 to 127"):
        QuantParams.per_tensor(1.0, 200)


def test_parameters_equal_onnx():
    from onnx import TensorProto, helper
    from onnx.reference import ReferenceEvaluator

    x = np.random.default_rng(0).standard_normal((4, 5)).astype(np.float32) * 3
    params = QuantParams.compute_from_minmax(x.min(), x.max(), symmetric=False)
    node = helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"])
    graph = helper.make_graph(
        [node],
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 5]),
            helper.make_tensor_value_info("s", TensorProto.FLOAT, []),
            helper.make_tensor_value_info("z", TensorProto.INT8, []),
        ],
        [helper.make_tensor_value_info("q", TensorProto.INT8, [4, 5])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
    feed = {"x": x, "s": params.scales[0], "z": params.zero_points[0]}
    np.testing.assert_array_equal(params.quantize(x), ReferenceEvaluator(model).run(None, feed)[0])


def test_information_of_a_graph():
    info = GraphQuantInfo()
    with pytest.raises(InputError, match=r"'x'.*not observed"):
        info.get_params("x")
    with pytest.raises(TypeError, match="QuantParams, got float"):
        info.set_params("x", 0.5)
    info.set_params("x", QuantParams.per_tensor(0.5))
    assert info.get_params("x").scales.tolist() == [0.5]
    assert len(info) == 1


def test_defaults():
    assert QuantConfig().calibration_method is CalibrationMethod.MIN_MAX
    assert QuantConfig().granularity is QuantGranularity.PER_TENSOR
    assert QuantConfig.static_int8(7).calibration_samples == 7
