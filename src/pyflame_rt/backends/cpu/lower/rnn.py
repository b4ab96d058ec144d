"""Recurrent layers of few sequences: a generated kernel; others become their steps (:mod:`.rnn_timesteps`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyflame_rt.backends.cpu.lower.lowering import Lowering, lowers
from pyflame_rt.backends.cpu.lower.rnn_sequences import generated_layer, takes_generated
from pyflame_rt.graph import DType
from pyflame_rt.ops.onnx.rnn import GRU, LSTM

if TYPE_CHECKING:
    from pyflame_rt.opt.specialized_graph import SpecializedGraph, SpecializedNode

__all__: list[str] = []


def _odd_form(graph: SpecializedGraph, step: SpecializedNode) -> str:
    a, (x, *weights, lengths) = step.attributes, (*step.node.inputs, *[""] * 5)[:5]
    if a["activations"] or a["clip"] or a["layout"] or a.get("input_forget"):
        return "activations, clip, layout or coupled gates other than the usual"
    if graph.dtype(x) is not DType.Float32:
        return "a recurrent layer of another type than float32"
    if any(step.node.inputs[7:]):
        return "peepholes"
    steps, batch, _ = graph.shape(x)
    if lengths and (lengths not in graph.constants or (graph.constants[lengths] != steps).any()):
        return "sequences of different lengths"
    if not steps or not batch:
        return "an empty sequence"
    if not takes_generated(step, batch):
        return "many sequences, or a GRU whose reset comes before its product: its steps are quicker"
    varying = any(name not in graph.constants for name in weights if name)
    return "weights or a bias that are not constant" if varying else ""


@lowers(LSTM, GRU, refuses=_odd_form)
def recurrent_layer(low: Lowering, step: SpecializedNode) -> None:
    """One layer in one or both directions, with the usual activations."""
    generated_layer(low, step, low.dense(step.node.inputs[0]))
