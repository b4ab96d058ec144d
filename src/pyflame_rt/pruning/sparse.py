"""Sparse tensors: CSR, CSC, COO and BSR storage and products, on scipy.sparse."""

from __future__ import annotations

import enum
import importlib
import math
from typing import Any

import numpy as np

from pyflame_rt.graph import Tensor
from pyflame_rt.graph.errors import DTypeMismatchError, InputError, MissingExtra, ShapeMismatchError
from pyflame_rt.graph.named_arguments import names_arguments

__all__ = ["SparseFormat", "SparseTensor", "sparse_add", "sparse_matmul"]

Array = np.ndarray[Any, Any]


class SparseFormat(enum.Enum):
    """How the elements that are not zero are stored."""

    COO = "coo"
    CSR = "csr"
    CSC = "csc"
    BSR = "bsr"


def _scipy() -> Any:
    try:
        return importlib.import_module("scipy.sparse")
    except ImportError as error:
        raise MissingExtra("sparse tensors need scipy: pip install 'pyflame[sparse]'") from error


class SparseTensor:
    """A tensor that stores only what is not zero; all axes but the first count as one.

    Example:
        >>> sparse = SparseTensor.from_dense(np.array([[0.0, 2.0], [0.0, 0.0]], np.float32), SparseFormat.CSR)
        >>> sparse.nnz(), sparse.sparsity(), sparse.to_dense().tolist()
        (1, 0.75, [[0.0, 2.0], [0.0, 0.0]])
    """

    __slots__ = ("_format", "_is_tensor", "_matrix", "_shape")

    def __init__(self, matrix: Any, shape: tuple[int, ...], fmt: SparseFormat, *, is_tensor: bool = False) -> None:
        self._matrix, self._shape, self._format, self._is_tensor = matrix, shape, fmt, is_tensor

    @classmethod
    def from_dense(
        cls, tensor: Any, fmt: SparseFormat = SparseFormat.CSR, *, block_size: tuple[int, int] | None = None
    ) -> SparseTensor:
        """Store a tensor or an array sparsely.

        Args:
            tensor: of one or more axes; of more than two the first stays, the rest is flattened.
            fmt: the format.
            block_size: of BSR; sizes that divide the matrix, 4 x 4 where that fits, by default.
        """
        if not isinstance(fmt, SparseFormat):
            raise InputError(f"a format is one of {', '.join(map(str, SparseFormat))}; got {fmt!r}")
        array = tensor.raw() if isinstance(tensor, Tensor) else np.asarray(tensor)
        if array.ndim == 0:
            raise ShapeMismatchError("a sparse tensor has at least one axis, this one has none")
        if array.dtype.kind not in "fiub" or array.dtype.itemsize == 2:
            raise DTypeMismatchError(f"scipy stores no {array.dtype} sparsely; cast it to float32 first")
        rows = array.reshape(array.shape[0], math.prod(array.shape[1:]))
        sparse = _scipy()
        if fmt is SparseFormat.BSR:
            block = block_size or tuple(4 if n and n % 4 == 0 else 1 for n in rows.shape)
            if rows.shape[0] % block[0] or rows.shape[1] % block[1]:
                raise ShapeMismatchError(f"blocks of {list(block)} do not divide a matrix of {list(rows.shape)}")
            matrix = sparse.bsr_array(rows, blocksize=block)
        elif block_size is not None:
            raise InputError(f"block_size is for BSR, the format is {fmt}")
        else:
            matrix = getattr(sparse, f"{fmt.value}_array")(rows)
        return cls(matrix, array.shape, fmt, is_tensor=isinstance(tensor, Tensor))

    @property
    def format(self) -> SparseFormat:
        """How it is stored."""
        return self._format

    @property
    def matrix(self) -> Any:
        """The matrix of scipy.sparse."""
        return self._matrix

    def shape(self) -> tuple[int, ...]:
        """The shape of the dense tensor."""
        return self._shape

    def nnz(self) -> int:
        """How many elements are stored that are not zero."""
        return int(self._matrix.count_nonzero())

    def sparsity(self) -> float:
        """The share of elements that are zero."""
        size = int(np.prod(self._shape))
        return 1 - self.nnz() / size if size else 0.0

    def memory_bytes(self) -> int:
        """Bytes of values and indices."""
        matrix = self._matrix
        if self._format is SparseFormat.COO:
            return int(matrix.data.nbytes + matrix.row.nbytes + matrix.col.nbytes)
        return int(matrix.data.nbytes + matrix.indices.nbytes + matrix.indptr.nbytes)

    def compression_ratio(self) -> float:
        """Bytes of the dense tensor over bytes of this one."""
        dense = int(np.prod(self._shape)) * self._matrix.dtype.itemsize
        return dense / self.memory_bytes() if self.memory_bytes() else 1.0

    def to_dense(self) -> Any:
        """The dense tensor: a Tensor if it was made from one, else an array."""
        array = self._matrix.toarray().reshape(self._shape)
        return Tensor(array) if self._is_tensor else array

    def to(self, fmt: SparseFormat) -> SparseTensor:
        """The same in another format."""
        return SparseTensor(self._matrix.asformat(fmt.value), self._shape, fmt, is_tensor=self._is_tensor)

    def to_coo(self) -> SparseTensor:
        """The same as coordinates."""
        return self.to(SparseFormat.COO)

    def to_csr(self) -> SparseTensor:
        """The same as compressed rows."""
        return self.to(SparseFormat.CSR)

    def __repr__(self) -> str:
        return f"SparseTensor({self._format.name}, {list(self._shape)}, {self.nnz()} stored)"


def sparse_matmul(sparse: SparseTensor, dense: Any) -> Any:
    """The product of a sparse matrix and a dense one (or a vector); a Tensor gives a Tensor.

    Example:
        >>> eye = SparseTensor.from_dense(np.eye(2, dtype=np.float32))
        >>> sparse_matmul(eye, np.array([[1.0], [2.0]], np.float32)).tolist()
        [[1.0], [2.0]]
    """
    if not isinstance(sparse, SparseTensor):
        raise InputError(f"the first factor is a SparseTensor, got {type(sparse).__name__}")
    array = dense.raw() if isinstance(dense, Tensor) else np.asarray(dense)
    columns = sparse.matrix.shape[1]
    if array.ndim not in (1, 2) or array.shape[0] != columns:
        raise ShapeMismatchError(
            f"a sparse matrix of {list(sparse.matrix.shape)} is multiplied by [{columns}, n] or [{columns}], "
            f"got {list(array.shape)}"
        )
    product = sparse.matrix @ array
    return Tensor(np.ascontiguousarray(product)) if isinstance(dense, Tensor) else product


@names_arguments
def sparse_add(a: SparseTensor, b: SparseTensor) -> SparseTensor:
    """The sum of two sparse tensors of one shape, in the format of the first.

    Example:
        >>> one = SparseTensor.from_dense(np.eye(2))
        >>> sparse_add(one, one).to_dense().tolist()
        [[2.0, 0.0], [0.0, 2.0]]
    """
    if a.shape() != b.shape():
        raise ShapeMismatchError(f"sparse tensors of {list(a.shape())} and {list(b.shape())} cannot be added")
    total = (a.matrix + b.matrix).asformat(a.format.value)
    return SparseTensor(total, a.shape(), a.format, is_tensor=a._is_tensor)
