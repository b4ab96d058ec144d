"""Values that are put together from parts which lie side by side already are views, not copies."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

import pyflame as pf
from pyflame_rt.autodiff import gradient
from pyflame_rt.backends.base import RunHooks
from pyflame_rt.backends.cpu.run.executable import CpuBackend
from pyflame_rt.graph import DType, Graph
from tests.tolerances import within


def native(graph, feeds, **options):
    executable = CpuBackend().compile(graph, SimpleNamespace(**options))
    try:
        results = executable.run(feeds, [info.name for info in graph.outputs], RunHooks())
        return results, [step.label for step in executable._last.lowered.steps]
    finally:
        executable.close()


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1), (1, 2), (0, 0, 1), (2,)])
@pytest.mark.parametrize("after", [False, True])
def test_parts_in_every_order(axis, order, after):
    graph = Graph("parts")
    graph.add_input("x", (6, 12, 9), DType.Float32)
    graph.add_node("split", "Split", ["x"], ["p0", "p1", "p2"], {"axis": axis, "num_outputs": 3})
    graph.add_node("join", "Concat", [f"p{i}" for i in order], ["j"], {"axis": axis})
    if after:
        graph.add_node("relu", "Relu", ["j"], ["y"])
    graph.add_output("y" if after else "j", None, DType.Float32)
    x = np.random.default_rng(0).normal(size=(6, 12, 9)).astype(np.float32)
    (found,), labels = native(graph, {"x": x})
    parts = np.split(x, 3, axis)
    wanted = np.concatenate([parts[i] for i in order], axis)
    np.testing.assert_array_equal(found, np.maximum(wanted, 0) if after else wanted)
    if after and order in ((0, 1, 2), (1, 2)):
        assert "copy" not in labels


@pytest.mark.parametrize("checked", [False, True])
def test_gradients_of_a_joint_projection(checked):
    batch, rows, heads, depth = 3, 20, 4, 16
    width = heads * depth
    graph = Graph("attention")
    graph.add_input("x", (batch, rows, 3 * width), DType.Float32)
    graph.add_node("own", "Mul", ["x", "x"], ["s"])
    graph.add_node("split", "Split", ["s"], ["q", "k", "v"], {"axis": -1, "num_outputs": 3})
    graph.add_initializer("sizes", np.array([batch, rows, heads, depth]))
    for n in "qkv":
        graph.add_node(f"part {n}", "Reshape", [n, "sizes"], [f"{n}r"])
        graph.add_node(f"turn {n}", "Transpose", [f"{n}r"], [f"{n}h"], {"perm": [0, 2, 1, 3]})
    inputs = ["qh", "kh", "vh"]
    graph.add_node("attend", "HeadsAttention", inputs, ["y"], {"scale": 0.25, "causal": 1}, domain="pyflame")
    graph.add_output("y", None, DType.Float32)
    made = gradient(graph, ["y"], ["x"], seeded=True)
    rng = np.random.default_rng(1)
    feeds = {i.name: rng.normal(size=[int(n) for n in i.shape]).astype(np.float32) for i in made.inputs}
    found, labels = native(made, feeds, checked=checked)
    assert labels[-3:] == ["HeadsAttentionGrad", "Mul+Mul+Add", "copy"]  # the copy is of y, which is handed out
    x = torch.tensor(feeds["x"].astype(np.float64), requires_grad=True)
    q, k, v = (part.reshape(batch, rows, heads, depth).transpose(1, 2) for part in (x * x).split(width, -1))
    y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.25)
    (seed,) = (a for n, a in feeds.items() if n != "x")
    y.backward(torch.tensor(seed.astype(np.float64)))
    for one, other in zip(found, (y.detach().numpy(), x.grad.numpy()), strict=True):
        np.testing.assert_allclose(one, other, **within("layers"))


def test_the_whole_is_no_longer_the_input_when_that_changes():
    x = pf.tensor(np.arange(6.0), requires_grad=False)
    first, second = x[:3], x[3:]
    y = pf.cat([first, second])
    x += 1
    assert y.tolist() == [0, 1, 2, 3, 4, 5]
    assert x.tolist() == [1, 2, 3, 4, 5, 6]
