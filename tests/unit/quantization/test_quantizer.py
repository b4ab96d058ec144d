"""Quantized graphs: what is in them, that they answer right, on every backend."""

import numpy as np
import pytest

import pyflame_rt
from pyflame_rt.graph import DType, Graph
from pyflame_rt.graph.errors import InputError
from pyflame_rt.opt import fuse_operators
from pyflame_rt.quantization import (
    CalibrationMethod,
    Calibrator,
    QuantConfig,
    QuantFormat,
    QuantGranularity,
    Quantizer,
    QuantMode,
)
from pyflame_rt.quantization.prepare import prepared
from tests.unit.quantization.nets import dense, residual

BACKENDS = ["CPUExecutionProvider", "ReferenceExecutionProvider", "TorchExecutionProvider", "MLXExecutionProvider"]


def feeds(count=3, rows=32, seed=1):
    rng = np.random.default_rng(seed)
    return [{"x": rng.standard_normal((rows, 3, 8, 8)).astype(np.float32)} for _ in range(count)]


def run(graph, feed, provider="CPUExecutionProvider"):
    return pyflame_rt.InferenceSession(graph, providers=[provider]).run(None, feed)[0]


def ops(graph):
    return [node.full_name for node in graph.nodes]


def config_of(**settings):
    config = QuantConfig.static_int8()
    for name, value in settings.items():
        setattr(config, name, value)
    return config


def quantized(graph, data, **settings):
    result = Quantizer(config_of(**settings)).quantize_with_calibration(graph, data)
    assert result.success, result.error_message
    assert result.quantized_graph.validate() == []
    return result


def relative(got, real):
    return float(np.sqrt(((got - real) ** 2).mean()) / real.std())


# ---------------------------------------------------------------------- static


@pytest.mark.parametrize("granularity", list(QuantGranularity))
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("dtype", [DType.Int8, DType.UInt8])
@pytest.mark.parametrize("form", list(QuantFormat))
def test_static_answers_are_near_the_real_ones(granularity, symmetric, dtype, form):
    graph, data = residual(), feeds()
    result = quantized(
        graph,
        data,
        granularity=granularity,
        symmetric=symmetric,
        activation_dtype=dtype,
        weight_dtype=dtype,
        format=form,
    )
    assert result.stats.nodes_quantized == 5  # three convolutions, the sum, the product
    assert result.stats.weights_quantized == 4
    error = relative(run(result.quantized_graph, data[0]), run(graph, data[0]))
    assert 1e-5 < error < 0.05


@pytest.mark.parametrize("form", list(QuantFormat))
@pytest.mark.parametrize("provider", BACKENDS)
def test_every_backend_gives_the_reference_answer(form, provider):
    if provider not in pyflame_rt.get_available_providers():
        pytest.skip(f"{provider} is not here")
    graph, data = residual(), feeds()
    made = quantized(graph, data, granularity=QuantGranularity.PerChannel, format=form).quantized_graph
    expected = run(made, data[0], "ReferenceExecutionProvider")
    step = np.abs(expected).max() / 127
    assert np.abs(run(made, data[0], provider) - expected).max() <= 0.5 * step


def test_the_graph_that_was_given_stays_as_it_was():
    graph, data = residual(), feeds()
    before = str(graph)
    quantized(graph, data)
    Quantizer().quantize_dynamic(graph)
    Quantizer().convert_to_fp16(graph)
    assert str(graph) == before


def test_normalisations_go_into_the_weights_first():
    made = quantized(residual(), feeds()).quantized_graph
    assert "BatchNormalization" not in ops(made)


def test_values_that_only_move_keep_one_scale():
    graph = quantized(residual(), feeds()).quantized_graph
    pool = graph.get_node("pool")
    before = graph.get_producer(pool.inputs[0])
    after = next(n for n in graph.get_consumers(pool.outputs[0]) if n.op_type == "QuantizeLinear")
    assert before.op_type == "DequantizeLinear"
    assert before.inputs[1:] == after.inputs[1:]


