"""Recurrent layers over sequences of different lengths."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from pyflame.arrays import adopt
from pyflame.nn import functional as F
from pyflame.nn.utils.rnn import PackedSequence, element_places, filled
from pyflame.ops.core import call
from pyflame.ops.shaping import cat
from pyflame_rt.graph.errors import ShapeMismatchError
from pyflame_rt.ops.onnx.index import Gather

if TYPE_CHECKING:
    from pyflame.dtypes import DType
    from pyflame.tensors import Tensor

__all__ = ["Lengths", "Recurrent", "run_packed"]


class Lengths:
    """Sequences filled up to [T, N, ...], the longest first: where they are, end, and begin when read backwards.

    Args:
        lengths: Of the sequences, falling.
    """

    def __init__(self, lengths: np.ndarray[Any, Any]) -> None:
        self.there, self.places = element_places(lengths)
        steps, batch = self.there.shape
        step, which = np.arange(steps)[:, None], np.arange(batch)
        turned = np.where(self.there, lengths - 1 - step, step)
        self._turned, self._ends = adopt(turned * batch + which), adopt((lengths - 1) * batch + which)
        self._packed = adopt(np.flatnonzero(self.there))
        self.equal = bool(self.there.all())

    def turned(self, x: Tensor) -> Tensor:
        """Each sequence read backwards; what it is filled up with stays where it is."""
        return call(Gather, _flat(x), self._turned, axis=0)

    def ends(self, x: Tensor) -> Tensor:
        """The last element of each sequence [N, ...]."""
        return call(Gather, _flat(x), self._ends, axis=0)

    def packed(self, x: Tensor) -> Tensor:
        """All elements without the filling."""
        return call(Gather, _flat(x), self._packed, axis=0)

    def alive(self, step: int) -> Tensor:
        """Which sequences have an element at a step [N, 1]."""
        return adopt(np.ascontiguousarray(self.there[step][:, None]))

    def filling(self, dtype: DType) -> Tensor:
        """One where a sequence is over, zero else [T, N, 1]."""
        return adopt((~self.there)[:, :, None].astype(dtype.numpy))


def _flat(x: Tensor) -> Tensor:
    return x.reshape([x.shape[0] * x.shape[1], *x.shape[2:]])


class Recurrent(Protocol):
    """What is asked of a layer."""

    input_size: int
    num_layers: int
    states: ClassVar[int]
    dropout: float
    training: bool

    @property
    def directions(self) -> int:
        """One or two."""
        ...

    def _first_states(self, hx: Any, batch: int, dtype: DType, single: bool) -> list[Tensor]: ...

    def _suffixes(self, layer: int) -> list[str]: ...

    def _run_lengths(self, x: Tensor, name: str, states: list[Tensor], lengths: Lengths) -> list[Tensor]: ...


def run_packed(layer: Recurrent, packed: PackedSequence, hx: Any) -> tuple[PackedSequence, Any]:
    """What a recurrent layer gives for packed sequences: packed outputs, and the states at the sequences' ends."""
    data, order, back = packed.data, packed.sorted_indices, packed.unsorted_indices
    if len(data.shape) != 2 or data.shape[1] != layer.input_size:
        raise ShapeMismatchError(
            f"input.size(-1) must be {layer.input_size}. Received: packed elements of {list(data.shape[1:])}"
        )
    lengths = Lengths(packed.lengths())
    first = layer._first_states(hx, lengths.there.shape[1], data.dtype, False)
    if hx is not None and order is not None:
        first = [call(Gather, state, order, axis=1) for state in first]
    x, last = filled(data, lengths.there, lengths.places), []
    for number in range(layer.num_layers):
        if number and layer.dropout and layer.training:
            x = F.dropout(x, layer.dropout)
        x, ends = _both_directions(layer, x, number, first, lengths)
        last += ends
    states = [cat([ends[i].unsqueeze(0) for ends in last], dim=0) for i in range(layer.states)]
    if back is not None:
        states = [call(Gather, state, back, axis=1) for state in states]
    outputs = PackedSequence(lengths.packed(x), packed.batch_sizes, order, back)
    return outputs, tuple(states) if layer.states > 1 else states[0]


def _both_directions(
    layer: Recurrent, x: Tensor, number: int, first: list[Tensor], lengths: Lengths
) -> tuple[Tensor, list[list[Tensor]]]:
    """Outputs of one layer [T, N, directions * hidden], and for each direction its states at the ends [N, hidden]."""
    outputs, last = [], []
    for backwards, name in enumerate(layer._suffixes(number)):
        states = [state[number * layer.directions + backwards] for state in first]
        y, *ends = layer._run_lengths(lengths.turned(x) if backwards else x, name, states, lengths)
        outputs.append(lengths.turned(y) if backwards else y)
        last.append(ends)
    return cat(outputs, dim=-1) if len(outputs) > 1 else outputs[0], last
