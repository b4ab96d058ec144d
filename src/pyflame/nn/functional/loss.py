"""How far predictions are from the truth."""

from __future__ import annotations

import math
import warnings
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from pyflame.dtypes import DType
from pyflame.lazy import modes
from pyflame.nn.functional.windows import has_shape, same_rank, spread_to
from pyflame.ops import linalg
from pyflame.ops.activation import log_softmax, logsigmoid, softplus
from pyflame.ops.arithmetic import abs as absolute
from pyflame.ops.arithmetic import clamp_min, minimum, where
from pyflame.ops.core import Handle, as_tensor, call, call_many, cast, operands, real_only, rounded_once
from pyflame.ops.creation import zeros_like
from pyflame.ops.pointwise import exp, log, sqrt, xlogy
from pyflame.ops.precision import full_precision
from pyflame.ops.ranges import OutOfRangeError, numbers_within, probabilities, whole_numbers
from pyflame.ops.reduction import norm
from pyflame.outline import outlined
from pyflame_rt.graph.errors import ShapeMismatchError
from pyflame_rt.ops.onnx.index import Gather, GatherElements
from pyflame_rt.ops.onnx.loss import ClassScore
from pyflame_rt.ops.pyflame.slopes import BinaryCrossEntropy

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyflame.tensors import Tensor

__all__ = [
    "Reduction",
    "bce_loss",
    "bce_with_logits",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "cosine_embedding_loss",
    "cosine_similarity",
    "cross_entropy",
    "gaussian_nll_loss",
    "hinge_embedding_loss",
    "huber_loss",
    "kl_div",
    "l1_loss",
    "margin_ranking_loss",
    "mse_loss",
    "multi_margin_loss",
    "nll_loss",
    "pairwise_distance",
    "poisson_nll_loss",
    "reduced",
    "smooth_l1_loss",
    "soft_margin_loss",
    "triplet_margin_loss",
]


class Reduction(StrEnum):
    """What becomes of the losses of the elements.

    Example:
        >>> from pyflame.nn import Reduction
        >>> Reduction("mean") is Reduction.MEAN
        True
    """

    NONE = "none"
    MEAN = "mean"
    SUM = "sum"


def reduced(losses: Tensor, reduction: Reduction | str) -> Tensor:
    """The losses themselves, their mean or their sum."""
    match Reduction(reduction):
        case Reduction.NONE:
            return losses
        case Reduction.MEAN:
            return losses.mean()
        case Reduction.SUM:
            return losses.sum()


def _same(input: Any, target: Any) -> None:
    if list(input.shape) != list(target.shape):
        raise ShapeMismatchError(
            f"input and target must have the same shape. Received: {list(input.shape)} and {list(target.shape)}"
        )


@full_precision
def mse_loss(input: Any, target: Any, reduction: Reduction | str = "mean") -> Tensor:
    """Squared differences.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.functional.mse_loss(pf.tensor([1.0, 2.0]), pf.tensor([1.0, 4.0])).numpy().item()
        2.0
    """
    _warn_of_broadcast(input, target)
    for given in (input, target):
        real_only("mse_loss", given)
    return _mean_square(input, target, reduction)


@outlined
def _mean_square(input: Any, target: Any, reduction: Reduction | str) -> Tensor:
    difference = input - target
    return reduced(difference * difference, reduction)


def _warn_of_broadcast(input: Any, target: Any) -> None:
    """Other shapes than equal ones are rarely what is meant."""
    if hasattr(target, "shape") and tuple(input.shape) != tuple(target.shape):
        warnings.warn(
            f"a target of shape {list(target.shape)} for an input of {list(input.shape)} is broadcast; "
            "give them equal shapes",
            stacklevel=5,
        )


def _difference(input: Any, target: Any) -> Tensor:
    """Element by element."""
    _warn_of_broadcast(input, target)
    return input - target


@full_precision
def l1_loss(input: Any, target: Any, reduction: Reduction | str = "mean") -> Tensor:
    """Absolute differences.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.functional.l1_loss(pf.tensor([1.0, 2.0]), pf.tensor([1.0, 4.0])).numpy().item()
        1.0
    """
    return reduced(absolute(_difference(input, target)), reduction)


