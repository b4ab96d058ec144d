"""Transforms that make quantization easier, and few bits a weight."""

import numpy as np
import pytest

import pyflame_rt
from pyflame_rt.exporters.onnx import export_onnx
from pyflame_rt.graph import Graph
from pyflame_rt.graph.errors import InputError
from pyflame_rt.quantization import QuantConfig, Quantizer, equalize, quantize_weights, smooth, weight_only
from tests.unit.quantization.nets import dense, residual, transformer

rng = np.random.default_rng(0)


def run(graph, feed):
    return pyflame_rt.InferenceSession(graph).run(None, feed)[0]


def error(graph, real, feed):
    return float(np.square(run(graph, feed) - real).mean())


def static(graph, feeds):
    return Quantizer(QuantConfig.static_int8()).quantize_with_calibration(graph, feeds).quantized_graph


# ---------------------------------------------------------------------- equalisation


def uneven(sizes=(6, 16, 16, 4)):
    """Layers whose channels differ a hundredfold, which cancels in the next layer."""
    graph = dense(sizes=sizes)
    for i in range(len(sizes) - 2):
        factors = (10.0 ** rng.uniform(-2, 2, sizes[i + 1])).astype(np.float32)
        for name, form in ((f"w{i}", (-1, 1)), (f"b{i}", (-1,))):
            graph.initializers[name] = pyflame_rt.from_numpy(graph.initializers[name].raw() * factors.reshape(form))
        graph.initializers[f"w{i + 1}"] = pyflame_rt.from_numpy(graph.initializers[f"w{i + 1}"].raw() / factors)
    return graph


def test_equalised_layers_compute_the_same_and_quantize_better():
    graph = uneven()
    feeds = [{"x": rng.standard_normal((256, 6)).astype(np.float32)}]
    real = run(graph, feeds[0])
    even = equalize(graph)
    np.testing.assert_allclose(run(even, feeds[0]), real, rtol=1e-3, atol=1e-4)
    assert error(static(even, feeds), real, feeds[0]) < 0.1 * error(static(graph, feeds), real, feeds[0])


def test_convolutions_and_those_by_channel():
    graph = Graph("separable")
    graph.add_input("x", ["N", 3, 8, 8])
    shapes = [("a", (8, 3, 1, 1), 1), ("d", (8, 1, 3, 3), 8), ("p", (5, 8, 1, 1), 1)]
    last = "x"
    for name, shape, group in shapes:
        graph.add_initializer(
            f"w{name}", (rng.standard_normal(shape) * 10 ** rng.uniform(-1, 1, (shape[0], 1, 1, 1))).astype(np.float32)
        )
        graph.add_initializer(f"b{name}", rng.standard_normal(shape[0]).astype(np.float32))
        graph.add_node(name, "Conv", [last, f"w{name}", f"b{name}"], [f"y{name}"], group=group)
        graph.add_node(f"r{name}", "Relu", [f"y{name}"], [f"z{name}"])
        last = f"z{name}"
    graph.add_output(last, None)
    feed = {"x": rng.standard_normal((2, 3, 8, 8)).astype(np.float32)}
    even = equalize(graph)
    np.testing.assert_allclose(run(even, feed), run(graph, feed), rtol=1e-3, atol=1e-4)
    spread = [np.ptp(np.log(np.abs(g.initializers["wd"].raw()).max(axis=(1, 2, 3)))) for g in (graph, even)]
    assert spread[1] < spread[0]


def test_what_others_read_is_not_rescaled():
    feed = {"x": rng.standard_normal((2, 3, 8, 8)).astype(np.float32)}
    np.testing.assert_allclose(run(equalize(residual()), feed), run(residual(), feed), rtol=1e-3, atol=1e-4)


# ---------------------------------------------------------------------- smoothing


