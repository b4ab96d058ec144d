"""Gradients of convolutions by generated kernels, channels last.

The gradient towards the input of a 3x3 convolution of stride 1 is such a convolution itself, by turned filters. The
gradient towards the weights is a sum of outer products over pixels: for 3x3 and stride 1 at Winograd's points (36
products for 16 pixels instead of 144), otherwise tap by tap. Both sums go in portions of pixels that stay in the cache.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

import numpy as np

from pyflame_rt.backends.cpu.jit.target import host
from pyflame_rt.backends.cpu.kernels.tiles.outer_products import CollectKernel, OuterKernel
from pyflame_rt.backends.cpu.kernels.tiles.register_tile import row_panel, tile_for
from pyflame_rt.backends.cpu.kernels.tiles.winograd_inputs import SpreadKernel
from pyflame_rt.backends.cpu.lower.convolution import channels_last, steps_of
from pyflame_rt.backends.cpu.lower.lowering import Lowering, NotNative, lowers
from pyflame_rt.backends.cpu.lower.tiled_products import GRAIN
from pyflame_rt.graph import DType
from pyflame_rt.graph.records import dataclass
from pyflame_rt.ops.onnx.conv import ConvWeightGrad

if TYPE_CHECKING:
    from pyflame_rt.backends.cpu.memory.buffer_views import View
    from pyflame_rt.opt.specialized_graph import SpecializedGraph, SpecializedNode

__all__: list[str] = []

# Rows of outer products that are packed at once: both operands of a panel stay in the cache.
PORTION = {"winograd2": 512, "winograd4": 512, "taps": 1024}


@dataclass(frozen=True)
class _Sum:
    """A sum of outer products: what is packed, and how often."""

    way: str
    points: int
    tiles: tuple[int, int, int]  # images, tiles down, tiles across
    left: SpreadKernel
    right: SpreadKernel
    left_window: list[int]  # pads, taps, steps and gaps
    right_window: list[int]
    shared: bool  # the right operand is the same for all points

    @property
    def count(self) -> int:
        return math.prod(self.tiles)


def _other_images(graph: SpecializedGraph, step: SpecializedNode) -> str:
    dtype, shape = graph.types[step.node.inputs[0]]
    fits = dtype is DType.Float32 and len(shape) == 4 and step.attributes["group"] == 1
    return "" if fits else "not images of float32, or in groups"


@lowers(ConvWeightGrad, refuses=_other_images)
def conv_weight_grad(low: Lowering, step: SpecializedNode) -> None:
    """Sums of outer products of pixels of the input and of the gradient."""
    data, gradient = step.node.inputs
    shape, source = low.concrete.shape(step.node.outputs[0]), low.concrete.shape(data)
    if not math.prod(shape) * math.prod(source) * math.prod(low.concrete.shape(gradient)):
        raise NotNative("a gradient of nothing")
    way = low.choices.pick(_case(low, step), _ways(low, step), step.node.name)
    x, g = channels_last(low, data), channels_last(low, gradient)
    plan = _taps(step, g) if way == "taps" else _winograd(step, g, 2 if way == "winograd2" else 4)
    low.places[step.node.outputs[0]] = _summed(low, plan, x, g, shape)


def _case(low: Lowering, step: SpecializedNode) -> str:
    given = step.attributes
    sizes = [list(low.concrete.shape(n)) for n in step.node.inputs]
    form = f"s{given['strides']} p{given['pads']} d{given['dilations']} k{given['kernel_shape']}"
    return f"ConvWeightGrad {sizes} {form}".replace(", ", ",")


def _ways(low: Lowering, step: SpecializedNode) -> tuple[str, ...]:
    given, lanes = step.attributes, host().lanes(4)
    channels = [low.concrete.shape(n)[1] for n in step.node.inputs]
    plain = list(given["strides"]) == [1, 1] and list(given["dilations"]) == [1, 1]
    if not plain or list(given["kernel_shape"]) != [3, 3] or any(c % lanes for c in channels):
        return ("taps",)
    return ("winograd4", "winograd2", "taps")


def _winograd(step: SpecializedNode, g: View, edge: Literal[2, 4]) -> _Sum:
    tile = tile_for(host(), g.shape[1])
    lanes = host().lanes(4)
    pads = [int(p) for p in step.attributes["pads"][:2]]
    tiles = (g.shape[0], -(-g.shape[2] // edge), -(-g.shape[3] // edge))
    left = SpreadKernel("image", row_panel(tile, lanes), edge)
    right = SpreadKernel("gradient", tile.vectors * lanes, edge)
    way = f"winograd{edge}"
    return _Sum(way, (edge + 2) ** 2, tiles, left, right, [*pads, *[0] * 6], [0] * 8, False)


def _taps(step: SpecializedNode, g: View) -> _Sum:
    given, lanes = step.attributes, host().lanes(4)
    tile = tile_for(host(), g.shape[1])
    kernel = [int(k) for k in given["kernel_shape"]]
    window = [int(n) for n in (*given["pads"][:2], *kernel, *given["strides"], *given["dilations"])]
    left = SpreadKernel("taps", row_panel(tile, lanes))
    right = SpreadKernel("taps", tile.vectors * lanes)
    tiles = (g.shape[0], g.shape[2], g.shape[3])
    return _Sum("taps", math.prod(kernel), tiles, left, right, window, [0, 0, 1, 1, 1, 1, 1, 1], True)


def _summed(low: Lowering, plan: _Sum, x: View, g: View, shape: tuple[int, ...]) -> View:
    tile, lanes = tile_for(host(), g.shape[1]), host().lanes(4)
    width = tile.vectors * lanes
    portions = -(-plan.count // PORTION[plan.way])
    portion = -(-plan.count // portions)
    rows, columns = x.shape[1], g.shape[1]
    panels = -(-columns // width)
    left_point = -(-rows // plan.left.panel) * plan.left.panel * portion
    right_point = panels * width * portion
    left = low.new((plan.points * left_point,), DType.Float32)
    right = low.new(((1 if plan.shared else plan.points) * right_point,), DType.Float32)
    sheet = -(-rows // tile.rows) * tile.rows * width
    sums = low.new((panels * plan.points * sheet,), DType.Float32)
    zeros = low.constant(np.zeros(max(rows, columns) + lanes, np.float32))
    kernel = OuterKernel(tile)
    # As many runs as products in a run, or so: the sum of both is what is rounded one after the other.
    run = max(32, 1 << math.isqrt(plan.count - 1).bit_length())
    for first in range(0, plan.count, portion):
        count = min(portion, plan.count - first)
        # A shorter last portion is packed as densely as the others are.
        points = [-(-rows // plan.left.panel) * plan.left.panel * count, panels * width * count]
        _spread(low, plan, plan.left, x, left, (zeros, first, count, points[0]), plan.left_window)
        _spread(low, plan, plan.right, g, right, (zeros, first, count, points[1]), plan.right_window)
        params = [
            count,
            rows,
            panels,
            points[0],
            0 if plan.shared else points[1],
            sheet,
            plan.points * sheet,
            int(first > 0),
            run,
        ]
        grain = GRAIN // max(count * rows * width, 1)
        low.kernel(ConvWeightGrad.name, kernel, [left, right, sums], params, plan.points * panels, grain)
    return _collected(low, plan, sums, sheet, shape)


def _spread(
    low: Lowering,
    plan: _Sum,
    kernel: SpreadKernel,
    image: View,
    target: View,
    portion: tuple[View, int, int, int],
    window: list[int],
) -> None:
    zeros, first, count, point = portion
    params = [image.shape[1], *image.shape[2:], *plan.tiles[1:], first, count, *window[:2], *steps_of(image), point]
    taps = window[2:] if kernel.kind == "taps" else [0] * 6
    work = image.shape[1] * (plan.points if kernel is plan.left or not plan.shared else 1)
    low.kernel(ConvWeightGrad.name, kernel, [image, zeros, target], [*params, *taps], count, GRAIN // 8 // max(work, 1))


def _collected(low: Lowering, plan: _Sum, sums: View, sheet: int, shape: tuple[int, ...]) -> View:
    out = low.new(shape, DType.Float32)
    columns, rows, *taps = shape
    tile, size = tile_for(host(), columns), math.prod(taps)
    kernel = CollectKernel("taps", tile) if plan.way == "taps" else CollectKernel("winograd", tile, plan.left.edge)
    params = [rows, columns, plan.points, sheet, plan.points * sheet, rows * size, size]
    panels = -(-columns // (tile.vectors * host().lanes(4)))
    low.kernel(ConvWeightGrad.name, kernel, [sums, out], params, panels, 32_768 // max(rows * size * 16, 1))
    return out
