"""Gradients of layer normalisation by generated kernels, against torch in double precision."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from pyflame_rt.autodiff import gradient
from pyflame_rt.backends.base import RunHooks
from pyflame_rt.backends.cpu.run.executable import CpuBackend
from pyflame_rt.graph import DType, Graph
from pyflame_rt.ops.core.evaluate import Context, Program
from tests.tolerances import within


def normalisation(shape, axis, outputs, kind=DType.Float32, inputs=("x", "scale", "shift")):
    graph = Graph("normalisation")
    for name in inputs:
        graph.add_input(name, shape if name == "x" else shape[axis:], kind)
    stash = {"stash_type": kind.onnx}
    graph.add_node("norm", "LayerNormalization", list(inputs), ["y", "mean", "inverse"], {"axis": axis, **stash})
    for name in outputs:
        graph.add_output(name, None, kind)
    return gradient(graph, list(outputs), list(inputs), seeded=True)


def native(graph, feeds, **options):
    executable = CpuBackend().compile(graph, SimpleNamespace(**options))
    results = executable.run(feeds, [info.name for info in graph.outputs], RunHooks())
    labels = [step.label for step in executable._last.lowered.steps]
    executable.close()
    return results, labels


def theirs(arrays, seeds, axis):
    """Gradients by torch in float64; seeds by the name of the output."""
    x, *affine = (torch.tensor(a.astype(np.float64), requires_grad=True) for a in arrays)
    dims = tuple(range(axis, x.ndim))
    mean = x.mean(dims, keepdim=True)
    inverse = ((x - mean).square().mean(dims, keepdim=True) + 9.999999747378752e-06).rsqrt()
    y = (x - mean) * inverse * affine[0]
    y = y + affine[1] if len(affine) > 1 else y
    made = {"y": y, "mean": mean, "inverse": inverse}
    total = sum((made[name] * torch.tensor(seed.astype(np.float64))).sum() for name, seed in seeds.items())
    total.backward()
    return [np.zeros(v.shape) if v.grad is None else v.grad.numpy() for v in (x, *affine)]


def data(graph, shape, axis, inputs=("x", "scale", "shift"), dtype=np.float32):
    rng = np.random.default_rng(sum(shape))
    sizes = {"x": shape, "y": shape, "mean": (*shape[:axis], *[1] * (len(shape) - axis))}
    feeds = {}
    for info in graph.inputs:
        base = next((n for n in ("mean", "inverse", "x", "scale", "shift", "y") if n in info.name), "y")
        size = shape[axis:] if base in ("scale", "shift") else sizes.get(base, sizes["mean"])
        feeds[info.name] = rng.normal(size=size).astype(dtype)
    arrays = [feeds[name] for name in inputs]
    return feeds, arrays


@pytest.mark.parametrize("checked", [False, True])
@pytest.mark.parametrize(
    ("shape", "axis"), [((8, 16, 384), 2), ((5, 7), 1), ((4, 3, 6), 1), ((2, 33), 1), ((40, 1030), 1), ((300, 9), 1)]
)
def test_layer_normalisation(shape, axis, checked):
    graph = normalisation(shape, axis, ["y"])
    feeds, arrays = data(graph, shape, axis)
    (seed,) = (name for name in feeds if name not in ("x", "scale", "shift"))
    found, labels = native(graph, feeds, checked=checked)
    assert "LayerNormGrad" in labels
    for got, want in zip(found[-3:], theirs(arrays, {"y": feeds[seed]}, axis), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=2e-4)


def test_thread_counts_give_the_same_bits():
    graph = normalisation((64, 384), 1, ["y"])
    feeds, _ = data(graph, (64, 384), 1)
    first, second = (native(graph, feeds, num_threads=n)[0] for n in (1, 2))
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("outputs", [["y"], ["mean"], ["inverse"], ["y", "mean", "inverse"]])
@pytest.mark.parametrize("inputs", [("x", "scale"), ("x", "scale", "shift")])
def test_every_output_of_it_has_a_gradient(outputs, inputs):
    shape = (3, 4, 5)
    graph = normalisation(shape, 1, outputs, DType.Float64, inputs)
    feeds, arrays = data(graph, shape, 1, inputs, np.float64)
    seeds = [name for name in feeds if name not in inputs]
    by_output = dict(zip(outputs, seeds, strict=True))
    values = Program(graph).run([feeds[info.name] for info in graph.inputs], Context.of("numpy"))
    want = theirs(arrays, {name: feeds[seed] for name, seed in by_output.items()}, 1)
    for got, expected in zip(values[-len(inputs) :], want, strict=True):
        np.testing.assert_allclose(np.broadcast_to(got, expected.shape), expected, **within("sums", "float64"))
