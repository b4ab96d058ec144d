"""Normalisations that exporters write out: LayerNormalization and RMSNormalization over the last axis."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyflame_rt.graph import DType
from pyflame_rt.ops.onnx.norm import LayerNormalization, RMSNormalization
from pyflame_rt.opt.rule import Match, NoMatch, rule

if TYPE_CHECKING:
    from collections.abc import Callable


def _centred(op: Any, x: Any, a: Any) -> Any:
    return op.Sub(x, op.ReduceMean(x, a, label="mean"), label="away")


def _deviation(op: Any, squares: Any, b: Any, e: Any) -> Any:
    return op.Sqrt(op.Add(op.ReduceMean(squares, b, label="variance"), e))


def _shifted(op: Any, normalised: Any, w: Any, s: Any) -> Any:
    return op.Add(op.Mul(normalised, w), s)


def _as_batch_norm(op: Any, x: Any, a: Any, b: Any, e: Any, w: Any, s: Any) -> Any:
    """As TensorFlow writes it: one product and one sum for each element."""
    mean = op.ReduceMean(x, a, label="mean")
    away = op.Sub(x, mean, label="away")
    factor = op.Mul(op.Reciprocal(_deviation(op, op.Mul(away, away), b, e)), w)
    return op.Add(op.Mul(x, factor), op.Sub(s, op.Mul(mean, factor)))


def _quotient(op: Any, d: Any, squares: Any, b: Any, e: Any) -> Any:
    return op.Div(d, _deviation(op, squares, b, e))


def _by_inverse(op: Any, d: Any, squares: Any, b: Any, e: Any) -> Any:
    return op.Mul(d, op.Reciprocal(_deviation(op, squares, b, e)))


def _by_one_over(op: Any, d: Any, squares: Any, b: Any, e: Any) -> Any:
    return op.Mul(d, op.Div(1.0, _deviation(op, squares, b, e)))


def _layer_norm(divided: Callable[..., Any], *, power: bool) -> Callable[..., Any]:
    """A picture of it: how the deviation divides, and how squares are made."""

    def picture(op: Any, x: Any, a: Any, b: Any, e: Any, w: Any, s: Any) -> Any:
        d = _centred(op, x, a)
        return _shifted(op, divided(op, d, op.Pow(d, 2.0) if power else op.Mul(d, d), b, e), w, s)

    return picture


def _rms_norm(divided: Callable[..., Any], *, power: bool) -> Callable[..., Any]:
    def picture(op: Any, x: Any, b: Any, e: Any, w: Any) -> Any:
        return op.Mul(divided(op, x, op.Pow(x, 2.0) if power else op.Mul(x, x), b, e), w)

    return picture


_WAYS = [(divided, power) for divided in (_quotient, _by_inverse, _by_one_over) for power in (True, False)]


@rule(
    *(_layer_norm(divided, power=power) for divided, power in _WAYS),
    _as_batch_norm,
    switch="fuse_normalization",
    turn=0,
    bound=64.0,
)
def layer_norm(m: Match, x: str, a: str, b: str, e: str, w: str, s: str) -> str | NoMatch:
    """Deviations from the mean of the last axis, over their root mean square, scaled and shifted."""
    reason = _unfit(m, x, [a, b], [w, s])
    epsilon = m.scalar(e)
    if reason or epsilon is None:
        return NoMatch(reason or "the epsilon is not a constant")
    return m.emit(LayerNormalization, [x, w, s], {"axis": -1, "epsilon": float(epsilon)})


@rule(
    *(_rms_norm(divided, power=power) for divided, power in _WAYS),
    switch="fuse_normalization",
    bound=64.0,
    own=True,
)
def rms_norm(m: Match, x: str, b: str, e: str, w: str) -> str | NoMatch:
    """Values over the root mean square of the last axis, scaled."""
    reason = _unfit(m, x, [b], [w])
    epsilon = m.scalar(e)
    if reason or epsilon is None:
        return NoMatch(reason or "the epsilon is not a constant")
    return m.emit(RMSNormalization, [x, w], {"axis": -1, "epsilon": float(epsilon)})


def _unfit(m: Match, x: str, axes: list[str], scales: list[str]) -> str:
    """Why a group is no normalisation over the last axis; empty when it is."""
    shape = m.shape(x)
    if shape is None or not shape or m.dtype(x) is not DType.Float32:  # statistics of the operators are float32
        return "the elements are not float32, or the rank is not known"
    for name in axes:
        given = m.editor.ints(name)
        if given is None or [axis % len(shape) for axis in given] != [len(shape) - 1]:
            return "the mean is over other axes"
    if any(not m.attr(label, "keepdims", 1) for label in ("mean", "variance") if label in m.labels):
        return "the axis is dropped"
    if any(m.shape(name) != (shape[-1],) for name in scales):
        return "the scale is not one number for each place of the axis"
    return ""