def outliers():
    """A normalisation with two channels of large gain, and two products that read it."""
    graph = Graph("outliers")
    graph.add_input("x", ["N", 16])
    gain = np.ones(16, np.float32)
    gain[[3, 7]] = 200
    graph.add_initializer("gain", gain)
    graph.add_initializer("shift", rng.standard_normal(16).astype(np.float32))
    graph.add_node("norm", "LayerNormalization", ["x", "gain", "shift"], ["n"])
    for name in "ab":
        weight = rng.standard_normal((16, 8)).astype(np.float32)
        weight[[3, 7]] /= 100
        graph.add_initializer(f"w{name}", weight)
        graph.add_node(name, "MatMul", ["n", f"w{name}"], [f"y{name}"])
    graph.add_node("sum", "Add", ["ya", "yb"], ["y"])
    graph.add_output("y", ["N", 8])
    return graph


def test_smoothed_products_compute_the_same_and_quantize_better():
    graph = outliers()
    feeds = [{"x": rng.standard_normal((128, 16)).astype(np.float32)} for _ in range(2)]
    real = run(graph, feeds[0])
    for strength in (0.0, 0.5, 1.0):
        np.testing.assert_allclose(run(smooth(graph, feeds, strength), feeds[0]), real, rtol=1e-3, atol=1e-3)
    better = smooth(graph, feeds)
    assert error(static(better, feeds), real, feeds[0]) < 0.2 * error(static(graph, feeds), real, feeds[0])


def test_smoothing_that_cannot_be():
    with pytest.raises(InputError, match="strength is 2"):
        smooth(outliers(), [], 2)
    for empty in ([], [{"x": np.zeros((0, 16), np.float32)}]):
        with pytest.raises(InputError, match="no data came"):
            smooth(outliers(), empty)
    with pytest.raises(InputError, match="'n' was infinite or NaN"):
        smooth(outliers(), [{"x": np.full((2, 16), np.nan, np.float32)}])
    shared = outliers()
    shared.add_output("n", ["N", 16])  # the user sees it: it must stay what it is
    feed = {"x": rng.standard_normal((8, 16)).astype(np.float32)}
    session = pyflame_rt.InferenceSession(smooth(shared, [feed]))
    np.testing.assert_array_equal(session.run(["n"], feed)[0], pyflame_rt.InferenceSession(shared).run(["n"], feed)[0])


