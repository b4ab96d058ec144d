"""Resize and its ancestors: one axis at a time, as weighted sums of gathered slices."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.graph import DimLike, DType, Node, Shape, TensorType
from pyflame_rt.graph.budget import check_memory
from pyflame_rt.graph.errors import InputError, ShapeMismatchError
from pyflame_rt.graph.records import dataclass
from pyflame_rt.ops.core.registry import operator
from pyflame_rt.ops.core.type_rules import normalize_axes, static_size
from pyflame_rt.ops.core.upgrade import Upgrade, upgrade
from pyflame_rt.ops.core.value import Value, constant
from pyflame_rt.ops.onnx.activation import Clip
from pyflame_rt.ops.onnx.cast import Cast
from pyflame_rt.ops.onnx.index import Gather
from pyflame_rt.ops.onnx.logic import Where
from pyflame_rt.ops.onnx.math import Round

if TYPE_CHECKING:
    from collections.abc import Sequence

_POLICIES = ("stretch", "not_larger", "not_smaller")
_NEAREST = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


@dataclass(frozen=True, slots=True)
class _Kernel:
    """How values between pixels are made; the attributes of Resize that say so."""

    mode: str
    nearest_mode: str
    coordinates: str
    cubic_a: float
    antialias: bool
    exclude_outside: bool


@dataclass(frozen=True, slots=True)
class _Axis:
    """One axis to resize: sizes, scale, and the part of it to look at."""

    axis: int
    size: DimLike
    new_size: DimLike
    scale: float
    roi: tuple[float, float]


def _given(value: Value | None) -> Value | None:
    """None also for an empty tensor, which ONNX 11 used for "not given"."""
    if value is None or (value.tensor_type.shape is not None and 0 in value.shape):
        return None
    return value


def _scaled(size: DimLike, scale: float) -> DimLike:
    """``floor(size * scale)`` in float32, as ONNX's own inference computes it."""
    if isinstance(size, int):
        return math.floor(np.float32(size) * np.float32(scale))
    if size is None or scale <= 0:
        return None
    if float(scale).is_integer():
        return size * int(scale)
    # Exact only for halves, quarters, ...: rounding of other factors depends on the size.
    return size // int(1 / scale) if math.frexp(scale)[0] == 0.5 and scale < 1 else None


def _plan(
    X: Value,
    roi: Value | None,
    scales: Value | None,
    sizes: Value | None,
    axes: Sequence[int] | None,
    policy: str,
) -> list[_Axis]:
    """What happens to each axis that takes part."""
    places = list(range(X.rank)) if axes is None else normalize_axes(axes, X.rank)
    scales, sizes = _given(scales), _given(sizes)
    if (scales is None) == (sizes is None):
        raise InputError("exactly one of scales and sizes must be given")
    old = [X.shape[a] for a in places]
    if scales is not None:
        factors = [float(s) for s in scales.contents().ravel()]
        _check_given("scales", factors, places, old)
        new = [_scaled(size, factor) for size, factor in zip(old, factors, strict=True)]
    else:
        assert sizes is not None
        _check_given("sizes", sizes.ints(), places, old)
        factors, new = _from_sizes(old, sizes.ints(), policy)
    corners = [0.0] * len(places) + [1.0] * len(places)
    if roi is not None and _given(roi) is not None:
        corners = [float(v) for v in roi.contents().ravel()]
    regions = zip(corners[: len(places)], corners[len(places) :], strict=True)
    return [_Axis(*row) for row in zip(places, old, new, factors, regions, strict=True)]


