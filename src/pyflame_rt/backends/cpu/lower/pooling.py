"""Windows in every form: a view of overlapping boxes, folded. The library's pooling takes the usual ones first."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.backends.cpu.graph.op_support import LOOP_TYPES
from pyflame_rt.backends.cpu.ir.instructions import identity
from pyflame_rt.backends.cpu.ir.kernel_program import (
    Map,
    Reduce,
    Reduction,
    RowKernel,
    Scalar,
    Store,
    apply,
    const,
    index,
    load,
    scalar,
)
from pyflame_rt.backends.cpu.lower.box_copies import padded, part
from pyflame_rt.backends.cpu.lower.dot_products import dot_products, takes_dots
from pyflame_rt.backends.cpu.lower.im2col import channel_filters, window_product
from pyflame_rt.backends.cpu.lower.loop_nests import fold_axes, row_step, rows_of
from pyflame_rt.backends.cpu.lower.lowering import Lowering, NotNative, lowers
from pyflame_rt.backends.cpu.lower.max_windows import max_windows, sum_windows
from pyflame_rt.backends.cpu.lower.row_loops import nest_of
from pyflame_rt.backends.cpu.lower.tiled_products import MAX_DEPTH
from pyflame_rt.backends.cpu.memory.buffer_views import View, contiguous_strides
from pyflame_rt.graph import DType
from pyflame_rt.ops.onnx.arithmetic import Add
from pyflame_rt.ops.onnx.conv import Conv
from pyflame_rt.ops.onnx.maxpool import MaxPool, MaxPoolIndices, MaxPoolValues
from pyflame_rt.ops.onnx.pool import ReduceWindow
from pyflame_rt.ops.onnx.windows import Windows, pad_pairs, windows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyflame_rt.opt.specialized_graph import SpecializedNode

__all__ = ["add_bias", "boxes", "convolve", "greatest"]


def boxes(low: Lowering, x: View, at: Windows, value: Any) -> View:
    """All windows over the last axes as a view (..., windows, taps), on a copy with a border where there is one."""
    lead = len(x.shape) - len(at.kernel)
    counts = [int(n) for n in at.output(x.shape[lead:])]  # type: ignore[arg-type]
    x = _bordered(low, x, at, value)
    strides = x.strides[lead:]
    return replace(
        x,
        shape=(*x.shape[:lead], *counts, *at.kernel),
        strides=(
            *x.strides[:lead],
            *(s * step for s, step in zip(strides, at.strides, strict=True)),
            *(s * gap for s, gap in zip(strides, at.dilations, strict=True)),
        ),
    )


def _bordered(low: Lowering, x: View, at: Windows, value: Any) -> View:
    """As much of a value as its windows reach, with the border they read."""
    lead = len(x.shape) - len(at.kernel)
    reach = at.reach(x.shape[lead:])
    for axis, (_, after) in enumerate(reach):
        if after < 0:
            x = part(x, lead + axis, 0, x.shape[lead + axis] + after)
    wider = [(0, 0)] * lead + [(b, max(a, 0)) for b, a in reach]
    return padded(low, x, wider, value) if any(b or a for b, a in wider) else x


def _least(dtype: DType) -> float:
    return identity("max", "float32" if dtype.is_float and dtype is not DType.Float64 else dtype.label)


def _taps(view: View, at: Windows) -> list[int]:
    rank = len(view.shape)
    return list(range(rank - len(at.kernel), rank))


@lowers(ReduceWindow)
def reduce_window(low: Lowering, step: SpecializedNode) -> None:
    """Sums or maxima of windows over all axes."""
    x, given = low.strided(step.node.inputs[0]), step.attributes
    if x.dtype not in LOOP_TYPES or x.dtype is DType.Bool or given["kind"] not in ("sum", "max"):
        raise NotNative(f"a windowed {given['kind']} of {x.dtype.label}")
    pairs = tuple(pad_pairs(given["pads"], len(x.shape)))
    at = Windows(tuple(given["window"]), tuple(given["strides"]), tuple(given["dilations"]), pairs, partial=True)
    low.places[step.node.outputs[0]] = _sums(low, x, at) if given["kind"] == "sum" else greatest(low, x, at)


def _sums(low: Lowering, x: View, at: Windows) -> View:
    """Sums of windows over all axes."""
    kept = low.mark()
    try:
        counts = [int(n) for n in at.output(x.shape)]  # type: ignore[arg-type]
        return sum_windows(low, ReduceWindow.name, _bordered(low, x, at, 0), at, counts)
    except NotNative:
        low.back_to(kept)
    view = boxes(low, x, at, 0)
    return fold_axes(low, ReduceWindow.name, "sum", view, _taps(view, at))


def _pool_windows(step: SpecializedNode, x: View) -> Windows:
    names = ("strides", "dilations", "pads", "auto_pad", "ceil_mode")
    given = {n: step.attributes[n] for n in names if step.attributes.get(n) is not None}
    return windows(x.shape[2:], step.attributes["kernel_shape"], **given, partial=True)


@lowers(MaxPoolValues)
def max_pool_values(low: Lowering, step: SpecializedNode) -> None:
    """Maxima of windows over space."""
    x = low.strided(step.node.inputs[0])
    if x.dtype not in LOOP_TYPES or x.dtype is DType.Bool:
        raise NotNative(f"pooling of {x.dtype.label}")
    low.places[step.node.outputs[0]] = greatest(low, x, _pool_windows(step, x))


def greatest(low: Lowering, x: View, at: Windows) -> View:
    """Maxima of windows over the last axes."""
    kept = low.mark()
    try:
        return max_windows(low, x, at)
    except NotNative:
        low.back_to(kept)
    view = boxes(low, x, at, _least(x.dtype))
    return fold_axes(low, MaxPool.name, "max", view, _taps(view, at))


@lowers(MaxPoolIndices)
def max_pool_indices(low: Lowering, step: SpecializedNode) -> None:
    """Where in the flattened input each window has its first maximum."""
    x = low.strided(step.node.inputs[0])
    if x.dtype not in LOOP_TYPES or x.dtype is DType.Bool:
        raise NotNative(f"pooling of {x.dtype.label}")
    at = _pool_windows(step, x)
    view = boxes(low, x, at, _least(x.dtype))
    rows = rows_of(view, _taps(view, at), low)
    places = _flat_places(x.shape, at, column_major=bool(step.attributes["storage_order"]))
    outside = low.constant(np.ascontiguousarray(places))
    lead = (0,) * 2
    flat = View(outside.buffer, DType.Int64, rows.shape, (*lead, *contiguous_strides(places.shape)))
    image = low.constant(np.arange(math.prod(x.shape[:2]), dtype=np.int64) * math.prod(x.shape[2:]))
    base = View(image.buffer, DType.Int64, rows.shape, (x.shape[1], 1, *(0,) * (len(rows.shape) - 2)))
    out = low.output(step)
    target = View(out.buffer, out.dtype, rows.shape, (*out.strides, 0))
    value = load(0, x.dtype.label)
    found = apply("eq", value, scalar("top", value.dtype))
    if x.dtype.is_float:
        found = apply("or", found, apply("isnan", value))
    # Padding holds no maximum of its own: its places are negative and left out.
    inside = apply("ge", load(1, "int64"), const(0, "int64"))
    first = apply("where", apply("and", found, inside), index(), const(2**62, "int64"))
    stages = [
        Reduce((Reduction("top", "max", value),)),
        Reduce((Reduction("tap", "min", first),)),
        Reduce((Reduction("place", "max", _at_tap()),)),
        Scalar("out", apply("add", scalar("place", "int64"), load(2, "int64")), 3),
    ]
    row_step(low, MaxPoolIndices.name, [rows, flat, base, target], 1, stages)


def _at_tap() -> Any:
    here = apply("eq", index(), scalar("tap", "int64"))
    return apply("where", here, load(1, "int64"), const(0, "int64"))


def _flat_places(shape: Sequence[int], at: Windows, *, column_major: bool) -> np.ndarray[Any, Any]:
    """For each window and tap the place in one image, -1 in the padding: (windows, taps)."""
    sizes = shape[2:]
    counts = [int(n) for n in at.output(sizes)]  # type: ignore[arg-type]
    axes = []
    for n, count, k, s, d, (before, _) in zip(
        sizes, counts, at.kernel, at.strides, at.dilations, at.padding, strict=True
    ):
        places = np.arange(count)[:, None] * s + np.arange(k)[None] * d - before
        axes.append(np.where((places >= 0) & (places < n), places, -1))
    order = range(len(sizes)) if not column_major else range(len(sizes) - 1, -1, -1)
    steps, step = [0] * len(sizes), 1
    for axis in reversed(order):
        steps[axis] = step
        step *= sizes[axis]
    rank = len(sizes)
    total, outside = np.zeros((1,) * (2 * rank), np.int64), np.zeros((1,) * (2 * rank), bool)
    for k, places in enumerate(axes):
        shape_k = [1] * (2 * rank)
        shape_k[k], shape_k[rank + k] = places.shape
        total = total + places.reshape(shape_k) * steps[k]
        outside = outside | (places.reshape(shape_k) < 0)
    result = np.where(outside, -1, total)
    return result.reshape(*counts, math.prod(at.kernel))


def convolve(low: Lowering, x: View, weights: View, at: Windows, groups: int) -> View:
    """A convolution in any type loops have: windows as rows, times the weights' rows."""
    n = x.shape[0]
    outputs, each = weights.shape[0], weights.shape[1]
    view = boxes(low, x, at, 0)
    if x.dtype is DType.Float32 and view.count:
        if each == 1 and outputs == groups:
            return channel_filters(low, view, weights)
        if each * math.prod(at.kernel) <= MAX_DEPTH:
            return window_product(low, view, weights, groups)
    space, rank = view.shape[2 : 2 + len(at.kernel)], len(at.kernel)
    split = replace(
        view,
        shape=(n, groups, each, *view.shape[2:]),
        strides=(view.strides[0], view.strides[1] * each, *view.strides[1:]),
    )
    order = [0, 1, *range(3, 3 + rank), 2, *range(3 + rank, 3 + 2 * rank)]
    depth = each * math.prod(at.kernel)
    columns = low.copied(split.permuted(order)).reshaped((n, groups, *space, depth))
    kernel = weights.reshaped((groups, outputs // groups, depth))
    assert columns is not None
    assert kernel is not None
    out = low.new((n, outputs, *space), x.dtype)
    pixels = math.prod(space)
    left = View(columns.buffer, x.dtype, (n, groups, pixels, depth), contiguous_strides((n, groups, pixels, depth)))
    right = replace(kernel, shape=(n, *kernel.shape), strides=(0, *kernel.strides))
    if takes_dots(left, right):
        each_group = outputs // groups * pixels
        steps = (groups * each_group, each_group, 1, pixels)
        dot_products(
            low, Conv.name, left, right, replace(out, shape=(n, groups, pixels, outputs // groups), strides=steps)
        )
        return out
    full = (n, groups, outputs // groups, *space, depth)
    a = View(columns.buffer, x.dtype, full, (*columns.strides[:2], 0, *columns.strides[2:]))
    b = View(
        kernel.buffer, weights.dtype, full, (0, kernel.strides[0], kernel.strides[1], *(0,) * rank, 1), kernel.offset
    )
    target = View(out.buffer, out.dtype, full, (*contiguous_strides(full[:-1]), 0))
    value = apply("mul", load(0, x.dtype.label), load(1, weights.dtype.label))
    stages = [Reduce((Reduction("r", "sum", value),)), Scalar("out", scalar("r", value.dtype), 2)]
    row_step(low, Conv.name, [a, b, target], 1, stages)
    return out


def add_bias(low: Lowering, y: View, bias: View) -> View:
    """One number for each channel, added."""
    spread = replace(bias, shape=y.shape, strides=(0, bias.strides[0], *(0,) * (len(y.shape) - 2)))
    nest = nest_of([y, spread, y], y.shape)
    if nest is None:
        raise NotNative("too many axes for one loop")
    operands = [nest.operand(i, v.dtype.label) for i, v in enumerate((y, spread, y))]
    value = apply("add", load(0, y.dtype.label), load(1, bias.dtype.label))
    kernel = RowKernel(len(nest.outer), tuple(operands[:2]), (operands[2],), (Map((Store(2, value),)),))
    low.row_kernel(Add.name, kernel, nest, [y, spread, y])
    return y
