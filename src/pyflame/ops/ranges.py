"""Checks of indices, classes and probabilities: at once where values are known, by a node of the graph elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame.devices import Backend, chosen
from pyflame.dtypes import DType
from pyflame.lazy import modes
from pyflame.ops import arithmetic as ar
from pyflame.ops.core import WrongTypeError, call, cast, scalar
from pyflame_rt.graph.errors import InputError
from pyflame_rt.ops.pyflame.within import Look

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyflame.tensors import Tensor

__all__ = [
    "OutOfRangeError",
    "numbers_within",
    "probabilities",
    "some_chance",
    "whole_numbers",
]


class OutOfRangeError(InputError, IndexError, ValueError):
    """A number that names nothing: an index, a class, a probability."""


def whole_numbers(x: Tensor, what: str) -> None:
    """Refuse what is not made of integers."""
    kind = x._value.spec.dtype
    if kind.is_inexact or kind is DType.bool:
        raise WrongTypeError(f"{what} must be whole numbers, got {kind.name}; convert them, as in x.to(pf.int64)")


def _is_checked(x: Tensor) -> bool:
    """Whether contents can be looked at now, for this call and all that follow."""
    return x._value.array is not None and modes.tracer is None


def _has_checks() -> bool:
    """Whether graphs made now may hold checks: exports and the wafer have the operators of the format alone."""
    return chosen.backend is Backend.CPU and not (modes.tracer is not None and modes.tracer.exports)


def numbers_within(x: Tensor, low: int, high: int, what: str) -> Tensor:
    """The integers, which must be from ``low`` up to but without ``high``.

    Args:
        x: integers.
        low: the least.
        high: above the largest.
        what: their name in the error.
    """
    if _is_checked(x):
        array = x._value.array
        if array.size and (array.min() < low or array.max() >= high):  # type: ignore[union-attr]
            _refuse(array, low, high, what)  # type: ignore[arg-type]
        return x
    if not _has_checks():
        return x
    return call(Look, x, low=int(low), high=int(high) - 1, what=what)


def _refuse(array: np.ndarray[Any, Any], low: int, high: int, what: str) -> None:
    place = tuple(int(p) for p in np.argwhere((array < low) | (array >= high))[0])
    at = f" at {list(place)}" if place else ""
    raise OutOfRangeError(f"{what} is {array[place]}{at}, which is out of range: it must be from {low} to {high - 1}")


def probabilities(x: Tensor, what: str, high: float = 1.0) -> Tensor:
    """The numbers, which must be from 0 to ``high`` (both included) and not NaN."""
    limits = f"must be from 0 to {high:g}" if np.isfinite(high) else "must be finite and not negative"
    if _is_checked(x):
        array = np.asarray(x._value.array, np.float64)
        wrong = ~((array >= 0) & (array <= high) & np.isfinite(array))
        if wrong.any():
            raise OutOfRangeError(f"{what} {limits}, got {array[wrong][0]:g}")
        return x
    return _where_good(
        x, lambda: ar.logical_and(ar.logical_and(ar.ge(x, 0), ar.le(x, high)), ar.isfinite(x)), f"{what} {limits}"
    )


def some_chance(weights: Tensor) -> Tensor:
    """The weights, of which no row may add up to 0: nothing could be drawn from it."""
    problem = "the weights of a row must add up to more than 0"
    if _is_checked(weights):
        array = weights._value.array
        if not np.all(array.sum(-1) > 0):  # type: ignore[union-attr]
            raise OutOfRangeError(problem)
        return weights
    return _where_good(weights, lambda: ar.gt(weights.sum(-1, True), 0), problem)


def _where_good(x: Tensor, good: Callable[[], Tensor], problem: str) -> Tensor:
    """The tensor, by a graph that refuses to run where it is not good."""
    if not _has_checks():
        return x
    looked = call(Look, cast(good(), DType.int32), low=1, what=f"{problem}: whether it holds")
    return ar.where(cast(looked, DType.bool), x, scalar(0, x._value.spec.dtype))
