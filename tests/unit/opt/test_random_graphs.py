"""Every level gives what no optimisation gives: bit for bit by exact rules, within their bounds by the others."""

import warnings

import numpy as np
import pytest

from pyflame_rt import InferenceSession, SessionOptions
from pyflame_rt.graph.errors import PyFlameRTError
from pyflame_rt.opt import OptLevel, optimize
from pyflame_rt.opt.verification import allowed, answers, differences
from tests.unit.opt.random_graphs import random_graph

LEVELS = (OptLevel.BASIC, OptLevel.EXTENDED, OptLevel.ALL)


def check_reference(seed: int) -> None:
    graph, feed = random_graph(seed)
    assert graph.validate() == []
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        before = answers(graph, feed)
        for level in LEVELS:
            twin = graph.copy()
            result = optimize(twin, level)
            assert twin.validate() == [], (seed, level)
            assert differences(graph, before, answers(twin, feed), allowed(result)) == [], (seed, level)
            assert not optimize(twin, level).modified, (seed, level, "not a fixed point")


def check_cpu(seed: int) -> None:
    graph, feed = random_graph(seed)
    before = InferenceSession(graph, SessionOptions(optimization_level=OptLevel.NONE)).run(None, feed)
    for level in LEVELS:
        after = InferenceSession(graph, SessionOptions(optimization_level=level)).run(None, feed)
        for info, a, b in zip(graph.outputs, before, after, strict=True):
            assert (a.dtype, a.shape) == (b.dtype, b.shape)
            if a.dtype.kind in "iub":
                assert np.array_equal(a, b), (seed, level, info.name)
                continue
            wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
            assert np.array_equal(np.isfinite(wide_a), np.isfinite(wide_b)), (seed, level, info.name)
            finite = np.isfinite(wide_a)
            eps = 2.0**-7 if a.dtype.name == "bfloat16" else float(np.finfo(a.dtype).eps)
            limit = 256 * eps * max(np.abs(wide_a[finite]).max(initial=0.0), 1.0)
            assert (np.abs(wide_a[finite] - wide_b[finite]) <= limit).all(), (seed, level, info.name)


@pytest.mark.parametrize("start", range(0, 80, 20))
def test_levels_equal_none_on_the_reference(start):
    for seed in range(start, start + 20):
        check_reference(seed)


@pytest.mark.parametrize("seed", range(10_000, 10_010))
def test_levels_equal_none_on_the_cpu(seed):
    check_cpu(seed)


def check_wafer(seed: int) -> bool:
    """Every level on the simulated wafer; False of a graph that it cannot run at all."""
    graph, feed = random_graph(seed, nodes=4)
    options = SessionOptions(optimization_level=OptLevel.NONE)
    try:
        before = InferenceSession(graph, options, ["WSEExecutionProvider"]).run(None, feed)
    except (PyFlameRTError, ValueError):
        return False
    for level in LEVELS:
        twin = graph.copy()
        result = optimize(twin, level)
        after = InferenceSession(twin, options, ["WSEExecutionProvider"]).run(None, feed)
        assert differences(graph, before, after, max(allowed(result), 16.0)) == [], (seed, level)
    return True


def test_levels_equal_none_on_the_wafer():
    """The first few graphs that the wafer can run at all."""
    ran = 0
    for seed in range(20_000, 20_060):
        ran += check_wafer(seed)
        if ran == 3:
            return
    assert ran


@pytest.mark.slow
@pytest.mark.parametrize("start", range(1000, 3000, 50))
def test_two_thousand_graphs(start):
    for seed in range(start, start + 50):
        check_reference(seed)
        if seed % 10 == 0:
            check_cpu(seed)
            check_wafer(seed)
