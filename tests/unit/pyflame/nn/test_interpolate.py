"""Interpolation to every size, one pixel among them, as torch does it."""

import numpy as np
import pytest
import torch

import pyflame as pf


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("size", [(1, 1), (1, 3), (2, 1), (7, 9)])
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_sizes(mode, size, align_corners):
    x = np.random.default_rng(4).standard_normal((1, 2, 5, 4)).astype(np.float32)
    settings = {"size": size, "mode": mode, "align_corners": align_corners}
    got = pf.nn.functional.interpolate(pf.tensor(x), **settings)
    want = torch.nn.functional.interpolate(torch.tensor(x), **settings)
    np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("size", [1, 2, 5])
def test_a_line(size):
    x = np.arange(5, dtype=np.float32).reshape(1, 1, 5) ** 2
    got = pf.nn.functional.interpolate(pf.tensor(x), size=size, mode="linear")
    want = torch.nn.functional.interpolate(torch.tensor(x), size=size, mode="linear")
    np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-5)