def test_the_bias_is_in_steps_of_the_sums():
    graph = quantized(dense(), [{"x": f["x"][:, 0, :6, 0]} for f in feeds()]).quantized_graph
    node = graph.get_node("fc0")
    data, weight, bias = (graph.get_producer(name) for name in node.inputs)
    scales = [float(graph.get_initializer(n.inputs[1]).numpy()) for n in (data, weight, bias)]
    assert graph.get_initializer(bias.inputs[0]).dtype is DType.Int32
    assert np.float32(scales[0] * scales[1]) == np.float32(scales[2])


def test_a_bias_that_int32_cannot_hold_stays_real():
    graph = dense(sizes=(6, 4))
    graph.initializers["b0"] = pyflame_rt.from_numpy(np.full(4, 1e20, np.float32))
    data = [{"x": f["x"][:, 0, :6, 0] * np.float32(1e-6)} for f in feeds()]
    result = quantized(graph, data)
    np.testing.assert_allclose(run(result.quantized_graph, data[0]), 1e20, rtol=1e-6)


@pytest.mark.parametrize("form", list(QuantFormat))
def test_outputs_are_rounded_on_demand(form):
    graph, data = residual(), feeds()
    result = quantized(graph, data, quantize_outputs=True, format=form)
    got = run(result.quantized_graph, data[0])
    scale = result.quant_info.get_params("out").scales[0]
    np.testing.assert_allclose(got / scale, np.rint(got / scale), atol=1e-3)
    assert [info.name for info in result.quantized_graph.outputs] == ["out"]


def test_inputs_are_left_on_demand():
    result = quantized(residual(), feeds(), quantize_inputs=False)
    assert "quantize_inputs" in next(iter(result.skipped.values()))
    assert result.stats.nodes_quantized == 4


@pytest.mark.parametrize(
    ("settings", "count"),
    [({"exclude_ops": ["Conv"]}, 1), ({"exclude_ops": ("Add", "MatMul")}, 3), ({"exclude_nodes": {"c1", "last"}}, 3)],
)
def test_what_is_excluded_stays(settings, count):
    result = quantized(residual(), feeds(), **settings)
    assert result.stats.nodes_quantized == count
    assert result.stats.nodes_skipped == len(result.skipped) > 0


def test_excluding_an_operator_that_nobody_knows():
    config = QuantConfig(exclude_ops=["Cnov"])
    for way in ("quantize_dynamic", "convert_to_fp16", "quantize_weights"):
        with pytest.raises(InputError, match=r"no operator 'Cnov'. Did you mean 'Conv'"):
            getattr(Quantizer(config), way)(residual())
    assert Quantizer(QuantConfig(exclude_ops=["Softmax", "pyflame::FusedConvBN"])).quantize_dynamic(residual()).success


def test_excluding_a_node_that_is_not_there():
    with pytest.raises(InputError, match=r"no node 'lost'.*'last'"):
        Calibrator(residual(), config_of(exclude_nodes=["lost"]))


def test_fused_operators_are_their_base_operators():
    graph, data = residual(), feeds()
    fused = graph.copy()
    fuse_operators(fused)
    assert any(name.startswith("pyflame::Fused") for name in ops(fused))
    assert quantized(fused, data).stats.nodes_quantized == 5
    np.testing.assert_allclose(
        run(quantized(fused, data).quantized_graph, data[0]),
        run(quantized(graph, data).quantized_graph, data[0]),
        atol=1e-3,
    )


def test_a_weight_that_several_nodes_read_is_stored_once():
    graph = Graph("shared")
    graph.add_input("x", ["N", 4])
    graph.add_initializer("w", np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32))
    graph.add_node("a", "MatMul", ["x", "w"], ["u"])
    graph.add_node("b", "MatMul", ["u", "w"], ["y"])
    graph.add_output("y", ["N", 4])
    data = [{"x": np.ones((2, 4), np.float32)}]
    for made in (quantized(graph, data), Quantizer().quantize_dynamic(graph)):
        stored = [t for t in made.quantized_graph.initializers.values() if t.ndim == 2]
        assert [t.dtype for t in stored] == [DType.Int8]
        assert relative(run(made.quantized_graph, data[0]), run(graph, data[0])) < 0.05


