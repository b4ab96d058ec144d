"""Recurrent networks of aten: whole sequences through ONNX's operators, cells written out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyflame_rt.graph import DType
from pyflame_rt.importers.aten.linear import linear
from pyflame_rt.importers.aten.shaping import joined, sliced, swapped
from pyflame_rt.importers.aten.table import aten
from pyflame_rt.importers.aten.values import refuse
from pyflame_rt.ops.core.value import Value, constant
from pyflame_rt.ops.onnx.activation import Relu, Sigmoid
from pyflame_rt.ops.onnx.math import Tanh
from pyflame_rt.ops.onnx.rnn import GRU, LSTM, RNN
from pyflame_rt.ops.onnx.shape import Reshape, Transpose, Unsqueeze
from pyflame_rt.ops.onnx.slicing import Concat, Split

if TYPE_CHECKING:
    from collections.abc import Callable

__all__: list[str] = []

# Order of the gates: torch has i f g o and r z n, ONNX i o f c and z r h.
_ORDER = {"LSTM": (0, 3, 1, 2), "GRU": (1, 0, 2), "RNN": (0,)}


def _gates(v: Value, kind: str) -> Value:
    order = _ORDER[kind]
    if len(order) == 1:
        return v
    parts = Split(v, axis=0, num_outputs=len(order))
    return Concat(*[parts[i] for i in order], axis=0)


def _weights(params: list[Value], kind: str) -> tuple[Value, Value, Value | None]:
    """W, R and B of one direction."""
    w, r = (Unsqueeze(_gates(p, kind), [0]) for p in params[:2])
    if len(params) < 4:
        return w, r, None
    both = Concat(_gates(params[2], kind), _gates(params[3], kind), axis=0)
    return w, r, Unsqueeze(both, [0])


def _layer(kind: str, x: Value, states: list[Value], params: list[list[Value]], activation: str | None) -> list[Value]:
    """One layer in one or two directions: the sequence [time, batch, directions * hidden] and its last states."""
    made = [_weights(p, kind) for p in params]
    w, r = (_merged([m[i] for m in made]) for i in (0, 1))  # type: ignore[misc]
    b = None if made[0][2] is None else _merged([m[2] for m in made])  # type: ignore[misc]
    hidden = int(params[0][1].shape[1])  # type: ignore[arg-type]
    more: dict[str, Any] = {"hidden_size": hidden, "direction": "bidirectional" if len(params) == 2 else "forward"}
    if kind == "GRU":
        more["linear_before_reset"] = 1
    if activation is not None:
        more["activations"] = [activation] * len(params)
    op: Any = {"LSTM": LSTM, "GRU": GRU, "RNN": RNN}[kind]
    y, *last = op(x, w, r, b, None, *states, **more)
    sequence = Transpose(y, perm=[0, 2, 1, 3])  # [time, batch, directions, hidden]
    return [Reshape(sequence, constant([0, 0, len(params) * hidden], DType.Int64)), *last]


def _merged(parts: list[Value]) -> Value:
    return parts[0] if len(parts) == 1 else Concat(*parts, axis=0)


def _network(
    kind: str, x: Value, states: list[Value], params: list[Value], has_biases: bool, num_layers: int, dropout: float,
    train: bool, bidirectional: bool, batch_first: bool, activation: str | None = None,
) -> tuple[Value, ...]:  # fmt: skip
    if train and dropout:
        raise refuse(f"{kind} with dropout in training; call eval() before saving")
    each, ways = 4 if has_biases else 2, 2 if bidirectional else 1
    if len(params) != each * ways * num_layers:
        raise refuse(f"{kind} with projections")
    value = swapped(x, 0, 1) if batch_first else x
    ends: list[list[Value]] = [[] for _ in states]
    for layer in range(num_layers):
        first = layer * ways
        own = [params[(first + d) * each : (first + d + 1) * each] for d in range(ways)]
        initial = [sliced(s, 0, first, first + ways) for s in states]
        value, *last = _layer(kind, value, initial, own, activation)
        for end, state in zip(ends, last, strict=True):
            end.append(state)
    result = swapped(value, 0, 1) if batch_first else value
    return (result, *[joined(end, 0) for end in ends])


@aten("lstm")
def _lstm(x: Value, hx: Any, params: Any, has_biases: Any, num_layers: Any, dropout: Any, train: Any,
          bidirectional: Any, batch_first: Any = None) -> Any:  # fmt: skip
    if batch_first is None or isinstance(hx, Value):
        raise refuse("lstm over a packed sequence")
    return _network(
        "LSTM", x, list(hx), list(params), has_biases, num_layers, dropout, train, bidirectional, batch_first
    )


@aten("gru")
def _gru(x: Value, hx: Value, params: Any, has_biases: Any, num_layers: Any, dropout: Any, train: Any,
         bidirectional: Any, batch_first: Any = None) -> Any:  # fmt: skip
    if batch_first is None or isinstance(params, Value):
        raise refuse("gru over a packed sequence")
    return _network("GRU", x, [hx], list(params), has_biases, num_layers, dropout, train, bidirectional, batch_first)


def _plain(activation: str) -> Callable[..., Any]:
    def rnn(x: Value, hx: Value, params: Any, has_biases: Any, num_layers: Any, dropout: Any, train: Any,
            bidirectional: Any, batch_first: Any = None) -> Any:  # fmt: skip
        if batch_first is None or isinstance(params, Value):
            raise refuse("a recurrent network over a packed sequence")
        return _network("RNN", x, [hx], list(params), has_biases, num_layers, dropout, train, bidirectional,
                        batch_first, activation)  # fmt: skip

    return rnn


aten("rnn_tanh")(_plain("Tanh"))
aten("rnn_relu")(_plain("Relu"))


def _both(x: Value, h: Value, w: Value, r: Value, bw: Value | None, br: Value | None) -> Value:
    return linear(x, w, bw) + linear(h, r, br)


@aten("lstm_cell")
def _lstm_cell(x: Value, hx: list[Value], w_ih: Value, w_hh: Value, b_ih: Any = None, b_hh: Any = None) -> Any:
    h, c = hx
    gates = _both(x, h, w_ih, w_hh, b_ih, b_hh)
    i, f, g, o = Split(gates, axis=gates.rank - 1, num_outputs=4)
    cell = Sigmoid(f) * c + Sigmoid(i) * Tanh(g)
    return Sigmoid(o) * Tanh(cell), cell


@aten("gru_cell")
def _gru_cell(x: Value, hx: Value, w_ih: Value, w_hh: Value, b_ih: Any = None, b_hh: Any = None) -> Value:
    left, right = linear(x, w_ih, b_ih), linear(hx, w_hh, b_hh)
    (r1, z1, n1), (r2, z2, n2) = (Split(v, axis=v.rank - 1, num_outputs=3) for v in (left, right))
    reset, update = Sigmoid(r1 + r2), Sigmoid(z1 + z2)
    fresh = Tanh(n1 + reset * n2)
    return fresh + update * (hx - fresh)


@aten("rnn_tanh_cell")
def _rnn_tanh_cell(x: Value, hx: Value, w_ih: Value, w_hh: Value, b_ih: Any = None, b_hh: Any = None) -> Value:
    return Tanh(_both(x, hx, w_ih, w_hh, b_ih, b_hh))


@aten("rnn_relu_cell")
def _rnn_relu_cell(x: Value, hx: Value, w_ih: Value, w_hh: Value, b_ih: Any = None, b_hh: Any = None) -> Value:
    return Relu(_both(x, hx, w_ih, w_hh, b_ih, b_hh))