# ---------------------------------------------------------------------- few bits a weight


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("block", [16, 32, 128])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(("inputs", "level"), [(32, 1), (50, 1), (50, 4)])
def test_weights_of_few_bits(bits, block, symmetric, inputs, level, tmp_path):
    graph = dense(sizes=(inputs, 24, 7))
    feed = {"x": rng.standard_normal((9, inputs)).astype(np.float32)}
    result = quantize_weights(graph, bits, block, symmetric=symmetric, accuracy_level=level)
    assert result.success
    assert result.stats.nodes_quantized == 2
    made, real = run(result.quantized_graph, feed), run(graph, feed)
    if level == 1:  # rows of bytes add their own error, which is onnxruntime's too
        assert np.sqrt(np.square(made - real).mean()) < (0.25 if bits == 4 else 0.02) * real.std()
    onnxruntime = pytest.importorskip("onnxruntime")
    export_onnx(result.quantized_graph, tmp_path / "small.onnx", opset=17)
    theirs = onnxruntime.InferenceSession(str(tmp_path / "small.onnx"), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(made, theirs.run(None, feed)[0], rtol=1e-3, atol=1e-3 * np.abs(real).max())


def test_rows_are_rounded_unless_asked_not_to_be():
    graph, feed = dense(sizes=(64, 8)), {"x": rng.standard_normal((9, 64)).astype(np.float32)}
    rounded, real = (quantize_weights(graph, accuracy_level=level).quantized_graph for level in (4, 1))
    assert [g.nodes[0].attributes["accuracy_level"] for g in (quantize_weights(graph).quantized_graph, real)] == [4, 1]
    difference = np.abs(run(rounded, feed) - run(real, feed)).max() / np.abs(run(real, feed)).max()
    assert 1e-5 < difference < 0.02


def test_rounding_by_the_data_is_better():
    graph = dense(sizes=(64, 32))
    mix = rng.standard_normal((64, 8)).astype(np.float32)  # inputs that carry much the same
    feeds = [
        {"x": (rng.standard_normal((128, 8)) @ mix.T + 0.1 * rng.standard_normal((128, 64))).astype(np.float32)}
        for _ in range(4)
    ]
    real = run(graph, feeds[0])
    plain, chosen = (quantize_weights(graph, data=data).quantized_graph for data in (None, feeds))
    assert error(chosen, real, feeds[0]) < 0.3 * error(plain, real, feeds[0])


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_data_that_are_no_numbers_do_not_spoil_weights(value):
    """One such row made all steps of all weights that it met the same, in silence."""
    graph, rows = outliers(), rng.standard_normal((64, 16)).astype(np.float32)
    rows[3, 5] = value
    with pytest.raises(InputError, match="'n' was infinite or NaN"):
        quantize_weights(graph, data=[{"x": rows}])
    feed = {"x": rng.standard_normal((8, 16)).astype(np.float32)}
    real = run(graph, feed)
    plain = error(quantize_weights(graph).quantized_graph, real, feed)
    for harmless in (np.zeros((4, 16), np.float32), np.zeros((0, 16), np.float32)):
        made = quantize_weights(graph, data=[{"x": harmless}]).quantized_graph
        assert error(made, real, feed) < 1.5 * plain


@pytest.mark.parametrize("rows", [2, 16, 64, 256])
def test_few_rows_of_data_cost_little_in_others(rows):
    """Errors moved where 64 rows had shown nothing cost 2.7 times what plain rounding does in further rows."""
    graph = dense(sizes=(64, 32))
    data, feed = ({"x": rng.standard_normal((n, 64)).astype(np.float32)} for n in (rows, 4096))
    real = run(graph, feed)
    plain, chosen = (quantize_weights(graph, data=given, accuracy_level=1).quantized_graph for given in (None, [data]))
    assert error(chosen, real, feed) < 1.4 * error(plain, real, feed)


@pytest.mark.parametrize("x", [np.zeros((4000, 16)), np.ones((1, 16))])
def test_data_that_never_vary_change_nothing(x):
    graph, feed = outliers(), {"x": rng.standard_normal((8, 16)).astype(np.float32)}
    plain, made = (quantize_weights(graph, data=d).quantized_graph for d in (None, [{"x": x.astype(np.float32)}]))
    np.testing.assert_array_equal(run(made, feed), run(plain, feed))


def test_rows_of_data_are_told_apart_within_limits(monkeypatch):
    """Repeated rows say nothing new; how many rows are remembered does not grow with the data."""
    monkeypatch.setattr(weight_only, "TOLD_APART", 100)
    few, many = weight_only._Moments(), weight_only._Moments()
    row = rng.standard_normal((1, 8)).astype(np.float32)
    few.add(np.repeat(row, 500, 0))
    assert (len(few._seen), few._further, few.vary) == (1, 0, False)
    for _ in range(3):
        many.add(rng.standard_normal((90, 8)).astype(np.float32))
    assert (len(many._seen), many._further, many.vary) == (100, 170, True)
    share = (many.damped() - many.sums)[0, 0] / np.diag(many.sums).mean()
    np.testing.assert_allclose(share, 8 / 271, rtol=0.1)


def test_a_transformer_in_four_bits_keeps_its_answers():
    net = transformer()
    made = quantize_weights(net.graph, data=net.feeds)
    scores = net.scores(made.quantized_graph)
    assert net.accuracy(scores) >= net.accuracy(net.scores(net.graph)) - 0.01
    assert made.stats.compression_ratio() > 4


def test_settings_that_cannot_be():
    with pytest.raises(InputError, match="bits is 3"):
        quantize_weights(dense(), 3)
    with pytest.raises(InputError, match="block_size is 7"):
        quantize_weights(dense(), block_size=7)
    with pytest.raises(InputError, match="accuracy_level is 2"):
        quantize_weights(dense(), accuracy_level=2)
    with pytest.raises(InputError, match="no data came"):
        quantize_weights(dense(), data=[])
    assert "no product" in quantize_weights(dense(), exclude_nodes=["fc0", "fc1"]).error_message
