"""The steps of recurrent layers with weights that are not constant, and their gradients: generated kernels."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.backends.cpu.jit.target import host
from pyflame_rt.backends.cpu.kernels.gru_reset_steps import GruResetSteps
from pyflame_rt.backends.cpu.kernels.quantized_lstm import RoundedSteps, by_fours
from pyflame_rt.backends.cpu.kernels.rnn_timesteps import GATES, BackwardSteps, ForwardSteps, PanelKernel, panel_width
from pyflame_rt.backends.cpu.lower.lowering import Lowering, NotNative, lowers
from pyflame_rt.graph import DType
from pyflame_rt.ops.microsoft.block_weights import RoundedLSTMSteps
from pyflame_rt.ops.onnx.rnn import LSTM, RNN
from pyflame_rt.ops.pyflame.recurrence import (
    GRUResetSteps,
    GRUSteps,
    GRUStepsGrad,
    LSTMSteps,
    LSTMStepsGrad,
    RNNSteps,
    RNNStepsGrad,
)

if TYPE_CHECKING:
    from pyflame_rt.backends.cpu.kernels.rnn_timesteps import Cell, Element
    from pyflame_rt.backends.cpu.memory.buffer_views import View
    from pyflame_rt.opt.specialized_graph import SpecializedGraph, SpecializedNode

__all__: list[str] = []

_ELEMENTS: dict[DType, Element] = {DType.Float32: "float", DType.Float64: "double"}


def _other_type(graph: SpecializedGraph, step: SpecializedNode) -> str:
    dtype = graph.dtype(step.node.inputs[0])
    return "" if dtype in _ELEMENTS else f"steps of a recurrent layer in {dtype.label}"


def _element(low: Lowering, name: str) -> Element:
    return _ELEMENTS[low.concrete.dtype(name)]


def _optional(step: SpecializedNode, i: int) -> str:
    return step.node.inputs[i] if len(step.node.inputs) > i else ""


def _cell(step: SpecializedNode) -> Cell:
    if step.op.name.startswith(RNN.name):
        return "tanh" if step.attributes["activation"] == "tanh" else "relu"
    return "lstm" if step.op.name.startswith(LSTM.name) else "gru"


def _sequence(low: Lowering, name: str) -> View:
    """A value [steps, batch, width] whose last axis is contiguous."""
    view = low.strided(name)
    return view if view.strides[-1] == 1 or view.shape[-1] == 1 else low.copied(view)


def _packed(low: Lowering, weights: View, elem: Element, *, turned: bool) -> View:
    """Weights [directions, rows, hidden] in panels, as they are or each matrix turned."""
    directions, rows, hidden = weights.shape
    depth, columns = (hidden, rows) if turned else (rows, hidden)
    width = panel_width(elem)
    panels = -(-columns // width)
    out = low.new((directions, panels, depth, width), weights.dtype)
    strides = (1, hidden) if turned else (hidden, 1)
    params = [depth, columns, *strides, weights.strides[0], panels]
    low.kernel(
        "pack", PanelKernel(elem), [weights, out], params, directions * panels, max(1, 16_384 // (depth * width))
    )
    return out


def _check(low: Lowering, step: SpecializedNode, like: str) -> tuple[int, int, int, int]:
    """Steps, hidden, batch and directions."""
    steps, batch, _ = low.concrete.shape(like)
    directions, _, hidden = low.concrete.shape(step.node.inputs[1 if _is_forward(step) else 0])
    if not steps or not batch or not hidden:
        raise NotNative("an empty sequence")
    return steps, hidden, batch, directions


def _is_forward(step: SpecializedNode) -> bool:
    return not step.op.name.endswith("Grad")


def _backwards(step: SpecializedNode) -> int:
    return int(step.attributes["direction"] == "reverse")


def _hand_out(low: Lowering, step: SpecializedNode, made: list[View]) -> None:
    for name, view in zip(step.node.outputs, made, strict=False):
        if name:
            low.places[name] = view


@lowers(LSTMSteps, GRUSteps, RNNSteps, refuses=_other_type)
def forward_steps(low: Lowering, step: SpecializedNode) -> None:
    """One kernel over all steps."""
    names, cell = step.node.inputs, _cell(step)
    elem, sizes = _element(low, names[0]), _check(low, step, names[0])
    steps, hidden, batch, directions = sizes
    gates, panels = _sequence(low, names[0]), _packed(low, low.dense(names[1]), elem, turned=True)
    dtype = gates.dtype
    addend = low.dense(names[2]) if cell == "gru" else panels
    first = low.dense(names[3 if cell == "gru" else 2])
    first_cell = low.dense(names[3]) if cell == "lstm" else first
    y, last = low.new((steps, batch, directions * hidden), dtype), low.new((directions, batch, hidden), dtype)
    last_cell = low.new(last.shape, dtype) if cell == "lstm" else last
    saved = low.new((steps, batch, directions * 4 * hidden), dtype) if cell in ("lstm", "gru") else y
    cells = low.new(y.shape, dtype) if cell == "lstm" else y
    room = low.new((directions, batch, GATES[cell] * hidden), dtype) if cell in ("lstm", "gru") else y
    views = [gates, panels, addend, first, first_cell, y, last, last_cell, saved, cells, room]
    params = [*sizes, _backwards(step), *gates.strides[:2]]
    low.kernel(step.op.name, ForwardSteps(cell, elem), views, params, directions * batch, 1)
    made = {"lstm": [y, last, last_cell, saved, cells], "gru": [y, last, saved]}.get(cell, [y, last])
    _hand_out(low, step, made)


@lowers(GRUResetSteps, refuses=_other_type)
def reset_steps(low: Lowering, step: SpecializedNode) -> None:
    """One kernel over all steps, with the weights of the new state in panels of their own."""
    names = step.node.inputs
    elem, sizes = _element(low, names[0]), _check(low, step, names[0])
    steps, hidden, batch, directions = sizes
    gates, weights = _sequence(low, names[0]), low.dense(names[1])
    parts = [replace(weights, shape=(directions, 2 * hidden, hidden))]
    parts += [replace(weights, shape=(directions, hidden, hidden), offset=weights.offset + 2 * hidden * hidden)]
    panels = [_packed(low, part, elem, turned=True) for part in parts]
    y = low.new((steps, batch, directions * hidden), gates.dtype)
    last = low.new((directions, batch, hidden), gates.dtype)
    room = low.new((directions, batch, 3 * hidden), gates.dtype)
    views = [gates, *panels, low.dense(names[2]), y, last, room]
    params = [*sizes, _backwards(step), *gates.strides[:2]]
    low.kernel(step.op.name, GruResetSteps(elem), views, params, directions * batch, 1)
    _hand_out(low, step, [y, last])


@lowers(LSTMStepsGrad, GRUStepsGrad, RNNStepsGrad, refuses=_other_type)
def backward_steps(low: Lowering, step: SpecializedNode) -> None:
    """One kernel over all steps, last to first."""
    names, cell = step.node.inputs, _cell(step)
    places = {"lstm": (1, 2, 3, 4), "gru": (1, 3, 2, 4)}.get(cell, (1, 1, 1, 2))
    start, saved_at, states_at, given_at = places
    elem, sizes = _element(low, names[0]), _check(low, step, names[states_at])
    steps, hidden, batch, directions = sizes
    if any(_optional(step, i) for i in range(given_at + (3 if cell == "lstm" else 2), len(names))):
        raise NotNative("a gradient of what is saved: only the body has that")
    panels = _packed(low, low.dense(names[0]), elem, turned=False)
    first = low.dense(names[start]) if cell in ("lstm", "gru") else panels
    saved, states = low.dense(names[saved_at]), low.dense(names[states_at])
    dtype, state = states.dtype, (directions, batch, hidden)
    dy = _optional(step, given_at)
    given = _sequence(low, dy) if dy else saved
    dh = _state(low, _optional(step, given_at + 1), state, dtype)
    dc = _state(low, _optional(step, given_at + 2), state, dtype) if cell == "lstm" else dh
    wide = (steps, batch, directions * GATES[cell] * hidden)
    dgates = low.new(wide, dtype)
    recurrent = low.new(wide, dtype) if cell == "gru" else dgates
    dfirst = low.new(state, dtype)
    dcell = low.new(state, dtype) if cell == "lstm" else dfirst
    views = [panels, first, saved, states, given, dh, dc, dgates, recurrent, dfirst, dcell]
    params = [*sizes, _backwards(step), *given.strides[:2]]
    low.kernel(step.op.name, BackwardSteps(cell, elem, bool(dy)), views, params, directions * batch, 1)
    made = {"lstm": [dgates, dfirst, dcell], "gru": [dgates, recurrent, dfirst]}.get(cell, [dgates, dfirst])
    _hand_out(low, step, made)


def _state(low: Lowering, name: str, shape: tuple[int, ...], dtype: DType) -> View:
    if name:
        return low.dense(name)
    return replace(low.constant(np.zeros(shape, dtype.numpy)), dtype=dtype)


# ---------------------------------------------------------------------- quantized weights


@lowers(RoundedLSTMSteps)
def rounded_steps(low: Lowering, step: SpecializedNode) -> None:
    """One kernel over all steps, a direction a thread."""
    names = step.node.inputs
    if low.concrete.dtype(names[0]) is not DType.Float32:
        raise NotNative("quantized steps of another type than float32")
    given = [low.constant_of(name) for name in names[1:4]]
    if any(array is None for array in given):
        raise NotNative("quantized weights that are not constant")
    weights, scales = _whole_numbers(*given)
    steps, batch, _ = low.concrete.shape(names[0])
    directions, hidden, _ = low.concrete.shape(names[1])
    if not steps or not batch or not hidden:
        raise NotNative("an empty sequence")
    gates, firsts = _sequence(low, names[0]), [low.dense(name) for name in names[4:6]]
    y, dtype = low.new((steps, batch, directions * hidden), gates.dtype), gates.dtype
    lasts = [low.new((directions, batch, hidden), dtype) for _ in range(2)]
    padded = -(-hidden // RoundedSteps.VECTOR) * RoundedSteps.VECTOR
    wide = weights.size > 0 and not -128 <= int(weights.min()) <= int(weights.max()) <= 127
    fours = not wide and by_fours(host())
    room = low.new((directions, batch, padded), DType.UInt8 if fours else DType.Int16)
    packed = _groups(weights, padded, 4 if fours else 2).astype(np.int16 if wide else np.int8)
    views = [gates, low.constant(packed), low.constant(_blocks(scales)), *firsts, y, *lasts, room]
    if fours:
        views.append(low.constant(_blocks(weights.sum(1, dtype=np.int32, keepdims=True))))
    params = [steps, hidden, batch, directions, _backwards(step), *gates.strides[:2], padded]
    low.kernel(step.op.name, RoundedSteps(wide, fours), views, params, directions, 1)
    _hand_out(low, step, [y, *lasts])


def _whole_numbers(weights: Any, scale: Any, zero: Any) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Weights [direction, unit before, gate, unit] less their zero points, and a scale for each column."""
    directions, hidden, columns = weights.shape
    whole = (directions, 1, columns)
    zeros, scales = (a.reshape(directions, 1, -1).astype(t) for a, t in ((zero, np.int32), (scale, np.float32)))
    shifted = weights.astype(np.int32) - np.broadcast_to(zeros, whole)
    sizes = (directions, -1, columns // hidden, hidden)
    return shifted.reshape(sizes), np.broadcast_to(scales, whole).reshape(sizes)


def _blocks(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """[direction, block, unit before, gate, unit of the block], zeros beyond the last unit."""
    directions, before, gates, hidden = array.shape
    size = RoundedSteps.BLOCK
    count = -(-hidden // size)
    padded = np.zeros((directions, before, gates, count * size), array.dtype)
    padded[..., :hidden] = array
    return np.ascontiguousarray(padded.reshape(directions, before, gates, count, size).transpose(0, 3, 1, 2, 4))


def _groups(weights: np.ndarray[Any, Any], padded: int, each: int) -> np.ndarray[Any, Any]:
    """[direction, block, group of units before, gate, unit of the block, unit of the group]."""
    directions, before, gates, hidden = weights.shape
    whole = np.zeros((directions, padded, gates, hidden), weights.dtype)
    whole[:, :before] = weights
    blocked = _blocks(whole)
    directions, count, _, gates, size = blocked.shape
    return np.ascontiguousarray(
        blocked.reshape(directions, count, padded // each, each, gates, size).transpose(0, 1, 2, 4, 5, 3)
    )
