"""Sizes given as one number or one for each dimension, and what shapes parameters must have."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec

from pyflame.dtypes import DType
from pyflame.ops.core import Handle, cast
from pyflame_rt.graph.errors import ShapeMismatchError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyflame.tensors import Tensor

P = ParamSpec("P")

__all__ = [
    "batched",
    "for_whole_numbers",
    "has_shape",
    "same_rank",
    "sizes",
    "spread_to",
    "symmetric_pads",
    "unbatched",
]


def sizes(value: int | Sequence[int], count: int, role: str) -> tuple[int, ...]:
    """`count` whole numbers, from one for all or one for each."""
    listed = (value,) * count if isinstance(value, int) else tuple(int(v) for v in value)
    if len(listed) == 1:
        listed *= count
    if len(listed) != count:
        raise ValueError(f"{role} must be one number or {count}. Received: {value!r}")
    return listed


def for_whole_numbers(function: Callable[P, Tensor]) -> Callable[P, Tensor]:
    """Let a sum of products of floating-point numbers take whole ones: float64 has all up to 2**53."""

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> Tensor:
        kinds = {v._value.spec.dtype for v in args if isinstance(v, Handle)}
        kind = kinds.pop() if len(kinds) == 1 else DType.bool
        if kind.is_inexact or kind is DType.bool:
            return function(*args, **kwargs)
        wide: Any = [cast(v, DType.float64) if isinstance(v, Handle) else v for v in args]
        return cast(function(*wide, **kwargs), kind)

    return run


def has_shape(role: str, value: Any, shape: Sequence[int]) -> None:
    """Refuse a parameter of another shape: what broadcasts would give an answer that nobody asked for."""
    if value is None:
        return
    given = list(value.shape) if hasattr(value, "shape") else []
    if given != list(shape):
        raise ShapeMismatchError(f"{role} must have shape {list(shape)}. Received: {given}")


def same_rank(**given: Any) -> None:
    """Refuse tensors of different ranks: what broadcasts would give an answer that nobody asked for."""
    ranks = {len(value.shape) for value in given.values()}
    if len(ranks) > 1:
        shapes = ", ".join(f"{name} {list(value.shape)}" for name, value in given.items())
        raise ShapeMismatchError(f"all must have the same number of dimensions. Received: {shapes}")


def spread_to(input: Any, var: Tensor) -> Tensor:
    """Variances of each value, or one for all along a dimension, which is the last if there is none of it."""
    shape, given = list(input.shape), list(var.shape)
    if given == shape[:-1] and given:
        return var.unsqueeze(-1)
    differing = [have for want, have in zip(shape, given, strict=False) if want != have]
    if not given or (len(given) == len(shape) and differing in ([], [1])):
        return var
    raise ShapeMismatchError(f"var must have shape {shape}, with one size 1, or {shape[:-1]}. Received: {given}")


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
