"""Losses of samples that belong to several classes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyflame.dtypes import DType
from pyflame.nn.functional.loss import Reduction, reduced
from pyflame.ops.activation import logsigmoid
from pyflame.ops.arithmetic import clamp_min, logical_and, where
from pyflame.ops.core import call, cast, rounded_once
from pyflame.ops.creation import zeros_like
from pyflame.ops.precision import full_precision
from pyflame.ops.reduction import cumsum
from pyflame_rt.graph.errors import ShapeMismatchError
from pyflame_rt.graph.named_arguments import names_arguments
from pyflame_rt.ops.onnx.index import GatherElements, ScatterElements

if TYPE_CHECKING:
    from pyflame.tensors import Tensor

__all__ = ["multilabel_margin_loss", "multilabel_soft_margin_loss"]


@full_precision
@rounded_once
@names_arguments
def multilabel_soft_margin_loss(
    input: Any, target: Any, weight: Any = None, reduction: Reduction | str = "mean"
) -> Tensor:
    """The logistic loss of each class against zeros and ones, as a mean over the classes.

    Args:
        input: Logits [..., C].
        target: Which classes each sample belongs to, of the same shape.
        weight: How much each class counts.
        reduction: Of the losses of the samples.

    Example:
        >>> import pyflame as pf
        >>> loss = pf.nn.functional.multilabel_soft_margin_loss(pf.zeros([1, 2]), pf.tensor([[1.0, 0.0]]))
        >>> round(loss.numpy().item(), 4)
        0.6931
    """
    losses = -(target * logsigmoid(input) + (1 - target) * logsigmoid(-input))
    if weight is not None:
        losses = losses * weight
    return reduced(losses.mean(dim=-1), reduction)


@full_precision
@rounded_once
@names_arguments
def multilabel_margin_loss(input: Any, target: Any, reduction: Reduction | str = "mean") -> Tensor:
    """Every class of a sample should beat every other class by 1.

    Args:
        input: Scores [N, C] or [C].
        target: For each sample its classes, then -1 where there are fewer than C of them.
        reduction: Of the losses of the samples.

    Example:
        >>> import pyflame as pf
        >>> scores = pf.tensor([[0.1, 0.2, 0.4, 0.8]])
        >>> target = pf.tensor([[3, 0, -1, 1]], dtype=pf.int64)
        >>> round(pf.nn.functional.multilabel_margin_loss(scores, target).item(), 4)
        0.85
    """
    if list(input.shape) != list(target.shape) or len(input.shape) > 2:
        raise ShapeMismatchError(
            f"input and target must both be [N, C] or [C]. Received: {list(input.shape)} and {list(target.shape)}"
        )
    if not input.shape:
        input, target = input.reshape([1]), target.reshape([1])
    classes = input.shape[-1]
    target = cast(target, DType.int64)
    listed = cumsum(cast(target < 0, DType.int64), dim=-1) == 0
    safe = where(listed, target, zeros_like(target))
    marks = call(ScatterElements, zeros_like(target), safe, cast(listed, DType.int64), axis=-1, reduction="add")
    own = call(GatherElements, input, safe, axis=-1).unsqueeze(-1)
    counts = logical_and(listed.unsqueeze(-1), (marks == 0).unsqueeze(-2))
    excess = clamp_min(1 - own + input.unsqueeze(-2), 0.0)
    losses = where(counts, excess, zeros_like(excess)).sum(dim=[-2, -1]) / classes
    return reduced(losses, reduction)
