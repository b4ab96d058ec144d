"""Recurrent layers: library primitives over whole sequences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.backends.cpu.lower.lowering import Lowering, NotNative, lowers
from pyflame_rt.backends.cpu.lower.rnn_sequences import generated_layer, takes_generated
from pyflame_rt.backends.cpu.memory.buffer_views import View, contiguous_strides
from pyflame_rt.backends.cpu.memory.constants import pack
from pyflame_rt.backends.cpu.onednn import recurrent
from pyflame_rt.backends.cpu.onednn.api import OneDnnError
from pyflame_rt.backends.cpu.onednn.memory import MemDesc
from pyflame_rt.graph import DType

if TYPE_CHECKING:
    from pyflame_rt.backends.cpu.graph.specialize import SpecializedNode
    from pyflame_rt.backends.cpu.onednn.primitive import Primitive

__all__: list[str] = []

# Where the library wants ONNX's gates.
_LSTM_GATES = [0, 2, 3, 1]  # input, output, forget, cell -> input, forget, cell, output
_GRU_GATES = [0, 1, 2]
_DIRECTIONS = {"forward": "left2right", "reverse": "right2left", "bidirectional": "bidirectional_concat"}


@lowers("LSTM", "GRU")
def recurrent_layer(low: Lowering, step: SpecializedNode) -> None:
    """One layer in one or both directions, with the usual activations."""
    _refuse_odd_forms(low, step)
    x = low.dense(step.node.inputs[0])
    if takes_generated(step, x):
        generated_layer(low, step, x)
        return
    weights = [_constant(low, step, i) for i in (1, 2)]
    try:
        _layer(low, step, x, weights, _bias(low, step))
    except OneDnnError as error:
        raise NotNative(str(error)) from error


def _refuse_odd_forms(low: Lowering, step: SpecializedNode) -> None:
    a = step.attributes
    if a["activations"] or a["clip"] or a["layout"] or a.get("input_forget"):
        raise NotNative("activations, clip, layout or coupled gates other than the usual")
    if low.concrete.dtype(step.node.inputs[0]) is not DType.Float32:
        raise NotNative("a recurrent layer of another type than float32")
    if _input(step, 7):
        raise NotNative("peepholes")
    lengths = _input(step, 4)
    steps, batch, _ = low.concrete.shape(step.node.inputs[0])
    if lengths:
        array = low.constant_of(lengths)
        if array is None or (array != steps).any():
            raise NotNative("sequences of different lengths")
    if not steps or not batch:
        raise NotNative("an empty sequence")


def _input(step: SpecializedNode, i: int) -> str:
    return step.node.inputs[i] if len(step.node.inputs) > i else ""


def _constant(low: Lowering, step: SpecializedNode, i: int) -> np.ndarray[Any, Any]:
    array = low.constant_of(step.node.inputs[i])
    if array is None:
        raise NotNative("weights that are not constant")
    order = _LSTM_GATES if step.op.name == "LSTM" else _GRU_GATES
    directions, rows, depth = array.shape
    gates = array.reshape(directions, len(order), rows // len(order), depth)[:, order]
    return np.ascontiguousarray(gates.transpose(0, 3, 1, 2))[None]  # layer, direction, input, gate, hidden


def _bias(low: Lowering, step: SpecializedNode) -> np.ndarray[Any, Any]:
    order = _LSTM_GATES if step.op.name == "LSTM" else _GRU_GATES
    directions, rows, hidden = low.concrete.shape(step.node.inputs[2])
    name = _input(step, 3)
    array = low.constant_of(name) if name else np.zeros((directions, 2 * rows), np.float32)
    if array is None:
        raise NotNative("a bias that is not constant")
    halves = array.reshape(directions, 2, len(order), hidden)[:, :, order]
    if step.attributes.get("linear_before_reset"):
        joined = halves.sum(1)
        joined[:, 2] = halves[:, 0, 2]
        return np.ascontiguousarray(np.concatenate([joined, halves[:, 1, 2:3]], axis=1))[None]
    return np.ascontiguousarray(halves.sum(1))[None]


def _layer(
    low: Lowering, step: SpecializedNode, x: View, weights: list[np.ndarray[Any, Any]], bias: np.ndarray[Any, Any]
) -> None:
    steps, batch, _ = x.shape
    directions, hidden = weights[0].shape[1], weights[0].shape[-1]
    state = (1, directions, batch, hidden)
    is_lstm = step.op.name == "LSTM"
    given = {"src_iter": _state(low, _input(step, 5), state)}
    if is_lstm:
        given["src_iter_c"] = _state(low, _input(step, 6), state)
    out = low.new((steps, batch, directions * hidden), DType.Float32)
    made = {"dst_iter": low.new(state, DType.Float32)}
    if is_lstm:
        made["dst_iter_c"] = low.new(state, DType.Float32)
    primitive = _primitive(step, x, weights, bias, out, given, made)
    args = {"src_layer": x, **given, **made, "dst_layer": out, "bias": low.constant(bias)}
    for name, array in zip(("weights_layer", "weights_iter"), weights, strict=True):
        wanted = primitive.args[name]
        like = View(x.buffer, DType.Float32, array.shape, ())
        args[name] = low.constant(pack(array, wanted), wanted, like)
    low.primitive(step.op.name, primitive, args)
    _hand_out(low, step, out, [made[n] for n in ("dst_iter", "dst_iter_c") if n in made], (directions, hidden))


def _state(low: Lowering, name: str, shape: tuple[int, ...]) -> View:
    if not name:
        return low.constant(np.zeros(shape, np.float32))
    view = low.dense(name).reshaped(shape)
    assert view is not None
    return view


def _primitive(
    step: SpecializedNode,
    x: View,
    weights: list[np.ndarray[Any, Any]],
    bias: np.ndarray[Any, Any],
    out: View,
    given: dict[str, View],
    made: dict[str, View],
) -> Primitive:
    layer, recurrence = (MemDesc(w.shape, "f32", "any") for w in weights)
    options: dict[str, Any] = {name: MemDesc(v.shape, "f32") for name, v in {**given, **made}.items()}
    options |= {"bias": MemDesc(bias.shape, "f32"), "direction": _DIRECTIONS[step.attributes["direction"]]}
    ends = MemDesc(x.shape, "f32"), layer, recurrence, MemDesc(out.shape, "f32")
    if step.op.name == "LSTM":
        return recurrent.lstm(*ends, **options)
    return recurrent.gru(*ends, linear_before_reset=bool(step.attributes["linear_before_reset"]), **options)


def _hand_out(low: Lowering, step: SpecializedNode, out: View, states: list[View], sizes: tuple[int, int]) -> None:
    """ONNX keeps directions as an axis of their own, the library side by side."""
    directions, hidden = sizes
    steps, batch, width = out.shape
    strides = (batch * width, hidden, width, 1)
    shape = (steps, directions, batch, hidden)
    views = [View(out.buffer, out.dtype, shape, strides)]
    views += [View(s.buffer, s.dtype, s.shape[1:], contiguous_strides(s.shape[1:])) for s in states]
    for name, view in zip(step.node.outputs, views, strict=False):
        if name:
            low.places[name] = view
