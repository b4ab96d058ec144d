"""Leaves that a compiled function makes itself: their gradients are its own."""

import numpy as np
import pytest

import pyflame as pf
from pyflame import nn


def penalty(model):
    def step(x):
        x = x.clone().requires_grad_(True)
        (slope,) = pf.autograd.grad(model(x).pow(2).sum(), x, create_graph=True)
        model.zero_grad()
        loss = slope.pow(2).sum()
        loss.backward()
        return loss, x.grad

    return step


def test_one_trace_serves_and_gradients_are_eager_ones():
    pf.manual_seed(0)
    model = nn.Linear(2, 3)
    eager, compiled = penalty(model), pf.compile(penalty(model), fullgraph=True)
    rng = np.random.default_rng(0)
    for _ in range(5):
        x = pf.from_numpy(rng.standard_normal((4, 2)).astype(np.float32))
        wanted = [t.numpy() for t in (*eager(x), model.weight.grad)]
        for mine, theirs in zip((*compiled(x), model.weight.grad), wanted, strict=True):
            np.testing.assert_allclose(mine.numpy(), theirs, rtol=1e-6)
    assert compiled.trace_count == 1


def test_a_leaf_that_comes_out_with_a_gradient_is_refused():
    def step(x):
        x = x.clone().requires_grad_(True)
        x.pow(2).sum().backward()
        return x

    with pytest.raises(pf.TraceError, match="return its gradient beside it"):
        pf.compile(step, fullgraph=True)(pf.ones(2))
    compiled = pf.compile(step)
    with pytest.warns(RuntimeWarning, match="runs as it is"):
        results = [compiled(pf.ones(2)) for _ in range(3)]
    assert all(result.grad.numpy().tolist() == [2.0, 2.0] for result in results)
