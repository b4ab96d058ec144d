"""Recurrent layers of few sequences: one product for the inputs of all steps, then a generated kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.backends.cpu.ir.kernel_program import apply, load
from pyflame_rt.backends.cpu.kernels.rnn_sequence import RecurrentKernel
from pyflame_rt.backends.cpu.kernels.tiles.register_tile import Finish
from pyflame_rt.backends.cpu.lower.tiled_products import product_step
from pyflame_rt.backends.cpu.memory.buffer_views import View, contiguous_strides
from pyflame_rt.graph import DType
from pyflame_rt.ops.onnx.matmul import MatMul
from pyflame_rt.ops.onnx.rnn import LSTM

if TYPE_CHECKING:
    from pyflame_rt.backends.cpu.lower.lowering import Lowering
    from pyflame_rt.opt.specialized_graph import SpecializedNode

__all__ = ["generated_layer", "takes_generated"]

# With more sequences a step is a product of matrices, which the library's primitive makes of it.
MAX_BATCH = 4


def takes_generated(step: SpecializedNode, batch: int) -> bool:
    """Whether the generated kernel is the faster one and knows the form."""
    return batch <= MAX_BATCH and (step.op is LSTM or bool(step.attributes["linear_before_reset"]))


def generated_layer(low: Lowering, step: SpecializedNode, x: View) -> None:
    """Lower a layer in one or both directions."""
    kernel = RecurrentKernel("lstm" if step.op is LSTM else "gru")
    steps, batch, depth = x.shape
    inner, recurrent = (_split(kernel, low.constant_of(step.node.inputs[i])) for i in (1, 2))
    directions, hidden = recurrent.shape[0], recurrent.shape[-1]
    bias, addend = _biases(kernel, low, step, (directions, hidden))
    matrix = _blocked(kernel, inner).reshape(-1, depth)  # a row for each gate of each unit
    flat = x.reshaped((steps * batch, depth))
    assert flat is not None
    gates = _product(low, flat, matrix, _blocked(kernel, bias).reshape(-1))
    packed = np.moveaxis(_blocked(kernel, recurrent), -1, 2)  # direction, block, unit before, gate, unit
    state = (directions, batch, hidden)
    firsts = [_state(low, _input(step, i), state) for i in (5, 6)]
    out = low.new((steps, batch, directions * hidden), DType.Float32)
    lasts = [low.new(state, DType.Float32) for _ in range(2 if kernel.kind == "lstm" else 1)]
    width = matrix.shape[0]
    params = [steps, hidden, batch, int(step.attributes["direction"] == "reverse")]
    params += [batch * width, width, width // directions]
    params += [batch * directions * hidden, directions * hidden, hidden]
    views = [gates, low.constant(np.ascontiguousarray(packed)), low.constant(_blocked(kernel, addend)), *firsts, out]
    views += [lasts[0], lasts[-1]]
    low.kernel(step.op.name, kernel, views, params, directions * batch, 1)
    _hand_out(low, step, out, lasts, state)


def _input(step: SpecializedNode, i: int) -> str:
    return step.node.inputs[i] if len(step.node.inputs) > i else ""


def _split(kernel: RecurrentKernel, array: np.ndarray[Any, Any] | None) -> np.ndarray[Any, Any]:
    """Direction, gate, unit, what it is multiplied with."""
    assert array is not None  # asked before
    return array.reshape(array.shape[0], kernel.gates, -1, array.shape[-1])


def _blocked(kernel: RecurrentKernel, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Direction, block, gate, unit in the block, and what follows the units; missing units are zeros."""
    size = kernel.BLOCK
    directions, gates, hidden, *rest = array.shape
    blocks = -(-hidden // size)
    padded = np.zeros((directions, gates, blocks * size, *rest), np.float32)
    padded[:, :, :hidden] = array
    return np.ascontiguousarray(padded.reshape(directions, gates, blocks, size, *rest).swapaxes(1, 2))


def _biases(
    kernel: RecurrentKernel, low: Lowering, step: SpecializedNode, sizes: tuple[int, int]
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """What is added to the inputs' part of the gates, and to the recurrent part inside a GRU's reset."""
    directions, hidden = sizes
    name = _input(step, 3)
    array = low.constant_of(name) if name else np.zeros((directions, 2 * kernel.gates * hidden), np.float32)
    assert array is not None
    halves = array.reshape(directions, 2, kernel.gates, hidden)
    joined, apart = halves.sum(1), np.zeros((directions, kernel.gates, hidden), np.float32)
    if kernel.kind == "gru":
        joined[:, 2], apart[:, 2] = halves[:, 0, 2], halves[:, 1, 2]
    return joined, apart


def _product(low: Lowering, x: View, matrix: np.ndarray[Any, Any], bias: np.ndarray[Any, Any]) -> View:
    """Rows times constant weights (a row of ``matrix`` for each column of the result), plus a bias."""
    out = low.new((x.shape[0], matrix.shape[0]), DType.Float32)
    finish = Finish(apply("add", load(0, "float32"), load(1, "float32")), ("column",))
    product_step(low, MatMul.name, x, matrix.T, [low.constant(bias.reshape(1, -1))], finish, out)
    return out


def _state(low: Lowering, name: str, shape: tuple[int, ...]) -> View:
    return low.dense(name) if name else low.constant(np.zeros(shape, np.float32))


def _hand_out(low: Lowering, step: SpecializedNode, out: View, lasts: list[View], state: tuple[int, int, int]) -> None:
    """The result lies as most readers want it, directions side by side; ONNX has them as an axis before the batch."""
    directions, batch, hidden = state
    width = directions * hidden
    shape, strides = (out.shape[0], directions, batch, hidden), (batch * width, hidden, width, 1)
    views = [View(out.buffer, out.dtype, shape, strides)]
    views += [View(v.buffer, v.dtype, state, contiguous_strides(state)) for v in lasts]
    for name, view in zip(step.node.outputs, views, strict=False):
        if name:
            low.places[name] = view
