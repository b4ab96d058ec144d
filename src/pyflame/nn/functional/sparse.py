"""Rows of tables, and classes as vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyflame.autograd import no_grad
from pyflame.dtypes import DType
from pyflame.ops.arithmetic import logical_and, where
from pyflame.ops.core import call, cast
from pyflame.ops.creation import arange, ones, zeros
from pyflame.ops.ranges import numbers_within, whole_numbers
from pyflame.ops.reduction import norm
from pyflame_rt.graph.errors import ShapeMismatchError
from pyflame_rt.graph.named_arguments import names_arguments
from pyflame_rt.ops.onnx.index import Gather

if TYPE_CHECKING:
    from pyflame.tensors import Tensor

__all__ = ["embedding", "one_hot"]


def embedding(
    input: Any,
    weight: Any,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """The rows of `weight` that `input` names.

    Args:
        input: Numbers of rows.
        weight: The table.
        padding_idx: A row to which no gradient flows.
        max_norm: Rows that are named and longer than this are scaled to this length in the table itself: `weight` is
            bound to the new values.
        norm_type: Which norm measures them.
        scale_grad_by_freq: The gradient of a row is divided by how often it is named.
        sparse: Not supported: gradients are dense.

    Raises:
        NotImplementedError: for `sparse=True`.

    Example:
        >>> import pyflame as pf
        >>> table = pf.tensor([[1.0, 2.0], [3.0, 4.0]])
        >>> pf.nn.functional.embedding(pf.tensor([1, 0], dtype=pf.int64), table).numpy().tolist()
        [[3.0, 4.0], [1.0, 2.0]]
    """
    if sparse:
        raise NotImplementedError("embedding: gradients are dense here, sparse=True is not supported; leave it out")
    if len(weight.shape) != 2:
        raise ShapeMismatchError(f"embedding: weight must be a table of rows. Received: {list(weight.shape)}")
    whole_numbers(input, "embedding: input")
    input = numbers_within(input, 0, int(weight.shape[0]), "embedding: input")
    if max_norm is not None:
        _shorten(weight, input, max_norm, norm_type)
    rows = call(Gather, weight, input, axis=0)
    if scale_grad_by_freq:
        kept = rows.detach()
        rows = kept + (rows - kept) / _frequencies(input, weight).unsqueeze(-1)
    if padding_idx is None:
        return rows
    size = weight.shape[0]
    if not -size <= padding_idx < size:
        raise ValueError(f"padding_idx must be within {size} rows. Received: {padding_idx}")
    return where((input == padding_idx % size).unsqueeze(-1), rows.detach(), rows)


def _named(input: Any, size: int) -> Tensor:
    """Numbers of rows as int64 from 0 on, in one dimension."""
    flat = cast(input, DType.int64).reshape([-1])
    return where(flat < 0, flat + size, flat)


def _shorten(weight: Any, input: Any, max_norm: float, norm_type: float) -> None:
    """Bind the table to one whose named rows are no longer than `max_norm`."""
    size = weight.shape[0]
    with no_grad():
        table = weight.detach()
        lengths = norm(table, norm_type, dim=1, keepdim=True)
        hit = zeros([size], dtype=DType.bool).index_fill(0, _named(input, size), True).unsqueeze(-1)
        # As torch has it, a hair shorter than asked for.
        shorter = table * (max_norm / (lengths + 1e-7))
        weight._renew(where(logical_and(hit, lengths > max_norm), shorter, table))


def _frequencies(input: Any, weight: Any) -> Tensor:
    """For each number of a row, how often it is there."""
    size = weight.shape[0]
    places = _named(input, size)
    counts = zeros([size], dtype=weight.dtype).index_add(0, places, ones([places.numel], dtype=weight.dtype))
    return call(Gather, counts, cast(input, DType.int64), axis=0)


@names_arguments
def one_hot(tensor: Any, num_classes: int = -1) -> Tensor:
    """Class numbers as int64 vectors with a single one; the number of classes is found by evaluating if not given.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.functional.one_hot(pf.tensor([0, 2], dtype=pf.int64), 3).numpy().tolist()
        [[1, 0, 0], [0, 0, 1]]
    """
    whole_numbers(tensor, "one_hot: classes")
    if num_classes < 0:
        if not tensor.numel:
            raise ValueError("one_hot: no classes are there to count; give num_classes")
        num_classes = int(tensor.numpy().max()) + 1
    tensor = numbers_within(tensor, 0, num_classes, "one_hot: a class")
    classes = arange(num_classes, dtype=DType.int64)
    return cast(cast(tensor, DType.int64).unsqueeze(-1) == classes, DType.int64)
