"""Normalisations: subtract a mean, divide by a deviation, scale and shift."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.graph import DType, Node
from pyflame_rt.graph.errors import InputError
from pyflame_rt.ops.core.flop_counts import flops_per_input
from pyflame_rt.ops.core.guards import at_least, at_most, dims_of, divides, has_shape, same_size
from pyflame_rt.ops.core.registry import operator
from pyflame_rt.ops.core.type_rules import normalize_axis
from pyflame_rt.ops.core.upgrade import Upgrade, refuse, upgrade
from pyflame_rt.ops.core.value import Value, constant
from pyflame_rt.ops.onnx.arithmetic import Abs, Reciprocal, unbroadcast, zeros_like
from pyflame_rt.ops.onnx.cast import Cast
from pyflame_rt.ops.onnx.logic import Equal, Where
from pyflame_rt.ops.onnx.math import Sqrt
from pyflame_rt.ops.onnx.pool import ReduceWindow
from pyflame_rt.ops.onnx.reduce import ReduceMean, ReduceSum
from pyflame_rt.ops.onnx.shape import Reshape, Shape, Unsqueeze

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# ONNX's 1e-5 is a float32.
_EPSILON = 9.999999747378752e-06


def _cast(x: Value, dtype: DType) -> Value:

    return x if x.dtype is dtype else Cast(x, to=dtype)


def _wide(*values: Value) -> DType:
    """The widest element type among them, float32 at least."""
    return max((DType.Float32, *(v.dtype for v in values)), key=lambda d: d.itemsize)


def _mean(x: Value, axes: Sequence[int]) -> Value:

    return ReduceMean(x, list(axes), keepdims=1, noop_with_empty_axes=1)


def _per_channel(x: Value, rank: int) -> Value:
    """A vector laid along axis 1."""
    return Unsqueeze(x, list(range(1, rank - 1))) if rank > 2 else x


def _inverse_deviation(variance: Value, epsilon: float) -> Value:

    return Reciprocal(Sqrt(variance + epsilon))


def _centred(x: Value, axes: Sequence[int]) -> tuple[Value, Value, Value]:
    """Deviations from the mean, the mean, and the variance."""
    mean = _mean(x, axes)
    away = x - mean
    return away, mean, _mean(away * away, axes)


# ---------------------------------------------------------------------- over the batch


def _channel_needs(*names: str) -> Callable[..., None]:
    """One number of each of these vectors for each channel, which are on axis 1."""

    def needs(x: Value, /, *vectors: Value | None, **_: Any) -> None:
        at_least("the rank of the input", x.rank, 2)
        for name, vector in zip(names, vectors, strict=True):
            has_shape(name, vector, [x.shape[1]], "channels")

    return needs


def layer_needs(X: Value, /, *weights: Value | None, axis: int, **_: Any) -> None:
    """Scale and bias broadcast to the axes that are normalised."""
    normalize_axis(axis, X.rank)
    for name, weight in zip(("scale", "B"), weights, strict=False):
        dims = dims_of(weight)
        if dims is None:
            continue
        at_most(f"the rank of {name}", len(dims), X.rank, "that of the input")
        for size, wanted in zip(dims[::-1], X.shape[::-1], strict=False):
            if size != 1:
                same_size(f"the last sizes of {name}: one", size, wanted, f"as in the input of shape {X.shape}")


@operator(
    since=15,
    requires=_channel_needs("scale", "B", "input_mean", "input_var"),
    types="T:float T1:float T1 T2:float T2 > T T2 T2",
    kind="norm",
)
def BatchNormalization(
    X: Value,
    scale: Value,
    B: Value,
    input_mean: Value,
    input_var: Value,
    /,
    *,
    epsilon: float = _EPSILON,
    momentum: float = 0.8999999761581421,
    training_mode: int = 0,
) -> Value | tuple[Value, Value, Value]:
    """Normalise every channel: by given statistics, or by those of the batch, which are then tracked."""
    kind = _wide(X, scale, input_mean)
    x, mean, var = (_cast(v, kind) for v in (X, input_mean, input_var))
    if not training_mode:
        return _cast(_normalised(x, mean, var, scale, B, epsilon), X.dtype)
    batch_mean, batch_var = _batch_statistics(x)
    y = _normalised(x, batch_mean, batch_var, scale, B, epsilon)
    tracked = [old * momentum + new * (1.0 - momentum) for old, new in ((mean, batch_mean), (var, batch_var))]
    return _cast(y, X.dtype), _cast(tracked[0], input_mean.dtype), _cast(tracked[1], input_mean.dtype)


def _normalised(x: Value, mean: Value, var: Value, scale: Value, bias: Value, epsilon: float) -> Value:
    """Written as one multiplication and one addition per element."""
    factor = _cast(scale, x.dtype) * _inverse_deviation(var, epsilon)
    return (x - _per_channel(mean, x.rank)) * _per_channel(factor, x.rank) + _per_channel(_cast(bias, x.dtype), x.rank)


def _batch_statistics(x: Value) -> tuple[Value, Value]:

    axes = [0, *range(2, x.rank)]
    _, mean, variance = _centred(x, axes)
    return Reshape(mean, [-1]), Reshape(variance, [-1])


def _batch_statistics_vjp(g: tuple[Value, Value], y: tuple[Value, Value], X: Value, /) -> tuple[Value]:
    share, rank = 1.0 / _count(X), X.rank
    away = X - _per_channel(y[0], rank)
    return (away * _per_channel(g[1] * (2.0 * share), rank) + _per_channel(g[0] * share, rank),)


def _count(x: Value) -> float:
    """Elements of one channel."""
    return float(np.prod([int(n) for i, n in enumerate(x.shape) if i != 1]))  # type: ignore[arg-type]


@operator(since=1, domain="pyflame", vjp=_batch_statistics_vjp)
def BatchStatistics(X: Value, /) -> tuple[Value, Value]:
    """Mean and variance of every channel, which BatchNormalization before 14 also gave."""
    mean, variance = _batch_statistics(_cast(X, _wide(X)))
    return _cast(mean, X.dtype), _cast(variance, X.dtype)


def _sums_needs(G: Value, X: Value, mean: Value, /) -> None:
    has_shape("G", G, X.shape, "that of X")
    has_shape("mean", mean, [X.shape[1]], "channels")


@operator(since=1, domain="pyflame", requires=_sums_needs)
def BatchNormSums(G: Value, X: Value, mean: Value, /) -> tuple[Value, Value]:
    """For every channel the sum of a gradient, and that of its products with deviations from the mean."""
    axes = [0, *range(2, X.rank)]
    away = X - _per_channel(mean, X.rank)
    return ReduceSum(G, axes, keepdims=0), ReduceSum(G * away, axes, keepdims=0)


def _batch_normalized_vjp(
    g: Value,
    y: Value,
    X: Value,
    scale: Value,
    B: Value,
    mean: Value,
    variance: Value,
    /,
    *,
    epsilon: float,
) -> tuple[Value | None, ...]:
    """The statistics are those of the batch: what reaches the input through them is part of its gradient."""
    total, products = BatchNormSums(g, X, mean)
    inverse = _inverse_deviation(variance, epsilon)
    factor, count = scale * inverse, _count(X)
    slope, shift, rank = factor * inverse * inverse * products / count, factor * total / count, X.rank
    away = X - _per_channel(mean, rank)
    dx = g * _per_channel(factor, rank) - away * _per_channel(slope, rank) - _per_channel(shift, rank)
    return dx, products * inverse, total, None, None


@operator(
    since=1,
    domain="pyflame",
    vjp=_batch_normalized_vjp,
    requires=_channel_needs("scale", "B", "mean", "variance"),
    kind="norm",
)
def BatchNormalized(
    X: Value, scale: Value, B: Value, mean: Value, variance: Value, /, *, epsilon: float = _EPSILON
) -> Value:
    """Normalise every channel by the batch's own statistics, which BatchStatistics gives.

    The gradient towards X counts that the statistics depend on it; none goes to the statistics themselves.
    """
    return _normalised(X, mean, variance, scale, B, epsilon)


@upgrade(["BatchNormalization", "InstanceNormalization"], to=6)
def nothing_is_consumed(node: Node, up: Upgrade) -> Node:
    """Version 1 named inputs that might be overwritten."""
    return _without(node, "consumed_inputs")


def _without(node: Node, *names: str) -> Node:
    return node.replace(attributes={k: v for k, v in node.attributes.items() if k not in names})


@upgrade("BatchNormalization", to=7)
def batch_norm_mode_by_outputs(node: Node, up: Upgrade) -> Node:
    """Before 7, is_test asked for the given statistics; then the number of outputs decides."""
    outputs = node.outputs[:1] if node.get_attr("is_test", 0) else node.outputs
    return _without(node, "is_test").replace(outputs=outputs)


@upgrade("BatchNormalization", to=9)
def batch_norm_is_spatial(node: Node, up: Upgrade) -> Node | list[Node]:
    """Before 9, spatial=0 kept statistics for every single place, not one for a channel."""
    plain = _without(node, "spatial")
    if node.get_attr("spatial", 1):
        return plain
    if any(node.outputs[1:]):
        raise refuse(node, "training with spatial=0 is not supported")
    flat = up.emit("Flatten", [node.inputs[0]], {"axis": 1})
    vectors = [up.emit("Reshape", [name, up.constant([-1])]) for name in node.inputs[1:]]
    inner = up.fresh("normalized")
    shape = up.emit("Shape", [node.inputs[0]])
    return [
        plain.replace(inputs=[flat, *vectors], outputs=[inner]),
        Node(f"{node.name}_shape", "Reshape", [inner, shape], [node.outputs[0]]),
    ]


@upgrade("BatchNormalization", to=14)
def batch_norm_training_is_an_attribute(node: Node, up: Upgrade) -> Node | list[Node]:
    """Before 14, asking for more than one output meant training, and batch statistics could be asked for."""
    if not any(node.outputs[1:]):
        return node.replace(outputs=node.outputs[:1])
    main = node.replace(outputs=node.outputs[:3], attributes={**node.attributes, "training_mode": 1})
    if not any(node.outputs[3:]):
        return main
    saved = Node(f"{node.name}_saved", "BatchStatistics", [node.inputs[0]], node.outputs[3:], domain="pyflame")
    return [main, saved]


# ---------------------------------------------------------------------- over one sample


@operator(since=22, requires=_channel_needs("scale", "B"), types="T:float T T > T", kind="norm")
def InstanceNormalization(input: Value, scale: Value, B: Value, /, *, epsilon: float = _EPSILON) -> Value:
    """Normalise every channel of every sample by itself."""
    x = _cast(input, _wide(input))
    away, _, variance = _centred(x, range(2, x.rank))
    factor, shift = (_per_channel(_cast(v, x.dtype), x.rank) for v in (scale, B))
    return _cast(away * _inverse_deviation(variance, epsilon) * factor + shift, input.dtype)


def _layer_gradient_needs(G: Value, X: Value, Scale: Value, /, *, axis: int, **_: Any) -> None:
    has_shape("G", G, X.shape, "that of X")
    has_shape("Scale", Scale, X.shape[normalize_axis(axis, X.rank) :], "the axes that are normalised")


@operator(since=1, domain="pyflame", requires=_layer_gradient_needs)
def LayerNormGrad(
    G: Value, X: Value, Scale: Value, /, *, axis: int = -1, epsilon: float = _EPSILON
) -> tuple[Value, Value, Value]:
    """Gradients of LayerNormalization towards X, Scale and B; all are of one type, Scale is not stretched."""
    first = normalize_axis(axis, X.rank)
    axes, lead = list(range(first, X.rank)), list(range(first))
    away, _, variance = _centred(X, axes)
    inverse = _inverse_deviation(variance, epsilon)
    plain, scaled = away * inverse, G * Scale
    dx = (scaled - _mean(scaled, axes) - plain * _mean(scaled * plain, axes)) * inverse
    sums = [ReduceSum(v, lead, keepdims=0, noop_with_empty_axes=1) for v in (G * plain, G)]
    return dx, sums[0], sums[1]


def _layer_norm_vjp(
    g: tuple[Value | None, ...],
    y: tuple[Value, ...],
    X: Value,
    Scale: Value,
    B: Value | None = None,
    /,
    *,
    axis: int,
    epsilon: float,
    stash_type: int,
) -> tuple[Value | None, ...]:
    first, (gy, g_mean, g_inverse) = normalize_axis(axis, X.rank), g
    kind, whole = DType.from_onnx(stash_type), tuple(X.shape[first:])
    alike = X.dtype is kind and tuple(Scale.shape) == whole and (B is None or tuple(B.shape) == whole)
    if alike and gy is not None and g_mean is None and g_inverse is None:
        dx, scale, bias = LayerNormGrad(gy, X, Scale, axis=axis, epsilon=epsilon)
        return dx, scale, None if B is None else bias
    axes = list(range(first, X.rank))
    away, inverse = _cast(X, kind) - y[1], y[2]
    # What reaches the inverse deviation and the mean, shared out: as outputs, and through y.
    one = zeros_like(away) + 1.0
    share = Reciprocal(ReduceSum(one, axes, keepdims=1, noop_with_empty_axes=1))
    deviation = None if g_inverse is None else g_inverse * share
    centre = None if g_mean is None else g_mean * share
    direct, scale, bias = None, None, None
    if gy is not None:
        inner = _cast(gy * Scale, kind)
        scale = unbroadcast(gy * _cast(away * inverse, X.dtype), Scale)
        bias = None if B is None else unbroadcast(gy, B)
        direct = inner * inverse
        deviation = _added(deviation, _mean(inner * away, axes))
        centre = _added(centre, -_mean(direct, axes))
    bent = None if deviation is None else -away * (deviation * inverse * inverse * inverse)
    dx = _added(_added(direct, bent), None if centre is None else centre * one)
    return None if dx is None else _cast(dx, X.dtype), scale, bias


def _added(a: Value | None, b: Value | None) -> Value | None:
    return b if a is None else a if b is None else a + b


@operator(
    since=17,
    vjp=_layer_norm_vjp,
    partial=True,
    requires=layer_needs,
    types="T:float T T > T U U",
    kind="norm",
    flops=flops_per_input(6),
)
def LayerNormalization(
    X: Value, Scale: Value, B: Value | None = None, /, *, axis: int = -1, epsilon: float = _EPSILON, stash_type: int = 1
) -> tuple[Value, Value, Value]:
    """Normalise over the axes from ``axis`` on; mean and inverse deviation in the stash type."""
    x = _cast(X, DType.from_onnx(stash_type))
    away, mean, variance = _centred(x, range(normalize_axis(axis, X.rank), X.rank))
    inverse = Reciprocal(Sqrt(variance + epsilon))
    y = _cast(away * inverse, X.dtype) * Scale
    return (y if B is None else y + B), mean, inverse


@operator(since=23, requires=layer_needs, types="T:float V:float > V", kind="norm", flops=flops_per_input(6))
def RMSNormalization(
    X: Value, scale: Value, /, *, axis: int = -1, epsilon: float = _EPSILON, stash_type: int = 1
) -> Value:
    """Divide by the root of the mean square over the axes from ``axis`` on."""
    x = _cast(X, DType.from_onnx(stash_type))
    square = _mean(x * x, range(normalize_axis(axis, X.rank), X.rank))
    y = _cast(x * _inverse_deviation(square, epsilon), X.dtype)
    return _cast(y, scale.dtype) * scale


def _group_needs(X: Value, scale: Value, bias: Value, /, *, num_groups: int, **_: Any) -> None:
    _channel_needs("scale", "bias")(X, scale, bias)
    at_least("num_groups", num_groups, 1)
    divides("the number of channels", X.shape[1], num_groups, "the number of groups")


@operator(since=21, requires=_group_needs, types="T:float T T > T", kind="norm")
def GroupNormalization(
    X: Value, scale: Value, bias: Value, /, *, num_groups: int, epsilon: float = _EPSILON, stash_type: int = 1
) -> Value:
    """Normalise groups of channels of every sample."""
    x = Reshape(_cast(X, DType.from_onnx(stash_type)), [0, num_groups, -1])
    away, _, variance = _centred(x, [2])
    plain = Reshape(_cast(away * _inverse_deviation(variance, epsilon), X.dtype), Shape(X))
    return plain * _per_channel(scale, X.rank) + _per_channel(bias, X.rank)


@upgrade("GroupNormalization", to=21)
def group_norm_scales_channels(node: Node, up: Upgrade) -> Node:
    """Before 21, scale and bias had one number for a group, not for a channel."""
    groups = up.constant([node.get_attr("num_groups")])
    channels = up.emit("Shape", [node.inputs[0]], {"start": 1, "end": 2})
    wide = up.emit("Concat", [groups, up.emit("Div", [channels, groups])], {"axis": 0})
    column, flat = up.constant([-1, 1]), up.constant([-1])
    grown = [
        up.emit("Reshape", [up.emit("Expand", [up.emit("Reshape", [name, column]), wide]), flat])
        for name in node.inputs[1:]
    ]
    return node.replace(inputs=[node.inputs[0], *grown])


# ---------------------------------------------------------------------- others


@operator(since=22, types="T:float > T", kind="norm")
def LpNormalization(input: Value, /, *, axis: int = -1, p: int = 2) -> Value:
    """Divide by the L1 or L2 norm along an axis; zeros stay zeros."""
    if p not in (1, 2):
        raise InputError(f"p must be 1 or 2, got {p}")
    x = _cast(input, _wide(input))
    total = ReduceSum(Abs(x) if p == 1 else x * x, [normalize_axis(axis, input.rank)], keepdims=1)
    length = total if p == 1 else Sqrt(total)
    # What is divided where the norm is zero is itself zero.
    return _cast(x / Where(Equal(length, 0.0), constant(1, length), length), input.dtype)


@operator(since=13, types="T:float > T", kind="norm")
def LRN(
    X: Value, /, *, size: int, alpha: float = 9.999999747378752e-05, beta: float = 0.75, bias: float = 1.0
) -> Value:
    """Divide by a power of the sum of squares of neighbouring channels."""
    x = _cast(X, _wide(X))
    before = (size - 1) // 2
    pads = [[0] * x.rank, [0] * x.rank]
    pads[0][1], pads[1][1] = before, size - 1 - before
    window, ones = [1] * x.rank, [1] * x.rank
    window[1] = size
    squares = ReduceWindow(x * x, window=window, strides=ones, dilations=ones, pads=[*pads[0], *pads[1]], kind="sum")
    return _cast(x / (squares * (alpha / size) + bias) ** beta, X.dtype)


@operator(since=13, types="T:float > T", kind="norm")
def MeanVarianceNormalization(X: Value, /, *, axes: list[int] = [0, 2, 3]) -> Value:  # noqa: B006 - nobody changes it
    """Bring to mean 0 and variance 1 over the axes."""
    x = _cast(X, _wide(X))
    away, _, variance = _centred(x, [normalize_axis(a, X.rank, "axes") for a in axes])
    # The specification adds its epsilon to the deviation, not to the variance.
    return _cast(away / (Sqrt(variance) + float(np.float32(1e-9))), X.dtype)
