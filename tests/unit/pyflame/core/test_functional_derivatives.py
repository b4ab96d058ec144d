"""Jacobians, Hessians and their products, against torch."""

import pytest
import torch

import pyflame as pf
from pyflame.autograd import functional


def _twin(values):
    return pf.tensor(values, dtype=pf.float64), torch.tensor(values, dtype=torch.float64)


def _same(ours, theirs):
    if isinstance(theirs, torch.Tensor):
        torch.testing.assert_close(torch.from_numpy(ours.numpy()), theirs)
        return
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        _same(a, b)


def _one(x):
    return x.sin() * x.sum()


def _two(x, y):
    return (x * y).sum(), x.exp()


@pytest.mark.parametrize("name", ["jacobian", "vjp", "jvp"])
def test_one_input(name):
    a, b = _twin([0.3, -1.2, 2.0])
    v = () if name == "jacobian" else _twin([1.0, 0.5, -2.0])
    ours = getattr(functional, name)(_one, a, *v[:1])
    _same(ours, getattr(torch.autograd.functional, name)(_one, b, *v[1:]))


def test_several_inputs_and_outputs():
    (a, b), (c, d) = _twin([0.3, -1.2]), _twin([2.0, 4.0])
    _same(functional.jacobian(_two, (a, c)), torch.autograd.functional.jacobian(_two, (b, d)))
    seeds = _twin(1.5), _twin([1.0, 2.0])
    ours = functional.vjp(_two, (a, c), tuple(s[0] for s in seeds))
    _same(ours, torch.autograd.functional.vjp(_two, (b, d), tuple(s[1] for s in seeds)))


def test_second_derivatives():
    a, b = _twin([0.3, -1.2, 2.0])
    _same(
        functional.hessian(lambda x: (x.sin() * x**2).sum(), a),
        torch.autograd.functional.hessian(lambda x: (x.sin() * x**2).sum(), b),
    )
    with pytest.raises(RuntimeError, match="one number"):
        functional.hessian(lambda x: x, a)


def test_what_does_not_depend_is_zero():
    a, b = pf.tensor([1.0, 2.0]), pf.tensor([3.0])
    found = functional.jacobian(lambda x, y: x * 2, (a, b))
    assert found[1].tolist() == [[0.0], [0.0]]


def test_wrong_arguments():
    with pytest.raises(TypeError, match="tensor or a tuple"):
        functional.jacobian(_one, 3.0)
    with pytest.raises(TypeError, match="must return"):
        functional.jacobian(lambda x: 3, pf.ones(2))
    with pytest.raises(RuntimeError, match="v is needed"):
        functional.vjp(_one, pf.ones(2))
