"""Maxima and sums of windows, one axis after the other: a loop over as many views as a window has taps.

A maximum may be counted twice: a tap that lies outside the data stands for its nearest neighbour in the window, so
that borders need no copy with padding and no kernel of their own. NaN stays NaN, as in the reference.
"""

from __future__ import annotations

import math
from itertools import groupby
from typing import TYPE_CHECKING

from pyflame_rt.backends.cpu.ir.kernel_program import Map, RowKernel, Store, apply, load
from pyflame_rt.backends.cpu.lower.box_copies import part
from pyflame_rt.backends.cpu.lower.lowering import Lowering, NotNative
from pyflame_rt.backends.cpu.lower.row_loops import nest_of
from pyflame_rt.ops.onnx.maxpool import MaxPool

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyflame_rt.backends.cpu.memory.buffer_views import View
    from pyflame_rt.ops.onnx.windows import Windows

__all__ = ["MAX_TAPS", "max_windows", "sum_windows"]

# Taps along one axis, each a stream of memory.
MAX_TAPS = 16


def max_windows(low: Lowering, x: View, at: Windows) -> View:
    """Maxima over the last axes of a value; NotNative where a window holds no element, or too many along an axis."""
    lead = len(x.shape) - len(at.kernel)
    counts = [int(n) for n in at.output(x.shape[lead:])]  # type: ignore[arg-type]
    if not math.prod(x.shape) or not math.prod(counts):
        raise NotNative("there is nothing to pool")
    for axis, count in enumerate(counts):
        window = (at.kernel[axis], at.strides[axis], at.dilations[axis], at.padding[axis][0])
        if window != (1, 1, 1, 0) or count != x.shape[lead + axis]:
            x = _along(low, x, lead + axis, count, window)
    return x


def _along(low: Lowering, x: View, axis: int, count: int, window: tuple[int, int, int, int]) -> View:
    taps, stride, gap, before = window
    if taps > MAX_TAPS:
        raise NotNative(f"windows of {taps} along an axis")
    size = x.shape[axis]
    shape = (*x.shape[:axis], count, *x.shape[axis + 1 :])
    out = low.in_order(low.new(shape, x.dtype), x)
    inside = [_inside(place * stride - before, taps, gap, size) for place in range(count)]
    place = 0
    for (first, last), run in groupby(inside):
        if first > last:
            raise NotNative("a window that lies in the padding alone")
        length = len(list(run))
        begin = place * stride - before
        starts = [begin + min(max(tap, first), last) * gap for tap in range(taps)]
        views = [part(x, axis, start, length, stride) for start in starts]
        _combined(low, MaxPool.name, "max", views, part(out, axis, place, length))
        place += length
    return out


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


def _combined(low: Lowering, name: str, function: str, views: list[View], out: View) -> None:
    label = out.dtype.label
    value = load(0, label)
    for k in range(1, len(views)):
        value = apply(function, value, load(k, label))
    nest = nest_of([*views, out], out.shape)
    if nest is None:
        raise NotNative("too many axes for one loop")
    operands = [nest.operand(i, label) for i in range(len(views) + 1)]
    stage = Map((Store(len(views), value),))
    low.row_kernel(
        name, RowKernel(len(nest.outer), tuple(operands[:-1]), (operands[-1],), (stage,)), nest, [*views, out]
    )