def _check_given(name: str, given: Sequence[Any], places: Sequence[int], old: Sequence[DimLike]) -> None:
    """One number above 0 for each axis; an axis without elements may stay so."""
    if len(given) != len(places):
        raise ShapeMismatchError(f"{name} has {len(given)} entries, {len(places)} axes are to be resized")
    for i, (number, size) in enumerate(zip(given, old, strict=True)):
        if isinstance(number, (int, float)) and not 0 < number < math.inf and not number == size == 0:
            raise InputError(f"{name} is {number} at [{i}], which is out of range: it must be above 0 and finite")
        if name == "sizes" and size == 0 != number:
            raise InputError(f"sizes is {number} at [{i}], but axis {places[i]} of the input has no elements to take")


def _from_sizes(old: list[DimLike], wanted: list[Any], policy: str) -> tuple[list[float], list[DimLike]]:
    if policy not in _POLICIES:
        raise InputError(f"keep_aspect_ratio_policy is {policy!r}; known: {', '.join(_POLICIES)}")
    if policy == "stretch":
        pairs = zip(wanted, old, strict=True)
        return [1.0 if w == o else static_size(w) / static_size(o) for w, o in pairs], wanted
    ratios = [static_size(w) / static_size(o) for w, o in zip(wanted, old, strict=True)]
    scale = min(ratios) if policy == "not_larger" else max(ratios)
    return [scale] * len(old), [math.floor(scale * static_size(o) + 0.5) for o in old]


def _source_coordinates(axis: _Axis, mode: str) -> np.ndarray[Any, Any]:
    """Where in the input each output position lies.

    In float32, as others compute it: which pixel is nearest to a point half-way between two depends
    on the rounding.
    """
    size, new = static_size(axis.size), static_size(axis.new_size)
    one, half, scale = np.float32(1), np.float32(0.5), np.float32(axis.scale)
    x, length = np.arange(new, dtype=np.float32), scale * np.float32(size)
    match mode:
        case "half_pixel":
            return (x + half) / scale - half
        case "pytorch_half_pixel":
            return (x + half) / scale - half if new > 1 else np.zeros_like(x)
        case "half_pixel_symmetric":
            return np.float32(size / 2) * (one - np.float32(new) / length) + (x + half) / scale - half
        case "align_corners":
            # By whole sizes, as onnxruntime and torch do; ONNX's text divides by what the scale gives before rounding.
            return x * np.float32(size - 1) / np.float32(new - 1) if new > 1 else np.zeros_like(x)
        case "asymmetric":
            return x / scale
        case "tf_half_pixel_for_nn":  # only in opset 11
            return (x + half) / scale
        case "tf_crop_and_resize":
            start, end = (np.float32(v) for v in axis.roi)
            last = np.float32(size - 1)
            if length == 1:
                return np.full(new, half * (start + end) * last)
            return start * last + x * (end - start) * last / (length - one)
        case _:
            raise InputError(f"coordinate_transformation_mode {mode!r} is not known")


def _taps(axis: _Axis, kernel: _Kernel) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Input positions [k, new size] and their weights."""
    taps = 1 if kernel.mode == "nearest" else 4 / max(min(axis.scale, 1.0) if kernel.antialias else 1.0, 1e-9)
    check_memory(f"the table of positions for {axis.new_size}", int(static_size(axis.new_size) * taps * 32))
    x = _source_coordinates(axis, kernel.coordinates)
    if kernel.mode == "nearest":
        if kernel.nearest_mode not in _NEAREST:
            raise InputError(f"nearest_mode is {kernel.nearest_mode!r}; known: {', '.join(_NEAREST)}")
        return _NEAREST[kernel.nearest_mode](x)[None].astype(np.int64), np.ones((1, len(x)))
    stretch = min(axis.scale, 1.0) if kernel.antialias else 1.0
    radius = {"linear": 1, "cubic": 2}[kernel.mode]
    first = math.floor(-radius / stretch) + 1
    # The pixel left of x, so that the distance to it is in (0, 1].
    base = np.ceil(x) - 1
    places = base + np.arange(first, 2 - first)[:, None]
    distance = np.abs(places - x) * stretch
    weights = np.maximum(1 - distance, 0) if kernel.mode == "linear" else _cubic(distance, kernel.cubic_a)
    if kernel.exclude_outside:
        weights = np.where((places < 0) | (places >= static_size(axis.size)), 0.0, weights)
    if kernel.antialias or kernel.exclude_outside:
        total = weights.sum(axis=0)
        weights = weights / np.where(total == 0, 1.0, total)
    return places.astype(np.int64), weights


def _cubic(t: np.ndarray[Any, Any], a: float) -> np.ndarray[Any, Any]:
    """Keys' kernel at distances t >= 0."""
    near = ((a + 2) * t - (a + 3)) * t * t + 1
    far = ((a * t - 5 * a) * t + 8 * a) * t - 4 * a
    return np.where(t <= 1, near, np.where(t < 2, far, 0.0))


