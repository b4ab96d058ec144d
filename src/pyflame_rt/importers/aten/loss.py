"""Losses of aten."""

from __future__ import annotations

import math
from typing import Any

from pyflame_rt.graph import DType
from pyflame_rt.importers.aten.reduce import mean, summed
from pyflame_rt.importers.aten.table import aten
from pyflame_rt.importers.aten.values import cast, number, promoted, refuse, sizes
from pyflame_rt.ops.core.value import Value, constant
from pyflame_rt.ops.onnx.activation import Clip, LogSoftmax, Relu, Softplus
from pyflame_rt.ops.onnx.arithmetic import Abs
from pyflame_rt.ops.onnx.index import Gather
from pyflame_rt.ops.onnx.logic import Equal, Not, Where
from pyflame_rt.ops.onnx.loss import NegativeLogLikelihoodLoss
from pyflame_rt.ops.onnx.math import Exp, Log
from pyflame_rt.ops.onnx.shape import Reshape

__all__: list[str] = []

_NAMES = ("none", "mean", "sum")


def _reduce(x: Value, reduction: int) -> Value:
    return x if reduction == 0 else mean(x) if reduction == 1 else summed(x)


@aten("mse_loss")
def _mse(x: Value, target: Value, reduction: int = 1) -> Value:
    away = x - target
    return _reduce(away * away, reduction)


@aten("l1_loss")
def _l1(x: Value, target: Value, reduction: int = 1) -> Value:
    return _reduce(Abs(x - target), reduction)


@aten("smooth_l1_loss")
def _smooth_l1(x: Value, target: Value, reduction: int = 1, beta: float = 1.0) -> Value:
    away = Abs(x - target)
    if beta == 0:
        return _reduce(away, reduction)
    return _reduce(Where(away < float(beta), away * away * (0.5 / beta), away - 0.5 * beta), reduction)


@aten("huber_loss")
def _huber(x: Value, target: Value, reduction: int = 1, delta: float = 1.0) -> Value:
    away = Abs(x - target)
    return _reduce(Where(away <= float(delta), away * away * 0.5, (away - 0.5 * delta) * float(delta)), reduction)


@aten("nll_loss", "nll_loss_nd", "nll_loss2d")
def _nll(x: Value, target: Value, weight: Value | None = None, reduction: int = 1, ignore_index: int = -100) -> Value:
    return NegativeLogLikelihoodLoss(x, target, weight, ignore_index=int(ignore_index), reduction=_NAMES[reduction])


@aten("nll_loss_forward", "nll_loss2d_forward")
def _nll_forward(x: Value, target: Value, weight: Value | None, reduction: int, ignore_index: int) -> Any:
    seen = cast(Equal(target, constant(int(ignore_index), target)), x.dtype)
    if weight is not None:
        raise refuse("nll_loss_forward with weights")
    return _nll(x, target, weight, reduction, ignore_index), summed(1.0 - seen)


@aten("cross_entropy_loss")
def _cross_entropy(x: Value, target: Value, weight: Value | None = None, reduction: int = 1, ignore_index: int = -100,
                   label_smoothing: float = 0.0) -> Value:  # fmt: skip
    scores = LogSoftmax(x, axis=1 if x.rank > 1 else 0)
    if target.dtype.is_float:
        return _soft_targets(scores, target, weight, reduction, label_smoothing)
    if label_smoothing:
        return _smoothed(scores, target, weight, reduction, ignore_index, float(label_smoothing))
    if x.rank == 1:
        from pyflame_rt.ops.onnx.shape import Squeeze, Unsqueeze

        made = _nll(Unsqueeze(scores, [0]), Unsqueeze(target, [0]), weight, reduction, ignore_index)
        return Squeeze(made, [0]) if reduction == 0 else made
    return _nll(scores, target, weight, reduction, ignore_index)


def _smoothed(
    scores: Value, target: Value, weight: Value | None, reduction: int, ignore_index: int, share: float
) -> Value:
    """A share of the loss is that of all classes alike."""
    if scores.rank == 1:
        raise refuse("cross_entropy of one row with label_smoothing")
    rate = number(share, scores.dtype) / number(sizes(scores)[1], scores.dtype)
    seen = cast(Not(Equal(target, constant(int(ignore_index), target))), scores.dtype)
    own = _nll(scores, target, weight, 0, ignore_index)
    wide = scores if weight is None else scores * Reshape(weight, [1, -1, *[1] * (scores.rank - 2)])
    each = own * (1.0 - share) - summed(wide, 1) * seen * rate
    if reduction != 1:
        return _reduce(each, reduction)
    if weight is None:
        return summed(each) / summed(seen)
    safe = Where(cast(seen, DType.Bool), target, constant(0, target))
    return summed(each) / summed(Gather(weight, safe) * seen)


