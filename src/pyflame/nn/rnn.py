"""Recurrent layers and cells, with torch's weights and results."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from pyflame.arrays import adopt
from pyflame.nn import functional as F
from pyflame.nn import init
from pyflame.nn.making import empty_parameter
from pyflame.nn.module import Module
from pyflame.nn.packed import run_packed
from pyflame.nn.placing import placed
from pyflame.nn.utils.rnn import PackedSequence
from pyflame.ops.activation import relu, sigmoid
from pyflame.ops.arithmetic import where
from pyflame.ops.core import call_many
from pyflame.ops.creation import zeros
from pyflame.ops.pointwise import tanh
from pyflame.ops.shaping import cat, stack
from pyflame.outline import outlined, own
from pyflame_rt.graph.errors import ShapeMismatchError

if TYPE_CHECKING:
    from pyflame.dtypes import DType
    from pyflame.nn.packed import Lengths
    from pyflame.tensors import Tensor

__all__ = ["GRU", "LSTM", "RNN", "GRUCell", "LSTMCell", "RNNCell"]


@placed
class _Recurrent(Module):
    """Layers of one kind of cell over [L, N, input_size], in one or both directions."""

    operator: ClassVar[str]
    gates: ClassVar[tuple[int, ...]]  # torch's gates in ONNX's order
    states: ClassVar[int] = 1

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        *,
        dtype: DType | None = None,
    ) -> None:
        super().__init__()
        if hidden_size <= 0 or num_layers <= 0:
            raise ValueError(f"hidden_size and num_layers must be positive. Received: {hidden_size}, {num_layers}")
        if not 0 <= dropout <= 1:
            raise ValueError(f"dropout must be from 0 to 1. Received: {dropout}")
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        self.bias, self.batch_first, self.dropout, self.bidirectional = bias, batch_first, dropout, bidirectional
        for layer in range(num_layers):
            width = input_size if layer == 0 else self.output_size * self.directions
            for suffix in self._suffixes(layer):
                rows = len(self.gates) * hidden_size
                self.register_parameter(f"weight_ih_{suffix}", empty_parameter([rows, width], dtype))
                self.register_parameter(f"weight_hh_{suffix}", empty_parameter([rows, self.output_size], dtype))
                if bias:
                    self.register_parameter(f"bias_ih_{suffix}", empty_parameter([rows], dtype))
                    self.register_parameter(f"bias_hh_{suffix}", empty_parameter([rows], dtype))
                if self.output_size != hidden_size:
                    projection = empty_parameter([self.output_size, hidden_size], dtype)
                    self.register_parameter(f"weight_hr_{suffix}", projection)
        self.reset_parameters()

    @property
    def output_size(self) -> int:
        """The width of what each direction gives."""
        return self.hidden_size

    @property
    def directions(self) -> int:
        """One, or two when bidirectional."""
        return 2 if self.bidirectional else 1

    def reset_parameters(self) -> None:
        """Draw new weights."""
        bound = 1 / math.sqrt(self.hidden_size)
        for parameter in self.parameters():
            init.uniform_(parameter, -bound, bound)

    def flatten_parameters(self) -> None:
        """Does nothing: weights are packed when a graph is compiled."""

    def forward(self, input: Any, hx: Any = None) -> tuple[Any, Any]:
        """Outputs of the last layer at all steps, and the last state(s) of all layers.

        Args:
            input: Sequences [L, N, input_size] ([N, L, input_size] if `batch_first`), one of them [L, input_size],
                or a `PackedSequence`, for which the outputs are packed too and states are those at each one's end.
            hx: The first state(s); zeros if not given.
        """
        if isinstance(input, PackedSequence):
            return run_packed(self, input, hx)
        single = len(input.shape) == 2
        x = input.unsqueeze(1) if single else input.transpose(0, 1) if self.batch_first else input
        if len(x.shape) != 3 or x.shape[-1] != self.input_size:
            raise ShapeMismatchError(
                f"input.size(-1) must be {self.input_size} in 2 or 3 dimensions. Received: {list(input.shape)}"
            )
        first = self._first_states(hx, int(x.shape[1]), x.dtype, single)
        last: list[list[Tensor]] = [[] for _ in range(self.states)]
        for layer in range(self.num_layers):
            if layer and self.dropout and self.training:
                x = F.dropout(x, self.dropout)
            part = slice(layer * self.directions, (layer + 1) * self.directions)
            x, *ends = self._layer(x, layer, [state[part] for state in first])
            for kept, end in zip(last, ends, strict=True):
                kept.append(end)
        states = [cat(kept, dim=0) if len(kept) > 1 else kept[0] for kept in last]
        if single:
            x, states = x.squeeze(1), [state.squeeze(1) for state in states]
        elif self.batch_first:
            x = x.transpose(0, 1)
        return x, tuple(states) if self.states > 1 else states[0]

    def _suffixes(self, layer: int) -> list[str]:
        return [f"l{layer}", f"l{layer}_reverse"][: self.directions]

    def _first_states(self, hx: Any, batch: int, dtype: DType, single: bool) -> list[Tensor]:
        count = self.num_layers * self.directions
        shapes = [[count, batch, size] for size in (self.output_size, self.hidden_size)[: self.states]]
        if hx is None:
            return [zeros(shape, dtype=dtype) for shape in shapes]
        given = list(hx) if self.states > 1 else [hx]
        states = [state.unsqueeze(1) if single else state for state in given]
        for state, shape in zip(states, shapes, strict=True):
            if list(state.shape) != shape:
                raise ShapeMismatchError(f"Expected hidden size {shape}. Received: {list(state.shape)}")
        return states

    def _layer(self, x: Tensor, layer: int, states: list[Tensor]) -> list[Tensor]:
        """One layer: outputs [L, N, directions * hidden] and last states."""
        names = self._suffixes(layer)
        weights = [getattr(self, f"weight_ih_{n}") for n in names]
        return self._operate(x, names, weights, states, "bidirectional" if self.bidirectional else "forward")

    def _run_lengths(self, x: Tensor, name: str, states: list[Tensor], lengths: Lengths) -> list[Tensor]:
        """One direction over sequences of different lengths: outputs [L, N, hidden] and states at their ends."""
        weight = getattr(self, f"weight_ih_{name}")
        y, *_ = self._operate(x, [name], [weight], [state.unsqueeze(0) for state in states], "forward")
        return [y, lengths.ends(y)]

    def _operate(
        self, x: Tensor, names: list[str], weights: list[Tensor], states: list[Tensor], direction: str
    ) -> list[Tensor]:
        """The operator: outputs [L, N, directions * hidden] and last states."""
        tensors = [*weights, *[getattr(self, f"weight_hh_{n}") for n in names]]
        if self.bias:
            tensors += [getattr(self, f"bias_{kind}_{n}") for kind in ("ih", "hh") for n in names]
        more = tuple(self._more().items())
        return list(_operated(self.operator, direction, self.hidden_size, self.gates, more, x, *tensors, *states))

    def _more(self) -> dict[str, Any]:
        return {}

    def extra_repr(self) -> str:
        """The settings that differ from the defaults."""
        parts = [f"{self.input_size}, {self.hidden_size}"]
        parts += [f"num_layers={self.num_layers}"] if self.num_layers != 1 else []
        parts += ["bias=False"] if not self.bias else []
        parts += [f"{name}=True" for name in ("batch_first", "bidirectional") if getattr(self, name)]
        parts += [f"dropout={self.dropout}"] if self.dropout else []
        return ", ".join(parts)


@outlined
def _operated(
    operator: str, direction: str, hidden_size: int, gates: tuple[int, ...], more: Any, x: Any, *tensors: Any
) -> tuple[Tensor, ...]:
    """The operator on torch's weights: those of the input, of the state, biases of both, and the first states."""
    directions = 2 if direction == "bidirectional" else 1
    count = 2 if operator == "LSTM" else 1
    weights, states = tensors[:-count], tensors[-count:]
    parts = [[_ordered(w, gates) for w in weights[i : i + directions]] for i in range(0, len(weights), directions)]
    bias = stack([cat(list(pair), dim=0) for pair in zip(*parts[2:], strict=True)]) if len(parts) > 2 else None
    y, *ends = call_many(
        operator, x, stack(parts[0]), stack(parts[1]), bias, None, *states, direction=direction,
        hidden_size=hidden_size, **dict(more)
    )  # fmt: skip
    steps, _, batch, hidden = y.shape
    return own(y.transpose(1, 2).reshape([steps, batch, directions * hidden])), *ends


