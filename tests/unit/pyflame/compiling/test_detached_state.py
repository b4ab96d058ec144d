"""A compiled function that detaches a tensor from outside reads it anew at each call."""

import numpy as np

import pyflame as pf


def test_a_detached_tensor_is_state_too():
    scale, weight = pf.tensor([2.0]), pf.nn.Parameter(pf.tensor([3.0]))
    f = pf.compile(lambda x: x * scale.detach() + weight.detach())
    x = pf.tensor([1.0])
    assert f(x).item() == 5.0
    scale.data = pf.tensor([10.0])
    weight.data = pf.tensor([100.0])
    np.testing.assert_allclose(f(x).item(), 110.0)
