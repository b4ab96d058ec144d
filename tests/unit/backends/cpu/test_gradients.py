"""Gradients of convolutions and of batch normalisation by generated kernels, against torch in double precision."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pyflame_rt.autodiff import gradient
from pyflame_rt.backends.base import RunHooks
from pyflame_rt.backends.cpu.lower.kernel_choice import choosing
from pyflame_rt.backends.cpu.run.executable import CpuBackend
from pyflame_rt.graph import DType, Graph
from tests.tolerances import within


def convolution(x, w, out, *, stride, pad, dilation, group=1):
    graph = Graph("convolution")
    graph.add_input("x", x, DType.Float32)
    graph.add_input("w", w, DType.Float32)
    attributes = {"strides": [stride] * 2, "pads": [pad] * 4, "dilations": [dilation] * 2, "group": group}
    graph.add_node("conv", "Conv", ["x", "w"], ["y"], attributes)
    graph.add_output("y", out, DType.Float32)
    return gradient(graph, ["y"], ["x", "w"], seeded=True)


def run(graph, feeds, **options):
    executable = CpuBackend().compile(graph, SimpleNamespace(**options))
    names = [info.name for info in graph.outputs]
    results = executable.run(feeds, names, RunHooks())
    labels = [step.label for step in executable._last.lowered.steps]
    executable.close()
    return results, labels


def case(n, inputs, outputs, size, taps, stride, pad, dilation, seed=0, drawn=lambda values: values):
    rng = np.random.default_rng(seed)
    x = drawn(rng.standard_normal((n, inputs, *size), dtype=np.float32))
    w = drawn(rng.standard_normal((outputs, inputs, taps, taps), dtype=np.float32)) * np.float32(0.1)
    tx, tw = (torch.tensor(a.astype(np.float64), requires_grad=True) for a in (x, w))
    y = torch.conv2d(tx, tw, stride=stride, padding=pad, dilation=dilation)
    g = drawn(rng.standard_normal(tuple(y.shape), dtype=np.float32))
    y.backward(torch.tensor(g.astype(np.float64)))
    graph = convolution(x.shape, w.shape, tuple(y.shape), stride=stride, pad=pad, dilation=dilation)
    wanted = [y.detach().numpy(), tx.grad.numpy(), tw.grad.numpy()]
    return graph, {"x": x, "w": w, "y_seed": g}, wanted


def plain_sum_error(feeds, wanted):
    """Of products that are added one after the other: what float32 loses on any machine."""
    x, w = np.pad(feeds["x"], ((0, 0), (0, 0), (1, 1), (1, 1))), feeds["w"]
    height, width = feeds["x"].shape[2:]
    total = np.zeros(wanted.shape, np.float32)
    for channel, i, j in np.ndindex(w.shape[1:]):
        total += x[:, channel, None, i : i + height, j : j + width] * w[:, channel, i, j, None, None]
    return np.linalg.norm(total - wanted) / np.linalg.norm(wanted)


def assert_close(got, wanted):
    for a, b in zip(got, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=5e-6 * np.abs(b).max())


FORMS = {
    "3x3": (2, 16, 32, (9, 7), 3, 1, 1, 1),
    "3x3 without border": (3, 16, 24, (9, 9), 3, 1, 0, 1),
    "3x3 with a wide border": (2, 16, 16, (4, 5), 3, 1, 2, 1),
    "3x3 deep": (4, 512, 512, (4, 4), 3, 1, 1, 1),
    "3x3 in portions": (5, 16, 16, (47, 49), 3, 1, 1, 1),
    "3x3 of stride 2": (2, 16, 32, (11, 12), 3, 2, 1, 1),
    "1x1 of stride 2": (2, 16, 32, (10, 10), 1, 2, 0, 1),
    "1x1": (2, 24, 8, (6, 7), 1, 1, 0, 1),
    "few channels": (2, 3, 64, (12, 13), 3, 1, 1, 1),
    "odd channels": (2, 5, 7, (9, 11), 5, 2, 2, 1),
    "dilated": (1, 16, 16, (9, 9), 3, 1, 2, 2),
    "windows in portions": (3, 4, 6, (41, 43), 3, 2, 1, 1),
    "many images": (9, 16, 24, (7, 5), 3, 1, 1, 1),
    "many images of stride 2": (13, 24, 16, (9, 8), 3, 2, 1, 1),
    "many images of stride 3 without border": (8, 16, 17, (11, 11), 2, 3, 0, 1),
    "many images, 1x1 of stride 2": (8, 16, 32, (7, 6), 1, 2, 0, 1),
    "many images, dilated": (10, 40, 16, (9, 10), 3, 1, 2, 2),
    "many images, odd channels": (8, 19, 35, (6, 6), 5, 1, 2, 1),
    "many images, deep": (8, 300, 272, (3, 3), 3, 1, 1, 1),
    "many images smaller than their border": (8, 16, 16, (1, 2), 3, 1, 1, 1),
}


@pytest.mark.parametrize("form", FORMS, ids=lambda f: f.replace(" ", "-"))
def test_convolution_gradients(form):
    graph, feeds, wanted = case(*FORMS[form])
    got, labels = run(graph, feeds)
    assert "ConvWeightGrad" in labels
    assert_close(got, wanted)


@pytest.mark.parametrize("way", ["winograd2", "winograd4", "taps", "windows", "library"])
def test_every_way_gives_the_same(way):
    graph, feeds, wanted = case(8, 32, 32, (10, 11), 3, 1, 1, 1)
    with choosing(prefer=way, fast=True):
        executable = CpuBackend().compile(graph, None)
        types = {name: (DType.Float32, array.shape) for name, array in feeds.items()}
        plan = executable._make(graph, types, tuple(info.name for info in graph.outputs))
    assert_close(plan.run(feeds, RunHooks()), wanted)
    plan.retire()


@pytest.mark.parametrize(
    "form", [(16, 64, 64, (32, 32), 3, 1, 1, 1), (8, 256, 256, (8, 8), 3, 1, 1, 1), (8, 512, 512, (4, 4), 3, 1, 1, 1)]
)
@pytest.mark.parametrize("fast", ["0", "1"])
def test_trained_convolutions_lose_few_bits(form, fast, monkeypatch):
    """Result and both gradients, by the root of the mean square, against one long sum in float32.

    The transform has a bound of its own: one long sum at Winograd's points errs by 2e-6.
    """
    monkeypatch.setenv("PYFLAME_FAST_MATH", fast)
    graph, feeds, wanted = case(*form)
    got, _ = run(graph, feeds)
    errors = [np.linalg.norm(a - b) / np.linalg.norm(b) for a, b in zip(got, wanted, strict=True)]
    assert max(errors) < (1e-6 if fast == "1" else 1.25 * plain_sum_error(feeds, wanted[0])), errors


@pytest.mark.parametrize("images", [6, 20])
def test_thread_counts_give_the_same_bits(images):
    graph, feeds, _ = case(images, 32, 48, (17, 15), 3, 1, 1, 1)
    one, two = (run(graph, feeds, num_threads=n)[0] for n in (1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))


@pytest.mark.parametrize("stride", [1, 2])
def test_a_result_depends_on_what_it_reads_alone(stride):
    """One NaN among many images: where it is, ones among zeros give sums that are not zero."""
    graph, feeds, _ = case(9, 16, 16, (6, 6), 3, stride, 1, 1)
    for name, place, untouched in (("x", (4, 3, 0, 5), 1), ("y_seed", (4, 3, 0, 1), 0)):
        marked = {**feeds, name: feeds[name].copy()}
        marked[name][place] = np.nan
        got, _ = run(graph, marked)
        ones = {key: torch.zeros(a.shape) if key == name else torch.ones(a.shape) for key, a in feeds.items()}
        ones[name][place] = 1
        x, w = ones["x"].requires_grad_(), ones["w"].requires_grad_()
        y = torch.conv2d(x, w, stride=stride, padding=1)
        reached = [y, *torch.autograd.grad(y, (x, w), ones["y_seed"])]
        for k, (values, sums) in enumerate(zip(got, reached, strict=True)):
            wanted = np.zeros(values.shape, bool) if k == untouched else sums.detach().numpy() != 0
            np.testing.assert_array_equal(np.isnan(values), wanted)


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 3) | st.integers(8, 14),
    st.integers(1, 3).map(lambda n: 8 * n) | st.integers(1, 20),
    st.integers(1, 3).map(lambda n: 8 * n) | st.integers(1, 20),
    st.tuples(st.integers(3, 11), st.integers(3, 11)),
    st.sampled_from([1, 3]),
    st.integers(1, 2),
    st.integers(0, 2),
    st.integers(0, 2**32 - 1),
)
def test_gradients_stay_in_bounds(n, inputs, outputs, size, taps, stride, pad, seed):
    # Sums of positive numbers: a gradient of one element may cancel, and is then as small as what float32 loses.
    graph, feeds, wanted = case(n, inputs, outputs, size, taps, stride, min(pad, taps - 1), 1, seed, np.abs)
    assert_close(run(graph, feeds, checked=True)[0], wanted)


# ---------------------------------------------------------------------- batch normalisation


def normalisation(shape):
    graph = Graph("normalisation")
    graph.add_input("x", shape, DType.Float32)
    graph.add_input("scale", (shape[1],), DType.Float32)
    graph.add_input("shift", (shape[1],), DType.Float32)
    graph.add_node("statistics", "BatchStatistics", ["x"], ["mean", "variance"], domain="pyflame")
    inputs = ["x", "scale", "shift", "mean", "variance"]
    graph.add_node("normalized", "BatchNormalized", inputs, ["y"], {"epsilon": 1e-5}, domain="pyflame")
    graph.add_output("y", shape, DType.Float32)
    return gradient(graph, ["y"], ["x", "scale", "shift"], seeded=True)


@pytest.mark.parametrize("shape", [(8, 16, 9, 9), (64, 40, 16, 16), (33, 7), (4, 20, 5, 3), (300, 1024), (2, 1, 3, 3)])
@pytest.mark.parametrize("checked", [False, True])
def test_batch_normalisation(shape, checked):
    rng = np.random.default_rng(0)
    x = (rng.standard_normal(shape) * 2 + 50).astype(np.float32)
    scale, shift = (rng.standard_normal(shape[1], dtype=np.float32) for _ in range(2))
    g = rng.standard_normal(shape, dtype=np.float32)
    given_ = [torch.tensor(a.astype(np.float64), requires_grad=True) for a in (x, scale, shift)]
    y = torch.nn.functional.batch_norm(given_[0], None, None, *given_[1:], training=True)
    y.backward(torch.tensor(g.astype(np.float64)))
    feeds = {"x": x, "scale": scale, "shift": shift, "y_seed": g}
    got, labels = run(normalisation(shape), feeds, checked=checked)
    assert {"BatchStatistics", "BatchNormSums"} <= set(labels)
    for a, b in zip(got, [y.detach(), *(t.grad for t in given_)], strict=True):
        np.testing.assert_allclose(a, b.numpy(), rtol=0, atol=3e-5 * np.abs(b.numpy()).max())


def test_statistics_are_right_to_the_last_places():
    """Of many pixels whose mean is far from zero, where plain sums in float32 lose bits."""
    x = np.random.default_rng(0).normal(1.0, 2.0, (32, 64, 32, 32)).astype(np.float32)
    graph = Graph("statistics")
    graph.add_input("x", x.shape, DType.Float32)
    graph.add_node("statistics", "BatchStatistics", ["x"], ["mean", "variance"], domain="pyflame")
    for name in ("mean", "variance"):
        graph.add_output(name, (64,), DType.Float32)
    got, labels = run(graph, {"x": x})
    assert "BatchStatistics" in labels
    wide = x.astype(np.float64)
    np.testing.assert_allclose(got[0], wide.mean((0, 2, 3)), rtol=1.2e-7)
    np.testing.assert_allclose(got[1], wide.var((0, 2, 3)), rtol=1.2e-7)


def test_statistics_of_channels_can_be_differentiated():
    shape = (4, 8, 5, 6)
    graph = Graph("statistics")
    graph.add_input("x", shape, DType.Float32)
    graph.add_node("statistics", "BatchStatistics", ["x"], ["mean", "variance"], domain="pyflame")
    graph.add_output("mean", (8,), DType.Float32)
    graph.add_output("variance", (8,), DType.Float32)
    x = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
    seeds = [np.arange(8, dtype=np.float32) + k for k in (1, 2)]
    feeds = {"x": x, "mean_seed": seeds[0], "variance_seed": seeds[1]}
    got, _ = run(gradient(graph, ["mean", "variance"], ["x"], seeded=True), feeds)
    tx = torch.tensor(x, requires_grad=True)
    variance, mean = torch.var_mean(tx, dim=(0, 2, 3), correction=0)
    torch.autograd.backward([mean, variance], [torch.tensor(s) for s in seeds])
    for a, b in zip(got, [mean.detach(), variance.detach(), tx.grad], strict=True):
        np.testing.assert_allclose(a, b.numpy(), **within("elements"))
