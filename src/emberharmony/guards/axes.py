"""Axes: counted from 0 or from the end, never wrapped round."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from emberharmony.typing import Axis

__all__ = ["axis_tuple", "plain_axes", "plain_axis", "reduced_axes"]

_INTEGERS = (int, np.integer)


def plain_axis(axis: Any, rank: int) -> int:
    """An axis counted from 0.

    Raises:
        numpy.exceptions.AxisError: There is no such axis; it is a ValueError and an IndexError.
        TypeError: It is not an integer.

    >>> plain_axis(-1, 3)
    2
    """
    if not isinstance(axis, _INTEGERS) or isinstance(axis, bool):
        raise TypeError(f"an axis is an integer, received {axis!r}")
    if not -rank <= axis < rank:
        raise np.exceptions.AxisError(f"axis {axis} is out of range for {rank} axes")
    return int(axis) % rank


def axis_tuple(axis: int | Sequence[int]) -> tuple[int, ...]:
    """One axis or several as a tuple, as they were given.

    >>> axis_tuple(-1), axis_tuple([0, 1])
    ((-1,), (0, 1))
    """
    return (axis,) if isinstance(axis, _INTEGERS) else tuple(axis)


def plain_axes(axis: Axis, rank: int) -> tuple[int, ...]:
    """Different axes counted from 0, in the order given; all of them for None.

    >>> plain_axes((-1, 0), 2), plain_axes(None, 2)
    ((1, 0), (0, 1))
    """
    if axis is None:
        return tuple(range(rank))
    places = tuple([plain_axis(a, rank) for a in axis_tuple(axis)])
    if len(set(places)) != len(places):
        raise ValueError(f"axes {tuple(axis_tuple(axis))} name one of {rank} axes twice")
    return places


def reduced_axes(axis: Axis, rank: int) -> tuple[int, ...]:
    """The axes that a reduction folds; a 0-d array has none, but takes 0 and -1, as NumPy lets it.

    >>> reduced_axes(-1, 0), reduced_axes(-1, 2)
    ((), (1,))
    """
    if rank == 0 and axis is not None and all(-1 <= a <= 0 for a in axis_tuple(axis)):
        return ()
    return plain_axes(axis, rank)
