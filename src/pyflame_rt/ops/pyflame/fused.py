"""Operators that stand for several in a row: what the optimiser writes, and layouts of images it may choose."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyflame_rt.graph.errors import InputError
from pyflame_rt.ops.core.registry import operator
from pyflame_rt.ops.core.type_rules import broadcast, same, tensor_like
from pyflame_rt.ops.onnx.activation import Relu
from pyflame_rt.ops.onnx.conv import Conv, conv_type
from pyflame_rt.ops.onnx.norm import BatchNormalization
from pyflame_rt.ops.onnx.shape import Reshape, Transpose
from pyflame_rt.ops.onnx.slicing import Pad, Slice

if TYPE_CHECKING:
    from pyflame_rt.graph import TensorType
    from pyflame_rt.ops.core.value import Value

__all__ = [
    "FMA",
    "ConvNC4HW4",
    "ConvNHWC",
    "FromNC4HW4",
    "FusedAddRelu",
    "FusedBNRelu",
    "FusedConvBN",
    "FusedConvBNRelu",
    "FusedConvRelu",
    "ToNC4HW4",
]

OWN = "pyflame"
BLOCK = 4
_EPSILON = 9.999999747378752e-06


@operator(since=1, domain=OWN, infer=broadcast, elementwise=True)
def FusedAddRelu(A: Value, B: Value, /) -> Value:
    """``Relu(A + B)``."""
    return Relu(A + B)


@operator(since=1, domain=OWN, infer=broadcast, elementwise=True)
def FMA(A: Value, B: Value, C: Value, /) -> Value:
    """``A * B + C``, rounded after the product as well."""
    return A * B + C


@operator(since=1, domain=OWN, infer=conv_type, kind="product")
def FusedConvRelu(
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
) -> Value:
    """``Relu(Conv(X, W, B))``."""
    return Relu(_conv(X, W, B, auto_pad, dilations, group, kernel_shape, pads, strides))


@operator(since=1, domain=OWN, infer=conv_type, kind="product")
def FusedConvBN(
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
) -> Value:
    """A convolution with a batch normalisation in its weights."""
    return _conv(X, W, B, auto_pad, dilations, group, kernel_shape, pads, strides)


@operator(since=1, domain=OWN, infer=conv_type, kind="product")
def FusedConvBNRelu(
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
) -> Value:
    """Relu of a convolution with a batch normalisation in its weights."""
    return Relu(_conv(X, W, B, auto_pad, dilations, group, kernel_shape, pads, strides))


def _conv(
    x: Value,
    w: Value,
    b: Value | None,
    auto_pad: str,
    dilations: list[int] | None,
    group: int,
    kernel_shape: list[int] | None,
    pads: list[int] | None,
    strides: list[int] | None,
) -> Value:
    return Conv(
        x,
        w,
        b,
        auto_pad=auto_pad,
        dilations=dilations,
        group=group,
        kernel_shape=kernel_shape,
        pads=pads,
        strides=strides,
    )


@operator(since=1, domain=OWN, infer=same, kind="norm")
def FusedBNRelu(
    X: Value, scale: Value, B: Value, input_mean: Value, input_var: Value, /, *, epsilon: float = _EPSILON
) -> Value:
    """``Relu(BatchNormalization(...))`` by given statistics."""
    return Relu(BatchNormalization(X, scale, B, input_mean, input_var, epsilon=epsilon))


# ---------------------------------------------------------------------- layouts


def _activated(y: Value, activation: str) -> Value:
    if activation not in ("", "Relu"):
        raise InputError(f"activation is {activation!r}, not '' or 'Relu'")
    return Relu(y) if activation else y


@operator(since=1, domain=OWN, kind="product")
def ConvNHWC(
    X: Value,
    W: Value,
    B: Value | None = None,
    /,
    *,
    activation: str = "",
    auto_pad: str = "NOTSET",
    dilations: list[int] | None = None,
    group: int = 1,
    kernel_shape: list[int] | None = None,
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Value:
    """Conv of images whose channels lie on the last axis; the weights are as ONNX has them."""
    turned = Transpose(X, perm=[0, X.rank - 1, *range(1, X.rank - 1)])
    y = _activated(_conv(turned, W, B, auto_pad, dilations, group, kernel_shape, pads, strides), activation)
    return Transpose(y, perm=[0, *range(2, X.rank), 1])


def _blocked_type(X: Value, /) -> TensorType:
    n, c, h, w = X.shape
    blocks = None if c is None else (c + BLOCK - 1) // BLOCK
    return tensor_like(X, [n, blocks, h, w, BLOCK])


@operator(since=1, domain=OWN, infer=_blocked_type)
def ToNC4HW4(X: Value, /) -> Value:
    """Images [N, C, H, W] as [N, C/4, H, W, 4]; channels are filled up with zeros."""
    n, c, h, w = X.shape
    blocks = -(-int(c) // BLOCK)  # type: ignore[arg-type]
    rest = blocks * BLOCK - int(c)  # type: ignore[arg-type]
    full = Pad(X, [0, 0, 0, 0, 0, rest, 0, 0]) if rest else X
    return Transpose(Reshape(full, [n, blocks, BLOCK, h, w]), perm=[0, 1, 3, 4, 2])


def _unblocked_type(X: Value, /, *, channels: int) -> TensorType:
    n, _, h, w, _ = X.shape
    return tensor_like(X, [n, channels, h, w])


@operator(since=1, domain=OWN, infer=_unblocked_type)
def FromNC4HW4(X: Value, /, *, channels: int) -> Value:
    """Images [N, C/4, H, W, 4] as [N, C, H, W], without the channels beyond ``channels``."""
    n, blocks, h, w, block = X.shape
    full = Reshape(Transpose(X, perm=[0, 1, 4, 2, 3]), [n, blocks * block, h, w])  # type: ignore[operator]
    return full if blocks * block == channels else Slice(full, [0], [channels], [1])  # type: ignore[operator]


@operator(since=1, domain=OWN, kind="product")
def ConvNC4HW4(
    X: Value,
    W: Value,
    B: Value | None = None,
    /,
    *,
    channels: int,
    activation: str = "",
    auto_pad: str = "NOTSET",
    dilations: list[int] | None = None,
    group: int = 1,
    kernel_shape: list[int] | None = None,
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Value:
    """Conv of images of ``channels`` channels in blocks of four, to such images; the weights are as ONNX has them."""
    x = FromNC4HW4(X, channels=channels)
    return ToNC4HW4(_activated(_conv(x, W, B, auto_pad, dilations, group, kernel_shape, pads, strides), activation))
