"""Normalisations of aten."""

from __future__ import annotations

from typing import Any

from pyflame_rt.graph import DType
from pyflame_rt.graph.errors import UndeterminedError, UnsupportedOperatorError
from pyflame_rt.importers.aten.table import aten
from pyflame_rt.importers.aten.values import axis, cast, floated, number, sizes
from pyflame_rt.ops.core.value import Value, constant
from pyflame_rt.ops.onnx.arithmetic import Max, Reciprocal
from pyflame_rt.ops.onnx.index import Gather
from pyflame_rt.ops.onnx.math import Sqrt
from pyflame_rt.ops.onnx.norm import BatchNormalization, LayerNormalization, RMSNormalization
from pyflame_rt.ops.onnx.reduce import ReduceMean, ReduceSum
from pyflame_rt.ops.onnx.shape import Expand, Reshape, Shape, Size

__all__: list[str] = []


def _channels(x: Value) -> int:
    count = sizes(x)[1]
    if not isinstance(count, int):
        raise UndeterminedError("a normalisation over an unknown number of channels")
    return count


def _filled(count: int, value: float, like: Value) -> Value:
    import numpy as np

    return constant(np.full(count, value, like.dtype.numpy), like)


def _by_channel(v: Value, rank: int) -> Value:
    return Reshape(v, [1, -1, *[1] * (rank - 2)])


def _moments(x: Value, axes: list[int]) -> tuple[Value, Value]:
    centre = ReduceMean(x, axes)
    away = x - centre
    return away, ReduceMean(away * away, axes)


def _affine(x: Value, weight: Value | None, bias: Value | None) -> Value:
    made = x if weight is None else x * _by_channel(weight, x.rank)
    return made if bias is None else made + _by_channel(bias, x.rank)


@aten("batch_norm", "_batch_norm_impl_index")
def _batch_norm(
    x: Value, weight: Value | None, bias: Value | None, running_mean: Value | None, running_var: Value | None,
    training: bool, momentum: float, eps: float, cudnn_enabled: bool = False,
) -> Value:  # fmt: skip
    del momentum, cudnn_enabled
    if training and running_mean is not None:
        raise UnsupportedOperatorError(
            "batch normalisation in training mode changes the model when it runs: call eval() before saving it"
        )
    if training or running_mean is None or running_var is None:
        away, variance = _moments(x, [0, *range(2, x.rank)])
        return _affine(away * Reciprocal(Sqrt(variance + float(eps))), weight, bias)
    factor = _filled(_channels(x), 1.0, x) if weight is None else weight
    shift = _filled(_channels(x), 0.0, x) if bias is None else bias
    made = BatchNormalization(x, factor, shift, running_mean, running_var, epsilon=float(eps))
    return made[0] if isinstance(made, tuple) else made


@aten("_native_batch_norm_legit_no_training")
def _batch_norm_no_training(
    x: Value, weight: Any, bias: Any, mean: Value, var: Value, momentum: float, eps: float
) -> Any:
    made = _batch_norm(x, weight, bias, mean, var, False, momentum, eps)
    empty = constant([], x.dtype)
    return made, empty, empty


@aten("native_batch_norm", "_native_batch_norm_legit")
def _native_batch_norm(x: Value, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float,
                       eps: float) -> Any:  # fmt: skip
    made = _batch_norm(x, weight, bias, mean, var, training, momentum, eps)
    empty = constant([], x.dtype)
    return made, empty, empty


@aten("_native_batch_norm_legit.no_stats")
def _batch_norm_no_stats(x: Value, weight: Any, bias: Any, training: bool, momentum: float, eps: float) -> Any:
    del training, momentum
    axes = [0, *range(2, x.rank)]
    away, variance = _moments(x, axes)
    inverse = Reciprocal(Sqrt(variance + float(eps)))
    return _affine(away * inverse, weight, bias), ReduceMean(x, axes, keepdims=0), Reshape(inverse, [-1])


@aten("_native_batch_norm_legit_functional")
def _batch_norm_functional(
    x: Value, weight: Any, bias: Any, running_mean: Value, running_var: Value, training: bool, momentum: float,
    eps: float,
) -> Any:  # fmt: skip
    if not training:
        made, empty, _ = _batch_norm_no_training(x, weight, bias, running_mean, running_var, momentum, eps)
        return made, empty, empty, running_mean, running_var
    made, centre, inverse = _batch_norm_no_stats(x, weight, bias, True, momentum, eps)
    axes = [0, *range(2, x.rank)]
    _, variance = _moments(x, axes)
    count = cast(Size(x), x.dtype) / cast(Gather(Shape(x), constant(1, DType.Int64)), x.dtype)
    unbiased = Reshape(variance, [-1]) * (count / (count - 1.0))
    share = float(momentum)
    means = running_mean * (1.0 - share) + centre * share
    return made, centre, inverse, means, running_var * (1.0 - share) + unbiased * share


