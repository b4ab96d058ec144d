"""Maxima, sums and means of windows, one axis after the other: a loop over as many views as a window has taps.

A maximum may be counted twice: a tap that lies outside the data stands for its nearest neighbour in the window, so
that borders need no copy with padding and no kernel of their own. NaN stays NaN, as in the reference. Means leave such
taps out; what they divide by is a product of a number for each axis.
"""

from __future__ import annotations

import math
from itertools import groupby
from typing import TYPE_CHECKING

from pyflame_rt.backends.cpu.ir.kernel_program import Map, RowKernel, Store, apply, const, load
from pyflame_rt.backends.cpu.lower.box_copies import part
from pyflame_rt.backends.cpu.lower.lowering import Lowering, NotNative
from pyflame_rt.backends.cpu.lower.row_loops import nest_of
from pyflame_rt.graph.records import dataclass
from pyflame_rt.ops.onnx.maxpool import MaxPool
from pyflame_rt.ops.onnx.pool import AveragePool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyflame_rt.backends.cpu.memory.buffer_views import View
    from pyflame_rt.ops.onnx.windows import Windows

__all__ = ["MAX_TAPS", "max_windows", "mean_windows", "sum_windows"]

# Taps along one axis, each a stream of memory.
MAX_TAPS = 16
SHORT_LINE = 16  # results along a line


def max_windows(low: Lowering, x: View, at: Windows) -> View:
    """Maxima over the last axes of a value; NotNative where a window holds no element, or too many along an axis."""

    def combine(source: View, axis: int, window: _Window, run: _Run, out: View) -> None:
        starts = [run.begin + min(max(tap, run.first), run.last) * window.gap for tap in range(window.taps)]
        views = [part(source, axis, start, run.count, window.stride) for start in starts]
        _combined(low, MaxPool.name, "max", views, out)

    return _each_axis(low, x, at, combine)


def mean_windows(low: Lowering, x: View, at: Windows, *, whole: bool) -> View:
    """Means over the last axes of float32, of the elements a window holds or, if ``whole``, of as many as its taps."""

    def combine(source: View, axis: int, window: _Window, run: _Run, out: View) -> None:
        places = range(run.first, run.last + 1)
        views = [part(source, axis, run.begin + tap * window.gap, run.count, window.stride) for tap in places]
        _combined(low, AveragePool.name, "add", views, out, 1 / (window.taps if whole else len(places)))

    return _each_axis(low, x, at, combine)


@dataclass(frozen=True)
class _Window:
    """A window along one axis."""

    taps: int
    stride: int
    gap: int
    before: int


@dataclass(frozen=True)
class _Run:
    """So many windows along an axis, of which the taps from ``first`` to ``last`` lie in the data."""

    begin: int  # where the first tap of the first window would be
    count: int
    first: int
    last: int


def _each_axis(low: Lowering, x: View, at: Windows, combine: Callable[[View, int, _Window, _Run, View], None]) -> View:
    """Windows over the last axes, one axis after the other; ``combine`` does the windows of a run."""
    lead = len(x.shape) - len(at.kernel)
    counts = [int(n) for n in at.output(x.shape[lead:])]  # type: ignore[arg-type]
    if not math.prod(x.shape) or not math.prod(counts):
        raise NotNative("there is nothing to pool")
    x = _turned(low, x) if len(counts) == 2 and at.strides[1] > 1 and counts[1] < SHORT_LINE else x
    for axis, count in enumerate(counts, lead):
        k = axis - lead
        window = _Window(at.kernel[k], at.strides[k], at.dilations[k], at.padding[k][0])
        if window == _Window(1, 1, 1, 0) and count == x.shape[axis]:
            continue
        out = low.in_order(low.new((*x.shape[:axis], count, *x.shape[axis + 1 :]), x.dtype), x)
        place = 0
        for run in _runs_of(x.shape[axis], count, window):
            combine(x, axis, window, run, part(out, axis, place, run.count))
            place += run.count
        x = out
    return x


def _turned(low: Lowering, x: View) -> View:
    """An image of many channels with its channels last: short lines of every other element are slow to go through."""
    if len(x.shape) != 4 or x.dtype.itemsize != 4 or x.strides[3] != 1 or x.shape[1] < SHORT_LINE:
        return x
    images, channels, height, width = x.shape
    return low.copied(x, low.new((images, height, width, channels), x.dtype).permuted([0, 3, 1, 2]))


def _runs_of(size: int, count: int, window: _Window) -> Iterator[_Run]:
    """Windows that follow each other and have the same taps in the data."""
    if window.taps > MAX_TAPS:
        raise NotNative(f"windows of {window.taps} along an axis")
    begins = [place * window.stride - window.before for place in range(count)]
    for (first, last), run in groupby(begins, lambda begin: _inside(begin, window.taps, window.gap, size)):
        if first > last:
            raise NotNative("a window that lies in the padding alone")
        places = list(run)
        yield _Run(places[0], len(places), first, last)


def _inside(begin: int, taps: int, gap: int, size: int) -> tuple[int, int]:
    """The first and the last tap of a window that lie in the data."""
    return max(0, -(begin // gap)), min(taps - 1, (size - 1 - begin) // gap)


def sum_windows(low: Lowering, name: str, x: View, at: Windows, counts: Sequence[int]) -> View:
    """Sums over the last axes of a value that has its border; NotNative where a window has too many taps."""
    lead = len(x.shape) - len(at.kernel)
    if not x.count or not math.prod(counts) or max(at.kernel) > MAX_TAPS:
        raise NotNative(f"windows of {max(at.kernel)} along an axis, or of nothing")
    for axis, (taps, stride, gap, count) in enumerate(
        zip(at.kernel, at.strides, at.dilations, counts, strict=True), start=lead
    ):
        if (taps, stride, count) == (1, 1, x.shape[axis]):
            continue
        views = [part(x, axis, tap * gap, count, stride) for tap in range(taps)]
        out = low.in_order(low.new(views[0].shape, x.dtype), x)
        _combined(low, name, "add", views, out)
        x = out
    return x


def _combined(
    low: Lowering, name: str, function: str, views: list[View], out: View, factor: float | None = None
) -> None:
    label = out.dtype.label
    value = load(0, label)
    for k in range(1, len(views)):
        value = apply(function, value, load(k, label))
    if factor is not None:
        value = apply("mul", value, const(factor, label))
    nest = nest_of([*views, out], out.shape)
    if nest is None:
        raise NotNative("too many axes for one loop")
    operands = [nest.operand(i, label) for i in range(len(views) + 1)]
    stage = Map((Store(len(views), value),))
    low.row_kernel(
        name, RowKernel(len(nest.outer), tuple(operands[:-1]), (operands[-1],), (stage,)), nest, [*views, out]
    )
