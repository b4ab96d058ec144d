"""What must hold of the sizes, indices and lengths that an operator is given.

An operator that takes such numbers states once, beside its definition, what it relies on:

    def _reverse_needs(input, sequence_lens, /, *, batch_axis, time_axis):
        has_shape("sequence_lens", sequence_lens, [input.shape[batch_axis]])
        yield Within("sequence_lens", sequence_lens, 0, input.shape[time_axis])

    @operator(since=10, requires=_reverse_needs)
    def ReverseSequence(...): ...

Sizes are compared where they are numbers, and contents where they are known: always when the interpreter runs a node,
for parameters and constants when native code is planned. What is left then is looked at by native code as it runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pyflame_rt.graph import DimLike, Shape
from pyflame_rt.graph.errors import InputError, ShapeMismatchError, UndeterminedError
from pyflame_rt.ops.core.type_constraints import check_kinds

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyflame_rt.ops.core.registry import Op
    from pyflame_rt.ops.core.value import Value

__all__ = [
    "Within",
    "at_least",
    "at_most",
    "check_contents",
    "count_of",
    "dims_of",
    "divides",
    "enforce",
    "has_rank",
    "has_shape",
    "length_of",
    "same_size",
    "size_at",
    "spreads_to",
]


class Within(NamedTuple):
    """Every number of a value lies between two limits, both included, and is not ``without``.

    Attributes:
        name: the input, as the operator calls it.
        value: the value itself.
        low: least number allowed; None for any.
        high: largest number allowed; None for any.
        without: a number that is not allowed though it lies between them.
    """

    name: str
    value: Value
    low: DimLike = None
    high: DimLike = None
    without: int | None = None


def enforce(op: Op, inputs: Sequence[Value | None], attributes: Mapping[str, Any]) -> list[Within]:
    """Refuse inputs that are not as the operator requires.

    Returns:
        What could not be decided, because contents or limits are only known when running.
    """
    if ":" in op.types:
        check_kinds(op, inputs)
    if op.requires is None:
        return []
    open_: list[Within] = []
    try:
        for need in op.requires(*inputs, **attributes) or ():
            if need.value.known is None or not _is_number(need.low) or not _is_number(need.high):
                open_.append(need)
            else:
                check_contents(need.name, need.value.known, need.low, need.high, need.without)
    except UndeterminedError:  # a rank or a type that only running tells
        return open_
    return open_


def _is_number(limit: DimLike) -> bool:
    return limit is None or isinstance(limit, int)


def check_contents(
    name: str, contents: np.ndarray[Any, Any], low: Any = None, high: Any = None, without: int | None = None
) -> None:
    """Refuse numbers outside their limits, and say which and where.

    Example:
        >>> check_contents("sequence_lens", np.array([2, 9]), 0, 5)
        Traceback (most recent call last):
        ...
        pyflame_rt.graph.errors.InputError: sequence_lens is 9 at [1], which is out of range: it must be from 0 to 5
    """
    if not contents.size:
        return
    wrong = np.isnan(contents) if contents.dtype.kind == "f" else np.zeros(contents.shape, bool)
    if low is not None:
        wrong |= np.asarray(contents < low, bool)
    if high is not None:
        wrong |= np.asarray(contents > high, bool)
    if without is not None:
        wrong |= np.asarray(contents == without, bool)
    if not wrong.any():
        return
    place = tuple(int(p) for p in np.unravel_index(int(np.argmax(wrong)), wrong.shape))
    at = f" at {list(place)}" if place else ""
    raise InputError(f"{name} is {contents[place]}{at}, which is out of range: it must {_limits(low, high, without)}")


def _limits(low: Any, high: Any, without: int | None) -> str:
    parts = []
    if low is not None and high is not None:
        parts.append(f"be from {low} to {high}" if low <= high else "not name anything: there is nothing to name")
    elif low is not None:
        parts.append(f"be at least {low}")
    elif high is not None:
        parts.append(f"be at most {high}")
    if without is not None:
        parts.append(f"not be {without}")
    return " and ".join(parts)


# ---------------------------------------------------------------------- sizes


def dims_of(value: Value | None) -> Shape | None:
    """Sizes of a tensor; None where there is none, or its rank is unknown."""
    return None if value is None else value.tensor_type.shape


def size_at(value: Value | None, axis: int) -> DimLike:
    """One size; None where it is not known."""
    dims = dims_of(value)
    return None if dims is None or not -len(dims) <= axis < len(dims) else dims[axis]


def length_of(value: Value | None) -> DimLike:
    """Number of elements of a vector or scalar; None where it is not known."""
    dims = dims_of(value)
    return None if dims is None or len(dims) > 1 else dims[0] if len(dims) else 1


def same_size(what: str, got: DimLike, wanted: DimLike, why: str) -> None:
    """Refuse a size that surely is not the one wanted."""
    if isinstance(got, int) and isinstance(wanted, int) and got != wanted:
        raise ShapeMismatchError(f"{what} is {got}, but must be {wanted}, {why}")


def at_least(what: str, got: DimLike, least: int) -> None:
    """Refuse a size that surely is smaller."""
    if isinstance(got, int) and got < least:
        raise ShapeMismatchError(f"{what} is {got}, but must be at least {least}")


def at_most(what: str, got: DimLike, most: DimLike, why: str) -> None:
    """Refuse a size that surely is larger."""
    if isinstance(got, int) and isinstance(most, int) and got > most:
        raise ShapeMismatchError(f"{what} is {got}, but must be at most {most}, {why}")


def divides(what: str, got: DimLike, by: DimLike, why: str) -> None:
    """Refuse a size that surely is no multiple of another."""
    if isinstance(got, int) and isinstance(by, int) and (by <= 0 or got % by):
        raise ShapeMismatchError(f"{what} is {got}, but must be a multiple of {by}, {why}")


def has_rank(name: str, value: Value | None, *ranks: int) -> None:
    """Refuse a value of another rank."""
    dims = dims_of(value)
    if dims is not None and len(dims) not in ranks:
        allowed = " or ".join(map(str, ranks))
        raise ShapeMismatchError(f"{name} has shape {dims}, but must have {allowed} axes")


def has_shape(name: str, value: Value | None, wanted: Iterable[DimLike], meaning: str = "") -> None:
    """Refuse a value whose shape surely is not ``wanted``; unknown sizes there fit anything.

    Args:
        name: the input, as the operator calls it.
        value: nothing is refused where it is None.
        wanted: sizes, None for any.
        meaning: names of the axes.
    """
    dims, sizes = dims_of(value), Shape(wanted)
    if dims is None:
        return
    pairs = zip(dims, sizes, strict=False)
    if len(dims) == len(sizes) and not any(_differ(a, b) for a, b in pairs):
        return
    named = f" ({meaning})" if meaning else ""
    raise ShapeMismatchError(f"{name} has shape {dims}, but must have {sizes}{named}")


def spreads_to(name: str, value: Value | None, sizes: Sequence[DimLike], meaning: str) -> None:
    """Refuse a value that does not broadcast to a shape, or would make it larger.

    Args:
        name: the input, as the operator calls it.
        value: nothing is refused where it is None.
        sizes: those that it must broadcast to.
        meaning: whose sizes they are.
    """
    dims = dims_of(value)
    if dims is None:
        return
    fits = zip(dims[::-1], sizes[::-1], strict=False)
    if len(dims) > len(sizes) or any(d != 1 and _differ(d, size) for d, size in fits):
        raise ShapeMismatchError(f"{name} has shape {dims}, which does not broadcast to {Shape(sizes)}, {meaning}")


def count_of(value: Value | None) -> int | None:
    """Number of elements; None where it is not known."""
    dims = dims_of(value)
    return None if dims is None else dims.num_elements


def _differ(a: DimLike, b: DimLike) -> bool:
    return isinstance(a, int) and isinstance(b, int) and a != b
