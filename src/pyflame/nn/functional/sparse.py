"""Rows of tables, and classes as vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyflame.dtypes import DType
from pyflame.ops.arithmetic import where
from pyflame.ops.core import call, cast
from pyflame.ops.creation import arange

if TYPE_CHECKING:
    from pyflame.tensors import Tensor

__all__ = ["embedding", "one_hot"]


def embedding(input: Any, weight: Any, padding_idx: int | None = None) -> Tensor:
    """The rows of `weight` that `input` names; no gradient flows to row `padding_idx`.

    Example:
        >>> import pyflame as pf
        >>> table = pf.tensor([[1.0, 2.0], [3.0, 4.0]])
        >>> pf.nn.functional.embedding(pf.tensor([1, 0], dtype=pf.int64), table).numpy().tolist()
        [[3.0, 4.0], [1.0, 2.0]]
    """
    if input.dtype.is_floating_point:
        input = cast(input, DType.int64)
    rows = call("Gather", weight, input, axis=0)
    if padding_idx is None:
        return rows
    size = weight.shape[0]
    if not -size <= padding_idx < size:
        raise ValueError(f"padding_idx must be within {size} rows. Received: {padding_idx}")
    return where((input == padding_idx % size).unsqueeze(-1), rows.detach(), rows)


def one_hot(tensor: Any, num_classes: int = -1) -> Tensor:
    """Class numbers as int64 vectors with a single one; the number of classes is found by evaluating if not given.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.functional.one_hot(pf.tensor([0, 2], dtype=pf.int64), 3).numpy().tolist()
        [[1, 0, 0], [0, 0, 1]]
    """
    if num_classes < 0:
        num_classes = int(tensor.numpy().max()) + 1
    classes = arange(num_classes, dtype=DType.int64)
    return cast(cast(tensor, DType.int64).unsqueeze(-1) == classes, DType.int64)
