"""Rows of tables summed up, bag by bag."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyflame.dtypes import DType
from pyflame.nn.functional.sparse import embedding
from pyflame.ops.arithmetic import clamp_min, isnan, logical_and, logical_or, where
from pyflame.ops.core import call, cast
from pyflame.ops.creation import arange, full, ones, zeros, zeros_like
from pyflame.ops.gathering import index_add
from pyflame.ops.ranges import whole_numbers
from pyflame.ops.reduction import cumsum
from pyflame.ops.shaping import cat
from pyflame_rt.graph.errors import ShapeMismatchError
from pyflame_rt.graph.named_arguments import names_arguments
from pyflame_rt.ops.onnx.index import GatherElements, ScatterElements

if TYPE_CHECKING:
    from pyflame.tensors import Tensor

__all__ = ["embedding_bag"]


@names_arguments
def embedding_bag(
    input: Any,
    weight: Any,
    offsets: Any = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Any = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    """Sums, means or maxima of the rows that bags of numbers name.

    Args:
        input: Numbers of rows [B, N], a bag in each row; or [L], with `offsets`.
        weight: The table.
        offsets: Where each bag begins in an input of one dimension; the first is 0.
        max_norm: As for `embedding`.
        norm_type: As for `embedding`.
        scale_grad_by_freq: As for `embedding`; not with "max".
        mode: "sum", "mean" or "max"; a bag of nothing gives zeros.
        sparse: Not supported: gradients are dense.
        per_sample_weights: What each row is multiplied by, of the shape of the input; with "sum" only.
        include_last_offset: The last offset is where the last bag ends.
        padding_idx: A row that does not count.

    Raises:
        NotImplementedError: for `sparse=True`.

    Example:
        >>> import pyflame as pf
        >>> table = pf.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
        >>> rows, offsets = pf.tensor([0, 1, 2], dtype=pf.int64), pf.tensor([0, 2], dtype=pf.int64)
        >>> pf.nn.functional.embedding_bag(rows, table, offsets, mode="sum").numpy().tolist()
        [[4.0, 6.0], [5.0, 6.0]]
    """
    if sparse:
        raise NotImplementedError("embedding_bag: gradients are dense here, sparse=True is not supported; leave it out")
    _check(input, offsets, mode, scale_grad_by_freq, per_sample_weights)
    flat, (bags, counted) = _flat(input, offsets, include_last_offset)
    size = weight.shape[0]
    if padding_idx is not None and not -size <= padding_idx < size:
        raise ValueError(f"padding_idx must be within {size} rows. Received: {padding_idx}")
    rows = embedding(flat, weight, padding_idx, max_norm, norm_type, scale_grad_by_freq)
    kind = rows.dtype
    if kind in (DType.float16, DType.bfloat16):
        rows = cast(rows, DType.float32)
    if per_sample_weights is not None:
        rows = rows * cast(per_sample_weights, rows.dtype).reshape([-1, 1])
    inside = None if padding_idx is None else flat != padding_idx % size
    if mode == "max":
        return cast(_largest(rows, bags, counted, inside), kind)
    return cast(_summed(rows, bags, counted, inside, mode), kind)


def _check(input: Any, offsets: Any, mode: str, by_frequency: bool, shares: Any) -> None:
    if mode not in ("sum", "mean", "max"):
        raise ValueError(f"mode has to be one of sum, mean or max. Received: {mode!r}")
    if shares is not None and mode != "sum":
        raise NotImplementedError(
            f"embedding_bag: per_sample_weights is only supported for mode='sum'. Received: mode={mode!r}"
        )
    if shares is not None and list(shares.shape) != list(input.shape):
        raise ShapeMismatchError(
            f"per_sample_weights must have the shape of input. Received: {list(shares.shape)} and {list(input.shape)}"
        )
    if mode == "max" and by_frequency:
        raise NotImplementedError("embedding_bag: max mode does not support scaling the gradient by the frequency")
    whole_numbers(input, "embedding_bag: input")
    if len(input.shape) not in (1, 2):
        raise ValueError(f"input has to be 1D or 2D Tensor. Received: {len(input.shape)} dimensions")
    if len(input.shape) == 2 and offsets is not None:
        raise ValueError("if input is 2D, then offsets has to be None, as input is treated as bags of one length")
    if len(input.shape) == 1 and (offsets is None or len(offsets.shape) != 1):
        given = "None" if offsets is None else f"{list(offsets.shape)}"
        raise ValueError(f"offsets has to be a 1D Tensor when input is 1D. Received: {given}")


def _flat(input: Any, offsets: Any, last: bool) -> tuple[Tensor, tuple[Tensor, int]]:
    """The numbers of rows in one dimension, the number of each one's bag, and how many bags there are."""
    if len(input.shape) == 2:
        count, length = (int(n) for n in input.shape)
        bags = arange(count, dtype=DType.int64).unsqueeze(-1).expand([count, length])
        return cast(input, DType.int64).reshape([-1]), (bags.reshape([-1]), count)
    length, begins = int(input.shape[0]), cast(offsets, DType.int64)
    if last:
        begins = begins[:-1]
    count = int(begins.shape[0])
    # One more at each beginning: the running sum is the number of the bag.
    marks = index_add(zeros([length + 1], dtype=DType.int64), 0, begins, ones([count], dtype=DType.int64))
    return cast(input, DType.int64), (cumsum(marks, dim=0)[:length] - 1, count)


def _summed(rows: Tensor, bags: Tensor, count: int, inside: Tensor | None, mode: str) -> Tensor:
    if inside is not None:
        rows = where(inside.unsqueeze(-1), rows, zeros_like(rows))
    total = index_add(zeros([count, rows.shape[1]], dtype=rows.dtype), 0, bags, rows)
    if mode == "sum":
        return total
    one = ones([rows.shape[0]], dtype=rows.dtype) if inside is None else cast(inside, rows.dtype)
    sizes = index_add(zeros([count], dtype=rows.dtype), 0, bags, one)
    return total / clamp_min(sizes, 1.0).unsqueeze(-1)


def _largest(rows: Tensor, bags: Tensor, count: int, inside: Tensor | None) -> Tensor:
    """The largest entries of each bag; the gradient goes to the first row that has them."""
    length, width = (int(n) for n in rows.shape)
    if not length:
        return zeros([count, width], dtype=rows.dtype)
    places = bags.unsqueeze(-1).expand([length, width])
    plain = rows.detach()
    if inside is not None:
        plain = where(inside.unsqueeze(-1), plain, full([], float("-inf"), dtype=rows.dtype))
    lowest = full([count, width], float("-inf"), dtype=rows.dtype)
    tops = call(ScatterElements, lowest, places, plain, axis=0, reduction="max")
    hits = logical_or(plain == call(GatherElements, tops, places, axis=0), isnan(plain))
    if inside is not None:
        hits = logical_and(hits, inside.unsqueeze(-1))
    order = arange(length, dtype=DType.int64).unsqueeze(-1).expand([length, width])
    never = full([count, width], length, dtype=DType.int64)
    first = call(ScatterElements, never, places, where(hits, order, length), axis=0, reduction="min")
    nothing = zeros([1, width], dtype=rows.dtype)
    return call(GatherElements, cat([rows, nothing], dim=0), first, axis=0)
