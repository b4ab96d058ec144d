"""Gradients of convolutions by generated kernels, channels last.

The gradient towards the weights is a sum of outer products over pixels: for 3x3 and stride 1 at Winograd's points (36
products for 16 pixels instead of 144) where that is allowed, otherwise tap by tap, through the pixels that a tap has
both of. Both sums go in portions of images that stay in the cache.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

import numpy as np

from pyflame_rt.backends.cpu.jit.target import host
from pyflame_rt.backends.cpu.kernels.tiles.outer_products import CollectKernel, OuterKernel
from pyflame_rt.backends.cpu.kernels.tiles.pixel_panels import PixelKernel
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
# Pixels that follow each other under a tap, and pixels summed at a time: both operands are in the first-level cache.
LINE, RUN = 128, 128


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
    if way == "taps":
        low.places[step.node.outputs[0]] = _by_taps(low, step, x, g, shape)
    else:
        low.places[step.node.outputs[0]] = _by_points(low, step, x, g, shape, 2 if way == "winograd2" else 4)


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


class _Sums:
    """Sums of outer products [panel of columns, point, row, column], and what adds to them."""

    def __init__(self, low: Lowering, rows: int, columns: int, points: int) -> None:
        self._low, self._rows = low, rows
        self._tile = tile_for(host(), columns)
        self.points, self.left, self.right = points, row_panel(self._tile, host().lanes(4)), _width_of(columns)
        self.groups, self.panels = -(-rows // self.left), -(-columns // self.right)
        self._sheet = -(-rows // self._tile.rows) * self._tile.rows * self.right
        self._values = low.new((self.panels * points * self._sheet,), DType.Float32)
        self._keep = 0

    def places(self, count: int, *, each: bool) -> tuple[View, View]:
        """Room for both operands of so many places; ``each`` point may have its own."""
        sizes = (self.groups * self.left * count, self.panels * self.right * count)
        left, right = (self._low.new(((self.points if each else 1) * size,), DType.Float32) for size in sizes)
        return left, right

    def add(
        self, left: View, right: View, counts: tuple[int, int], lines: tuple[int, int], points: list[list[int]]
    ) -> None:
        """Add outer products of operands with so many places, and lines so far apart; points are POINT_FIELDS."""
        places = [counts[0] * self.left, counts[1] * self.right]
        params = [self._rows, self.panels, *places, *lines, self._sheet, self.points * self._sheet, self._keep]
        work = sum(n * length for _, _, n, length, _ in points) // self.points
        table = self._low.constant(np.array(points, np.int64).ravel())
        grain = GRAIN // max(work * self._rows * self.right, 1)
        views = [left, right, table, self._values]
        items = self.points * self.panels
        self._low.kernel(ConvWeightGrad.name, OuterKernel(self._tile), views, params, items, grain)
        self._keep = 1

    def collected(self, shape: tuple[int, ...], kernel: CollectKernel) -> View:
        """The gradient that the sums make."""
        out = self._low.new(shape, DType.Float32)
        size = math.prod(shape[2:])
        params = [*shape[1::-1], self.points, self._sheet, self.points * self._sheet, shape[1] * size, size]
        grain = 32_768 // max(shape[1] * size * 16, 1)
        self._low.kernel(ConvWeightGrad.name, kernel, [self._values, out], params, self.panels, grain)
        return out


def _width_of(columns: int) -> int:
    """Columns of a panel of the right operand."""
    return tile_for(host(), columns).vectors * host().lanes(4)


# ---------------------------------------------------------------------- tap by tap


@dataclass(frozen=True)
class _Axis:
    """Places along one axis: what a tap reads of the image, and where it has results at all."""

    size: int
    results: int
    taps: int
    step: int
    gap: int
    pad: int

    def range(self, tap: int) -> tuple[int, int, int]:
        """The first and the end of the results of a tap, and what it reads there first, counted in steps and rest."""
        moved = tap * self.gap - self.pad
        first = max(0, (self.step - 1 - moved) // self.step)
        end = min(self.results, -(-(self.size - moved) // self.step))
        return first, max(end, first), moved + first * self.step

    @property
    def order(self) -> list[int]:
        """Places by their rest, so that what a tap reads follows each other."""
        return [i for rest in range(self.step) for i in range(rest, self.size, self.step)]


def _by_taps(low: Lowering, step: SpecializedNode, x: View, g: View, shape: tuple[int, ...]) -> View:
    """Images in portions: pixels lie once in panels, and a tap goes through those it has both of."""
    names = ("kernel_shape", "strides", "dilations", "pads")
    down, across = (
        _Axis(x.shape[axis + 2], g.shape[axis + 2], *(int(step.attributes[name][axis]) for name in names))
        for axis in (0, 1)
    )
    sums = _Sums(low, x.shape[1], g.shape[1], down.taps * across.taps)
    most = max(x.shape[2] * x.shape[3], g.shape[2] * g.shape[3])
    portion = min(x.shape[0], max(1, min(PORTION["taps"] // most, LINE // across.results)))
    left, right = sums.places(portion * most, each=False)
    order = low.constant(np.array(across.order, np.int64) * x.strides[3])
    plain = low.constant(np.arange(across.results, dtype=np.int64) * g.strides[3])
    for first in range(0, x.shape[0], portion):
        count = min(portion, x.shape[0] - first)
        _pixels(low, x, order, left, sums.left, (first, count))
        _pixels(low, g, plain, right, sums.right, (first, count))
        counts = [v.shape[2] * v.shape[3] * count for v in (x, g)]
        lines = (down.step * across.size * count, across.results * count)
        sums.add(left, right, (counts[0], counts[1]), lines, _points(down, across, count))
    return sums.collected(shape, CollectKernel("taps", tile_for(host(), g.shape[1])))


def _points(down: _Axis, across: _Axis, images: int) -> list[list[int]]:
    """Where each tap begins, and how far it goes."""
    found, place = [], {pixel: k for k, pixel in enumerate(across.order)}
    for i in range(down.taps):
        top, bottom, line = down.range(i)
        for j in range(across.taps):
            begin, end, pixel = across.range(j)
            if top == bottom or begin == end:
                found.append([0, 0, 0, 0, 1])
                continue
            length = (end - begin) * images
            left = line * across.size + place[pixel]
            right = top * across.results + begin
            found.append([left * images, right * images, bottom - top, length, max(1, RUN // length)])
    return found


def _pixels(low: Lowering, image: View, columns: View, target: View, panel: int, images: tuple[int, int]) -> None:
    first, count = images
    channels, height, width = image.shape[1:]
    params = [channels, height, width, count, first, *steps_of(image)[:2]]
    grain = GRAIN // 8 // max(channels * width * count, 1)
    low.kernel(ConvWeightGrad.name, PixelKernel(panel), [image, columns, target], params, height, grain)


# ---------------------------------------------------------------------- at Winograd's points


def _by_points(
    low: Lowering, step: SpecializedNode, x: View, g: View, shape: tuple[int, ...], edge: Literal[2, 4]
) -> View:
    """Tiles of pixels in portions, taken to Winograd's points."""
    tiles = (g.shape[0], -(-g.shape[2] // edge), -(-g.shape[3] // edge))
    whole, pads = math.prod(tiles), [int(p) for p in step.attributes["pads"][:2]]
    # As many runs as products in a run, or so: the sum of both is what is rounded one after the other.
    run = max(32, 1 << math.isqrt(whole - 1).bit_length())
    portion = -(-whole // -(-whole // PORTION[f"winograd{edge}"]))
    portion = -(-portion // run) * run
    sums = _Sums(low, x.shape[1], g.shape[1], (edge + 2) ** 2)
    left, right = sums.places(min(portion, whole), each=True)
    zeros = low.constant(np.zeros(max(x.shape[1], g.shape[1]) + host().lanes(4), np.float32))
    kernels = SpreadKernel("image", sums.left, edge), SpreadKernel("gradient", sums.right, edge)
    for first in range(0, whole, portion):
        count = min(portion, whole - first)
        starts = sums.groups * count, sums.panels * count
        for kernel, image, target, panels, pad in (
            (kernels[0], x, left, sums.groups, pads),
            (kernels[1], g, right, sums.panels, [0, 0]),
        ):
            point = panels * kernel.panel * count
            params = [image.shape[1], *image.shape[2:], *tiles[1:], first, count, *pad, *steps_of(image), point]
            grain = GRAIN // 8 // max(image.shape[1] * sums.points, 1)
            low.kernel(ConvWeightGrad.name, kernel, [image, zeros, target], params, count, grain)
        for begin, lines, length in ((0, count // run, run), (count - count % run, 1, count % run)):
            if lines * length:
                points = [[k * starts[0] + begin, k * starts[1] + begin, lines, length, 1] for k in range(sums.points)]
                sums.add(left, right, (count, count), (length, length), points)
    return sums.collected(shape, CollectKernel("winograd", tile_for(host(), g.shape[1]), edge))