def _ordered(weight: Tensor, gates: tuple[int, ...]) -> Tensor:
    """Gates in ONNX's order."""
    if gates == tuple(range(len(gates))):
        return weight
    parts = weight.chunk(len(gates), dim=0)
    return cat([parts[gate] for gate in gates], dim=0)


@placed
class LSTM(_Recurrent):
    """Long short-term memory.

    Example:
        >>> import pyflame as pf
        >>> y, (h, c) = pf.nn.LSTM(4, 8, num_layers=2)(pf.randn([5, 3, 4]))
        >>> y.shape, h.shape, c.shape
        ([5, 3, 8], [2, 3, 8], [2, 3, 8])
    """

    operator = "LSTM"
    gates = (0, 3, 1, 2)  # torch: input, forget, cell, output; ONNX: input, output, forget, cell
    states = 2

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        *,
        dtype: DType | None = None,
    ) -> None:
        if not 0 <= proj_size < hidden_size:
            raise ValueError(f"proj_size must be at least 0 and below hidden_size. Received: {proj_size}")
        self.proj_size = proj_size
        super().__init__(input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, dtype=dtype)

    @property
    def output_size(self) -> int:
        """The width of what each direction gives."""
        return self.proj_size or self.hidden_size

    def _layer(self, x: Tensor, layer: int, states: list[Tensor]) -> list[Tensor]:
        """One layer; the operator knows no projection, so that one goes step by step."""
        if not self.proj_size:
            return super()._layer(x, layer, states)
        made = [self._projected(x, n, states[0][i], states[1][i], i) for i, n in enumerate(self._suffixes(layer))]
        ys, hs, cs = ([parts[which] for parts in made] for which in range(3))
        return [cat(ys, dim=-1) if len(ys) > 1 else ys[0], stack(hs), stack(cs)]

    def _run_lengths(self, x: Tensor, name: str, states: list[Tensor], lengths: Lengths) -> list[Tensor]:
        """One direction over sequences of different lengths: outputs [L, N, hidden] and states at their ends."""
        if self.proj_size:
            return list(self._projected(x, name, states[0], states[1], 0, lengths))
        weight = getattr(self, f"weight_ih_{name}")
        if not lengths.equal:
            # A further input shuts the input gate and opens the forget gate where a sequence is over: cells stay.
            shut = np.repeat(np.array([-1e4, 1e4, 0, 0], x.dtype.numpy), self.hidden_size)[:, None]
            x, weight = cat([x, lengths.filling(x.dtype)], dim=-1), cat([weight, adopt(shut)], dim=1)
        y, _, c = self._operate(x, [name], [weight], [state.unsqueeze(0) for state in states], "forward")
        return [y, lengths.ends(y), c.squeeze(0)]

    def _projected(
        self, x: Tensor, name: str, h: Tensor, c: Tensor, backwards: int, lengths: Lengths | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        weight, again, narrow = (getattr(self, f"weight_{kind}_{name}") for kind in ("ih", "hh", "hr"))
        biases = (getattr(self, f"bias_{kind}_{name}") if self.bias else None for kind in ("ih", "hh"))
        bias, bias_again = biases
        before = F.linear(x, weight, bias)
        steps = range(int(x.shape[0]))
        outputs = []
        for step in reversed(steps) if backwards else steps:
            i, f, g, o = (before[step] + F.linear(h, again, bias_again)).chunk(4, dim=-1)
            new = sigmoid(f) * c + sigmoid(i) * tanh(g)
            shown = F.linear(sigmoid(o) * tanh(new), narrow)
            outputs.append(shown)
            alive = None if lengths is None or lengths.equal else lengths.alive(step)
            c, h = (new, shown) if alive is None else (where(alive, new, c), where(alive, shown, h))
        return stack(outputs[::-1] if backwards else outputs), h, c

    def extra_repr(self) -> str:
        """The settings that differ from the defaults."""
        return super().extra_repr() + (f", proj_size={self.proj_size}" if self.proj_size else "")


class GRU(_Recurrent):
    """Gated recurrent units.

    Example:
        >>> import pyflame as pf
        >>> y, h = pf.nn.GRU(4, 8, bidirectional=True)(pf.randn([5, 3, 4]))
        >>> y.shape, h.shape
        ([5, 3, 16], [2, 3, 8])
    """

    operator = "GRU"
    gates = (1, 0, 2)  # torch: reset, update, new; ONNX: update, reset, hidden

    def _more(self) -> dict[str, Any]:
        return {"linear_before_reset": 1}


@placed
class RNN(_Recurrent):
    """The plain recurrent layer, with tanh or relu.

    Example:
        >>> import pyflame as pf
        >>> y, h = pf.nn.RNN(4, 8, batch_first=True)(pf.randn([3, 5, 4]))
        >>> y.shape, h.shape
        ([3, 5, 8], [1, 3, 8])
    """

    operator = "RNN"
    gates = (0,)

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        *,
        dtype: DType | None = None,
    ) -> None:
        if nonlinearity not in ("tanh", "relu"):
            raise ValueError(f"nonlinearity must be tanh or relu. Received: {nonlinearity!r}")
        self.nonlinearity = nonlinearity
        super().__init__(input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, dtype=dtype)

    def _more(self) -> dict[str, Any]:
        return {"activations": (self.nonlinearity.capitalize(),) * self.directions}


