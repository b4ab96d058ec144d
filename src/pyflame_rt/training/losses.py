"""Losses as graph functions: values in, one number out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyflame_rt.graph.errors import InputError, ShapeMismatchError
from pyflame_rt.ops.onnx.activation import LogSoftmax, Softmax
from pyflame_rt.ops.onnx.loss import SoftmaxCrossEntropyLoss
from pyflame_rt.ops.onnx.math import Exp, Sqrt
from pyflame_rt.ops.onnx.reduce import ReduceMean, ReduceSum, ReduceSumSquare
from pyflame_rt.ops.onnx.shape import Reshape

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyflame_rt.graph import Graph
    from pyflame_rt.ops.core.registry import Op
    from pyflame_rt.ops.core.value import Value

__all__ = ["cosine", "cross_entropy", "kl_divergence", "logits_of", "mean_squared_error", "named_loss", "unit_rows"]


def _op(op: Op, *inputs: object, **attributes: object) -> Value:
    made = op(*inputs, **attributes)
    return made[0] if isinstance(made, tuple) else made


def cross_entropy(scores: Value, labels: Value) -> Value:
    """Mean negative log likelihood of classes (along the last axis), given by number."""
    if labels.rank != scores.rank - 1:
        raise ShapeMismatchError(
            f"labels of shape {list(labels.shape)} do not name classes of scores of shape {list(scores.shape)}"
        )
    if scores.rank > 2:
        scores = _op(Reshape, scores, [-1, scores.shape[-1]])
        labels = _op(Reshape, labels, [-1])
    return _op(SoftmaxCrossEntropyLoss, scores, labels)


def mean_squared_error(a: Value, b: Value) -> Value:
    """Mean of the squared differences."""
    away = a - b
    return _op(ReduceMean, away * away, keepdims=0)


def kl_divergence(student: Value, teacher: Value, temperature: float) -> Value:
    """Kullback-Leibler divergence of softened classes, times the temperature squared (Hinton et al., 2015)."""
    target = _op(LogSoftmax, teacher / temperature, axis=-1)
    own = _op(LogSoftmax, student / temperature, axis=-1)
    rows = _op(ReduceSum, _op(Exp, target) * (target - own), [-1], keepdims=0)
    return _op(ReduceMean, rows, keepdims=0) * (temperature * temperature)


def unit_rows(x: Value) -> Value:
    """Each row of a batch, all its elements in one, divided by its length."""
    flat = _op(Reshape, x, [x.shape[0], -1])
    length = _op(Sqrt, _op(ReduceSumSquare, flat, [-1], keepdims=1) + 1e-12)
    return flat / length


def cosine(a: Value, b: Value) -> Value:
    """One minus the mean cosine of the angle between rows."""
    return 1.0 - _op(ReduceMean, _op(ReduceSum, unit_rows(a) * unit_rows(b), [-1], keepdims=0), keepdims=0)


def named_loss(loss: str | Callable[..., Value]) -> Callable[..., Value]:
    """The loss function of a name; a function of (outputs, labels) is itself."""
    known = {"cross_entropy": cross_entropy, "mse": mean_squared_error}
    if callable(loss):
        return loss
    if loss not in known:
        raise InputError(f"loss is {loss!r}; known: {', '.join(known)}, or a function of values (outputs, labels)")
    return known[loss]


def logits_of(graph: Graph, output: str) -> str:
    """The scores before a last Softmax, or the output itself."""
    maker = graph.get_producer(output)
    if maker is not None and maker.op_type in (Softmax.name, LogSoftmax.name) and not maker.domain:
        return maker.inputs[0]
    return output
