"""Losses as modules, written once from their functions."""

from __future__ import annotations

import inspect
import math
from typing import TYPE_CHECKING, Any

from pyflame.nn import functional as F
from pyflame.nn.functional.loss import Reduction
from pyflame.nn.linear import Linear
from pyflame.nn.module import Module

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyflame.dtypes import DType
    from pyflame.nn.functional.linear_loss import LinearCrossEntropyOptions
    from pyflame.tensors import Tensor

__all__ = [
    "BCELoss",
    "BCEWithLogitsLoss",
    "CTCLoss",
    "CosineEmbeddingLoss",
    "CrossEntropyLoss",
    "GaussianNLLLoss",
    "HingeEmbeddingLoss",
    "HuberLoss",
    "KLDivLoss",
    "L1Loss",
    "LinearCrossEntropyLoss",
    "MSELoss",
    "MarginRankingLoss",
    "MultiLabelMarginLoss",
    "MultiLabelSoftMarginLoss",
    "MultiMarginLoss",
    "NLLLoss",
    "PoissonNLLLoss",
    "SmoothL1Loss",
    "SoftMarginLoss",
    "TripletMarginLoss",
]

# What a loss is called with; all other parameters of its function are settings.
INPUTS = ("input", "target", "var", "input1", "input2", "anchor", "positive", "negative")
INPUTS += ("log_probs", "targets", "input_lengths", "target_lengths")
# Settings that are tensors and move with the module.
TENSORS = ("weight", "pos_weight")


class _Loss(Module):
    """A loss function with its settings."""

    function: Callable[..., Tensor]
    inputs: tuple[str, ...] = ()
    settings: tuple[inspect.Parameter, ...] = ()

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        function = cls.__dict__["function"]
        cls.function = staticmethod(function)
        parameters = list(inspect.signature(function).parameters.values())
        cls.inputs = tuple(p.name for p in parameters if p.name in INPUTS)
        cls.settings = tuple(p for p in parameters if p.name not in INPUTS)
        cls.__signature__ = inspect.Signature(cls.settings)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        bound = inspect.Signature(self.settings).bind(*args, **kwargs)
        bound.apply_defaults()
        for name, value in bound.arguments.items():
            if name in TENSORS:
                self.register_buffer(name, value)
            else:
                setattr(self, name, value)
        if self.reduction != "batchmean":
            self.reduction = Reduction(self.reduction)

    def forward(self, *inputs: Any) -> Tensor:
        """The loss of the inputs."""
        if len(inputs) != len(self.inputs):
            raise TypeError(f"{type(self).__name__} takes {', '.join(self.inputs)}. Received {len(inputs)} inputs")
        settings = {p.name: getattr(self, p.name) for p in self.settings}
        return type(self).function(*inputs, **settings)

    def extra_repr(self) -> str:
        """The settings that differ from the defaults."""
        changed = [p.name for p in self.settings if p.name not in TENSORS and getattr(self, p.name) != p.default]
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in changed)


class MSELoss(_Loss):
    """Squared differences.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.MSELoss()(pf.ones([2]), pf.zeros([2])).numpy().item()
        1.0
    """

    function = F.mse_loss


class L1Loss(_Loss):
    """Absolute differences.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.L1Loss()(pf.ones([2]), pf.zeros([2])).numpy().item()
        1.0
    """

    function = F.l1_loss


class SmoothL1Loss(_Loss):
    """Squared below `beta`, absolute above.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.SmoothL1Loss()(pf.ones([2]), pf.zeros([2])).numpy().item()
        0.5
    """

    function = F.smooth_l1_loss


class HuberLoss(_Loss):
    """Squared below `delta`, linear above.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.HuberLoss()(pf.ones([2]), pf.zeros([2])).numpy().item()
        0.5
    """

    function = F.huber_loss


class BCELoss(_Loss):
    """Probabilities against zeros and ones.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.BCELoss()(pf.ones([2]), pf.ones([2])).numpy().item()
        0.0
    """

    function = F.binary_cross_entropy


class BCEWithLogitsLoss(_Loss):
    """Logits against zeros and ones.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.BCEWithLogitsLoss()(pf.full([2], -50.0), pf.ones([2])).numpy().item()
        50.0
    """

    function = F.binary_cross_entropy_with_logits


class KLDivLoss(_Loss):
    """The divergence of the target from log-probabilities.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.KLDivLoss()(pf.zeros([1, 1]), pf.ones([1, 1])).numpy().item()
        0.0
    """

    function = F.kl_div


class NLLLoss(_Loss):
    """Minus the log-probability of the true class.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.NLLLoss()(pf.tensor([[-0.5, -1.0]]), pf.tensor([1], dtype=pf.int64)).numpy().item()
        1.0
    """

    function = F.nll_loss


class CrossEntropyLoss(_Loss):
    """Logits [N, C, ...] against class numbers or probabilities.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.CrossEntropyLoss()(pf.tensor([[90.0, 0.0]]), pf.tensor([0], dtype=pf.int64)).numpy().item()
        0.0
    """

    function = F.cross_entropy


