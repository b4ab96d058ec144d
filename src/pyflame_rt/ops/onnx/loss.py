"""Losses, and dropout."""

from __future__ import annotations

from typing import Any

import numpy as np

from pyflame_rt.graph import DType, Node, TensorType
from pyflame_rt.graph.errors import DTypeMismatchError, InputError, ShapeMismatchError
from pyflame_rt.ops.core.guards import at_least, has_shape
from pyflame_rt.ops.core.registry import operator, primitive
from pyflame_rt.ops.core.upgrade import Upgrade, upgrade
from pyflame_rt.ops.core.value import Value, constant
from pyflame_rt.ops.onnx.activation import LogSoftmax
from pyflame_rt.ops.onnx.cast import Cast
from pyflame_rt.ops.onnx.index import Gather, GatherElements, ScatterElements
from pyflame_rt.ops.onnx.logic import Equal, Not, Or, Where
from pyflame_rt.ops.onnx.math import Exp, Log
from pyflame_rt.ops.onnx.reduce import ReduceMax, ReduceMean, ReduceSum
from pyflame_rt.ops.onnx.shape import Expand, Reshape, Squeeze, Unsqueeze
from pyflame_rt.ops.onnx.shape import Shape as ShapeOf


@operator(since=22, types="T:float Tind T > T")
def NegativeLogLikelihoodLoss(
    input: Value,
    target: Value,
    weight: Value | None = None,
    /,
    *,
    ignore_index: int | None = None,
    reduction: str = "mean",
) -> Value:
    """Minus the log probability of each target, weighted by class."""
    if input.rank < 2 or target.rank != input.rank - 1:
        raise ShapeMismatchError(f"input of shape {input.shape} does not fit targets of shape {target.shape}")
    ignored = None if ignore_index is None else Equal(target, ignore_index)
    # An ignored target may lie outside of the classes.
    safe = target if ignored is None else Where(ignored, constant(0, target), target)
    loss = -Squeeze(GatherElements(input, Unsqueeze(safe, [1]), axis=1), [1])
    weights = None if weight is None else Gather(weight, safe, axis=0)
    if ignored is not None:
        ones = constant(1, input) if weights is None else weights
        weights = Where(ignored, constant(0, input), ones)
    if weights is not None:
        loss = loss * weights
    match reduction:
        case "none":
            return loss
        case "sum":
            return ReduceSum(loss, keepdims=0)
        case "mean" if weights is None:
            return ReduceMean(loss, keepdims=0)
        case "mean":
            return ReduceSum(loss, keepdims=0) / ReduceSum(weights, keepdims=0)
        case _:
            raise InputError(f"reduction {reduction!r} is none of none, sum, mean")


@operator(since=13, types="T:float Tind T > T T")
def SoftmaxCrossEntropyLoss(
    scores: Value,
    labels: Value,
    weights: Value | None = None,
    /,
    *,
    ignore_index: int | None = None,
    reduction: str = "mean",
) -> tuple[Value, Value]:
    """Negative log likelihood of softmax(scores), and the log probabilities."""
    log_prob = LogSoftmax(scores, axis=1)
    return NegativeLogLikelihoodLoss(
        log_prob, labels, weights, ignore_index=ignore_index, reduction=reduction
    ), log_prob


# ---------------------------------------------------------------------- the class of each sample


def _one_of_each(X: Value, **others: Value) -> None:
    """One number of each of the others for each sample of X."""
    at_least("the rank of X", X.rank, 2)
    for name, value in others.items():
        has_shape(name, value, [X.shape[0], 1, *X.shape[2:]], "one for each sample")


def _score_grad_needs(G: Value, X: Value, Index: Value, Top: Value, LogSum: Value, /) -> None:
    _one_of_each(X, G=G, Index=Index, Top=Top, LogSum=LogSum)


def _score_needs(X: Value, Index: Value, /) -> None:
    _one_of_each(X, Index=Index)


@operator(since=1, domain="pyflame", requires=_score_grad_needs)
def ClassScoreGrad(G: Value, X: Value, Index: Value, Top: Value, LogSum: Value, /) -> Value:
    """The gradient of ClassScore towards X, from what it returned."""
    others = -(Exp((X - Top) - LogSum) * G)
    return ScatterElements(others, Index, G, axis=1, reduction="add")


def _class_score_vjp(
    g: tuple[Value | None, ...], y: tuple[Value, ...], X: Value, Index: Value, /
) -> tuple[Value | None, Value | None]:
    score, top, log = g
    dx = None if score is None else ClassScoreGrad(score, X, Index, y[1], y[2])
    if top is None and log is None:
        return dx, None
    # Scores do not change with the largest one, but what is left of the sum does.
    largest = Cast(Equal(X, y[1]), to=X.dtype)
    along = constant(0.0, X) if top is None else top
    if log is not None:
        spread = Exp((X - y[1]) - y[2]) * log
        along, dx = along - log, spread if dx is None else dx + spread
    bent = largest / ReduceSum(largest, [1]) * along
    return bent if dx is None else dx + bent, None


