"""Attention of training by one kernel a head, forwards and backwards, against torch in double precision."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import pyflame as pf
from pyflame_rt.autodiff import gradient
from pyflame_rt.backends.base import RunHooks
from pyflame_rt.backends.cpu.run.executable import CpuBackend
from pyflame_rt.graph import DType, Graph
from tests.tolerances import within


def attention(sizes, causal, kind=DType.Float32):
    batch, heads, queries, keys, depth, width = sizes
    graph = Graph("attention")
    graph.add_input("q", (batch, heads, queries, depth), kind)
    graph.add_input("k", (batch, heads, keys, depth), kind)
    graph.add_input("v", (batch, heads, keys, width), kind)
    attributes = {"scale": 0.3, "causal": causal}
    graph.add_node("attention", "HeadsAttention", ["q", "k", "v"], ["y"], attributes, domain="pyflame")
    graph.add_output("y", (batch, heads, queries, width), kind)
    return gradient(graph, ["y"], ["q", "k", "v"], seeded=True)


def feeds_of(sizes, seed=0):
    batch, heads, queries, keys, depth, width = sizes
    shapes = {"q": (queries, depth), "k": (keys, depth), "v": (keys, width), "y_seed": (queries, width)}
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal((batch, heads, *shape), dtype=np.float32) for name, shape in shapes.items()}


def theirs(feeds, causal):
    q, k, v = (torch.tensor(feeds[n].astype(np.float64), requires_grad=True) for n in "qkv")
    scores = q @ k.transpose(-1, -2) * 0.3
    if causal:
        scores = scores + torch.full(scores.shape[-2:], -torch.inf, dtype=torch.float64).triu(1)
    y = scores.softmax(-1) @ v
    y.backward(torch.tensor(feeds["y_seed"].astype(np.float64)))
    return [t.detach().numpy() for t in (y, q.grad, k.grad, v.grad)]


def run(graph, feeds, **options):
    executable = CpuBackend().compile(graph, SimpleNamespace(**options))
    results = executable.run(feeds, [info.name for info in graph.outputs], RunHooks())
    labels = [step.label for step in executable._last.lowered.steps]
    executable.close()
    return results, labels


SIZES = [
    (2, 3, 128, 128, 64, 64), (1, 2, 5, 5, 3, 7), (2, 2, 1, 1, 1, 1), (1, 4, 17, 33, 20, 24), (1, 4, 33, 17, 9, 40),
    (3, 1, 16, 16, 16, 16), (1, 2, 400, 200, 8, 12), (1, 2, 200, 400, 8, 12), (2, 1, 6, 16, 33, 1),
]  # fmt: skip


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("sizes", SIZES)
def test_against_torch(sizes, causal):
    feeds = feeds_of(sizes)
    found, labels = run(attention(sizes, causal), feeds)
    assert {"HeadsAttention", "HeadsAttentionGrad"} <= set(labels)
    assert "MatMul" not in labels
    for got, want in zip(found, theirs(feeds, causal), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=2e-5 * max(1, np.abs(want).max()))


@settings(max_examples=15, deadline=None)
@given(
    st.tuples(st.integers(1, 3), st.integers(2, 3), *[st.integers(1, 40)] * 4),
    st.integers(0, 1),
    st.integers(0, 1 << 30),
)
def test_stays_in_bounds(sizes, causal, seed):
    feeds = feeds_of(sizes, seed)
    found, _ = run(attention(sizes, causal), feeds, checked=True)
    for got, want in zip(found, theirs(feeds, causal), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=2e-5 * max(1, np.abs(want).max()))


def test_thread_counts_give_the_same_bits():
    sizes = (2, 5, 70, 70, 20, 20)
    feeds, graph = feeds_of(sizes), attention(sizes, 1)
    first, *others = (run(graph, feeds, num_threads=n)[0] for n in (1, 2, 3))
    for other in others:
        for a, b in zip(first, other, strict=True):
            np.testing.assert_array_equal(a, b)


def test_a_key_that_nobody_may_see_does_no_harm():
    sizes = (1, 2, 20, 40, 8, 8)
    feeds = feeds_of(sizes)
    want, _ = run(attention(sizes, 1), feeds)
    for name in "kv":
        feeds[name][:, :, 25:] = np.nan
    found, _ = run(attention(sizes, 1), feeds)
    np.testing.assert_array_equal(found[0], want[0])
    np.testing.assert_array_equal(found[1], want[1])
    assert not np.isnan(found[2][:, :, :20]).any()
    np.testing.assert_array_equal(found[3], want[3])


@pytest.mark.parametrize("causal", [False, True])
def test_the_framework_trains_through_it(causal):
    rng = np.random.default_rng(3)
    x = rng.standard_normal((2, 10, 3, 4, 6), dtype=np.float32)
    seed = rng.standard_normal((2, 10, 24), dtype=np.float32)

    def mixed(given, functional):
        q, k, v = (given[:, :, i].transpose(1, 2) for i in range(3))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
        return y.transpose(1, 2).reshape([2, 10, 24])

    ours = pf.from_numpy(x).requires_grad_()

    @pf.compile
    def step(given):
        loss = (mixed(given, pf.nn.functional) * pf.from_numpy(seed)).sum()
        return pf.autograd.grad(loss, [given])[0]

    other = torch.tensor(x.astype(np.float64), requires_grad=True)
    (mixed(other, torch.nn.functional) * torch.tensor(seed.astype(np.float64))).sum().backward()
    np.testing.assert_allclose(step(ours).numpy(), other.grad.numpy(), **within("sums"))
    assert any(node.op_type == "HeadsAttentionGrad" for node in step.latest_graph().nodes)


def test_second_derivatives_go_through_the_body():
    rng = np.random.default_rng(4)
    arrays = [rng.standard_normal((1, 2, 4, 3), dtype=np.float32) for _ in range(3)]

    def twice(lib, given):
        y = lib.nn.functional.scaled_dot_product_attention(*given, is_causal=True)
        (first,) = lib.autograd.grad((y * y).sum(), [given[0]], create_graph=True)
        return lib.autograd.grad((first * first).sum(), list(given))

    ours = twice(pf, [pf.from_numpy(a).requires_grad_() for a in arrays])
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        want = twice(torch, [torch.tensor(a.astype(np.float64), requires_grad=True) for a in arrays])
    for a, b in zip(ours, want, strict=True):
        np.testing.assert_allclose(a.numpy(), b.detach().numpy(), **within("rounded"))
