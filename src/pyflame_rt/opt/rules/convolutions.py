"""Convolutions with the normalisation and the activation that follow them."""

from __future__ import annotations

from typing import Any

import numpy as np

from pyflame_rt.graph import DType
from pyflame_rt.ops.pyflame.fused import FusedBNRelu, FusedConvBN, FusedConvBNRelu, FusedConvRelu
from pyflame_rt.opt.rule import Match, NoMatch, rule

_OWN = "pyflame"
_FLOATS = (DType.Float32, DType.Float64)


def folded(
    weight: np.ndarray[Any, Any],
    bias: np.ndarray[Any, Any] | None,
    statistics: list[np.ndarray[Any, Any]],
    epsilon: float,
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Weights and bias of a convolution that normalises what it gives; computed in float64."""
    scale, shift, mean, variance = (a.astype(np.float64) for a in statistics)
    factor = scale / np.sqrt(variance + epsilon)
    before = np.zeros_like(mean) if bias is None else bias.astype(np.float64)
    new = weight * factor.astype(weight.dtype).reshape((-1,) + (1,) * (weight.ndim - 1))
    return new, ((before - mean) * factor + shift).astype(weight.dtype)


@rule(
    lambda op, x, w, b, s, t, u, v: op.BatchNormalization(op.Conv(x, w, b), s, t, u, v),
    switch="fuse_conv_bn",
    bound=64.0,
)
def conv_bn(m: Match, x: str, w: str, b: str, s: str, t: str, u: str, v: str) -> str | NoMatch:
    """A batch normalisation goes into the weights of the convolution before it."""
    found = _fold(m, w, b, [s, t, u, v])
    if isinstance(found, NoMatch):
        return found
    return m.emit(FusedConvBN, [x, *found], m.node("conv").attributes)


def _fold(m: Match, w: str, b: str, names: list[str]) -> list[str] | NoMatch:
    """New weights and bias; or why there can be none."""
    weight, bias = m.constant(w), m.constant(b) if b else None
    statistics = [m.constant(name) for name in names]
    if weight is None or (b and bias is None) or any(a is None for a in statistics):
        return NoMatch("weights or statistics are not constants")
    if m.attr("batchnormalization", "training_mode", 0):
        return NoMatch("statistics of the batch are used")
    if m.dtype(w) not in _FLOATS:
        return NoMatch("the weights are neither float32 nor float64")
    epsilon = m.attr("batchnormalization", "epsilon", 9.999999747378752e-06)
    new, shift = folded(weight, bias, [a for a in statistics if a is not None], epsilon)
    if not (np.isfinite(new).all() and np.isfinite(shift).all()):
        return NoMatch("the new weights would not be finite")
    return [m.new_constant(f"{w}/bn", new), m.new_constant(f"{b or w}/shift", shift)]


@rule(
    lambda op, x, w, b: op.Relu(op.Conv(x, w, b)),
    switch="fuse_conv_bn_activation",
    turn=2,
    own=True,
)
def conv_relu(m: Match, x: str, w: str, b: str) -> str:
    """A convolution and the Relu after it."""
    return m.emit(FusedConvRelu, [x, w, b], m.node("conv").attributes)


@rule(
    lambda op, x, w, b: op.Relu(op.any_of(FusedConvBN.full_name)(x, w, b)),
    switch="fuse_conv_bn_activation",
    turn=2,
    own=True,
)
def conv_bn_relu(m: Match, x: str, w: str, b: str) -> str:
    """A convolution with a normalisation in it and the Relu after it."""
    return m.emit(FusedConvBNRelu, [x, w, b], m.node("fusedconvbn").attributes)


@rule(
    lambda op, x, s, t, u, v: op.Relu(op.BatchNormalization(x, s, t, u, v)),
    switch="fuse_conv_bn_activation",
    turn=2,
    own=True,
)
def bn_relu(m: Match, x: str, s: str, t: str, u: str, v: str) -> str | NoMatch:
    """A batch normalisation and the Relu after it."""
    given = m.node("batchnormalization").attributes
    if given.get("training_mode", 0):
        return NoMatch("statistics of the batch are used")
    return m.emit(FusedBNRelu, [x, s, t, u, v], {"epsilon": given.get("epsilon")})
