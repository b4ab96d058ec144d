"""Products and convolutions of 8-bit integers with constant weights, and the loop that follows each, as one kernel."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.backends.cpu.graph.op_support import LOOP_TYPES
from pyflame_rt.backends.cpu.ir.kernel_program import Expr, load, shared
from pyflame_rt.backends.cpu.ir.whole_numbers import kept_whole
from pyflame_rt.backends.cpu.jit.target import host
from pyflame_rt.backends.cpu.kernels.tiles.integer_dots import GROUP, Dots, dots_for, integer_tile, packed_weights
from pyflame_rt.backends.cpu.kernels.tiles.integer_finish import SUMS, IntegerFinish, Operand
from pyflame_rt.backends.cpu.kernels.tiles.integer_products import IntegerKernel
from pyflame_rt.backends.cpu.lower.box_copies import part, put_inside
from pyflame_rt.backends.cpu.lower.integer_depthwise import integer_depthwise
from pyflame_rt.backends.cpu.lower.loop_nests import external_names, group_values
from pyflame_rt.backends.cpu.lower.lowering import Lowering, NotNative, fuses, lowers
from pyflame_rt.backends.cpu.lower.tiled_products import PIECES, as_rows, label_of
from pyflame_rt.backends.cpu.memory.constants import derived
from pyflame_rt.graph import DType
from pyflame_rt.graph.records import dataclass
from pyflame_rt.ops.onnx.conv import ConvInteger
from pyflame_rt.ops.onnx.matmul import MatMulInteger
from pyflame_rt.ops.onnx.windows import Windows, windows
from pyflame_rt.opt.rules.exact_integers import is_depthwise
from pyflame_rt.opt.traced_sizes import is_traced, least, most

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyflame_rt.backends.cpu.graph.groups import Group
    from pyflame_rt.backends.cpu.kernels.tiles.register_tile import Reach, Tile
    from pyflame_rt.backends.cpu.memory.buffer_views import View
    from pyflame_rt.opt.specialized_graph import SpecializedNode

__all__ = ["integer_product", "integers_and_loop"]

# Multiplications a thread must have to be worth waking, some five microseconds.
GRAIN = 1_500_000
LEAST_ROWS = 5  # fewer take as long: until their weights have come
BLOCK_BYTES = 1 << 17  # of a block of rows: part of a second-level cache
MAX_DEPTH = 32_768  # products of a sum that 32 bits surely hold
LEAST_DEPTH = 8  # channels of a group: fewer leave groups of four half empty
FEW_CHANNELS = 4
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Weights:
    """Signed 8-bit weights [depth, columns] of one group or several, one after the other."""

    source: Array  # what it was made from, and is shared by
    matrix: Array  # [groups, depth, columns]
    shifts: Array | None  # zero points of all columns, where they are not 0


@dataclass(frozen=True)
class _Ending:
    names: tuple[str, ...]
    finish: IntegerFinish
    results: tuple[str, ...]


@dataclass(frozen=True)
class _Task:
    """A product with everything but its source placed."""

    label: str
    weights: Weights
    zero: View
    signed: bool
    finish: IntegerFinish
    operands: list[View]
    outs: list[View]  # rows of columns
    dots: Dots


# ---------------------------------------------------------------------- with the loop that follows


def integers_and_loop(low: Lowering, step: SpecializedNode, group: Group) -> View:
    """A product of integers, with the loop that alone reads it."""
    _lower(low, step, group)
    return low.places[group.steps[-1].node.outputs[0]]


fuses(integers_and_loop, ConvInteger, MatMulInteger)


@lowers(ConvInteger, MatMulInteger)
def integer_product(low: Lowering, step: SpecializedNode) -> None:
    """A product of integers on its own."""
    _lower(low, step, None)


def _lower(low: Lowering, step: SpecializedNode, group: Group | None) -> None:
    dots = dots_for(host())
    data, name = step.node.inputs[:2]
    array = low.constant_of(name)
    if dots is None or array is None or low.concrete.dtype(data) not in (DType.UInt8, DType.Int8):
        raise NotNative("weights that are not constant, or a machine without integer products")
    is_conv = step.op is ConvInteger
    ending = _ending_of(low, step, group, 1 if is_conv else len(low.concrete.shape(step.node.outputs[0])) - 1)
    (_convolution if is_conv else _matmul)(low, step, array, ending, dots, label_of(step, group))


def _ending_of(low: Lowering, step: SpecializedNode, group: Group | None, axis: int) -> _Ending:
    """The loop as expressions of the sum; ``axis`` is the one along which weights make columns."""
    product = step.node.outputs[0]
    if group is None:
        return _Ending((), SUMS, (product,))
    shape = low.concrete.shape(product)
    if group.shape != shape:
        raise NotNative("the loop widens the product")
    names, operands, loads = [], [], {product: load(0, "int32")}
    for name in external_names(low, group):
        if name == product:
            continue
        names.append(name)
        dtype = low.concrete.dtype(name)
        if dtype not in LOOP_TYPES:
            raise NotNative(f"an operand of {dtype.label}")
        operands.append(Operand(_reach(low, name, shape, axis), dtype.label))
        loads[name] = load(len(names), dtype.label)
    values = group_values(low, group, loads)
    results = (*group.extra, group.steps[-1].node.outputs[0])
    found = shared(Expr("several", "int32", kept_whole([values[r] for r in results]))).args
    stored = tuple(low.concrete.dtype(r).label for r in results)
    return _Ending(tuple(names), IntegerFinish(found, stored, tuple(operands)), results)


def _reach(low: Lowering, name: str, shape: tuple[int, ...], axis: int) -> Reach:
    sizes = low.concrete.shape(name)
    along = (1,) * (len(shape) - len(sizes)) + sizes
    if along == shape:
        return "full"
    if all(n == 1 for n in along):
        return "single"
    if all(n == 1 or i == axis for i, n in enumerate(along)):
        return "column"
    raise NotNative("an operand that broadcasts in another way than one number for each column")


# ---------------------------------------------------------------------- operands


def _zero_of(low: Lowering, step: SpecializedNode, dtype: DType) -> View:
    """The zero point of the source: one number, constant or not."""
    name = step.node.inputs[2] if len(step.node.inputs) > 2 else ""
    if not name:
        return low.constant(np.zeros(1, dtype.numpy))
    if math.prod(low.concrete.shape(name)) != 1:
        raise NotNative("a zero point for each row")
    return low.dense(name)


def _weights_of(low: Lowering, step: SpecializedNode, array: Array, matrix: Array) -> Weights:
    """Weights as signed numbers, with their zero points."""
    columns = matrix.shape[0] * matrix.shape[2]
    shifts = np.broadcast_to(_points_of(low, step, columns), (columns,))
    if matrix.dtype == np.uint8:
        matrix, shifts = (matrix ^ np.uint8(128)).view(np.int8), shifts - 128
    return Weights(array, matrix, shifts if shifts.any() else None)


def _points_of(low: Lowering, step: SpecializedNode, columns: int) -> Array:
    """Zero points of weights: one, or one for each column."""
    name = step.node.inputs[3] if len(step.node.inputs) > 3 else ""
    points = low.constant_of(name) if name else np.zeros(1, np.int32)
    if points is None or points.size not in (1, columns):
        raise NotNative("zero points of weights that are not constant, or not one for each column")
    return points.astype(np.int32).reshape(-1)


def _packed(low: Lowering, weights: Weights, width: int, runs: int, dots: Dots) -> View:
    """All groups of weights in panels; shared with other plans."""
    groups, depth, columns = weights.matrix.shape
    each = runs * -(-(depth // runs) // GROUP) * width * dots.group_bytes
    panels = groups * -(-columns // width)
    form = ("integers", weights.matrix.shape, width, runs, dots.kind)

    def fill(out: Array) -> None:
        parts = [packed_weights(matrix, width, runs, dots) for matrix in weights.matrix]
        np.copyto(out, np.concatenate([p.reshape(-1).view(np.uint8) for p in parts]))

    return low.constant(derived(weights.source, form, panels * each, fill).reshape(panels, each))


def _per_column(values: Array, groups: int, width: int) -> Array:
    """One number for each column, with zeros that make whole panels of each group."""
    wide = values.reshape(groups, -1)
    rest = -wide.shape[1] % width
    return np.ascontiguousarray(np.pad(wide, ((0, 0), (0, rest))), np.int32).reshape(-1)


def _constants(low: Lowering, weights: Weights, tile: Tile, runs: int, dots: Dots) -> tuple[View, View, list[View]]:
    """Packed weights, sums of columns, and the zero points of columns where there are some."""
    groups, depth, _ = weights.matrix.shape
    width = tile.vectors * dots.lanes
    sums = weights.matrix.sum(axis=1, dtype=np.int64).reshape(-1)
    shifts = []
    if weights.shifts is not None:
        sums = sums - depth * weights.shifts.astype(np.int64)
        shifts.append(low.constant(_per_column(weights.shifts, groups, width)))
    sums_view = low.constant(_per_column(sums, groups, width))
    return _packed(low, weights, width, runs, dots), sums_view, shifts


def _tile(rows: Any, columns: int, task: _Task) -> Tile:
    sums = task.weights.shifts is not None
    return integer_tile(host(), task.dots, None if is_traced(rows) else rows, columns, sums=sums)


def _block(low: Lowering, rows: Any, depth: int, tile: Tile, task: _Task, panels: int) -> Any:
    """Rows that go together through all panels: what is read and written of them stays near meanwhile.

    Blocks are of equal size, and as many as give all threads the same to do.
    """
    full = [v for v, o in zip(task.operands, task.finish.operands, strict=True) if o.reach == "full"]
    each = depth + task.outs[0].shape[1] * sum(v.dtype.itemsize for v in (*full, *task.outs))
    tiles, held = -(-rows // tile.rows), most(1, BLOCK_BYTES // most(each * tile.rows, 1))
    shared = -(-PIECES * low.threads // panels) if low.threads > 1 else 1
    return -(-tiles // most(-(-tiles // held), shared)) * tile.rows


# ---------------------------------------------------------------------- products


def _matmul(low: Lowering, step: SpecializedNode, array: Array, ending: _Ending, dots: Dots, label: str) -> None:
    source = low.strided(step.node.inputs[0])
    shape = low.concrete.shape(step.node.outputs[0])
    if array.ndim != 2 or len(source.shape) < 2 or not array.size or array.shape[0] > MAX_DEPTH:
        raise NotNative("weights that are no matrix, or too deep")
    rows, (depth, columns) = math.prod(shape[:-1]), array.shape
    if rows < 1:
        raise NotNative("no rows")
    weights = _weights_of(low, step, array, array[None])
    x = as_rows(low, source, rows, depth)
    operands = [
        as_rows(low, low.strided(n), *{"full": (rows, columns), "column": (1, columns), "single": (1, 1)}[o.reach])
        for n, o in zip(ending.names, ending.finish.operands, strict=True)
    ]
    outs = [low.new((rows, columns), low.concrete.dtype(name)) for name in ending.results]
    signed = source.dtype is DType.Int8
    task = _Task(label, weights, _zero_of(low, step, source.dtype), signed, ending.finish, operands, outs, dots)
    _rows(low, task, x)
    for name, out in zip(ending.results, outs, strict=True):
        low.places[name] = out.reshaped(shape) or out


def _rows(low: Lowering, task: _Task, x: View) -> None:
    """Rows times weights."""
    (rows, columns), depth = task.outs[0].shape, x.shape[1]
    tile = _tile(rows, columns, task)
    packed, sums, shifts = _constants(low, task.weights, tile, 1, task.dots)
    block = _block(low, rows, depth, tile, task, packed.shape[0])
    params = [rows, columns, depth // GROUP, block, task.outs[0].strides[0], x.strides[0], *_full_strides(task)]
    kernel = IntegerKernel(
        "rows", task.dots, tile, depth % GROUP, task.signed, task.weights.shifts is not None, task.finish
    )
    views = [x, packed, sums, task.zero, *shifts, *task.operands, *task.outs]
    items = -(-rows // block) * packed.shape[0]
    low.kernel(task.label, kernel, views, params, items, _grain(block, rows, depth, tile, task), PIECES)


def _full_strides(task: _Task) -> list[int]:
    pairs = zip(task.operands, task.finish.operands, strict=True)
    return [view.strides[0] for view, operand in pairs if operand.reach == "full"]


def _grain(block: Any, rows: Any, depth: int, tile: Tile, task: _Task) -> Any:
    return GRAIN // most(most(least(block, rows), LEAST_ROWS) * depth * tile.vectors * task.dots.lanes, 1)


# ---------------------------------------------------------------------- convolutions


def _convolution(low: Lowering, step: SpecializedNode, array: Array, ending: _Ending, dots: Dots, label: str) -> None:
    data, shape = step.node.inputs[0], low.concrete.shape(step.node.outputs[0])
    groups = step.attributes["group"]
    if array.ndim != 4 or not math.prod(shape) * array.size:
        raise NotNative("a convolution that is not over two axes")
    columns, depth, *taps = array.shape
    alone = is_depthwise(groups, array.shape, step.attributes.get("dilations"))
    if (groups > 1 and depth < LEAST_DEPTH and not alone) or math.prod(array.shape[1:]) > MAX_DEPTH:
        raise NotNative("groups of too few channels, or sums of too many products")
    x = low.strided(data)
    zero = _zero_of(low, step, x.dtype)
    names = ("strides", "dilations", "pads", "auto_pad")
    given = {n: step.attributes[n] for n in names if step.attributes.get(n) is not None}
    at = windows(x.shape[2:], tuple(taps), **given)
    if any(p for pair in at.padding for p in pair):
        x = _bordered(low, x, at.padding, zero)
    else:
        x = _pixels_of(low, data)
    n, _, height, width = shape
    images = [low.new((n, height, width, columns), low.concrete.dtype(name)) for name in ending.results]
    rows = n * height * width
    outs = [_as_matrix(view, rows) for view in images]
    operands = [
        _as_matrix(_pixels_of(low, name).permuted([0, 2, 3, 1]), rows)
        if operand.reach == "full"
        else as_rows(low, low.strided(name), 1, columns if operand.reach == "column" else 1)
        for name, operand in zip(ending.names, ending.finish.operands, strict=True)
    ]
    _convolve(low, step, (x, zero), array, at, _Placed(label, ending.finish, operands, outs, dots), (height, width))
    for name, image in zip(ending.results, images, strict=True):
        low.places[name] = image.permuted([0, 3, 1, 2])


@dataclass(frozen=True)
class _Placed:
    """Where a convolution goes and what follows it."""

    label: str
    finish: IntegerFinish
    operands: list[View]
    outs: list[View]
    dots: Dots


def _convolve(
    low: Lowering,
    step: SpecializedNode,
    source: tuple[View, View],
    array: Array,
    at: Windows,
    to: _Placed,
    size: tuple[int, int],
) -> None:
    """The kernel for a convolution of an image with its border; ``source`` is that and its zero point."""
    (x, zero), groups = source, step.attributes["group"]
    signed, (columns, depth, *taps) = x.dtype is DType.Int8, array.shape
    if is_depthwise(groups, array.shape, step.attributes.get("dilations")):
        points = np.broadcast_to(_points_of(low, step, columns), (columns,))
        integer_depthwise(
            low, to.label, source, (array, points), at, size, to.finish, to.operands, to.outs, signed=signed
        )
        return
    matrix = array.reshape(groups, columns // groups, depth, *taps).transpose(0, 3, 4, 2, 1)
    weights = _weights_of(low, step, array, np.ascontiguousarray(matrix).reshape(groups, -1, columns // groups))
    task = _Task(to.label, weights, zero, signed, to.finish, to.operands, to.outs, to.dots)
    pixels = x.permuted([0, 2, 3, 1]).reshaped((x.shape[0] * x.shape[2] * x.shape[3], x.shape[1]))
    if at.kernel == (1, 1) and at.strides == (1, 1) and groups == 1 and pixels is not None:
        _rows(low, task, pixels)
    else:
        _taps(low, task, x, at, size, groups)


def _as_matrix(view: View, rows: int) -> View:
    flat = view.reshaped((rows, view.shape[-1]))
    if flat is None:
        raise NotNative("pixels that do not follow each other in memory")
    return flat


def _pixels_of(low: Lowering, name: str) -> View:
    """An image whose channels lie next to each other, pixels and lines densely; put so once for all who ask."""
    view = low.strided(name)
    if len(view.shape) != 4:
        raise NotNative("an operand of a convolution's loop that has fewer axes than the image")
    turned = f"{name}\0pixels"
    if turned not in low.places:
        if not view.permuted([0, 2, 3, 1]).is_contiguous:
            target = _channels_last(low, view.shape, view.dtype)
            _put(low, view, target)
            view = target
        _, channels, height, width = view.shape
        strides = (height * width * channels, 1, width * channels, channels)  # those of axes of one say anything else
        low.places[turned] = replace(view, strides=strides)
    return low.places[turned]


def _channels_last(low: Lowering, shape: tuple[int, ...], dtype: DType) -> View:
    images, channels, height, width = shape
    return low.new((images, height, width, channels), dtype).permuted([0, 3, 1, 2])


def _bordered(low: Lowering, view: View, pads: Sequence[tuple[int, int]], zero: View) -> View:
    """The image with a border of its zero point, channels last."""
    images, channels, *sizes = view.shape
    height, width = (b + n + a for n, (b, a) in zip(sizes, pads, strict=True))
    out = _channels_last(low, (images, channels, height, width), view.dtype)
    put_inside(low, view, out, [(0, 0), (0, 0), *pads], zero)
    return out


def _put(low: Lowering, view: View, target: View) -> None:
    """Copy an image; one of few channels that lie apart goes channel by channel, along its lines."""
    if view.strides[1] == 1 or view.shape[1] > FEW_CHANNELS:
        low.copied(view, target)
        return
    for channel in range(view.shape[1]):
        low.copied(part(view, 1, channel, 1), part(target, 1, channel, 1))


def _taps(low: Lowering, task: _Task, x: View, at: Windows, size: tuple[int, int], groups: int) -> None:
    """A product for each tap, or for each line of a window where its pixels lie together."""
    channels, (image, _, line, pixel) = x.shape[1], x.strides
    depth, taps = channels // groups, [(i, j) for i in range(at.kernel[0]) for j in range(at.kernel[1])]
    if at.dilations[1] == 1 and groups == 1:
        depth, taps = channels * at.kernel[1], [(i, 0) for i in range(at.kernel[0])]
    rows, columns = task.outs[0].shape[0], task.outs[0].shape[1] // groups
    tile = _tile(rows, columns, task)
    packed, sums, shifts = _constants(low, task.weights, tile, len(taps), task.dots)
    block = _block(low, rows, depth * len(taps), tile, task, packed.shape[0])
    params = [
        rows, columns, depth // GROUP, block, task.outs[0].strides[0], len(taps), size[1], size[0],
        at.strides[1] * pixel, at.strides[0] * line, image, packed.shape[0], channels // groups,
    ]  # fmt: skip
    params += _full_strides(task)
    params += [i * at.dilations[0] * line + j * at.dilations[1] * pixel for i, j in taps]
    kernel = IntegerKernel(
        "pixels", task.dots, tile, depth % GROUP, task.signed, task.weights.shifts is not None, task.finish
    )
    views = [x, packed, sums, task.zero, *shifts, *task.operands, *task.outs]
    grain = _grain(block, rows, depth * len(taps), tile, task)
    low.kernel(task.label, kernel, views, params, -(-rows // block) * packed.shape[0], grain, PIECES)