@aten("instance_norm")
def _instance_norm(
    x: Value, weight: Value | None, bias: Value | None, running_mean: Value | None, running_var: Value | None,
    use_input_stats: bool, momentum: float, eps: float, cudnn_enabled: bool = False,
) -> Value:  # fmt: skip
    if not use_input_stats:
        return _batch_norm(x, weight, bias, running_mean, running_var, False, momentum, eps, cudnn_enabled)
    if running_mean is not None:
        raise UnsupportedOperatorError(
            "instance normalisation in training mode changes the model when it runs: call eval() before saving it"
        )
    away, variance = _moments(x, list(range(2, x.rank)))
    return _affine(away * Reciprocal(Sqrt(variance + float(eps))), weight, bias)


def _ones(shape: Any, like: Value) -> Value:
    import numpy as np

    return constant(np.ones([int(n) for n in shape], like.dtype.numpy), like)


@aten("layer_norm")
def _layer_norm(
    x: Value, normalized_shape: Any, weight: Value | None = None, bias: Value | None = None, eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Value:  # fmt: skip
    del cudnn_enable
    scale = _ones(normalized_shape, x) if weight is None else weight
    made = LayerNormalization(x, scale, bias, axis=-len(normalized_shape), epsilon=float(eps))
    return made[0] if isinstance(made, tuple) else made


@aten("native_layer_norm")
def _native_layer_norm(x: Value, normalized_shape: Any, weight: Value | None, bias: Value | None, eps: float) -> Any:
    axes = list(range(x.rank - len(normalized_shape), x.rank))
    value = cast(x, DType.Float32) if x.dtype in (DType.Float16, DType.BFloat16) else x
    centre = ReduceMean(value, axes)
    _, variance = _moments(value, axes)
    return _layer_norm(x, normalized_shape, weight, bias, eps), centre, Reciprocal(Sqrt(variance + float(eps)))


@aten("rms_norm")
def _rms_norm(x: Value, normalized_shape: Any, weight: Value | None = None, eps: float | None = None) -> Value:
    import numpy as np

    least = float(np.finfo(x.dtype.numpy).eps) if eps is None else float(eps)
    scale = _ones(normalized_shape, x) if weight is None else weight
    return RMSNormalization(x, scale, axis=-len(normalized_shape), epsilon=least)


@aten("_fused_rms_norm")
def _fused_rms_norm(x: Value, normalized_shape: Any, weight: Value | None, eps: float | None) -> Any:
    axes = list(range(x.rank - len(normalized_shape), x.rank))
    made = _rms_norm(x, normalized_shape, weight, eps)
    return made, Reciprocal(Sqrt(ReduceMean(x * x, axes) + (eps or 1.1920928955078125e-07)))


@aten("group_norm")
def _group_norm(
    x: Value, num_groups: int, weight: Value | None = None, bias: Value | None = None, eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Value:  # fmt: skip
    del cudnn_enabled
    apart = Reshape(x, [0, int(num_groups), -1])
    away, variance = _moments(apart, [2])
    plain = Reshape(away * Reciprocal(Sqrt(variance + float(eps))), Shape(x))
    return _affine(plain, weight, bias)


@aten("native_group_norm")
def _native_group_norm(x: Value, weight: Any, bias: Any, N: Any, C: Any, HxW: Any, group: int, eps: float) -> Any:
    del N, C, HxW
    apart = Reshape(x, [0, int(group), -1])
    centre = ReduceMean(apart, [2], keepdims=0)
    _, variance = _moments(apart, [2])
    inverse = Reciprocal(Sqrt(variance + float(eps)))
    return _group_norm(x, group, weight, bias, eps), centre, Reshape(inverse, [0, -1])


@aten("cosine_similarity")
def _cosine_similarity(x1: Value, x2: Value, dim: int = 1, eps: float = 1e-8) -> Value:
    left, right = floated(x1), floated(x2)
    if list(left.shape) != list(right.shape):
        whole = Shape(left + right)
        left, right = Expand(left, whole), Expand(right, whole)

    def unit(x: Value) -> Value:
        length = Sqrt(ReduceSum(x * x, [dim]))
        return x / Max(length, number(float(eps), x.dtype))

    return ReduceSum(unit(left) * unit(right), [dim], keepdims=0)


@aten("pairwise_distance")
def _pairwise_distance(x1: Value, x2: Value, p: float = 2, eps: float = 1e-6, keepdim: bool = False) -> Value:
    from pyflame_rt.importers.aten.reduce import _norm

    return _norm(x1 - x2 + float(eps), p, [-1], keepdim)


@aten("_weight_norm")
def _weight_norm(v: Value, g: Value, dim: int = 0) -> Value:
    return _weight_norm_interface(v, g, dim)[0]


@aten("_weight_norm_interface")
def _weight_norm_interface(v: Value, g: Value, dim: int = 0) -> tuple[Value, Value]:
    """The direction of one tensor with the length of another, and the length it had."""
    whole = dim == -1  # one length for all, as torch has it
    axes = [i for i in range(v.rank) if whole or i != axis(dim, v.rank)]
    length = Sqrt(ReduceSum(v * v, axes, keepdims=0 if whole else 1))
    return v * (g / length), length
