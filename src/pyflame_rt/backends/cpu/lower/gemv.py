"""Products of a single row with constant weights: generated kernels that run at the speed of memory."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from pyflame_rt.backends.cpu.ir.kernel_program import Map, Operand, RowKernel, Store, apply, load
from pyflame_rt.backends.cpu.jit.target import host
from pyflame_rt.backends.cpu.kernels.gemv import GemvKernel
from pyflame_rt.backends.cpu.kernels.tiles.register_tile import tile_for
from pyflame_rt.backends.cpu.lower.loop_nests import external_names, group_expression
from pyflame_rt.backends.cpu.lower.lowering import PIECES, Lowering, NotNative
from pyflame_rt.backends.cpu.memory.constants import resident
from pyflame_rt.backends.cpu.memory.packed_weights import panels
from pyflame_rt.graph import DType
from pyflame_rt.ops.onnx.conv import Conv
from pyflame_rt.ops.onnx.matmul import Gemm, MatMul
from pyflame_rt.ops.onnx.windows import windows

if TYPE_CHECKING:
    import numpy as np

    from pyflame_rt.backends.cpu.graph.groups import Group
    from pyflame_rt.backends.cpu.memory.buffer_views import View
    from pyflame_rt.opt.specialized_graph import SpecializedNode

__all__ = ["row_product", "takes_row_product"]

# Weights a thread must have to be worth waking: some four microseconds from the second-level cache.
GRAIN = 65_536


def takes_row_product(low: Lowering, step: SpecializedNode) -> bool:
    """Whether a step is the product of one row with constant weights."""
    if step.op not in (Conv, MatMul, Gemm):
        return False
    weights = low.weights_of(step.node.inputs[1])
    if weights is None or low.concrete.dtype(step.node.inputs[1]) is not DType.Float32 or not weights.size:
        return False
    out = low.concrete.shape(step.node.outputs[0])
    if step.op is Conv:
        return _is_pixel(low, step, weights.shape, out)
    if weights.ndim != 2 or len(out) < 2 or math.prod(out[:-1]) != 1:
        return False
    scaled = step.op is Gemm and (step.attributes["alpha"] != 1.0 or step.attributes["beta"] != 1.0)
    return not scaled


def _is_pixel(low: Lowering, step: SpecializedNode, weights: tuple[int, ...], out: tuple[int, ...]) -> bool:
    """Whether a convolution takes the channels of a single pixel, as after a pool over the whole image."""
    shape = low.concrete.shape(step.node.inputs[0])
    if math.prod(out) != out[1] or math.prod(shape) != weights[1] or math.prod(weights[2:]) != 1:
        return False
    names = ("strides", "dilations", "pads", "auto_pad")
    given = {n: step.attributes[n] for n in names if step.attributes.get(n) is not None}
    return step.attributes["group"] == 1 and not any(p[0] for p in windows(shape[2:], weights[2:], **given).padding)


def row_product(low: Lowering, step: SpecializedNode, group: Group | None = None) -> View:
    """Lower a product of one row, together with the loop that alone reads it."""
    weights: Any = low.weights_of(step.node.inputs[1])
    matrix = _matrix(step, weights)
    depth, width = matrix.shape
    columns = tile_for(host(), width).vectors * host().lanes(4)  # as products of more rows have them
    x = low.dense(step.node.inputs[0])
    if x.dtype is not DType.Float32 or x.count != depth:
        raise NotNative("not a single row of float32")
    finish, operands = _finish(low, step, group, width)
    packed = low.constant(resident(panels(matrix, columns)))
    shape = low.concrete.shape(step.node.outputs[0]) if group is None else group.shape
    out = low.new(shape, DType.Float32)
    low.kernel(
        "+".join([step.op.name, *(s.op.name for s in (group.steps if group is not None else ()))]),
        GemvKernel(columns, finish, packed.dtype.label),
        [x, packed, *operands, out],
        [depth, width],
        -(-width // columns),
        GRAIN // (depth * columns),
        PIECES,
    )
    return out


def _matrix(step: SpecializedNode, weights: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Weights by depth and column."""
    if step.op is Conv:
        return weights.reshape(weights.shape[:2]).T
    return weights.T if step.op is Gemm and step.attributes["transB"] else weights


def _finish(
    low: Lowering, step: SpecializedNode, group: Group | None, width: int
) -> tuple[RowKernel | None, list[View]]:
    """What follows the sums, and the values it reads."""
    product = step.node.outputs[0]
    bias = [n for n in step.node.inputs[2:3] if n]
    others = [] if group is None else [n for n in external_names(low, group) if n != product]
    if not bias and group is None:
        return None, []
    if group is not None and (math.prod(group.shape) != width or _result_type(low, group) is not DType.Float32):
        raise NotNative("the loop widens the product or changes its type")
    names = [*bias, *others]
    views = [low.dense(n) for n in names]
    operands = [_operand(v, width) for v in views]
    loads = [load(i, o.dtype) for i, o in enumerate(operands)]
    value = load(len(views), "float32")
    if bias:
        value = apply("add", value, loads[0])
    if group is not None:
        value = group_expression(low, group, {**dict(zip(others, loads[len(bias) :], strict=True)), product: value})
    stage = Map((Store(len(views), value),))
    return RowKernel(0, tuple(operands), (Operand("float32"),), (stage,)), views


def _result_type(low: Lowering, group: Group) -> DType:
    return low.concrete.dtype(group.steps[-1].node.outputs[0])


def _operand(view: View, width: int) -> Operand:
    if view.count == 1:
        return Operand(view.dtype.label, "zero")
    if view.count != width:
        raise NotNative("an operand that is neither one number nor a row")
    return Operand(view.dtype.label)
