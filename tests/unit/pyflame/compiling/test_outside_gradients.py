"""Gradients of compiled functions and of checkpoints, taken outside: they are those of the function as it is."""

import numpy as np
import pytest

import pyflame as pf
from pyflame.compiling.tracer import TraceError
from pyflame.utils.checkpoint import checkpoint


def weights():
    return pf.nn.Parameter(pf.tensor([[0.5, -1.0], [2.0, 0.25]]))


X = pf.tensor([[1.0, 2.0], [-3.0, 0.5]])


def without_recording(w, x):
    with pf.no_grad():
        scale = w.abs().sum()
    return w * x * scale


def straight_through(w, x):
    hard = (w * x).round()
    return w * x + (hard - w * x).detach()


def inner_leaf(w, x):
    point = (w * x).detach().requires_grad_()
    (slope,) = pf.autograd.grad((point**3).sum(), point)
    return w * slope


FORMS = {
    "detach": lambda w, x: w.detach() * x + w * x,
    "where": lambda w, x: pf.where(x > 0, w.detach(), w) * x,
    "no_grad": without_recording,
    "straight through": straight_through,
    "inner leaf": inner_leaf,
    "padding": lambda w, x: pf.nn.functional.embedding(pf.tensor([0, 1, 0]), w, padding_idx=0) * x.sum(),
}


@pytest.mark.parametrize("how", ["compile", "checkpoint"])
@pytest.mark.parametrize("name", FORMS)
def test_no_gradient_flows_where_none_flowed(name, how):
    form, found = FORMS[name], []
    for run in (form, pf.compile(form) if how == "compile" else lambda w, x: checkpoint(form, w, x)):
        for _ in range(2):
            w = weights()
            (run(w, X) ** 2).sum().backward()
            found.append(w.grad.numpy())
    for other in found[1:]:
        np.testing.assert_allclose(other, found[0], rtol=1e-6)


@pytest.mark.parametrize("how", ["compile", "checkpoint"])
def test_gradients_of_gradients(how):
    def form(w, x):
        return pf.tanh(w @ x)

    found = []
    for run in (form, pf.compile(form) if how == "compile" else lambda w, x: checkpoint(form, w, x)):
        for _ in range(2):
            w = weights()
            (first,) = pf.autograd.grad(run(w, X).sum(), w, create_graph=True)
            moved = w - 0.1 * first
            (second,) = pf.autograd.grad(run(moved, X).sum(), w)
            found.append(second.numpy())
    for other in found[1:]:
        np.testing.assert_allclose(other, found[0], rtol=1e-5)


class Doubled(pf.autograd.Function):
    """Its gradient is twice what it should be."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * 4 * x


def test_a_checkpoint_keeps_gradients_of_ones_own():
    w = weights()
    checkpoint(Doubled.apply, w).sum().backward()
    np.testing.assert_allclose(w.grad.numpy(), 4 * w.detach().numpy())


def test_gradients_of_ones_own_are_refused_by_name():
    w = weights()
    with pytest.raises(TraceError, match="Doubled with its own gradient"):
        pf.compile(lambda: Doubled.apply(w), fullgraph=True)()


@pytest.mark.filterwarnings("ignore:compiled .* runs as it is:RuntimeWarning")
def test_gradients_of_ones_own_run_as_they_are():
    w = weights()
    f = pf.compile(lambda: Doubled.apply(w))
    for _ in range(3):
        w.grad = None
        f().sum().backward()
        np.testing.assert_allclose(w.grad.numpy(), 4 * w.detach().numpy())


@pytest.mark.filterwarnings("ignore:compiled .* runs as it is:RuntimeWarning")
def test_backward_hooks_of_compiled_modules_are_called():
    layer, seen = pf.compile(pf.nn.Linear(2, 2)), []
    layer.register_full_backward_hook(lambda module, before, behind: seen.append(behind[0].sum().item()))
    for _ in range(3):
        layer(X.clone().requires_grad_()).sum().backward()
    assert seen == [4.0] * 3
    assert "hook on the gradient" in layer.explain()


def test_a_compiled_function_takes_tensors_with_hooks():
    w = weights()
    f = pf.compile(lambda h: h * 2)
    h = w * 3
    h.register_hook(lambda g: g * 10)
    f(h).sum().backward()
    np.testing.assert_array_equal(w.grad.numpy(), np.full((2, 2), 60.0))


def test_a_compiled_container_can_be_indexed():
    net = pf.compile(pf.nn.Sequential(pf.nn.Linear(2, 3), pf.nn.ReLU()))
    assert net[0] is net._orig_mod[0]
    assert len(net) == 2
    assert [type(m).__name__ for m in net] == ["Linear", "ReLU"]
    assert bool(pf.compile(pf.nn.Linear(1, 1)))
