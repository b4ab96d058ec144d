"""Statistics of channels, and the sums their gradients need: columns of a matrix of pixels."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pyflame_rt.backends.cpu.llvm.host import host
from pyflame_rt.backends.cpu.llvm.tiles.columns import ColumnsKernel, FoldKernel, Kind
from pyflame_rt.backends.cpu.plan.lower import Lowering, NotNative, lowers
from pyflame_rt.backends.cpu.plan.lower_images import channels_last
from pyflame_rt.graph import DType

if TYPE_CHECKING:
    from pyflame_rt.backends.cpu.plan.concrete import Step
    from pyflame_rt.backends.cpu.plan.views import View

__all__: list[str] = []

BLOCK_FLOATS = 16_384  # of the rows of a block: half of a first-level cache of 128 KB, or an eighth of a second


@lowers("pyflame::BatchStatistics")
def batch_statistics(low: Lowering, step: Step) -> None:
    """Mean and variance of every channel."""
    _sums(low, step, "moments", [_pixels(low, step.node.inputs[0])])


@lowers("pyflame::BatchNormSums")
def batch_norm_sums(low: Lowering, step: Step) -> None:
    """The sum of a gradient, and that of its products with deviations from the mean."""
    gradient, data, mean = step.node.inputs
    _sums(low, step, "products", [_pixels(low, gradient), _pixels(low, data), low.dense(mean)])


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


def _sums(low: Lowering, step: Step, kind: Kind, operands: list[View]) -> None:
    rows, columns = operands[0].shape
    block = max(8, BLOCK_FLOATS // columns)
    blocks = -(-rows // block)
    partial = low.new((blocks, 2, columns), DType.Float32)
    strides = [v.strides[0] for v in operands[:2] if len(v.shape) == 2]
    params = [rows, columns, block, *strides, *[0] * (2 - len(strides))]
    low.kernel(step.op.name, ColumnsKernel(kind), [*operands, partial], params, blocks, 2)
    results = [low.new((columns,), DType.Float32) for _ in range(2)]
    groups = -(-columns // host().lanes(4))
    low.kernel(step.op.name, FoldKernel(kind), [partial, *results], params, groups, max(1, 65_536 // (blocks * 8)))
    for name, view in zip(step.node.outputs, results, strict=True):
        if name:
            low.places[name] = view
