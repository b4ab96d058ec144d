"""Sizes given as one number or one for each dimension."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyflame_rt.graph.errors import ShapeMismatchError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyflame.tensors import Tensor

__all__ = ["batched", "sizes", "symmetric_pads", "unbatched"]


def sizes(value: int | Sequence[int], count: int, role: str) -> tuple[int, ...]:
    """`count` whole numbers, from one for all or one for each."""
    listed = (value,) * count if isinstance(value, int) else tuple(int(v) for v in value)
    if len(listed) == 1:
        listed *= count
    if len(listed) != count:
        raise ValueError(f"{role} must be one number or {count}. Received: {value!r}")
    return listed


def symmetric_pads(padding: int | Sequence[int], count: int) -> tuple[int, ...]:
    """The same padding at both ends of each dimension, ends after beginnings."""
    each = sizes(padding, count, "padding")
    if min(each) < 0:
        raise ValueError(f"padding must not be negative. Received: {padding!r}")
    return each + each


def batched(x: Any, rank: int, role: str) -> tuple[Tensor, bool]:
    """The input with a batch dimension, and whether it had one. `rank` is the rank with it."""
    given = len(x.shape)
    if given == rank:
        return x, True
    if given == rank - 1:
        return x.unsqueeze(0), False
    raise ShapeMismatchError(f"{role} needs an input of {rank - 1} or {rank} dimensions. Received: {list(x.shape)}")


def unbatched(y: Tensor, had_batch: bool) -> Tensor:
    """Without the batch dimension that :func:`batched` added."""
    return y if had_batch else y.squeeze(0)
