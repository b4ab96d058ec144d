"""Activations and softmax."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from pyflame.dtypes import to_dtype
from pyflame.ops import arithmetic as ar
from pyflame.ops import pointwise as pw
from pyflame.ops.core import (
    as_tensor,
    axis_of,
    call,
    cast,
    convert,
    dim_argument,
    floating,
    real_only,
    remembered,
    rounded_once,
    scalar,
    unary,
)
from pyflame_rt.graph.errors import ShapeMismatchError
from pyflame_rt.ops.ml.features import Probit
from pyflame_rt.ops.onnx.activation import (
    Elu,
    Gelu,
    HardSigmoid,
    HardSwish,
    LeakyRelu,
    LogSoftmax,
    Mish,
    PRelu,
    Relu,
    Selu,
    Sigmoid,
    Softmax,
    Softplus,
    Softsign,
    Swish,
)
from pyflame_rt.ops.pyflame.slopes import HardTanh

if TYPE_CHECKING:
    from pyflame.tensors import Tensor
    from pyflame_rt.ops.core.registry import Op


@remembered
def relu(input: Any) -> Tensor:
    """``max(input, 0)``."""
    return call(Relu, as_tensor(input))


def relu6(input: Any) -> Tensor:
    """The tensor limited to 0 .. 6."""
    return hardtanh(input, 0.0, 6.0)


@remembered
def sigmoid(input: Any) -> Tensor:
    """``1 / (1 + exp(-input))``."""
    return unary(Sigmoid, input)


expit = sigmoid


@rounded_once
def logsigmoid(input: Any) -> Tensor:
    """``log(sigmoid(input))`` without overflow."""
    return ar.neg(softplus(ar.neg(input)))


@rounded_once
def softplus(input: Any, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """``log(1 + exp(beta * input)) / beta``; the input itself above ``threshold``."""
    x = floating(input)
    scaled = x if beta == 1 else ar.mul(x, beta)
    smooth = call(Softplus, scaled)
    smooth = smooth if beta == 1 else ar.div(smooth, beta)
    return ar.where(ar.gt(scaled, threshold), x, smooth)


@rounded_once
def gelu(input: Any, approximate: str = "none") -> Tensor:
    """``input * Phi(input)``, with ``approximate="tanh"`` by a formula with tanh."""
    if approximate not in ("none", "tanh"):
        raise ValueError(f"approximate is 'none' or 'tanh', got {approximate!r}")
    return call(Gelu, floating(input), approximate=approximate)


@rounded_once
def silu(input: Any) -> Tensor:
    """``input * sigmoid(input)``."""
    return call(Swish, floating(input))


swish = silu


@rounded_once
def mish(input: Any) -> Tensor:
    """``input * tanh(softplus(input))``."""
    return call(Mish, floating(input))


@rounded_once
def elu(input: Any, alpha: float = 1.0) -> Tensor:
    """The input where positive, ``alpha * (exp(input) - 1)`` elsewhere."""
    return call(Elu, floating(input), alpha=float(alpha))


@rounded_once
def selu(input: Any) -> Tensor:
    """The self-normalising exponential unit."""
    return call(Selu, floating(input), alpha=1.6732632423543772, gamma=1.0507009873554805)


@rounded_once
def celu(input: Any, alpha: float = 1.0) -> Tensor:
    """``max(0, x) + min(0, alpha * (exp(x / alpha) - 1))``."""
    x = floating(input)
    below = ar.where(ar.gt(x, 0), scalar(0, x.dtype), x)
    return ar.where(ar.gt(x, 0), x, ar.mul(ar.sub(pw.exp(ar.div(below, alpha)), 1.0), alpha))


def leaky_relu(input: Any, negative_slope: float = 0.01) -> Tensor:
    """The input where positive, ``negative_slope * input`` elsewhere."""
    return call(LeakyRelu, floating(input), alpha=float(negative_slope))


def prelu(input: Any, weight: Any) -> Tensor:
    """Leaky ReLU with a slope for each channel (dimension 1)."""
    x, w = floating(input), as_tensor(weight)
    channels = 1 if x.ndim < 2 else int(x.shape[1])
    if w.ndim > 1 or w.numel not in (1, channels):
        raise ShapeMismatchError(f"prelu: weight must have 1 or {channels} numbers. Received: {list(w.shape)}")
    if x.ndim == 0:
        w = w.reshape(())
    elif w.numel != 1 and x.ndim > 2:
        w = w.reshape((w.numel, *[1] * (x.ndim - 2)))
    return call(PRelu, x, w)


def hardtanh(input: Any, min_val: float = -1.0, max_val: float = 1.0) -> Tensor:
    """The tensor limited to an interval."""
    if min_val > max_val:
        raise ValueError(f"hardtanh: min_val must not be above max_val. Received: {min_val} and {max_val}")
    x = as_tensor(input)
    if not x.dtype.is_floating_point:
        return ar.clamp(x, convert(min_val, x.dtype), convert(max_val, x.dtype))
    return call(HardTanh, x, low=float(min_val), high=float(max_val))


@rounded_once
def hardsigmoid(input: Any) -> Tensor:
    """``relu6(input + 3) / 6``."""
    return call(HardSigmoid, floating(input), alpha=1 / 6, beta=0.5)


@rounded_once
def hardswish(input: Any) -> Tensor:
    """``input * relu6(input + 3) / 6``."""
    return call(HardSwish, floating(input))


@rounded_once
def softsign(input: Any) -> Tensor:
    """``input / (1 + |input|)``."""
    return call(Softsign, floating(input))


@rounded_once
def tanhshrink(input: Any) -> Tensor:
    """``input - tanh(input)``."""
    return ar.sub(input, pw.tanh(input))


@rounded_once
def softshrink(input: Any, lambd: float = 0.5) -> Tensor:
    """The input moved towards 0 by ``lambd``, 0 where it is nearer."""
    x = floating(input)
    inner = ar.where(ar.lt(x, -lambd), ar.add(x, lambd), ar.mul(x, 0.0))
    return ar.where(ar.gt(x, lambd), ar.sub(x, lambd), inner)


def hardshrink(input: Any, lambd: float = 0.5) -> Tensor:
    """The input, 0 where it is nearer to 0 than ``lambd``."""
    x = floating(real_only("hardshrink", input))
    return ar.where(ar.le(ar.abs(x), lambd), scalar(0, x.dtype), x)


def threshold(input: Any, threshold: float, value: float) -> Tensor:
    """The input where it is above ``threshold``, ``value`` elsewhere."""
    x = as_tensor(input)
    return ar.where(ar.le(x, threshold), convert(value, x.dtype), x)


@rounded_once
def glu(input: Any, dim: int = -1) -> Tensor:
    """The first half times the sigmoid of the second."""
    x = floating(input)
    along = axis_of(dim, x.ndim)
    size = x.shape[along]
    if size % 2:
        raise ValueError(f"glu halves dimension {dim}, whose size {size} is odd")
    return ar.mul(x.narrow(along, 0, size // 2), sigmoid(x.narrow(along, size // 2, size // 2)))


@rounded_once
def softmax(input: Any, dim: int | None = None, *, axis: int | None = None, dtype: Any = None) -> Tensor:
    """Exponentials that sum to 1 along a dimension (the last by default)."""
    return _softmax(Softmax, input, dim, axis, dtype)


@rounded_once
def log_softmax(input: Any, dim: int | None = None, *, axis: int | None = None, dtype: Any = None) -> Tensor:
    """The logarithm of softmax, without overflow."""
    return _softmax(LogSoftmax, input, dim, axis, dtype)


def _softmax(op: Op, input: Any, dim: Any, axis: Any, dtype: Any) -> Tensor:
    x = floating(as_tensor(input) if dtype is None else cast(as_tensor(input), to_dtype(dtype)))
    along = dim_argument(dim, axis)
    along = axis_of(-1 if along is None else along, x.ndim)
    if x.ndim == 0:
        return call(op, x.reshape((1,)), axis=0).reshape(())
    return call(op, x, axis=along)


@rounded_once
def softmin(input: Any, dim: int | None = None) -> Tensor:
    """Softmax of the negated input."""
    return softmax(ar.neg(input), dim)


@rounded_once
def erfinv(input: Any) -> Tensor:
    """The inverse of the error function."""
    x = floating(input)
    return ar.div(call(Probit, ar.div(ar.add(x, 1.0), 2.0)), math.sqrt(2))