class LinearCrossEntropyLoss(Module):
    """The cross entropy of a linear layer's outputs; the layer, without bias unless asked for, is part of it.

    Args:
        in_features: The size of the inputs.
        num_classes: How many classes there are.
        out_features: The shape of places that each have a class.
        bias: Whether the layer adds one.
        dtype: The type of the layer's parameters.
        reduction: "mean", "sum" or "none".
        weight: How much each class counts.
        ignore_index: Targets of this class do not count.
        label_smoothing: The part of each target that all classes share.
        options: Compute the scores of a few rows at a time, which takes less memory.

    Example:
        >>> import pyflame as pf
        >>> loss = pf.nn.LinearCrossEntropyLoss(3, 4, options=pf.nn.LinearCrossEntropyOptions(batch_chunk_size=2))
        >>> loss(pf.ones([5, 3]), pf.zeros([5], dtype=pf.int64)).shape
        []
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        *,
        out_features: tuple[int, ...] = (),
        bias: bool = False,
        dtype: DType | None = None,
        reduction: Reduction | str = "mean",
        weight: Any = None,
        ignore_index: int | None = None,
        label_smoothing: float = 0.0,
        options: LinearCrossEntropyOptions | None = None,
    ) -> None:
        super().__init__()
        if weight is not None and list(weight.shape) != [num_classes]:
            raise RuntimeError(f"weight must have shape [{num_classes}]. Received: {list(weight.shape)}")
        if not 0 <= label_smoothing <= 1:
            raise RuntimeError(f"label_smoothing must be from 0 to 1. Received: {label_smoothing}")
        self.num_classes, self.out_features = num_classes, tuple(out_features)
        self.reduction, self.ignore_index, self.label_smoothing = reduction, ignore_index, label_smoothing
        self.options = options
        self.register_buffer("weight", weight)
        self.linear = Linear(in_features, num_classes * math.prod(self.out_features), bias=bias, dtype=dtype)

    def forward(self, input: Any, target: Any) -> Tensor:
        """The loss."""
        shape, layer = [self.num_classes, *self.out_features], self.linear
        return F.linear_cross_entropy(
            input,
            layer.weight.reshape([*shape, layer.in_features]),
            target,
            linear_bias=None if layer.bias is None else layer.bias.reshape(shape),
            weight=self.weight,
            reduction=self.reduction,
            ignore_index=self.ignore_index,
            label_smoothing=self.label_smoothing,
            options=self.options,
        )

    def extra_repr(self) -> str:
        """The settings."""
        return (
            f"num_classes={self.num_classes}, out_features={self.out_features}, reduction={self.reduction}, "
            f"ignore_index={self.ignore_index}, label_smoothing={self.label_smoothing}"
        )


class PoissonNLLLoss(_Loss):
    """Counts under a Poisson rate.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.PoissonNLLLoss()(pf.zeros([1]), pf.ones([1])).numpy().item()
        1.0
    """

    function = F.poisson_nll_loss


class GaussianNLLLoss(_Loss):
    """Values under normal distributions.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.GaussianNLLLoss()(pf.zeros([1]), pf.ones([1]), pf.ones([1])).numpy().item()
        0.5
    """

    function = F.gaussian_nll_loss


class CosineEmbeddingLoss(_Loss):
    """Pairs that should, or should not, point the same way.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.CosineEmbeddingLoss()(pf.zeros([1, 2]), pf.zeros([1, 2]), pf.tensor([-1.0])).numpy().item()
        0.0
    """

    function = F.cosine_embedding_loss


class MarginRankingLoss(_Loss):
    """Pairs in the right order.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.MarginRankingLoss()(pf.ones([1]), pf.zeros([1]), -pf.ones([1])).numpy().item()
        1.0
    """

    function = F.margin_ranking_loss


class HingeEmbeddingLoss(_Loss):
    """Small distances for likes, large ones for others.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.HingeEmbeddingLoss()(pf.tensor([0.5]), pf.tensor([-1.0])).numpy().item()
        0.5
    """

    function = F.hinge_embedding_loss


class SoftMarginLoss(_Loss):
    """Two classes, 1 and -1.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.SoftMarginLoss()(pf.full([1], -99.0), pf.ones([1])).numpy().item()
        99.0
    """

    function = F.soft_margin_loss


class MultiMarginLoss(_Loss):
    """The true class beats every other by a margin.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.MultiMarginLoss()(pf.tensor([[0.0, 2.0]]), pf.tensor([1], dtype=pf.int64)).numpy().item()
        0.0
    """

    function = F.multi_margin_loss


class TripletMarginLoss(_Loss):
    """Nearer to the positive than to the negative.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.TripletMarginLoss()(pf.zeros([1, 2]), pf.zeros([1, 2]), pf.full([1, 2], 9.0)).numpy().item()
        0.0
    """

    function = F.triplet_margin_loss


class MultiLabelSoftMarginLoss(_Loss):
    """Every class by itself, belonged to or not.

    Example:
        >>> import pyflame as pf
        >>> loss = pf.nn.MultiLabelSoftMarginLoss()(pf.tensor([[99.0, -99.0]]), pf.tensor([[1.0, 0.0]]))
        >>> round(loss.item(), 6)
        0.0
    """

    function = F.multilabel_soft_margin_loss


class MultiLabelMarginLoss(_Loss):
    """The classes of a sample beat all others by a margin.

    Example:
        >>> import pyflame as pf
        >>> target = pf.tensor([[1, -1]], dtype=pf.int64)
        >>> pf.nn.MultiLabelMarginLoss()(pf.tensor([[0.0, 2.0]]), target).numpy().item()
        0.0
    """

    function = F.multilabel_margin_loss


class CTCLoss(_Loss):
    """Label sequences that are not aligned with the outputs.

    Example:
        >>> import pyflame as pf
        >>> scores = pf.log_softmax(pf.zeros([3, 1, 2]), dim=-1)
        >>> loss = pf.nn.CTCLoss(reduction="sum")(scores, pf.tensor([[1]], dtype=pf.int64), [3], [1])
        >>> round(loss.item(), 4)
        0.2877
    """

    function = F.ctc_loss
