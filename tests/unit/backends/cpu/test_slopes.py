"""Slopes of activations, kept on the way there for the way back: in the finish of a product, or in a loop."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from pyflame_rt.autodiff import gradient
from pyflame_rt.backends.base import RunHooks
from pyflame_rt.backends.cpu.run.executable import CpuBackend
from pyflame_rt.graph import DType, Graph

KINDS = {DType.Float32: (np.float32, 2e-5), DType.Float64: (np.float64, 1e-12)}


def network(rows, width, approximate, kind=DType.Float32, *, masked=False, product=True, kept=False):
    """Gelu(x w + b) v, or Gelu of x alone, and its gradients."""
    graph = Graph("gelu")
    graph.add_input("x", (rows, 48 if product else width), kind)
    names = ["x"]
    inner = "x"
    if product:
        for name, shape in {"w": (48, width), "b": (width,)}.items():
            graph.add_input(name, shape, kind)
            names.append(name)
        graph.add_node("first", "MatMul", ["x", "w"], ["p"])
        graph.add_node("bias", "Add", ["p", "b"], ["h"])
        inner = "h"
    graph.add_node("gelu", "Gelu", [inner], ["a"], {"approximate": approximate})
    last = "a"
    if masked:
        graph.add_input("m", (rows, width), kind)
        graph.add_node("mask", "Mul", ["a", "m"], ["am"])
        last = "am"
    graph.add_input("v", (width, 40), kind)
    graph.add_node("second", "MatMul", [last, "v"], ["y"])
    graph.add_output("y", None, kind)
    made = gradient(graph, ["y"], [*names, "v"], seeded=True)
    if kept:
        made.add_output(inner, (rows, width), kind)
    return made, [*names, "v"]


def data(graph, dtype):
    rng = np.random.default_rng(3)
    return {i.name: rng.normal(size=[int(d) for d in i.shape]).astype(dtype) for i in graph.inputs}


def theirs(feeds, names, approximate, *, masked=False, product=True):
    t = {n: torch.tensor(a.astype(np.float64), requires_grad=n in names) for n, a in feeds.items()}
    h = t["x"] @ t["w"] + t["b"] if product else t["x"]
    a = torch.nn.functional.gelu(h, approximate=approximate)
    y = (a * t["m"] if masked else a) @ t["v"]
    (seed,) = (n for n in feeds if n not in ("x", "w", "b", "v", "m"))
    y.backward(t[seed])
    return y.detach().numpy(), h.detach().numpy(), [t[n].grad.numpy() for n in names]


def native(graph, feeds, **options):
    executable = CpuBackend().compile(graph, SimpleNamespace(**options))
    try:
        results = executable.run(feeds, [info.name for info in graph.outputs], RunHooks())
        return results, [step.label for step in executable._last.lowered.steps]
    finally:
        executable.close()


def compare(found, wanted, tolerance):
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance * np.abs(other).max())


@pytest.mark.parametrize("checked", [False, True])
@pytest.mark.parametrize("approximate", ["tanh", "none"])
@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize(("rows", "width"), [(100, 80), (301, 75)])
def test_after_a_product(rows, width, kind, approximate, checked):
    dtype, tolerance = KINDS[kind]
    graph, names = network(rows, width, approximate, kind)
    feeds = data(graph, dtype)
    found, labels = native(graph, feeds, checked=checked)
    y, _, grads = theirs(feeds, names, approximate)
    compare(found, [y, *grads], tolerance)
    if kind is DType.Float32:  # neither the sum before the activation nor a part of it is written
        assert "MatMul+Add+GeluSlope+Gelu" in labels
        assert "MatMul+Mul" in labels


@pytest.mark.parametrize("approximate", ["tanh", "none"])
def test_on_one_thread_as_on_two(approximate):
    graph, _ = network(200, 96, approximate)
    feeds = data(graph, np.float32)
    one, two = (native(graph, feeds, num_threads=n)[0] for n in (1, 2))
    for a, b in zip(one, two, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("product", [False, True])
def test_before_a_mask(product, kind):
    dtype, tolerance = KINDS[kind]
    graph, names = network(120, 64, "tanh", kind, masked=True, product=product)
    feeds = data(graph, dtype)
    found, labels = native(graph, feeds)
    y, _, grads = theirs(feeds, names, "tanh", masked=True, product=product)
    compare(found, [y, *grads], tolerance)
    assert any("GeluSlope+Gelu" in label for label in labels)


def test_a_sum_that_is_handed_out_too():
    graph, names = network(120, 64, "none", kept=True)
    feeds = data(graph, np.float32)
    found, _ = native(graph, feeds)
    y, h, grads = theirs(feeds, names, "none")
    compare(found, [y, *grads, h], 2e-5)
