"""Gradients that AOTAutograd leaves whole (convolutions, pooling, attention), by the rules of our own operators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyflame_rt.importers.aten.conv import spread
from pyflame_rt.importers.aten.linear import attended
from pyflame_rt.importers.aten.pool import window_settings
from pyflame_rt.importers.aten.shaping import reshaped
from pyflame_rt.importers.aten.table import aten
from pyflame_rt.importers.aten.values import refuse, sizes, static
from pyflame_rt.ops.core.registry import get_op
from pyflame_rt.ops.core.value import Value, constant
from pyflame_rt.ops.onnx.index import ScatterElements
from pyflame_rt.ops.onnx.matmul import MatMul
from pyflame_rt.ops.onnx.pool import window_gradient
from pyflame_rt.ops.onnx.reduce import ReduceSum
from pyflame_rt.ops.onnx.shape import Expand, Squeeze, Unsqueeze
from pyflame_rt.ops.pyflame.attention_training import HeadsAttentionGrad, turned

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__: list[str] = []


@aten("convolution_backward")
def _convolution(
    grad: Value, x: Value, weight: Value, bias_sizes: Any, stride: Any, padding: Any, dilation: Any, transposed: bool,
    output_padding: Any, groups: int, output_mask: Sequence[bool],
) -> tuple[Value | None, ...]:  # fmt: skip
    del bias_sizes
    count = weight.rank - 2
    if x.rank != weight.rank:
        raise refuse("the gradient of a convolution without a batch axis")
    pads = spread(padding, count)
    attributes: dict[str, Any] = {
        "auto_pad": "NOTSET",
        "dilations": spread(dilation, count),
        "group": int(groups),
        "kernel_shape": None,
        "pads": [*pads, *pads],
        "strides": spread(stride, count),
    }
    if transposed:
        attributes |= {"output_padding": spread(output_padding, count), "output_shape": None}
    rule = get_op("ConvTranspose" if transposed else "Conv").vjp
    assert rule is not None
    dx, dw = rule(grad, grad, x, weight, **attributes)
    db = ReduceSum(grad, [0, *range(2, grad.rank)], keepdims=0) if output_mask[2] else None
    return dx if output_mask[0] else None, dw if output_mask[1] else None, db


def _unbatched(grad: Value, x: Value, count: int, run: Callable[[Value, Value], Value]) -> Value:
    """Run on a batch of one where there is no batch axis."""
    if x.rank == count + 2:
        return run(grad, x)
    return Squeeze(run(Unsqueeze(grad, [0]), Unsqueeze(x, [0])), [0])


def _max_pool(count: int) -> Callable[..., Value]:
    def backward(grad: Value, x: Value, kernel_size: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool,
                 indices: Value) -> Value:  # fmt: skip
        """Each maximum gets the gradients of the windows it was taken from."""
        del kernel_size, stride, padding, dilation, ceil_mode
        lead = list(sizes(x)[: x.rank - count])
        plane = 1
        for size in sizes(x)[-count:]:
            plane *= static(size, "the size of an image")
        zeros = Expand(constant(0, x), [*lead, plane])
        flat = [*lead, -1]
        summed = ScatterElements(zeros, reshaped(indices, flat), reshaped(grad, flat), axis=-1, reduction="add")
        return reshaped(summed, list(sizes(x)))

    return backward


def _avg_pool(count: int) -> Callable[..., Value]:
    def backward(grad: Value, x: Value, kernel_size: Any, stride: Any, padding: Any, ceil_mode: bool,
                 count_include_pad: bool, divisor_override: Any) -> Value:  # fmt: skip
        if divisor_override is not None:
            raise refuse("the gradient of avg_pool with divisor_override")
        more = window_settings(kernel_size, stride, padding, count)

        def run(g: Value, v: Value) -> Value:
            return window_gradient(g, v, ceil_mode=int(ceil_mode), count_include_pad=int(count_include_pad), **more)

        return _unbatched(grad, x, count, run)

    return backward


def _adaptive_avg_pool(count: int) -> Callable[[Value, Value], Value]:
    def backward(grad: Value, x: Value) -> Value:
        inner = [static(size, "the size of an image") for size in sizes(x)[-count:]]
        outer = [static(size, "the size of an image") for size in sizes(grad)[-count:]]
        if any(n % m for n, m in zip(inner, outer, strict=True)):
            raise refuse("the gradient of adaptive pooling to a size that does not divide the image's")
        kernel = [n // m for n, m in zip(inner, outer, strict=True)]
        return _avg_pool(count)(grad, x, kernel, kernel, 0, False, True, None)

    return backward


aten("max_pool2d_with_indices_backward")(_max_pool(2))
aten("max_pool3d_with_indices_backward")(_max_pool(3))
aten("avg_pool2d_backward")(_avg_pool(2))
aten("avg_pool3d_backward")(_avg_pool(3))
aten("_adaptive_avg_pool2d_backward")(_adaptive_avg_pool(2))
aten("_adaptive_avg_pool3d_backward")(_adaptive_avg_pool(3))


@aten("_scaled_dot_product_flash_attention_for_cpu_backward")
def _attention(
    grad: Value, query: Value, key: Value, value: Value, out: Value, logsumexp: Value, dropout_p: float,
    is_causal: bool, *, attn_mask: Value | None = None, scale: Any = None,
) -> tuple[Value, Value, Value]:  # fmt: skip
    """The shares of keys are computed again: the engine does that without keeping their matrix."""
    del out, logsumexp
    if dropout_p:
        raise refuse("the gradient of attention with dropout")
    width = static(sizes(query)[-1], "the width of a head")
    factor = float(scale) if scale is not None else width**-0.5
    if attn_mask is None and list(sizes(query)[:2]) == list(sizes(key)[:2]):
        return HeadsAttentionGrad(grad, query, key, value, scale=factor, causal=int(is_causal))
    _, weights, _ = attended(query, key, value, attn_mask, is_causal, scale)
    slopes = MatMul(grad, turned(value))
    slopes = weights * (slopes - ReduceSum(weights * slopes, [-1])) * factor
    return MatMul(slopes, key), MatMul(turned(slopes), query), MatMul(turned(weights), grad)