@full_precision
def smooth_l1_loss(input: Any, target: Any, reduction: Reduction | str = "mean", beta: float = 1.0) -> Tensor:
    """Squared below `beta`, absolute above.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.functional.smooth_l1_loss(pf.tensor([0.0, 3.0]), pf.tensor([1.0, 0.0])).numpy().item()
        1.5
    """
    if beta < 0:
        raise ValueError(f"beta must not be negative. Received: {beta}")
    if beta == 0:
        return l1_loss(input, target, reduction)
    size = absolute(_difference(input, target))
    return reduced(where(size < beta, size * size * (0.5 / beta), size - 0.5 * beta), reduction)


@full_precision
def huber_loss(input: Any, target: Any, reduction: Reduction | str = "mean", delta: float = 1.0) -> Tensor:
    """Squared below `delta`, linear above.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.functional.huber_loss(pf.tensor([3.0]), pf.tensor([0.0]), delta=2.0).numpy().item()
        4.0
    """
    if delta <= 0:
        raise ValueError(f"delta must be positive. Received: {delta}")
    size = absolute(_difference(input, target))
    return reduced(where(size < delta, size * size * 0.5, (size - 0.5 * delta) * delta), reduction)


def _picked(scores: Any, target: Any) -> Tensor:
    """The score of each sample's own class: `scores[n, target[n, ...], ...]`."""
    return call(GatherElements, scores, target.unsqueeze(1), axis=1).squeeze(1)


def classes_of(target: Any, count: int, ignore_index: int) -> tuple[Tensor, Tensor]:
    """Where samples have a class, and the classes, 0 for those without one.

    Classes that are known are checked at once, others when they are computed.
    """
    whole_numbers(target, "target")
    checked = _refuse_known(target, count, ignore_index)
    target = cast(target, DType.int64)
    known = target != ignore_index
    safe = where(known, target, zeros_like(target))
    return known, safe if checked else numbers_within(safe, 0, count, "target")


def _refuse_known(target: Any, count: int, ignore_index: int) -> bool:
    """Refuse classes that there are not; whether they are known already."""
    array = target._value.array
    if array is None or modes.tracer is not None:
        return False
    if array.size and (array.min() < 0 or array.max() >= count):
        wrong = (array != ignore_index) & ((array < 0) | (array >= count))
        if wrong.any():
            raise OutOfRangeError(f"target {array[wrong][0]} is out of range: there are {count} classes, from 0 on")
    return True


def _log_shares(scores: Any, target: Tensor) -> Tensor:
    """The logarithm of softmax at each sample's own class, of scores [N, C]."""
    return call_many(ClassScore, scores, target.unsqueeze(1))[0].squeeze(1)


def nll_loss(
    input: Any, target: Any, weight: Any = None, ignore_index: int = -100, reduction: Reduction | str = "mean"
) -> Tensor:
    """Minus the log-probability of the true class; `input` is [N, C, ...] or [C].

    Example:
        >>> import pyflame as pf
        >>> scores = pf.tensor([[-0.5, -1.0]])
        >>> pf.nn.functional.nll_loss(scores, pf.tensor([1], dtype=pf.int64)).numpy().item()
        1.0
    """
    _look_at_classes(input, target, ignore_index)
    return _nll_loss(input, target, weight, ignore_index, reduction)


def _look_at_classes(input: Any, target: Any, ignore_index: int) -> None:
    """Refuse at once what can be known to be wrong; the rest is refused by the graph."""
    rank = len(input.shape)
    if rank and isinstance(target, Handle) and not target._value.spec.real:
        _refuse_known(target, int(input.shape[1 if rank > 1 else 0]), ignore_index)


@outlined
@full_precision
def _nll_loss(input: Any, target: Any, weight: Any, ignore_index: int, reduction: Reduction | str) -> Tensor:
    if len(input.shape) == 1:
        loss = nll_loss(input.unsqueeze(0), target.unsqueeze(0), weight, ignore_index, reduction)
        return loss.squeeze(0) if Reduction(reduction) is Reduction.NONE else loss
    if list(input.shape[:1]) + list(input.shape[2:]) != list(target.shape):
        raise ShapeMismatchError(
            f"target must be [N, ...] for [N, C, ...]. Received: {list(target.shape)}, {list(input.shape)}"
        )
    return _of_classes(input, target, weight, ignore_index, reduction, _picked)


def _of_classes(
    input: Any,
    target: Any,
    weight: Any,
    ignore_index: int,
    reduction: Reduction | str,
    score: Callable[[Any, Tensor], Tensor],
) -> Tensor:
    """Minus the score of each sample's own class; those without one count nothing."""
    classes = int(input.shape[1])
    has_shape("weight (one number for each class)", weight, [classes])
    known, safe = classes_of(target, classes, ignore_index)
    losses = -score(input, safe)
    shares = cast(known, input.dtype)
    if weight is not None:
        shares = shares * call(Gather, weight, safe, axis=0)
    losses = where(known, losses * shares, zeros_like(losses))
    return losses.sum() / shares.sum() if Reduction(reduction) is Reduction.MEAN else reduced(losses, reduction)


