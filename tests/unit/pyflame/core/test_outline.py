"""Outlined functions: one expression a call, and otherwise as if every operator had been recorded."""

import copy
import pickle

import numpy as np
import pytest
import torch

import pyflame as pf
from pyflame.calls import Call
from pyflame.outline import outlined

F = pf.nn.functional


@outlined
def curve(x, y, factor=1.0):
    return (x * factor).exp() * y + x.sigmoid(), y - x.sum(dim=0)


def plainly(x, y, factor=1.0):
    return (x * factor).exp() * y + x.sigmoid(), y - x.sum(dim=0)


@pytest.fixture
def pair():
    pf.manual_seed(3)
    return pf.randn(4, 3, requires_grad=True), pf.randn(4, 3, requires_grad=True)


def loss_of(function, x, y):
    first, second = function(x, y, factor=0.5)
    return (first * second).sum()


def test_a_call_is_one_expression_and_its_gradient_another(pair):
    first, second = curve(*pair)
    assert isinstance(first._value.expr, Call)
    assert first._value.expr is second._value.expr
    (first.sum() + second.sum()).backward()
    assert isinstance(pair[0].grad._value.expr, Call)


def test_values_and_gradients_are_those_of_the_operators(pair):
    results = []
    for function in (curve, plainly):
        for p in pair:
            p.grad = None
        loss = loss_of(function, *pair)
        loss.backward()
        results.append([loss.numpy(), *(p.grad.numpy() for p in pair)])
    for ours, theirs in zip(*results, strict=True):  # contributions to a gradient are added in another order
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("wants", [(True, False), (False, True), (True, True)])
@pytest.mark.parametrize("used", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize("evaluated", [False, True])
def test_only_what_is_asked_for_gets_a_gradient(wants, used, evaluated):
    x, y = (pf.ones(2, 3).requires_grad_(want) for want in wants)
    found = []
    for function in (curve, plainly):
        outs = function(x, y)
        if evaluated:
            pf.eval(*outs)
        sum(outs[i].sum() for i in used).backward()
        found.append([None if p.grad is None else p.grad.numpy() for p in (x, y)])
        x.grad = y.grad = None
    for ours, theirs in zip(*found, strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def test_gradients_of_gradients(pair):
    x, y = pair
    found = []
    for function in (curve, plainly):
        (first,) = pf.autograd.grad(loss_of(function, x, y), [x], create_graph=True)
        (second,) = pf.autograd.grad((first * first).sum(), [y])
        found.append(second.numpy())
    np.testing.assert_array_equal(*found)


def test_settings_and_types_are_told_apart():
    for kind in (pf.float32, pf.float64, pf.float16):
        assert F.linear(pf.ones(1, 2, dtype=kind), pf.ones(3, 2, dtype=kind)).dtype is kind
    scale = outlined(lambda x, c: x * c)
    assert [str(scale(pf.tensor(2.0), c).item()) for c in (0.0, -0.0, 1, True)] == ["0.0", "-0.0", "2.0", "2.0"]


def test_what_does_more_than_compute_is_not_outlined():
    state = []

    @outlined
    def noisy(x):
        return x + pf.rand(3)

    @outlined
    def reading(x):
        state.append(x.sum().item())
        return x * 2

    @outlined
    def writing(x):
        y = x + 1
        y.add_(1)
        return y

    x = pf.ones(3)
    assert noisy(x).tolist() != noisy(x).tolist()
    for _ in range(3):
        assert reading(x).tolist() == [2.0] * 3
        assert writing(x).tolist() == [3.0] * 3
    assert state == [3.0] * 3


def test_a_result_that_is_a_view_stays_one():
    turned = outlined(lambda x: x.T)
    x = pf.arange(6.0).reshape(2, 3).clone()
    for _ in range(2):
        turned(x)[0, 1] = 50.0
        assert x[1, 0].item() == 50.0


def test_values_changed_in_place_are_refused_as_torch_refuses_them():
    for lib in (torch, pf):
        x, w = lib.ones(2, 3), lib.ones(4, 3, requires_grad=True)
        y = lib.nn.functional.linear(x, w)
        x.add_(1)  # needed for the gradient of the weights
        with pytest.raises(RuntimeError):
            y.sum().backward()
        b = lib.ones(4, requires_grad=True)
        y = lib.nn.functional.linear(lib.ones(2, 3), w.detach(), b)
        b.data.add_(1)  # needed for nothing
        y.sum().backward()
        assert b.grad.tolist() == [2.0] * 4


def test_hooks_retained_gradients_and_released_graphs(pair):
    x, y = pair
    seen = []
    first, _ = curve(x, y)
    first.retain_grad()
    first.register_hook(lambda g: seen.append(g.sum().item()))
    loss = first.sum()
    loss.backward()
    assert seen == [12.0]
    assert first.grad.tolist() == np.ones((4, 3)).tolist()
    loss.item()
    x.grad.tolist()
    with pytest.raises(RuntimeError, match="already differentiated"):
        loss.backward()


def test_whoever_looks_at_the_graph_sees_operators(pair):
    x, y = pair
    text = str(pf.get_graph(loss_of(curve, x, y)))
    assert "Exp" in text
    assert "curve" not in text


def test_checkpoints_and_anomalies_look_inside(pair):
    x, y = pair
    whole = loss_of(curve, x, y)
    whole.backward()
    expected, x.grad = x.grad.numpy(), None
    pf.utils.checkpoint.checkpoint(lambda: loss_of(curve, x, y), use_reentrant=False).backward()
    np.testing.assert_allclose(x.grad.numpy(), expected, rtol=1e-6, atol=1e-6)
    root = curve(pf.tensor([1e4]), pf.tensor([0.0]))[0]
    with pf.autograd.detect_anomaly(), pytest.raises(RuntimeError, match="made the first NaN"):
        root.item()


def test_compiled_functions_contain_operators(pair):
    x, y = pair
    compiled = pf.compile(lambda a, b: loss_of(curve, a, b))
    assert compiled(x, y).item() == loss_of(curve, x, y).item()


@pytest.mark.parametrize(
    ("algorithm", "name", "spelled", "plain"),
    [
        (pf.optim.SGD, "weight_decay", np.float32, float),
        (pf.optim.SGD, "momentum", np.float64, float),
        (pf.optim.Adam, "betas", lambda v: [v, 0.9], lambda v: (v, 0.9)),
    ],
)
def test_settings_of_an_optimizer_that_change_are_followed(algorithm, name, spelled, plain):
    weights = []
    for setting in (spelled, plain):
        w = pf.nn.Parameter(pf.ones(3))
        optimizer = algorithm([w], lr=0.1)
        for value in (0.5, 0.25, 0.75):
            optimizer.param_groups[0][name] = setting(value)
            (w * w * value).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        weights.append(w.numpy())
    np.testing.assert_array_equal(*weights)


def test_optimizers_are_copied_and_pickled_between_steps():
    w = pf.nn.Parameter(pf.ones(3))
    optimizer = pf.optim.Adam([w], lr=0.1)
    (w * w).sum().backward()
    optimizer.step()
    for again in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):  # noqa: S301 - our own
        assert again.state_dict()["state"].keys() == optimizer.state_dict()["state"].keys()
        again.step()
