"""Pooling, patches and resampling of aten."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.graph import DType
from pyflame_rt.graph.errors import UndeterminedError
from pyflame_rt.importers.aten.conv import spread
from pyflame_rt.importers.aten.shaping import joined, reshaped, sliced
from pyflame_rt.importers.aten.table import aten
from pyflame_rt.importers.aten.values import is_static, number, refuse, shape_value, sizes, static
from pyflame_rt.ops.core.value import Value, constant
from pyflame_rt.ops.onnx import pool, vision
from pyflame_rt.ops.onnx.index import Gather, ScatterElements
from pyflame_rt.ops.onnx.maxpool import MaxPool
from pyflame_rt.ops.onnx.reduce import ArgMax, ReduceMax, ReduceMean
from pyflame_rt.ops.onnx.resize import Resize
from pyflame_rt.ops.onnx.shape import Expand, Squeeze, Transpose, Unsqueeze
from pyflame_rt.ops.onnx.slicing import Pad

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["window_settings"]


def _batched(x: Value, count: int, run: Callable[[Value], Any]) -> Any:
    """Run on a batch of one where there is no batch axis."""
    if x.rank == count + 2:
        return run(x)
    made = run(Unsqueeze(x, [0]))
    return tuple(Squeeze(v, [0]) for v in made) if isinstance(made, tuple) else Squeeze(made, [0])


def window_settings(kernel: Any, stride: Any, padding: Any, count: int) -> dict[str, Any]:
    """Windows of torch's pooling as ONNX describes them."""
    size = spread(kernel, count)
    pads = spread(padding, count)
    steps = size if stride is None or stride in ([], ()) else spread(stride, count)
    return {"kernel_shape": size, "strides": steps, "pads": [*pads, *pads]}


def _max_pool(count: int, with_indices: bool) -> Callable[..., Any]:
    def pooled(x: Value, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1,
               ceil_mode: bool = False) -> Any:  # fmt: skip
        more = window_settings(kernel_size, stride, padding, count) | {"dilations": spread(dilation, count)}

        def run(v: Value) -> Any:
            if not with_indices:
                made = MaxPool(v, **more, ceil_mode=int(ceil_mode))
                return made[0] if isinstance(made, tuple) else made
            values, places = MaxPool(v, **more, ceil_mode=int(ceil_mode))
            return values, _within_plane(v, places, count)

        return _batched(x, count, run)

    return pooled


def _within_plane(x: Value, places: Value, count: int) -> Value:
    """ONNX counts over the whole tensor, torch within a channel."""
    from pyflame_rt.ops.onnx.arithmetic import Mod

    space = [static(d, "the size of an image") for d in sizes(x)[-count:]]
    return Mod(places, number(int(np.prod(space)), DType.Int64))


def _avg_pool(count: int) -> Callable[..., Any]:
    def pooled(x: Value, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
               count_include_pad: bool = True, divisor_override: Any = None) -> Any:  # fmt: skip
        more = window_settings(kernel_size, stride, padding, count)

        def run(v: Value) -> Value:
            if divisor_override is not None:
                total = int(np.prod(more["kernel_shape"]))
                made = pool.AveragePool(v, **more, ceil_mode=int(ceil_mode), count_include_pad=1)
                if ceil_mode:
                    raise refuse("avg_pool with divisor_override and ceil_mode")
                return made * (total / divisor_override)
            return pool.AveragePool(v, **more, ceil_mode=int(ceil_mode), count_include_pad=int(count_include_pad))

        return _batched(x, count, run)

    return pooled


