"""Convolutions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyflame_rt.graph import DimLike, DType, Shape, TensorType
from pyflame_rt.graph.errors import InputError, ShapeMismatchError
from pyflame_rt.ops.core.flop_counts import conv_flops, deconv_flops
from pyflame_rt.ops.core.guards import at_least, divides, has_rank, has_shape, length_of, same_size, size_at
from pyflame_rt.ops.core.registry import operator, primitive
from pyflame_rt.ops.core.type_rules import merge_dims, tensor_like
from pyflame_rt.ops.onnx.activation import Sigmoid
from pyflame_rt.ops.onnx.cast import Cast
from pyflame_rt.ops.onnx.reduce import ReduceSum
from pyflame_rt.ops.onnx.shape import Reshape, Transpose
from pyflame_rt.ops.onnx.slicing import Concat, Pad, Slice
from pyflame_rt.ops.onnx.windows import Windows, pad_pairs, times, window_shape, windows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyflame_rt.ops.core.value import Value

_TO_THE_END = 2**63 - 1  # Slice's "until the last"


def _kernel(weight: Sequence[DimLike], kernel_shape: Sequence[int] | None) -> list[int | None]:
    """Taps per axis; the attribute, where given, must agree with the weights."""
    taps = [k if isinstance(k, int) else None for k in weight[2:]]
    if kernel_shape is None:
        return taps
    if len(kernel_shape) != len(taps) or any(a is not None and a != b for a, b in zip(taps, kernel_shape, strict=True)):
        raise ShapeMismatchError(f"kernel_shape {list(kernel_shape)} does not fit weights of shape {list(weight)}")
    return [int(k) for k in kernel_shape]


def _check_channels(x: Shape, w: Shape, group: int, axis: int) -> None:
    """The channels of the input must be those of the weights."""
    if len(x) != len(w) or len(x) < 2:
        raise ShapeMismatchError(f"input of shape {x} and weights of shape {w} have different ranks")
    want = w[0] if axis == 0 else times(w[1], group)
    if isinstance(x[1], int) and isinstance(want, int) and x[1] != want:
        raise ShapeMismatchError(
            f"input of shape {x} has {x[1]} channels, weights of shape {w} want {want} (group {group})"
        )


def conv_type(
    X: Value,
    W: Value,
    B: Value | None = None,
    /,
    *,
    auto_pad: str = "NOTSET",
    dilations: list[int] | None = None,
    group: int = 1,
    kernel_shape: list[int] | None = None,
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> TensorType:
    """What a convolution gives."""
    x, w = X.tensor_type.shape, W.tensor_type.shape
    if x is None or w is None:
        known = w if x is None else x
        first = [None if x is None else x[0], None if w is None else w[0]]
        return tensor_like(X, None if known is None else [*first, *[None] * (len(known) - 2)])
    _check_channels(x, w, group, 1)
    spatial = window_shape(
        x[2:], _kernel(w, kernel_shape), strides=strides, dilations=dilations, pads=pads, auto_pad=auto_pad
    )
    return tensor_like(X, [x[0], w[0], *spatial])


def geometry_of(x: Any, w: Any, kernel_shape: Any, **options: Any) -> Windows:
    """The windows of a convolution, checked against input and weights."""
    _check_channels(Shape(x.shape), Shape(w.shape), options.pop("group"), 1)
    found = windows(tuple(x.shape[2:]), _kernel(tuple(w.shape), kernel_shape), **options)  # type: ignore[arg-type]
    found.output(tuple(x.shape[2:]))  # refuses windows larger than what they slide over
    return found


def bias_needs(X: Value, W: Value, B: Value | None = None, /, *_: Value | None, group: int, **__: Any) -> None:
    """One bias for each output channel, and weights that groups divide."""
    at_least("group", group, 1)
    divides("the number of output channels", size_at(W, 0), group, "the number of groups")
    has_shape("B", B, [size_at(W, 0)], "output channels")


def _transposed_bias_needs(X: Value, W: Value, B: Value | None = None, /, *, group: int, **_: Any) -> None:
    at_least("group", group, 1)
    divides("the number of input channels", size_at(W, 0), group, "the number of groups")
    has_shape("B", B, [times(size_at(W, 1), group)], "output channels")
    for axis, size in enumerate(X.shape[2:], 2):
        at_least(f"the size of axis {axis} of X", size, 1)  # of nothing there is no output to speak of


def _integer_needs(
    x: Value, w: Value, x_zero: Value | None = None, w_zero: Value | None = None, /, *, group: int, **_: Any
) -> None:
    bias_needs(x, w, group=group)
    same_size("the length of x_zero_point", length_of(x_zero), 1, "one number")
    if length_of(w_zero) != 1:
        has_shape("w_zero_point", w_zero, [size_at(w, 0)], "output channels")


def _with_bias(ops: Any, y: Any, bias: Any) -> Any:
    return y if bias is None else ops.add(y, ops.reshape(bias, (1, -1) + (1,) * (len(y.shape) - 2)))


def _conv_vjp(
    g: Value, y: Value, x: Value, w: Value, b: Value | None = None, **attributes: Any
) -> tuple[Value | None, ...]:
    group = attributes["group"]
    geometry = geometry_of(x, w, attributes["kernel_shape"], **_options(attributes))
    before, after = _halves(geometry.padding)
    left_over: list[Any] = [
        (n + p + q - (k - 1) * d - 1) % s  # type: ignore[operator]
        for n, (p, q), k, s, d in zip(
            x.shape[2:], geometry.padding, geometry.kernel, geometry.strides, geometry.dilations, strict=True
        )
    ]
    steps: dict[str, Any] = {"strides": list(geometry.strides), "dilations": list(geometry.dilations)}
    dx = ConvTranspose(g, w, **steps, pads=[*before, *after], output_padding=left_over, group=group)
    dw = ConvWeightGrad(x, g, **steps, pads=[*before, *after], kernel_shape=list(geometry.kernel), group=group)
    return (dx, dw) if b is None else (dx, dw, _bias_gradient(g))


def _options(attributes: dict[str, Any]) -> dict[str, Any]:
    return {name: attributes[name] for name in ("strides", "dilations", "pads", "auto_pad", "group")}


def _halves(padding: Sequence[tuple[int, int]]) -> tuple[list[int], list[int]]:
    return [p for p, _ in padding], [q for _, q in padding]


def _bias_gradient(g: Value) -> Value:

    return ReduceSum(g, [0, *range(2, g.rank)], keepdims=0)


@primitive(
    since=22,
    infer=conv_type,
    vjp=_conv_vjp,
    requires=bias_needs,
    types="T:float T T > T",
    kind="product",
    flops=conv_flops,
)
def Conv(
    ops: Any,
    X: Any,
    W: Any,
    B: Any = None,
    /,
    *,
    auto_pad: str = "NOTSET",
    dilations: list[int] | None = None,
    group: int = 1,
    kernel_shape: list[int] | None = None,
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Any:
    """Convolution over any number of spatial axes."""
    shape = geometry_of(
        X, W, kernel_shape, strides=strides, dilations=dilations, pads=pads, auto_pad=auto_pad, group=group
    )
    y = ops.conv(X, W, strides=shape.strides, padding=shape.padding, dilation=shape.dilations, groups=group)
    return _with_bias(ops, y, B)


def _weight_gradient_needs(X: Value, G: Value, /, *, kernel_shape: list[int], group: int, **geometry: Any) -> None:
    at_least("the rank of X", X.rank, 3)
    has_rank("G", G, X.rank)
    at_least("group", group, 1)
    for name, value in (("X", X), ("G", G)):
        divides(f"the number of channels of {name}", size_at(value, 1), group, "the number of groups")
    has_shape("G", G, [X.shape[0], None, *window_shape(X.shape[2:], kernel_shape, **geometry)])


@operator(since=1, domain="pyflame", requires=_weight_gradient_needs, kind="product")
def ConvWeightGrad(
    X: Value,
    G: Value,
    /,
    *,
    kernel_shape: list[int],
    strides: list[int],
    dilations: list[int],
    pads: list[int],
    group: int = 1,
) -> Value:
    """Gradient of a convolution towards its weights, itself a convolution: of the input by the gradient.

    Batch takes the place of channels; the axes of the groups stay groups.
    """
    space = list(X.shape[2:])
    batch, channels = X.shape[:2]
    rest = list(range(3, 3 + len(space)))
    split = Reshape(X, [batch, group, channels // group, *space])  # type: ignore[operator]
    images = Reshape(Transpose(split, perm=[2, 1, 0, *rest]), [channels // group, -1, *space])  # type: ignore[operator]
    turned = Transpose(G, perm=[1, 0, *range(2, G.rank)])
    found = Conv(images, turned, strides=dilations, dilations=strides, pads=pads, group=group)
    # A remainder of the forward strides gives taps too many.
    axes = list(range(2, found.rank))
    cut = Slice(found, [0] * len(axes), list(kernel_shape), axes)
    return Transpose(cut, perm=[1, 0, *axes])


# ---------------------------------------------------------------------- ConvTranspose


def _transposed_sizes(
    spatial: Sequence[DimLike],
    kernel: Sequence[int | None],
    strides: Sequence[int],
    dilations: Sequence[int],
    padding: Sequence[tuple[int, int]],
    more: Sequence[int],
) -> list[DimLike]:
    return [
        None if n is None or k is None else s * (n - 1) + (k - 1) * d + 1 + o - sum(p)
        for n, k, s, d, p, o in zip(spatial, kernel, strides, dilations, padding, more, strict=True)
    ]


def _transposed_padding(full: Sequence[int], wanted: Sequence[int], auto_pad: str) -> list[tuple[int, int]]:
    """What to cut from each end of the full result to get the wanted sizes."""
    pairs: list[tuple[int, int]] = []
    for size, want in zip(full, wanted, strict=True):
        total = size - want
        if total < 0:
            # More than there is: zeros are added at the end.
            pairs.append((0, total))
            continue
        half = total // 2
        pairs.append((half, total - half) if auto_pad == "SAME_UPPER" else (total - half, half))
    return pairs


def _filled(values: Sequence[int] | None, rank: int, default: int) -> list[int]:
    return [default] * rank if values is None else [int(v) for v in values]


def _transposed_shape(
    x: Shape,
    w: Shape,
    *,
    auto_pad: str,
    dilations: Any,
    kernel_shape: Any,
    output_padding: Any,
    output_shape: Any,
    pads: Any,
    strides: Any,
) -> list[DimLike]:
    rank = len(x) - 2
    steps = _filled(strides, rank, 1)
    if output_shape is not None:
        return [int(n) for n in output_shape[-rank:]]
    if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        return [None if n is None else n * s for n, s in zip(x[2:], steps, strict=True)]
    padding = pad_pairs(None if auto_pad == "VALID" else pads, rank)
    gaps, more = _filled(dilations, rank, 1), _filled(output_padding, rank, 0)
    return _transposed_sizes(x[2:], _kernel(w, kernel_shape), steps, gaps, padding, more)


def _conv_transpose_type(X: Value, W: Value, B: Value | None = None, /, *, group: int, **attributes: Any) -> TensorType:
    x, w = X.tensor_type.shape, W.tensor_type.shape
    if x is None or w is None:
        return tensor_like(X, None if x is None else [x[0], *[None] * (len(x) - 1)])
    _check_channels(x, w, group, 0)
    return tensor_like(X, [x[0], times(w[1], group), *_transposed_shape(x, w, **attributes)])


def transposed_geometry(
    x: Any, w: Any, **attributes: Any
) -> tuple[list[int], list[int], list[tuple[int, int]], list[int]]:
    """Strides, dilations, padding and output padding of a transposed convolution."""
    rank = len(x.shape) - 2
    steps, gaps = _filled(attributes["strides"], rank, 1), _filled(attributes["dilations"], rank, 1)
    more = _filled(attributes["output_padding"], rank, 0)
    shape = Shape(x.shape)
    if attributes["output_shape"] is None and attributes["auto_pad"] not in ("SAME_UPPER", "SAME_LOWER"):
        return steps, gaps, pad_pairs(None if attributes["auto_pad"] == "VALID" else attributes["pads"], rank), more
    wanted = _transposed_shape(shape, Shape(w.shape), **attributes)
    kernel = _kernel(tuple(w.shape), attributes["kernel_shape"])
    full = _transposed_sizes(shape[2:], kernel, steps, gaps, [(0, 0)] * rank, more)
    return steps, gaps, _transposed_padding(full, wanted, attributes["auto_pad"]), more  # type: ignore[arg-type]


def _conv_transpose_vjp(
    g: Value, y: Value, x: Value, w: Value, b: Value | None = None, *, group: int, **attributes: Any
) -> tuple[Value | None, ...]:
    steps, gaps, padding, _ = transposed_geometry(x, w, **attributes)
    before, after = _halves(padding)
    geometry: dict[str, Any] = {"strides": steps, "dilations": gaps, "pads": [*before, *after], "group": group}
    taps = [int(k) for k in w.shape[2:]]  # type: ignore[arg-type]
    whole = Conv(g, w, **geometry)
    dx = _first(whole, x.shape)
    read, geometry["pads"] = _read_by(g, x.shape, whole.shape, taps, steps, gaps, padding)
    dw = ConvWeightGrad(read, x, kernel_shape=taps, **geometry)
    return (dx, dw) if b is None else (dx, dw, _bias_gradient(g))


def _read_by(
    g: Value,
    sizes: Sequence[DimLike],
    windows: Sequence[DimLike],
    taps: list[int],
    steps: list[int],
    gaps: list[int],
    padding: list[tuple[int, int]],
) -> tuple[Value, list[int]]:
    """The part of a gradient that the windows of an input see, and its padding, where output padding adds windows."""
    before, after = _halves(padding)
    cut: dict[int, DimLike] = {}
    for i, (count, found) in enumerate(zip(sizes[2:], windows[2:], strict=True)):
        size = g.shape[i + 2]
        if isinstance(count, int) and isinstance(found, int) and isinstance(size, int) and found > count:
            seen = (count - 1) * steps[i] + gaps[i] * (taps[i] - 1) + 1 - before[i]
            cut[i + 2] = min(seen, size)
            after[i] = seen - min(seen, size)
    read = g if not cut else Slice(g, [0] * len(cut), list(cut.values()), list(cut))
    return read, [*before, *after]


def _first(x: Value, sizes: Sequence[DimLike]) -> Value:
    """Output padding may make room for windows too many: drop them."""
    axes = [i for i, (a, b) in enumerate(zip(x.shape, sizes, strict=True)) if i > 1 and a != b]
    return x if not axes else Slice(x, [0] * len(axes), [sizes[i] for i in axes], axes)


@primitive(
    since=22,
    infer=_conv_transpose_type,
    vjp=_conv_transpose_vjp,
    requires=_transposed_bias_needs,
    types="T:float T T > T",
    kind="product",
    flops=deconv_flops,
)
def ConvTranspose(
    ops: Any,
    X: Any,
    W: Any,
    B: Any = None,
    /,
    *,
    auto_pad: str = "NOTSET",
    dilations: list[int] | None = None,
    group: int = 1,
    kernel_shape: list[int] | None = None,
    output_padding: list[int] | None = None,
    output_shape: list[int] | None = None,
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Any:
    """Transposed convolution: the gradient of a convolution towards its input."""
    _check_channels(Shape(X.shape), Shape(W.shape), group, 0)
    steps, gaps, padding, more = transposed_geometry(
        X, W, auto_pad=auto_pad, dilations=dilations, kernel_shape=kernel_shape, output_padding=output_padding,
        output_shape=output_shape, pads=pads, strides=strides,
    )  # fmt: skip
    # The library pads only at the end, and by less than a stride.
    extra = [o + max(-after, 0) for o, (_, after) in zip(more, padding, strict=True)]
    cut = [(before, max(after, 0)) for before, after in padding]
    y = ops.conv_transpose(X, W, strides=steps, padding=cut, output_padding=extra, dilation=gaps, groups=group)
    return _with_bias(ops, y, B)


# ---------------------------------------------------------------------- integers


def _conv_integer_type(
    x: Value, w: Value, x_zero_point: Value | None = None, w_zero_point: Value | None = None, /, **attributes: Any
) -> TensorType:
    return TensorType(DType.Int32, conv_type(x, w, **attributes).shape)


@operator(
    since=10,
    infer=_conv_integer_type,
    requires=_integer_needs,
    types="T1 T2 T1 T2 > int32",
    kind="product",
    flops=conv_flops,
)
def ConvInteger(
    x: Value,
    w: Value,
    x_zero_point: Value | None = None,
    w_zero_point: Value | None = None,
    /,
    *,
    auto_pad: str = "NOTSET",
    dilations: list[int] | None = None,
    group: int = 1,
    kernel_shape: list[int] | None = None,
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Value:
    """Convolution of 8-bit integers in int32; padding stands for the zero point."""
    image, weight = Cast(x, to=DType.Int32), Cast(w, to=DType.Int32)
    if x_zero_point is not None:
        image = image - Reshape(Cast(x_zero_point, to=DType.Int32), [])
    if w_zero_point is not None:
        shift = Cast(w_zero_point, to=DType.Int32)
        per_channel = w_zero_point.rank == 1 and w_zero_point.shape[0] != 1
        weight = weight - Reshape(shift, [-1, *[1] * (w.rank - 1)] if per_channel else [])
    # float64 holds every int32 sum exactly, and every library convolves it.
    exact = Conv(
        Cast(image, to=DType.Float64),
        Cast(weight, to=DType.Float64),
        auto_pad=auto_pad,
        dilations=dilations,
        group=group,
        kernel_shape=kernel_shape,
        pads=pads,
        strides=strides,
    )
    return Cast(exact, to=DType.Int32)


# ---------------------------------------------------------------------- with a memory


def _causal_needs(
    input: Value, weight: Value, bias: Value | None = None, past_state: Value | None = None, /, **_: Any
) -> None:
    has_rank("input", input, 3)
    channels, taps = size_at(input, 1), size_at(weight, 2)
    has_shape("weight", weight, [channels, 1, None], "channels, 1, taps")
    has_shape("bias", bias, [channels], "channels")
    has_shape("past_state", past_state, [size_at(input, 0), channels, None if taps is None else taps - 1])


@operator(since=27, requires=_causal_needs, types="T:float T T T > T T", kind="product")
def CausalConvWithState(
    input: Value,
    weight: Value,
    bias: Value | None = None,
    past_state: Value | None = None,
    /,
    *,
    activation: str = "none",
) -> tuple[Value, Value]:
    """Depthwise convolution that sees only the past, and hands on its last inputs."""
    if activation not in ("none", "silu", "swish"):
        raise InputError(f"activation {activation!r} is none of none, silu, swish")
    channels = merge_dims(input.shape[1], weight.shape[0])
    memory = int(weight.shape[2]) - 1  # type: ignore[arg-type]
    whole = Pad(input, [0, 0, memory, 0, 0, 0]) if past_state is None else Concat(past_state, input, axis=2)
    y = Conv(whole, weight, bias, group=int(channels))  # type: ignore[arg-type]
    if activation != "none":
        wide = Cast(y, to=DType.Float32)
        y = Cast(wide * Sigmoid(wide), to=input.dtype)
    start = [-memory] if memory else [_TO_THE_END]
    return y, Slice(whole, start, [_TO_THE_END], [2])
