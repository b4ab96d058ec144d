"""Products with constant weights by generated register-tiled kernels, and what tiled kernels share."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyflame_rt.backends.cpu.ir.kernel_program import (
    Expr,
    apply,
    load,
    ordered,
    shared,
    walk,
)
from pyflame_rt.backends.cpu.jit.target import host
from pyflame_rt.backends.cpu.kernels.tiles.products import ProductKernel
from pyflame_rt.backends.cpu.kernels.tiles.register_tile import GROUP, Finish, Reach, Tile, tile_for
from pyflame_rt.backends.cpu.lower.loop_nests import external_names, group_values
from pyflame_rt.backends.cpu.lower.lowering import Lowering, NotNative
from pyflame_rt.backends.cpu.memory.packed_weights import (
    grouped_panels,
    kept_of_group,
    kept_steps,
    listed_panels,
    panels,
)
from pyflame_rt.graph import DType
from pyflame_rt.graph.records import dataclass
from pyflame_rt.ops.onnx.matmul import Gemm
from pyflame_rt.opt.traced_sizes import least, most

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from pyflame_rt.backends.cpu.graph.groups import Group
    from pyflame_rt.backends.cpu.memory.buffer_views import View
    from pyflame_rt.opt.specialized_graph import SpecializedNode

__all__ = [
    "GRAIN",
    "MAX_DEPTH",
    "PIECES",
    "Ending",
    "apart_of",
    "as_rows",
    "block_of",
    "dense",
    "ending_of",
    "label_of",
    "nodes_of",
    "packed_step",
    "product_step",
    "reach_of",
    "row_operand",
]

# Multiplications a thread must have to be worth waking, some five microseconds.
GRAIN = 300_000
# Floats of a block of rows: half of a second-level cache of 512 KB.
BLOCK_FLOATS = 65_536
SHORT = 256  # rows that are one block
MAX_DEPTH = 16_384
MANY_ITEMS = 1024
# Panels that keep more of their steps than this are quicker whole (benchmarks/sparse.py).
MOST_KEPT = 0.5
# Rows from which on one and two weights of four are quicker than all of them (benchmarks/sparse.py: 1.5 to 2.2 times
# and 1.03 to 1.10 times; with fewer rows two of four gain 2 %, which is left to dense).
FEWEST_ROWS = {1: 2, 2: 32}
GROUPED_LANES = 16
PIECES = 32  # of a product a thread may have: the fewer, the longer one waits for another that was delayed


@dataclass(frozen=True)
class Ending:
    """What follows a product: the values it reads and the expression; load(0) is the product."""

    names: tuple[str, ...]
    finish: Finish


def label_of(step: SpecializedNode, group: Group | None) -> str:
    """Names of the operators a step does."""
    names = [step.op.name, *(s.op.name for s in (group.steps if group is not None else ()))]
    return "+".join(names)


def nodes_of(step: SpecializedNode, group: Group | None) -> list[str]:
    """Names of the nodes a step does."""
    return [step.node.name, *(s.node.name for s in (group.steps if group is not None else ()))]


def ending_of(
    low: Lowering,
    step: SpecializedNode,
    group: Group | None,
    bias: str,
    axis: int,
    *,
    single: bool = False,
    bias_reach: Reach = "column",
) -> Ending:
    """The bias and the loop as one expression; ``axis`` is the one along which weights make columns.

    Where the kernel takes them, operands may be ``single`` numbers, and the bias of another reach than a column.
    """
    product = step.node.outputs[0]
    shape = low.concrete.shape(product)
    names, reaches = [], []
    value: Expr = load(0, "float32")
    more: list[Expr] = []
    if bias:
        names.append(bias)
        reaches.append(bias_reach)
        value = apply("add", value, load(1, "float32"))
    if group is not None:
        if group.shape != shape or low.concrete.dtype(group.steps[-1].node.outputs[0]) is not DType.Float32:
            raise NotNative("the loop widens the product or changes its type")
        loads = {product: value}
        for name in external_names(low, group):
            if name == product:
                continue
            names.append(name)
            reaches.append(reach_of(low, name, shape, axis, single=single))
            loads[name] = load(len(names), "float32")
        values = group_values(low, group, loads)
        value, *more = (values[name] for name in (group.steps[-1].node.outputs[0], *group.extra))
        if any(node.dtype not in ("float32", "bool") for node in walk([value, *more])):
            raise NotNative("the loop computes in another type than float32")
    if more:
        value, *more = ordered(shared(Expr("several", "float32", (value, *more)))).args
        return Ending(tuple(names), Finish(value, tuple(reaches), tuple(more)))
    finish = Finish(ordered(value) if names or group is not None else None, tuple(reaches))
    return Ending(tuple(names), finish)


def reach_of(low: Lowering, name: str, shape: tuple[int, ...], axis: int, *, single: bool = False) -> Reach:
    """How an operand of the loop goes with a result of that shape."""
    if low.concrete.dtype(name) is not DType.Float32:
        raise NotNative("an operand of another type than float32")
    sizes = low.concrete.shape(name)
    padded = (1,) * (len(shape) - len(sizes)) + sizes
    if padded == shape:
        return "full"
    if all(n == 1 or i == axis for i, n in enumerate(padded)) and padded[axis] == shape[axis]:
        return "column"
    if single and all(n == 1 for n in padded):
        return "single"
    raise NotNative("an operand that broadcasts in another way than one number for each column")


# ---------------------------------------------------------------------- dense layers


def dense(low: Lowering, step: SpecializedNode, group: Group | None = None) -> View:
    """Lower a product, with the loop that alone reads it; NotNative where the library does better."""
    source, name, *rest = step.node.inputs
    weights = low.weights_of(name)
    if weights is None:
        from pyflame_rt.backends.cpu.lower.gemm import moving

        return moving(low, step, group)
    if weights.ndim != 2 or low.concrete.dtype(name) is not DType.Float32 or not weights.size:
        raise NotNative("weights that are not a matrix of float32")
    shape = low.concrete.shape(step.node.outputs[0])
    if low.concrete.dtype(source) is not DType.Float32 or len(low.concrete.shape(source)) < 2:
        raise NotNative("not rows of float32")
    transposed = False
    if step.op is Gemm:
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
    reach = reach_of(low, bias, shape, len(shape) - 1, single=True) if bias else "column"
    label = label_of(step, group)
    case = f"{label} {rows}x{depth}x{width}"
    ending = ending_of(low, step, group, bias, len(shape) - 1, single=True, bias_reach=reach)
    if low.choices.pick(case, ("tiles", "library"), *nodes_of(step, group)) == "library":
        raise low.left_to_library(step)
    x = as_rows(low, low.strided(source), rows, depth)
    operands = [
        row_operand(low, n, r, (rows, width)) for n, r in zip(ending.names, ending.finish.operands, strict=True)
    ]
    out = low.new((rows, width), DType.Float32)
    product_step(low, label, x, matrix, operands, ending.finish, out)
    return out.reshaped(shape) or out


def as_rows(low: Lowering, view: View, rows: int, depth: int) -> View:
    """A value as rows with elements next to each other."""
    flat = view.reshaped((rows, depth))
    if flat is None or (flat.strides[1] != 1 and depth != 1):
        flat = low.copied(view).reshaped((rows, depth))
        assert flat is not None
    return flat


def row_operand(low: Lowering, name: str, reach: Reach, shape: tuple[int, int]) -> View:
    """An operand of the finish, as rows."""
    view = low.strided(name)
    if reach == "full":
        return as_rows(low, view, *shape)
    return as_rows(low, view, 1, 1 if reach == "single" else shape[1])


def product_step(
    low: Lowering,
    label: str,
    x: View,
    matrix: np.ndarray[Any, Any],
    operands: list[View],
    finish: Finish,
    out: View,
) -> None:
    """The step that multiplies rows by packed weights."""
    columns = tile_for(host(), out.shape[1]).vectors * host().lanes(4)
    kept = None if low.choices.strict else kept_steps(matrix, columns)
    if kept is None:
        packed_step(low, label, x, low.constant(panels(matrix, columns)), operands, finish, out)
        return
    share = float(kept.mean())
    if share <= MOST_KEPT:
        steps, table = listed_panels(matrix, columns, kept)
        label = f"{label} ({share:.0%} of the weights' panels)"
        packed_step(low, label, x, low.constant(steps), operands, finish, out, table=low.constant(table))
        return
    grouped, why = grouped_weights(matrix, x.shape[0])
    if grouped:
        packed = low.constant(grouped_panels(matrix, columns, GROUP, grouped))
        label = f"{label} ({grouped} of {GROUP} weights)"
        packed_step(low, label, x, packed, operands, finish, out, grouped=grouped)
        return
    label = f"{label} ({share:.0%} of the weights' panels, {why}, taken as dense)"
    packed_step(low, label, x, low.constant(panels(matrix, columns)), operands, finish, out)


def grouped_weights(matrix: np.ndarray[Any, Any], rows: int) -> tuple[int, str]:
    """How many weights of four are multiplied, where that is quicker than all of them; else 0, and why."""
    depth = len(matrix)
    found = kept_of_group(matrix, GROUP)
    if not 0 < found < GROUP - 1:
        return 0, f"up to {found} of {GROUP} weights"
    if host().lanes(4) != GROUPED_LANES:
        return 0, f"{found} of {GROUP} weights, for which AVX-512 has instructions"
    if depth % GROUP:
        return 0, f"{found} of {GROUP} weights, but a depth of {depth}"
    if rows < FEWEST_ROWS[found]:
        return 0, f"{found} of {GROUP} weights, no quicker with fewer than {FEWEST_ROWS[found]} rows"
    return found, ""


def packed_step(
    low: Lowering,
    label: str,
    x: View,
    packed: View,
    operands: list[View],
    finish: Finish,
    out: View,
    block: int = 0,
    *,
    more: Sequence[View] = (),
    table: View | None = None,
    grouped: int = 0,
) -> None:
    """The step that multiplies rows by a matrix in panels; ``block`` rows share a panel, or as many as is usual.

    With a ``table`` the panels have only the steps of the depth that it lists; with ``grouped``, so many weights of
    each four steps and their places.

    ``more`` results of the finish lie as ``out``. Rows may be in panels too, by the depth and number of columns of a
    tile: then ``x`` has three axes.
    """
    depth, (rows, width) = x.shape[1], out.shape
    tile = replace(tile_for(host(), width), weights=packed.dtype.label)
    columns = tile.vectors * host().lanes(4)
    block = block or block_of(rows, depth, tile)
    blocks, count = -(-rows // block), -(-width // columns)
    params = [rows, width, depth, block, blocks, x.strides[0], out.strides[0]]
    params += [o.strides[0] for o, r in zip(operands, finish.operands, strict=True) if r == "full"]
    deep = depth if table is None else -(-packed.shape[0] // count)
    deep = deep * grouped // GROUP if grouped else deep
    grain = GRAIN // most(least(block, rows) * deep * columns, 1)
    kernel = ProductKernel("rows" if len(x.shape) == 2 else "panels", tile, finish, table is not None, grouped)
    weights = [packed] if table is None else [packed, table]
    low.kernel(label, kernel, [x, *weights, *operands, out, *more], params, blocks * count, grain, PIECES)


def apart_of(low: Lowering, items: int) -> int:
    """How many items calls under way at the same time begin apart at least.

    The driver makes one call for each thread, and moves where calls begin down to multiples of 64 when items are many.
    """
    return max(1, items // low.threads - (64 if items >= MANY_ITEMS else 0))


def block_of(rows: int, depth: int, tile: Tile) -> int:
    """Rows that share a panel while it is in the cache: weights come from memory once for each block."""
    if rows <= SHORT:
        return -(-rows // tile.rows) * tile.rows
    step = 2 * tile.rows
    wanted = least(max(8, BLOCK_FLOATS // (depth * step)) * step, -(-rows // step) * step)
    return -(-rows // (-(-rows // wanted) * step)) * step
