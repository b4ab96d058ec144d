"""Statistics of channels, and the sums that gradients of normalisations need: columns of a matrix."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from pyflame_rt.backends.cpu.ir.kernel_program import (
    Map,
    Reduce,
    Reduction,
    Scalar,
    Stage,
    Store,
    apply,
    const,
    count,
    load,
    scalar,
)
from pyflame_rt.backends.cpu.jit.target import host
from pyflame_rt.backends.cpu.kernels.tiles.column_sums import ColumnsKernel, FoldKernel, Kind
from pyflame_rt.backends.cpu.lower.convolution import channels_last
from pyflame_rt.backends.cpu.lower.loop_nests import row_step
from pyflame_rt.backends.cpu.lower.lowering import PIECES, Lowering, NotNative, lowers
from pyflame_rt.backends.cpu.lower.tiled_products import as_rows
from pyflame_rt.graph import DType
from pyflame_rt.ops.onnx.norm import BatchNormSums, BatchStatistics, LayerNormGrad

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyflame_rt.backends.cpu.memory.buffer_views import View
    from pyflame_rt.opt.specialized_graph import SpecializedNode

__all__: list[str] = []

BLOCK_FLOATS = 16_384  # of the rows of a block: half of a first-level cache of 128 KB, or an eighth of a second


@lowers(BatchStatistics)
def batch_statistics(low: Lowering, step: SpecializedNode) -> None:
    """Mean and variance of every channel."""
    _sums(low, step.op.name, "moments", [_pixels(low, step.node.inputs[0])], step.node.outputs)


@lowers(BatchNormSums)
def batch_norm_sums(low: Lowering, step: SpecializedNode) -> None:
    """The sum of a gradient, and that of its products with deviations from the mean."""
    gradient, data, mean = step.node.inputs
    operands = [_pixels(low, gradient), _pixels(low, data), low.dense(mean)]
    _sums(low, step.op.name, "products", operands, step.node.outputs)


def _pixels(low: Lowering, name: str) -> View:
    """A value [batch, channels, ...] as rows of channels."""
    shape = low.concrete.shape(name)
    if low.concrete.dtype(name) is not DType.Float32 or not math.prod(shape) or len(shape) not in (2, 4):
        raise NotNative("not channels of float32 in a batch of rows or images")
    view = channels_last(low, name) if len(shape) == 4 else low.strided(name)
    if len(shape) == 4:
        view = view.permuted([0, 2, 3, 1])
    flat = view.reshaped((math.prod(view.shape[:-1]), view.shape[-1]))
    if flat is None or (flat.strides[1] != 1 and flat.shape[1] != 1):
        flat = low.copied(view).reshaped((math.prod(view.shape[:-1]), view.shape[-1]))
        assert flat is not None
    return flat


@lowers(LayerNormGrad)
def layer_norm_grad(low: Lowering, step: SpecializedNode) -> None:
    """A pass along the rows for the input's gradient, one down the columns for those of scale and shift."""
    names = step.node.inputs
    shape = low.concrete.shape(names[1])
    axis = step.attributes["axis"] % len(shape)
    rows, columns = math.prod(shape[:axis]), math.prod(shape[axis:])
    if low.concrete.dtype(names[1]) is not DType.Float32 or rows < 2 or not columns:
        raise NotNative("not several rows of float32")
    g, x = (as_rows(low, low.strided(n), rows, columns) for n in names[:2])
    scale = as_rows(low, low.strided(names[2]), 1, columns)
    dx = low.new((rows, columns), DType.Float32)
    kept = [low.new((rows,), DType.Float32) for _ in range(2)]
    each = [replace(v, shape=(rows, columns), strides=(1, 0)) for v in kept]
    views = [x, g, scale.broadcast((rows, columns)), dx, *each]
    row_step(low, step.op.name, views, 3, _slope_stages(step.attributes["epsilon"]))
    wanted = [*step.node.outputs[1:], "", ""][1::-1]
    if any(wanted):
        _sums(low, step.op.name, "rows", [g, x, *kept], wanted)
    for name, view, sizes in ((step.node.outputs[0], dx, shape), *((n, None, shape[axis:]) for n in wanted)):
        if name:
            found = low.places[name] if view is None else view
            low.places[name] = found.reshaped(sizes) or found


def _slope_stages(epsilon: float) -> list[Stage]:
    """Stages over x, g, scale: dx, and the mean and inverse deviation of each row."""
    x, g, scale = (load(k, "float32") for k in range(3))
    away = apply("sub", x, scalar("mean"))
    plain, scaled = apply("mul", away, scalar("inverse")), apply("mul", g, scale)
    variance = apply("div", scalar("squares"), count())
    root = apply("sqrt", apply("add", variance, const(epsilon)))
    rest = apply("sub", apply("sub", scaled, scalar("level")), apply("mul", plain, scalar("slope")))
    return [
        Reduce((Reduction("sum", "sum", x),)),
        Scalar("mean", apply("div", scalar("sum"), count()), 4),
        Reduce((Reduction("squares", "sum", apply("mul", away, away)),)),
        Scalar("inverse", apply("reciprocal", root), 5),
        Reduce((Reduction("first", "sum", scaled), Reduction("second", "sum", apply("mul", scaled, plain)))),
        Scalar("level", apply("div", scalar("first"), count())),
        Scalar("slope", apply("div", scalar("second"), count())),
        Map((Store(3, apply("mul", rest, scalar("inverse"))),)),
    ]


def _sums(low: Lowering, label: str, kind: Kind, operands: list[View], names: Sequence[str]) -> None:
    rows, columns = operands[0].shape
    block = max(8, BLOCK_FLOATS // columns)
    blocks = -(-rows // block)
    partial = low.new((blocks, 2, columns), DType.Float32)
    strides = [v.strides[0] for v in operands[:2] if len(v.shape) == 2]
    params = [rows, columns, block, *strides, *[0] * (2 - len(strides))]
    low.kernel(label, ColumnsKernel(kind), [*operands, partial], params, blocks, 2, PIECES)
    results = [low.new((columns,), DType.Float32) for _ in range(2)]
    groups = -(-columns // host().lanes(4))
    low.kernel(label, FoldKernel(kind), [partial, *results], params, groups, max(1, 65_536 // (blocks * 8)))
    for name, view in zip(names, results, strict=True):
        if name:
            low.places[name] = view
