"""The steps of recurrent layers, given what inputs add to the gates of all steps, and their gradients.

A layer is one product for all inputs, then these operators. They also give what their gradients read: the gates and
cells of every step. Gradients are operators too, with bodies that can be differentiated again.

Sizes: T steps, N sequences, D directions (side by side on the last axis), H hidden units.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from pyflame_rt.graph import DimLike, DType, Shape, TensorType
from pyflame_rt.graph.errors import InputError, UndeterminedError
from pyflame_rt.ops.core.guards import has_rank, has_shape
from pyflame_rt.ops.core.registry import operator
from pyflame_rt.ops.core.value import Value, constant
from pyflame_rt.ops.onnx.activation import Relu, Sigmoid
from pyflame_rt.ops.onnx.arithmetic import zeros_like
from pyflame_rt.ops.onnx.cast import Cast
from pyflame_rt.ops.onnx.index import Gather
from pyflame_rt.ops.onnx.logic import Greater
from pyflame_rt.ops.onnx.math import Tanh
from pyflame_rt.ops.onnx.matmul import MatMul
from pyflame_rt.ops.onnx.reduce import ReduceSum
from pyflame_rt.ops.onnx.shape import Expand, Reshape, Transpose, Unsqueeze
from pyflame_rt.ops.onnx.slicing import Concat, Slice, Split

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["backwards_of", "lstm_steps", "steps_needs"]

Grads: TypeAlias = "tuple[Value | None, ...]"

_DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}


def backwards_of(direction: str) -> tuple[bool, ...]:
    """For every direction whether it runs backwards."""
    try:
        return _DIRECTIONS[direction]
    except KeyError:
        raise InputError(f"direction {direction!r} is none of {', '.join(_DIRECTIONS)}") from None


# ---------------------------------------------------------------------- parts of values


def _pick(x: Value, index: int) -> Value:
    return Gather(x, constant(index, DType.Int64), axis=0)


def _parts(x: Value, count: int, axis: int = -1) -> list[Value]:
    return [x] if count == 1 else list(Split(x, axis=axis, num_outputs=count))


def _joined(parts: Sequence[Value], axis: int) -> Value:
    return parts[0] if len(parts) == 1 else Concat(*parts, axis=axis)


def _stacked(rows: Sequence[Value]) -> Value:
    return _joined([Unsqueeze(row, [0]) for row in rows], 0)


def _count(x: Value) -> int:
    steps = x.shape[0]
    if not isinstance(steps, int):
        raise UndeterminedError("the number of steps is only known when running")
    return steps


class _Sequence:
    """The steps of one direction of a value [T, N, D * width]; of None, None at each."""

    def __init__(self, x: Value | None, which: int, directions: int) -> None:
        self.part = None if x is None else _parts(x, directions)[which]

    def __getitem__(self, step: int) -> Value | None:
        return None if self.part is None else _pick(self.part, step)

    def at(self, step: int) -> Value:
        assert self.part is not None
        return _pick(self.part, step)


def _plus(x: Value, more: Value | None) -> Value:
    return x if more is None else x + more


def _sum(*parts: Value | None) -> Value | None:
    given = [p for p in parts if p is not None]
    total = given[0] if given else None
    for part in given[1:]:
        total = part if total is None else total + part
    return total


def _order(steps: int, backwards: bool) -> list[int]:
    return list(range(steps - 1, -1, -1) if backwards else range(steps))


def _with_before(steps: int, backwards: bool) -> Iterator[tuple[int, int | None]]:
    """Steps from the last that ran to the first, each with the one before it."""
    order = _order(steps, backwards)
    yield from zip(reversed(order), [*reversed(order[:-1]), None], strict=True)


def _sequence_type(x: Value, width: DimLike, directions: int) -> TensorType:
    """[T, N, D * width], with T and N as the value has them."""
    dims = x.tensor_type.shape
    lead = [None, None] if dims is None else list(dims[:2])
    return TensorType(x.dtype, Shape([*lead, _times(directions, width)]))


def _state_type(x: Value, r: Value, directions: int) -> TensorType:
    dims, rows = x.tensor_type.shape, r.tensor_type.shape
    return TensorType(
        x.dtype, Shape([directions, None if dims is None else dims[1], None if rows is None else rows[2]])
    )


def steps_needs(first: str, *names: str, gates: int) -> Callable[..., None]:
    """What the steps of a layer of so many gates require, and their gradients.

    Inputs are told by name: gates and saved [T, N, D * gates * H], R [D, gates * H, H], sequences of states (y, cells
    and their gradients) [T, N, D * H], single states [D, N, H], B [D, H]. ``first`` is the input that has T and N.
    """

    def needs(*inputs: Value | None, direction: str, **_: Any) -> None:
        given = dict(zip(names, inputs, strict=False))
        count, x, r = len(backwards_of(direction)), given[first], given["R"]
        assert x is not None
        assert r is not None
        has_rank(first, x, 3)
        has_rank("R", r, 3)
        hidden, (steps, batch, _width) = r.shape[2], x.shape
        wide = _times(count, hidden)
        shapes: dict[str, tuple[DimLike, ...]] = {
            "gates": (steps, batch, _times(gates, wide)),
            "R": (count, _times(gates, hidden), hidden),
            "B": (count, hidden),
            **dict.fromkeys(("saved", "dsaved"), (steps, batch, _times(4, wide))),
            **dict.fromkeys(("y", "dy", "cells", "dcells"), (steps, batch, wide)),
            **dict.fromkeys(("initial_h", "initial_c", "dh", "dc"), (count, batch, hidden)),
        }
        for name, value in given.items():
            has_shape(name, value, shapes[name])

    return needs


def _hidden(r: Value) -> DimLike:
    rows = r.tensor_type.shape
    return None if rows is None else rows[2]


def _times(factor: int, size: DimLike) -> DimLike:
    return None if size is None else size * factor


def _recurrent_gradient(d: Value, y: Value, first: Value, direction: str) -> Value:
    """The gradient of R from that of the products with it: one product over all steps."""
    backwards = backwards_of(direction)
    count, results = len(backwards), []
    for k, back in enumerate(backwards):
        states, start = _parts(y, count)[k], Unsqueeze(_pick(first, k), [0])
        if back:
            before = Concat(Slice(states, [1], [2**31 - 1], [0]), start, axis=0)
        else:
            before = Concat(start, Slice(states, [0], [-1], [0]), axis=0)
        given = _parts(d, count)[k]
        left = Reshape(given, [-1, given.shape[-1]])
        product = MatMul(Transpose(left, perm=[1, 0]), Reshape(before, [-1, before.shape[-1]]))
        results.append(Unsqueeze(product, [0]))
    return _joined(results, 0)


def _nothing(like: Value, hidden: DimLike) -> Value:
    """The gradient of a state that nothing reads: [N, H] zeros."""
    return Expand(constant(0, like), [like.shape[1], hidden])


# ---------------------------------------------------------------------- LSTM


def _lstm_type(gates: Value, R: Value, *_: Value | None, direction: str) -> tuple[TensorType, ...]:
    count, hidden = len(backwards_of(direction)), _hidden(R)
    y, state = _sequence_type(gates, hidden, count), _state_type(gates, R, count)
    return y, state, state, _sequence_type(gates, _times(4, hidden), count), y


def _lstm_vjp(
    g: Grads, out: tuple[Value, ...], gates: Value, R: Value, first: Value, cell: Value, *, direction: str
) -> Grads:
    y, _, _, saved, cells = out
    dy, dh, dc, dsaved, dcells = g
    dgates, dfirst, dcell = LSTMStepsGrad(R, cell, saved, cells, dy, dh, dc, dsaved, dcells, direction=direction)
    return dgates, _recurrent_gradient(dgates, y, first, direction), dfirst, dcell


@operator(
    since=1,
    domain="pyflame",
    infer=_lstm_type,
    vjp=_lstm_vjp,
    partial=True,
    requires=steps_needs("gates", "gates", "R", "initial_h", "initial_c", gates=4),
)
def LSTMSteps(
    gates: Value, R: Value, initial_h: Value, initial_c: Value, /, *, direction: str = "forward"
) -> tuple[Value, ...]:
    """Hidden states [T, N, D * H], last states and cells [D, N, H], gates [T, N, D * 4H] and cells of every step.

    Gates are in the order input, output, forget, cell; those given are what inputs and biases add to them.
    """
    return lstm_steps(gates, R, initial_h, initial_c, direction)


def lstm_steps(
    gates: Value,
    R: Value,
    initial_h: Value,
    initial_c: Value,
    direction: str,
    seen: Callable[[Value], Value] | None = None,
) -> tuple[Value, ...]:
    """The steps of an LSTM; ``seen`` is what the product with R gets to see of a state."""
    backwards = backwards_of(direction)
    columns: list[tuple[Value, ...]] = []
    ends: list[tuple[Value, Value]] = []
    for k, back in enumerate(backwards):
        given, turned = _Sequence(gates, k, len(backwards)), Transpose(_pick(R, k), perm=[1, 0])
        h, c = _pick(initial_h, k), _pick(initial_c, k)
        rows: dict[int, tuple[Value, ...]] = {}
        for t in _order(_count(gates), back):
            enter, leave, keep, new = _parts(given.at(t) + MatMul(h if seen is None else seen(h), turned), 4)
            i, o, f, g = Sigmoid(enter), Sigmoid(leave), Sigmoid(keep), Tanh(new)
            c = f * c + i * g
            h = o * Tanh(c)
            rows[t] = (h, Concat(i, o, f, g, axis=-1), c)
        columns.append(tuple(_stacked(column) for column in zip(*(rows[t] for t in sorted(rows)), strict=True)))
        ends.append((Unsqueeze(h, [0]), Unsqueeze(c, [0])))
    y, saved, cells = (_joined(column, -1) for column in zip(*columns, strict=True))
    last, cell = (_joined(end, 0) for end in zip(*ends, strict=True))
    return y, last, cell, saved, cells


def _lstm_grad_type(R: Value, initial_c: Value, saved: Value, *_: Value | None, direction: str) -> Any:
    state = _state_type(saved, R, len(backwards_of(direction)))
    return TensorType(saved.dtype, saved.tensor_type.shape), state, state


@operator(
    since=1,
    domain="pyflame",
    infer=_lstm_grad_type,
    requires=steps_needs("saved", "R", "initial_c", "saved", "cells", "dy", "dh", "dc", "dsaved", "dcells", gates=4),
)
def LSTMStepsGrad(
    R: Value,
    initial_c: Value,
    saved: Value,
    cells: Value,
    dy: Value | None = None,
    dh: Value | None = None,
    dc: Value | None = None,
    dsaved: Value | None = None,
    dcells: Value | None = None,
    /,
    *,
    direction: str = "forward",
) -> tuple[Value, ...]:
    """Gradients of the gates before their functions [T, N, D * 4H], of the first states and of the first cells."""
    backwards = backwards_of(direction)
    count, columns, ends = len(backwards), [], []
    for k, back in enumerate(backwards):
        gates, old, from_y, from_saved, from_cells = (
            _Sequence(v, k, count) for v in (saved, cells, dy, dsaved, dcells)
        )
        weights = _pick(R, k)
        h, c = (None if v is None else _pick(v, k) for v in (dh, dc))
        rows: dict[int, Value] = {}
        for t, before in _with_before(_count(saved), back):
            i, o, f, g = _parts(gates.at(t), 4)
            extra = from_saved[t]
            more = [None] * 4 if extra is None else _parts(extra, 4)
            total, shown = _sum(h, from_y[t]), Tanh(old.at(t))
            leave = _sum(None if total is None else total * shown, more[1])
            through = None if total is None else total * o * (1.0 - shown * shown)
            cell = _sum(c, through, from_cells[t])
            parts = _lstm_gates(
                (i, o, f, g), leave, cell, _pick(initial_c, k) if before is None else old.at(before), more
            )
            rows[t] = Concat(*parts, axis=-1)
            h, c = MatMul(rows[t], weights), None if cell is None else cell * f
        columns.append(_stacked([rows[t] for t in sorted(rows)]))
        hidden = R.shape[2]
        ends.append(tuple(Unsqueeze(_nothing(saved, hidden) if v is None else v, [0]) for v in (h, c)))
    dfirst, dcell = (_joined(end, 0) for end in zip(*ends, strict=True))
    return _joined(columns, -1), dfirst, dcell


def _lstm_gates(
    gates: tuple[Value, ...], leave: Value | None, cell: Value | None, before: Value, more: Sequence[Value | None]
) -> list[Value]:
    """Gradients of the gates before their functions, from those of the output gate and of the cell."""
    i, o, f, g = gates
    given = (
        _sum(None if cell is None else cell * g, more[0]),
        leave,
        _sum(None if cell is None else cell * before, more[2]),
        _sum(None if cell is None else cell * i, more[3]),
    )
    slopes = (i * (1.0 - i), o * (1.0 - o), f * (1.0 - f), 1.0 - g * g)
    return [zeros_like(s) if d is None else d * s for d, s in zip(given, slopes, strict=True)]


# ---------------------------------------------------------------------- GRU


def _gru_type(gates: Value, R: Value, *_: Value | None, direction: str) -> tuple[TensorType, ...]:
    count, hidden = len(backwards_of(direction)), _hidden(R)
    saved = _sequence_type(gates, _times(4, hidden), count)
    return _sequence_type(gates, hidden, count), _state_type(gates, R, count), saved


def _gru_vjp(
    g: Grads, out: tuple[Value, ...], gates: Value, R: Value, B: Value, first: Value, *, direction: str
) -> Grads:
    y, _, saved = out
    dgates, recurrent, dfirst = GRUStepsGrad(R, first, y, saved, *g, direction=direction)
    count = len(backwards_of(direction))
    lasts = [_parts(part, 3)[2] for part in _parts(recurrent, count)]
    bias = _joined([Unsqueeze(ReduceSum(last, [0, 1], keepdims=0), [0]) for last in lasts], 0)
    return dgates, _recurrent_gradient(recurrent, y, first, direction), bias, dfirst


@operator(
    since=1,
    domain="pyflame",
    infer=_gru_type,
    vjp=_gru_vjp,
    partial=True,
    requires=steps_needs("gates", "gates", "R", "B", "initial_h", gates=3),
)
def GRUSteps(gates: Value, R: Value, B: Value, initial_h: Value, /, *, direction: str = "forward") -> tuple[Value, ...]:
    """Hidden states [T, N, D * H], last states [D, N, H], and of every step gates and what reset scales [T, N, D * 4H].

    Gates are in the order update, reset, hidden; the reset gate scales the product of state and R plus B [D, H].
    """
    backwards = backwards_of(direction)
    columns: list[tuple[Value, ...]] = []
    ends: list[Value] = []
    for k, back in enumerate(backwards):
        given, turned, bias = _Sequence(gates, k, len(backwards)), Transpose(_pick(R, k), perm=[1, 0]), _pick(B, k)
        h = _pick(initial_h, k)
        rows: dict[int, tuple[Value, Value]] = {}
        for t in _order(_count(gates), back):
            (xz, xr, xn), (hz, hr, hn) = _parts(given.at(t), 3), _parts(MatMul(h, turned), 3)
            z, r, m = Sigmoid(xz + hz), Sigmoid(xr + hr), hn + bias
            n = Tanh(xn + r * m)
            h = n + z * (h - n)
            rows[t] = (h, Concat(z, r, n, m, axis=-1))
        columns.append(tuple(_stacked(column) for column in zip(*(rows[t] for t in sorted(rows)), strict=True)))
        ends.append(Unsqueeze(h, [0]))
    y, saved = (_joined(column, -1) for column in zip(*columns, strict=True))
    return y, _joined(ends, 0), saved


def _gru_reset_type(gates: Value, R: Value, *_: Value, direction: str) -> tuple[TensorType, ...]:
    count = len(backwards_of(direction))
    return _sequence_type(gates, _hidden(R), count), _state_type(gates, R, count)


@operator(
    since=1,
    domain="pyflame",
    infer=_gru_reset_type,
    partial=True,
    requires=steps_needs("gates", "gates", "R", "initial_h", gates=3),
)
def GRUResetSteps(gates: Value, R: Value, initial_h: Value, /, *, direction: str = "forward") -> tuple[Value, ...]:
    """Hidden states [T, N, D * H] and last states [D, N, H] of a GRU whose reset scales the state before the product.

    Gates are in the order update, reset, hidden; those given are what inputs and biases add to them.
    """
    backwards = backwards_of(direction)
    columns, ends = [], []
    for k, back in enumerate(backwards):
        given, turned = _Sequence(gates, k, len(backwards)), Transpose(_pick(R, k), perm=[1, 0])
        wz, wr, wn = _parts(turned, 3)
        h, rows = _pick(initial_h, k), {}
        for t in _order(_count(gates), back):
            xz, xr, xn = _parts(given.at(t), 3)
            z, r = Sigmoid(xz + MatMul(h, wz)), Sigmoid(xr + MatMul(h, wr))
            n = Tanh(xn + MatMul(r * h, wn))
            rows[t] = h = n + z * (h - n)
        columns.append(_stacked([rows[t] for t in sorted(rows)]))
        ends.append(Unsqueeze(h, [0]))
    return _joined(columns, -1), _joined(ends, 0)


def _gru_grad_type(R: Value, initial_h: Value, y: Value, *_: Value | None, direction: str) -> tuple[TensorType, ...]:
    count = len(backwards_of(direction))
    wide = _sequence_type(y, _times(3, _hidden(R)), count)
    return wide, wide, _state_type(y, R, count)


@operator(
    since=1,
    domain="pyflame",
    infer=_gru_grad_type,
    requires=steps_needs("y", "R", "initial_h", "y", "saved", "dy", "dh", "dsaved", gates=3),
)
def GRUStepsGrad(
    R: Value,
    initial_h: Value,
    y: Value,
    saved: Value,
    dy: Value | None = None,
    dh: Value | None = None,
    dsaved: Value | None = None,
    /,
    *,
    direction: str = "forward",
) -> tuple[Value, ...]:
    """Gradients of the inputs' and of the states' part of the gates [T, N, D * 3H], and of the first states."""
    backwards = backwards_of(direction)
    count, columns, ends = len(backwards), [], []
    for k, back in enumerate(backwards):
        states, gates, from_y, from_saved = (_Sequence(v, k, count) for v in (y, saved, dy, dsaved))
        weights, h = _pick(R, k), None if dh is None else _pick(dh, k)
        rows: dict[int, tuple[Value, Value]] = {}
        for t, before in _with_before(_count(y), back):
            z, r, n, m = _parts(gates.at(t), 4)
            extra = from_saved[t]
            more = [None] * 4 if extra is None else _parts(extra, 4)
            total = _sum(h, from_y[t])
            total = zeros_like(z) if total is None else total
            old = _pick(initial_h, k) if before is None else states.at(before)
            hidden = _plus(total * (1.0 - z), more[2]) * (1.0 - n * n)
            update = _plus(total * (old - n), more[0]) * z * (1.0 - z)
            reset = _plus(hidden * m, more[1]) * r * (1.0 - r)
            scaled = _plus(hidden * r, more[3])
            rows[t] = (Concat(update, reset, hidden, axis=-1), Concat(update, reset, scaled, axis=-1))
            h = total * z + MatMul(rows[t][1], weights)
        columns.append(tuple(_stacked(column) for column in zip(*(rows[t] for t in sorted(rows)), strict=True)))
        assert h is not None
        ends.append(Unsqueeze(h, [0]))
    dgates, recurrent = (_joined(column, -1) for column in zip(*columns, strict=True))
    return dgates, recurrent, _joined(ends, 0)


# ---------------------------------------------------------------------- RNN


def _rnn_type(gates: Value, R: Value, *_: Value | None, direction: str, activation: str) -> tuple[TensorType, ...]:
    _check_activation(activation)
    count = len(backwards_of(direction))
    return _sequence_type(gates, _hidden(R), count), _state_type(gates, R, count)


def _check_activation(name: str) -> None:
    if name not in ("tanh", "relu"):
        raise InputError(f"activation {name!r} is none of tanh, relu")


def _rnn_vjp(
    g: Grads, out: tuple[Value, ...], gates: Value, R: Value, first: Value, *, direction: str, activation: str
) -> Grads:
    dgates, dfirst = RNNStepsGrad(R, out[0], *g, direction=direction, activation=activation)
    return dgates, _recurrent_gradient(dgates, out[0], first, direction), dfirst


@operator(
    since=1,
    domain="pyflame",
    infer=_rnn_type,
    vjp=_rnn_vjp,
    partial=True,
    requires=steps_needs("gates", "gates", "R", "initial_h", gates=1),
)
def RNNSteps(
    gates: Value, R: Value, initial_h: Value, /, *, direction: str = "forward", activation: str = "tanh"
) -> tuple[Value, ...]:
    """Hidden states [T, N, D * H] and last states [D, N, H]; ``activation`` is tanh or relu."""
    _check_activation(activation)
    backwards = backwards_of(direction)
    columns, ends = [], []
    for k, back in enumerate(backwards):
        given, turned = _Sequence(gates, k, len(backwards)), Transpose(_pick(R, k), perm=[1, 0])
        h = _pick(initial_h, k)
        rows: dict[int, Value] = {}
        for t in _order(_count(gates), back):
            h = (Tanh if activation == "tanh" else Relu)(given.at(t) + MatMul(h, turned))
            rows[t] = h
        columns.append(_stacked([rows[t] for t in sorted(rows)]))
        ends.append(Unsqueeze(h, [0]))
    return _joined(columns, -1), _joined(ends, 0)


def _rnn_grad_type(R: Value, y: Value, *_: Value | None, direction: str, activation: str) -> tuple[TensorType, ...]:
    _check_activation(activation)
    return TensorType(y.dtype, y.tensor_type.shape), _state_type(y, R, len(backwards_of(direction)))


@operator(since=1, domain="pyflame", infer=_rnn_grad_type, requires=steps_needs("y", "R", "y", "dy", "dh", gates=1))
def RNNStepsGrad(
    R: Value,
    y: Value,
    dy: Value | None = None,
    dh: Value | None = None,
    /,
    *,
    direction: str = "forward",
    activation: str = "tanh",
) -> tuple[Value, ...]:
    """Gradients of the sums before the activation [T, N, D * H], and of the first states."""
    backwards = backwards_of(direction)
    count, columns, ends = len(backwards), [], []
    for k, back in enumerate(backwards):
        states, from_y = (_Sequence(v, k, count) for v in (y, dy))
        weights, h = _pick(R, k), None if dh is None else _pick(dh, k)
        rows: dict[int, Value] = {}
        for t, _ in _with_before(_count(y), back):
            state, total = states.at(t), _sum(h, from_y[t])
            positive = Cast(Greater(state, constant(0, state)), to=state.dtype)
            slope = 1.0 - state * state if activation == "tanh" else positive
            rows[t] = zeros_like(state) if total is None else total * slope
            h = MatMul(rows[t], weights)
        columns.append(_stacked([rows[t] for t in sorted(rows)]))
        assert h is not None
        ends.append(Unsqueeze(h, [0]))
    return _joined(columns, -1), _joined(ends, 0)
