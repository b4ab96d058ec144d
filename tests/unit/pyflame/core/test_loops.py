"""Loops that update their state by hand cost the same in every round, whatever they look at, and whenever."""

import copy

import numpy as np
import pytest

import pyflame as pf
from pyflame import evaluation, unread
from tests.programs.same import numbers


def in_place(p, g, state):
    """The update of plain gradient descent."""
    with pf.no_grad():
        p -= 0.1 * g
    return p


def with_momentum(p, g, state):
    """A buffer that is written in place, and read by the update."""
    state.setdefault("m", pf.zeros_like(p)).lerp_(g, 0.1)
    p.data.add_(g.lerp(state["m"], 0.9), alpha=-0.1)
    return p


def functional(p, g, state):
    """New tensors instead of old ones."""
    state["m"] = 0.9 * state.get("m", pf.zeros_like(p)) + g
    return (p - 0.1 * state["m"]).detach().requires_grad_()


@pytest.fixture(autouse=True)
def nothing_pending():
    """What earlier tests wrote and did not read is not evaluated here."""
    unread.unread.take()


@pytest.mark.parametrize("update", [in_place, with_momentum, functional])
@pytest.mark.parametrize("looks", [1, 2])
def test_state_updated_before_a_look_is_not_computed_from_its_beginning(update, looks):
    p, state, found = pf.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True), {}, []
    for i in range(24):
        if i == 12:
            before = evaluation.cache_info()["misses"]
        loss = (p * p).sum()
        (g,) = pf.autograd.grad(loss, [p])
        length = (p.detach() * 2).sum()
        p = update(p, g, state)
        found.append(loss.item())
        if looks == 2:
            length.item()
    assert evaluation.cache_info()["misses"] == before
    assert len(set(found)) == 24


def averages(mode):
    """A parameter that changes in every round, its average, and the same by NumPy."""
    p = pf.nn.Parameter(pf.tensor(numbers(1000)))
    average, wanted = copy.deepcopy(p), numbers(1000).astype(np.float64)
    for i in range(80):
        p.data = pf.tensor(numbers(1000, seed=i))
        with pf.no_grad():
            if mode == "in place":
                average.mul_(0.9).add_(p, alpha=0.1)
            else:
                average.data = average.data * 0.9 + p.data * 0.1
        wanted = 0.9 * wanted + 0.1 * numbers(1000, seed=i)
        yield average, wanted


def depth(v):
    """How many expressions have to run, one after the other, for a value."""
    deep, layer = 0, [v]
    while layer := [w for v in layer if v.array is None for w in v.expr.inputs if w is not None]:
        deep += 1
    return deep


@pytest.mark.parametrize("mode", ["in place", "data"])
@pytest.mark.parametrize("looking", [True, False])
def test_an_average_nobody_reads_does_not_keep_all_it_was_made_of(mode, looking, monkeypatch):
    monkeypatch.setattr(unread, "ENOUGH_BYTES", 4 * 4000)
    depths = []
    for average, wanted in averages(mode):  # noqa: B007
        depths.append(depth(average._value))
        if looking:
            pf.ones(2).sum().item()
    assert depths[0] < depths[1] < depths[2], "below the bound nothing is evaluated that nobody asked for"
    assert max(depths) < 120
    np.testing.assert_allclose(average.numpy(), wanted, rtol=1e-5, atol=1e-6)
