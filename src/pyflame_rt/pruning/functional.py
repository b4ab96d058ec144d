"""Pruning of single tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.graph import Tensor
from pyflame_rt.graph.errors import InputError
from pyflame_rt.graph.named_arguments import names_arguments
from pyflame_rt.pruning.masks import PruningMask
from pyflame_rt.pruning.patterns import block_keep, nm_keep
from pyflame_rt.pruning.scores import keep_largest

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["block_prune", "magnitude_prune", "nm_sparsity_prune", "structured_prune"]


def _values(tensor: Any) -> np.ndarray[Any, Any]:
    try:
        array = tensor.raw() if isinstance(tensor, Tensor) else np.asarray(tensor)
    except ValueError as error:
        raise InputError(f"{type(tensor).__name__} cannot be read as a weight: {error}") from error
    if array.ndim < 1 or array.dtype.kind not in "fV" or not array.size:
        raise InputError(f"a weight is an array of floating point numbers, got {array.dtype} of {list(array.shape)}")
    return np.abs(array.astype(np.float64))


def _checked(sparsity: float) -> float:
    if not 0 <= sparsity < 1:
        raise InputError(f"sparsity must be at least 0 and below 1, got {sparsity!r}")
    return sparsity


@names_arguments
def magnitude_prune(tensor: Any, sparsity: float) -> Any:
    """The tensor with its smallest elements set to zero.

    Example:
        >>> magnitude_prune(np.array([1.0, -3.0, 2.0, 0.5]), 0.5).tolist()
        [0.0, -3.0, 2.0, 0.0]
    """
    return PruningMask(keep_largest(_values(tensor), _checked(sparsity))).apply(tensor)


@names_arguments
def structured_prune(tensor: Any, sparsity: float, axis: int = 0) -> Any:
    """The tensor with its smallest slices along an axis set to zero; a graph's channels are removed by WeightPruner.

    Example:
        >>> structured_prune(np.array([[1.0, 1.0], [3.0, 3.0]]), 0.5).tolist()
        [[0.0, 0.0], [3.0, 3.0]]
    """
    values = _values(tensor)
    if not -values.ndim <= axis < values.ndim:
        raise InputError(f"axis {axis} is not one of the {values.ndim} axes")
    rest = tuple(i for i in range(values.ndim) if i != axis % values.ndim)
    keep = keep_largest(np.square(values).sum(axis=rest), _checked(sparsity))
    shape = [-1 if i == axis % values.ndim else 1 for i in range(values.ndim)]
    return PruningMask(np.broadcast_to(keep.reshape(shape), values.shape)).apply(tensor)


@names_arguments
def nm_sparsity_prune(tensor: Any, n: int = 2, m: int = 4) -> Any:
    """The tensor with all but the ``n`` largest of every ``m`` consecutive elements of a row set to zero.

    Example:
        >>> nm_sparsity_prune(np.array([[1.0, -3.0, 2.0, 0.5]])).tolist()
        [[0.0, -3.0, 2.0, 0.0]]
    """
    if not 1 <= n <= m:
        raise InputError(f"n:m sparsity keeps 1 to m of m weights, got n={n}, m={m}")
    return PruningMask(nm_keep(_values(tensor), n, m)).apply(tensor)


@names_arguments
def block_prune(tensor: Any, sparsity: float, block_size: Sequence[int] = (4, 4)) -> Any:
    """The tensor with its smallest blocks set to zero.

    Example:
        >>> block_prune(np.array([[1.0, 1.0, 5.0, 5.0]]), 0.5, (1, 2)).tolist()
        [[0.0, 0.0, 5.0, 5.0]]
    """
    return PruningMask(block_keep(_values(tensor), _checked(sparsity), block_size)).apply(tensor)
