"""Tensors and NumPy in one expression."""

import numpy as np
import pytest

import pyflame as pf

torch = pytest.importorskip("torch")

X = np.array([[0.5, 2.0, 3.0], [1.0, 4.0, 0.25]], np.float32)


@pytest.mark.parametrize(
    "function",
    [np.exp, np.sqrt, np.tanh, np.absolute, np.negative, np.floor, np.log1p, np.square],
    ids=lambda f: f.__name__,
)
def test_functions_of_numpy_stay_lazy(function):
    made = function(pf.from_numpy(X))
    assert pf.is_lazy(made)
    np.testing.assert_allclose(made.numpy(), function(X), rtol=1e-6)


@pytest.mark.parametrize(
    "operator",
    [np.add, np.subtract, np.multiply, np.true_divide, np.power, np.maximum, np.greater, np.equal],
    ids=lambda f: f.__name__,
)
def test_arrays_on_the_left(operator):
    made = operator(X, pf.from_numpy(X[:1]))
    assert isinstance(made, pf.Tensor)
    np.testing.assert_allclose(made.numpy(), operator(X, X[:1]), rtol=1e-6)


def test_operators_between_arrays_and_tensors():
    t = pf.from_numpy(X)
    for made in (X + t, X * t, X.T @ t, np.float32(2) - t):
        assert isinstance(made, pf.Tensor)
    np.testing.assert_allclose((X.T @ t).numpy(), X.T @ X, rtol=1e-6)
    assert (np.float32(2) - t).dtype == pf.float32


def test_gradients_flow_through_numpys_functions():
    t = pf.from_numpy(X).requires_grad_()
    np.exp(t).sum().backward()
    np.testing.assert_allclose(t.grad.numpy(), np.exp(X), rtol=1e-6)


def test_other_methods_give_arrays():
    t = pf.from_numpy(X)
    np.testing.assert_array_equal(np.add.reduce(t), X.sum(0))
    np.testing.assert_array_equal(np.spacing(t), np.spacing(X))
    out = np.zeros_like(X)
    assert np.add(t, t, out=out) is out
    np.testing.assert_array_equal(out, X + X)


def test_tensors_are_no_place_to_write_to():
    with pytest.raises(TypeError, match="leave out= away"):
        np.add(X, X, out=pf.from_numpy(X))


@pytest.mark.parametrize("data", [[1 + 2j], np.array([1j]), np.complex64(1)], ids=["list", "array", "scalar"])
def test_complex_numbers(data):
    assert pf.tensor(data).dtype.name == str(torch.tensor(data).dtype).removeprefix("torch.")
    np.testing.assert_array_equal(pf.tensor(data).numpy(), np.asarray(data))
    with pytest.raises(TypeError, match=r"clongdouble|complex256"):
        pf.tensor(np.array([1j], np.clongdouble))
