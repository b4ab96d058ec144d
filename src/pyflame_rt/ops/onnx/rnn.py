"""Recurrent layers: one cell, applied step after step.

The product with the input is taken for all steps at once; what remains in the loop is the
product with the state. Gates of all three kinds come from :func:`_run`, which knows about
directions, layouts and lengths.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from pyflame_rt.graph import DimLike, DType, Node, Shape, TensorType
from pyflame_rt.graph.errors import InputError, ShapeMismatchError
from pyflame_rt.graph.records import dataclass
from pyflame_rt.ops.core.flop_counts import recurrent_flops
from pyflame_rt.ops.core.guards import Within, has_shape, same_size, size_at
from pyflame_rt.ops.core.registry import operator
from pyflame_rt.ops.core.upgrade import Upgrade, upgrade
from pyflame_rt.ops.core.value import Value, constant
from pyflame_rt.ops.onnx.activation import Clip
from pyflame_rt.ops.onnx.arithmetic import zeros_like
from pyflame_rt.ops.onnx.index import Gather
from pyflame_rt.ops.onnx.logic import Where
from pyflame_rt.ops.onnx.math import Tanh
from pyflame_rt.ops.onnx.matmul import MatMul
from pyflame_rt.ops.onnx.shape import Expand, Reshape, Transpose, Unsqueeze
from pyflame_rt.ops.onnx.slicing import Concat, Split
from pyflame_rt.ops.pyflame.recurrence import GRUResetSteps, GRUSteps, LSTMSteps, RNNSteps, backwards_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

State: TypeAlias = "tuple[Value, ...]"
Activation: TypeAlias = "Callable[[Value], Value]"

# Which of alpha and beta a function takes, and what they are when not given.
_PARAMETERS: dict[str, tuple[float | None, float | None]] = {
    "relu": (None, None),
    "tanh": (None, None),
    "sigmoid": (None, None),
    "softsign": (None, None),
    "softplus": (None, None),
    "affine": (1.0, 0.0),
    "leakyrelu": (0.01, None),
    "thresholdedrelu": (1.0, None),
    "scaledtanh": (1.0, 1.0),
    "hardsigmoid": (0.2, 0.5),
    "elu": (1.0, None),
}


def _activation(name: str, alpha: float | None, beta: float | None) -> Activation:
    from pyflame_rt.ops.onnx import activation as act

    match name:
        case "affine":
            return lambda x: x * alpha + beta
        case "scaledtanh":
            return lambda x: Tanh(x * beta) * alpha
        case "leakyrelu":
            return lambda x: act.LeakyRelu(x, alpha=alpha)
        case "thresholdedrelu":
            return lambda x: act.ThresholdedRelu(x, alpha=alpha)
        case "hardsigmoid":
            return lambda x: act.HardSigmoid(x, alpha=alpha, beta=beta)
        case "elu":
            return lambda x: act.Elu(x, alpha=alpha)
        case "relu":
            return act.Relu
        case "sigmoid":
            return act.Sigmoid
        case "softsign":
            return act.Softsign
        case "softplus":
            return act.Softplus
        case _:
            return Tanh


def _activations(
    names: Sequence[str], alphas: Sequence[float] | None, betas: Sequence[float] | None, clip: float | None
) -> list[Activation]:
    """The functions in order; each takes the next alpha and beta only if it has such a parameter."""
    left_a, left_b = list(alphas or ()), list(betas or ())
    result: list[Activation] = []
    for name in names:
        known = _PARAMETERS.get(name.lower())
        if known is None:
            raise InputError(f"activation {name!r} is none of {', '.join(_PARAMETERS)}")
        alpha, beta = known
        if alpha is not None and left_a:
            alpha = left_a.pop(0)
        if beta is not None and left_b:
            beta = left_b.pop(0)
        result.append(_clipped(_activation(name.lower(), alpha, beta), clip))
    return result


def _clipped(function: Activation, clip: float | None) -> Activation:

    if not clip:
        return function
    return lambda x: function(Clip(x, -clip, clip))


def _rnn_type(states: int) -> Callable[..., Any]:
    """The rule for a layer with one (h) or two (h, c) states."""

    def rule(
        X: Value,
        W: Value,
        R: Value,
        /,
        *_: Value | None,
        direction: str,
        hidden_size: int | None,
        layout: int,
        **__: Any,
    ) -> tuple[TensorType, ...]:
        x, r = X.tensor_type.shape, R.tensor_type.shape
        hidden: DimLike = r[2] if r is not None else hidden_size
        count = len(backwards_of(direction))
        steps, batch = (None, None) if x is None else (x[1], x[0]) if layout else (x[0], x[1])
        if layout:
            y, last = Shape([batch, steps, count, hidden]), Shape([batch, count, hidden])
        else:
            y, last = Shape([steps, count, batch, hidden]), Shape([count, batch, hidden])
        return (TensorType(X.dtype, y), *[TensorType(X.dtype, last)] * states)

    return rule


def recurrent_needs(gates: int, *, states: int = 1, turned: bool = False) -> Callable[..., Iterator[Within]]:
    """What a layer of so many gates requires of weights, biases, lengths and initial states.

    ``turned`` weights are [directions, inputs, gates], as quantized layers have them.
    """

    def needs(
        X: Value,
        W: Value,
        R: Value,
        B: Value | None = None,
        sequence_lens: Value | None = None,
        *rest: Value | None,
        direction: str,
        hidden_size: int | None,
        layout: int = 0,
        **_: Any,
    ) -> Iterator[Within]:
        _check_ranks(X, W, R)
        count, hidden = len(backwards_of(direction)), size_at(R, 1 if turned else 2)
        if hidden_size is not None:
            same_size("hidden_size", hidden_size, hidden, "as R has it")
        rows = _times(hidden, gates)
        steps, batch, inputs = size_at(X, layout), size_at(X, 1 - layout), size_at(X, 2)
        has_shape("W", W, [count, inputs, rows] if turned else [count, rows, inputs])
        has_shape("R", R, [count, hidden, rows] if turned else [count, rows, hidden])
        has_shape("B", B, [count, _times(rows, 2)], "directions, biases of inputs and of states")
        state = [batch, count, hidden] if layout else [count, batch, hidden]
        for name, given in zip(("initial_h", "initial_c"), rest[:states], strict=False):
            has_shape(name, given, state, "batch, directions, hidden" if layout else "directions, batch, hidden")
        if states == 2 and len(rest) > 2:
            has_shape("P", rest[2], [count, _times(hidden, 3)])
        has_shape("sequence_lens", sequence_lens, [batch], "batch")
        if sequence_lens is not None:
            yield Within("sequence_lens", sequence_lens, 0, steps)

    return needs


def _times(size: DimLike, factor: int) -> DimLike:
    return None if size is None else size * factor


@dataclass(frozen=True, slots=True)
class _Layer:
    """The parts of one direction that do not change from step to step."""

    batch: DimLike
    inputs: list[Value]  # per step: [batch, gates * hidden], bias of the input included
    recurrent: Value  # [hidden, gates * hidden]
    recurrent_bias: Value | None
    peepholes: Value | None
    functions: list[Activation]


def _pick(x: Value, index: int, axis: int = 0) -> Value:

    return Gather(x, constant(index, DType.Int64), axis=axis)


def _parts(x: Value, count: int, axis: int = -1) -> list[Value]:

    return [x] if count == 1 else list(Split(x, axis=axis, num_outputs=count))


def _run(
    step: Callable[[_Layer, Value, State], State],
    inputs: tuple[Value, Value, Value, Value | None],
    lengths: Value | None,
    initial: Sequence[Value | None],
    peepholes: Value | None,
    *,
    direction: str,
    layout: int,
    functions: Sequence[Activation],
) -> tuple[Value, ...]:
    """All outputs of a layer: the first state at every step, then every state after the last."""
    x, W, R, B = inputs
    _check_ranks(x, W, R)
    if layout:
        x = Transpose(x, perm=[1, 0, 2])
        initial = [None if s is None else Transpose(s, perm=[1, 0, 2]) for s in initial]
    backwards = backwards_of(direction)
    per = len(functions) // len(backwards)
    outputs: list[Value] = []
    ends: list[list[Value]] = []
    for i, back in enumerate(backwards):
        layer = _layer(x, W, R, B, peepholes, i, list(functions[i * per : (i + 1) * per]))
        starts = tuple(_start(layer, s, i) for s in initial)
        steps, last = _walk(step, layer, starts, lengths, backwards=back)
        outputs.append(Unsqueeze(steps, [1]))
        ends.append([Unsqueeze(s, [0]) for s in last])
    y = outputs[0] if len(outputs) == 1 else Concat(*outputs, axis=1)
    finals = [e[0] if len(e) == 1 else Concat(*e, axis=0) for e in zip(*ends, strict=True)]
    if layout:
        y = Transpose(y, perm=[2, 0, 1, 3])
        finals = [Transpose(s, perm=[1, 0, 2]) for s in finals]
    return (y, *finals)


def _check_ranks(x: Value, W: Value, R: Value) -> None:
    if x.rank != 3 or W.rank != 3 or R.rank != 3:
        raise ShapeMismatchError(f"X, W and R must have three axes, got shapes {x.shape}, {W.shape} and {R.shape}")


def _layer(
    X: Value, W: Value, R: Value, B: Value | None, P: Value | None, i: int, functions: list[Activation]
) -> _Layer:

    products = MatMul(X, Transpose(_pick(W, i), perm=[1, 0]))
    recurrent_bias = None
    if B is not None:
        input_bias, recurrent_bias = _parts(_pick(B, i), 2)
        products = products + input_bias
    steps = [_pick(products, t) for t in range(int(X.shape[0]))]  # type: ignore[arg-type]
    recurrent = Transpose(_pick(R, i), perm=[1, 0])
    return _Layer(X.shape[1], steps, recurrent, recurrent_bias, None if P is None else _pick(P, i), functions)


def _start(layer: _Layer, given: Value | None, i: int) -> Value:
    """A state before the first step: as given, or zeros."""
    if given is not None:
        return _pick(given, i)
    return Expand(constant(0, layer.recurrent), [layer.batch, layer.recurrent.shape[0]])


def _walk(
    step: Callable[[_Layer, Value, State], State],
    layer: _Layer,
    state: State,
    lengths: Value | None,
    *,
    backwards: bool,
) -> tuple[Value, State]:
    """The first state at every step, and all states at the end.

    A sequence that is over keeps its state and gives zeros; one that runs backwards has not
    begun as long as it is over.
    """
    count = len(layer.inputs)
    rows: list[Value | None] = [None] * count
    column = None if lengths is None else Unsqueeze(lengths, [1])
    for t in reversed(range(count)) if backwards else range(count):
        new = step(layer, layer.inputs[t], state)
        shown = new[0]
        if column is not None:
            alive = column > constant(t, column)
            shown = Where(alive, new[0], constant(0, new[0]))
            new = tuple(Where(alive, a, b) for a, b in zip(new, state, strict=True))
        state = new
        rows[t] = Unsqueeze(shown, [0])
    if not rows:
        return Expand(constant(0, state[0]), [0, *state[0].shape]), state
    return (rows[0] if count == 1 else Concat(*rows, axis=0)), state  # type: ignore[return-value]


def _recur(layer: _Layer, state: Value) -> Value:
    product = MatMul(state, layer.recurrent)
    return product if layer.recurrent_bias is None else product + layer.recurrent_bias


def _defaulted(activations: Sequence[str] | None, default: Sequence[str], direction: str) -> list[str]:
    count = len(backwards_of(direction))
    names = list(default) * count if not activations else list(activations)
    if len(names) < len(default) * count:
        raise InputError(f"{len(default) * count} activations are needed for direction {direction}, got {names}")
    return names[: len(default) * count]


def is_plain(X: Value, lengths: Value | None) -> bool:
    """Whether all sequences run through all steps, of which there are some."""
    return lengths is None and not (X.rank == 3 and 0 in X.shape)


@dataclass(frozen=True, slots=True)
class RecurrentForm:
    """A layer with the usual functions: what its steps need, and its outputs as ONNX has them."""

    inputs: tuple[Value, Value, Value, Value | None]
    direction: str
    layout: int

    def __post_init__(self) -> None:
        _check_ranks(*self.inputs[:3])

    def gates(self, bias: Value | None) -> Value:
        """What inputs and biases add to the gates of all steps, directions side by side."""
        x, weights = self.inputs[:2]
        x = Transpose(x, perm=[1, 0, 2]) if self.layout else x
        product = MatMul(x, Transpose(Reshape(weights, [-1, weights.shape[2]]), perm=[1, 0]))
        return product if bias is None else product + bias

    def whole_bias(self) -> Value | None:
        """The sum of both biases."""
        bias = self.inputs[3]
        if bias is None:
            return None
        mine, recurrent = _parts(bias, 2)
        return Reshape(mine + recurrent, [-1])

    def split_bias(self) -> tuple[Value | None, Value]:
        """Of a GRU: what is added to the gates, and [directions, hidden] what is added inside the reset."""
        recurrent, bias = self.inputs[2:]
        if bias is None:
            return None, Expand(constant(0, recurrent), [recurrent.shape[0], recurrent.shape[2]])
        mine, other = _parts(bias, 2)
        apart = _parts(other, 3)
        joined = mine + Concat(*apart[:2], zeros_like(apart[2]), axis=-1)
        return Reshape(joined, [-1]), apart[2]

    def states(self, *given: Value | None, like: Value | None = None) -> list[Value]:
        """States before the first step [directions, batch, hidden]: as given, or zeros (of the type of ``like``)."""
        x, _, recurrent, _ = self.inputs
        shape = [recurrent.shape[0], x.shape[0 if self.layout else 1], recurrent.shape[2]]
        kind = recurrent if like is None else like
        zero = None if all(s is not None for s in given) else Expand(constant(0, kind), shape)
        turned = [s if s is None or not self.layout else Transpose(s, perm=[1, 0, 2]) for s in given]
        return [zero if s is None else s for s in turned]  # type: ignore[misc]

    def outputs(self, y: Value, *last: Value) -> tuple[Value, ...]:
        """Steps with directions as an axis of their own, then the last states."""
        directions, _, hidden = self.inputs[2].shape
        apart = Reshape(y, [0, 0, directions, hidden])
        if self.layout:
            return Transpose(apart, perm=[1, 0, 2, 3]), *(Transpose(s, perm=[1, 0, 2]) for s in last)
        return Transpose(apart, perm=[0, 2, 1, 3]), *last


# ---------------------------------------------------------------------- the three layers


@operator(
    since=22,
    infer=_rnn_type(1),
    requires=recurrent_needs(1),
    types="T:float T T T int32 T > T T",
    kind="product",
    flops=recurrent_flops,
)
def RNN(
    X: Value,
    W: Value,
    R: Value,
    B: Value | None = None,
    sequence_lens: Value | None = None,
    initial_h: Value | None = None,
    /,
    *,
    activation_alpha: list[float] | None = None,
    activation_beta: list[float] | None = None,
    activations: list[str] = ["Tanh", "Tanh"],  # noqa: B006 - nobody changes it
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    layout: int = 0,
) -> tuple[Value, ...]:
    """A plain recurrent layer: H = f(X W' + H R' + b)."""
    names = _defaulted(activations, ["Tanh"], direction)
    kinds = {name.lower() for name in names}
    if kinds in ({"tanh"}, {"relu"}) and not clip and is_plain(X, sequence_lens):
        form = RecurrentForm((X, W, R, B), direction, layout)
        starts = form.states(initial_h)
        made = RNNSteps(form.gates(form.whole_bias()), R, *starts, direction=direction, activation=kinds.pop())
        return form.outputs(*made)
    functions = _activations(names, activation_alpha, activation_beta, clip)
    return _run(
        _rnn_step,
        (X, W, R, B),
        sequence_lens,
        [initial_h],
        None,
        direction=direction,
        layout=layout,
        functions=functions,
    )


def _rnn_step(layer: _Layer, x: Value, state: State) -> State:
    return (layer.functions[0](x + _recur(layer, state[0])),)


@operator(
    since=22,
    infer=_rnn_type(1),
    requires=recurrent_needs(3),
    types="T:float T T T int32 T > T T",
    kind="product",
    flops=recurrent_flops,
)
def GRU(
    X: Value,
    W: Value,
    R: Value,
    B: Value | None = None,
    sequence_lens: Value | None = None,
    initial_h: Value | None = None,
    /,
    *,
    activation_alpha: list[float] | None = None,
    activation_beta: list[float] | None = None,
    activations: list[str] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    layout: int = 0,
    linear_before_reset: int = 0,
) -> tuple[Value, ...]:
    """A gated recurrent layer; gates in the order update, reset, hidden."""
    names = _defaulted(activations, ["Sigmoid", "Tanh"], direction)
    functions = _activations(names, activation_alpha, activation_beta, clip)
    if not activations and not clip and is_plain(X, sequence_lens):
        form = RecurrentForm((X, W, R, B), direction, layout)
        if not linear_before_reset:
            starts = form.states(initial_h)
            return form.outputs(*GRUResetSteps(form.gates(form.whole_bias()), R, *starts, direction=direction))
        bias, hidden = form.split_bias()
        made = GRUSteps(form.gates(bias), R, hidden, *form.states(initial_h), direction=direction)
        return form.outputs(*made[:2])
    step = _gru_step_linear if linear_before_reset else _gru_step
    return _run(
        step, (X, W, R, B), sequence_lens, [initial_h], None, direction=direction, layout=layout, functions=functions
    )


def _gru_step_linear(layer: _Layer, x: Value, state: State) -> State:
    """The reset gate scales the product with the state."""
    (h,), (f, g) = state, layer.functions
    xz, xr, xh = _parts(x, 3)
    rz, rr, rh = _parts(_recur(layer, h), 3)
    update, reset = f(xz + rz), f(xr + rr)
    hidden = g(xh + reset * rh)
    return (hidden + update * (h - hidden),)


def _gru_step(layer: _Layer, x: Value, state: State) -> State:
    """The reset gate scales the state before the product."""
    (h,), (f, g) = state, layer.functions
    xz, xr, xh = _parts(x, 3)
    wz, wr, wh = _parts(layer.recurrent, 3)
    bz, br, bh = (None, None, None) if layer.recurrent_bias is None else _parts(layer.recurrent_bias, 3)
    update, reset = f(_plus(xz + MatMul(h, wz), bz)), f(_plus(xr + MatMul(h, wr), br))
    hidden = g(_plus(xh + MatMul(reset * h, wh), bh))
    return (hidden + update * (h - hidden),)


def _plus(x: Value, bias: Value | None) -> Value:
    return x if bias is None else x + bias


@operator(
    since=22,
    infer=_rnn_type(2),
    requires=recurrent_needs(4, states=2),
    types="T:float T T T int32 T T T > T T T",
    kind="product",
    flops=recurrent_flops,
)
def LSTM(
    X: Value,
    W: Value,
    R: Value,
    B: Value | None = None,
    sequence_lens: Value | None = None,
    initial_h: Value | None = None,
    initial_c: Value | None = None,
    P: Value | None = None,
    /,
    *,
    activation_alpha: list[float] | None = None,
    activation_beta: list[float] | None = None,
    activations: list[str] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    input_forget: int = 0,
    layout: int = 0,
) -> tuple[Value, ...]:
    """Long short-term memory; gates in the order input, output, forget, cell."""
    if not activations and not clip and P is None and not input_forget and is_plain(X, sequence_lens):
        form = RecurrentForm((X, W, R, B), direction, layout)
        starts = form.states(initial_h, initial_c)
        made = LSTMSteps(form.gates(form.whole_bias()), R, *starts, direction=direction)
        return form.outputs(*made[:3])
    functions = lstm_functions(activations, activation_alpha, activation_beta, clip, direction)
    return lstm_layer(
        (X, W, R, B), sequence_lens, [initial_h, initial_c], P, direction=direction, layout=layout,
        functions=functions, coupled=bool(input_forget),
    )  # fmt: skip


def lstm_functions(
    names: Sequence[str] | None,
    alphas: Sequence[float] | None,
    betas: Sequence[float] | None,
    clip: float | None,
    direction: str,
) -> list[Activation]:
    """The three activations of each direction of an LSTM."""
    return _activations(_defaulted(names, ["Sigmoid", "Tanh", "Tanh"], direction), alphas, betas, clip)


def lstm_layer(
    inputs: tuple[Value, Value, Value, Value | None],
    lengths: Value | None,
    initial: Sequence[Value | None],
    peepholes: Value | None,
    *,
    direction: str,
    functions: Sequence[Activation],
    layout: int = 0,
    coupled: bool = False,
    seen: Activation | None = None,
) -> tuple[Value, ...]:
    """An LSTM from its parts; ``seen`` is what the recurrent product gets to see of the state."""
    step = partial(_lstm, coupled=coupled, seen=seen)
    return _run(step, inputs, lengths, initial, peepholes, direction=direction, layout=layout, functions=functions)


def _lstm(layer: _Layer, x: Value, state: State, *, coupled: bool, seen: Activation | None) -> State:
    (h, c), (f, g, last) = state, layer.functions
    enter, leave, forget, cell = _parts(x + _recur(layer, h if seen is None else seen(h)), 4)
    peep_i, peep_o, peep_f = (None, None, None) if layer.peepholes is None else _parts(layer.peepholes, 3)
    i = f(_peep(enter, peep_i, c))
    kept = 1.0 - i if coupled else f(_peep(forget, peep_f, c))
    new_c = kept * c + i * g(cell)
    o = f(_peep(leave, peep_o, new_c))
    return o * last(new_c), new_c


def _peep(gate: Value, weight: Value | None, cell: Value) -> Value:
    return gate if weight is None else gate + weight * cell


@upgrade(["LSTM", "GRU", "RNN"], to=7)
def sequences_are_always_given(node: Node, up: Upgrade) -> Node:
    """Before 7, Y was only filled when asked for; GRU-1 misspelt its default direction."""
    kept = {name: value for name, value in node.attributes.items() if name != "output_sequence"}
    if kept.get("direction") == "foward":
        kept["direction"] = "forward"
    return node.replace(attributes=kept)
