"""Recurrent layers of few sequences: a generated kernel; others become their steps (:mod:`.rnn_timesteps`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyflame_rt.backends.cpu.lower.lowering import Lowering, NotNative, lowers
from pyflame_rt.backends.cpu.lower.rnn_sequences import generated_layer, takes_generated
from pyflame_rt.graph import DType

if TYPE_CHECKING:
    from pyflame_rt.backends.cpu.graph.specialize import SpecializedNode

__all__: list[str] = []


@lowers("LSTM", "GRU")
def recurrent_layer(low: Lowering, step: SpecializedNode) -> None:
    """One layer in one or both directions, with the usual activations."""
    _refuse_odd_forms(low, step)
    x = low.dense(step.node.inputs[0])
    if not takes_generated(step, x):
        raise NotNative("many sequences, or a GRU whose reset comes before its product: its steps are quicker")
    generated_layer(low, step, x)


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
