"""Convolutions of images by generated kernels, channels last; most take constant weights, Winograd's any."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.backends.cpu.ir.kernel_program import apply, load
from pyflame_rt.backends.cpu.jit.target import host
from pyflame_rt.backends.cpu.kernels.tiles.depthwise import DepthwiseKernel
from pyflame_rt.backends.cpu.kernels.tiles.products import ProductKernel
from pyflame_rt.backends.cpu.kernels.tiles.register_tile import PLAIN, Finish, Tile, tile_for
from pyflame_rt.backends.cpu.kernels.tiles.winograd import WinogradKernel
from pyflame_rt.backends.cpu.kernels.tiles.winograd_filters import FilterKernel
from pyflame_rt.backends.cpu.lower.box_copies import padded
from pyflame_rt.backends.cpu.lower.channel_scales import Scales, image_and_scales, scaled_panels
from pyflame_rt.backends.cpu.lower.lowering import Lowering, NotNative
from pyflame_rt.backends.cpu.lower.tiled_products import (
    GRAIN,
    MAX_DEPTH,
    apart_of,
    as_rows,
    block_of,
    ending_of,
    label_of,
    nodes_of,
    packed_step,
    product_step,
)
from pyflame_rt.backends.cpu.lower.window_sums import Reach, fits_windows, sums_of_windows
from pyflame_rt.backends.cpu.memory.buffer_views import contiguous_strides
from pyflame_rt.backends.cpu.memory.packed_weights import channel_filters, panels, tap_panels, winograd_panels
from pyflame_rt.backends.cpu.onednn.library import available
from pyflame_rt.backends.cpu.onednn.memory import MemDesc
from pyflame_rt.graph import DType
from pyflame_rt.graph.records import dataclass
from pyflame_rt.ops.onnx.conv import ConvTranspose
from pyflame_rt.ops.onnx.windows import Windows, windows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyflame_rt.backends.cpu.graph.groups import Group
    from pyflame_rt.backends.cpu.memory.buffer_views import View
    from pyflame_rt.opt.specialized_graph import SpecializedNode

__all__ = ["channels_last", "convolution", "image_convolution", "steps_of", "turned_convolution", "turned_image"]

# From so many weights per tap on, filters for tiles of 4x4 would not fit any cache.
DEEP = 200_000
SMALL_IMAGE = 64
# Channels of a block, four lines of the cache, and floats in three quarters of a first-level cache of 32 KB.
CHANNELS, LINE_FLOATS = 64, 6_144
# Filters of one line that a tile of channels with few neighbours holds in registers, or nearly so.
MOST_FILTERS = 24
# Channels summed at a time where weights are trained: errors of one step are what the next begins with.
TRAINED_RUN = 16
# Products that one sum should have: fewer take more time, more lose more bits.
LEAST_RUN = 64


@dataclass(frozen=True)
class Filters:
    """Weights known only while running: [out, in, 3, 3], or for turned ones [in, out, 3, 3] by half a turn."""

    view: View
    turned: bool

    @property
    def shape(self) -> tuple[int, ...]:
        """Outputs, inputs, taps."""
        a, b, *taps = self.view.shape
        return (b, a, *taps) if self.turned else (a, b, *taps)


@dataclass(frozen=True)
class _Task:
    """A convolution with everything placed: images and full operands lie channels last."""

    label: str
    x: View
    weights: np.ndarray[Any, Any] | Filters
    operands: list[View]
    finish: Finish
    out: View
    at: Windows
    scales: Scales | None = None  # of the channels of the image


def convolution(low: Lowering, step: SpecializedNode, group: Group | None = None) -> View:
    """Lower a convolution, with the loop that alone reads it; NotNative where the library does better."""
    data, name, *rest = step.node.inputs
    weights = low.constant_of(name)
    shape, source, taps = (low.concrete.shape(n) for n in (step.node.outputs[0], data, name))
    if len(taps) != 4 or low.concrete.dtype(name) is not DType.Float32 or not math.prod(shape) * math.prod(taps):
        raise NotNative("weights that are not of float32 over two axes")
    if low.concrete.dtype(data) is not DType.Float32:
        raise NotNative("not an image of float32")
    at = _windows(step, source[2:], taps[2:])
    if weights is None:
        plain = group is None and not (rest and rest[0])
        ways = _trained_ways(step.attributes["group"], taps, at, shape, plain=plain)
    else:
        ways = _ways(step.attributes["group"], taps, at, shape)
    label = label_of(step, group)
    form = f"s{at.strides} p{at.padding} d{at.dilations} g{step.attributes['group']}"
    if step.node.outputs[0] in low.concrete.exact:
        ways, form = tuple(way for way in ways if not way.startswith("winograd")), f"{form} exact"
    if weights is None:
        form = f"{form} trained"
    case = f"{label} {list(source)} {list(taps)} {form}".replace(", ", ",")
    ending = ending_of(low, step, group, rest[0] if rest else "", 1)
    way = low.choices.pick(case, ways, *nodes_of(step, group))
    if way == "library":
        raise low.left_to_library(step)
    scales = None
    if way == "product" and data in low.scaled:
        loop = low.scaled.pop(data)
        data, factors = image_and_scales(low, loop)
        scales = Scales(low.dense(factors), loop.steps[0].node.name)
    x = channels_last(low, data)
    operands = []
    for operand, reach in zip(ending.names, ending.finish.operands, strict=True):
        view = low.strided(operand)
        operands.append(channels_last(low, operand) if reach == "full" else as_rows(low, view, 1, shape[1]))
    n, channels, height, width = shape
    out = low.new((n, height, width, channels), DType.Float32).permuted([0, 3, 1, 2])
    if way in ("padded", "pixels", "product") and scales is None:
        weights = low.weights_of(name)
    if way == "windows":
        _windowed(low, label, x, low.dense(name), out, at)
        return out
    given = Filters(low.dense(name), turned=False) if weights is None else weights
    _LOWERINGS[way](low, _Task(label, x, given, operands, ending.finish, out, at, scales))
    return out


def turned_convolution(low: Lowering, step: SpecializedNode, padding: tuple[tuple[int, int], ...]) -> View:
    """A transposed 3x3 convolution of stride 1 without bias: a convolution by turned filters, padded so."""
    data, name = step.node.inputs[:2]
    shape, (depth, columns, *kernel) = low.concrete.shape(step.node.outputs[0]), low.concrete.shape(name)
    at = Windows(tuple(kernel), (1, 1), (1, 1), padding)
    ways = tuple(way for way in _ways(1, (columns, depth, *kernel), at, shape) if way != "padded")
    if not ways or not ways[0].startswith("winograd"):
        raise NotNative("a window the generated kernels have no form for")
    case = f"ConvTranspose {list(low.concrete.shape(data))} {[depth, columns]} p{padding}".replace(", ", ",")
    way = low.choices.pick(case, ways, step.node.name)
    if way == "library":
        raise NotNative("the library was measured to be faster")
    x, filters = channels_last(low, data), Filters(low.dense(name), turned=True)
    n, _, height, width = shape
    out = low.new((n, height, width, columns), DType.Float32).permuted([0, 3, 1, 2])
    _LOWERINGS[way](low, _Task(ConvTranspose.name, x, filters, [], PLAIN, out, at))
    return out


def gathered_convolution(
    low: Lowering, step: SpecializedNode, steps: Sequence[int], gaps: Sequence[int], begin: Sequence[int]
) -> bool:
    """A transposed convolution without bias as sums over what reaches a pixel; False where something else is better."""
    data, name = step.node.inputs[:2]
    shape, taps = low.concrete.shape(step.node.outputs[0]), low.concrete.shape(name)
    if not fits_windows(shape[0], *taps[:2]) or low.weights_of(name) is not None:
        return False
    sizes = [list(low.concrete.shape(data)), list(taps)]
    case = f"ConvTranspose {sizes} s{list(steps)} d{list(gaps)} p{list(begin)}".replace(", ", ",")
    if low.choices.pick(case, ("windows", "library"), step.node.name) == "library":
        return False
    x, (n, channels, height, width) = channels_last(low, data), shape
    out = low.new((n, height, width, channels), DType.Float32).permuted([0, 3, 1, 2])
    down, across = (
        Reach(x.shape[i + 2], shape[i + 2], taps[i + 2], steps[i], gaps[i], begin[i], back=True) for i in (0, 1)
    )
    sums_of_windows(low, ConvTranspose.name, x, low.dense(name), out, (down, across), (1, 0))
    low.places[step.node.outputs[0]] = out
    return True


def _trained_ways(
    groups: int, weights: tuple[int, ...], at: Windows, shape: tuple[int, ...], *, plain: bool
) -> tuple[str, ...]:
    """Kernels for weights that are known only while running."""
    ways: tuple[str, ...] = ()
    with suppress(NotNative):
        ways = tuple(way for way in _ways(groups, weights, at, shape) if way.startswith("winograd"))
    if plain and groups == 1 and fits_windows(shape[0], weights[1], weights[0]):
        ways = (*ways, "windows")
    if not ways:
        raise NotNative("weights that are not constant")
    return (*ways, "library")


def _windowed(low: Lowering, label: str, x: View, weights: View, out: View, at: Windows) -> None:
    """Tap by tap, pixels of all images together."""
    down, across = (
        Reach(x.shape[i + 2], out.shape[i + 2], at.kernel[i], at.strides[i], at.dilations[i], at.padding[i][0])
        for i in (0, 1)
    )
    sums_of_windows(low, label, x, weights, out, (down, across), (0, 1))


def image_convolution(low: Lowering, x: View, weights: np.ndarray[Any, Any], bias: View | None, at: Windows) -> View:
    """A convolution of an image, channels last, by constant filters, and a bias: a product for each tap."""
    counts: list[Any] = at.output(x.shape[2:])
    height, width = counts
    out = low.new((x.shape[0], height, width, weights.shape[0]), DType.Float32).permuted([0, 3, 1, 2])
    operands = [] if bias is None else [as_rows(low, bias, 1, weights.shape[0])]
    finish = PLAIN if bias is None else Finish(apply("add", load(0, "float32"), load(1, "float32")), ("column",))
    way = "padded" if any(p for pair in at.padding for p in pair) else "pixels"
    _LOWERINGS[way](low, _Task(ConvTranspose.name, x, weights, operands, finish, out, at))
    return out


def _windows(step: SpecializedNode, sizes: tuple[int, ...], kernel: tuple[int, ...]) -> Windows:
    names = ("strides", "dilations", "pads", "auto_pad", "ceil_mode")
    return windows(sizes, kernel, **{n: step.attributes[n] for n in names if step.attributes.get(n) is not None})


def _ways(groups: int, weights: tuple[int, ...], at: Windows, shape: tuple[int, ...]) -> tuple[str, ...]:
    """Kernels that can do it, the one that is best as a rule first; NotNative where only the library can."""
    columns, depth = weights[:2]
    if groups > 1:
        few = depth if columns == groups * depth and math.gcd(host().lanes(4), columns) % depth == 0 else 0
        if 0 < few * at.kernel[1] <= MOST_FILTERS and columns % 4 == 0 and at.dilations == (1, 1):
            return ("depthwise", "library")
        raise NotNative("a convolution in groups is the library's")
    if math.prod(at.kernel) * depth > MAX_DEPTH or shape[0] * math.prod(shape[2:]) < 2:
        raise NotNative("too few pixels or too many channels")
    bordered = any(p for pair in at.padding for p in pair)
    if at.kernel == (1, 1) and at.strides == (1, 1) and not bordered:
        return ("product", "library")
    if not bordered and depth >= 8:
        return ("pixels", "library")
    lanes, plain = host().lanes(4), at.strides == (1, 1) and at.dilations == (1, 1)
    if at.kernel != (3, 3) or not plain or depth % lanes or columns < lanes or depth < 16:
        if available():
            raise NotNative("a window the library takes")
        return ("padded",) if bordered else ("pixels",)
    deep = columns * depth >= DEEP and math.prod(shape[2:]) <= SMALL_IMAGE
    quick = ("winograd2", "winograd4") if deep else ("winograd4", "winograd2")
    return (*quick, "padded", "library")


def channels_last(low: Lowering, name: str) -> View:
    """An image whose channels lie next to each other; it is put so once for all who ask."""
    view = low.view(name)
    if len(view.shape) < 4:  # an operand without a batch, beside a single image
        view = low.dense(name)
        sizes = (1,) * (4 - len(view.shape)) + view.shape
        view = replace(view, shape=sizes, strides=contiguous_strides(sizes))
    if _is_turned(view):
        return _ordered(view)
    turned = f"{name}\0channels last"
    if turned not in low.places:
        low.places[turned] = turned_image(low, view)
    return low.places[turned]


def _is_turned(view: View) -> bool:
    return not view.is_blocked and (view.strides[1] == 1 or view.shape[1] == 1) and 0 not in view.strides


def turned_image(low: Lowering, view: View) -> View:
    """An image with its channels last: a copy where they are not."""
    return _ordered(view if _is_turned(view) else _turned_image(low, view))


def _turned_image(low: Lowering, view: View) -> View:
    """A copy of an image with its channels last."""
    if available():
        return low.reordered(view, MemDesc(view.shape, "f32", "acdb"))
    n, channels, height, width = view.shape
    return low.copied(view, low.new((n, height, width, channels), view.dtype).permuted([0, 3, 1, 2]))


def _ordered(view: View) -> View:
    """The view with strides that tell the order of its axes: those of axes of one element may say anything."""
    _, channels, height, width = view.shape
    if height != 1 and width != 1:
        return view
    image, one, line, pixel = view.strides
    pixel = channels if width == 1 else pixel
    return replace(view, strides=(image, one, width * pixel if height == 1 else line, pixel))


def _flat(view: View) -> View:
    """An image as rows of channels."""
    n, channels, height, width = view.shape
    flat = view.permuted([0, 2, 3, 1]).reshaped((n * height * width, channels))
    if flat is None:
        raise NotNative("pixels that do not follow each other in memory")
    return flat


def _flat_operands(task: _Task) -> list[View]:
    return [_flat(v) if r == "full" else v for v, r in zip(task.operands, task.finish.operands, strict=True)]


def steps_of(view: View) -> list[int]:
    """Strides of images, lines and pixels."""
    return [view.strides[0], view.strides[2], view.strides[3]]


def _operand_steps(task: _Task) -> list[int]:
    pairs = zip(task.operands, task.finish.operands, strict=True)
    return [step for view, reach in pairs if reach == "full" for step in steps_of(view)]


def _product(low: Lowering, task: _Task) -> None:
    """Every pixel a row of a product."""
    assert isinstance(task.weights, np.ndarray)
    matrix = task.weights.reshape(task.weights.shape[:2]).T
    if task.scales is not None:
        columns = tile_for(host(), matrix.shape[1]).vectors * host().lanes(4)
        packed = scaled_panels(low, low.constant(panels(matrix, columns)), task.scales)
        packed_step(low, task.label, _flat(task.x), packed, _flat_operands(task), task.finish, _flat(task.out))
        return
    product_step(low, task.label, _flat(task.x), matrix, _flat_operands(task), task.finish, _flat(task.out))


def _pixels(low: Lowering, task: _Task) -> None:
    """A product for each tap, summed in registers; no padding."""
    x, out, at = task.x, _flat(task.out), task.at
    assert isinstance(task.weights, np.ndarray)
    tile = tile_for(host(), out.shape[1])
    columns = tile.vectors * host().lanes(4)
    channels = x.shape[1]
    image, line, pixel = steps_of(x)
    depth, taps = channels, [(i, j) for i in range(at.kernel[0]) for j in range(at.kernel[1])]
    if at.dilations[1] == 1 and pixel == channels and channels < LEAST_RUN:
        # The columns of a window lie next to each other: one sum for each of its lines.
        depth, taps = channels * at.kernel[1], [(i, 0) for i in range(at.kernel[0])]
    packed = low.constant(tap_panels(task.weights, columns))
    tile = replace(tile, weights=packed.dtype.label)
    rows, width = out.shape
    block = block_of(rows, depth * len(taps), tile)
    items = -(-rows // block) * packed.shape[0]
    params = [
        rows, width, depth, block, -(-rows // block), out.strides[0], len(taps), task.out.shape[3], task.out.shape[2],
        at.strides[1] * pixel, at.strides[0] * line, image, packed.shape[0], 0,
    ]  # fmt: skip
    flat = _flat_operands(task)
    params += [v.strides[0] for v, r in zip(flat, task.finish.operands, strict=True) if r == "full"]
    params += [i * at.dilations[0] * line + j * at.dilations[1] * pixel for i, j in taps]
    grain = GRAIN // max(block * depth * len(taps) * columns, 1)
    kernel = ProductKernel("pixels", tile, task.finish)
    low.kernel(task.label, kernel, [x, packed, *flat, out], params, items, grain)


def _padded(low: Lowering, task: _Task) -> None:
    """The same of an image that was given its border: each output reads its own window and nothing else."""
    image = padded(low, task.x, [(0, 0), (0, 0), *task.at.padding], 0.0)
    at = replace(task.at, padding=((0, 0), (0, 0)))
    _pixels(low, replace(task, x=image, at=at))


def _winograd(low: Lowering, task: _Task, edge: int) -> None:
    lanes, padding = host().lanes(4), task.at.padding
    columns, depth = task.weights.shape[:2]
    tile = tile_for(host(), columns)
    kernel = WinogradKernel(tile, edge, task.finish, 0 if isinstance(task.weights, np.ndarray) else TRAINED_RUN)
    images, _, height, width = task.out.shape
    down, across = -(-height // edge), -(-width // edge)
    tiles = images * down * across
    block = min(3 * tile.rows, tiles)
    packed = _winograd_filters(low, task.weights, edge, tile)
    count = packed.shape[0]
    items = -(-tiles // block) * count
    slot, apart = kernel.slot(lanes, block, depth), apart_of(low, items)
    scratch = low.new((-(-items // apart) * slot,), DType.Float32)
    reaches = zip(task.operands, task.finish.operands, strict=True)
    operand_steps = [step for view, reach in reaches for step in (steps_of(view) if reach == "full" else [0, 0, 0])]
    params = [
        depth, columns, *task.x.shape[2:], height, width, down, across, tiles, block,
        count, 1, count, padding[0][0], padding[1][0], *steps_of(task.x), slot, apart, *steps_of(task.out),
        *operand_steps,
    ]  # fmt: skip
    zeros = low.constant(np.zeros(depth, np.float32))
    grain = GRAIN // max(kernel.products * block * depth * tile.vectors * lanes, 1)
    views = [task.x, zeros, packed, scratch, *task.operands, task.out]
    low.kernel(task.label, kernel, views, params, items, grain)


def _winograd_filters(low: Lowering, weights: np.ndarray[Any, Any] | Filters, edge: int, tile: Tile) -> View:
    """Filters at Winograd's points: [panels, points, depth, columns of a panel]."""
    wide = tile.vectors * host().lanes(4)
    if isinstance(weights, np.ndarray):
        return low.constant(winograd_panels(weights, edge, wide))
    columns, depth = weights.shape[:2]
    count = -(-columns // wide)
    packed = low.new((count, (edge + 2) ** 2, depth, wide), DType.Float32)
    steps = [9, columns * 9] if weights.turned else [depth * 9, 9]
    kernel = FilterKernel(tile, edge, weights.turned)
    low.kernel("filters", kernel, [weights.view, packed], [columns, depth, *steps], count * depth, 16)
    return packed


def _depthwise(low: Lowering, task: _Task) -> None:
    channels, at = task.out.shape[1], task.at
    assert isinstance(task.weights, np.ndarray)
    lanes = math.gcd(host().lanes(4), channels)
    images, _, height, width = task.out.shape
    # Some pixels of the last tile of a line may be computed in vain: the fewest, then the largest tile.
    pixels = min((4, 5, 6, 7), key=lambda n: (-(-width // n) * n, -n))
    group = task.weights.shape[1]
    kernel = DepthwiseKernel(at.kernel[1], at.strides[1], pixels, lanes, task.finish, group)
    filters = low.constant(channel_filters(task.weights))
    block = _channels_together(channels, task.x.shape[3], at.kernel[0])
    blocks = -(-channels // block)
    params = [
        channels, *task.x.shape[2:], height, width, at.kernel[0], at.strides[0], at.padding[0][0], at.padding[1][0],
        *steps_of(task.x), *steps_of(task.out), block, blocks, *_operand_steps(task),
    ]  # fmt: skip
    # A multiplication costs more here than in a product: less work is worth a thread.
    grain = GRAIN // 4 // max(width * block * group * math.prod(at.kernel), 1)
    views = [task.x, filters, *task.operands, task.out]
    low.kernel(task.label, kernel, views, params, images * blocks * height, grain)


def _channels_together(channels: int, width: int, lines: int) -> int:
    """Channels of a block: few where the lines a window lies in then fit the first-level cache, else all."""
    return CHANNELS if channels > CHANNELS and lines * width * CHANNELS <= LINE_FLOATS else channels


_LOWERINGS = {
    "product": _product,
    "pixels": _pixels,
    "padded": _padded,
    "winograd2": lambda low, task: _winograd(low, task, 2),
    "winograd4": lambda low, task: _winograd(low, task, 4),
    "depthwise": _depthwise,
}
