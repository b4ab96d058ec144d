"""Normal vectors and mixtures: densities, gradients, moments, divergences and draws, against torch."""

import numpy as np
import pytest

import pyflame as pf
from tests.programs.same import numbers

torch = pytest.importorskip("torch")


def covariance(*batch, size=3, seed=0):
    a = numbers(*batch, size, size, seed=seed).astype(np.float64)
    return a @ a.swapaxes(-1, -2) + 0.5 * np.eye(size)


MEAN, VALUE = (numbers(2, 3, seed=s).astype(np.float64) for s in (1, 2))
MATRICES = {
    "covariance_matrix": covariance(2),
    "precision_matrix": covariance(2, seed=4),
    "scale_tril": np.linalg.cholesky(covariance(2, seed=5)),
}


def components(lib, parameters):
    return lib.distributions.Normal(parameters[1], parameters[2].exp())


def vectors(lib, parameters):
    return lib.distributions.Independent(lib.distributions.Normal(parameters[1], parameters[2].exp()), 1)


MIXTURES = {"numbers": (components, (4, 5), (4,)), "vectors": (vectors, (4, 5, 2), (4, 2))}


def mixture(lib, name):
    make, shape, _ = MIXTURES[name]
    arrays = [numbers(4, 5, seed=3), numbers(*shape, seed=1), numbers(*shape, seed=2)]
    parameters = [lib.tensor(a.astype(np.float64), requires_grad=True) for a in arrays]
    choice = lib.distributions.Categorical(logits=parameters[0])
    return lib.distributions.MixtureSameFamily(choice, make(lib, parameters)), parameters


def same(run, tolerance=1e-9):
    theirs, ours = ([np.asarray(t.detach()) for t in run(lib)] for lib in (torch, pf))
    for wanted, found in zip(theirs, ours, strict=True):
        assert found.shape == wanted.shape
        np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("shared", [False, True], ids=["a batch", "one mean"])
@pytest.mark.parametrize("kind", MATRICES)
def test_normal_vectors(kind, shared):
    def run(lib):
        mean = lib.tensor(MEAN[0] if shared else MEAN, requires_grad=True)
        matrix, value = (lib.tensor(a, requires_grad=True) for a in (MATRICES[kind], VALUE))
        d = lib.distributions.MultivariateNormal(mean, **{kind: matrix})
        log_prob, entropy = d.log_prob(value), d.entropy()
        (log_prob.sum() + entropy.sum()).backward()
        # A gradient of a symmetric matrix may stand on either side of its diagonal.
        slope = lib.tril(matrix.grad) if kind == "scale_tril" else matrix.grad + matrix.grad.mT
        moments = [d.mean, d.variance, d.covariance_matrix, d.precision_matrix, d.scale_tril]
        return [log_prob, entropy, mean.grad, value.grad, slope, *moments, d.expand((5, 2)).log_prob(value)]

    same(run)


def test_divergence_of_normal_vectors():
    def run(lib):
        kind = lib.distributions.MultivariateNormal
        p = kind(lib.tensor(MEAN), scale_tril=lib.tensor(MATRICES["scale_tril"]))
        q = kind(lib.tensor(VALUE), lib.tensor(MATRICES["covariance_matrix"]))
        return [lib.distributions.kl_divergence(p, q), lib.distributions.kl_divergence(q, p)]

    same(run)


def test_draws_of_normal_vectors_have_the_moments_and_pass_gradients():
    pf.manual_seed(0)
    mean, factor = (pf.tensor(a, requires_grad=True) for a in (MEAN[0], MATRICES["scale_tril"][0]))
    d = pf.distributions.MultivariateNormal(mean, scale_tril=factor)
    drawn = d.rsample((20_000,))
    drawn.sum().backward()
    assert mean.grad.tolist() == [20_000.0] * 3
    assert factor.grad.abs().sum() > 0
    values = drawn.detach().numpy()
    np.testing.assert_allclose(values.mean(0), MEAN[0], atol=0.1)
    np.testing.assert_allclose(np.cov(values.T), d.covariance_matrix.detach().numpy(), rtol=0.1, atol=0.15)
    assert not d.sample((2,)).requires_grad


@pytest.mark.parametrize("wrong", [{}, {"covariance_matrix": pf.eye(3), "scale_tril": pf.eye(3)}])
def test_one_matrix_is_taken(wrong):
    with pytest.raises(ValueError, match="give one of covariance_matrix"):
        pf.distributions.MultivariateNormal(pf.zeros(3), **wrong)


def test_matrices_of_other_sizes_and_no_factor_are_refused():
    with pytest.raises(ValueError, match="have no covariances"):
        pf.distributions.MultivariateNormal(pf.zeros(3), pf.eye(2))
    with pytest.raises(ValueError, match="above 0"):
        pf.distributions.MultivariateNormal(pf.zeros(2), scale_tril=pf.tensor([[1.0, 0.0], [0.0, -1.0]]))


@pytest.mark.parametrize("name", MIXTURES)
def test_mixtures(name):
    def run(lib):
        d, parameters = mixture(lib, name)
        value = lib.tensor(numbers(*MIXTURES[name][2], seed=9).astype(np.float64), requires_grad=True)
        log_prob = d.log_prob(value)
        log_prob.sum().backward()
        shares = [d.cdf(value)] if name == "numbers" else []
        return [log_prob, value.grad, *(p.grad for p in parameters), d.mean, d.variance, *shares]

    same(run)


@pytest.mark.parametrize("name", MIXTURES)
def test_draws_of_mixtures_have_the_moments(name):
    pf.manual_seed(0)
    d, _ = mixture(pf, name)
    drawn = d.sample((20_000,)).numpy()
    assert drawn.shape == (20_000, *d.batch_shape, *d.event_shape)
    deviation = np.sqrt(d.variance.detach().numpy() / 20_000)
    assert (np.abs(drawn.mean(0) - d.mean.detach().numpy()) < 5 * deviation).all()
    np.testing.assert_allclose(drawn.var(0), d.variance.detach().numpy(), rtol=0.2)


def test_a_mixture_of_another_count_is_refused():
    with pytest.raises(ValueError, match="no components"):
        pf.distributions.MixtureSameFamily(
            pf.distributions.Categorical(pf.ones(3)), pf.distributions.Normal(pf.zeros(2), 1.0)
        )
    with pytest.raises(ValueError, match="is a Categorical"):
        pf.distributions.MixtureSameFamily(
            pf.distributions.Normal(pf.zeros(3), 1.0), pf.distributions.Normal(pf.zeros(3), 1.0)
        )
