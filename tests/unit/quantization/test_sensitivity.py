"""Where accuracy goes: layers one by one, and budgets."""

import numpy as np
import pytest

import pyflame_rt
from pyflame_rt.graph.errors import InputError
from pyflame_rt.quantization import (
    LayerError,
    QuantConfig,
    QuantizationReport,
    QuantMode,
    QuantStats,
    measured_ratio,
    quantize_within,
    sensitivity,
)
from pyflame_rt.quantization.page import quantization_page
from tests.unit.quantization.nets import convnet, dense, residual

rng = np.random.default_rng(0)


def fragile():
    """A chain in which one weight has an outlier, so that a scale for the tensor leaves nothing of the rest."""
    graph = dense(sizes=(6, 12, 12, 12, 4))
    weight = graph.initializers["w2"].raw().copy()
    weight[0, 0] = 3000
    graph.initializers["w2"] = pyflame_rt.from_numpy(weight)
    bias = graph.initializers["b1"].raw().copy()
    graph.initializers["b1"] = pyflame_rt.from_numpy(bias)
    return graph


FEEDS = [{"x": rng.standard_normal((64, 6)).astype(np.float32)} for _ in range(2)]


@pytest.mark.parametrize("mode", [QuantMode.StaticInt8, QuantMode.DynamicInt8])
def test_the_fragile_layer_is_found(mode):
    layers = sensitivity(fragile(), QuantConfig(mode=mode), FEEDS)
    assert sorted(layer.name for layer in layers) == ["fc0", "fc1", "fc2", "fc3"]
    assert [layer.error for layer in layers] == sorted((layer.error for layer in layers), reverse=True)
    robust = sensitivity(dense(sizes=(6, 12, 12, 12, 4)), QuantConfig(mode=mode), FEEDS)
    assert all(layer.error < 0.05 for layer in robust)


def test_layers_have_the_users_names():
    layers = sensitivity(
        residual(), QuantConfig.static_int8(), [{"x": rng.standard_normal((4, 3, 8, 8)).astype(np.float32)}]
    )
    assert {layer.name for layer in layers} <= {node.name for node in residual().nodes}


def test_layers_are_left_out_until_the_budget_holds():
    graph = fragile()
    real = pyflame_rt.InferenceSession(graph).run(None, FEEDS[0])[0]

    def score(which):
        got = pyflame_rt.InferenceSession(which).run(None, FEEDS[0])[0]
        return 1 - float(np.sqrt(np.square(got - real).sum() / np.square(real).sum()))

    config = QuantConfig.static_int8()
    loose = quantize_within(graph, config, FEEDS, score, 1e9)
    assert loose.met
    assert loose.excluded == []
    errors = [layer.error for layer in sensitivity(graph, config, FEEDS)]
    tight = quantize_within(graph, config, FEEDS, score, min(1 - loose.score, sum(errors[1:])) * 0.9)
    assert tight.met
    assert tight.excluded
    assert tight.baseline - tight.score <= min(1 - loose.score, sum(errors[1:])) * 0.9
    assert tight.result.stats.nodes_quantized == 4 - len(tight.excluded)
    fewer = quantize_within(graph, config, FEEDS, lambda g: float(g is graph), 0.5)  # nothing is good enough
    assert not fewer.met
    assert fewer.score == 0


def test_a_budget_that_holds_at_once_leaves_nothing_out():
    net = convnet()
    found = quantize_within(
        net.graph, QuantConfig.static_int8(), net.feeds, lambda g: net.accuracy(net.scores(g)), 0.005
    )
    assert found.met
    assert found.excluded == []
    assert found.result.stats.nodes_quantized == 4


@pytest.mark.parametrize("feeds", [[], None, iter(FEEDS), FEEDS[0]])
def test_data_must_be_a_list(feeds):
    with pytest.raises(InputError, match="list of at least one feed"):
        sensitivity(dense(), QuantConfig.static_int8(), feeds)


def test_what_cannot_be_compared():
    with pytest.raises(InputError, match="not in FP16"):
        sensitivity(dense(), QuantConfig.fp16(), FEEDS)
    with pytest.raises(InputError, match="budget is -1"):
        quantize_within(dense(), QuantConfig.static_int8(), FEEDS, lambda _: 1.0, -1)


def test_time_is_compared_with_itself():
    assert 0 < measured_ratio(dense(), dense(), FEEDS[0], rounds=3) < 1000


def test_the_page_escapes_names():
    report = QuantizationReport.of(QuantStats(), QuantMode.StaticInt8, {"<b>": "a & b"}, ["slow <here>"])
    page = quantization_page("<net>", report, [LayerError("<i>", "Conv", 0.5, 10)], {"<size>": ("1", "2")}, ["<i>"])
    assert "<b>" not in page
    assert "<i>" not in page
    for text in ("&lt;net&gt;", "&lt;i&gt;", "50.000%", "a &amp; b", "slow &lt;here&gt;", "float32"):
        assert text in page
