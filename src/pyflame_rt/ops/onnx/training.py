"""ai.onnx.preview.training: one step of an optimizer, as operators."""

from __future__ import annotations

from pyflame_rt.graph.errors import InputError
from pyflame_rt.ops.core.registry import operator
from pyflame_rt.ops.core.value import Value, constant
from pyflame_rt.ops.onnx.arithmetic import Pow
from pyflame_rt.ops.onnx.cast import Cast
from pyflame_rt.ops.onnx.logic import Equal, Greater, Where
from pyflame_rt.ops.onnx.math import Sqrt

DOMAIN = "ai.onnx.preview.training"


def _groups(inputs: tuple[Value, ...], kinds: int) -> list[tuple[Value, ...]]:
    """Inputs come kind by kind (all tensors, all gradients, ...): one tuple for each tensor."""
    count, rest = divmod(len(inputs), kinds)
    if rest:
        raise InputError(f"{len(inputs)} inputs do not make groups of {kinds}")
    return [tuple(inputs[k * count + i] for k in range(kinds)) for i in range(count)]


def _kind_by_kind(results: list[tuple[Value, ...]]) -> tuple[Value, ...]:
    return tuple(value for kind in zip(*results, strict=True) for value in kind)


@operator(since=1, domain=DOMAIN)
def Adagrad(
    R: Value,
    T: Value,
    /,
    *inputs: Value,
    decay_factor: float = 0.0,
    epsilon: float = 9.999999974752427e-07,
    norm_coefficient: float = 0.0,
) -> tuple[Value, ...]:
    """Steps shrink by the root of all squared gradients so far."""
    results: list[tuple[Value, ...]] = []
    for x, g, h in _groups(inputs, 3):
        rate = Cast(R, to=x.dtype) / (Cast(T, to=x.dtype) * decay_factor + 1.0)
        slope = x * norm_coefficient + g
        squares = h + slope * slope
        results.append((x - rate * slope / (Sqrt(squares) + epsilon), squares))
    return _kind_by_kind(results)


@operator(since=1, domain=DOMAIN)
def Adam(
    R: Value,
    T: Value,
    /,
    *inputs: Value,
    alpha: float = 0.8999999761581421,
    beta: float = 0.9990000128746033,
    epsilon: float = 9.999999974752427e-07,
    norm_coefficient: float = 0.0,
    norm_coefficient_post: float = 0.0,
) -> tuple[Value, ...]:
    """Running means of gradients and their squares; corrected for their start at zero."""
    results: list[tuple[Value, ...]] = []
    for x, g, v, h in _groups(inputs, 4):
        slope = x * norm_coefficient + g
        mean = v * alpha + slope * (1 - alpha)
        squares = h * beta + slope * slope * (1 - beta)
        step, rate = Cast(T, to=x.dtype), Cast(R, to=x.dtype)
        corrected = rate * Sqrt(1.0 - Pow(constant(beta, x), step)) / (1.0 - Pow(constant(alpha, x), step))
        rate = Where(Greater(T, constant(0, T)), corrected, rate)
        moved = x - rate * mean / (Sqrt(squares) + epsilon)
        results.append((moved * (1 - norm_coefficient_post), mean, squares))
    return _kind_by_kind(results)


@operator(since=1, domain=DOMAIN)
def Momentum(
    R: Value, T: Value, /, *inputs: Value, alpha: float, beta: float, mode: str, norm_coefficient: float
) -> tuple[Value, ...]:
    """Gradient descent with momentum, standard or Nesterov's."""
    if mode not in ("standard", "nesterov"):
        raise InputError(f"mode is {mode!r}; known: standard, nesterov")
    results: list[tuple[Value, ...]] = []
    for x, g, v in _groups(inputs, 3):
        slope = x * norm_coefficient + g
        share = Where(Equal(T, constant(0, T)), constant(1.0, x), constant(beta, x))
        velocity = v * alpha + slope * share
        step = velocity if mode == "standard" else slope + velocity * alpha
        results.append((x - Cast(R, to=x.dtype) * step, velocity))
    return _kind_by_kind(results)
