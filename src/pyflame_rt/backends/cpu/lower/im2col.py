"""Convolutions of float32 in every form as products (im2col): windows are copied into rows, register tiles multiply.

Convolutions of images in their usual forms have kernels of their own, which copy nothing (`convolution.py`). This takes
lines, volumes, groups, and weights that are made at run time. Where every channel has filters of its own there is no
product: the taps are views of the image, summed in one loop.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

from pyflame_rt.backends.cpu.ir.kernel_program import Map, RowKernel, Store, apply, load
from pyflame_rt.backends.cpu.jit.target import host
from pyflame_rt.backends.cpu.kernels.tiles.register_tile import PLAIN, Finish, rows_together, tile_for
from pyflame_rt.backends.cpu.lower.gemm import in_panels, row_panels
from pyflame_rt.backends.cpu.lower.lowering import Lowering, NotNative
from pyflame_rt.backends.cpu.lower.row_loops import nest_of
from pyflame_rt.backends.cpu.lower.tiled_products import packed_step
from pyflame_rt.backends.cpu.memory.packed_weights import panels
from pyflame_rt.graph import DType
from pyflame_rt.ops.onnx.conv import Conv

if TYPE_CHECKING:
    from pyflame_rt.backends.cpu.memory.buffer_views import View

__all__ = ["channel_filters", "window_product"]

# Taps that one loop reads, each with its weights.
TAPS_TOGETHER = 8
# Products summed at a time where weights are made at run time, which are mostly trained: errors of one step are what
# the next begins with, and those of long sums of float32 grow with their length.
TRAINED_DEPTH = 1024
_ADDED = Finish(apply("add", load(0, "float32"), load(1, "float32")), ("full",))


def window_product(low: Lowering, windows: View, weights: View, groups: int) -> View:
    """Windows [images, channels, places.., taps..] times weights [outputs, channels / groups, taps..]."""
    rank = len(weights.shape) - 2
    images, channels, *sizes = windows.shape
    space, taps, each = sizes[:rank], sizes[rank:], channels // groups
    width, depth, rows = weights.shape[0] // groups, each * math.prod(taps), images * math.prod(space)
    last = windows.strides[1] == 1  # channels lie next to each other
    columns = _columns(low, windows, groups, last=last)
    filters = _filters(low, weights, (groups, width, each, *taps), last=last)
    out = low.new((rows, groups * width), DType.Float32)
    for group, runs in enumerate(filters):
        matrix = _entry(columns, group).reshaped((rows, depth) if last else (depth, rows))
        assert matrix is not None  # a piece of what was copied
        target = replace(out, shape=(rows, width), offset=out.offset + group * width)
        first = 0
        for number, packed in enumerate(runs):
            part = _run(matrix, int(last), first, packed.shape[1])
            x = part if last else row_panels(low, part, rows_together(tile_for(host(), width)))
            operands, finish = ([target], _ADDED) if number else ([], PLAIN)
            packed_step(low, Conv.name, x, packed, operands, finish, target)
            first += packed.shape[1]
    whole = out.reshaped((images, *space, groups * width))
    assert whole is not None
    return whole.permuted([0, rank + 1, *range(1, rank + 1)])


def _entry(view: View, index: int) -> View:
    """One entry of the first axis."""
    return replace(view, shape=view.shape[1:], strides=view.strides[1:], offset=view.offset + index * view.strides[0])


def _columns(low: Lowering, windows: View, groups: int, *, last: bool) -> View:
    """Windows as a matrix for each group: rows of windows where channels are last, else columns."""
    images, channels, *sizes = windows.shape
    rank, each = len(sizes) // 2, channels // groups
    split = replace(
        windows,
        shape=(images, groups, each, *sizes),
        strides=(windows.strides[0], windows.strides[1] * each, *windows.strides[1:]),
    )
    space, taps = list(range(3, 3 + rank)), list(range(3 + rank, 3 + 2 * rank))
    return low.copied(split.permuted([1, 0, *space, *taps, 2] if last else [1, 2, *taps, 0, *space]))


def _run(matrix: View, axis: int, first: int, length: int) -> View:
    """A part of the depth of a matrix."""
    shape = (*matrix.shape[:axis], length, *matrix.shape[axis + 1 :])
    return replace(matrix, shape=shape, offset=matrix.offset + first * matrix.strides[axis])


def _filters(low: Lowering, weights: View, shape: tuple[int, ...], *, last: bool) -> list[list[View]]:
    """Panels of weights [depth, width] for each group, the depth in the order of the windows.

    They are packed once where weights are constant, on every run otherwise, and then by runs of the depth.
    """
    groups, width, each, *taps = shape
    order = [0, *range(3, len(shape)), 2, 1] if last else [0, 2, *range(3, len(shape)), 1]
    matrices, wide = (groups, each * math.prod(taps), width), tile_for(host(), width).vectors * host().lanes(4)
    array = weights.buffer.array
    if array is not None:
        return [[low.constant(panels(m, wide))] for m in array.reshape(shape).transpose(order).reshape(matrices)]
    split = weights.reshaped(shape)
    assert split is not None  # contiguous
    turned = split.permuted(order)
    view = (low.copied(turned) if last else turned).reshaped(matrices)
    assert view is not None
    depth = matrices[1]
    count = 1
    while (2 * count + 1) * TRAINED_DEPTH <= 2 * depth:
        count += 1
    ends = [depth * k // count for k in range(count + 1)]
    return [
        [in_panels(low, _run(_entry(view, group), 0, a, b - a), wide) for a, b in pairwise(ends)]
        for group in range(groups)
    ]


def channel_filters(low: Lowering, windows: View, weights: View) -> View:
    """Windows [images, channels, places.., taps..] with a filter for each channel: taps times weights, summed."""
    rank = len(weights.shape) - 2
    shape, taps = windows.shape[: 2 + rank], weights.shape[2:]
    places = [tuple((k // math.prod(taps[i + 1 :])) % taps[i] for i in range(rank)) for k in range(math.prod(taps))]
    image = replace(windows, shape=shape, strides=windows.strides[: 2 + rank])
    out = low.in_order(low.new(shape, DType.Float32), image)
    for first in range(0, len(places), TAPS_TOGETHER):
        views = [out] if first else []
        for place in places[first : first + TAPS_TOGETHER]:
            moved = sum(p * s for p, s in zip(place, windows.strides[2 + rank :], strict=True))
            factor = sum(p * s for p, s in zip(place, weights.strides[2:], strict=True))
            views.append(replace(image, offset=image.offset + moved))
            spread = (0, weights.strides[0], *(0,) * rank)
            views.append(replace(weights, shape=shape, strides=spread, offset=weights.offset + factor))
        _add_products(low, views, out, start=bool(first))
    return out


def _add_products(low: Lowering, views: list[View], out: View, *, start: bool) -> None:
    """Pairs of views multiplied and added, to the first view where there is a ``start``."""
    begin = int(start)
    value = load(0, "float32") if start else None
    for k in range(begin, len(views), 2):
        product = apply("mul", load(k, "float32"), load(k + 1, "float32"))
        value = product if value is None else apply("add", value, product)
    assert value is not None
    nest = nest_of([*views, out], out.shape)
    if nest is None:
        raise NotNative("too many axes for one loop")
    operands = [nest.operand(i, "float32") for i in range(len(views) + 1)]
    stage = Map((Store(len(views), value),))
    kernel = RowKernel(len(nest.outer), tuple(operands[:-1]), (operands[-1],), (stage,))
    low.row_kernel(Conv.name, kernel, nest, [*views, out])
