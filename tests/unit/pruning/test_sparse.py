"""Sparse tensors against dense arithmetic."""

import numpy as np
import pytest

import pyflame_rt
from pyflame_rt.graph.errors import DTypeMismatchError, InputError, ShapeMismatchError
from pyflame_rt.pruning import SparseFormat, SparseTensor, sparse_add, sparse_matmul


def sparse_array(*shape, share=0.8):
    rng = np.random.default_rng(0)
    array = rng.normal(size=shape).astype(np.float32)
    return np.where(rng.random(shape) < share, 0, array).astype(np.float32)


@pytest.mark.parametrize("fmt", list(SparseFormat))
@pytest.mark.parametrize("shape", [(8, 12), (4, 3, 3, 3), (6,), (1, 1), (7, 5), (0, 4), (4, 0), (3, 0, 2)])
def test_formats(fmt, shape):
    dense = sparse_array(*shape)
    sparse = SparseTensor.from_dense(dense, fmt)
    assert sparse.shape() == shape
    assert sparse.nnz() == np.count_nonzero(dense)
    assert sparse.sparsity() == pytest.approx((dense == 0).mean() if dense.size else 0)
    np.testing.assert_array_equal(sparse.to_dense(), dense)
    for other in SparseFormat:
        np.testing.assert_array_equal(sparse.to(other).to_dense(), dense)
    rows = dense.reshape(shape[0], int(np.prod(shape[1:])))
    right = np.random.default_rng(1).normal(size=(rows.shape[1], 5)).astype(np.float32)
    np.testing.assert_allclose(sparse_matmul(sparse, right), rows @ right, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(sparse_add(sparse, sparse).to_dense(), dense * 2)


def test_bytes_are_counted():
    dense = sparse_array(64, 64, share=0.95)
    sparse = SparseTensor.from_dense(dense, SparseFormat.CSR)
    matrix = sparse.matrix
    assert sparse.memory_bytes() == matrix.data.nbytes + matrix.indices.nbytes + matrix.indptr.nbytes
    assert sparse.compression_ratio() == pytest.approx(dense.nbytes / sparse.memory_bytes())
    assert sparse.compression_ratio() > 4


def test_tensors_give_tensors():
    tensor = pyflame_rt.from_numpy(sparse_array(4, 6))
    sparse = SparseTensor.from_dense(tensor)
    assert isinstance(sparse.to_dense(), pyflame_rt.Tensor)
    assert isinstance(sparse_matmul(sparse, pyflame_rt.from_numpy(np.ones((6, 2), np.float32))), pyflame_rt.Tensor)
    assert isinstance(sparse_matmul(sparse, np.ones(6, np.float32)), np.ndarray)


def test_what_does_not_fit_is_refused():
    sparse = SparseTensor.from_dense(sparse_array(4, 6))
    with pytest.raises(ShapeMismatchError, match=r"\[6, n\]"):
        sparse_matmul(sparse, np.ones((4, 2), np.float32))
    with pytest.raises(ShapeMismatchError):
        sparse_add(sparse, SparseTensor.from_dense(sparse_array(6, 4)))
    with pytest.raises(ShapeMismatchError):
        SparseTensor.from_dense(np.float32(1))
    with pytest.raises(ShapeMismatchError, match="do not divide"):
        SparseTensor.from_dense(sparse_array(4, 6), SparseFormat.BSR, block_size=(3, 2))
    with pytest.raises(InputError):
        SparseTensor.from_dense(sparse_array(4, 6), "csr")
    with pytest.raises(InputError):
        sparse_matmul(np.eye(3), np.eye(3))
    with pytest.raises(DTypeMismatchError, match="float16"):
        SparseTensor.from_dense(np.zeros((2, 2), np.float16))
