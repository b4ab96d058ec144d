"""Around detection networks: RoiAlign, NonMaxSuppression, and decoding image files."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.graph import DType, Node, Shape, TensorType
from pyflame_rt.graph.budget import check_memory
from pyflame_rt.graph.errors import InputError, MissingExtra
from pyflame_rt.graph.records import dataclass
from pyflame_rt.ops.core.guards import Within, count_of, has_rank, has_shape, same_size, size_at
from pyflame_rt.ops.core.registry import primitive
from pyflame_rt.ops.core.type_rules import merge_dims
from pyflame_rt.ops.core.upgrade import Upgrade, upgrade

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyflame_rt.ops.core.value import Value

# ---------------------------------------------------------------------- RoiAlign

# Elements gathered at a time; bounds the memory that many regions take.
_CHUNK = 1 << 22


def _aligned_type(
    X: Value, rois: Value, batch_indices: Value, /, *, output_height: int, output_width: int, **_: Any
) -> TensorType:
    shapes = [rois.tensor_type.shape, batch_indices.tensor_type.shape]
    count = merge_dims(*[None if s is None else s[0] for s in shapes])
    channels = None if X.tensor_type.shape is None else X.shape[1]
    return TensorType(X.dtype, Shape([count, channels, output_height, output_width]))


def _aligned_needs(X: Value, rois: Value, batch_indices: Value, /, **_: Any) -> Iterator[Within]:
    has_rank("X", X, 4)
    has_shape("rois", rois, [None, 4], "regions; left, top, right, bottom")
    has_shape("batch_indices", batch_indices, [size_at(rois, 0)], "regions")
    images = X.shape[0]
    yield Within("batch_indices", batch_indices, 0, None if images is None else images - 1)


@primitive(since=22, infer=_aligned_type, requires=_aligned_needs, types="T1:float T1 int64 > T1")
def RoiAlign(
    ops: Any,
    X: Any,
    rois: Any,
    batch_indices: Any,
    /,
    *,
    coordinate_transformation_mode: str = "half_pixel",
    mode: str = "avg",
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
) -> Any:
    """Mean (or maximum) of interpolated samples in each cell of each region."""
    _, channels, height, width = X.shape
    dtype = ops.dtype(X)
    exact = DType.Float64.numpy if dtype == DType.Float64.numpy else DType.Float32.numpy
    # Regions are few and steer the computation: they are read on the host.
    boxes = ops.to_numpy(rois).astype(np.float64) * spatial_scale
    images = ops.to_numpy(batch_indices)
    offset = 0.5 if coordinate_transformation_mode == "half_pixel" else 0.0
    cells = _cells(boxes - offset, (output_height, output_width), sampling_ratio, clamp=not offset)
    pixels = ops.reshape(ops.transpose(ops.cast(X, exact), (0, 2, 3, 1)), (-1, channels))
    parts: list[Any] = []
    order: list[np.ndarray[Any, Any]] = []
    for group, rows, columns in cells:
        y = _linear_taps(rows, height)
        x = _linear_taps(columns, width)
        each = max(1, rows[0].size * columns[0].size * channels)
        for chunk in np.array_split(np.arange(len(group)), -(-len(group) * each // _CHUNK) or 1):
            base = images[group[chunk]] * (height * width)
            parts.append(_pooled(ops, pixels, base, y.rows(chunk), x.rows(chunk), width, mode, exact))
            order.append(group[chunk])
    if not parts:
        return ops.zeros((len(boxes), channels, output_height, output_width), dtype=dtype)
    back = np.argsort(np.concatenate(order), kind="stable")
    found = ops.take(ops.concatenate(parts, 0), ops.convert_to_tensor(back), axis=0)
    return ops.cast(ops.transpose(found, (0, 3, 1, 2)), dtype)


def _cells(
    boxes: np.ndarray[Any, Any], cells: tuple[int, int], sampling_ratio: int, *, clamp: bool
) -> Iterator[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
    """Regions with equal numbers of samples: which, and their row and column coordinates.

    Coordinates are [regions, cells, samples of a cell].
    """
    start, extent = boxes[:, 1::-1], boxes[:, :1:-1] - boxes[:, 1::-1]  # (row, column)
    if clamp:
        extent = np.maximum(extent, 1.0)
    bins = extent / np.array(cells)
    counts = np.full(bins.shape, sampling_ratio) if sampling_ratio > 0 else np.ceil(bins).astype(np.int64)
    counts = np.maximum(counts, 0)
    for pair in np.unique(counts, axis=0) if len(counts) else ():
        group = np.nonzero((counts == pair).all(axis=1))[0]
        samples = [int(pair[side]) * cells[side] for side in (0, 1)]
        most = max(sum(samples), samples[0] * samples[1])
        check_memory(f"{samples[0]} x {samples[1]} samples of a region", 64 * most)
        check_memory(f"samples of {len(group)} regions", 64 * len(group) * sum(samples))
        sides = []
        for side in (0, 1):
            within = (np.arange(pair[side]) + 0.5) / max(pair[side], 1)
            steps = np.arange(cells[side])[:, None] + within
            sides.append(start[group, side, None, None] + steps * bins[group, side, None, None])
        yield group, sides[0], sides[1]


@dataclass(frozen=True, slots=True)
class _Taps:
    """Two pixels and weights for each coordinate; both weights 0 where it is outside."""

    low: np.ndarray[Any, Any]
    high: np.ndarray[Any, Any]
    low_weight: np.ndarray[Any, Any]
    high_weight: np.ndarray[Any, Any]

    def rows(self, chunk: np.ndarray[Any, Any]) -> _Taps:
        return _Taps(self.low[chunk], self.high[chunk], self.low_weight[chunk], self.high_weight[chunk])

    def pairs(self) -> list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
        return [(self.low, self.low_weight), (self.high, self.high_weight)]


def _linear_taps(x: np.ndarray[Any, Any], size: int) -> _Taps:
    inside = (x >= -1.0) & (x <= size)
    x = np.clip(x, 0.0, size - 1)
    low = x.astype(np.int64)
    high = np.minimum(low + 1, size - 1)
    share = x - low
    return _Taps(low, high, np.where(inside, 1 - share, 0.0), np.where(inside, share, 0.0))


def _pooled(
    ops: Any,
    pixels: Any,
    base: np.ndarray[Any, Any],
    y: _Taps,
    x: _Taps,
    width: int,
    mode: str,
    exact: np.dtype[Any],
) -> Any:
    """Cells of some regions, [regions, rows, columns, channels]."""
    total: Any = None
    for (row, row_weight), (column, column_weight) in [(a, b) for a in y.pairs() for b in x.pairs()]:
        # [regions, row cells, row samples, column cells, column samples]
        index = base[:, None, None, None, None] + row[:, :, :, None, None] * width + column[:, None, None]
        weight = row_weight[:, :, :, None, None] * column_weight[:, None, None]
        found = ops.take(pixels, ops.convert_to_tensor(index), axis=0)
        part = ops.multiply(found, ops.convert_to_tensor(weight[..., None].astype(exact)))
        # ONNX takes the maximum over the weighted corners, not over interpolated values.
        total = part if total is None else ops.maximum(total, part) if mode == "max" else ops.add(total, part)
    regions, rows, row_samples, columns, column_samples, channels = total.shape
    if not row_samples * column_samples:
        return ops.zeros((regions, rows, columns, channels), dtype=exact)
    return ops.max(total, axis=(2, 4)) if mode == "max" else ops.mean(total, axis=(2, 4))


@upgrade("RoiAlign", to=16)
def regions_learnt_half_pixels(node: Node, up: Upgrade) -> Node:
    """Version 10 did not shift by half a pixel."""
    return node.replace(attributes={**node.attributes, "coordinate_transformation_mode": "output_half_pixel"})


# ---------------------------------------------------------------------- NonMaxSuppression


def _selected_type(*_: Value | None, **__: Any) -> TensorType:
    return TensorType(DType.Int64, Shape([None, 3]))


def _suppression_needs(
    boxes: Value,
    scores: Value,
    max_output_boxes_per_class: Value | None = None,
    iou_threshold: Value | None = None,
    score_threshold: Value | None = None,
    /,
    **_: Any,
) -> Iterator[Within]:
    has_shape("boxes", boxes, [None, None, 4], "batch, boxes, 4")
    has_shape("scores", scores, [size_at(boxes, 0), None, size_at(boxes, 1)], "batch, classes, boxes")
    for name, value in (
        ("max_output_boxes_per_class", max_output_boxes_per_class), ("iou_threshold", iou_threshold),
        ("score_threshold", score_threshold),
    ):  # fmt: skip
        if value is not None:
            same_size(f"the number of elements of {name}", count_of(value), 1, "one number")
    if iou_threshold is not None:
        yield Within("iou_threshold", iou_threshold, 0, 1)


@primitive(
    since=11,
    infer=_selected_type,
    requires=_suppression_needs,
    host=True,
    types="float32 float32 int64 float32 float32 > int64",
)
def NonMaxSuppression(
    ops: Any,
    boxes: Any,
    scores: Any,
    max_output_boxes_per_class: Any = None,
    iou_threshold: Any = None,
    score_threshold: Any = None,
    /,
    *,
    center_point_box: int = 0,
) -> Any:
    """Boxes with the best scores that overlap no better box much: (batch, class, box) rows."""
    limit = _scalar(max_output_boxes_per_class, 0)
    overlap = _scalar(iou_threshold, 0.0)
    floor = _scalar(score_threshold, -np.inf)
    rows: list[tuple[int, int, int]] = []
    for batch in range(boxes.shape[0]):
        corners = _corners(boxes[batch], bool(center_point_box))
        for kind in range(scores.shape[1]):
            kept = _suppressed(corners, scores[batch, kind], int(limit), overlap, floor)
            rows.extend((batch, kind, box) for box in kept)
    return np.asarray(rows, dtype=np.int64).reshape(-1, 3)


def _scalar(value: Any, default: float) -> Any:
    return default if value is None else value.ravel()[0]


def _corners(boxes: np.ndarray[Any, Any], centred: bool) -> np.ndarray[Any, Any]:
    """(y low, x low, y high, x high) of boxes given by two corners or by centre and size."""
    if centred:
        x, y, w, h = boxes.T
        return np.stack([y - h / 2, x - w / 2, y + h / 2, x + w / 2])
    y1, x1, y2, x2 = boxes.T
    return np.stack([np.minimum(y1, y2), np.minimum(x1, x2), np.maximum(y1, y2), np.maximum(x1, x2)])


def _suppressed(
    corners: np.ndarray[Any, Any], scores: np.ndarray[Any, Any], limit: int, overlap: float, floor: float
) -> list[int]:
    """Boxes of one class that stay, best first."""
    order = np.argsort(-scores, kind="stable")
    order = order[scores[order] > floor]
    areas = (corners[2] - corners[0]) * (corners[3] - corners[1])
    kept: list[int] = []
    while len(order) and len(kept) < limit:
        best, order = order[0], order[1:]
        kept.append(int(best))
        low = np.maximum(corners[:2, best, None], corners[:2, order])
        high = np.minimum(corners[2:, best, None], corners[2:, order])
        common = np.prod(np.maximum(high - low, 0), axis=0)
        union = areas[best] + areas[order] - common
        with np.errstate(divide="ignore", invalid="ignore"):
            close = (common > 0) & (union > 0) & (common / union > overlap)
        order = order[~close]
    return kept


# ---------------------------------------------------------------------- ImageDecoder


def _decoded_type(encoded_stream: Value, /, *, pixel_format: str = "RGB") -> TensorType:
    return TensorType(DType.UInt8, Shape([None, None, 1 if pixel_format == "Grayscale" else 3]))


@primitive(since=20, infer=_decoded_type, host=True, types="uint8 > uint8")
def ImageDecoder(ops: Any, encoded_stream: Any, /, *, pixel_format: str = "RGB") -> Any:
    """Pixels [height, width, channels] of an image file given as bytes."""
    if pixel_format not in ("RGB", "BGR", "Grayscale"):
        raise InputError(f"pixel_format is {pixel_format!r}; known: RGB, BGR, Grayscale")
    try:
        from PIL import Image, UnidentifiedImageError
    except ModuleNotFoundError as error:
        raise MissingExtra("decoding images needs Pillow: pip install 'pyflame[image]'") from error
    try:
        with Image.open(io.BytesIO(encoded_stream.tobytes())) as image:
            # Pillow warns when transparent palettes lose their transparency on the way.
            plain = image.convert("RGBA") if image.mode == "P" else image
            pixels = np.asarray(plain.convert("L" if pixel_format == "Grayscale" else "RGB"))
    except (UnidentifiedImageError, OSError) as error:
        raise InputError(f"the {encoded_stream.size} bytes given are not an image Pillow can read: {error}") from error
    if pixel_format == "Grayscale":
        return pixels[:, :, None].copy()
    return np.ascontiguousarray(pixels[:, :, ::-1] if pixel_format == "BGR" else pixels)
