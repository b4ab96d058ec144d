"""Values brought to one mean and spread."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from pyflame.autograd import no_grad
from pyflame.dtypes import DType
from pyflame.nn.functional.windows import has_shape
from pyflame.ops.arithmetic import add, mul
from pyflame.ops.core import call, call_many, cast, real_only, rounded_once
from pyflame.ops.creation import ones, zeros
from pyflame.ops.shaping import broadcast_to
from pyflame.outline import outlined
from pyflame_rt.graph.errors import ShapeMismatchError
from pyflame_rt.graph.named_arguments import names_arguments
from pyflame_rt.ops.onnx.norm import (
    BatchNormalization,
    BatchNormalized,
    BatchStatistics,
    GroupNormalization,
    LayerNormalization,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyflame.tensors import Tensor

__all__ = ["batch_norm", "group_norm", "instance_norm", "layer_norm", "local_response_norm", "normalize", "rms_norm"]


_HALVES = (DType.float16, DType.bfloat16)


def _wide(value: Any) -> Any:
    return cast(value, DType.float32) if value is not None and value.dtype in _HALVES else value


def _along_channels(value: Any, rank: int) -> Any:
    return None if value is None else value.reshape([1, -1] + [1] * (rank - 2))


def _affine(x: Tensor, weight: Any, bias: Any) -> Tensor:
    rank = len(x.shape)
    if weight is not None:
        x = x * _along_channels(weight, rank)
    return x if bias is None else x + _along_channels(bias, rank)


def batch_norm(
    input: Any,
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: float | None = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Each channel of [N, C, ...] to mean 0 and variance 1, then scaled and shifted.

    In training the batch's own statistics are used, and the running ones (if given) are bound to new values.

    Example:
        >>> import pyflame as pf
        >>> x = pf.tensor([[1.0], [3.0]])
        >>> y = pf.nn.functional.batch_norm(x, None, None, training=True, eps=0.0)
        >>> y.numpy().tolist()
        [[-1.0], [1.0]]
    """
    real_only("batch_norm", input)
    if input.numel or len(input.shape) > 1:
        for role, value in (("running_mean", running_mean), ("running_var", running_var)):
            has_shape(f"batch_norm: {role}", value, input.shape[1:2])
    if input.dtype in _HALVES:
        wide = cast(input, DType.float32)
        if not training:
            running_mean, running_var = _wide(running_mean), _wide(running_var)
        y = batch_norm(wide, running_mean, running_var, _wide(weight), _wide(bias), training, momentum, eps)
        return cast(y, input.dtype)
    rank = len(input.shape)
    if not training:
        if running_mean is None or running_var is None:
            raise ValueError("batch_norm outside of training needs running_mean and running_var")
        return input if input.numel == 0 else _by_statistics(input, running_mean, running_var, weight, bias, eps)
    axes = [0, *range(2, rank)]
    count = 1
    for axis in axes:
        count *= input.shape[axis]
    if count == 0:
        return input  # no images, nothing to normalise, and no statistics
    if count == 1:
        raise ValueError(f"Expected more than 1 value per channel when training. Received: {list(input.shape)}")
    mean, variance = call_many(BatchStatistics, input)
    if running_mean is not None and running_var is not None:
        _track(running_mean, mean, momentum)
        _track(running_var, variance * (count / (count - 1)), momentum)
    kind, channels = input.dtype, [input.shape[1]]
    scale = ones(channels, dtype=kind) if weight is None or weight.dtype is not kind else weight
    shift = zeros(channels, dtype=kind) if bias is None or bias.dtype is not kind else bias
    y = call(BatchNormalized, input, scale, shift, mean, variance, epsilon=float(eps))
    # Parameters of another element type take part as they are, and may widen the result.
    return _affine(y, None if scale is weight else weight, None if shift is bias else bias)


@outlined
def _by_statistics(input: Any, mean: Any, variance: Any, weight: Any, bias: Any, eps: float) -> Tensor:
    """Channels by given statistics: the operator where all are of one type, so that runtimes can fold it."""
    kind, rank = input.dtype, len(input.shape)
    if all(v is None or v.dtype is kind for v in (mean, variance, weight, bias)):
        scale = ones([input.shape[1]], dtype=kind) if weight is None else weight
        shift = zeros([input.shape[1]], dtype=kind) if bias is None else bias
        return call(BatchNormalization, input, scale, shift, mean, variance, epsilon=float(eps))
    scale = (variance + eps).rsqrt()
    return _affine((input - _along_channels(mean, rank)) * _along_channels(scale, rank), weight, bias)


def _track(running: Tensor, batch: Tensor, momentum: float | None) -> None:
    """Bind a running statistic to its next value, keeping its dtype."""
    with no_grad():
        share = 0.1 if momentum is None else momentum
        new = batch.detach().reshape(list(running.shape)).to(running.dtype)
        running._renew(running * (1 - share) + new * share)


