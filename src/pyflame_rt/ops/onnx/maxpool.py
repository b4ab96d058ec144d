"""Maxima of windows, where they were, and the way back."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.graph import DimLike, DType, Shape, TensorType
from pyflame_rt.ops.core.flop_counts import window_flops
from pyflame_rt.ops.core.guards import Within, at_least, check_contents, has_rank, has_shape
from pyflame_rt.ops.core.registry import operator, primitive
from pyflame_rt.ops.core.size_arithmetic import known_ints, product
from pyflame_rt.ops.core.type_rules import tensor_like
from pyflame_rt.ops.core.value import Value, constant, wanted
from pyflame_rt.ops.onnx.index import ScatterElements
from pyflame_rt.ops.onnx.pool import pool_needs, pool_type
from pyflame_rt.ops.onnx.shape import Expand, Reshape
from pyflame_rt.ops.onnx.shape import Shape as ShapeOf
from pyflame_rt.ops.onnx.slicing import Pad
from pyflame_rt.ops.onnx.windows import Windows, pad_pairs, windows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


def lowest(ops: Any, x: Any) -> Any:
    """The smallest value of an array's element type."""
    dtype = ops.dtype(x)
    if dtype.kind in "iu":
        return int(np.iinfo(dtype).min)
    return -math.inf


def _first_max(
    ops: Any,
    x: Any,
    window: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    padding: Sequence[tuple[int, int]],
) -> Any:
    """The number of the tap where each window first has its maximum."""
    padded = _padded(ops, x, padding, lowest(ops, x))
    taps = list(itertools.product(*map(range, window)))
    best = _tap(ops, padded, taps[0], window, strides, dilations)
    found = ops.zeros(tuple(best.shape), dtype=np.dtype(np.int64))
    for number, tap in enumerate(taps[1:], 1):
        part = _tap(ops, padded, tap, window, strides, dilations)
        # NaN wins, as in a maximum; the first of equals stays.
        nan = ops.logical_and(ops.not_equal(part, part), ops.equal(best, best))
        better = ops.logical_or(ops.greater(part, best), nan)
        best, found = ops.where(better, part, best), ops.where(better, number, found)
    return found


def _padded(ops: Any, x: Any, padding: Sequence[tuple[int, int]], value: Any) -> Any:
    """Padding, where a negative ``after`` cuts."""
    cut = [min(after, 0) for _, after in padding]
    if any(cut):
        x = ops.slice(x, [0] * len(cut), [n + c for n, c in zip(x.shape, cut, strict=True)], [1] * len(cut))
    wide = [(before, max(after, 0)) for before, after in padding]
    return ops.pad(x, wide, mode="constant", constant_values=value) if any(map(any, wide)) else x


