"""Elementwise operators of aten: one operand."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from pyflame_rt.graph import DType
from pyflame_rt.importers.aten.table import aten
from pyflame_rt.importers.aten.values import Num, cast, floated, number, promoted, refuse, result_type, torch_dtype
from pyflame_rt.ops.core.value import Value, constant
from pyflame_rt.ops.onnx import activation, arithmetic, logic, reduce
from pyflame_rt.ops.onnx import math as maths
from pyflame_rt.ops.onnx.loss import Dropout
from pyflame_rt.ops.pyflame.complex_numbers import ComplexAbs

if TYPE_CHECKING:
    from collections.abc import Callable

__all__: list[str] = []

_LN2, _LN10 = math.log(2), math.log(10)
_SELU = (1.6732632423543772, 1.0507009873554805)


def _in_floats(name: str, op: Callable[[Value], Value]) -> None:
    """Register an operator that computes in floating point, whatever comes."""
    aten(name)(lambda x: op(floated(x)))


for _name, _op in {
    "exp": maths.Exp, "log": maths.Log, "sqrt": maths.Sqrt, "erf": maths.Erf, "sin": maths.Sin, "cos": maths.Cos,
    "tan": maths.Tan, "asin": maths.Asin, "acos": maths.Acos, "atan": maths.Atan, "sinh": maths.Sinh,
    "cosh": maths.Cosh, "asinh": maths.Asinh, "acosh": maths.Acosh, "atanh": maths.Atanh,
    "arcsin": maths.Asin, "arccos": maths.Acos, "arctan": maths.Atan, "tanh": maths.Tanh,
    "sigmoid": activation.Sigmoid, "reciprocal": arithmetic.Reciprocal,
}.items():  # fmt: skip
    _in_floats(_name, _op)

_in_floats("rsqrt", lambda x: arithmetic.Reciprocal(maths.Sqrt(x)))
_in_floats("log2", lambda x: maths.Log(x) / _LN2)
_in_floats("log10", lambda x: maths.Log(x) / _LN10)
_in_floats("exp2", lambda x: maths.Exp(x * _LN2))
_in_floats("erfc", lambda x: 1.0 - maths.Erf(x))
_in_floats("tanhshrink", lambda x: x - maths.Tanh(x))
_in_floats("silu", activation.Swish)
_in_floats("mish", activation.Mish)
_in_floats("log_sigmoid", lambda x: -activation.Softplus(-x))
_in_floats("hardswish", activation.HardSwish)
_in_floats("hardsigmoid", lambda x: activation.HardSigmoid(x, alpha=1 / 6, beta=0.5))
_in_floats("deg2rad", lambda x: x * (math.pi / 180))
_in_floats("rad2deg", lambda x: x * (180 / math.pi))


@aten("log1p")
def _log1p(x: Value) -> Value:
    # Kahan's: exact where 1 + x rounds away the digits of x.
    value = floated(x)
    whole = value + 1.0
    away = whole - 1.0
    safe = logic.Where(logic.Equal(away, number(0.0, value.dtype)), constant(1.0, value), away)
    return logic.Where(logic.Equal(away, number(0.0, value.dtype)), value, maths.Log(whole) * (value / safe))


@aten("expm1", "special_expm1")
def _expm1(x: Value) -> Value:
    # 2 sinh(x/2) exp(x/2): no digits are lost near zero.
    half = floated(x) * 0.5
    return maths.Sinh(half) * maths.Exp(half) * 2.0


@aten("log_softmax", "_log_softmax", "special_log_softmax")
def _log_softmax(x: Value, dim: int, dtype: Any = None) -> Value:
    value = floated(x) if dtype in (None, False, True) else cast(x, torch_dtype(dtype))
    return activation.LogSoftmax(value, axis=dim) if value.rank else value - value


@aten("_safe_softmax")
def _safe_softmax(x: Value, dim: int, dtype: Any = None) -> Value:
    """Zeros where nothing is above minus infinity."""
    made = _softmax(x, dim, dtype)
    most = reduce.ReduceMax(x, [dim], keepdims=1) if x.rank else x
    return logic.Where(logic.Equal(most, constant(-math.inf, x)), constant(0.0, made), made)


@aten("softmax", "_softmax", "special_softmax")
def _softmax(x: Value, dim: int, dtype: Any = None) -> Value:
    value = floated(x) if dtype in (None, False, True) else cast(x, torch_dtype(dtype))
    return activation.Softmax(value, axis=dim) if value.rank else maths.Exp(value - value)


@aten("softmin")
def _softmin(x: Value, dim: int, dtype: Any = None) -> Value:
    return _softmax(-x, dim, dtype)


@aten("abs", "absolute")
def _abs(x: Value) -> Value:
    if x.dtype.is_complex:
        return ComplexAbs(x)
    return x if x.dtype is DType.Bool else arithmetic.Abs(x)


@aten("neg", "negative")
def _neg(x: Value) -> Value:
    return arithmetic.Neg(x)


@aten("square")
def _square(x: Value) -> Value:
    return x * x


@aten("sign", "sgn")
def _sign(x: Value) -> Value:
    if x.dtype.is_complex:
        size = ComplexAbs(x)
        return x / cast(logic.Where(logic.Equal(size, 0.0), constant(1.0, size), size), x.dtype)
    return x if x.dtype is DType.Bool else arithmetic.Sign(x)


def _whole(op: Callable[[Value], Value]) -> Callable[[Value], Value]:
    return lambda x: op(x) if x.dtype.is_float else x


aten("floor")(_whole(maths.Floor))
aten("ceil")(_whole(maths.Ceil))


@aten("trunc", "fix")
def _trunc(x: Value) -> Value:
    return arithmetic.Sign(x) * maths.Floor(arithmetic.Abs(x)) if x.dtype.is_float else x


@aten("frac")
def _frac(x: Value) -> Value:
    return x - _trunc(x)


@aten("round")
def _round(x: Value, *, decimals: int = 0) -> Value:
    if not x.dtype.is_float:
        return x
    factor = 10.0**decimals
    return maths.Round(x * factor) / factor if decimals else maths.Round(x)


@aten("relu")
def _relu(x: Value) -> Value:
    return activation.Relu(x)


@aten("relu6")
def _relu6(x: Value) -> Value:
    return activation.Clip(x, 0, 6)


@aten("gelu")
def _gelu(x: Value, *, approximate: str = "none") -> Value:
    return activation.Gelu(x, approximate=approximate)


@aten("leaky_relu")
def _leaky_relu(x: Value, negative_slope: float = 0.01) -> Value:
    return activation.LeakyRelu(x, alpha=float(negative_slope))


@aten("elu")
def _elu(x: Value, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Value:
    if scale == 1 and input_scale == 1:
        return activation.Elu(x, alpha=float(alpha))
    below = (maths.Exp(activation.Clip(x, None, constant(0.0, x)) * float(input_scale)) - 1.0) * float(alpha * scale)
    return logic.Where(x > 0.0, x * float(scale), below)


@aten("selu")
def _selu(x: Value) -> Value:
    return activation.Selu(x, alpha=_SELU[0], gamma=_SELU[1])


@aten("celu")
def _celu(x: Value, alpha: float = 1.0) -> Value:
    return activation.Celu(x, alpha=float(alpha))


@aten("softplus")
def _softplus(x: Value, beta: float = 1, threshold: float = 20) -> Value:
    scaled = x if beta == 1 else x * float(beta)
    soft = activation.Softplus(scaled)
    return logic.Where(scaled > float(threshold), x, soft if beta == 1 else soft / float(beta))


@aten("hardtanh")
def _hardtanh(x: Value, min_val: float = -1, max_val: float = 1) -> Value:
    return activation.Clip(x, number(min_val, x.dtype), number(max_val, x.dtype))


@aten("hardshrink")
def _hardshrink(x: Value, lambd: float = 0.5) -> Value:
    return logic.Where(logic.Not(arithmetic.Abs(x) > float(lambd)) & logic.Not(maths.IsNaN(x)), constant(0.0, x), x)


@aten("softshrink")
def _softshrink(x: Value, lambd: float = 0.5) -> Value:
    return activation.Shrink(x, lambd=float(lambd), bias=float(lambd))


@aten("threshold")
def _threshold(x: Value, threshold: Any, value: Any) -> Value:
    return logic.Where(x <= number(threshold, x.dtype), number(value, x.dtype), x)


@aten("prelu")
def _prelu(x: Value, weight: Value) -> Value:
    from pyflame_rt.ops.onnx.shape import Reshape

    scalar = weight.rank == 0 or weight.shape.num_elements == 1 or x.rank < 2
    shape = [1] if scalar else [-1, *[1] * (x.rank - 2)]
    return activation.PRelu(x, Reshape(weight, shape))


@aten("rrelu")
def _rrelu(
    x: Value, lower: float = 0.125, upper: float = 1 / 3, training: bool = False, generator: Any = None
) -> Value:
    del generator
    if training:
        raise refuse("rrelu in training")
    return activation.LeakyRelu(x, alpha=(float(lower) + float(upper)) / 2)


@aten("logit")
def _logit(x: Value, eps: float | None = None) -> Value:
    value = floated(x)
    if eps is not None:
        value = activation.Clip(value, constant(eps, value), constant(1 - eps, value))
    return maths.Log(value / (1.0 - value))


@aten("glu")
def _glu(x: Value, dim: int = -1) -> Value:
    from pyflame_rt.ops.onnx.slicing import Split

    left, right = Split(x, axis=dim, num_outputs=2)
    return left * activation.Sigmoid(right)


@aten("isnan")
def _isnan(x: Value) -> Value:
    return maths.IsNaN(x) if x.dtype.is_float else logic.Not(logic.Equal(x, x))


@aten("isinf")
def _isinf(x: Value) -> Value:
    return maths.IsInf(x) if x.dtype.is_float else logic.Not(logic.Equal(x, x))


@aten("isfinite")
def _isfinite(x: Value) -> Value:
    return logic.Not(logic.Or(_isnan(x), _isinf(x)))


@aten("logical_not")
def _logical_not(x: Value) -> Value:
    return logic.Not(cast(x, DType.Bool))


@aten("bitwise_not")
def _bitwise_not(x: Value) -> Value:
    return logic.Not(x) if x.dtype is DType.Bool else logic.BitwiseNot(x)


@aten("clamp", "clip")
def _clamp(x: Value, min: Any = None, max: Any = None) -> Value:
    kind = result_type(*(v for v in (x, min, max) if v is not None))
    value = cast(x, kind)
    raised = value if min is None else arithmetic.Max(value, number(min, kind))
    return raised if max is None else arithmetic.Min(raised, number(max, kind))


@aten("clamp_min")
def _clamp_min(x: Value, min: Any) -> Value:
    return _clamp(x, min)


@aten("clamp_max")
def _clamp_max(x: Value, max: Any) -> Value:
    return _clamp(x, None, max)


@aten("nan_to_num")
def _nan_to_num(x: Value, nan: float | None = None, posinf: float | None = None, neginf: float | None = None) -> Value:
    import numpy as np

    if not x.dtype.is_float:
        return x
    most = float(np.finfo(x.dtype.numpy).max) if x.dtype.numpy.kind == "f" else 3.3895313892515355e38
    found = logic.Where(maths.IsNaN(x), constant(nan or 0.0, x), x)
    above, below = maths.IsInf(x, detect_negative=0), maths.IsInf(x, detect_positive=0)
    found = logic.Where(above, constant(most if posinf is None else posinf, x), found)
    return logic.Where(below, constant(-most if neginf is None else neginf, x), found)


@aten("dropout")
def _dropout(x: Value, p: float, train: bool) -> Value:
    if not train or p == 0:
        return x
    made = Dropout(x, constant(float(p), DType.Float32), constant(True))
    return made[0] if isinstance(made, tuple) else made


@aten("feature_dropout", "alpha_dropout", "feature_alpha_dropout")
def _other_dropout(x: Value, p: float, train: bool) -> Value:
    if train and p:
        raise refuse("dropout of whole channels, or that keeps mean and variance, in training (call eval() before)")
    return x


@aten("sinc", "special_sinc")
def _sinc(x: Value) -> Value:
    value = floated(x) * math.pi
    zero = logic.Equal(value, constant(0.0, value))
    return logic.Where(zero, constant(1.0, value), maths.Sin(value) / logic.Where(zero, constant(1.0, value), value))


@aten("where")
def _where(condition: Value, x: Any = None, other: Any = None) -> Any:
    if x is None:
        from pyflame_rt.importers.aten.indexing import places_of

        return places_of(condition)
    left, right = promoted(x, other) if isinstance(x, Value) or isinstance(other, Value) else (number(x), number(other))
    return logic.Where(cast(condition, DType.Bool), left, right)


@aten("masked_fill")
def _masked_fill(x: Value, mask: Value, value: Any) -> Value:
    return logic.Where(cast(mask, DType.Bool), number(value, x.dtype), x)


@aten("fill")
def _fill(x: Value, value: Any) -> Value:
    from pyflame_rt.ops.onnx.shape import Expand, Shape

    return Expand(number(value, x.dtype), Shape(x))


@aten("zero")
def _zero(x: Value) -> Value:
    return _fill(x, 0)


@aten("erfinv", "special_erfinv")
def _erfinv(x: Value) -> Value:
    from pyflame_rt.ops.ml.features import Probit

    return Probit((floated(x) + 1.0) / 2.0) / math.sqrt(2)


@aten("NumToTensor")
def _num_to_tensor(x: Any) -> Value:
    return x.value if isinstance(x, Num) else number(x)
