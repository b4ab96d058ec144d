"""Products and convolutions of float64 by register tiles, against NumPy and torch."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pyflame_rt.autodiff import gradient
from pyflame_rt.backends.base import RunHooks
from pyflame_rt.backends.cpu.run.executable import CpuBackend
from pyflame_rt.graph import DType, Graph


def run(graph, feeds, **options):
    executable = CpuBackend().compile(graph, SimpleNamespace(**options))
    results = executable.run(feeds, [info.name for info in graph.outputs], RunHooks())
    kinds = {type(getattr(step, "kernel", step)).__name__ for step in executable._last.lowered.steps}
    executable.close()
    return results, kinds


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from([((), ()), ((3,), (3,)), ((2, 3), (2, 3)), ((2, 1), (3,)), ((2, 2, 2), (2, 2, 2))]),
    st.integers(1, 9) | st.integers(60, 70),
    st.integers(1, 9) | st.integers(45, 55),
    st.integers(1, 21),
    st.booleans(),
    st.integers(0, 2**32 - 1),
)
def test_products_of_any_size(batch, rows, columns, depth, checked, seed):
    rng = np.random.default_rng(seed)
    a, b = rng.standard_normal((*batch[0], rows, depth)), rng.standard_normal((*batch[1], depth, columns))
    graph = Graph("product")
    graph.add_input("a", a.shape, DType.Float64)
    graph.add_input("b", b.shape, DType.Float64)
    graph.add_node("product", "MatMul", ["a", "b"], ["y"])
    graph.add_output("y", (a @ b).shape, DType.Float64)
    (got,), kinds = run(graph, {"a": a, "b": b}, checked=checked)
    assert bool(kinds & {"BatchedKernel", "DotKernel"}) == (max(map(len, batch)) <= 2)
    np.testing.assert_allclose(got, a @ b, rtol=1e-12, atol=1e-12)


FORMS = {
    "plain": ((2, 5, 7, 6), (4, 5, 3, 3), {}),
    "padded": ((2, 5, 7, 6), (4, 5, 3, 3), {"padding": 1}),
    "stride 2": ((2, 6, 9, 8), (5, 6, 3, 3), {"padding": 1, "stride": 2}),
    "stride 3 of one tap": ((1, 6, 10, 9), (5, 6, 1, 1), {"stride": 3}),
    "groups": ((2, 6, 7, 5), (9, 2, 3, 3), {"padding": 1, "groups": 3}),
    "depthwise": ((2, 6, 7, 5), (6, 1, 3, 3), {"padding": 1, "stride": 2, "groups": 6}),
    "dilated": ((1, 3, 9, 9), (4, 3, 3, 3), {"padding": 2, "dilation": 2}),
    "one axis": ((2, 4, 11), (3, 4, 3), {"padding": 1, "stride": 2}),
    "three axes": ((1, 3, 5, 4, 6), (2, 3, 2, 3, 2), {"padding": 1, "stride": 2}),
}


def torch_gradients(function, x, w, options):
    tx, tw = (torch.tensor(a, requires_grad=True) for a in (x, w))
    y = function(tx, tw, **options)
    g = torch.tensor(np.random.default_rng(1).standard_normal(tuple(y.shape)))
    y.backward(g)
    return g.numpy(), [y.detach().numpy(), tx.grad.numpy(), tw.grad.numpy()]


@pytest.mark.parametrize("checked", [False, True])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("form", FORMS, ids=lambda f: f.replace(" ", "-"))
def test_convolutions_and_their_gradients(form, transposed, checked):
    x_shape, w_shape, options = FORMS[form]
    rank, groups = len(x_shape) - 2, options.get("groups", 1)
    if transposed:
        x_shape = (x_shape[0], w_shape[0], *x_shape[2:])
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal(x_shape), rng.standard_normal(w_shape)
    name = f"conv_transpose{rank}d" if transposed else f"conv{rank}d"
    g, wanted = torch_gradients(getattr(torch.nn.functional, name), x, w, options)
    pad, step, gap = (options.get(k, d) for k, d in (("padding", 0), ("stride", 1), ("dilation", 1)))
    attributes = {"strides": [step] * rank, "pads": [pad] * 2 * rank, "dilations": [gap] * rank, "group": groups}
    graph = Graph("convolution")
    graph.add_input("x", x_shape, DType.Float64)
    graph.add_input("w", w_shape, DType.Float64)
    graph.add_node("conv", "ConvTranspose" if transposed else "Conv", ["x", "w"], ["y"], attributes)
    graph.add_output("y", g.shape, DType.Float64)
    got, kinds = run(gradient(graph, ["y"], ["x", "w"], seeded=True), {"x": x, "w": w, "y_seed": g}, checked=checked)
    assert "DotKernel" in kinds
    assert "HostStep" not in kinds
    for a, b in zip(got, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-11)