@placed
class _Cell(Module):
    """One step of a recurrent layer over [N, input_size] or [input_size]."""

    gates: ClassVar[int]

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True, *, dtype: DType | None = None) -> None:
        super().__init__()
        self.input_size, self.hidden_size, self.bias = input_size, hidden_size, bias
        rows = self.gates * hidden_size
        self.weight_ih = empty_parameter([rows, input_size], dtype)
        self.weight_hh = empty_parameter([rows, hidden_size], dtype)
        self.register_parameter("bias_ih", empty_parameter([rows], dtype) if bias else None)
        self.register_parameter("bias_hh", empty_parameter([rows], dtype) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new weights."""
        bound = 1 / math.sqrt(self.hidden_size)
        for parameter in self.parameters():
            init.uniform_(parameter, -bound, bound)

    def _state(self, input: Any, given: Any) -> Tensor:
        if given is not None:
            return given
        return zeros([*input.shape[:-1], self.hidden_size], dtype=input.dtype)

    def _sums(self, input: Any, h: Tensor) -> tuple[Tensor, Tensor]:
        return F.linear(input, self.weight_ih, self.bias_ih), F.linear(h, self.weight_hh, self.bias_hh)

    def extra_repr(self) -> str:
        """The sizes."""
        return f"{self.input_size}, {self.hidden_size}" + ("" if self.bias else ", bias=False")


class LSTMCell(_Cell):
    """One step of an LSTM: the new hidden and cell state.

    Example:
        >>> import pyflame as pf
        >>> h, c = pf.nn.LSTMCell(4, 8)(pf.randn([3, 4]))
        >>> h.shape
        [3, 8]
    """

    gates = 4

    def forward(self, input: Any, hx: Any = None) -> tuple[Tensor, Tensor]:
        """The new states."""
        h, c = (self._state(input, None if hx is None else hx[i]) for i in range(2))
        mine, before = self._sums(input, h)
        i, f, g, o = (mine + before).chunk(4, dim=-1)
        c = sigmoid(f) * c + sigmoid(i) * tanh(g)
        return sigmoid(o) * tanh(c), c


class GRUCell(_Cell):
    """One step of a GRU: the new hidden state.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.GRUCell(4, 8)(pf.randn([3, 4])).shape
        [3, 8]
    """

    gates = 3

    def forward(self, input: Any, hx: Any = None) -> Tensor:
        """The new state."""
        h = self._state(input, hx)
        mine, before = self._sums(input, h)
        (ri, zi, ni), (rh, zh, nh) = mine.chunk(3, dim=-1), before.chunk(3, dim=-1)
        z = sigmoid(zi + zh)
        n = tanh(ni + sigmoid(ri + rh) * nh)
        return (1 - z) * n + z * h


@placed
class RNNCell(_Cell):
    """One step of a plain recurrent layer: the new hidden state.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.RNNCell(4, 8)(pf.randn([3, 4])).shape
        [3, 8]
    """

    gates = 1

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: str = "tanh",
        *,
        dtype: DType | None = None,
    ) -> None:
        if nonlinearity not in ("tanh", "relu"):
            raise ValueError(f"nonlinearity must be tanh or relu. Received: {nonlinearity!r}")
        self.nonlinearity = nonlinearity
        super().__init__(input_size, hidden_size, bias, dtype=dtype)

    def forward(self, input: Any, hx: Any = None) -> Tensor:
        """The new state."""
        mine, before = self._sums(input, self._state(input, hx))
        return (tanh if self.nonlinearity == "tanh" else relu)(mine + before)
