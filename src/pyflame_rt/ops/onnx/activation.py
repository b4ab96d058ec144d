"""Activation functions."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from pyflame_rt.graph import DType, Node, TensorType
from pyflame_rt.graph.errors import InputError, ShapeMismatchError
from pyflame_rt.ops.core.flop_counts import flops_per_input
from pyflame_rt.ops.core.guards import spreads_to
from pyflame_rt.ops.core.registry import operator, primitive
from pyflame_rt.ops.core.type_rules import normalize_axis, same
from pyflame_rt.ops.core.upgrade import Upgrade, upgrade
from pyflame_rt.ops.onnx.arithmetic import (
    Abs,
    Max,
    Min,
    drop_consumed_inputs,
    unbroadcast,
    zeros_like,
)
from pyflame_rt.ops.onnx.cast import Cast
from pyflame_rt.ops.onnx.logic import And, Equal, Where
from pyflame_rt.ops.onnx.math import Erf, Exp, Log, Tanh
from pyflame_rt.ops.onnx.reduce import CumSum, ReduceMax, ReduceSum

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyflame_rt.ops.core.value import Value

_HALF = (DType.Float16, DType.BFloat16)


def widened(x: Value, body: Callable[[Value], Value]) -> Value:
    """Compute in float32 what starts and ends in half precision, so that it is rounded once."""
    if x.dtype not in _HALF:
        return body(x)
    return Cast(body(Cast(x, to=DType.Float32)), to=x.dtype)


# ------------------------------------------------------------------ piecewise linear


@operator(
    since=14,
    infer=same,
    vjp=lambda g, y, x: (Where(x > 0.0, g, 0.0),),
    types="T > T",
    kind="activation",
    elementwise=True,
)
def Relu(X: Value, /) -> Value:
    """The positive part."""
    return Max(X, 0)


@operator(
    since=16,
    infer=same,
    vjp=lambda g, y, x, *, alpha: (Where(x > 0.0, g, g * alpha),),
    types="T:float > T",
    kind="activation",
    elementwise=True,
)
def LeakyRelu(X: Value, /, *, alpha: float = 0.009999999776482582) -> Value:
    """``X`` where it is not negative, else ``alpha * X``."""
    return Where(X < 0.0, X * alpha, X)


def _prelu_type(x: Value, slope: Value, /) -> TensorType:
    shape = x.tensor_type.shape
    if shape is not None:
        spreads_to("slope", slope, shape, "the input's")
    return x.tensor_type


@operator(since=16, infer=_prelu_type, types="T T > T", kind="activation", elementwise=True)
def PRelu(X: Value, slope: Value, /) -> Value:
    """``X`` where it is not negative, else ``slope * X``."""
    return Where(X < 0, slope * X, X)


@operator(since=22, infer=same, types="T:float > T", kind="activation", elementwise=True)
def ThresholdedRelu(X: Value, /, *, alpha: float = 1.0) -> Value:
    """``X`` above ``alpha``, else 0."""
    return Where(alpha < X, X, 0.0)


def _hard_sigmoid_vjp(g: Value, y: Value, x: Value, *, alpha: float, beta: float) -> tuple[Value]:
    """Flat at both ends, and where they begin."""

    def slope(wide: Value, grad: Value) -> Value:
        line = wide * alpha + beta
        return Where(And(line > 0.0, line < 1.0), grad * alpha, 0.0)

    return (_both_widened(slope, x, g),)


def _hard_swish_vjp(g: Value, y: Value, x: Value) -> tuple[Value]:
    """0 up to -3, 1 from 3 on, a line in between."""
    return (_both_widened(lambda v, h: Where(v < 3.0, Where(v > -3.0, h * (v / 3.0 + 0.5), 0.0), h), x, g),)


def _both_widened(body: Callable[[Value, Value], Value], x: Value, g: Value) -> Value:
    if x.dtype not in _HALF:
        return body(x, g)
    return Cast(body(Cast(x, to=DType.Float32), Cast(g, to=DType.Float32)), to=x.dtype)


@operator(since=22, infer=same, vjp=_hard_sigmoid_vjp, types="T:float > T", kind="activation", elementwise=True)
def HardSigmoid(X: Value, /, *, alpha: float = 0.20000000298023224, beta: float = 0.5) -> Value:
    """``alpha * X + beta``, limited to 0 and 1."""
    return widened(X, lambda x: Clip(x * alpha + beta, 0.0, 1.0))


@operator(since=22, infer=same, vjp=_hard_swish_vjp, types="T:float > T", kind="activation", elementwise=True)
def HardSwish(X: Value, /) -> Value:
    """``X * HardSigmoid(X)`` with a slope of one sixth."""
    return widened(X, lambda x: x * HardSigmoid(x, alpha=1.0 / 6.0, beta=0.5))


@operator(since=9, infer=same, types="T > T", kind="activation", elementwise=True)
def Shrink(input: Value, /, *, bias: float = 0.0, lambd: float = 0.5) -> Value:
    """Moved towards 0 by ``bias``, and 0 between ``-lambd`` and ``lambd``."""
    if input.dtype.is_integer:
        # The bounds are floats, so that integers are compared with 1.5, not with 1.
        wide = Shrink(Cast(input, to=DType.Float64), bias=bias, lambd=lambd)
        return Cast(wide, to=input.dtype)
    above = Where(input > lambd, input - bias, 0.0)
    return Where(input < -lambd, input + bias, above)


def _clip_vjp(
    g: Value, y: Value, x: Value, low: Value | None = None, high: Value | None = None
) -> tuple[Value | None, ...]:
    """Through where the element lies between the bounds, to the bound that cut it off elsewhere; NaN stops it."""
    inside, to_low, to_high = g, None, None
    raised = x if low is None else Max(x, low)
    if high is not None:
        to_high = unbroadcast(Where(raised > high, g, 0.0), high)
        inside = Where(x <= high, inside, 0.0)
    if low is not None:
        uncut = g if high is None else Where(raised > high, 0.0, g)
        to_low = unbroadcast(Where(x < low, uncut, 0.0), low)
        inside = Where(x >= low, inside, 0.0)
    return inside, to_low, to_high


@operator(since=13, infer=same, vjp=_clip_vjp, types="T T T > T", kind="activation", elementwise=True)
def Clip(input: Value, min: Value | None = None, max: Value | None = None, /) -> Value:
    """Limited to ``min`` and ``max``; the upper bound wins where they cross."""
    raised = input if min is None else Max(input, min)
    result = raised if max is None else Min(raised, max)
    return _identity(result) if result is input else result


def _identity(x: Value) -> Value:
    from pyflame_rt.ops.onnx.cast import Identity

    return Identity(x)


# ------------------------------------------------------------------ exponential


@primitive(
    since=13,
    infer=same,
    vjp=lambda g, y, x: (g * y * (1.0 - y),),
    types="T:float > T",
    kind="activation",
    scalar="sigmoid",
)
def Sigmoid(ops: Any, X: Any, /) -> Any:
    """``1 / (1 + exp(-X))``."""
    return ops.sigmoid(X)


@primitive(
    since=22,
    infer=same,
    vjp=lambda g, y, x: (g * Sigmoid(x),),
    types="T:float > T",
    kind="activation",
    scalar="softplus",
)
def Softplus(ops: Any, X: Any, /) -> Any:
    """``log(1 + exp(X))`` without overflow."""
    return ops.softplus(X)


@operator(since=22, infer=same, types="T:float > T", kind="activation", elementwise=True)
def Softsign(input: Value, /) -> Value:
    """``x / (1 + |x|)``."""
    return widened(input, lambda x: x / (Abs(x) + 1.0))


@operator(since=22, infer=same, types="T:float > T", kind="activation", elementwise=True)
def Elu(X: Value, /, *, alpha: float = 1.0) -> Value:
    """``X`` above 0, else ``alpha * (exp(X) - 1)``."""
    # Only what is below 0 is raised: an overflow above would spoil the gradient.
    return widened(X, lambda x: Where(x > 0.0, x, (Exp(Where(x > 0.0, 0.0, x)) - 1.0) * alpha))


@operator(since=22, infer=same, types="T:float > T", kind="activation", elementwise=True)
def Selu(
    X: Value,
    /,
    *,
    alpha: float = 1.67326319217681884765625,
    gamma: float = 1.05070102214813232421875,
) -> Value:
    """The self-normalising form of Elu."""
    return widened(X, lambda x: Elu(x, alpha=alpha) * gamma)


@operator(since=28, infer=same, types="T:float > T", kind="activation", elementwise=True)
def Celu(X: Value, /, *, alpha: float = 1.0) -> Value:
    """``X`` above 0, else ``alpha * (exp(X / alpha) - 1)``."""
    return widened(X, lambda x: Elu(x / alpha, alpha=1.0) * alpha)


@operator(since=24, infer=same, types="T:float > T", kind="activation", elementwise=True)
def Swish(X: Value, /, *, alpha: float = 1.0) -> Value:
    """``X * Sigmoid(alpha * X)``."""
    return widened(X, lambda x: x * Sigmoid(x if alpha == 1.0 else x * alpha))


def _swiglu_type(a: Value, b: Value, /, **_: Any) -> TensorType:
    first, second = a.tensor_type.shape, b.tensor_type.shape
    static = first is not None and second is not None and first.is_static and second.is_static
    if static and first != second:
        raise ShapeMismatchError(f"A and B must have one shape, got {first} and {second}")
    return a.tensor_type


@operator(since=28, infer=_swiglu_type, types="T:float T > T")
def SwiGLU(A: Value, B: Value, /, *, alpha: float = 1.0) -> Value:
    """``Swish(A) * B``, the gate times the linear part."""
    _swiglu_type(A, B)
    return Swish(A, alpha=alpha) * B


@operator(since=22, infer=same, types="T:float > T", kind="activation", elementwise=True)
def Mish(X: Value, /) -> Value:
    """``X * tanh(softplus(X))``."""
    return widened(X, lambda x: x * Tanh(Softplus(x)))


def _gelu_part(x: Value, approximate: str) -> Value:
    """What goes from -1 to 1 in Gelu."""
    if approximate not in ("none", "tanh"):
        raise InputError(f"approximate must be none or tanh, got {approximate!r}")
    if approximate == "none":
        return Erf(x * math.sqrt(0.5))
    return Tanh(x * (x * x * 0.044715 + 1.0) * math.sqrt(2.0 / math.pi))


@operator(since=1, domain="pyflame", infer=same, elementwise=True)
def GeluSlope(X: Value, /, *, approximate: str = "none") -> Value:
    """The derivative of Gelu."""

    def body(x: Value) -> Value:
        part = _gelu_part(x, approximate)
        if approximate == "none":
            bent = Exp(x * x * -0.5) * x * math.sqrt(0.5 / math.pi)
        else:
            bent = (1.0 - part * part) * x * (x * x * (3 * 0.044715) + 1.0) * math.sqrt(0.5 / math.pi)
        return (part + 1.0) * 0.5 + bent

    return widened(X, body)


def _gelu_vjp(g: Value, y: Value, x: Value, *, approximate: str) -> tuple[Value]:
    if x.dtype not in _HALF:
        return (g * GeluSlope(x, approximate=approximate),)
    wide, slope = (Cast(v, to=DType.Float32) for v in (g, x))
    return (Cast(wide * GeluSlope(slope, approximate=approximate), to=x.dtype),)


@operator(since=20, infer=same, vjp=_gelu_vjp, types="T:float > T", kind="activation", elementwise=True)
def Gelu(X: Value, /, *, approximate: str = "none") -> Value:
    """``X`` times the normal distribution function, or its tanh approximation."""
    return widened(X, lambda x: x * 0.5 * (_gelu_part(x, approximate) + 1.0))


# ------------------------------------------------------------------ along an axis


def _along_axis(x: Value, /, *, axis: int = -1) -> TensorType:
    shape = x.tensor_type.shape
    if shape is not None:
        normalize_axis(axis, len(shape))
    return x.tensor_type


def _softmax_vjp(g: Value, y: Value, x: Value, *, axis: int) -> tuple[Value]:
    return (y * (g - ReduceSum(g * y, [axis])),)


@operator(
    since=13, infer=_along_axis, vjp=_softmax_vjp, types="T:float > T", kind="activation", flops=flops_per_input(4)
)
def Softmax(input: Value, /, *, axis: int = -1) -> Value:
    """Exponentials divided by their sum along an axis."""
    # Each step rounds to the input's own type, as the operator's definition in ONNX does.
    raised = Exp(input - ReduceMax(input, [axis]))
    return raised / ReduceSum(raised, [axis])


def _log_softmax_vjp(g: Value, y: Value, x: Value, *, axis: int) -> tuple[Value]:
    return (g - Exp(y) * ReduceSum(g, [axis]),)


@operator(
    since=13, infer=_along_axis, vjp=_log_softmax_vjp, types="T:float > T", kind="activation", flops=flops_per_input(4)
)
def LogSoftmax(input: Value, /, *, axis: int = -1) -> Value:
    """Logarithm of Softmax, without overflow."""

    def body(x: Value) -> Value:
        low = x - ReduceMax(x, [axis])
        return low - Log(ReduceSum(Exp(low), [axis]))

    return widened(input, body)


@operator(
    since=13, infer=_along_axis, vjp=lambda g, y, x, *, axis: (zeros_like(x),), types="T:float > T", kind="activation"
)
def Hardmax(input: Value, /, *, axis: int = -1) -> Value:
    """1 at the first largest element along an axis, 0 elsewhere."""
    largest = Equal(input, ReduceMax(input, [axis]))
    count = CumSum(Cast(largest, to=DType.Int32), axis)
    return Cast(And(largest, Equal(count, 1)), to=input.dtype)


# ------------------------------------------------------------------ older forms


@upgrade(["Softmax", "LogSoftmax", "Hardmax"], to=13)
def axis_stopped_flattening(node: Node, up: Upgrade) -> list[Node]:
    """Before 13, all axes from ``axis`` on were taken together, as columns of a matrix."""
    axis = node.get_attr("axis", 1)
    if axis == -1:
        return [node.replace(attributes={"axis": -1})]
    source = node.inputs[0]
    shape = up.emit("Shape", [source])
    matrix = up.emit("Flatten", [source], {"axis": axis})
    rows = up.fresh(node.op_type.lower())
    inner = node.replace(inputs=[matrix], outputs=[rows], attributes={"axis": -1})
    return [inner, Node(f"{node.name}_shape", "Reshape", [rows, shape], node.outputs, {"allowzero": 1})]


@upgrade("Clip", to=11)
def clip_bounds_became_inputs(node: Node, up: Upgrade) -> Node:
    """Bounds were attributes, and their defaults the largest floats."""
    bounds = [_bound(node, up, name) for name in ("min", "max")]
    while bounds and not bounds[-1]:
        bounds.pop()
    return node.replace(inputs=[node.inputs[0], *bounds], attributes={})


def _bound(node: Node, up: Upgrade, name: str) -> str:
    if not node.has_attr(name):
        return ""
    return up.constant_like(node.get_attr(name), node.inputs[0], name)


@upgrade("PRelu", to=7)
def slope_lined_up_with_channels(node: Node, up: Upgrade) -> Node:
    """Before 7, a slope belonged to channels, the second axis, without being shaped so."""
    x, slope = node.inputs
    aligned = up.emit("AlignAxis", [slope, x], {"axis": 1}, domain="pyflame")
    return node.replace(inputs=[x, aligned], attributes={})


@upgrade("Selu", to=6)
def selu_defaults_grew_digits(node: Node, up: Upgrade) -> Node:
    """Opset 1 had its constants to four digits."""
    given = {"alpha": 1.6732000112533569, "gamma": 1.0506999492645264, **node.attributes}
    given.pop("consumed_inputs", None)
    return node.replace(attributes=given)


upgrade(["Relu", "LeakyRelu", "Elu", "HardSigmoid", "Sigmoid", "Clip"], to=6)(drop_consumed_inputs)
