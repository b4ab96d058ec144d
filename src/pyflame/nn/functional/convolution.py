"""Linear maps: products and convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from pyflame.nn.functional.windows import batched, for_whole_numbers, has_shape, sizes, symmetric_pads, unbatched
from pyflame.ops.core import call, cast, common_dtype, rounded_once
from pyflame.ops.linalg import matmul, same_dtype
from pyflame.ops.precision import low_precision
from pyflame.outline import outlined
from pyflame_rt.graph.named_arguments import names_arguments
from pyflame_rt.ops.onnx.conv import Conv, ConvTranspose
from pyflame_rt.ops.onnx.matmul import Gemm

if TYPE_CHECKING:
    from pyflame.dtypes import DType
    from pyflame.tensors import Tensor

__all__ = [
    "bilinear",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "linear",
]

Sizes: TypeAlias = int | Sequence[int]


@outlined
@low_precision
@rounded_once
def linear(input: Any, weight: Any, bias: Any = None) -> Tensor:
    """`input @ weight.T + bias`.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.functional.linear(pf.ones([1, 2]), pf.ones([3, 2]), pf.zeros([3])).numpy().tolist()
        [[2.0, 2.0, 2.0]]
    """
    same_dtype("linear", input, weight, bias)
    if bias is not None and len(input.shape) == 2 and len(weight.shape) == 2 and len(bias.shape) == 1:
        return call(Gemm, input, weight, bias, transB=1)
    product = matmul(input, weight.t() if len(weight.shape) > 1 else weight)
    return product if bias is None else product + bias


@names_arguments
def bilinear(input1: Any, input2: Any, weight: Any, bias: Any = None) -> Tensor:
    """For each output `k`: `input1 @ weight[k] @ input2`.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.functional.bilinear(pf.ones([1, 2]), pf.ones([1, 3]), pf.ones([4, 2, 3])).numpy().tolist()
        [[6.0, 6.0, 6.0, 6.0]]
    """
    has_shape("bilinear: bias", bias, weight.shape[:1])
    return _bilinear(input1, input2, weight, bias, common_dtype([input1, input2, weight]))


@rounded_once
def _bilinear(input1: Any, input2: Any, weight: Any, bias: Any, dtype: DType) -> Tensor:
    left = matmul(input1.unsqueeze(-2).unsqueeze(-3), weight)
    if left.dtype is not dtype:
        # The first product is rounded, as torch's is; its gradient is not.
        kept = left.detach()
        left = left + (cast(cast(kept, dtype), kept.dtype) - kept)
    product = matmul(left, input2.unsqueeze(-1).unsqueeze(-3)).squeeze(-1).squeeze(-1)
    return product if bias is None else product + bias


@for_whole_numbers
@low_precision
@rounded_once
def _conv(
    rank: int, input: Any, weight: Any, bias: Any, stride: Sizes, padding: Sizes | str, dilation: Sizes, groups: int
) -> Tensor:
    same_dtype(f"conv{rank}d", input, weight, bias)
    x, had_batch = batched(input, rank + 2, f"conv{rank}d")
    strides, dilations = sizes(stride, rank, "stride"), sizes(dilation, rank, "dilation")
    pads = _pads(padding, rank, tuple(weight.shape[2:]), strides, dilations)
    y = call(Conv, x, weight, bias, strides=strides, pads=pads, dilations=dilations, group=groups)
    return unbatched(y, had_batch)


def _pads(
    padding: Sizes | str, rank: int, kernel: tuple[int, ...], strides: tuple[int, ...], dilations: tuple[int, ...]
) -> tuple[int, ...]:
    if not isinstance(padding, str):
        return symmetric_pads(padding, rank)
    if padding == "valid":
        return (0,) * (2 * rank)
    if padding != "same":
        raise ValueError(f"padding must be numbers, 'valid' or 'same'. Received: {padding!r}")
    if any(s != 1 for s in strides):
        raise ValueError("padding='same' is not supported for strided convolutions")
    total = [d * (k - 1) for k, d in zip(kernel, dilations, strict=True)]
    return tuple(t // 2 for t in total) + tuple(t - t // 2 for t in total)


def conv1d(
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: Sizes = 1,
    padding: Sizes | str = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Tensor:
    """Convolution over the last dimension of [N, C, L] or [C, L].

    Example:
        >>> import pyflame as pf
        >>> pf.nn.functional.conv1d(pf.ones([1, 1, 4]), pf.ones([1, 1, 3])).numpy().tolist()
        [[[3.0, 3.0]]]
    """
    return _conv(1, input, weight, bias, stride, padding, dilation, groups)


def conv2d(
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: Sizes = 1,
    padding: Sizes | str = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Tensor:
    """Convolution over the last two dimensions of [N, C, H, W] or [C, H, W].

    Example:
        >>> import pyflame as pf
        >>> pf.nn.functional.conv2d(pf.ones([1, 1, 3, 3]), pf.ones([2, 1, 3, 3])).numpy().ravel().tolist()
        [9.0, 9.0]
    """
    return _conv(2, input, weight, bias, stride, padding, dilation, groups)


def conv3d(
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: Sizes = 1,
    padding: Sizes | str = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Tensor:
    """Convolution over the last three dimensions of [N, C, D, H, W] or [C, D, H, W].

    Example:
        >>> import pyflame as pf
        >>> pf.nn.functional.conv3d(pf.ones([1, 1, 2, 2, 2]), pf.ones([1, 1, 2, 2, 2])).numpy().item()
        8.0
    """
    return _conv(3, input, weight, bias, stride, padding, dilation, groups)


@for_whole_numbers
@low_precision
@rounded_once
def _conv_transpose(
    rank: int,
    input: Any,
    weight: Any,
    bias: Any,
    stride: Sizes,
    padding: Sizes,
    output_padding: Sizes,
    groups: int,
    dilation: Sizes,
) -> Tensor:
    x, had_batch = batched(input, rank + 2, f"conv_transpose{rank}d")
    y = call(
        ConvTranspose,
        x,
        weight,
        bias,
        strides=sizes(stride, rank, "stride"),
        pads=symmetric_pads(padding, rank),
        output_padding=sizes(output_padding, rank, "output_padding"),
        dilations=sizes(dilation, rank, "dilation"),
        group=groups,
    )
    return unbatched(y, had_batch)


@names_arguments
def conv_transpose1d(
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
) -> Tensor:
    """The gradient of `conv1d` by its input, as an operation; weight is [in, out / groups, k].

    Example:
        >>> import pyflame as pf
        >>> pf.nn.functional.conv_transpose1d(pf.ones([1, 1, 2]), pf.ones([1, 1, 2])).numpy().tolist()
        [[[1.0, 2.0, 1.0]]]
    """
    return _conv_transpose(1, input, weight, bias, stride, padding, output_padding, groups, dilation)


@names_arguments
def conv_transpose2d(
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
) -> Tensor:
    """The gradient of `conv2d` by its input, as an operation.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.functional.conv_transpose2d(pf.ones([1, 1, 2, 2]), pf.ones([1, 1, 2, 2]), stride=2).shape
        [1, 1, 4, 4]
    """
    return _conv_transpose(2, input, weight, bias, stride, padding, output_padding, groups, dilation)


@names_arguments
def conv_transpose3d(
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
) -> Tensor:
    """The gradient of `conv3d` by its input, as an operation.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.functional.conv_transpose3d(pf.ones([1, 1, 1, 1, 1]), pf.ones([1, 2, 2, 2, 2])).shape
        [1, 2, 2, 2, 2]
    """
    return _conv_transpose(3, input, weight, bias, stride, padding, output_padding, groups, dilation)
