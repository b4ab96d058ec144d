"""Sampling images at arbitrary points, and folding patches back into images."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.graph import DType, Node, Shape, TensorType
from pyflame_rt.graph.budget import check_elements
from pyflame_rt.graph.errors import InputError, ShapeMismatchError
from pyflame_rt.ops.core.guards import Within, has_rank, has_shape, length_of
from pyflame_rt.ops.core.registry import operator
from pyflame_rt.ops.core.size_arithmetic import known_ints
from pyflame_rt.ops.core.type_rules import merge_dims, static_size
from pyflame_rt.ops.core.upgrade import Upgrade, upgrade
from pyflame_rt.ops.core.value import Value, constant
from pyflame_rt.ops.onnx.arithmetic import Abs, Mod
from pyflame_rt.ops.onnx.cast import Cast
from pyflame_rt.ops.onnx.index import Gather, GatherElements, ScatterElements
from pyflame_rt.ops.onnx.logic import Where
from pyflame_rt.ops.onnx.math import Floor, Round
from pyflame_rt.ops.onnx.matmul import MatMul
from pyflame_rt.ops.onnx.shape import Expand, Reshape, Transpose
from pyflame_rt.ops.onnx.slicing import Slice

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# ---------------------------------------------------------------------- GridSample

_CUBIC_A = -0.75
_SAMPLING = ("nearest", "linear", "cubic")
_PADDING = ("zeros", "border", "reflection")


def _sampled_type(X: Value, grid: Value, /, **_: Any) -> TensorType:
    x, g = X.tensor_type.shape, grid.tensor_type.shape
    if x is None and g is None:
        return TensorType(X.dtype)
    rank = len(x if x is not None else g)  # type: ignore[arg-type]
    for shape, name in ((x, "X"), (g, "grid")):
        if shape is not None and len(shape) != rank:
            raise ShapeMismatchError(f"X has shape {x}, grid {g}: {name} should be of rank {rank}")
    if g is not None and isinstance(g[-1], int) and g[-1] != rank - 2:
        raise ShapeMismatchError(f"grid holds {g[-1]} coordinates for each point, X has {rank - 2} space axes")
    batch = merge_dims(None if x is None else x[0], None if g is None else g[0])
    channels = None if x is None else x[1]
    space = [None] * (rank - 2) if g is None else list(g[1:-1])
    return TensorType(X.dtype, Shape([batch, channels, *space]))


@operator(since=22, infer=_sampled_type, types="T1 T2:float > T1")
def GridSample(
    X: Value,
    grid: Value,
    /,
    *,
    align_corners: int = 0,
    mode: str = "linear",
    padding_mode: str = "zeros",
) -> Value:
    """Values of an image at the points of a grid, whose coordinates run from -1 to 1."""
    if mode not in _SAMPLING or padding_mode not in _PADDING:
        raise InputError(f"mode {mode!r} or padding_mode {padding_mode!r} is not one of {_SAMPLING} and {_PADDING}")
    if X.rank < 3:
        raise InputError(f"X has the axes batch, channels and at least one of space, got {X.type}")
    sizes = [static_size(d) for d in X.shape[2:]]
    batch, channels, points = X.shape[0], X.shape[1], list(grid.shape[1:-1])
    exact = DType.Float64 if grid.dtype is DType.Float64 else DType.Float32
    flat_grid = Cast(Reshape(grid, [0, -1, len(sizes)]), to=exact)
    # Coordinates come x first, space axes are stored the other way round.
    coordinates = [
        _denormalized(Gather(flat_grid, constant(len(sizes) - 1 - i), axis=2), size, bool(align_corners))
        for i, size in enumerate(sizes)
    ]
    taps = [_axis_taps(c, n, mode, padding_mode, bool(align_corners)) for c, n in zip(coordinates, sizes, strict=True)]
    pixels = Reshape(X, [0, 0, -1])
    if mode != "nearest":
        pixels = pixels if X.dtype in (DType.Float32, DType.Float64) else Cast(pixels, to=DType.Float32)
    total = None
    for combination in itertools.product(*taps):
        part = _weighted_pixels(pixels, combination, sizes)
        total = part if total is None else total + part
    assert total is not None
    return Reshape(_rounded_like(total, X.dtype), [batch, channels, *points])


def _denormalized(n: Value, size: int, align_corners: bool) -> Value:
    """Coordinates in pixels from those between -1 and 1."""
    return (n + 1.0) * ((size - 1) / 2) if align_corners else ((n + 1.0) * float(size) - 1.0) / 2.0


def _reflected(x: Value, low: float, high: float) -> Value:
    """Mirror at both borders until inside."""
    width = high - low
    if width <= 0:
        return x * 0.0
    away = Mod(Abs(x - low), constant(2 * width, x), fmod=1)
    return Where(away > width, 2 * width - away, away) + low


def _inside(x: Value, size: int, padding: str, align_corners: bool) -> Value:
    """Coordinates (whole or not) brought into the image as the padding mode says."""
    if padding == "reflection":
        x = _reflected(x, *((0.0, size - 1.0) if align_corners else (-0.5, size - 0.5)))
    # As Clip, but without a slope on the border itself.
    last = size - 1.0
    return Where(x <= 0.0, 0.0, Where(x >= last, last, x))


def _axis_taps(
    x: Value, size: int, mode: str, padding: str, align_corners: bool
) -> list[tuple[Value, Value | None, Value | None]]:
    """Pixels along one axis that make up a point: position, weight, and whether it is inside."""
    if mode == "nearest":
        places: list[tuple[Value, Value | None]] = [(Round(x), None)]
    else:
        if padding != "zeros" and mode == "linear":
            x = _inside(x, size, padding, align_corners)
        left = Floor(x)
        r = x - left
        weights = [1.0 - r, r] if mode == "linear" else _cubic_weights(r)
        first = 0 if mode == "linear" else -1
        places = [(left + float(first + i), w) for i, w in enumerate(weights)]
    taps: list[tuple[Value, Value | None, Value | None]] = []
    for place, weight in places:
        mask = None
        if padding == "zeros":
            mask = (place >= 0.0) & (place <= size - 1.0)
        taps.append((Cast(_inside(place, size, padding, align_corners), to=DType.Int64), weight, mask))
    return taps


def _cubic_weights(r: Value) -> list[Value]:
    """Keys' weights of the four pixels around a point at distance r right of the second."""
    a = _CUBIC_A

    def near(t: Value) -> Value:
        return ((a + 2) * t - (a + 3)) * t * t + 1.0

    def far(t: Value) -> Value:
        return ((a * t - 5 * a) * t + 8 * a) * t - 4 * a

    return [far(r + 1.0), near(r), near(1.0 - r), far(2.0 - r)]


