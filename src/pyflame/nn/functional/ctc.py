"""The loss of label sequences that are not aligned with the outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame.dtypes import DType
from pyflame.nn.functional.loss import Reduction
from pyflame.ops.arithmetic import clamp_min
from pyflame.ops.core import Handle, as_tensor, call, cast, rounded_once
from pyflame.ops.precision import full_precision
from pyflame_rt.graph.errors import ShapeMismatchError
from pyflame_rt.graph.named_arguments import names_arguments
from pyflame_rt.ops.pyflame.ctc import CTCLoss

if TYPE_CHECKING:
    from pyflame.tensors import Tensor

__all__ = ["ctc_loss"]


@full_precision
@rounded_once
@names_arguments
def ctc_loss(
    log_probs: Any,
    targets: Any,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: Reduction | str = "mean",
    zero_infinity: bool = False,
) -> Tensor:
    """Minus the log-likelihood of label sequences, over all ways to align them with the outputs.

    Args:
        log_probs: Log-probabilities [T, N, C] as `log_softmax` gives them (the gradient counts on that), or [T, C].
        targets: Labels [N, S], or those of all sequences one after the other, or [S] for a single one.
        input_lengths: How many of the T outputs belong to each sequence.
        target_lengths: How many labels each sequence has.
        blank: The class that stands for no label.
        reduction: "mean" divides each loss by the number of labels first.
        zero_infinity: Losses of sequences too short for their labels count as 0, and so do their gradients.

    Example:
        >>> import pyflame as pf
        >>> scores = pf.log_softmax(pf.zeros([3, 1, 2]), dim=-1)
        >>> targets = pf.tensor([[1]], dtype=pf.int64)
        >>> round(pf.nn.functional.ctc_loss(scores, targets, [3], [1], reduction="sum").item(), 4)
        0.2877
    """
    single = len(log_probs.shape) == 2
    scores = log_probs.unsqueeze(1) if single else log_probs
    if len(scores.shape) != 3:
        raise ShapeMismatchError(f"log_probs must be [T, N, C] or [T, C]. Received: {list(log_probs.shape)}")
    if not 0 <= blank < scores.shape[2]:
        raise ValueError(f"blank must be in label range, 0 to {scores.shape[2] - 1}. Received: {blank}")
    labels = _whole(targets, "targets")
    if labels.ndim not in (1, 2):
        raise ShapeMismatchError(f"targets must be [N, S] or all in a row. Received: {list(labels.shape)}")
    lengths = [
        _lengths(given, scores.shape[1], name)
        for given, name in ((input_lengths, "input_lengths"), (target_lengths, "target_lengths"))
    ]
    losses = call(CTCLoss, scores, labels, *lengths, blank=int(blank), zero_infinity=int(zero_infinity))
    match Reduction(reduction):
        case Reduction.MEAN:
            return (losses / cast(clamp_min(lengths[1], 1), losses.dtype)).mean()
        case Reduction.SUM:
            return losses.sum()
        case Reduction.NONE:
            return losses.squeeze(0) if single else losses


def _whole(values: Any, name: str) -> Tensor:
    given = values if isinstance(values, Handle) else np.asarray(values)
    found = as_tensor(given)
    if found.dtype.is_floating_point and found.numel:
        raise TypeError(f"{name} must be whole numbers. Received: {found.dtype.name}")
    return cast(found, DType.int64)


def _lengths(values: Any, count: int, name: str) -> Tensor:
    found = _whole(values, name)
    if found.ndim == 0:
        found = found.reshape([1])
    if list(found.shape) != [count]:
        raise ShapeMismatchError(
            f"{name} must have one entry for each of {count} sequences. Received: {list(found.shape)}"
        )
    return found