def _bounds(size: int, parts: int) -> list[tuple[int, int]]:
    """Where the windows of an adaptive pool begin and end."""
    return [(i * size // parts, -(-(i + 1) * size // parts)) for i in range(parts)]


def _adaptive(x: Value, output: Any, count: int, run: Callable[[Value, list[int]], Value],
              even: Callable[[Value, list[int]], Value]) -> Value:  # fmt: skip
    def reduced(v: Value) -> Value:
        dims = sizes(v)[-count:]
        wanted = [dims[i] if o is None else o for i, o in enumerate(output)]
        if all(is_static(o) and o == 1 for o in wanted):
            return run(v, list(range(2, 2 + count)))
        if not all(is_static(d) for d in dims):
            raise UndeterminedError("an adaptive pool over sizes that are only known when running")
        if all(int(d) % int(o) == 0 for d, o in zip(dims, wanted, strict=True)):
            return even(v, [int(d) // int(o) for d, o in zip(dims, wanted, strict=True)])
        for i, o in enumerate(wanted):
            axis = 2 + i
            v = joined([run(sliced(v, axis, a, b), [axis]) for a, b in _bounds(int(dims[i]), int(o))], axis)
        return v

    return _batched(x, count, reduced)


def _adaptive_avg(count: int) -> Callable[..., Value]:
    def even(v: Value, kernel: list[int]) -> Value:
        return pool.AveragePool(v, kernel_shape=kernel, strides=kernel)

    return lambda x, output_size: _adaptive(x, _listed(output_size, count), count, ReduceMean, even)


def _listed(output: Any, count: int) -> list[Any]:
    listed = list(output) if isinstance(output, (list, tuple)) else [output]
    return listed * count if len(listed) == 1 else listed


def _adaptive_max(count: int) -> Callable[..., Any]:
    def even(v: Value, kernel: list[int]) -> Value:
        made = MaxPool(v, kernel_shape=kernel, strides=kernel)
        return made[0] if isinstance(made, tuple) else made

    def pooled(x: Value, output_size: Any) -> Any:
        wanted = _listed(output_size, count)
        values = _adaptive(x, wanted, count, ReduceMax, even)
        return values, _batched(x, count, lambda v: _adaptive_places(v, wanted, count))

    return pooled


def _adaptive_places(v: Value, wanted: list[Any], count: int) -> Value:
    """Where in its plane the maximum of each window is."""
    dims = [int(static(d, "the size of an image")) for d in sizes(v)[-count:]]
    flat = reshaped(v, [*sizes(v)[:2], -1])
    bounds = [_bounds(d, d if o is None else int(o)) for d, o in zip(dims, wanted, strict=True)]
    places = []
    for window in np.ndindex(*[len(b) for b in bounds]):
        ranges = [np.arange(*bounds[i][j]) for i, j in enumerate(window)]
        inside = np.ravel_multi_index(tuple(np.meshgrid(*ranges, indexing="ij")), dims).ravel()
        seen = constant(inside.astype(np.int64), DType.Int64)
        best = ArgMax(Gather(flat, seen, axis=2), axis=2, keepdims=1)
        places.append(Gather(seen, best))
    return reshaped(joined(places, 2), [*sizes(v)[:2], *[len(b) for b in bounds]])


for _count in (1, 2, 3):
    aten(f"max_pool{_count}d")(_max_pool(_count, False))
    aten(f"max_pool{_count}d_with_indices")(_max_pool(_count, True))
    aten(f"avg_pool{_count}d")(_avg_pool(_count))
    aten(f"adaptive_avg_pool{_count}d")(_adaptive_avg(_count))
    aten(f"adaptive_max_pool{_count}d")(_adaptive_max(_count))
    if _count > 1:
        aten(f"_adaptive_avg_pool{_count}d")(_adaptive_avg(_count))


def _max_unpool(count: int) -> Callable[..., Value]:
    def unpooled(x: Value, indices: Value, output_size: Any, *_: Any) -> Value:
        def run(pair: Value) -> Value:
            del pair
            batch, channels = sizes(value)[:2]
            space = [int(static(d, "the size of an image")) for d in list(output_size)[-count:]]
            blank = Expand(number(0, x.dtype), shape_value([batch, channels, int(np.prod(space))]))
            flat = [reshaped(v, [batch, channels, -1]) for v in (places, value)]
            return reshaped(ScatterElements(blank, *flat, axis=2), [batch, channels, *space])

        value = x if x.rank == count + 2 else Unsqueeze(x, [0])
        places = indices if indices.rank == count + 2 else Unsqueeze(indices, [0])
        made = run(value)
        return made if x.rank == count + 2 else Squeeze(made, [0])

    return unpooled


aten("max_unpool2d")(_max_unpool(2))
aten("max_unpool3d")(_max_unpool(3))


# ---------------------------------------------------------------------- patches


@aten("im2col")
def _im2col(x: Value, kernel_size: Any, dilation: Any, padding: Any, stride: Any) -> Value:
    def run(v: Value) -> Value:
        k, d, p, s = (spread(a, 2) for a in (kernel_size, dilation, padding, stride))
        v = Pad(v, constant([0, 0, *p, 0, 0, *p], DType.Int64), number(0, x.dtype))
        dims = [int(static(n, "the size of an image")) for n in sizes(v)[-2:]]
        places = []
        for i in range(2):
            count = (dims[i] - d[i] * (k[i] - 1) - 1) // s[i] + 1
            places.append(np.arange(k[i])[:, None] * d[i] + np.arange(count)[None, :] * s[i])
        rows = Gather(v, constant(places[0].astype(np.int64), DType.Int64), axis=2)
        both = Gather(rows, constant(places[1].astype(np.int64), DType.Int64), axis=4)
        patches = Transpose(both, perm=[0, 1, 2, 4, 3, 5])
        batch, channels = sizes(v)[:2]
        return reshaped(patches, [batch, static(channels, "channels") * k[0] * k[1], -1])

    return _batched(x, 2, run)


@aten("col2im")
def _col2im(x: Value, output_size: Any, kernel_size: Any, dilation: Any, padding: Any, stride: Any) -> Value:
    p = spread(padding, 2)
    value = x if x.rank == 3 else Unsqueeze(x, [0])
    made = vision.Col2Im(
        value, constant(spread(output_size, 2), DType.Int64), constant(spread(kernel_size, 2), DType.Int64),
        dilations=spread(dilation, 2), pads=[*p, *p], strides=spread(stride, 2),
    )  # fmt: skip
    return made if x.rank == 3 else Squeeze(made, [0])


# ---------------------------------------------------------------------- resampling


def _resized(mode: str, count: int, aligns: bool, smooth: bool = False) -> Callable[..., Value]:
    def resized(x: Value, output_size: Any = None, *rest: Any, **named: Any) -> Value:
        align = bool(rest[0]) if aligns and rest else bool(named.get("align_corners", False))
        scales = [s for s in (rest[1:] if aligns else rest) if s is not None]
        if scales and isinstance(scales[0], (list, tuple)):
            scales = list(scales[0])
        scales = scales or [v for k, v in named.items() if k.startswith("scale") and v is not None]
        if scales and isinstance(scales[0], (list, tuple)):
            scales = list(scales[0])
        return _resize(x, output_size, scales, count, mode, align, smooth)

    return resized


def _resize(
    x: Value, output: Any, scales: list[Any], count: int, mode: str, align: bool, smooth: bool = False
) -> Value:
    axes = list(range(x.rank - count, x.rank))
    more: dict[str, Any] = {"axes": axes, "mode": mode.removesuffix("-exact"), "antialias": int(smooth)}
    if smooth:
        more |= {"exclude_outside": 1, "cubic_coeff_a": -0.5}
    if mode == "nearest":
        more |= {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    elif mode == "nearest-exact":
        more |= {"coordinate_transformation_mode": "half_pixel", "nearest_mode": "round_prefer_ceil"}
    else:
        more["coordinate_transformation_mode"] = "align_corners" if align else "half_pixel"
    if scales and output is None:
        return Resize(x, None, constant([float(s) for s in scales], DType.Float32), **more)
    if scales and mode != "nearest" and not align:
        # torch computes with the scale it was given, which the sizes alone do not tell.
        dims = sizes(x)[-count:]
        exact = all(
            is_static(d) and int(d * s) == d * s and (not is_static(o) or d * s == o)
            for d, s, o in zip(dims, scales, output, strict=True)
        )
        rounded = [float(np.float32(s)) for s in scales]
        same = all(
            is_static(d) and is_static(o) and math.floor(d * s) == o
            for d, s, o in zip(dims, rounded, output, strict=True)
        )
        if same and not exact:
            return Resize(x, None, constant(rounded, DType.Float32), **more)
        if not exact:
            raise refuse("interpolation by a scale that gives no whole size, without recompute_scale_factor")
    return Resize(x, None, None, shape_value(list(output)), **more)


for _count, _name in ((1, "linear"), (2, "bilinear"), (3, "trilinear")):
    aten(f"upsample_{_name}{_count}d")(_resized("linear", _count, True))
    aten(f"upsample_nearest{_count}d")(_resized("nearest", _count, False))
    aten(f"_upsample_nearest_exact{_count}d")(_resized("nearest-exact", _count, False))
aten("upsample_bicubic2d")(_resized("cubic", 2, True))
aten("_upsample_bilinear2d_aa")(_resized("linear", 2, True, smooth=True))
aten("_upsample_bicubic2d_aa")(_resized("cubic", 2, True, smooth=True))


@aten("grid_sampler", "grid_sampler_2d", "grid_sampler_3d")
def _grid_sampler(x: Value, grid: Value, interpolation_mode: int, padding_mode: int, align_corners: bool) -> Value:
    return vision.GridSample(
        x, grid, mode=("linear", "nearest", "cubic")[interpolation_mode],
        padding_mode=("zeros", "border", "reflection")[padding_mode], align_corners=int(align_corners),
    )  # fmt: skip


@aten("affine_grid_generator")
def _affine_grid(theta: Value, size: Any, align_corners: bool) -> Value:
    return vision.AffineGrid(theta, shape_value(list(size)), align_corners=int(align_corners))


@aten("nms")
def _nms(boxes: Value, scores: Value, iou_threshold: float) -> Value:
    """torchvision's: the kept boxes, best first."""
    from pyflame_rt.ops.onnx.detection import NonMaxSuppression

    most = number(sizes(boxes)[0], DType.Int64)
    kept = NonMaxSuppression(
        Unsqueeze(boxes, [0]), Unsqueeze(scores, [0, 1]), most, constant(float(iou_threshold), DType.Float32)
    )
    return Gather(kept, constant(2, DType.Int64), axis=1)
