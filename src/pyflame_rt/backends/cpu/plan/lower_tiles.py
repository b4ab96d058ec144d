"""Products and convolutions with constant weights by generated register-tiled kernels."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.backends.cpu.llvm.host import host
from pyflame_rt.backends.cpu.llvm.program import Expr, apply, load, walk
from pyflame_rt.backends.cpu.llvm.tiles.micro import Finish, Reach, Tile, tile_for
from pyflame_rt.backends.cpu.llvm.tiles.product import ProductKernel
from pyflame_rt.backends.cpu.llvm.tiles.winograd import WinogradKernel
from pyflame_rt.backends.cpu.onednn.memory import MemDesc
from pyflame_rt.backends.cpu.plan.lower import Lowering, NotNative
from pyflame_rt.backends.cpu.plan.lower_loops import external_names, group_expression
from pyflame_rt.backends.cpu.plan.panels import panels, winograd_panels
from pyflame_rt.graph import DType
from pyflame_rt.ops.windows import Windows, windows

if TYPE_CHECKING:
    from pyflame_rt.backends.cpu.plan.concrete import Step
    from pyflame_rt.backends.cpu.plan.groups import Group
    from pyflame_rt.backends.cpu.plan.views import View

__all__ = ["tiled"]

# Multiplications a thread must have to be worth waking, some five microseconds.
GRAIN = 300_000
# Floats of a block of rows: half of a second-level cache of 512 KB.
BLOCK_FLOATS = 65_536
SHORT = 256  # rows that are one block
MAX_DEPTH = 16_384


@dataclass(frozen=True)
class _Ending:
    """What follows a product: the values it reads and the expression; load(0) is the product."""

    names: tuple[str, ...]
    finish: Finish


def tiled(low: Lowering, step: Step, group: Group | None = None) -> View:
    """Lower a product or convolution, with the loop that alone reads it; NotNative where the library does better."""
    if step.op.name == "Conv":
        return _convolution(low, step, group)
    return _dense(low, step, group)


def _label(step: Step, group: Group | None) -> str:
    names = [step.op.name, *(s.op.name for s in (group.steps if group is not None else ()))]
    return "+".join(names)


def _ending(low: Lowering, step: Step, group: Group | None, bias: str, axis: int) -> _Ending:
    """The bias and the loop as one expression; ``axis`` is the one along which weights make columns."""
    product = step.node.outputs[0]
    shape = low.concrete.shape(product)
    names, reaches = [], []
    value: Expr = load(0, "float32")
    if bias:
        names.append(bias)
        reaches.append("column")
        value = apply("add", value, load(1, "float32"))
    if group is not None:
        if group.shape != shape or low.concrete.dtype(group.steps[-1].node.outputs[0]) is not DType.Float32:
            raise NotNative("the loop widens the product or changes its type")
        loads = {product: value}
        for name in external_names(low, group):
            if name == product:
                continue
            names.append(name)
            reaches.append(_reach(low, name, shape, axis))
            loads[name] = load(len(names), "float32")
        value = group_expression(low, group, loads)
        if any(node.dtype not in ("float32", "bool") for node in walk([value])):
            raise NotNative("the loop computes in another type than float32")
    finish = Finish(value if names or group is not None else None, tuple(reaches))
    return _Ending(tuple(names), finish)


def _reach(low: Lowering, name: str, shape: tuple[int, ...], axis: int) -> Reach:
    if low.concrete.dtype(name) is not DType.Float32:
        raise NotNative("an operand of another type than float32")
    sizes = low.concrete.shape(name)
    padded = (1,) * (len(shape) - len(sizes)) + sizes
    if padded == shape:
        return "full"
    if all(n == 1 or i == axis for i, n in enumerate(padded)) and padded[axis] == shape[axis]:
        return "column"
    raise NotNative("an operand that broadcasts in another way than one number for each column")


# ---------------------------------------------------------------------- dense layers


def _dense(low: Lowering, step: Step, group: Group | None) -> View:
    source, name, *rest = step.node.inputs
    weights = low.constant_of(name)
    if weights is None or weights.ndim != 2 or weights.dtype != np.float32 or not weights.size:
        raise NotNative("weights that are not a constant matrix of float32")
    shape = low.concrete.shape(step.node.outputs[0])
    if low.concrete.dtype(source) is not DType.Float32 or len(low.concrete.shape(source)) < 2:
        raise NotNative("not rows of float32")
    transposed = False
    if step.op.name == "Gemm":
        a = step.attributes
        if a["transA"] or a["alpha"] != 1.0 or a["beta"] != 1.0:
            raise NotNative("a scaled product, or one with its first operand turned")
        transposed = bool(a["transB"])
    matrix = weights.T if transposed else weights
    depth, width = matrix.shape
    rows = math.prod(shape[:-1])
    if rows < 2 or depth > MAX_DEPTH:
        raise NotNative("too few rows or too long ones")
    bias = rest[0] if rest else ""
    if bias and _reach(low, bias, shape, len(shape) - 1) != "column":
        raise NotNative("a bias that differs from row to row")
    ending = _ending(low, step, group, bias, len(shape) - 1)
    x = _rows(low, low.strided(source), rows, depth)
    operands = [_operand(low, n, r, (rows, width)) for n, r in zip(ending.names, ending.finish.operands, strict=True)]
    out = low.new((rows, width), DType.Float32)
    _product(low, _label(step, group), x, matrix, operands, ending.finish, out)
    return out.reshaped(shape) or out


def _rows(low: Lowering, view: View, rows: int, depth: int) -> View:
    """A value as rows with elements next to each other."""
    flat = view.reshaped((rows, depth))
    if flat is None or (flat.strides[1] != 1 and depth != 1):
        flat = low.copied(view).reshaped((rows, depth))
        assert flat is not None
    return flat


def _operand(low: Lowering, name: str, reach: Reach, shape: tuple[int, int]) -> View:
    view = low.strided(name)
    if reach == "full":
        return _rows(low, view, *shape)
    return _rows(low, view, 1, shape[1])


def _product(
    low: Lowering, label: str, x: View, matrix: np.ndarray[Any, Any], operands: list[View], finish: Finish, out: View
) -> None:
    """The step that multiplies rows by packed weights."""
    (rows, depth), width = x.shape, out.shape[1]
    tile = tile_for(host(), width)
    columns = tile.vectors * host().lanes(4)
    packed = low.constant(panels(matrix, columns))
    block = _block(rows, depth, tile)
    blocks, count = -(-rows // block), -(-width // columns)
    params = [rows, width, depth, block, blocks, x.strides[0], out.strides[0]]
    params += [o.strides[0] for o, r in zip(operands, finish.operands, strict=True) if r == "full"]
    grain = GRAIN // max(min(block, rows) * depth * columns, 1)
    kernel = ProductKernel("rows", tile, finish)
    low.kernel(label, kernel, [x, packed, *operands, out], params, blocks * count, grain)


def _apart(low: Lowering, items: int) -> int:
    """How many items calls under way at the same time begin apart at least: the driver makes one for each thread."""
    return max(1, items // low.threads)


def _block(rows: int, depth: int, tile: Tile) -> int:
    """Rows that share a panel while it is in the cache: weights come from memory once for each block."""
    if rows <= SHORT:
        return -(-rows // tile.rows) * tile.rows
    step = 2 * tile.rows
    wanted = min(max(8, BLOCK_FLOATS // (depth * step)) * step, -(-rows // step) * step)
    return -(-rows // (-(-rows // wanted) * step)) * step


# ---------------------------------------------------------------------- convolutions


def _convolution(low: Lowering, step: Step, group: Group | None) -> View:
    data, name, *rest = step.node.inputs
    weights = low.constant_of(name)
    shape, source = low.concrete.shape(step.node.outputs[0]), low.concrete.shape(data)
    if weights is None or weights.dtype != np.float32 or weights.ndim != 4 or not math.prod(shape) * weights.size:
        raise NotNative("weights that are not a constant of float32 over two axes")
    if low.concrete.dtype(data) is not DType.Float32:
        raise NotNative("not an image of float32")
    at = _windows(step, source[2:], weights.shape[2:])
    edge = _edge(step, weights, at, shape)
    ending = _ending(low, step, group, rest[0] if rest else "", 1)
    x = _channels_last(low, data)
    operands = []
    for operand, reach in zip(ending.names, ending.finish.operands, strict=True):
        view = low.strided(operand)
        operands.append(_channels_last(low, operand) if reach == "full" else _rows(low, view, 1, shape[1]))
    n, channels, height, width = shape
    out = low.new((n, height, width, channels), DType.Float32).permuted([0, 3, 1, 2])
    label = _label(step, group)
    if edge:
        kernel = WinogradKernel(tile_for(host(), channels), edge, ending.finish)
        _winograd(low, label, kernel, x, weights, operands, out, at)
    else:
        merged = [_pixels(v) for v in (x, out)]
        flat = [_pixels(v) if r == "full" else v for v, r in zip(operands, ending.finish.operands, strict=True)]
        matrix = weights.reshape(weights.shape[:2]).T
        _product(low, label, merged[0], matrix, flat, ending.finish, merged[1])
    return out


def _windows(step: Step, sizes: tuple[int, ...], kernel: tuple[int, ...]) -> Windows:
    names = ("strides", "dilations", "pads", "auto_pad", "ceil_mode")
    return windows(sizes, kernel, **{n: step.attributes[n] for n in names if step.attributes.get(n) is not None})


def _edge(step: Step, weights: np.ndarray[Any, Any], at: Windows, shape: tuple[int, ...]) -> int:
    """The side of Winograd's tiles, 0 for a product over pixels; NotNative where the library does better."""
    if step.attributes["group"] != 1 or at.strides != (1, 1):
        raise NotNative("groups and strides are the library's")
    columns, depth = weights.shape[:2]
    if at.kernel == (1, 1) and not any(p for pair in at.padding for p in pair):
        if depth > MAX_DEPTH or shape[0] * math.prod(shape[2:]) < 2:
            raise NotNative("too few pixels or too many channels")
        return 0
    lanes = host().lanes(4)
    if at.kernel != (3, 3) or at.dilations != (1, 1) or depth % lanes or columns < lanes or depth < 16:
        raise NotNative("a window the generated kernels have no form for")
    return 2 if depth * columns >= DEEP and math.prod(shape[2:]) <= 64 else 4


