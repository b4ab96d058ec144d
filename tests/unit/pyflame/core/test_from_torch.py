"""Tensors of torch that are no plain array: taken over right, or refused."""

import numpy as np
import pytest

import pyflame as pf

torch = pytest.importorskip("torch")


def test_lazily_conjugated_and_negated_tensors_are_taken_as_they_read():
    turned = torch.tensor([1 + 2j, 3 - 4j])
    np.testing.assert_array_equal(pf.from_torch(turned.conj()).numpy(), turned.conj().resolve_conj().numpy())
    np.testing.assert_array_equal(pf.from_torch(turned.conj().imag).numpy(), [-2.0, 4.0])


def test_a_sparse_tensor_is_refused():
    with pytest.raises(TypeError, match="to_dense"):
        pf.from_torch(torch.eye(3).to_sparse())
