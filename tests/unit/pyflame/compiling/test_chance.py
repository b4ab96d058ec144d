"""Random numbers of compiled functions: a trace draws none, each call draws its own."""

import threading

import numpy as np
import pytest

import pyflame as pf


def test_a_trace_leaves_the_generator_to_other_threads():
    """A function is traced while another thread seeds and draws; neither notices the other."""
    tracing, drawn = threading.Event(), threading.Event()

    @pf.compile
    def noisy(x):
        tracing.set()
        assert drawn.wait(120)
        return x + pf.rand(3, generator=own)

    own = pf.Generator(5)
    results = []
    thread = threading.Thread(target=lambda: results.append(noisy(pf.zeros(3)).numpy()))
    thread.start()
    assert tracing.wait(120)
    pf.manual_seed(0)
    first = pf.rand(4).numpy()
    drawn.set()
    thread.join(120)
    second = pf.rand(4).numpy()
    pf.manual_seed(0)
    np.testing.assert_array_equal(pf.rand(4).numpy(), first)
    np.testing.assert_array_equal(pf.rand(4).numpy(), second)
    np.testing.assert_array_equal(results[0], pf.rand(3, generator=pf.Generator(5)).numpy())


def test_compiled_draws_follow_a_generator_of_ones_own():
    own = pf.Generator(3)
    draw = pf.compile(lambda x: x + pf.rand(4, generator=own))
    compiled = [draw(pf.zeros(4)).numpy() for _ in range(4)]
    again = pf.Generator(3)
    for got in compiled:
        np.testing.assert_array_equal(got, pf.rand(4, generator=again).numpy())


def test_a_failed_trace_draws_nothing():
    pf.manual_seed(1)
    before = pf.get_rng_state()

    @pf.compile
    def fails(x):
        noise = pf.rand(2) + x
        raise ValueError(f"nothing to do with {noise.shape}")

    with pytest.raises(ValueError, match="nothing to do with"):
        fails(pf.zeros(2))
    assert pf.get_rng_state() == before


@pytest.mark.parametrize(
    "seeding",
    [
        lambda: pf.manual_seed(0),
        pf.seed,
        lambda: pf.set_rng_state((1, 2)),
        lambda: pf.Generator(1),
        lambda: pf.Generator().manual_seed(1),
    ],
    ids=["default", "unknown", "state", "new", "own"],
)
def test_a_seed_set_inside_is_refused(seeding):
    """It would be set at the first call only."""

    @pf.compile(fullgraph=True)
    def seeded(x):
        seeding()
        return x + pf.rand(2)

    with pytest.raises(pf.TraceError, match="set it before the call"):
        seeded(pf.zeros(2))


def test_a_generator_made_inside_is_new_each_time():
    draw = pf.compile(lambda x: x + pf.rand(8, generator=pf.Generator()))
    first, second = draw(pf.zeros(8)).numpy(), draw(pf.zeros(8)).numpy()
    assert (first != second).any()
