"""Functions whose slope at a kink is not what their formula says: composites with a gradient rule of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyflame_rt.ops.core.registry import operator
from pyflame_rt.ops.core.type_rules import broadcast, same
from pyflame_rt.ops.onnx.activation import Clip
from pyflame_rt.ops.onnx.arithmetic import Max, unbroadcast
from pyflame_rt.ops.onnx.logic import Equal, Or, Where
from pyflame_rt.ops.onnx.math import Log, Sqrt

if TYPE_CHECKING:
    from pyflame_rt.ops.core.value import Value

__all__ = ["BinaryCrossEntropy", "FlatRoot", "HardTanh"]

OWN = "pyflame"
_LEAST_LOG = -100.0
_LEAST_SPREAD = 1e-12


def _root_vjp(g: Value, y: Value, x: Value) -> tuple[Value]:
    nothing = Equal(y, 0.0)
    return (Where(nothing, 0.0, g * 0.5 / Where(nothing, 1.0, y)),)


@operator(since=1, domain=OWN, infer=same, vjp=_root_vjp, types="T:float > T")
def FlatRoot(X: Value, /) -> Value:
    """Square root, with a slope of 0 at 0: for lengths and deviations."""
    return Sqrt(X)


def _hard_tanh_vjp(g: Value, y: Value, x: Value, *, low: float, high: float) -> tuple[Value]:
    return (Where(Or(x <= low, x >= high), 0.0, g),)


@operator(since=1, domain=OWN, infer=same, vjp=_hard_tanh_vjp, kind="activation")
def HardTanh(X: Value, /, *, low: float = -1.0, high: float = 1.0) -> Value:
    """Limited to ``low`` and ``high``, with a slope of 0 at both."""
    return Clip(X, low, high)


def _logs(x: Value) -> tuple[Value, Value]:
    return Max(Log(x), _LEAST_LOG), Max(Log(1.0 - x), _LEAST_LOG)


def _entropy_vjp(g: Value, y: Value, x: Value, target: Value) -> tuple[Value, Value]:
    yes, no = _logs(x)
    slope = g * (x - target) / Max((1.0 - x) * x, _LEAST_SPREAD)
    return unbroadcast(slope, x), unbroadcast(g * (no - yes), target)


@operator(since=1, domain=OWN, infer=broadcast, vjp=_entropy_vjp)
def BinaryCrossEntropy(X: Value, Target: Value, /) -> Value:
    """The loss of probabilities against zeros and ones; logarithms are at least -100, slopes are finite."""
    yes, no = _logs(X)
    return -(Target * yes + (1.0 - Target) * no)