@outlined
def layer_norm(
    input: Any, normalized_shape: Sequence[int] | int, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Tensor:
    """The last dimensions to mean 0 and variance 1, then scaled and shifted.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.functional.layer_norm(pf.tensor([[1.0, 3.0]]), [2], eps=0.0).numpy().tolist()
        [[-1.0, 1.0]]
    """
    shape = _last(input, normalized_shape)
    axis = -len(shape)
    has_shape("layer_norm: weight", weight, shape)
    has_shape("layer_norm: bias", bias, shape)
    scale = ones(shape, dtype=input.dtype) if weight is None else weight
    return call(LayerNormalization, input, scale, bias, axis=axis, epsilon=float(eps), stash_type=_inner(input))


def _inner(input: Any) -> int:
    """The type in which statistics are computed: at least float32."""
    return (DType.float64 if input.dtype is DType.float64 else DType.float32).rt.onnx


@outlined
@rounded_once
def rms_norm(input: Any, normalized_shape: Sequence[int] | int, weight: Any = None, eps: float | None = None) -> Tensor:
    """The last dimensions over the root of their mean square, then scaled; eps is the dtype's own by default.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.functional.rms_norm(pf.tensor([[3.0, 3.0]]), [2]).numpy().tolist()
        [[1.0, 1.0]]
    """
    import ml_dtypes

    shape = _last(input, normalized_shape)
    has_shape("rms_norm: weight", weight, shape)
    epsilon = float(ml_dtypes.finfo(input.dtype.numpy).eps) if eps is None else eps
    axes = list(range(-len(shape), 0))
    y = input * ((input * input).mean(dim=axes, keepdim=True) + epsilon).rsqrt()
    return y if weight is None else y * weight


def _last(input: Any, normalized_shape: Sequence[int] | int) -> list[int]:
    shape = [normalized_shape] if isinstance(normalized_shape, int) else list(normalized_shape)
    if not shape or list(input.shape[-len(shape) :]) != shape:
        raise ShapeMismatchError(f"The last dimensions must be {shape}. Received: {list(input.shape)}")
    return shape


@outlined
@rounded_once
def group_norm(input: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Tensor:
    """Each group of channels of [N, C, ...] to mean 0 and variance 1, then each channel scaled and shifted.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.functional.group_norm(pf.ones([1, 4, 2]), 2).numpy().ravel().tolist()[:2]
        [0.0, 0.0]
    """
    channels = input.shape[1]
    if num_groups <= 0 or channels % num_groups:
        raise ValueError(f"num_groups must divide the {channels} channels. Received: {num_groups}")
    scale = ones([channels], dtype=input.dtype) if weight is None else weight
    shift = zeros([channels], dtype=input.dtype) if bias is None else bias
    settings = {"num_groups": num_groups, "epsilon": float(eps), "stash_type": _inner(input)}
    return call(GroupNormalization, input, scale, shift, **settings)


def instance_norm(
    input: Any,
    running_mean: Any = None,
    running_var: Any = None,
    weight: Any = None,
    bias: Any = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Each channel of each sample of [N, C, ...] to mean 0 and variance 1, then scaled and shifted.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.functional.instance_norm(pf.tensor([[[1.0, 3.0]]]), eps=0.0).numpy().tolist()
        [[[-1.0, 1.0]]]
    """
    if not use_input_stats:
        return batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
    for role, value in (
        ("running_mean", running_mean),
        ("running_var", running_var),
        ("weight", weight),
        ("bias", bias),
    ):
        has_shape(f"instance_norm: {role}", value, input.shape[1:2])
    kind, x = input.dtype, _wide(real_only("instance_norm", input))
    axes = list(range(2, len(input.shape)))
    mean = x.mean(dim=axes, keepdim=True)
    centred = x - mean
    variance = (centred * centred).mean(dim=axes, keepdim=True)
    if running_mean is not None and running_var is not None:
        count = 1
        for axis in axes:
            count *= input.shape[axis]
        _track(running_mean, mean.mean(dim=0), momentum)
        _track(running_var, (variance * (count / max(count - 1, 1))).mean(dim=0), momentum)
    scale = (variance + eps).rsqrt()
    if kind not in _HALVES:
        return _affine(centred * scale, weight, bias)
    # As in torch, statistics are of the type of the input, and so are gradients of each sample's parameters.
    y = (x - _wide(cast(mean, kind))) * _wide(cast(scale, kind))
    for values, apply in ((weight, mul), (bias, add)):
        if values is not None:
            each = broadcast_to(values, [input.shape[0], input.shape[1]])
            y = apply(y, _wide(each).reshape([*each.shape, *[1] * len(axes)]))
    return cast(y, kind)


@outlined
@rounded_once
@names_arguments
def local_response_norm(input: Any, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> Tensor:
    """Each value over a power of the squares in its neighbouring channels.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.functional.local_response_norm(pf.ones([1, 4, 2]), 2).shape
        [1, 4, 2]
    """
    from pyflame.nn.functional.pooling import avg_pool1d

    if input.numel == 0:
        return input
    places = math.prod(input.shape[2:])
    flat = (input * input).reshape([input.shape[0], input.shape[1], places]).movedim(1, -1)
    padded = flat.reshape([input.shape[0] * places, 1, input.shape[1]])
    from pyflame.ops.shaping import pad

    padded = pad(padded, [size // 2, (size - 1) // 2])
    means = avg_pool1d(padded, size, stride=1).reshape(list(flat.shape)).movedim(-1, 1).reshape(list(input.shape))
    return input / (means * alpha + k) ** beta


@outlined
@rounded_once
@names_arguments
def normalize(input: Any, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Tensor:
    """Vectors along `dim` over their p-norm.

    Example:
        >>> import pyflame as pf
        >>> [round(x, 3) for x in pf.nn.functional.normalize(pf.tensor([[3.0, 4.0]])).numpy().ravel().tolist()]
        [0.6, 0.8]
    """
    from pyflame.ops.arithmetic import clamp_min
    from pyflame.ops.reduction import norm

    return input / clamp_min(norm(input, p, dim=dim, keepdim=True), eps)