def _resize_axis(x: Value, axis: _Axis, kernel: _Kernel) -> Value:
    places, weights = _taps(axis, kernel)
    places = np.clip(places, 0, static_size(axis.size) - 1)
    if kernel.mode == "nearest":
        return Gather(x, places[0], axis=axis.axis)
    along = [-1 if i == axis.axis else 1 for i in range(x.rank)]
    total = None
    for row, weight in zip(places, weights, strict=True):
        if not weight.any():
            continue
        part = Gather(x, row, axis=axis.axis) * constant(weight.reshape(along), x)
        total = part if total is None else total + part
    return Gather(x, places[0], axis=axis.axis) if total is None else total


def _extrapolated(y: Value, axis: _Axis, value: float) -> Value:
    """Replace what was looked up outside the input."""
    x = _source_coordinates(axis, "tf_crop_and_resize")
    outside = (x < 0) | (x > static_size(axis.size) - 1)
    if not outside.any():
        return y
    mask = outside.reshape([-1 if i == axis.axis else 1 for i in range(y.rank)])
    return Where(constant(mask), constant(value, y), y)


def _resized_type(
    X: Value,
    roi: Value | None = None,
    scales: Value | None = None,
    sizes: Value | None = None,
    /,
    *,
    axes: list[int] | None = None,
    keep_aspect_ratio_policy: str = "stretch",
    **_: Any,
) -> TensorType:
    kind = X.tensor_type
    if kind.shape is None:
        return kind
    unknown = any(v is not None and v.known is None for v in (_given(scales), _given(sizes)))
    places = list(range(X.rank)) if axes is None else normalize_axes(axes, X.rank)
    dims = list(kind.shape)
    if unknown or (keep_aspect_ratio_policy != "stretch" and not kind.shape.is_static):
        for place in places:
            dims[place] = None
        return TensorType(kind.dtype, Shape(dims))
    if sizes is not None and _given(sizes) is not None and keep_aspect_ratio_policy == "stretch":
        _check_given("sizes", sizes.ints(), places, [dims[place] for place in places])
        for place, size in zip(places, sizes.ints(), strict=True):
            dims[place] = size
        return TensorType(kind.dtype, Shape(dims))
    for axis in _plan(X, None, scales, sizes, axes, keep_aspect_ratio_policy):
        dims[axis.axis] = axis.new_size
    return TensorType(kind.dtype, Shape(dims))