def _tap(
    ops: Any, x: Any, tap: Sequence[int], window: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> Any:
    """What one tap sees of every window."""
    starts: list[int] = []
    stops: list[int] = []
    for n, t, k, s, d in zip(x.shape, tap, window, strides, dilations, strict=True):
        count = (n - (k - 1) * d - 1) // s + 1
        starts.append(t * d)
        stops.append(t * d + (count - 1) * s + 1)
    return ops.slice(x, starts, stops, list(strides))


def _spatial(x: Any) -> tuple[int, ...]:
    return tuple(x.shape[2:])


def _max_type(X: Value, /, *, kernel_shape: list[int], storage_order: int = 0, **geometry: Any) -> TensorType:
    return pool_type(X, kernel=kernel_shape, **geometry)


def _max_indices_type(X: Value, /, *, kernel_shape: list[int], storage_order: int = 0, **geometry: Any) -> TensorType:
    return pool_type(X, DType.Int64, kernel=kernel_shape, **geometry)


def _max_vjp(g: Value, y: Value, X: Value, **attributes: Any) -> tuple[Value]:
    """The gradient goes to where the maximum was."""
    indices = MaxPoolIndices(X, **attributes, storage_order=0)
    blank = Reshape(X * 0.0, [-1])
    flat = ScatterElements(blank, Reshape(indices, [-1]), Reshape(g, [-1]), axis=0, reduction="add")
    return (Reshape(flat, ShapeOf(X)),)


@primitive(since=1, domain="pyflame", infer=_max_type, requires=pool_needs, vjp=_max_vjp)
def MaxPoolValues(
    ops: Any,
    X: Any,
    /,
    *,
    kernel_shape: list[int],
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: list[int] | None = None,
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Any:
    """The first output of MaxPool."""
    geometry = windows(
        _spatial(X),
        kernel_shape,
        strides=strides,
        dilations=dilations,
        pads=pads,
        auto_pad=auto_pad,
        ceil_mode=ceil_mode,
        partial=True,
    )
    padding = geometry.reach(_spatial(X))
    return ops.max_pool(X, geometry.kernel, strides=geometry.strides, padding=padding, dilation=geometry.dilations)


@primitive(since=1, domain="pyflame", infer=_max_indices_type, requires=pool_needs)
def MaxPoolIndices(
    ops: Any,
    X: Any,
    /,
    *,
    kernel_shape: list[int],
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: list[int] | None = None,
    pads: list[int] | None = None,
    storage_order: int = 0,
    strides: list[int] | None = None,
) -> Any:
    """The second output of MaxPool: places in the flattened input."""
    geometry = windows(
        _spatial(X),
        kernel_shape,
        strides=strides,
        dilations=dilations,
        pads=pads,
        auto_pad=auto_pad,
        ceil_mode=ceil_mode,
        partial=True,
    )
    reach = geometry.reach(_spatial(X))
    ones = (1, 1)
    tap = _first_max(
        ops,
        X,
        (*ones, *geometry.kernel),
        (*ones, *geometry.strides),
        (*ones, *geometry.dilations),
        [(0, 0), (0, 0), *reach],
    )
    return _flat_index(ops, tap, X.shape, geometry, reach, column_major=bool(storage_order))


def _flat_index(
    ops: Any, tap: Any, shape: Sequence[int], geometry: Windows, reach: Sequence[tuple[int, int]], *, column_major: bool
) -> Any:
    """Flat places from the numbers of taps: unravel, move by the window, ravel."""
    int64, spatial = np.dtype(np.int64), tuple(shape[2:])
    rank = len(spatial)
    weights = [math.prod(spatial[:axis] if column_major else spatial[axis + 1 :]) for axis in range(rank)]
    total = ops.zeros(tuple(tap.shape), dtype=int64)
    for axis in reversed(range(rank)):
        k, size = geometry.kernel[axis], spatial[axis]
        tap, digit = ops.floor_divide(tap, k), ops.mod(tap, k)
        first = ops.arange(int(tap.shape[2 + axis]), dtype=int64) * geometry.strides[axis] - reach[axis][0]
        place = ops.add(digit * geometry.dilations[axis], ops.reshape(first, (-1,) + (1,) * (rank - 1 - axis)))
        total = ops.add(total, ops.clip(place, 0, size - 1) * weights[axis])
    planes = ops.arange(shape[0] * shape[1], dtype=int64) * math.prod(spatial)
    return ops.add(total, ops.reshape(planes, (shape[0], shape[1]) + (1,) * rank))


@operator(since=22, types="T > T int64", kind="reduce", flops=window_flops)
def MaxPool(
    X: Value,
    /,
    *,
    kernel_shape: list[int],
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: list[int] | None = None,
    pads: list[int] | None = None,
    storage_order: int = 0,
    strides: list[int] | None = None,
) -> Value | tuple[Value, Value]:
    """Maxima of windows, and where in the flattened input they are."""
    geometry: dict[str, Any] = {
        "kernel_shape": kernel_shape,
        "auto_pad": auto_pad,
        "ceil_mode": ceil_mode,
        "dilations": dilations,
        "pads": pads,
        "strides": strides,
    }
    values = MaxPoolValues(X, **geometry)
    # Indices cost many times the maxima.
    return (values, MaxPoolIndices(X, **geometry, storage_order=storage_order)) if wanted(1) else values


# ---------------------------------------------------------------------- back to places


def _unpool_type(
    X: Value,
    I: Value,  # noqa: E741
    output_shape: Value | None = None,
    /,
    *,
    kernel_shape: list[int],
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> TensorType:
    if output_shape is not None:
        return tensor_like(X, None if output_shape.known is None else output_shape.ints())
    shape = X.tensor_type.shape
    return tensor_like(X, None if shape is None else _unpooled(shape, kernel_shape, pads, strides))


def _unpooled(shape: Sequence[DimLike], kernel: Sequence[int], pads: Any, strides: Any) -> list[DimLike]:
    steps = [1] * len(kernel) if strides is None else strides
    padding = pad_pairs(pads, len(kernel))
    return [
        *shape[:2],
        *(
            None if n is None else (n - 1) * s + k - sum(p)
            for n, k, s, p in zip(shape[2:], kernel, steps, padding, strict=True)
        ),
    ]


def _unpool_needs(
    X: Value,
    I: Value,  # noqa: E741
    output_shape: Value | None = None,
    /,
    *,
    kernel_shape: list[int],
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Iterator[Within]:
    has_rank("X", X, len(kernel_shape) + 2)
    has_shape("I", I, X.shape, "that of X")
    sizes = _unpooled(X.shape, kernel_shape, pads, strides)
    count = product(sizes)
    yield Within("I", I, 0, None if count is None else count - 1)
    if output_shape is not None:
        has_shape("output_shape", output_shape, [X.rank], "one size for each axis")
        for axis, (size, given) in enumerate(zip(sizes, known_ints(output_shape) or [], strict=False)):
            at_least(f"output_shape at [{axis}]", given, size if isinstance(size, int) else 0)


@operator(since=22, infer=_unpool_type, requires=_unpool_needs, types="T1:float int64 int64 > T1", known=(2,))
def MaxUnpool(
    X: Value,
    I: Value,  # noqa: E741
    output_shape: Value | None = None,
    /,
    *,
    kernel_shape: list[int],
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Value:
    """Put values back where MaxPool found them; zeros elsewhere."""
    inner = [int(n) for n in _unpooled(X.shape, kernel_shape, pads, strides)]  # type: ignore[arg-type]
    blank = Expand(constant(0, X), [math.prod(inner)])
    flat = ScatterElements(blank, Reshape(I, [-1]), Reshape(X, [-1]), axis=0)
    result = Reshape(flat, inner)
    if output_shape is None:
        return result
    # Indices belong to the inferred size; a larger one adds zeros behind.
    after = [want - have for want, have in zip(output_shape.ints(), inner, strict=True)]
    return Pad(result, [*[0] * len(inner), *after])


def _roi_type(X: Value, rois: Value, /, *, pooled_shape: list[int], spatial_scale: float = 1.0) -> TensorType:
    channels = None if X.tensor_type.shape is None else X.shape[1]
    count = None if rois.tensor_type.shape is None else rois.shape[0]
    return TensorType(X.dtype, Shape([count, channels, *pooled_shape]))


def _roi_needs(X: Value, rois: Value, /, **_: Any) -> None:
    has_rank("X", X, 4)
    has_shape("rois", rois, [None, 5], "regions; image, left, top, right, bottom")
    images = X.shape[0]
    if rois.known is not None and isinstance(images, int):
        check_contents("the image of a region", rois.known[:, 0].astype(np.int64), 0, images - 1)


@primitive(since=22, infer=_roi_type, requires=_roi_needs, host=True, types="T:float T > T")
def MaxRoiPool(ops: Any, X: Any, rois: Any, /, *, pooled_shape: list[int], spatial_scale: float = 1.0) -> Any:
    """Maxima over a grid laid on each region of interest."""
    height, width = pooled_shape
    result = np.zeros((len(rois), X.shape[1], height, width), dtype=X.dtype)
    # Corners are rounded, halves up, in float32, and belong to the region.
    scaled = rois[:, 1:].astype(np.float32) * np.float32(spatial_scale)
    corners = np.floor(scaled + np.float32(0.5)).astype(np.int64)
    for r, (left, top, right, bottom) in enumerate(corners.tolist()):
        batch = rois[r, 0]
        rows = _bins(top, max(bottom - top + 1, 1), height, X.shape[2])
        columns = _bins(left, max(right - left + 1, 1), width, X.shape[3])
        for i, (y0, y1) in enumerate(rows):
            for j, (x0, x1) in enumerate(columns):
                if y1 > y0 and x1 > x0:
                    result[r, :, i, j] = X[int(batch), :, y0:y1, x0:x1].max(axis=(1, 2))
    return result


def _bins(start: int, size: int, count: int, limit: int) -> list[tuple[int, int]]:
    """Ends of ``count`` equal parts, cut to the image."""
    step = np.float32(size) / np.float32(count)
    ends = [(start + math.floor(i * step), start + math.ceil((i + 1) * step)) for i in range(count)]
    return [(min(max(a, 0), limit), min(max(b, 0), limit)) for a, b in ends]
