"""An image whose channels are scaled before a 1x1 convolution: the scales go into the weights, which are fewer."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pyflame_rt.backends.cpu.ir.kernel_program import Map, RowKernel, Store, apply, load
from pyflame_rt.backends.cpu.lower.lowering import Lowering, NotNative
from pyflame_rt.backends.cpu.lower.row_loops import nest_of
from pyflame_rt.graph import DType
from pyflame_rt.ops.onnx.arithmetic import Mul
from pyflame_rt.ops.onnx.conv import Conv
from pyflame_rt.ops.onnx.windows import windows

if TYPE_CHECKING:
    from pyflame_rt.backends.cpu.graph.groups import Group
    from pyflame_rt.backends.cpu.memory.buffer_views import View

__all__ = ["Scales", "image_and_scales", "scaled_panels", "takes_scales"]

FEWER = 2  # times as many pixels as columns of weights


class Scales(NamedTuple):
    """Factors of the channels of an image, and the node that multiplies by them."""

    view: View
    node: str


def takes_scales(low: Lowering, group: Group) -> bool:
    """Whether a loop only scales the channels of one image, and its only reader is a product with fewer weights."""
    if len(group.steps) != 1 or group.extra or group.steps[0].op is not Mul or len(group.shape) != 4:
        return False
    name = group.steps[0].node.outputs[0]
    image, scales = image_and_scales(low, group)
    if not image or any(low.concrete.dtype(n) is not DType.Float32 for n in (image, scales)):
        return False
    if image in low.deferred or scales in low.deferred or low.constant_of(scales) is not None:
        return False
    reader = low.reader.get(name)
    if reader is None or reader.loop or reader.attention is not None or name in low.concrete.exact:
        return False
    return _is_product(low, reader, name, group.shape)


def image_and_scales(low: Lowering, group: Group) -> tuple[str, str]:
    """The image and the factor of each of its channels; empty names where a product is of something else."""
    _, channels, *_ = group.shape
    names = group.steps[0].node.inputs
    for image, scales in (names, names[::-1]):
        if low.concrete.shape(image) == group.shape and low.concrete.shape(scales) == (1, channels, 1, 1):
            return image, scales
    return "", ""


def _is_product(low: Lowering, reader: Group, name: str, shape: tuple[int, ...]) -> bool:
    """Whether the reader is a 1x1 convolution of the image by constant weights, fewer than its pixels."""
    (step,) = reader.steps
    if step.op is not Conv or step.node.inputs[0] != name or name in step.node.inputs[1:]:
        return False
    weights = low.constant_of(step.node.inputs[1])
    if weights is None or weights.dtype != np.float32 or weights.ndim != 4 or weights.shape[2:] != (1, 1):
        return False
    given = {n: step.attributes[n] for n in ("strides", "pads", "auto_pad") if step.attributes.get(n) is not None}
    at = windows(shape[2:], (1, 1), **given)
    plain = at.strides == (1, 1) and not any(p for pair in at.padding for p in pair)
    exact = step.node.outputs[0] in low.concrete.exact
    few = shape[0] == 1 and FEWER * weights.shape[0] <= math.prod(shape[2:])
    return plain and few and not exact and step.attributes["group"] == 1


def scaled_panels(low: Lowering, packed: View, scales: Scales) -> View:
    """Weights in panels, every row times its channel's factor."""
    count, depth, columns = packed.shape
    factors = scales.view.reshaped((1, depth, 1))
    if factors is None:
        raise NotNative("scales that do not follow each other in memory")
    out = low.new(packed.shape, DType.Float32)
    views = [packed, factors.broadcast((count, depth, columns)), out]
    nest = nest_of(views, packed.shape)
    if nest is None:
        raise NotNative("too many axes for one loop")
    operands = [nest.operand(i, "float32") for i in range(3)]
    stage = Map((Store(2, apply("mul", load(0, "float32"), load(1, "float32"))),))
    kernel = RowKernel(len(nest.outer), tuple(operands[:2]), (operands[2],), (stage,))
    nodes, low.nodes = low.nodes, (scales.node,)
    low.row_kernel(Mul.name, kernel, nest, views)
    low.nodes = nodes
    return out
