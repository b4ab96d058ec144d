"""Recurrent layers against torch: results and the gradients of inputs, weights and first states."""

import numpy as np
import pytest

import pyflame as pf

torch = pytest.importorskip("torch")
RNG = np.random.default_rng(31)
FORMS = [
    {},
    {"bidirectional": True},
    {"num_layers": 2, "bidirectional": True, "batch_first": True},
    {"num_layers": 3, "bias": False},
]
SIZES = [(7, 5, 6, 10), (1, 1, 3, 1), (5, 16, 9, 33)]


def leaf(array):
    made = pf.from_numpy(array.copy())
    made.requires_grad = True
    return made


def twins(kind, sizes, dtype, form):
    _, _, width, hidden = sizes
    theirs = getattr(torch.nn, kind)(width, hidden, **form).to(getattr(torch, dtype))
    ours = getattr(pf.nn, kind)(width, hidden, **form, dtype=getattr(pf, dtype))
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def results(model, library, x, states, weights, *, double_state):
    """Outputs and gradients by name, in one of the libraries."""
    make = leaf if library is pf else lambda a: torch.tensor(a, requires_grad=True)
    start, first = make(x), [make(s) for s in states]
    given = None if not first else tuple(first) if double_state else first[0]
    y, last = model(start, given)
    loss = (y * (pf.from_numpy(weights) if library is pf else torch.from_numpy(weights))).sum()
    if first:
        for end in last if double_state else (last,):
            loss = loss + (end * end).sum()
    loss.backward()
    found = {"y": y, "x": start.grad} | {f"state{i}": s.grad for i, s in enumerate(first)}
    found |= {name: p.grad for name, p in model.named_parameters()}
    return {name: v.numpy() if library is pf else v.detach().numpy() for name, v in found.items()}


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("states", [False, True])
def test_gradients_equal_those_of_torch(dtype, kind, states):
    forms = [*FORMS, {"nonlinearity": "relu"}] if kind == "RNN" else FORMS
    for form in forms:
        for sizes in SIZES if form in forms[:2] else SIZES[:1]:
            ours, theirs = twins(kind, sizes, dtype, form)
            steps, batch, width, hidden = sizes
            lead = (batch, steps) if form.get("batch_first") else (steps, batch)
            directions, layers = 2 if form.get("bidirectional") else 1, form.get("num_layers", 1)
            x = RNG.normal(size=(*lead, width)).astype(dtype)
            count = (2 if kind == "LSTM" else 1) if states else 0
            first = [RNG.normal(size=(layers * directions, batch, hidden)).astype(dtype) for _ in range(count)]
            weights = RNG.normal(size=(*lead, directions * hidden)).astype(dtype)
            got, want = (
                results(model, library, x, first, weights, double_state=kind == "LSTM")
                for model, library in ((ours, pf), (theirs, torch))
            )
            assert got.keys() == want.keys()
            for name, value in want.items():
                scale = np.abs(value).max() + 1e-3
                bound = 1e-10 if dtype == "float64" else 3e-5
                assert np.abs(got[name] - value).max() <= bound * scale, (form, sizes, name)


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_second_order_equals_that_of_torch(kind):
    ours, theirs = twins(kind, (4, 2, 3, 5), "float64", {"bidirectional": True})
    x = RNG.normal(size=(4, 2, 3))
    weights = RNG.normal(size=(4, 2, 10))
    mine, other = leaf(x), torch.tensor(x, requires_grad=True)
    (first,) = pf.autograd.grad((ours(mine)[0] * pf.from_numpy(weights)).sum(), [mine], create_graph=True)
    (their_first,) = torch.autograd.grad((theirs(other)[0] * torch.from_numpy(weights)).sum(), other, create_graph=True)
    (first * first).sum().backward()
    (their_first * their_first).sum().backward()
    np.testing.assert_allclose(mine.grad.numpy(), other.grad.numpy(), rtol=1e-9, atol=1e-12)
    known = dict(ours.named_parameters())
    for name, parameter in theirs.named_parameters():
        if parameter.grad is not None:
            np.testing.assert_allclose(known[name].grad.numpy(), parameter.grad.numpy(), rtol=1e-8, atol=1e-11)
