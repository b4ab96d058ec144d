"""A model that was cut gives what the whole model gives: all kinds of models, every strategy, one to four parts."""

import itertools

import numpy as np
import pytest

from pyflame_rt import InferenceSession
from pyflame_rt.partition import GraphPartitioner, PartitionConfig, PartitionedExecutor, PartitionStrategy
from tests.unit.partition.zoo import MODELS, ROWS

STRATEGIES = ("data", "model", "pipeline", "tensor", "auto")
CASES = list(itertools.product(MODELS, STRATEGIES, (1, 2, 3, 4)))
# One strategy and number of parts for each model, all of them in turn; the rest is `make partition-full`.
SAMPLE = [(m, STRATEGIES[i % 5], (2, 3, 4, 1)[i % 4]) for i, m in enumerate(MODELS)]
BOUND = 1e-6


def plan_of(graph, strategy, parts):
    config = PartitionConfig(PartitionStrategy.of(strategy), batch_size=ROWS, micro_batch_size=2)
    partitioner = GraphPartitioner(config)
    if strategy in ("model", "pipeline"):
        parts = min(parts, partitioner.parts_possible(graph))
    plan = partitioner.partition(graph, parts)
    assert GraphPartitioner.validate(plan) == []
    return plan


def by_hand(plan, feed):
    """The parts one after the other, each in a session of its own."""
    values = dict(feed)
    for part in plan.partitions:
        fed = {name: values[name] for name in part.inputs if name in values}
        values.update(zip(part.outputs, InferenceSession(part.graph).run(part.outputs, fed), strict=True))
    return [values[info.name] for info in plan.graph.outputs]


def assert_equal(name, strategy, parts, backend):
    graph, feed = MODELS[name]()
    plan = plan_of(graph, strategy, parts)
    whole = InferenceSession(graph).run(None, feed)
    with PartitionedExecutor(plan, backend) as executor:
        cut = executor.execute(feed)
    assert list(cut) == [info.name for info in graph.outputs]
    for ours, theirs in zip(cut.values(), whole, strict=True):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        scale = max(1.0, np.abs(theirs).max(initial=0))
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=BOUND * scale)
    if plan.split is None and plan.strategy is not PartitionStrategy.DATA_PARALLEL:
        for ours, theirs in zip(cut.values(), by_hand(plan, feed), strict=True):
            np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(("name", "strategy", "parts"), SAMPLE)
def test_on_threads(name, strategy, parts):
    assert_equal(name, strategy, parts, "threads")


@pytest.mark.parametrize(("name", "strategy", "parts"), [("attention", "pipeline", 2), ("branches", "tensor", 2)])
def test_on_processes(name, strategy, parts):
    assert_equal(name, strategy, parts, "processes")


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["threads", "processes"])
@pytest.mark.parametrize(("name", "strategy", "parts"), CASES)
def test_everywhere(name, strategy, parts, backend):
    assert_equal(name, strategy, parts, backend)


def test_processes_and_threads_give_the_same_bits():
    graph, feed = MODELS["mlp"]()
    feed = {"x": np.random.default_rng(1).standard_normal((300, 16)).astype(np.float32)}  # through shared memory
    plan = plan_of(graph, "pipeline", 2)
    plan.micro_batch_size = 64
    results = []
    for backend in ("threads", "processes"):
        with PartitionedExecutor(plan, backend) as executor:
            results.append([executor.execute(feed)["y0"] for _ in range(3)])
    for result in itertools.chain(*results):
        np.testing.assert_array_equal(result, results[0][0])


@pytest.mark.parametrize("rows", [0, 1, 2, 5, 17])
@pytest.mark.parametrize("strategy", ["data", "pipeline"])
def test_any_number_of_rows(rows, strategy):
    graph, _ = MODELS["mlp"]()
    x = np.random.default_rng(2).standard_normal((rows, 16)).astype(np.float32)
    (whole,) = InferenceSession(graph).run(None, {"x": x})
    with PartitionedExecutor(plan_of(graph, strategy, 3)) as executor:
        np.testing.assert_allclose(executor.execute({"x": x})["y0"], whole, rtol=0, atol=1e-5)
