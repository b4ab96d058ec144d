"""A product and its cross entropy together, with the scores of a few rows at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyflame.autograd.recompute import run
from pyflame.dtypes import DType
from pyflame.nn.functional.convolution import linear
from pyflame.nn.functional.loss import Reduction, cross_entropy
from pyflame.ops.arithmetic import where
from pyflame.ops.core import call, cast
from pyflame.ops.creation import zeros_like
from pyflame.ops.shaping import cat
from pyflame_rt.graph.errors import ShapeMismatchError
from pyflame_rt.graph.named_arguments import names_arguments
from pyflame_rt.ops.onnx.index import Gather

if TYPE_CHECKING:
    from pyflame.tensors import Tensor

__all__ = ["LinearCrossEntropyOptions", "linear_cross_entropy"]

UNSET = -100


@dataclass(frozen=True)
class LinearCrossEntropyOptions:
    """How many rows of scores `linear_cross_entropy` has at a time; those of the other rows are not kept for gradients.

    Attributes:
        batch_chunk_size: So many rows.
        chunking_method: "aspect_ratio" has as many scores as the inputs have elements, "aspect_ratio:N" an N-th of
            that; "auto" is "aspect_ratio:2" unless `batch_chunk_size` is given; None goes by `batch_chunk_size`.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.LinearCrossEntropyOptions(chunking_method="aspect_ratio").rows(4096, 512, 32000)
        128
    """

    batch_chunk_size: int | None = None
    chunking_method: str | None = "auto"

    def __post_init__(self) -> None:
        if self.batch_chunk_size is not None and not self.batch_chunk_size > 0:
            raise ValueError(f"batch_chunk_size must be positive. Received: {self.batch_chunk_size}")
        if self.chunking_method not in (None, "auto") and self._factor(str(self.chunking_method)) < 1:
            raise ValueError(
                "chunking_method must be None, 'auto', 'aspect_ratio' or 'aspect_ratio:N'. "
                f"Received: {self.chunking_method!r}"
            )

    @staticmethod
    def _factor(method: str) -> int:
        """The N of "aspect_ratio:N"; 0 for what is none."""
        name, _, factor = method.partition(":")
        if name != "aspect_ratio" or (factor and not factor.isdigit()) or method.endswith(":"):
            return 0
        return int(factor or 1)

    def rows(self, total: int, in_features: int, classes: int) -> int:
        """How many rows of scores there are at a time."""
        method = self.chunking_method
        if method is None or (method == "auto" and self.batch_chunk_size is not None):
            return max(1, min(self.batch_chunk_size or total, total))
        wider = -(-classes // max(in_features, 1)) or 1
        size = 1 << (max(-(-total // wider), 1) - 1).bit_length()
        found = max(1, min(size // self._factor("aspect_ratio:2" if method == "auto" else method), total))
        if self.batch_chunk_size not in (None, found):
            raise ValueError(
                f"batch_chunk_size={self.batch_chunk_size} and chunking_method={method!r} (which gives {found} rows) "
                "disagree: give one of them"
            )
        return found


@names_arguments
def linear_cross_entropy(
    input: Any,
    linear_weight: Any,
    target: Any,
    *,
    linear_bias: Any = None,
    weight: Any = None,
    reduction: Reduction | str = "mean",
    ignore_index: int | None = None,
    label_smoothing: float = 0.0,
    options: LinearCrossEntropyOptions | None = None,
) -> Tensor:
    """The cross entropy of `linear(input, linear_weight, linear_bias)`.

    Args:
        input: [in_features] or [N, in_features].
        linear_weight: [C, in_features], or [C, d1, ..., dK, in_features] for a loss at each of d1 x ... x dK places.
        target: Classes [N, d1, ..., dK], or their probabilities [N, C, d1, ..., dK].
        linear_bias: [C, d1, ..., dK], added to the scores.
        weight: How much each class counts.
        reduction: "mean", "sum" or "none".
        ignore_index: Targets of this class do not count; None is -100.
        label_smoothing: The part of each target that all classes share.
        options: Compute the scores of a few rows at a time, and again for the gradients: less memory, more work.

    Example:
        >>> import pyflame as pf
        >>> x, w = pf.zeros([2, 3]), pf.ones([4, 3])
        >>> loss = pf.nn.functional.linear_cross_entropy(x, w, pf.tensor([0, 3], dtype=pf.int64))
        >>> round(loss.item(), 4)
        1.3863
    """
    _check(input, linear_weight, linear_bias)
    shape = [*input.shape[:-1], linear_weight.shape[0], *linear_weight.shape[1:-1]]
    soft = list(target.shape) == shape
    if soft and ignore_index is not None:
        raise RuntimeError("ignore_index cannot be specified when target contains probabilities")
    ignored = UNSET if ignore_index is None else ignore_index

    def part(x: Any, wanted: Any, how: Reduction | str) -> Tensor:
        scores = _scores(x, linear_weight, linear_bias)
        return cross_entropy(scores, wanted, weight, ignored, how, label_smoothing)

    if options is None or len(input.shape) == 1:
        return part(input, target, reduction)
    rows = options.rows(input.shape[0], input.shape[-1], linear_weight.shape[0])
    places = [slice(first, first + rows) for first in range(0, input.shape[0], rows)]
    each: Reduction | str = "none" if Reduction(reduction) is Reduction.NONE else "sum"
    parts = [run(lambda x, t: part(x, t, each), (input[place], target[place]), {}) for place in places]
    if each == "none":
        return cat(parts, dim=0)
    total: Tensor = parts[0]
    for more in parts[1:]:
        total = total + more
    if Reduction(reduction) is Reduction.SUM:
        return total
    return total / _counted(target, weight, ignored, soft, shape, total.dtype)


def _check(input: Any, weight: Any, bias: Any) -> None:
    if len(input.shape) not in (1, 2) or len(weight.shape) < 2:
        raise ShapeMismatchError(
            "linear_cross_entropy takes an input of 1 or 2 dimensions and a linear_weight of at least 2. "
            f"Received: {list(input.shape)} and {list(weight.shape)}"
        )
    if input.shape[-1] != weight.shape[-1]:
        raise ShapeMismatchError(
            f"input and linear_weight must agree in their last dimension. Received: {list(input.shape)} and "
            f"{list(weight.shape)}"
        )
    if bias is not None and list(bias.shape) != list(weight.shape[:-1]):
        raise ShapeMismatchError(f"linear_bias must have shape {list(weight.shape[:-1])}. Received: {list(bias.shape)}")
    if len(weight.shape) > 2 and len(input.shape) == 1:
        raise ShapeMismatchError(f"A linear_weight of shape {list(weight.shape)} takes inputs of 2 dimensions, not 1")


def _scores(x: Any, weight: Any, bias: Any) -> Tensor:
    flat = weight.reshape([-1, weight.shape[-1]])
    scores = linear(x, flat, None if bias is None else bias.reshape([-1]))
    return scores.reshape([*x.shape[:-1], *weight.shape[:-1]])


def _counted(target: Any, weight: Any, ignored: int, soft: bool, shape: list[int], dtype: DType) -> Any:
    """What a mean divides by: the weights of the classes that count, or the number of losses."""
    if soft:
        count = 1
        for dim, size in enumerate(shape):
            count *= 1 if dim == 1 else size
        return count
    target = cast(target, DType.int64)
    known = target != ignored
    shares = cast(known, dtype)
    if weight is not None:
        shares = shares * call(Gather, weight, where(known, target, zeros_like(target)), axis=0)
    return shares.sum()