def test_products_of_data_with_data():
    graph = Graph("attention")
    graph.add_input("q", ["N", 3, 4])
    graph.add_input("k", ["N", 4, 3])
    graph.add_node("m", "MatMul", ["q", "k"], ["y"])
    graph.add_output("y", ["N", 3, 3])
    rng = np.random.default_rng(0)
    feed = {
        "q": rng.standard_normal((2, 3, 4)).astype(np.float32),
        "k": rng.standard_normal((2, 4, 3)).astype(np.float32),
    }
    for form in QuantFormat:
        made = quantized(graph, [feed], format=form, quantize_outputs=True).quantized_graph
        assert relative(run(made, feed), feed["q"] @ feed["k"]) < 0.03
    assert ops(made).count("pyflame::QuantizedMatMul") == 1
    assert "not a constant" in Quantizer().quantize_dynamic(graph).skipped["m"]


def test_operators_have_integers_between_them():
    made = quantized(residual(), feeds(), format=QuantFormat.Operators).quantized_graph
    found = ops(made)
    assert found.count("pyflame::QuantizedConv") == 3
    assert found.count("pyflame::QuantizedAdd") == 1
    between = made.get_node("c2")
    assert made.value_type(between.inputs[0]).dtype is DType.Int8
    assert made.value_type(between.outputs[0]).dtype is DType.Int8


@pytest.mark.parametrize("method", list(CalibrationMethod))
def test_bias_correction_takes_the_mean_error_away(method):
    rng = np.random.default_rng(3)
    graph = dense(sizes=(64, 16))
    del graph.nodes[1:]
    graph.outputs = []
    graph.add_output("h0", ["N", 16])
    data = [{"x": (rng.standard_normal((256, 64)) + 2).astype(np.float32)}]
    real = run(graph, data[0])

    def mean_error(**settings):
        made = quantized(graph, data, calibration_method=method, **settings).quantized_graph
        return np.abs((run(made, data[0]) - real).mean(axis=0)).mean()

    assert mean_error(bias_correction=True) < 0.5 * mean_error()


# ---------------------------------------------------------------------- dynamic


@pytest.mark.parametrize("granularity", list(QuantGranularity))
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("dtype", [DType.Int8, DType.UInt8])
@pytest.mark.parametrize("make", [dense, residual])
def test_dynamic_answers_are_near_the_real_ones(granularity, symmetric, dtype, make):
    graph = make()
    feed = feeds()[0] if make is residual else {"x": feeds()[0]["x"][:, 0, :6, 0]}
    config = QuantConfig.dynamic_int8()
    config.granularity, config.symmetric_weights, config.weight_dtype = granularity, symmetric, dtype
    result = Quantizer(config).quantize_dynamic(graph)
    assert result.success
    assert result.mode is QuantMode.DynamicInt8
    expected = run(graph, feed)
    assert 1e-5 < relative(run(result.quantized_graph, feed), expected) < 0.05
    found = run(result.quantized_graph, feed, "ReferenceExecutionProvider")
    assert relative(found, expected) < 0.05


def test_data_that_several_nodes_read_is_quantized_once():
    graph = Graph("wide")
    graph.add_input("x", ["N", 4])
    for name in "ab":
        graph.add_initializer(f"w{name}", np.eye(4, dtype=np.float32))
        graph.add_node(name, "MatMul", ["x", f"w{name}"], [f"y{name}"])
        graph.add_output(f"y{name}", ["N", 4])
    result = Quantizer().quantize_dynamic(graph)
    assert ops(result.quantized_graph).count("DynamicQuantizeLinear") == 1


def test_nothing_to_quantize_is_no_success():
    graph = Graph("plain")
    graph.add_input("x", [2])
    graph.add_node("n", "Exp", ["x"], ["y"])
    graph.add_output("y", [2])
    static = Quantizer(QuantConfig.static_int8()).apply(graph, [{"x": np.zeros(2, np.float32)}])
    for result in (Quantizer().quantize_dynamic(graph), Quantizer().convert_to_fp16(graph), static):
        assert not result.success
        assert "nothing to quantize" in result.error_message
        assert result.stats.compression_ratio() == 1.0
        np.testing.assert_array_equal(run(result.quantized_graph, {"x": np.zeros(2, np.float32)}), [1, 1])


