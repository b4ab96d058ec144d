"""Pooling by sums, and of whole planes; maxima are in maxpool."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.graph.errors import InputError, ShapeMismatchError
from pyflame_rt.ops.core.flop_counts import window_flops
from pyflame_rt.ops.core.registry import operator, primitive
from pyflame_rt.ops.core.type_rules import tensor_like
from pyflame_rt.ops.core.upgrade import Upgrade, upgrade
from pyflame_rt.ops.core.value import Value, constant
from pyflame_rt.ops.onnx.arithmetic import Abs
from pyflame_rt.ops.onnx.math import Sqrt
from pyflame_rt.ops.onnx.reduce import ReduceMax, ReduceMean, ReduceSum
from pyflame_rt.ops.onnx.shape import Expand, Reshape, Unsqueeze
from pyflame_rt.ops.onnx.shape import Shape as ShapeOf
from pyflame_rt.ops.onnx.slicing import Concat, Pad
from pyflame_rt.ops.onnx.windows import Windows, pad_pairs, window_shape, windows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyflame_rt.graph import DType, Node, TensorType


def _window_type(x: Value, /, *, window: Any, strides: Any, dilations: Any, pads: Any, kind: str) -> TensorType:
    shape = x.tensor_type.shape
    if shape is None:
        return tensor_like(x, None)
    sizes = window_shape(shape, window, strides=strides, dilations=dilations, pads=pads, partial=True)
    return tensor_like(x, sizes)


def _window_vjp(
    g: Value, y: Value, x: Value, *, window: Any, strides: Any, dilations: Any, pads: Any, kind: str
) -> tuple[Value | None]:
    """Each input takes part in the windows that cover it: a windowed sum of the spread-out gradient."""
    from pyflame_rt.graph.errors import UnsupportedOperatorError

    if kind != "sum":
        raise UnsupportedOperatorError(f"the gradient of a windowed {kind} is not available")
    spread = _spread(g, strides)
    before: list[Any] = []
    after: list[Any] = []
    for n, size, k, d, (low, _) in zip(x.shape, spread.shape, window, dilations, pad_pairs(pads, x.rank), strict=True):
        before.append((k - 1) * d - low)
        after.append(n + low - size)  # type: ignore[operator]
    padded = Pad(spread, [*before, *after])
    ones = [1] * x.rank
    return (ReduceWindow(padded, window=window, strides=ones, dilations=dilations, pads=[0] * 2 * x.rank, kind="sum"),)


def _spread(x: Value, strides: Sequence[int]) -> Value:
    """Zeros between neighbours, so that they lie ``strides`` apart."""
    for axis, stride in enumerate(strides):
        if stride == 1:
            continue
        sizes = list(x.shape)
        grown = Pad(
            Unsqueeze(x, [axis + 1]), [*[0] * (x.rank + 1), *[0] * (axis + 1), stride - 1, *[0] * (x.rank - axis - 1)]
        )
        size = sizes[axis]
        sizes[axis] = size * stride  # type: ignore[operator]
        flat = Reshape(grown, sizes)
        cut = [0] * flat.rank
        cut[axis] = 1 - stride
        x = Pad(flat, [*[0] * flat.rank, *cut])
    return x


@primitive(since=1, domain="pyflame", infer=_window_type, vjp=_window_vjp, kind="reduce")
def ReduceWindow(
    ops: Any, x: Any, /, *, window: list[int], strides: list[int], dilations: list[int], pads: list[int], kind: str
) -> Any:
    """Sums or maxima of windows over all axes; what is outside counts as nothing."""
    padding = pad_pairs(pads, len(x.shape))
    return ops.reduce_window(x, window, strides=strides, dilations=dilations, padding=padding, kind=kind)


def pool_type(x: Value, dtype: DType | None = None, /, **geometry: Any) -> TensorType:
    """Batch and channels as they are, space by the windows."""
    shape = x.tensor_type.shape
    if shape is None:
        return tensor_like(x, None, dtype)
    if len(shape) < 3:
        raise ShapeMismatchError(f"pooling needs axes for batch, channel and space, got shape {shape}")
    return tensor_like(x, [*shape[:2], *window_shape(shape[2:], **geometry, partial=True)], dtype)


# ---------------------------------------------------------------------- sums over windows


def pool_needs(X: Value, /, **_: Any) -> None:
    """There may be no images and no channels, but images have pixels."""
    for axis, size in enumerate(X.shape[2:], 2):
        if isinstance(size, int) and not size:
            raise ShapeMismatchError(f"axis {axis} of the input is empty: a window has nothing to look at")


def _sum_type(
    X: Value, /, *, kernel_shape: list[int], count_include_pad: int = 0, p: int = 2, **geometry: Any
) -> TensorType:
    return pool_type(X, kernel=kernel_shape, **geometry)


def _window_sum(x: Value, geometry: Windows) -> Value:
    """Sums over the windows of the spatial axes."""
    # Only windows that stick out need to know by how much; others may have sizes known when running.
    padding = geometry.reach(_static(x)) if geometry.ceil_mode else geometry.padding
    before, after = zip(*padding, strict=True)
    return ReduceWindow(
        x,
        window=[1, 1, *geometry.kernel],
        strides=[1, 1, *geometry.strides],
        dilations=[1, 1, *geometry.dilations],
        pads=[0, 0, *before, 0, 0, *after],
        kind="sum",
    )


def _static(x: Value) -> list[int]:
    return [int(n) for n in x.shape[2:]]  # type: ignore[arg-type]


@operator(since=22, infer=_sum_type, requires=pool_needs, types="T:float > T", kind="reduce", flops=window_flops)
def AveragePool(
    X: Value,
    /,
    *,
    kernel_shape: list[int],
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    count_include_pad: int = 0,
    dilations: list[int] | None = None,
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Value:
    """Means of windows; padding counts only on request."""
    geometry = windows(
        X.shape[2:],
        kernel_shape,
        strides=strides,
        dilations=dilations,
        pads=pads,
        auto_pad=auto_pad,
        ceil_mode=ceil_mode,
        partial=True,
    )
    return _window_sum(X, geometry) / _divisor(X, geometry, include_padding=bool(count_include_pad))


def window_gradient(
    grad: Value, x: Value, *, kernel_shape: list[int], strides: list[int], pads: list[int], ceil_mode: int,
    count_include_pad: int,
) -> Value:  # fmt: skip
    """What arrives at the input of :func:`AveragePool` where ``grad`` arrives at its output."""
    geometry = windows(x.shape[2:], kernel_shape, strides=strides, pads=pads, ceil_mode=ceil_mode, partial=True)
    padding = geometry.reach(_static(x)) if geometry.ceil_mode else geometry.padding
    before, after = zip(*padding, strict=True)
    shares = grad / _divisor(x, geometry, include_padding=bool(count_include_pad))
    (found,) = _window_vjp(
        shares, shares, x, window=[1, 1, *geometry.kernel], strides=[1, 1, *geometry.strides],
        dilations=[1, 1, *geometry.dilations], pads=[0, 0, *before, 0, 0, *after], kind="sum",
    )  # fmt: skip
    assert found is not None
    return found


def _divisor(x: Value, geometry: Windows, *, include_padding: bool) -> Value:
    """How many elements each window averages: one number, an array, or counted when running."""
    whole = include_padding or not any(map(any, geometry.padding))
    if whole and not geometry.ceil_mode and not any(geometry.beyond):
        return constant(math.prod(geometry.kernel), x)
    if x.shape.is_static or include_padding:
        return constant(_window_counts(_static(x), geometry, include_padding=include_padding), x)
    size = Concat(constant([1, 1]), ShapeOf(x, start=2), axis=0)
    return _window_sum(Expand(constant(1, x), size), geometry)


def _window_counts(spatial: Sequence[int], geometry: Windows, *, include_padding: bool) -> np.ndarray[Any, Any]:
    """How many elements each window averages: a product of counts per axis."""
    counts = np.ones((1,) * len(spatial))
    for axis, (n, k, s, d, (before, after), beyond, out) in enumerate(
        zip(
            spatial,
            geometry.kernel,
            geometry.strides,
            geometry.dilations,
            geometry.padding,
            geometry.beyond,
            geometry.output(spatial),
            strict=True,
        )
    ):
        assert isinstance(out, int)
        places: Any = np.arange(out)[:, None] * s + np.arange(k) * d
        # What ceil_mode, or a window larger than the data, adds behind the padding never counts.
        inside = places < n + before + after - beyond if include_padding else (places >= before) & (places < before + n)
        count = np.maximum(inside.sum(axis=1), 1)
        counts = counts * count.reshape((-1,) + (1,) * (len(spatial) - 1 - axis))
    return counts


@operator(since=22, infer=_sum_type, requires=pool_needs, types="T:float > T")
def LpPool(
    X: Value,
    /,
    *,
    kernel_shape: list[int],
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: list[int] | None = None,
    p: int = 2,
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Value:
    """Lp norms of windows."""
    geometry = windows(
        X.shape[2:],
        kernel_shape,
        strides=strides,
        dilations=dilations,
        pads=pads,
        auto_pad=auto_pad,
        ceil_mode=ceil_mode,
        partial=True,
    )
    return _root(_window_sum(_power(X, p), geometry), p)


def _power(x: Value, p: float) -> Value:

    if p == 1:
        return Abs(x)
    return x * x if p == 2 else Abs(x) ** p


def _root(x: Value, p: float) -> Value:

    if p == 1:
        return x
    return Sqrt(x) if p == 2 else x ** (1.0 / p)


@upgrade(["LpPool", "GlobalLpPool"], to=2)
def p_became_an_integer(node: Node, up: Upgrade) -> Node:
    """Version 1 took a float."""
    p = node.get_attr("p", 2.0)
    if p != int(p):
        raise InputError(f"p = {p} is no integer, which newer versions of {node.op_type} need")
    return node.replace(attributes={**node.attributes, "p": int(p)})


# ---------------------------------------------------------------------- whole planes


def _planes(x: Value) -> list[int]:
    if x.rank < 2:
        raise ShapeMismatchError(f"pooling needs axes for batch and channel, got shape {x.shape}")
    return list(range(2, x.rank))


@operator(since=22, types="T:float > T", kind="reduce", flops=window_flops)
def GlobalAveragePool(X: Value, /) -> Value:
    """Means over all spatial axes."""
    return ReduceMean(X, _planes(X), keepdims=1, noop_with_empty_axes=1)


@operator(since=22, types="T > T", kind="reduce", flops=window_flops)  # quantized networks: maxima of bytes
def GlobalMaxPool(X: Value, /) -> Value:
    """Maxima over all spatial axes."""
    return ReduceMax(X, _planes(X), keepdims=1, noop_with_empty_axes=1)


@operator(since=22, types="T:float > T")
def GlobalLpPool(X: Value, /, *, p: int = 2) -> Value:
    """Lp norms over all spatial axes."""
    return _root(ReduceSum(_power(X, p), _planes(X), keepdims=1, noop_with_empty_axes=1), p)