def _weighted_pixels(
    pixels: Value, taps: Sequence[tuple[Value, Value | None, Value | None]], sizes: list[int]
) -> Value:
    """One pixel for every point, times its weight; 0 where it is outside."""
    index: Value | None = None
    weight: Value | None = None
    mask: Value | None = None
    for (place, w, m), size in zip(taps, sizes, strict=True):
        index = place if index is None else index * size + place
        weight = w if weight is None or w is None else weight * w
        mask = m if mask is None or m is None else mask & m
    assert index is not None
    shape = [pixels.shape[0], pixels.shape[1], index.shape[1]]
    found = GatherElements(pixels, Expand(_per_channel(index), shape), axis=2)
    if mask is not None:
        found = Where(_per_channel(mask), found, constant(0, pixels))
    return found if weight is None else found * Cast(_per_channel(weight), to=found.dtype)


def _per_channel(x: Value) -> Value:
    return Reshape(x, [0, 1, -1])


def _rounded_like(y: Value, dtype: DType) -> Value:
    if y.dtype is dtype:
        return y
    return Cast(Round(y) if dtype.is_integer else y, to=dtype)


@upgrade("GridSample", to=20)
def sampling_modes_lost_their_prefix(node: Node, up: Upgrade) -> Node:
    """Version 16 was for images only: bilinear, bicubic."""
    mode = str(node.get_attr("mode", "bilinear"))
    return node.replace(attributes={**node.attributes, "mode": mode.removeprefix("bi")})


# ---------------------------------------------------------------------- AffineGrid


def _affine_type(theta: Value, size: Value, /, **_: Any) -> TensorType:
    if size.known is None:
        rank = size.tensor_type.shape[0] if size.tensor_type.shape is not None else None
        return TensorType(theta.dtype, Shape([None] * (rank - 1) + [rank - 2]) if isinstance(rank, int) else None)
    dims = size.ints()
    return TensorType(theta.dtype, Shape([dims[0], *dims[2:], len(dims) - 2]))


