"""What must not pass silently: lossy changes in place, wrong numbers of gradients, NaN in anomaly mode."""

import numpy as np
import pytest

import pyflame as pf


def test_whole_numbers_take_no_fractions_in_place():
    counts = pf.zeros([2], dtype=pf.int32)
    with pytest.raises(TypeError, match="int32"):
        counts.add_(1.5)
    with pytest.raises(TypeError, match="bool"):
        pf.tensor([True]).add_(2)
    assert counts.add_(2).tolist() == [2, 2]
    assert counts.copy_(pf.tensor([1.5, 2.5])).tolist() == [1, 2]


@pytest.mark.timeout(20)
@pytest.mark.parametrize("wrong", ["a", "ab", b"a", ["a"], 2.5, None], ids=repr)
def test_sizes_are_whole_numbers(wrong):
    """A text of one letter is a sequence of itself."""
    for function in (pf.zeros, pf.ones(3).reshape, pf.ones(3).repeat, pf.randn, pf.ones(1).expand):
        with pytest.raises(TypeError, match="size is an int"):
            function(wrong)


def test_sizes_that_hold_themselves_end():
    itself = []
    itself.append(itself)
    with pytest.raises(TypeError, match="size is an int"):
        pf.zeros(itself)


@pytest.mark.parametrize(
    ("repeats", "output_size", "text"),
    [
        ([1, 2, 3], None, "takes one number of repeats or 2, got"),
        (-1, None, "must not be negative, got -1"),
        ([1, -1], None, "must not be negative, got -1"),
        (2, 5, "output_size is 5, the repeats make 4"),
        (1.5, None, "whole numbers, got float32"),
    ],
)
def test_repeats_are_counted(repeats, output_size, text):
    with pytest.raises((ValueError, TypeError, RuntimeError), match=text):
        pf.repeat_interleave(pf.tensor([1, 2]), repeats, output_size=output_size)


def test_too_many_gradients_are_refused():
    class Twice(pf.extend.AutogradFunction):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad, grad

    with pytest.raises(RuntimeError, match="2 gradients for 1"):
        Twice.apply(pf.ones([2]).requires_grad_()).sum().backward()


def test_anomalies_are_found_by_backward():
    x = pf.tensor([-1.0]).requires_grad_()
    with pf.autograd.detect_anomaly(), pytest.raises(RuntimeError, match="Sqrt"):
        pf.sqrt(x).sum().backward()


def test_functions_of_numpy_take_tensors():
    t = pf.tensor([[1.0, 2.0], [3.0, 5.0]])
    assert np.mean(t) == np.float32(2.75)
    np.testing.assert_array_equal(np.max(t, axis=0), [3, 5])
    assert np.concatenate([t, t]).shape == (4, 2)
    assert np.stack([t, np.ones((2, 2))]).shape == (2, 2, 2)


def test_bfloat16_comes_from_torch():
    torch = pytest.importorskip("torch")
    assert pf.from_dlpack(torch.ones(2, dtype=torch.bfloat16)).dtype == pf.bfloat16


def test_bfloat16_goes_to_torch():
    torch = pytest.importorskip("torch")
    x = pf.tensor([[1.5, -2.0, float("inf")]], dtype=pf.bfloat16)
    got = torch.from_dlpack(x)
    assert got.dtype is torch.bfloat16
    assert got.tolist() == x.tolist()
    assert torch.utils.dlpack.from_dlpack(x.__dlpack__()).tolist() == x.tolist()  # the capsule without a version
    assert torch.from_dlpack(x.t()).tolist() == x.t().tolist()
    del x
    assert got.tolist() == [[1.5, -2.0, float("inf")]]  # the memory lives on
    assert torch.from_dlpack(pf.zeros([0], dtype=pf.bfloat16)).shape == (0,)
    assert pf.from_dlpack(torch.from_dlpack(pf.ones([2], dtype=pf.bfloat16))).dtype is pf.bfloat16
