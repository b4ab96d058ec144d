"""Gamma distributions and theirs, and transformed ones: densities, gradients, moments, draws, against torch."""

import numpy as np
import pytest

import pyflame as pf
from tests.programs.same import numbers

torch = pytest.importorskip("torch")


def positive(*shape, seed=0):
    return np.abs(numbers(*shape, seed=seed)) + 0.3


def shares(*shape):
    x = positive(*shape, seed=5)
    return x / x.sum(-1, keepdims=True) if len(shape) > 1 else x / (x + 1)


CASES = {
    "Gamma": ([(4,), (4,)], positive(4, seed=7)),
    "Beta": ([(4,), (4,)], shares(4)),
    "Dirichlet": ([(3, 4)], shares(3, 4)),
    "Chi2": ([(4,)], positive(4, seed=7)),
    "StudentT": ([(4,), (4,), (4,)], numbers(4, seed=7)),
}


def made(lib, name, grad=False):
    shapes, _ = CASES[name]
    parameters = [lib.tensor(positive(*s, seed=i), requires_grad=grad) for i, s in enumerate(shapes)]
    return getattr(lib.distributions, name)(*parameters), parameters


@pytest.mark.parametrize("name", sorted(CASES))
def test_densities_and_their_gradients(name):
    found = []
    for lib in (torch, pf):
        distribution, parameters = made(lib, name, grad=True)
        value = lib.tensor(CASES[name][1], requires_grad=True)
        log_prob = distribution.log_prob(value)
        log_prob.sum().backward()
        found.append([log_prob.detach().numpy(), value.grad.numpy(), *(p.grad.numpy() for p in parameters)])
    for wanted, ours in zip(*found, strict=True):
        np.testing.assert_allclose(ours, wanted, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", sorted(CASES))
def test_moments_shapes_and_entropies(name):
    theirs, ours = made(torch, name)[0], made(pf, name)[0]
    assert tuple(ours.batch_shape) == tuple(theirs.batch_shape)
    assert tuple(ours.event_shape) == tuple(theirs.event_shape)
    np.testing.assert_allclose(ours.mean.numpy(), theirs.mean.numpy(), rtol=1e-5)
    np.testing.assert_allclose(ours.variance.numpy(), theirs.variance.numpy(), rtol=1e-5)
    if name != "StudentT":
        np.testing.assert_allclose(ours.entropy().numpy(), theirs.entropy().numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["Gamma", "Beta", "Dirichlet", "Chi2"])
def test_draws_have_the_moments(name):
    pf.manual_seed(0)
    distribution = made(pf, name)[0]
    drawn = distribution.sample((20_000,))
    assert not drawn.requires_grad
    error = np.sqrt(distribution.variance.numpy() / 20_000)
    assert (np.abs(drawn.numpy().mean(0) - distribution.mean.numpy()) < 5 * error).all()
    np.testing.assert_allclose(drawn.numpy().var(0), distribution.variance.numpy(), rtol=0.2)
    with pytest.raises(NotImplementedError, match="use sample"):
        distribution.rsample()


def test_students_draws_have_its_quartiles():
    pf.manual_seed(0)
    drawn = pf.distributions.StudentT(3.0, 1.0, 2.0).sample((20_000,)).numpy()
    np.testing.assert_allclose(np.quantile(drawn, [0.25, 0.5, 0.75]), 1 + 2 * np.array([-0.7649, 0, 0.7649]), atol=0.08)


@pytest.mark.parametrize("name", ["Gamma", "Beta", "Dirichlet"])
def test_divergences(name):
    found = []
    for lib in (torch, pf):
        shapes, kind = CASES[name][0], getattr(lib.distributions, name)
        p, q = (kind(*[lib.tensor(positive(*s, seed=i + at)) for i, s in enumerate(shapes)]) for at in (0, 9))
        found.append(lib.distributions.kl_divergence(p, q).numpy())
    np.testing.assert_allclose(found[1], found[0], rtol=1e-4, atol=1e-5)


def transforms(lib):
    d = lib.distributions.transforms
    return {
        "affine": d.AffineTransform(0.5, -2.0),
        "affine tensor": d.AffineTransform(lib.tensor(0.5), lib.tensor([1.0, -2.0, 3.0]), event_dim=1),
        "exp": d.ExpTransform(),
        "sigmoid": d.SigmoidTransform(),
        "tanh": d.TanhTransform(cache_size=1),
        "composed": d.ComposeTransform([d.AffineTransform(0.1, 0.7), d.TanhTransform(), d.AffineTransform(1.0, 2.0)]),
        "list": [d.SigmoidTransform(), d.AffineTransform(-1.0, 2.0)],
        "inverse": d.ExpTransform().inv,
    }


@pytest.mark.parametrize("name", sorted(transforms(pf)))
@pytest.mark.parametrize("independent", [False, True])
def test_transformed_distributions(name, independent):
    found = []
    for lib in (torch, pf):
        d = lib.distributions
        loc = lib.tensor(numbers(2, 3), requires_grad=True)
        base = d.Uniform(loc.abs() + 0.1, loc.abs() + 9.0) if name == "inverse" else d.Normal(loc, lib.tensor(0.7))
        if independent:
            base = d.Independent(base, 1)
        made = d.TransformedDistribution(base, transforms(lib)[name])
        drawn = loc.detach().abs() + 0.4
        for transform in made.transforms:
            drawn = transform(drawn)
        log_prob = made.log_prob(drawn)
        log_prob.sum().backward()
        sample = made.rsample((5,))
        assert sample.requires_grad
        found.append([log_prob.detach().numpy(), loc.grad.numpy(), np.array(tuple(made.batch_shape)),
                      np.array(tuple(made.event_shape)), np.array(sample.shape)])  # fmt: skip
    for wanted, ours in zip(*found, strict=True):
        np.testing.assert_allclose(ours, wanted, rtol=1e-4, atol=1e-4)


def test_a_cached_draw_is_undone_exactly():
    for cache_size, finite in ((0, False), (1, True)):
        tanh = pf.distributions.TanhTransform(cache_size=cache_size)
        policy = pf.distributions.TransformedDistribution(pf.distributions.Normal(20.0, 1.0), [tanh])
        assert bool(np.isfinite(policy.log_prob(policy.rsample()).item())) == finite


def test_what_is_wrong_is_refused():
    d = pf.distributions
    with pytest.raises(ValueError, match="concentration is above 0"):
        d.Gamma(pf.tensor(-1.0), 1.0)
    with pytest.raises(ValueError, match="from 0 to 1"):
        d.Beta(1.0, 1.0).log_prob(pf.tensor(1.5))
    with pytest.raises(ValueError, match="list of them"):
        d.TransformedDistribution(d.Normal(0.0, 1.0), [pf.tanh])
    with pytest.raises(ValueError, match="cache_size"):
        d.TanhTransform(cache_size=2)
