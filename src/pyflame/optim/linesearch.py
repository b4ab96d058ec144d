"""A search along a direction for a point that is low and flat enough: Wolfe's strong conditions."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Number", "Point", "strong_wolfe"]

# Python's numbers and NumPy's are not mixed up: float32 arithmetic stays float32.
Number: TypeAlias = "float | np.floating"
LOW, FLAT = 1e-4, 0.9


class Point(NamedTuple):
    """A place on the line: how far, the loss, the gradient, and the slope along the line."""

    length: Number
    loss: float
    gradient: np.ndarray
    slope: Number


def strong_wolfe(
    look: Callable[[Number], Point], origin: Point, length: Number, width: Number, least: float, most: int
) -> Point:
    """The point to go to.

    Args:
        look: Evaluates a place on the line.
        origin: Where the line begins.
        length: How far to look first.
        width: The direction's largest element.
        least: Brackets that move no element by more are not divided further.
        most: How many places to look at after the first.
    """
    ends, done, looked = _bracket(look, origin, length, most)
    if done:
        return ends[0]
    low = _lower(ends)
    stuck = False
    while looked < most and not abs(ends[1].length - ends[0].length) * width < least:
        at, stuck = _inside(ends, stuck)
        point = look(at)
        looked += 1
        if point.loss > _allowed(origin, at) or point.loss >= ends[low].loss:
            ends[1 - low] = point
            low = _lower(ends)
            continue
        flat = abs(point.slope) <= -FLAT * origin.slope
        if not flat and point.slope * (ends[1 - low].length - ends[low].length) >= 0:
            ends[1 - low] = ends[low]
        ends[low] = point
        if flat:
            break
    return ends[low]


def _bracket(
    look: Callable[[Number], Point], origin: Point, length: Number, most: int
) -> tuple[list[Point], bool, int]:
    """Two points with a good one between them, or one that is good; and how many were looked at after the first."""
    before, point = origin, look(length)
    for looked in range(most):
        if point.loss > _allowed(origin, point.length) or (looked > 1 and point.loss >= before.loss):
            return [before, point], False, looked
        if abs(point.slope) <= -FLAT * origin.slope:
            return [point], True, looked
        if point.slope >= 0:
            return [before, point], False, looked
        bounds = point.length + 0.01 * (point.length - before.length), point.length * 10
        before, point = point, look(_cubic(before, point, bounds))
    return [origin, point], False, max(most, 0)


def _allowed(origin: Point, length: Number) -> Number:
    """The largest loss that is low enough for so long a way."""
    return origin.loss + LOW * length * origin.slope


def _lower(ends: list[Point]) -> int:
    return 0 if ends[0].loss <= ends[1].loss else 1


def _inside(ends: list[Point], stuck: bool) -> tuple[Number, bool]:
    """Where to divide a bracket, and whether that is near an end for the first time in a row."""
    near, far = min(end.length for end in ends), max(end.length for end in ends)
    at = _cubic(ends[0], ends[1], (near, far))
    margin = 0.1 * (far - near)
    if not min(far - at, at - near) < margin:
        return at, False
    if not (stuck or at >= far or at <= near):
        return at, True
    return (far - margin if abs(at - far) < abs(at - near) else near + margin), False


def _cubic(a: Point, b: Point, bounds: tuple[Number, Number]) -> Number:
    """The lowest place of the cubic through two points and their slopes, within bounds."""
    first = a.slope + b.slope - 3 * (a.loss - b.loss) / (a.length - b.length)
    square = first**2 - a.slope * b.slope
    if not square >= 0:
        return (bounds[0] + bounds[1]) / 2.0
    left, right = (a, b) if a.length <= b.length else (b, a)
    root = np.sqrt(square)
    share = (right.slope + root - first) / (right.slope - left.slope + 2 * root)
    return min(max(right.length - (right.length - left.length) * share, bounds[0]), bounds[1])