@operator(since=19, infer=_resized_type, types="T1 T2:float float32 int64 > T1", kind="move", known=(1, 2, 3))
def Resize(
    X: Value,
    roi: Value | None = None,
    scales: Value | None = None,
    sizes: Value | None = None,
    /,
    *,
    antialias: int = 0,
    axes: list[int] | None = None,
    coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: float = -0.75,
    exclude_outside: int = 0,
    extrapolation_value: float = 0.0,
    keep_aspect_ratio_policy: str = "stretch",
    mode: str = "nearest",
    nearest_mode: str = "round_prefer_floor",
) -> Value:
    """Interpolate to other sizes: nearest, linear or cubic, along any axes."""
    if mode not in ("nearest", "linear", "cubic"):
        raise InputError(f"mode is {mode!r}; known: nearest, linear, cubic")
    crop = coordinate_transformation_mode == "tf_crop_and_resize"
    kernel = _Kernel(
        mode, nearest_mode, coordinate_transformation_mode, cubic_coeff_a, bool(antialias), bool(exclude_outside)
    )
    plan = _plan(X, roi if crop else None, scales, sizes, axes, keep_aspect_ratio_policy)
    moved = [a for a in plan if a.size != a.new_size or a.scale != 1.0 or a.roi != (0.0, 1.0)]
    y = X if mode == "nearest" else _as_float(X)
    for axis in moved:
        y = _resize_axis(y, axis, kernel)
    for axis in moved if crop else ():
        y = _extrapolated(y, axis, extrapolation_value)
    return _as_type(y, X.dtype)


def _as_float(x: Value) -> Value:
    """The type to interpolate in: float32 for what is narrower, and for integers."""
    return x if x.dtype in (DType.Float32, DType.Float64) else Cast(x, to=DType.Float32)


def _as_type(y: Value, dtype: DType) -> Value:
    """Back to the element type of the input; integers are rounded and clipped."""
    if y.dtype is dtype:
        return y
    if dtype.is_integer and y.dtype is DType.Float32 and dtype.itemsize < 4:
        limits = np.iinfo(dtype.numpy)
        return Cast(Clip(Round(y), float(limits.min), float(limits.max)), to=dtype)
    return Cast(Round(y) if dtype.is_integer else y, to=dtype)


@operator(since=10, known=(1,))
def Upsample(X: Value, scales: Value, /, *, mode: str = "nearest") -> Value:
    """The ancestor of Resize: positions are multiplied, never centred."""
    return Resize(X, None, scales, mode=mode, coordinate_transformation_mode="asymmetric", nearest_mode="floor")


@upgrade("Upsample", to=7)
def upsample_scales_became_one_list(node: Node, up: Upgrade) -> Node:
    """Version 1 named the scales of height and width."""
    scales = [1.0, 1.0, node.get_attr("height_scale"), node.get_attr("width_scale")]
    return node.replace(attributes={"mode": _mode(node), "scales": scales})


@upgrade("Upsample", to=9)
def upsample_scales_became_an_input(node: Node, up: Upgrade) -> Node:
    """Version 7 kept the scales in an attribute."""
    scales = up.constant(node.get_attr("scales"), np.float32, "scales")
    return node.replace(inputs=[node.inputs[0], scales], attributes={"mode": _mode(node)})


@upgrade("Upsample", to=10)
def upsample_became_resize(node: Node, up: Upgrade) -> Node:
    """Resize 10 is Upsample under another name; what an Upsample makes smaller is meant as torch means it."""
    return node.replace(op_type="Resize", attributes={"mode": _mode(node), "nearest_mode": "floor"})


def _mode(node: Node) -> str:
    mode = str(node.get_attr("mode", "nearest"))
    return "linear" if mode == "bilinear" else mode


@upgrade("Resize", to=11)
def resize_learnt_coordinates(node: Node, up: Upgrade) -> Node:
    """Version 10 knew one way to place pixels: the nearest is the one before when enlarging, and the one after else."""
    attributes = {"mode": _mode(node), "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    x, scales = node.inputs
    if attributes["mode"] != "nearest" or "nearest_mode" in node.attributes:
        return node.replace(inputs=[x, "", scales], attributes=attributes)
    one, known = up.constant(1.0, np.float32), up.known(scales)
    if known is None or (known < 1).any():
        if known is None or (known > 1).any():
            x = up.emit("Resize", [x, "", up.emit("Max", [scales, one])], attributes)
            scales = up.emit("Min", [scales, one])
        attributes["nearest_mode"] = "ceil"
    return node.replace(inputs=[x, "", scales], attributes=attributes)