def cross_entropy(
    input: Any,
    target: Any,
    weight: Any = None,
    ignore_index: int = -100,
    reduction: Reduction | str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """The loss of logits [N, C, ...] against class numbers [N, ...] or probabilities [N, C, ...].

    Example:
        >>> import pyflame as pf
        >>> loss = pf.nn.functional.cross_entropy(pf.zeros([2, 4]), pf.tensor([0, 3], dtype=pf.int64))
        >>> round(loss.numpy().item(), 4)
        1.3863
    """
    _look_at_classes(input, target, ignore_index)
    return _cross_entropy(input, target, weight, ignore_index, reduction, label_smoothing)


@outlined
@full_precision
def _cross_entropy(
    input: Any, target: Any, weight: Any, ignore_index: int, reduction: Reduction | str, label_smoothing: float
) -> Tensor:
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"label_smoothing must be from 0 to 1. Received: {label_smoothing}")
    axis = 0 if len(input.shape) == 1 else 1
    has_shape("weight (one number for each class)", weight, input.shape[axis : axis + 1])
    if not label_smoothing and _are_classes(input, target):
        return _of_classes(input, target, weight, ignore_index, reduction, _log_shares)
    scores = log_softmax(input, dim=axis)
    if target.dtype.is_floating_point and list(target.shape) == list(input.shape):
        return _soft_targets(scores, target, weight, axis, reduction, label_smoothing)
    loss = nll_loss(scores, target, weight, ignore_index, reduction)
    if not label_smoothing:
        return loss
    smooth = _smoothed(scores, target, weight, ignore_index, reduction, axis)
    return (1 - label_smoothing) * loss + (label_smoothing / input.shape[axis]) * smooth


def _are_classes(input: Any, target: Any) -> bool:
    """Whether the operator for one class of each row takes scores and targets."""
    plain = input.dtype in (DType.float32, DType.float64) and not target.dtype.is_floating_point
    return plain and len(input.shape) == 2 and list(target.shape) == list(input.shape[:1]) and input.shape[1] > 0


def _spread(weight: Any, rank: int, axis: int) -> Any:
    return weight.reshape([-1 if dim == axis else 1 for dim in range(rank)])


def _soft_targets(
    scores: Tensor, target: Any, weight: Any, axis: int, reduction: Reduction | str, smoothing: float
) -> Tensor:
    if smoothing:
        target = target * (1 - smoothing) + smoothing / scores.shape[axis]
    terms = scores * target
    if weight is not None:
        terms = terms * _spread(weight, len(scores.shape), axis)
    losses = -terms.sum(dim=axis)
    if Reduction(reduction) is Reduction.MEAN:
        return losses.sum() / max(math.prod(losses.shape), 1)
    return reduced(losses, reduction)


def _smoothed(
    scores: Tensor, target: Any, weight: Any, ignore_index: int, reduction: Reduction | str, axis: int
) -> Tensor:
    """The losses of all classes alike, as label smoothing wants them."""
    terms = scores if weight is None else scores * _spread(weight, len(scores.shape), axis)
    known, safe = classes_of(target, int(scores.shape[axis]), ignore_index)
    losses = -terms.sum(dim=axis)
    losses = where(known, losses, zeros_like(losses))
    if Reduction(reduction) is not Reduction.MEAN:
        return reduced(losses, reduction)
    shares = cast(known, scores.dtype)
    if weight is not None:
        shares = shares * call(Gather, weight, safe, axis=0)
    return losses.sum() / shares.sum()


@outlined
@full_precision
@rounded_once
def binary_cross_entropy(input: Any, target: Any, weight: Any = None, reduction: Reduction | str = "mean") -> Tensor:
    """The loss of probabilities against zeros and ones; logarithms are bounded below by -100, as in torch.

    Example:
        >>> import pyflame as pf
        >>> loss = pf.nn.functional.binary_cross_entropy(pf.tensor([0.5]), pf.tensor([1.0]))
        >>> round(loss.numpy().item(), 4)
        0.6931
    """
    _same(input, target)
    losses = call(BinaryCrossEntropy, *operands(probabilities(input, "input"), target))
    return reduced(losses if weight is None else losses * weight, reduction)


