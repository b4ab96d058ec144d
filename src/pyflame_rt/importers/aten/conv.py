"""Convolutions of aten, also without a batch axis."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyflame_rt.graph.errors import ShapeMismatchError
from pyflame_rt.importers.aten.table import aten
from pyflame_rt.importers.aten.values import refuse
from pyflame_rt.ops.onnx.conv import Conv, ConvTranspose
from pyflame_rt.ops.onnx.shape import Squeeze, Unsqueeze

if TYPE_CHECKING:
    from pyflame_rt.ops.core.value import Value

__all__ = ["spread"]


def spread(value: Any, count: int) -> list[int]:
    """One number for each axis."""
    listed = list(value) if isinstance(value, (list, tuple)) else [value]
    return [int(v) for v in (listed * count if len(listed) == 1 else listed)]


@aten("_convolution", "convolution", "convolution_overrideable", "cudnn_convolution", "mkldnn_convolution")
def _convolution(
    x: Value, weight: Value, bias: Value | None, stride: Any, padding: Any, dilation: Any, transposed: bool,
    output_padding: Any, groups: int, *_flags: Any,
) -> Value:  # fmt: skip
    count = weight.rank - 2
    batched = x.rank == weight.rank
    if not batched and x.rank != weight.rank - 1:
        raise ShapeMismatchError(f"a convolution of {count} axes takes rank {count + 1} or {count + 2}, got {x.rank}")
    value = x if batched else Unsqueeze(x, [0])
    pads = spread(padding, count)
    more: dict[str, Any] = {
        "strides": spread(stride, count),
        "dilations": spread(dilation, count),
        "group": int(groups),
    }
    if transposed:
        made = ConvTranspose(
            value, weight, bias, pads=[*pads, *pads], output_padding=spread(output_padding, count), **more
        )
    else:
        made = Conv(value, weight, bias, pads=[*pads, *pads], **more)
    return made if batched else Squeeze(made, [0])


def _same_pads(weight: Value, dilation: list[int]) -> list[int]:
    sizes = [int(n) for n in weight.shape[2:]]  # type: ignore[arg-type]
    total = [d * (k - 1) for d, k in zip(dilation, sizes, strict=True)]
    return [*[t // 2 for t in total], *[t - t // 2 for t in total]]


def _plain(x: Value, weight: Value, bias: Value | None = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1,
           groups: int = 1) -> Value:  # fmt: skip
    if not isinstance(padding, str):
        return _convolution(x, weight, bias, stride, padding, dilation, False, 0, groups)
    count = weight.rank - 2
    if padding == "valid":
        return _convolution(x, weight, bias, stride, 0, dilation, False, 0, groups)
    if padding != "same":
        raise refuse(f"a convolution with padding {padding!r}")
    apart = spread(dilation, count)
    value = x if x.rank == weight.rank else Unsqueeze(x, [0])
    made = Conv(
        value, weight, bias, pads=_same_pads(weight, apart), strides=spread(stride, count), dilations=apart,
        group=int(groups),
    )  # fmt: skip
    return made if x.rank == weight.rank else Squeeze(made, [0])


def _transposed(
    x: Value, weight: Value, bias: Value | None = None, stride: Any = 1, padding: Any = 0, output_padding: Any = 0,
    groups: int = 1, dilation: Any = 1,
) -> Value:  # fmt: skip
    return _convolution(x, weight, bias, stride, padding, dilation, True, output_padding, groups)


aten("conv1d", "conv2d", "conv3d")(_plain)
aten("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")(_transposed)


@aten("_convolution_mode")
def _convolution_mode(x: Value, weight: Value, bias: Value | None, stride: Any, padding: str, dilation: Any,
                      groups: int) -> Value:  # fmt: skip
    return _plain(x, weight, bias, stride, padding, dilation, groups)