# From so many weights per tap on, filters for tiles of 4x4 would not fit any cache.
DEEP = 200_000


def _channels_last(low: Lowering, name: str) -> View:
    """An image whose channels lie next to each other."""
    view = low.view(name)
    if view.is_blocked or (view.strides[1] != 1 and view.shape[1] != 1) or 0 in view.strides:
        return low.reordered(view, MemDesc(view.shape, "f32", "acdb"))
    return view


def _pixels(view: View) -> View:
    """An image as rows of channels."""
    n, channels, height, width = view.shape
    flat = view.permuted([0, 2, 3, 1]).reshaped((n * height * width, channels))
    if flat is None:
        raise NotNative("pixels that do not follow each other in memory")
    return flat


def _winograd(
    low: Lowering,
    label: str,
    kernel: WinogradKernel,
    x: View,
    weights: np.ndarray[Any, Any],
    operands: list[View],
    out: View,
    at: Windows,
) -> None:
    lanes, tile, edge, padding = host().lanes(4), kernel.tile, kernel.out, at.padding
    columns, depth = weights.shape[:2]
    images, _, height, width = out.shape
    down, across = -(-height // edge), -(-width // edge)
    tiles = images * down * across
    block = min(3 * tile.rows, tiles)
    packed = low.constant(winograd_panels(weights, edge, tile.vectors * lanes))
    count = packed.shape[0]
    items = -(-tiles // block) * count
    slot, apart = kernel.slot(lanes, block, depth), _apart(low, items)
    scratch = low.new((-(-items // apart) * slot,), DType.Float32)
    params = [
        depth, columns, *x.shape[2:], height, width, down, across, tiles, block,
        count, 1, count, padding[0][0], padding[1][0], *_steps(x), slot, apart, *_steps(out),
    ]  # fmt: skip
    for view, reach in zip(operands, kernel.finish.operands, strict=True):
        params += _steps(view) if reach == "full" else []
    zeros = low.constant(np.zeros(depth, np.float32))
    grain = GRAIN // max(kernel.products * block * depth * tile.vectors * lanes, 1)
    low.kernel(label, kernel, [x, zeros, packed, scratch, *operands, out], params, items, grain)


def _steps(view: View) -> list[int]:
    """Strides of images, lines and pixels."""
    return [view.strides[0], view.strides[2], view.strides[3]]