@outlined
@full_precision
@rounded_once
def binary_cross_entropy_with_logits(
    input: Any, target: Any, weight: Any = None, reduction: Reduction | str = "mean", pos_weight: Any = None
) -> Tensor:
    """The loss of logits against zeros and ones.

    Example:
        >>> import pyflame as pf
        >>> loss = pf.nn.functional.binary_cross_entropy_with_logits(pf.zeros([1]), pf.ones([1]))
        >>> round(loss.numpy().item(), 4)
        0.6931
    """
    _same(input, target)
    yes = -logsigmoid(input)
    if pos_weight is None:
        losses = (1 - target) * input + yes
    else:
        losses = (1 - target) * input + (1 + (pos_weight - 1) * target) * yes
    return reduced(losses if weight is None else losses * weight, reduction)


bce_loss = binary_cross_entropy
bce_with_logits = binary_cross_entropy_with_logits


@outlined
@full_precision
def kl_div(input: Any, target: Any, reduction: Reduction | str = "mean", log_target: bool = False) -> Tensor:
    """The divergence of the target from log-probabilities; "batchmean" divides by the batch, as the definition does.

    Example:
        >>> import pyflame as pf
        >>> p = pf.tensor([[0.5, 0.5]])
        >>> abs(pf.nn.functional.kl_div(pf.log(p), p, reduction="batchmean").numpy().item())
        0.0
    """
    if log_target:
        terms = exp(target) * (target - input)
    else:
        terms = xlogy(target, target) - target * input
    if reduction == "batchmean":
        return terms.sum() / input.shape[0] if input.shape else terms.sum()
    return reduced(terms, reduction)


@full_precision
@rounded_once
def poisson_nll_loss(
    input: Any,
    target: Any,
    log_input: bool = True,
    full: bool = False,
    eps: float = 1e-8,
    reduction: Reduction | str = "mean",
) -> Tensor:
    """The loss of counts under a Poisson rate (or its logarithm).

    Example:
        >>> import pyflame as pf
        >>> pf.nn.functional.poisson_nll_loss(pf.zeros([1]), pf.ones([1])).numpy().item()
        1.0
    """
    losses = exp(input) - target * input if log_input else input - target * log(input + eps)
    if full:
        stirling = target * log(target) - target + 0.5 * log(2 * math.pi * target)
        losses = losses + where(target > 1, stirling, zeros_like(target))
    return reduced(losses, reduction)


@full_precision
def gaussian_nll_loss(
    input: Any, target: Any, var: Any, full: bool = False, eps: float = 1e-6, reduction: Reduction | str = "mean"
) -> Tensor:
    """The loss of values under a normal distribution with the given variances.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.functional.gaussian_nll_loss(pf.zeros([1]), pf.ones([1]), pf.ones([1])).numpy().item()
        0.5
    """
    var = spread_to(input, probabilities(as_tensor(var), "var", math.inf))
    spread = clamp_min(var.detach(), eps) + (var - var.detach())
    difference = input - target
    losses = 0.5 * (log(spread) + difference * difference / spread)
    return reduced(losses + 0.5 * math.log(2 * math.pi) if full else losses, reduction)


