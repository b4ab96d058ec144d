"""Transposed convolutions by phases: results a stride apart are a convolution of the input by some of the taps.

Each output belongs to one phase of every axis, and only every so many taps reach it. So nothing is multiplied by the
zeros that would stand between the elements of the input; phases are put side by side at the end.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from pyflame_rt.backends.cpu.lower.box_copies import fill, part
from pyflame_rt.backends.cpu.lower.convolution import MAX_DEPTH, image_convolution, turned_image
from pyflame_rt.backends.cpu.lower.pooling import add_bias, convolve
from pyflame_rt.graph import DType
from pyflame_rt.graph.records import dataclass
from pyflame_rt.ops.onnx.windows import Windows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyflame_rt.backends.cpu.lower.lowering import Lowering
    from pyflame_rt.backends.cpu.memory.buffer_views import View

__all__ = ["Axis", "transposed_by_phases"]


@dataclass(frozen=True)
class Axis:
    """Sizes along one axis: of the input, the result, the filters, and how they go."""

    size: int
    result: int
    taps: int
    step: int
    gap: int
    before: int  # results left out at the beginning

    def phases(self) -> list[AxisPhase]:
        """All phases that have results.

        Example:
            >>> for phase in Axis(size=4, result=9, taps=3, step=2, gap=1, before=0).phases():
            ...     print(phase)
            AxisPhase(first=0, count=5, tap=2, apart=2, taps=2, gap=1, begin=0, end=4, padding=(1, 1))
            AxisPhase(first=1, count=4, tap=1, apart=1, taps=1, gap=1, begin=0, end=4, padding=(0, 0))
        """
        return [self._phase(first) for first in range(min(self.step, self.result))]

    def _phase(self, first: int) -> AxisPhase:
        count, place = -(-(self.result - first) // self.step), first + self.before
        found = [t for t in range(self.taps) if (place - t * self.gap) % self.step == 0]
        if not found:
            return AxisPhase(first, count)
        apart = found[1] - found[0] if len(found) > 1 else 1
        gap = apart * self.gap // self.step if len(found) > 1 else 1
        low = (place - found[-1] * self.gap) // self.step  # what the last tap reads for the first result
        high = low + count - 1 + (len(found) - 1) * gap + 1
        begin, end = max(low, 0), min(high, self.size)
        if begin >= end:
            return AxisPhase(first, count)
        return AxisPhase(first, count, found[-1], apart, len(found), gap, begin, end, (begin - low, high - end))


@dataclass(frozen=True)
class AxisPhase:
    """Results ``first`` and so on along an axis, a stride apart: windows over a part of the input, with padding.

    Attributes:
        first: the first of the results.
        count: of results.
        tap: the filters' tap for the first element of a window; each next one is ``apart`` before it.
        apart: see ``tap``.
        taps: of a window; none where results are zero.
        gap: elements from one tap of a window to the next.
        begin: of the part of the input that is read.
        end: of it.
        padding: before and after that part.
    """

    first: int
    count: int
    tap: int = 0
    apart: int = 1
    taps: int = 0
    gap: int = 1
    begin: int = 0
    end: int = 0
    padding: tuple[int, int] = (0, 0)


def transposed_by_phases(
    low: Lowering, x: View, weights: View, bias: View | None, axes: Sequence[Axis], groups: int
) -> View:
    """The result for an input, filters [in, out / groups, taps..] and a bias, in any type loops have."""
    shape = (x.shape[0], weights.shape[1] * groups, *(axis.result for axis in axes))
    phases = list(itertools.product(*(axis.phases() for axis in axes)))
    image = _is_image(x, weights, groups, phases)
    x = turned_image(low, x) if image else x
    fused = bias if image and all(p.taps for phase in phases for p in phase) else None
    out: View | None = None
    for phase in phases:
        y = _phase(low, x, weights, fused, phase, groups) if all(p.taps for p in phase) else None
        if len(phases) == 1 and y is not None:
            out = y
            break
        out = low.in_order(low.new(shape, x.dtype), x if y is None else y) if out is None else out
        place = out
        for axis, p in enumerate(phase, 2):
            place = part(place, axis, p.first, p.count, axes[axis - 2].step)
        if y is None:
            y = _zeros(low, place)
        low.copied(y, place)
    assert out is not None  # there is a phase where there are results
    return out if bias is None or fused is not None else add_bias(low, out, bias)


def _zeros(low: Lowering, like: View) -> View:
    """Zeros of the shape of a view, all of them one element."""
    one = low.new((1,), like.dtype)
    fill(low, low.constant(np.zeros(1, like.dtype.numpy)), one)
    return replace(one, shape=like.shape, strides=(0,) * len(like.shape))


def _is_image(x: View, weights: View, groups: int, phases: Sequence[Sequence[AxisPhase]]) -> bool:
    """Whether the tiles for images by constant filters take all phases."""
    depth = weights.shape[0] * max(math.prod(p.taps for p in phase) for phase in phases)
    constant = weights.buffer.array is not None and weights.offset == 0
    return constant and groups == 1 and len(x.shape) == 4 and x.dtype is DType.Float32 and depth <= MAX_DEPTH


def _phase(low: Lowering, x: View, weights: View, bias: View | None, phase: Sequence[AxisPhase], groups: int) -> View:
    for axis, p in enumerate(phase, 2):
        x = part(x, axis, p.begin, p.end - p.begin)
    taps = tuple(p.taps for p in phase)
    at = Windows(taps, (1,) * len(taps), tuple(p.gap for p in phase), tuple(p.padding for p in phase))
    if _is_image(x, weights, groups, [phase]):
        array = weights.buffer.array
        assert array is not None
        chosen = tuple(
            slice(p.tap, None if p.tap < p.apart * p.taps else p.tap - p.apart * p.taps, -p.apart) for p in phase
        )
        filters = array.reshape(weights.shape)[:, :, *chosen].swapaxes(0, 1)
        return image_convolution(low, x, np.ascontiguousarray(filters), bias, at)
    each, inputs = weights.shape[1], weights.shape[0] // groups
    split = weights.reshaped((groups, inputs, each, *weights.shape[2:]))
    assert split is not None  # contiguous
    offset = split.offset + sum(p.tap * s for p, s in zip(phase, split.strides[3:], strict=True))
    strides = tuple(-p.apart * s for p, s in zip(phase, split.strides[3:], strict=True))
    turned = replace(split, shape=(*split.shape[:3], *taps), strides=(*split.strides[:3], *strides), offset=offset)
    filters = low.copied(turned.permuted([0, 2, 1, *range(3, 3 + len(taps))]))
    kernel = filters.reshaped((groups * each, inputs, *taps))
    assert kernel is not None
    return convolve(low, x, kernel, at, groups)
