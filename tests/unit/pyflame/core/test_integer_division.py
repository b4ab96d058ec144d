"""Division that rounds down, at the ends of the range, by zero, and as shifts."""

import numpy as np
import pytest

import pyflame as pf


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "uint8"])
def test_whole_range(dtype):
    ends = np.iinfo(dtype)
    a = np.array([ends.min, ends.min, ends.min + 1, ends.max, ends.max, -7 % 256 if dtype == "uint8" else -7], dtype)
    b = np.array([10, ends.max, 3, 7, ends.max, 2], dtype)
    np.testing.assert_array_equal((pf.from_numpy(a) // pf.from_numpy(b)).numpy(), a // b)
    np.testing.assert_array_equal((pf.from_numpy(a) >> 2).numpy(), a >> 2)
    np.testing.assert_array_equal((pf.from_numpy(b) << 1).numpy(), b << 1)


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "uint8"])
def test_shifts_by_any_number_are_torchs(dtype):
    torch = pytest.importorskip("torch")
    ends = np.iinfo(dtype)
    a = np.array([ends.min, ends.min + 1, 0, 1, 5, 77, ends.max - 1, ends.max], dtype)
    fewer = [-1] if ends.min else []
    for steps in (0, 1, ends.bits // 2, ends.bits - 2, ends.bits - 1, ends.bits, ends.bits + 3, *fewer):
        b = np.full_like(a, steps)
        ours, theirs = (pf.from_numpy(a), pf.from_numpy(b)), (torch.from_numpy(a), torch.from_numpy(b))
        np.testing.assert_array_equal((ours[0] >> ours[1]).numpy(), (theirs[0] >> theirs[1]).numpy())
        np.testing.assert_array_equal((ours[0] << ours[1]).numpy(), (theirs[0] << theirs[1]).numpy())


def test_division_by_zero_is_infinite():
    a = np.array([1.0, -1.0, 0.0, np.nan, 7.5])
    b = np.array([0.0, 0.0, 0.0, 0.0, -2.0])
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal((pf.from_numpy(a) // pf.from_numpy(b)).numpy(), a // b)


def test_bits_of_floats_are_not_shifted():
    with pytest.raises(TypeError, match="shifted"):
        pf.ones([2]) << 1
