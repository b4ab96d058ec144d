"""Convolution whose taps are moved."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.graph import DType, TensorType
from pyflame_rt.ops.core.guards import at_least, divides, has_rank, has_shape
from pyflame_rt.ops.core.registry import operator
from pyflame_rt.ops.core.size_arithmetic import product
from pyflame_rt.ops.core.value import Value, constant
from pyflame_rt.ops.onnx.activation import Clip
from pyflame_rt.ops.onnx.cast import Cast
from pyflame_rt.ops.onnx.conv import conv_type, geometry_of
from pyflame_rt.ops.onnx.index import Gather, GatherElements
from pyflame_rt.ops.onnx.math import Floor
from pyflame_rt.ops.onnx.matmul import MatMul
from pyflame_rt.ops.onnx.shape import Expand, Reshape

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyflame_rt.ops.onnx.windows import Windows


def _deform_type(
    X: Value,
    W: Value,
    offset: Value,
    B: Value | None = None,
    mask: Value | None = None,
    /,
    *,
    offset_group: int,
    **attributes: Any,
) -> TensorType:
    return conv_type(X, W, **attributes)


def _deform_needs(
    X: Value,
    W: Value,
    offset: Value,
    B: Value | None = None,
    mask: Value | None = None,
    /,
    *,
    offset_group: int,
    **attributes: Any,
) -> None:
    has_rank("W", W, X.rank)
    shape = conv_type(X, W, **attributes).shape
    if shape is None:
        return
    batch, _, *out = shape
    taps = product(W.shape[2:])
    at_least("offset_group", offset_group, 1)
    divides("the channels of X", X.shape[1], offset_group, "offset_group")
    each = None if taps is None else offset_group * taps
    moved = None if each is None else each * len(out)
    has_shape("offset", offset, [batch, moved, *out], "batch, groups x taps x axes, the output's sizes")
    has_shape("mask", mask, [batch, each, *out], "batch, groups x taps, the output's sizes")
    has_shape("B", B, [W.shape[0]], "filters")


@operator(since=22, infer=_deform_type, requires=_deform_needs, types="T:float T T T T > T", kind="product")
def DeformConv(
    X: Value,
    W: Value,
    offset: Value,
    B: Value | None = None,
    mask: Value | None = None,
    /,
    *,
    dilations: list[int] | None = None,
    group: int = 1,
    kernel_shape: list[int] | None = None,
    offset_group: int = 1,
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Value:
    """Convolution whose taps are moved by offsets, read by linear interpolation."""
    geometry = geometry_of(X, W, kernel_shape, strides=strides, dilations=dilations, pads=pads, group=group)
    # Half precision cannot even count the pixels of a large image.
    exact = DType.Float32 if X.dtype.itemsize == 2 else X.dtype
    answer = X.dtype
    X, W, offset, B, mask = (None if v is None else Cast(v, to=exact) for v in (X, W, offset, B, mask))  # type: ignore[assignment]
    batch, channels, *space = (int(n) for n in X.shape)  # type: ignore[arg-type]
    out = [int(n) for n in geometry.output(space)]  # type: ignore[arg-type]
    taps, places, rank = math.prod(geometry.kernel), math.prod(out), len(space)
    moved = Reshape(offset, [batch, offset_group, taps, rank, places])
    grid = constant(_tap_grid(geometry, out), X)
    image = Reshape(X, [batch, offset_group, channels // offset_group, math.prod(space)])
    columns = _sample(image, grid + moved, space)
    if mask is not None:
        columns = columns * Reshape(mask, [batch, offset_group, 1, taps * places])
    columns = Reshape(columns, [batch, group, channels // group * taps, places])
    filters = int(W.shape[0])  # type: ignore[arg-type]
    weights = Reshape(W, [group, filters // group, channels // group * taps])
    y = Reshape(MatMul(weights, columns), [batch, filters, *out])
    return Cast(y if B is None else y + Reshape(B, [1, -1, *[1] * rank]), to=answer)


def _tap_grid(geometry: Windows, out: Sequence[int]) -> np.ndarray[Any, Any]:
    """Where each tap of each window reads before it is moved: [taps, axes, places]."""
    rank = len(out)
    taps = np.stack(np.meshgrid(*[np.arange(k) for k in geometry.kernel], indexing="ij"), axis=0).reshape(rank, -1)
    places = np.stack(np.meshgrid(*[np.arange(n) for n in out], indexing="ij"), axis=0).reshape(rank, -1)
    steps, gaps = np.array(geometry.strides)[:, None], np.array(geometry.dilations)[:, None]
    before = np.array([p for p, _ in geometry.padding])[:, None, None]
    grid = (taps * gaps)[:, :, None] + (places * steps)[:, None, :] - before
    return grid.transpose(1, 0, 2).astype(np.float64)


def _sample(image: Value, places: Value, space: Sequence[int]) -> Value:
    """Linear interpolation of [N, G, C, size] at [N, G, taps, axes, places]; zero outside."""
    batch, groups, channels, _ = image.shape
    lows: list[Value] = []
    parts: list[Value] = []
    for axis in range(len(space)):
        place = Gather(places, constant(axis, DType.Int64), axis=3)
        low = Floor(place)
        lows.append(low)
        parts.append(place - low)
    total: Value | None = None
    for corner in itertools.product((0, 1), repeat=len(space)):
        weight: Value | None = None
        flat: Value | None = None
        for bit, low, part, size in zip(corner, lows, parts, space, strict=True):
            index = low + float(bit)
            inside = (index >= 0.0) & (index <= float(size - 1))
            share = (part if bit else 1.0 - part) * Cast(inside, to=image.dtype)
            safe = Cast(Clip(index, 0.0, float(size - 1)), to=DType.Int64)
            weight = share if weight is None else weight * share
            flat = safe if flat is None else flat * size + safe
        assert weight is not None
        assert flat is not None
        spots = Reshape(flat, [batch, groups, 1, -1])
        spread = Expand(spots, [batch, groups, channels, spots.shape[3]])
        term = GatherElements(image, spread, axis=3) * Reshape(weight, [batch, groups, 1, -1])
        total = term if total is None else total + term
    assert total is not None
    return total