@operator(since=1, domain="pyflame", vjp=_class_score_vjp, partial=True, requires=_score_needs)
def ClassScore(X: Value, Index: Value, /) -> tuple[Value, Value, Value]:
    """LogSoftmax of X [N, C] at one class of each sample, Index [N, 1].

    And what it was made from: the largest of each row, and the logarithm of the sum of the others' shares.
    """
    top = ReduceMax(X, [1])
    log = Log(ReduceSum(Exp(X - top), [1]))
    return (GatherElements(X, Index, axis=1) - top) - log, top, log


# ---------------------------------------------------------------------- Dropout


def _mask_type(data: Value, ratio: Value, /, *, seed: int | None) -> TensorType:
    return TensorType(DType.Bool, data.tensor_type.shape)


@primitive(since=1, domain="pyflame", infer=_mask_type, random=True)
def DropoutMask(ops: Any, data: Any, ratio: Any, /, *, seed: int | None = None) -> Any:
    """True with probability 1 - ratio, for every element of data."""
    if seed is None:
        drawn = ops.random_uniform(tuple(data.shape), dtype=np.dtype(np.float32))
        return ops.greater_equal(drawn, ops.cast(ratio, np.dtype(np.float32)))
    # A seed asks for one certain mask on every library: the one ONNX's own test cases hold.
    fixed = np.random.RandomState(seed & 0xFFFFFFFF).uniform(size=tuple(data.shape))
    return ops.convert_to_tensor(fixed >= ops.to_numpy(ratio).astype(np.float64), np.dtype(np.bool_))


@operator(since=22, random=True, types="T:float T1 bool > T bool", kind="activation")
def Dropout(
    data: Value, ratio: Value | None = None, training_mode: Value | None = None, /, *, seed: int | None = None
) -> tuple[Value, Value]:
    """Zero some elements at random and scale up the others, while training; and the mask of those kept."""
    if training_mode is not None and training_mode.dtype is not DType.Bool:
        raise DTypeMismatchError(f"training_mode must be bool, got {training_mode.type}")
    everything = Expand(constant(True, DType.Bool), ShapeOf(data))
    if training_mode is None or _known(training_mode) is False:
        return data, everything
    share = constant(0.5, DType.Float32) if ratio is None else Reshape(ratio, [])
    if _known(share) == 0.0:
        return data, everything
    mask = DropoutMask(data, share, seed=seed)
    kept = 1.0 - Cast(share, to=DType.Float32)
    # With ratio 1 nothing is kept, and nothing must become NaN.
    factor = Where(Equal(kept, 0.0), constant(0.0, kept), 1.0 / Where(Equal(kept, 0.0), constant(1.0, kept), kept))
    if _known(training_mode) is None:
        training = Reshape(training_mode, [])
        mask = Or(mask, Not(training))
        factor = Where(training, factor, constant(1.0, factor))
    return Where(mask, data * Cast(factor, to=data.dtype), constant(0, data)), mask


def _known(x: Value) -> Any:
    """The content of a scalar, or None."""
    return None if x.known is None else x.known.ravel()[0].item()


@upgrade("Dropout", to=7)
def dropout_tells_the_mode(node: Node, up: Upgrade) -> Node:
    """Before 7, is_test=0 (the default) meant training."""
    kept = {k: v for k, v in node.attributes.items() if k not in ("consumed_inputs", "is_test")}
    if not node.get_attr("is_test", 0):
        kept["training"] = 1
    return node.replace(attributes=kept)


@upgrade("Dropout", to=10)
def dropout_mask_is_boolean(node: Node, up: Upgrade) -> Node | list[Node]:
    """Before 10, the mask had the element type of the data."""
    if len(node.outputs) < 2 or not node.outputs[1]:
        return node
    mask = up.fresh("mask")
    return [
        node.replace(outputs=[node.outputs[0], mask]),
        Node(f"{node.name}_mask", "CastLike", [mask, node.inputs[0]], [node.outputs[1]]),
    ]


@upgrade("Dropout", to=12)
def dropout_ratio_became_an_input(node: Node, up: Upgrade) -> Node | list[Node]:
    """Before 12, the ratio was an attribute, and the mask of one that drops nothing was all false (in onnxruntime)."""
    training = bool(node.get_attr("training", 0))
    ratio = up.constant(node.get_attr("ratio", 0.5), np.float32)
    node = node.replace(inputs=[node.inputs[0], ratio, up.constant(training, np.bool_)], attributes={})
    if training or len(node.outputs) < 2 or not node.outputs[1]:
        return node
    kept = up.fresh("kept")
    return [
        node.replace(outputs=[node.outputs[0], kept]),
        Node(f"{node.name}_none_dropped", "Not", [kept], [node.outputs[1]]),
    ]
