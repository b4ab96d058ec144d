"""The score of one class of each row, and its gradient, against torch in double precision."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from pyflame_rt.autodiff import gradient
from pyflame_rt.backends.base import RunHooks
from pyflame_rt.backends.cpu.onednn import library
from pyflame_rt.backends.cpu.run.executable import CpuBackend
from pyflame_rt.graph import DType, Graph
from pyflame_rt.graph.errors import InputError
from pyflame_rt.ops.core.evaluate import Context, Program
from tests.tolerances import within

KINDS = {DType.Float32: (np.float32, 1e-5), DType.Float64: (np.float64, 1e-12)}
OUTPUTS = ("score", "top", "log")

native_only = pytest.mark.skipif(not library.available(), reason="oneDNN is not installed")


def scores(rows, classes, kind=DType.Float32, outputs=("score",)):
    graph = Graph("scores")
    graph.add_input("x", (rows, classes), kind)
    graph.add_input("index", (rows, 1), DType.Int64)
    graph.add_node("score", "ClassScore", ["x", "index"], list(OUTPUTS), domain="pyflame")
    for name in outputs:
        graph.add_output(name, None, kind)
    return gradient(graph, list(outputs), ["x"], seeded=True)


def data(graph, rows, classes, dtype, level=0.0):
    rng = np.random.default_rng(rows + classes)
    feeds = {"x": (rng.normal(size=(rows, classes)) * 3 + level).astype(dtype)}
    feeds["index"] = rng.integers(0, classes, (rows, 1))
    for info in graph.inputs:
        feeds.setdefault(info.name, rng.normal(size=(rows, 1)).astype(dtype))
    return feeds


def theirs(feeds, seeds):
    """Outputs and the gradient by torch; seeds by the name of the output."""
    x = torch.tensor(feeds["x"].astype(np.float64), requires_grad=True)
    top = x.amax(1, keepdim=True)
    log = torch.log(torch.exp(x - top).sum(1, keepdim=True))
    made = {"score": torch.log_softmax(x, 1).gather(1, torch.tensor(feeds["index"])), "top": top, "log": log}
    sum((made[n] * torch.tensor(s.astype(np.float64))).sum() for n, s in seeds.items()).backward()
    return [made[n].detach().numpy() for n in seeds], x.grad.numpy()


def seeds_of(graph, feeds, outputs):
    given = [info.name for info in graph.inputs if info.name not in ("x", "index")]
    return {name: feeds[seed] for name, seed in zip(outputs, given, strict=True)}


def native(graph, feeds, **options):
    executable = CpuBackend().compile(graph, SimpleNamespace(**options))
    try:
        results = executable.run(feeds, [info.name for info in graph.outputs], RunHooks())
        return results, [step.label for step in executable._last.lowered.steps]
    finally:
        executable.close()


@native_only
@pytest.mark.parametrize("checked", [False, True])
@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize(("rows", "classes"), [(7, 5), (1, 1), (40, 1003), (300, 16)])
def test_kernels(rows, classes, kind, checked):
    dtype, tolerance = KINDS[kind]
    graph = scores(rows, classes, kind)
    feeds = data(graph, rows, classes, dtype)
    found, labels = native(graph, feeds, checked=checked)
    assert {"ClassScore", "ClassScoreGrad"} <= set(labels)
    (score,), dx = theirs(feeds, seeds_of(graph, feeds, ["score"]))
    np.testing.assert_allclose(found[0], score, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(found[-1], dx, rtol=tolerance, atol=tolerance)


@native_only
def test_scores_far_from_zero_lose_nothing():
    graph = scores(9, 50)
    feeds = data(graph, 9, 50, np.float32, level=1e4)
    found, _ = native(graph, feeds)
    (score,), dx = theirs(feeds, seeds_of(graph, feeds, ["score"]))
    np.testing.assert_allclose(found[0], score, rtol=1e-5)
    np.testing.assert_allclose(found[-1], dx, **within("elements"))


@native_only
def test_thread_counts_give_the_same_bits():
    graph = scores(256, 300)
    feeds = data(graph, 256, 300, np.float32)
    first, second = (native(graph, feeds, num_threads=n)[0] for n in (1, 2))
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a, b)


@native_only
@pytest.mark.parametrize("wrong", [5, -6])
def test_a_class_that_does_not_exist_is_refused(wrong):
    graph = scores(4, 5)
    feeds = data(graph, 4, 5, np.float32)
    feeds["index"][2] = wrong
    with pytest.raises(InputError, match="out of range"):
        native(graph, feeds)


@pytest.mark.parametrize("outputs", [["score"], ["top"], ["log"], ["score", "top"], list(OUTPUTS)])
def test_every_output_of_it_has_a_gradient(outputs):
    graph = scores(6, 4, DType.Float64, outputs)
    feeds = data(graph, 6, 4, np.float64)
    values = Program(graph).run([feeds[info.name] for info in graph.inputs], Context.of("numpy"))
    made, dx = theirs(feeds, seeds_of(graph, feeds, outputs))
    for got, want in zip(values, [*made, dx], strict=True):
        np.testing.assert_allclose(got, want, **within("sums", "float64"))
