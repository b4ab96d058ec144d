"""Gradients where a formula would divide by zero, or where a function has a corner: as torch has them."""

import numpy as np
import pytest

import pyflame as pf

torch = pytest.importorskip("torch")
NAN, INF = float("nan"), float("inf")
ZEROS = [[0.0, 0.0, 0.0], [1.0, -2.0, 3.0]]
PAIR = (ZEROS, [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
CORNERS = [-3.0, -1.0, -0.5, 0.0, 0.5, 1.0, 3.0, 6.0, 7.0, NAN]

CASES = {
    "norm": (lambda t, x: x.norm(), [0.0, 0.0]),
    "norm of rows": (lambda t, x: x.norm(dim=1), ZEROS),
    "norm 1": (lambda t, x: t.norm(x, 1, dim=1), ZEROS),
    "norm 3": (lambda t, x: t.norm(x, 3, dim=1), ZEROS),
    "norm 1.5": (lambda t, x: t.norm(x, 1.5, dim=1), ZEROS),
    "norm 0.5": (lambda t, x: t.norm(x, 0.5, dim=1), [[0.0, 0.0], [0.0, 2.0]]),
    "largest": (lambda t, x: t.norm(x, INF, dim=1), ZEROS),
    "vector_norm": (lambda t, x: t.linalg.vector_norm(x, dim=1), ZEROS),
    "matrix_norm": (lambda t, x: t.linalg.matrix_norm(x), PAIR[1]),
    "normalize": (lambda t, x: t.nn.functional.normalize(x, eps=1e-3), ZEROS),
    "cosine": (lambda t, x, y: t.nn.functional.cosine_similarity(x, y, eps=1e-3), *PAIR),
    "std": (lambda t, x: x.std(dim=1), [[2.0, 2.0], [1.0, 3.0]]),
    "std of one": (lambda t, x: t.std(x, dim=1, unbiased=False), [[2.0], [3.0]]),
    "std_mean": (lambda t, x: t.std_mean(x, dim=1)[0], [[2.0, 2.0], [1.0, 3.0]]),
    "dist": (lambda t, x, y: t.dist(x, y), *PAIR),
    "cdist": (lambda t, x, y: t.cdist(x, y), *PAIR),
    "pdist": (lambda t, x: t.pdist(x), PAIR[1]),
    "renorm": (lambda t, x: t.renorm(x, 2, 0, 1.0), ZEROS),
    "atan2": (lambda t, x, y: t.atan2(x, y), [0.0, 0.0, 1.0, -1.0], [0.0, -1.0, 0.0, 2.0]),
    "clamp": (lambda t, x: x.clamp(0, 1), CORNERS),
    "clamp below": (lambda t, x: x.clamp(min=0.5), CORNERS),
    "clamp by tensors": (
        lambda t, x, y: t.clamp(x, min=y),
        CORNERS,
        [0.0, NAN, 1.0, 0.0, 0.5, 2.0, 3.0, 9.0, 7.0, 1.0],
    ),
    "leaky_relu": (lambda t, x: t.nn.functional.leaky_relu(x, 0.1), CORNERS),
    "elu": (lambda t, x: t.nn.functional.elu(x, 0.7), CORNERS[:-1]),
    "celu": (lambda t, x: t.nn.functional.celu(x), CORNERS[:-1]),
    "selu": (lambda t, x: t.nn.functional.selu(x), CORNERS[:-1]),
    "hardtanh": (lambda t, x: t.nn.functional.hardtanh(x), CORNERS),
    "relu6": (lambda t, x: t.nn.functional.relu6(x), CORNERS),
    "hardsigmoid": (lambda t, x: t.nn.functional.hardsigmoid(x), CORNERS[:-1]),
    "hardswish": (lambda t, x: t.nn.functional.hardswish(x), CORNERS[:-1]),
    "threshold": (lambda t, x: t.nn.functional.threshold(x, 0.5, 0.1), CORNERS),
    "sign": (lambda t, x: x.sign(), CORNERS),
    "floor of a square": (lambda t, x: (x * x).floor(), CORNERS[:-1]),
    "round": (lambda t, x: x.round(), CORNERS),
    "entropy at its ends": (
        lambda t, x: t.nn.functional.binary_cross_entropy(x, t.tensor([0.0, 1.0, 1.0, 0.0], dtype=x.dtype)),
        [0.0, 0.0, 1.0, 1.0],
    ),
}


def gradients(t, name, dtype):
    function, *values = CASES[name]
    inputs = [t.tensor(v, dtype=getattr(t, dtype), requires_grad=True) for v in values]
    results = function(t, *inputs)
    (results * t.linspace(0.5, 2.0, results.numel(), dtype=results.dtype).reshape(results.shape)).sum().backward()
    return [x.grad.numpy() for x in inputs]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", CASES)
def test_slopes_at_kinks(name, dtype):
    for ours, theirs in zip(gradients(pf, name, dtype), gradients(torch, name, dtype), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["bool", "float"])
def test_queries_that_may_see_nothing(kind):
    def run(t):
        t.manual_seed(0)
        q, k, v = (
            t.tensor(np.random.default_rng(i).normal(size=(2, 3, 4)), dtype=t.float32, requires_grad=True)
            for i in range(3)
        )
        may = t.tensor([[True, False, True], [False, False, False], [True, True, True]])
        mask = may if kind == "bool" else t.where(may, t.tensor(0.5), t.tensor(-INF))
        out = t.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        (out * out).sum().backward()
        return [x.detach().numpy() for x in (out, q.grad, k.grad, v.grad)]

    for ours, theirs in zip(run(pf), run(torch), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_second_gradients_of_lengths_stay_finite():
    x = pf.tensor([[0.0, 0.0], [3.0, 4.0]], requires_grad=True)
    (first,) = pf.autograd.grad(x.norm(dim=1).sum(), x, create_graph=True)
    (first * first).sum().backward()
    assert np.isfinite(x.grad.numpy()).all()


def test_steps_without_a_slope_move_nothing_but_are_there():
    x = pf.tensor([0.3, 1.7], requires_grad=True)
    hidden = x * 2
    hidden.retain_grad()
    hidden.floor().sum().backward()
    assert x.grad.tolist() == [0.0, 0.0]
    assert hidden.grad.tolist() == [0.0, 0.0]


def test_a_path_without_a_slope_does_not_hide_another():
    x = pf.tensor([0.3, 1.7], requires_grad=True)
    (x.floor() + 3 * x).sum().backward()
    assert x.grad.tolist() == [3.0, 3.0]


IN_PLACE = {
    "ReLU": {},
    "ReLU6": {},
    "Hardtanh": {},
    "Hardswish": {},
    "Hardsigmoid": {},
    "ELU": {},
    "SELU": {},
    "CELU": {},
    "SiLU": {},
    "Mish": {},
    "LeakyReLU": {},
    "RReLU": {},
    "Threshold": {"threshold": 0.1, "value": 0.2},
    "Dropout": {"p": 0.0},
}


@pytest.mark.parametrize("name", IN_PLACE)
@pytest.mark.parametrize("functional", [False, True])
def test_activations_in_place_have_their_gradients(name, functional):
    def run(t):
        x = t.tensor([[0.5, -1.0, 4.0], [2.0, 1.0, -0.3]], requires_grad=True)
        hidden = x * t.tensor([1.0, -2.0, 3.0])
        settings = IN_PLACE[name] if name != "Dropout" else {"p": 0.5, "training": False}
        if functional:
            shortened = {"LeakyReLU": "leaky_relu"}.get(name, name.lower())
            result = getattr(t.nn.functional, shortened)(hidden, **settings, inplace=True)
        else:
            result = getattr(t.nn, name)(**IN_PLACE[name], inplace=True).eval()(hidden)
        (hidden * result).sum().backward()
        return result.detach().numpy(), hidden.detach().numpy(), x.grad.numpy()

    for ours, theirs in zip(run(pf), run(torch), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_hooks_that_look_at_gradients_leave_the_others_as_they_are():
    def run(t):
        x = t.tensor([[0.5, -0.3, 0.2, 0.9]], requires_grad=True)
        head, seen = t.nn.Linear(2, 1), []
        with t.no_grad():
            head.weight.fill_(0.7)
            head.bias.zero_()
        head.register_full_backward_hook(lambda module, given, got: seen.append(given[0].sum().item()))
        hidden = t.tanh(x * 1.0)
        hidden.register_hook(lambda g: g.clamp(-0.2, 0.2))
        (head(hidden[:, :2]).pow(2).mean() + t.tanh(hidden[:, 2:]).mean()).backward()
        return x.grad.numpy(), head.weight.grad.numpy(), np.array(seen)

    for ours, theirs in zip(run(pf), run(torch), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
