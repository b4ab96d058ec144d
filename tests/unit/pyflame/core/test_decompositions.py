"""Decompositions of matrices multiply to what was given; gradients are torch's and those of differences."""

import numpy as np
import pytest

import pyflame as pf

torch = pytest.importorskip("torch")


def matrix(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def definite(size, seed=0):
    half = matrix(size, size, seed=seed)
    return half @ half.T + size * np.eye(size)


def spread(*shape):
    """Matrices whose singular values lie apart."""
    U, _, Vh = np.linalg.svd(matrix(*shape), full_matrices=False)
    return U * np.arange(1.0, U.shape[-1] + 1) @ Vh


# Functions of matrices that do not change with the signs of vectors.
CASES = {
    "cholesky": (lambda t, a: t.linalg.cholesky(0.5 * (a + a.mT)).sin(), definite(4)),
    "cholesky upper": (lambda t, a: t.linalg.cholesky(0.5 * (a + a.mT), upper=True).sin(), definite(3)),
    "cholesky_solve": (
        lambda t, a: t.cholesky_solve(a, t.linalg.cholesky(a @ a.mT + 3 * t.eye(3, dtype=a.dtype))),
        matrix(3, 3),
    ),
    "qr tall": (lambda t, a: t.linalg.qr(a).Q.sin(), matrix(5, 3)),
    "r tall": (lambda t, a: t.linalg.qr(a).R.cos(), matrix(2, 4, 3)),
    "qr wide": (lambda t, a: t.linalg.qr(a).R.cos(), matrix(3, 5)),
    "eigenvalues": (lambda t, a: t.linalg.eigh(a + a.mT).eigenvalues.sin(), matrix(4, 4)),
    "eigenvectors": (lambda t, a: t.linalg.eigh(a + a.mT).eigenvectors ** 2, matrix(4, 4)),
    "eigen upper": (lambda t, a: t.linalg.eigvalsh(a + a.mT, "U").cos(), matrix(3, 3)),
    "singular values": (lambda t, a: t.linalg.svdvals(a).sin(), spread(4, 3)),
    "left vectors": (lambda t, a: t.linalg.svd(a, full_matrices=False).U ** 2, spread(5, 3)),
    "right vectors": (lambda t, a: t.linalg.svd(a, full_matrices=False).Vh ** 2, spread(3, 5)),
    "both vectors": (
        lambda t, a: t.linalg.svd(a, full_matrices=False).U ** 2 @ t.linalg.svd(a, full_matrices=False).Vh ** 2,
        spread(4, 4),
    ),
    "low rank": (
        lambda t, a: (lambda f: f.U[:, :2] * f.S[:2] @ f.Vh[:2])(t.linalg.svd(a, full_matrices=False)),
        spread(4, 3),
    ),
    "nuclear norm": (lambda t, a: t.linalg.matrix_norm(a, "nuc"), spread(4, 3)),
    "spectral norm": (lambda t, a: t.linalg.matrix_norm(a, 2), spread(3, 4)),
    "pinv tall": (lambda t, a: t.linalg.pinv(a), matrix(5, 3)),
    "pinv wide": (lambda t, a: t.linalg.pinv(a), matrix(2, 3, 5)),
    "solve": (lambda t, a: t.linalg.solve(a, a[:, :2].exp()), definite(4)),
    "solve right": (lambda t, a: t.linalg.solve(a, a[:2].exp(), left=False), definite(4)),
    "solve vector": (lambda t, a: t.linalg.solve(a, a[0]), definite(3)),
    "triangular": (lambda t, a: t.linalg.solve_triangular(a, a, upper=True), definite(3)),
    "unit triangular": (lambda t, a: t.linalg.solve_triangular(a, a, upper=False, unitriangular=True), matrix(3, 3)),
    "lstsq": (lambda t, a: t.linalg.lstsq(a[:, :3], a[:, 3:]).solution, matrix(6, 5)),
    "inv": (lambda t, a: t.linalg.inv(a), definite(3)),
    "det": (lambda t, a: t.linalg.det(a), matrix(2, 3, 3)),
    "slogdet": (lambda t, a: t.linalg.slogdet(a).logabsdet, matrix(2, 3, 3)),
    "logdet": (lambda t, a: t.logdet(a), definite(3)),
    "cond": (lambda t, a: t.linalg.cond(a), spread(3, 3)),
}


def value_and_gradient(t, name):
    function, array = CASES[name]
    x = t.tensor(array, requires_grad=True)
    y = function(t, x)
    (y * t.linspace(0.3, 1.7, y.numel(), dtype=y.dtype).reshape(y.shape)).sum().backward()
    return y.detach().numpy(), x.grad.numpy()


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_are_those_of_torch(name):
    for ours, theirs in zip(value_and_gradient(pf, name), value_and_gradient(torch, name), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("name", ["qr tall", "left vectors", "right vectors", "eigenvectors", "cholesky", "pinv tall"])
def test_gradients_are_those_of_differences(name):
    function, array = CASES[name]
    rng = np.random.default_rng(3)
    along = rng.normal(size=array.shape)
    weights = rng.normal(size=tuple(function(pf, pf.tensor(array)).shape))

    def total(step):
        return float((function(pf, pf.tensor(array + step * along)).numpy() * weights).sum())

    x = pf.tensor(array, requires_grad=True)
    (function(pf, x) * pf.tensor(weights)).sum().backward()
    slope = (total(1e-6) - total(-1e-6)) / 2e-6
    assert float((x.grad.numpy() * along).sum()) == pytest.approx(slope, rel=1e-5, abs=1e-7)


def test_factors_multiply_to_the_matrix():
    a = pf.tensor(matrix(2, 5, 3))
    U, S, Vh = pf.linalg.svd(a, full_matrices=False)
    np.testing.assert_allclose((U * S.unsqueeze(-2) @ Vh).numpy(), a.numpy(), atol=1e-12)
    full = pf.linalg.svd(a)
    assert [list(f.shape) for f in full] == [[2, 5, 5], [2, 3], [2, 3, 3]]
    Q, R = pf.linalg.qr(a)
    np.testing.assert_allclose((Q @ R).numpy(), a.numpy(), atol=1e-12)
    L, V = pf.linalg.eigh(a.mT @ a)
    np.testing.assert_allclose((V * L.unsqueeze(-2) @ V.mT).numpy(), (a.mT @ a).numpy(), atol=1e-12)


def test_ranks_and_what_is_left_over():
    a = matrix(5, 3)
    a[:, 2] = a[:, 0] + a[:, 1]
    assert pf.linalg.matrix_rank(pf.tensor(a)).item() == 2
    b = matrix(6, 2, seed=1)
    ours = pf.linalg.lstsq(pf.tensor(matrix(6, 3)), pf.tensor(b), driver="gelsd")
    theirs = torch.linalg.lstsq(torch.tensor(matrix(6, 3)), torch.tensor(b), driver="gelsd")
    for mine, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(mine.numpy(), other.numpy(), rtol=1e-9)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: pf.linalg.cholesky(pf.tensor([[1.0, 2.0], [2.0, 1.0]])).numpy(), RuntimeError),
        (lambda: pf.linalg.solve(pf.zeros(2, 2), pf.ones(2, 2)).numpy(), RuntimeError),
        (lambda: pf.linalg.inv(pf.ones(2, 3)), RuntimeError),
        (lambda: pf.linalg.svd(pf.ones(2, 2, dtype=pf.int64)), TypeError),
        (lambda: pf.linalg.svd(pf.ones(2, 2, dtype=pf.float16)), TypeError),
        (lambda: pf.linalg.qr(pf.ones(2, 2), mode="all"), ValueError),
        (lambda: pf.linalg.svdd, AttributeError),
    ],
    ids=["indefinite", "singular", "not square", "integers", "half", "mode", "name"],
)
def test_what_cannot_be_is_refused(call, error):
    with pytest.raises(error):
        call()


def test_compiled():
    function = pf.compile(lambda a: pf.linalg.svdvals(a).sum() + pf.linalg.slogdet(a @ a.mT).logabsdet)
    for seed in range(3):
        a = matrix(3, 4, seed=seed)
        expected = np.linalg.svd(a, compute_uv=False).sum() + np.linalg.slogdet(a @ a.T)[1]
        assert function(pf.tensor(a)).item() == pytest.approx(expected, rel=1e-9)
