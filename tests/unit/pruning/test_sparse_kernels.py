"""Products whose weights are zero in whole panels, or N of four, skip them, where that was measured to be quicker."""

import numpy as np
import pytest

from pyflame_rt import Graph, InferenceSession, SessionOptions
from pyflame_rt.backends.cpu.jit.target import host
from pyflame_rt.backends.cpu.lower import tiled_products
from pyflame_rt.pruning import PruningConfig, WeightPruner


def layer(kind, rows, depth, width, *, tail=True):
    graph, rng = Graph(kind), np.random.default_rng(rows + depth)
    if kind == "Conv":
        graph.add_input("x", [1, depth, rows, 1])
        graph.add_initializer("w", rng.standard_normal((width, depth, 1, 1), np.float32))
    else:
        graph.add_input("x", ["N", depth])
        graph.add_initializer("w", rng.standard_normal((width, depth), np.float32))
    graph.add_initializer("b", rng.standard_normal(width, np.float32))
    graph.add_node("n", kind, ["x", "w", "b"], ["v" if tail else "y"], {"transB": 1} if kind == "Gemm" else {})
    if tail:
        graph.add_node("r", "Relu", ["v"], ["y"])
    graph.add_output("y", None)
    return graph


def pruned(graph, share, block=(32, 1)):
    return WeightPruner(PruningConfig.block_pruning(share, block)).prune(graph)


def expected(graph, x):
    weight, bias = (graph.get_initializer(n).numpy().astype(np.float64) for n in "wb")
    if weight.ndim == 4:
        return np.maximum(np.einsum("nchw,oc->nohw", x, weight[:, :, 0, 0]) + bias[:, None, None], 0)
    return np.maximum(x @ weight.T + bias, 0)


def run(graph, rows, **settings):
    options = SessionOptions()
    for name, value in settings.items():
        setattr(options, name, value)
    session = InferenceSession(graph, options)
    shape = [n if isinstance(n, int) else rows for n in graph.inputs[0].shape]
    x = np.random.default_rng(rows).standard_normal(shape, np.float32)
    return x, session.run(None, {"x": x})[0], session.explain().nodes[0].runs_on


@pytest.mark.parametrize("kind", ["Gemm", "Conv"])
@pytest.mark.parametrize(("rows", "depth", "width"), [(2, 64, 32), (16, 256, 256), (49, 100, 70), (197, 513, 129)])
@pytest.mark.parametrize("share", [0.5, 0.75, 0.99])
def test_what_is_kept_is_summed(kind, rows, depth, width, share):
    graph = pruned(layer(kind, rows, depth, width), share)
    x, got, _ = run(graph, rows)
    np.testing.assert_allclose(got, expected(graph, x), rtol=1e-5, atol=2e-4)


def test_explain_says_what_was_chosen_and_why():
    whole = layer("Gemm", 16, 256, 256)
    assert "panels" not in run(whole, 16)[2]
    assert "Gemm+Relu (25% of the weights' panels)" in run(pruned(whole, 0.75), 16)[2]
    scattered = WeightPruner(PruningConfig.magnitude_pruning(0.75)).prune(whole)  # in no panel all of a step
    assert "100% of the weights' panels, up to 4 of 4 weights, taken as dense" in run(scattered, 16)[2]
    strict = run(pruned(whole, 0.75), 16, strict_math_mode=True)[2]
    assert "panels" not in strict


@pytest.mark.parametrize("kind", ["Gemm", "Conv"])
@pytest.mark.parametrize(("rows", "depth", "width"), [(2, 64, 32), (16, 256, 256), (49, 100, 70), (197, 512, 129)])
@pytest.mark.parametrize("kept", [1, 2])
def test_n_of_four_are_summed(kind, rows, depth, width, kept):
    graph = WeightPruner(PruningConfig.nm_sparsity(kept, 4)).prune(layer(kind, rows, depth, width))
    x, got, how = run(graph, rows)
    np.testing.assert_allclose(got, expected(graph, x), rtol=1e-5, atol=2e-4)
    if host().lanes(4) == 16:
        assert (f"({kept} of 4 weights)" in how) == (rows >= (2 if kept == 1 else 32))


def test_explain_says_why_n_of_four_are_taken_as_dense(monkeypatch):
    def said(depth, rows, kept=1):
        graph = WeightPruner(PruningConfig.nm_sparsity(kept, 4)).prune(layer("Gemm", rows, depth, 64))
        x, got, how = run(graph, rows)
        np.testing.assert_allclose(got, expected(graph, x), rtol=1e-5, atol=2e-4)
        return how

    if host().lanes(4) == 16:
        assert "2 of 4 weights, no quicker with fewer than 32 rows, taken as dense" in said(128, 8, kept=2)
        assert "1 of 4 weights, but a depth of 130, taken as dense" in said(130, 8)
    monkeypatch.setattr(tiled_products, "GROUPED_LANES", 0)
    assert "1 of 4 weights, for which AVX-512 has instructions, taken as dense" in said(128, 8)


def test_some_fours_may_keep_fewer():
    graph = WeightPruner(PruningConfig.nm_sparsity(1, 4)).prune(layer("Gemm", 9, 64, 40, tail=False))
    weight = graph.get_initializer("w").numpy().copy()
    weight[:, 8:12] = 0  # a four of which nothing is kept
    weight[7] = 0
    graph.add_initializer("w", weight)
    x = np.random.default_rng(0).standard_normal((9, 64), np.float32)
    got = InferenceSession(graph).run(None, {"x": x})[0]
    bias = graph.get_initializer("b").numpy()
    np.testing.assert_allclose(got, x @ weight.T.astype(np.float64) + bias, rtol=1e-5, atol=1e-4)


def test_any_number_of_rows_and_no_weights_at_all():
    graph = pruned(layer("Gemm", 16, 128, 64), 0.75)
    session = InferenceSession(graph)
    for rows in (2, 3, 40, 300):
        x = np.random.default_rng(rows).standard_normal((rows, 128), np.float32)
        np.testing.assert_allclose(session.run(None, {"x": x})[0], expected(graph, x), rtol=1e-5, atol=1e-4)
    graph.add_initializer("w", np.zeros((64, 128), np.float32))
    x, got, _ = run(graph, 7)
    np.testing.assert_allclose(got, expected(graph, x), rtol=1e-6)


def test_threads_give_the_same_bits():
    graph = pruned(layer("Gemm", 300, 512, 512), 0.75)
    results = [run(graph, 300, intra_op_num_threads=n)[1] for n in (1, 2)]
    np.testing.assert_array_equal(*results)
