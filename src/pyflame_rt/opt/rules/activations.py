"""Activations that exporters write out: Swish, Gelu by erf and by tanh, HardSwish."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from pyflame_rt.graph import DType
from pyflame_rt.ops.onnx.activation import Gelu, HardSwish, Swish
from pyflame_rt.opt.rule import Match, NoMatch, rule

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyflame_rt.ops.core.registry import Op

_ROOT = math.sqrt(2.0)
_FACTOR = math.sqrt(2.0 / math.pi)
_CUBE = 0.044715
_WIDE = (DType.Float32, DType.Float64)


@rule(lambda op, x: op.Mul(x, op.Sigmoid(x)), switch="fuse_activations", own=True)
def silu(m: Match, x: str) -> str | NoMatch:
    """A value times its sigmoid."""
    return m.emit(Swish, [x]) if m.dtype(x) in _WIDE else NoMatch("the elements are not float32 or float64")


@rule(lambda op, x, c: op.Mul(x, op.Sigmoid(op.Mul(x, c))), switch="fuse_activations", own=True)
def scaled_silu(m: Match, x: str, c: str) -> str | NoMatch:
    """A value times the sigmoid of a multiple of it, as the quick form of Gelu is."""
    factor = m.scalar(c)
    rank, added = m.editor.rank(x), m.editor.rank(c)
    if factor is None or not math.isfinite(factor) or factor == 1.0:
        return NoMatch("the factor is not a constant number")
    if m.dtype(x) is not DType.Float32:
        return NoMatch("the elements are not float32, as the attribute is")
    if rank is None or added is None or added > rank:
        return NoMatch("the factor adds axes")
    return m.emit(Swish, [x], {"alpha": float(factor)})


def _halved(gate: Callable[..., Any], way: int) -> Callable[..., Any]:
    """Half of a value times its gate: which of the three products comes first."""

    def picture(op: Any, x: Any) -> Any:
        if way == 0:
            return op.Mul(op.Mul(x, 0.5), gate(op, x))
        return op.Mul(op.Mul(x, gate(op, x)), 0.5) if way == 1 else op.Mul(x, op.Mul(gate(op, x), 0.5))

    return picture


def _by_erf(argument: Callable[..., Any]) -> Callable[..., Any]:
    return lambda op, x: op.Add(op.Erf(argument(op, x)), 1.0)


def _by_tanh(argument: Callable[..., Any]) -> Callable[..., Any]:
    return lambda op, x: op.Add(op.Tanh(argument(op, x)), 1.0)


_ERF = [_by_erf(lambda op, x: op.Div(x, _ROOT)), _by_erf(lambda op, x: op.Mul(x, 1 / _ROOT))]
_TANH = [
    _by_tanh(lambda op, x: op.Mul(op.Add(x, op.Mul(op.Pow(x, 3.0), _CUBE)), _FACTOR)),
    _by_tanh(lambda op, x: op.Mul(op.Add(x, op.Mul(op.Mul(op.Mul(x, x), x), _CUBE)), _FACTOR)),
    _by_tanh(lambda op, x: op.Mul(op.Mul(x, _FACTOR), op.Add(op.Mul(op.Mul(x, x), _CUBE), 1.0))),
    _by_tanh(lambda op, x: op.Mul(op.Mul(x, op.Add(op.Mul(op.Mul(x, x), _CUBE), 1.0)), _FACTOR)),
]


@rule(*(_halved(gate, way) for gate in _ERF for way in range(3)), switch="fuse_activations", bound=8.0)
def gelu(m: Match, x: str) -> str | NoMatch:
    """Gelu by the error function."""
    return _activation(m, x, Gelu)


@rule(*(_halved(gate, way) for gate in _TANH for way in range(3)), switch="fuse_activations", bound=8.0)
def gelu_tanh(m: Match, x: str) -> str | NoMatch:
    """Gelu by its approximation with tanh."""
    return _activation(m, x, Gelu, {"approximate": "tanh"})


@rule(
    lambda op, x: op.Mul(x, op.HardSigmoid(x, label="hard")),
    lambda op, x: op.Div(op.Mul(x, op.Clip(op.Add(x, 3.0), 0.0, 6.0)), 6.0),
    lambda op, x: op.Mul(x, op.Div(op.Clip(op.Add(x, 3.0), 0.0, 6.0), 6.0)),
    switch="fuse_activations",
    bound=4.0,
)
def hard_swish(m: Match, x: str) -> str | NoMatch:
    """A value times a ramp from 0 to 1 over its neighbourhood of 0."""
    node = m.labels.get("hard")
    if node is not None:
        alpha, beta = node.get_attr("alpha", 0.2), node.get_attr("beta", 0.5)
        if abs(alpha - 1 / 6) > 1e-8 or beta != 0.5:
            return NoMatch("the ramp is another one")
    return _activation(m, x, HardSwish)


def _activation(m: Match, x: str, op: Op, attributes: dict[str, str] | None = None) -> str | NoMatch:
    """One operator for a value of floats that keeps its shape: constants of another rank would broadcast it."""
    kind, shape = m.dtype(x), m.shape(x)
    if kind not in _WIDE and kind is not DType.Float16:
        return NoMatch("the elements are not floats")
    after = m.shape(m.matched[0].outputs[0])
    if shape is None or after is None or len(shape) != len(after):
        return NoMatch("the ranks differ, or are not known")
    return m.emit(op, [x], attributes)