def _soft_targets(scores: Value, target: Value, weight: Value | None, reduction: int, smoothing: float) -> Value:
    along = 1 if scores.rank > 1 else 0
    if smoothing:
        count = number(sizes(scores)[along], scores.dtype)
        target = target * (1.0 - float(smoothing)) + number(float(smoothing), scores.dtype) / count
    weighed = scores if weight is None else scores * Reshape(weight, [-1, *[1] * (scores.rank - along - 1)])
    each = -summed(weighed * target, along)
    return _reduce(each, reduction)


@aten("binary_cross_entropy")
def _bce(x: Value, target: Value, weight: Value | None = None, reduction: int = 1) -> Value:
    least = constant(-100.0, x)
    each = -(target * Clip(Log(x), least) + (1.0 - target) * Clip(Log(1.0 - x), least))
    return _reduce(each if weight is None else each * weight, reduction)


@aten("binary_cross_entropy_with_logits")
def _bce_logits(x: Value, target: Value, weight: Value | None = None, pos_weight: Value | None = None,
                reduction: int = 1) -> Value:  # fmt: skip
    if pos_weight is None:
        each = Relu(x) - x * target + Softplus(-Abs(x))
    else:
        each = (1.0 - target) * x + (target * (pos_weight - 1.0) + 1.0) * (Softplus(-Abs(x)) + Relu(-x))
    return _reduce(each if weight is None else each * weight, reduction)


@aten("kl_div")
def _kl_div(x: Value, target: Value, reduction: int = 1, *, log_target: bool = False) -> Value:
    if log_target:
        return _reduce(Exp(target) * (target - x), reduction)
    zero = Equal(target, constant(0.0, target))
    safe = Where(zero, constant(1.0, target), target)
    return _reduce(target * (Log(safe) - x), reduction)


@aten("soft_margin_loss")
def _soft_margin(x: Value, target: Value, reduction: int = 1) -> Value:
    return _reduce(Softplus(-(target * x)), reduction)


@aten("margin_ranking_loss")
def _margin_ranking(x1: Value, x2: Value, target: Value, margin: float = 0.0, reduction: int = 1) -> Value:
    raised = promoted(-target * (x1 - x2), float(margin))
    return _reduce(Relu(raised[0] + raised[1]), reduction)


@aten("hinge_embedding_loss")
def _hinge_embedding(x: Value, target: Value, margin: float = 1.0, reduction: int = 1) -> Value:
    same = Where(Equal(target, constant(1, target)), x, constant(0.0, x))
    other = Where(Equal(target, constant(-1, target)), Relu(float(margin) - x), constant(0.0, x))
    return _reduce(same + other, reduction)


@aten("cosine_embedding_loss")
def _cosine_embedding(x1: Value, x2: Value, target: Value, margin: float = 0.0, reduction: int = 1) -> Value:
    from pyflame_rt.ops.onnx.math import Sqrt

    along, tiny = x1.rank - 1, 1e-12
    product = summed(x1 * x2, along)
    cosine = product / Sqrt((summed(x1 * x1, along) + tiny) * (summed(x2 * x2, along) + tiny))
    near = Where(Equal(target, constant(1, target)), 1.0 - cosine, constant(0.0, cosine))
    far = Where(Equal(target, constant(-1, target)), Relu(cosine - float(margin)), constant(0.0, cosine))
    return _reduce(near + far, reduction)


@aten("triplet_margin_loss")
def _triplet(anchor: Value, positive: Value, negative: Value, margin: float = 1.0, p: float = 2.0, eps: float = 1e-6,
             swap: bool = False, reduction: int = 1) -> Value:  # fmt: skip
    from pyflame_rt.importers.aten.norm import _pairwise_distance
    from pyflame_rt.ops.onnx.arithmetic import Min

    near, far = _pairwise_distance(anchor, positive, p, eps), _pairwise_distance(anchor, negative, p, eps)
    if swap:
        far = Min(far, _pairwise_distance(positive, negative, p, eps))
    return _reduce(Relu(near - far + float(margin)), reduction)


@aten("poisson_nll_loss")
def _poisson(x: Value, target: Value, log_input: bool, full: bool, eps: float, reduction: int) -> Value:
    each = Exp(x) - target * x if log_input else x - target * Log(x + float(eps))
    if full:  # Stirling's formula for the factorial
        above = target > 1.0
        safe = Where(above, target, constant(1.0, target))
        stirling = target * Log(safe) - target + Log(safe * (2 * math.pi)) * 0.5
        each = each + Where(above, stirling, constant(0.0, stirling))
    return _reduce(each, reduction)