@outlined
def cosine_similarity(x1: Any, x2: Any, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """The cosine of the angle between vectors along `dim`.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.functional.cosine_similarity(pf.ones([1, 2]), pf.ones([1, 2])).numpy().round(4).tolist()
        [1.0]
    """
    return linalg.cosine_similarity(x1, x2, dim, eps)


def pairwise_distance(x1: Any, x2: Any, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> Tensor:
    """The p-norm of the difference of vectors along the last dimension.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.functional.pairwise_distance(pf.zeros([1, 2]), pf.tensor([[3.0, 4.0]])).numpy().round(3).tolist()
        [5.0]
    """
    return norm(x1 - x2 + eps, p, dim=-1, keepdim=keepdim)


@full_precision
def cosine_embedding_loss(
    input1: Any, input2: Any, target: Any, margin: float = 0.0, reduction: Reduction | str = "mean"
) -> Tensor:
    """Pairs marked 1 should point the same way, pairs marked -1 should not.

    Example:
        >>> import pyflame as pf
        >>> x = pf.ones([1, 2])
        >>> pf.nn.functional.cosine_embedding_loss(x, x, pf.tensor([1.0])).numpy().round(4).item()
        0.0
    """
    dim = len(input1.shape) - 1
    if dim > 1 or len(target.shape) != dim:
        shapes = f"{list(target.shape)}, {list(input1.shape)}"
        raise ShapeMismatchError(f"target must be [N] for [N, D], or a scalar for [D]. Received: {shapes}")
    product, left, right = ((a * b).sum(dim=dim) for a, b in ((input1, input2), (input1, input1), (input2, input2)))
    cosine = product / sqrt((left + 1e-12) * (right + 1e-12))
    zero = zeros_like(cosine)
    losses = where(target == 1, 1 - cosine, zero) + where(target == -1, clamp_min(cosine - margin, 0.0), zero)
    return reduced(losses, reduction)


@full_precision
def margin_ranking_loss(
    input1: Any, input2: Any, target: Any, margin: float = 0.0, reduction: Reduction | str = "mean"
) -> Tensor:
    """The first should be larger where the target is 1, the second where it is -1.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.functional.margin_ranking_loss(pf.ones([1]), pf.zeros([1]), -pf.ones([1])).numpy().item()
        1.0
    """
    same_rank(input1=input1, input2=input2, target=target)
    return reduced(clamp_min(-target * (input1 - input2) + margin, 0.0), reduction)


@full_precision
def hinge_embedding_loss(input: Any, target: Any, margin: float = 1.0, reduction: Reduction | str = "mean") -> Tensor:
    """Distances: small where the target is 1, above the margin where it is -1.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.functional.hinge_embedding_loss(pf.tensor([0.5]), pf.tensor([-1.0])).numpy().item()
        0.5
    """
    zero = zeros_like(input)
    losses = where(target != 1, clamp_min(margin - input, 0.0), zero) + where(target != -1, input, zero)
    return reduced(losses, reduction)


@full_precision
def soft_margin_loss(input: Any, target: Any, reduction: Reduction | str = "mean") -> Tensor:
    """Two classes, 1 and -1, by the logistic loss.

    Example:
        >>> import pyflame as pf
        >>> round(pf.nn.functional.soft_margin_loss(pf.zeros([1]), pf.ones([1])).numpy().item(), 4)
        0.6931
    """
    return reduced(softplus(-target * input), reduction)


@full_precision
def multi_margin_loss(
    input: Any,
    target: Any,
    p: int = 1,
    margin: float = 1.0,
    weight: Any = None,
    reduction: Reduction | str = "mean",
) -> Tensor:
    """The true class should beat every other by the margin.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.functional.multi_margin_loss(pf.tensor([[0.0, 2.0]]), pf.tensor([1], dtype=pf.int64)).numpy().item()
        0.0
    """
    from pyflame.nn.functional.sparse import one_hot

    if input.ndim < 2:  # one sample: its target may have no axis, or one of size 1
        input, target = input.reshape([-1]), target.reshape([])
    classes = input.shape[-1]
    if list(target.shape) != list(input.shape[:-1]):
        raise ShapeMismatchError(f"target must be {list(input.shape[:-1])}. Received: {list(target.shape)}")
    whole_numbers(target, "target")
    true = cast(one_hot(numbers_within(target, 0, classes, "target"), classes), input.dtype)
    own = (input * true).sum(dim=-1, keepdim=True)
    excess = clamp_min(margin - own + input, 0.0) ** p
    has_shape("weight (one number for each class)", weight, [classes])
    if weight is not None:
        excess = excess * call(Gather, weight, cast(target, DType.int64), axis=0).unsqueeze(-1)
    return reduced((excess * (1 - true)).sum(dim=-1) / classes, reduction)


@full_precision
def triplet_margin_loss(
    anchor: Any,
    positive: Any,
    negative: Any,
    margin: float = 1.0,
    p: float = 2.0,
    eps: float = 1e-6,
    swap: bool = False,
    reduction: Reduction | str = "mean",
) -> Tensor:
    """The positive should be nearer to the anchor than the negative by the margin.

    Example:
        >>> import pyflame as pf
        >>> a, n = pf.zeros([1, 2]), pf.tensor([[3.0, 4.0]])
        >>> pf.nn.functional.triplet_margin_loss(a, a, n).numpy().item()
        0.0
    """
    same_rank(anchor=anchor, positive=positive, negative=negative)
    near, far = pairwise_distance(anchor, positive, p, eps), pairwise_distance(anchor, negative, p, eps)
    if swap:
        far = minimum(far, pairwise_distance(positive, negative, p, eps))
    return reduced(clamp_min(near - far + margin, 0.0), reduction)