def _affine_needs(theta: Value, size: Value, /, **_: Any) -> Iterator[Within]:
    has_rank("size", size, 1)
    count = length_of(size)
    if isinstance(count, int) and count not in (4, 5):
        raise ShapeMismatchError(f"size has {count} numbers, but must have 4 or 5: batch, channels and space")
    known, space = known_ints(size), None if count is None else count - 2
    batch = known[0] if known else None
    has_shape("theta", theta, [batch, space, None if space is None else space + 1], "batch, space, space + 1")
    yield Within("size", size, 1)


@operator(since=20, infer=_affine_type, requires=_affine_needs, types="T1:float int64 > T1", known=(1,))
def AffineGrid(theta: Value, size: Value, /, *, align_corners: int = 0) -> Value:
    """The points of an image's grid, moved by an affine map; what GridSample takes."""
    batch, _, *space = size.ints()
    check_elements("the grid", [*map(static_size, space), len(space) + 1], 32)
    axes = [_axis_points(static_size(n), bool(align_corners)) for n in space]
    grids = np.meshgrid(*axes, indexing="ij")
    points = np.stack([*(g.ravel() for g in reversed(grids)), np.ones(grids[0].size)], axis=-1)
    moved = MatMul(constant(points, theta), Transpose(theta, perm=[0, 2, 1]))
    return Reshape(moved, [batch, *space, len(space)])


def _axis_points(size: int, align_corners: bool) -> np.ndarray[Any, Any]:
    if align_corners:
        return np.linspace(-1.0, 1.0, size)
    return (2 * np.arange(size) + 1) / size - 1


# ---------------------------------------------------------------------- Col2Im


def _folded_type(input: Value, image_shape: Value, block_shape: Value, /, **_: Any) -> TensorType:
    kind = input.tensor_type
    space: list[Any] | None = None
    if image_shape.known is not None:
        space = image_shape.ints()
    elif image_shape.tensor_type.shape is not None and isinstance(rank := image_shape.shape[0], int):
        space = [None] * rank
    if space is None:
        return TensorType(kind.dtype)
    channels = None
    columns = None if kind.shape is None else kind.shape[1]
    if columns is not None and block_shape.known is not None:
        channels = columns // math.prod(block_shape.ints())
    return TensorType(kind.dtype, Shape([None if kind.shape is None else kind.shape[0], channels, *space]))


@operator(since=18, infer=_folded_type, types="T int64 int64 > T", known=(1, 2))
def Col2Im(
    input: Value,
    image_shape: Value,
    block_shape: Value,
    /,
    *,
    dilations: list[int] | None = None,
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Value:
    """Sum columns of patches back into images: the transpose of taking patches."""
    image, block = image_shape.ints(), block_shape.ints()
    rank = len(image)
    dilations = [1] * rank if dilations is None else dilations
    strides = [1] * rank if strides is None else strides
    pads = [0] * (2 * rank) if pads is None else pads
    padded = [n + pads[i] + pads[rank + i] for i, n in enumerate(image)]
    columns = static_size(input.shape[2])
    along = zip(padded, block, dilations, strides, strict=True)
    patches = math.prod(len(range(0, n - dilation * (width - 1), stride)) for n, width, dilation, stride in along)
    if patches != columns:
        raise ShapeMismatchError(f"image {image} with blocks {block} has {patches} patches, the input {columns}")
    check_elements("the table of places", [patches, *block], 16)
    places = _patch_places(padded, block, dilations, strides)
    batch, channels = input.shape[0], static_size(input.shape[1]) // math.prod(block)
    updates = Reshape(input, [batch, channels, places.size])
    zeros = Expand(constant(0, input), [batch, channels, math.prod(padded)])
    index = Expand(constant(places.reshape(1, 1, -1)), [batch, channels, places.size])
    summed = Reshape(ScatterElements(zeros, index, updates, axis=2, reduction="add"), [batch, channels, *padded])
    if not any(pads):
        return summed
    ends = [pads[i] + n for i, n in enumerate(image)]
    return Slice(summed, pads[:rank], ends, list(range(2, 2 + rank)))


def _patch_places(
    padded: list[int], block: list[int], dilations: Sequence[int], strides: Sequence[int]
) -> np.ndarray[Any, Any]:
    """Flat image position of every element of every patch, [elements of a patch * patches]."""
    flat = np.zeros((1, 1), np.int64)
    for size, width, dilation, stride in zip(padded, block, dilations, strides, strict=True):
        starts = np.arange(0, size - dilation * (width - 1), stride)
        along = np.arange(width)[:, None] * dilation + starts
        flat = (flat[:, None, :, None] * size + along[None, :, None, :]).reshape(
            flat.shape[0] * width, flat.shape[1] * len(starts)
        )
    return flat.ravel()
