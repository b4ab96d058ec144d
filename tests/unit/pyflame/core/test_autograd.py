"""Gradients: against finite differences and torch, and everything around them."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

import pyflame as pf
from pyflame.autograd import AnomalyError
from pyflame.ops.core import call

SMOOTH = ["exp", "sin", "cos", "tanh", "sigmoid", "erf", "atan", "gelu", "silu", "mish", "softplus", "square", "asinh"]


def finite_differences(f, arrays, step=1e-6):
    results = []
    for k, array in enumerate(arrays):
        slope = np.zeros_like(array)
        for place in np.ndindex(array.shape):
            moved = [a.copy() for a in arrays]
            moved[k][place] += step
            up = f(*moved)
            moved[k][place] -= 2 * step
            slope[place] = (up - f(*moved)) / (2 * step)
        results.append(slope)
    return results


@st.composite
def expressions(draw):
    """A random expression of two tensors, as a function of tensors."""
    steps = draw(st.lists(st.sampled_from([*SMOOTH, "add", "mul", "matmul", "softmax", "sum", "cumsum"]), max_size=5))

    def f(x, y):
        z = x * 0.5
        for name in steps:
            match name:
                case "add":
                    z = z + y
                case "mul":
                    z = z * y
                case "matmul":
                    z = z @ y.transpose(0, 1) @ y * 0.1
                case "softmax":
                    z = pf.softmax(z, dim=1)
                case "sum":
                    z = z - z.mean(dim=0, keepdim=True)
                case "cumsum":
                    z = z.cumsum(1) * 0.3
                case _:
                    z = getattr(pf, name)(pf.tanh(z))
        return (z * z).sum()

    return f


@settings(max_examples=40, deadline=None)
@given(expressions(), st.integers(0, 100))
def test_against_finite_differences(f, seed):
    rng = np.random.default_rng(seed)
    arrays = [rng.normal(size=(2, 3)), rng.normal(size=(2, 3))]
    tensors = [pf.tensor(a, requires_grad=True) for a in arrays]
    f(*tensors).backward()
    expected = finite_differences(lambda *a: f(*map(pf.tensor, a)).item(), arrays)
    for t, e in zip(tensors, expected, strict=True):
        found = np.zeros((2, 3)) if t.grad is None else t.grad.numpy()
        np.testing.assert_allclose(found, e, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["exp", "sin", "tanh", "sigmoid", "log", "sqrt", "gelu", "softplus", "reciprocal"])
def test_second_order_as_torch_has_it(name):
    torch = pytest.importorskip("torch")
    data = np.array([0.3, 0.9, 1.7])
    theirs = torch.tensor(data, requires_grad=True)
    fn = getattr(torch.nn.functional, name, None) or getattr(torch, name)
    (g,) = torch.autograd.grad((fn(theirs) ** 2).sum(), theirs, create_graph=True)
    (want,) = torch.autograd.grad((g**3).sum(), theirs)
    ours = pf.tensor(data, requires_grad=True)
    (g,) = pf.autograd.grad((getattr(pf, name)(ours) ** 2).sum(), ours, create_graph=True)
    (got,) = pf.autograd.grad((g**3).sum(), ours)
    np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-9)


def test_third_order():
    x = pf.tensor(1.5, dtype=pf.float64, requires_grad=True)
    y = x**4
    for expected in (4 * 1.5**3, 12 * 1.5**2, 24 * 1.5):
        (y,) = pf.autograd.grad(y, x, create_graph=True)
        assert y.item() == pytest.approx(expected, rel=1e-12)


def test_accumulating_and_replacing():
    w = pf.tensor([2.0], requires_grad=True)
    for _ in range(2):
        (w * w).sum().backward()
    assert w.grad.item() == 8
    pf.backward((w * w).sum())
    assert w.grad.item() == 4
    pf.autograd.backward((w * w).sum())
    assert w.grad.item() == 8
    w.zero_grad()
    assert w.grad is None


@pytest.mark.parametrize(
    "run", [pf.Tensor.backward, pf.backward, pf.autograd.backward], ids=["method", "pf", "autograd"]
)
def test_where_nobody_asks_it_is_an_error_and_nothing_moves(run):
    frozen = pf.nn.Linear(2, 1).requires_grad_(False)
    with pytest.raises(RuntimeError, match=r"requires_grad_\(\)"):
        run(frozen(pf.ones([3, 2])).sum())
    assert all(p.grad is None for p in frozen.parameters())


def test_the_loss_comes_with_its_gradients():
    w = pf.tensor([2.0], requires_grad=True)
    loss = (w * w).sum()
    loss.backward()
    pf.eval(w.grad)
    assert loss.is_evaluated()


def test_a_graph_is_released_by_its_backward_pass():
    w = pf.tensor([2.0], requires_grad=True)
    loss = (w.exp() * w).sum()
    loss.backward()
    pf.eval(loss)
    assert loss._value.expr is None
    with pytest.raises(RuntimeError, match="retain_graph"):
        loss.backward()
    pending = (w.exp() * w).sum()  # nothing of it has been computed, so nothing has been given up
    w.grad = None
    pending.backward()
    pending.backward()
    want = 2 * 3 * np.exp(2.0)
    assert w.grad.item() == pytest.approx(want, rel=1e-6)
    with pytest.raises(RuntimeError, match="retain_graph"):
        pending.backward()
    again = (w * w).sum()
    again.backward(retain_graph=True)
    again.eval()
    again.backward()


def test_modes():
    x = pf.ones([2], requires_grad=True)
    with pf.no_grad():
        assert not (x * 2).requires_grad
        with pf.autograd.enable_grad():
            assert (x * 2).requires_grad
    assert (x * 2).requires_grad
    with pf.inference_mode():
        assert not (x * 2).requires_grad
        with pytest.raises(RuntimeError, match="inference_mode"):
            pf.ones([1]).requires_grad_()

    @pf.no_grad()
    def f(v):
        return v * 2

    @pf.no_grad
    def g(v):
        return v * 2

    assert not f(x).requires_grad
    assert not g(x).requires_grad
    with pf.set_grad_enabled(False):
        assert not pf.is_grad_enabled()
    assert pf.autograd.GradMode.is_enabled()


def test_detached_values_pass_nothing_on():
    x = pf.tensor([3.0], requires_grad=True)
    (x.detach() * x + pf.stop_gradient(x * x)).backward()
    assert x.grad.item() == 3
    assert not x.detach().requires_grad


def test_hooks_and_retained_gradients():
    x = pf.tensor([1.0, 2.0], requires_grad=True)
    seen = []
    y = x * 3
    y.retain_grad()
    handle = y.register_hook(lambda g: seen.append(g.tolist()) or g * 10)
    x.register_hook(lambda g: g + 1)
    y.sum().backward()
    assert seen == [[1, 1]]
    assert y.grad.tolist() == [10, 10]
    assert x.grad.tolist() == [31, 31]
    handle.remove()
    x.grad = None
    (x * 3).sum().backward()
    assert x.grad.tolist() == [4, 4]


def test_only_the_inputs_asked_for():
    x, y = pf.ones([1], requires_grad=True), pf.ones([1], requires_grad=True)
    pf.autograd.backward((x * y).sum(), inputs=[y])
    assert x.grad is None
    assert y.grad.item() == 1
    with pytest.raises(RuntimeError, match="not used"):
        pf.autograd.grad((x * 2).sum(), [x, y])
    assert pf.autograd.grad((x * 2).sum(), [x, y], allow_unused=True)[1] is None
    with pytest.raises(RuntimeError, match=r"\[2\]"):
        (pf.ones([2]) * x).backward()


def test_checkpoints_compute_again():
    x = pf.tensor([0.5, 1.0], dtype=pf.float64, requires_grad=True)
    w = pf.tensor([2.0, 3.0], dtype=pf.float64, requires_grad=True)

    def block(v):
        return pf.tanh(v * w).exp(), v + w

    a, b = pf.autograd.checkpoint(block, x)
    (a * b).sum().backward()
    found = x.grad.numpy(), w.grad.numpy()
    x.grad = w.grad = None
    a, b = block(x)
    loss = (a * b).sum()
    loss.backward()
    np.testing.assert_allclose(found[0], x.grad.numpy(), rtol=1e-12)
    np.testing.assert_allclose(found[1], w.grad.numpy(), rtol=1e-12)


def test_an_operator_without_gradient_is_named():
    x = pf.tensor([[1.0, 2.0]], requires_grad=True)
    y = call("MaxRoiPool", x.reshape(1, 1, 1, 2), pf.zeros([1, 5]), pooled_shape=(1, 1))
    with pytest.raises(RuntimeError, match="MaxRoiPool has no gradient"):
        y.sum().backward()


def test_the_operator_that_made_the_first_nan_is_named():
    x = pf.tensor([1.0, -1.0], requires_grad=True)
    with pf.autograd.detect_anomaly():
        y = pf.sqrt(x) * 2
        with pytest.raises(AnomalyError, match=r"Sqrt made the first NaN: 1 of 2[\s\S]*test_autograd"):
            y.eval()
        z = pf.log(x * x)
        assert z.tolist() == [0, 0]


def test_functions_with_their_own_gradient():
    class Odd(pf.extend.AutogradFunction):
        @staticmethod
        def forward(ctx, a, scale, b):
            ctx.save_for_backward(a, b)
            ctx.scale = scale
            return a * scale, b * 2

        @staticmethod
        def backward(ctx, ga, gb):
            a, b = ctx.saved_tensors
            return ga * a * ctx.scale, None, gb * b

    a, b = pf.tensor([2.0], requires_grad=True), pf.tensor([5.0], requires_grad=True)
    x, y = Odd.apply(a, 10.0, b)
    assert (x.item(), y.item()) == (20, 10)
    (x * 3 + y).sum().backward()
    assert (a.grad.item(), b.grad.item()) == (60, 5)
    a.grad = None
    Odd()(a, 10.0, b)[0].sum().backward()
    assert a.grad.item() == 20


def test_a_gradient_of_the_wrong_shape_is_refused():
    class Wrong(pf.extend.AutogradFunction):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, g):
            return g.sum()

    x = pf.ones([3], requires_grad=True)
    with pytest.raises(RuntimeError, match=r"Wrong\.backward"):
        Wrong.apply(x).sum().backward()


def test_compositions_are_opened_once_in_both_directions():
    x = pf.tensor(np.linspace(-2, 2, 9), requires_grad=True)
    y = pf.mish(x)
    loss = y.sum()
    loss.backward()
    operators = [n.op_type for n in pf.get_graph(loss).nodes]
    assert "Mish" not in operators
    assert "Tanh" in operators


def test_in_place_on_a_leaf_is_refused_outside_no_grad():
    x = pf.ones([2], requires_grad=True)
    with pytest.raises(RuntimeError, match="no_grad"):
        x.add_(1)
    with pf.no_grad():
        x.mul_(3)
    assert x.requires_grad
    assert x.is_leaf
    x.data = pf.zeros([2])
    assert x.tolist() == [0, 0]
    assert x.requires_grad


@pytest.mark.parametrize("mark", ["hook", "retain"])
def test_what_was_looked_at_keeps_its_history(mark):
    w = pf.nn.Parameter(pf.ones([2]))
    h = w * 3
    if mark == "hook":
        h.register_hook(lambda g: g * 2)
    else:
        h.retain_grad()
    assert h.tolist() == [3.0, 3.0]
    h.sum().backward()
    assert w.grad.tolist() == ([6.0, 6.0] if mark == "hook" else [3.0, 3.0])