# ---------------------------------------------------------------------- 16 bits


@pytest.mark.parametrize(("method", "dtype", "bound"), [
    ("convert_to_fp16", DType.Float16, 2e-3), ("convert_to_bfloat16", DType.BFloat16, 2e-2),
])  # fmt: skip
def test_weights_in_half_the_memory(method, dtype, bound):
    graph, feed = residual(), feeds()[0]
    result = getattr(Quantizer(), method)(graph)
    assert result.success
    assert 1.5 < result.stats.compression_ratio() < 2.1  # the normalisation is gone as well
    stored = {t.dtype for n, t in result.quantized_graph.initializers.items() if n.startswith("w")}
    assert stored == {dtype}
    assert 1e-6 < relative(run(result.quantized_graph, feed), run(graph, feed)) < bound
    rounded = prepared(graph, fold=False)[0]  # the normalisation is in the weights
    for name, tensor in rounded.initializers.items():
        if tensor.ndim:
            rounded.initializers[name] = pyflame_rt.from_numpy(tensor.raw().astype(dtype.numpy).astype(np.float32))
    np.testing.assert_array_equal(
        run(result.quantized_graph, feed, "ReferenceExecutionProvider"),
        run(rounded, feed, "ReferenceExecutionProvider"),
    )


def test_a_table_that_is_read_in_two_forms_stays_one():
    graph = Graph("tied")
    graph.add_input("tokens", ["N"], DType.Int64)
    graph.add_initializer("table", np.random.default_rng(0).standard_normal((20, 8)).astype(np.float32))
    graph.add_node("look", "Gather", ["table", "tokens"], ["x"])
    graph.add_node("turn", "Transpose", ["table"], ["t"], perm=[1, 0])
    graph.add_node("score", "MatMul", ["x", "t"], ["y"])
    graph.add_output("y", ["N", 20])
    result = Quantizer().convert_to_fp16(graph)
    assert result.stats.compression_ratio() == 2
    feed = {"tokens": np.arange(5)}
    assert relative(run(result.quantized_graph, feed), run(graph, feed)) < 2e-3


def test_numbers_that_16_bits_cannot_hold_stay():
    graph = dense()
    graph.initializers["w0"] = pyflame_rt.from_numpy(np.full((8, 6), 1e6, np.float32))
    result = Quantizer().convert_to_fp16(graph)
    assert "float16 cannot hold" in result.skipped["w0"]
    assert result.quantized_graph.get_initializer("w0").dtype is DType.Float32
    assert Quantizer().convert_to_bfloat16(graph).skipped == {}


def test_what_is_excluded_keeps_its_weights():
    config = QuantConfig(exclude_nodes=["c1"], exclude_ops=["MatMul"])
    made = Quantizer(config).convert_to_fp16(residual()).quantized_graph
    assert made.get_initializer("w1/bn").dtype is DType.Float32
    assert made.get_initializer("w4").dtype is DType.Float32
    assert not made.has_initializer("w2")


# ---------------------------------------------------------------------- by mode


@pytest.mark.parametrize("mode", [m for m in QuantMode if m is not QuantMode.NONE])
def test_apply_does_what_the_mode_says(mode):
    result = Quantizer(QuantConfig(mode=mode)).apply(residual(), feeds())
    assert result.success
    assert result.mode is mode


@pytest.mark.parametrize("way", ["quantize_dynamic", "convert_to_fp16", "convert_to_bfloat16"])
def test_what_is_no_graph_is_refused(way):
    with pytest.raises(TypeError, match=r"a Graph, got InferenceSession; call its graph\(\)"):
        getattr(Quantizer(), way)(pyflame_rt.InferenceSession(residual()))
    with pytest.raises(TypeError, match=r"a Graph, got str; .* reads one from a file"):
        Calibrator("model.onnx")


def test_modes_that_cannot_be_applied():
    with pytest.raises(InputError, match="mode is NONE"):
        Quantizer().apply(residual())
    with pytest.raises(InputError, match="calibration data"):
        Quantizer(QuantConfig.static_int8()).apply(residual())
