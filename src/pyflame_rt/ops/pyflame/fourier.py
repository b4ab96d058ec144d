"""Fourier transforms of complex numbers, of real ones to the half that says all, and back; each the other's adjoint."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.graph import DimLike, Shape, TensorType
from pyflame_rt.graph.errors import InputError, ShapeMismatchError
from pyflame_rt.ops.core.registry import primitive
from pyflame_rt.ops.core.type_rules import normalize_axes, normalize_axis, static_size
from pyflame_rt.ops.core.value import Value, constant
from pyflame_rt.ops.pyflame.complex_numbers import complex_of, part_of

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["FFT", "IRFFT", "RFFT"]

OWN = "pyflame"
# Where the adjoint of a transform has its factor: it is a transform the other way.
_SWAPPED = {"backward": "forward", "forward": "backward", "ortho": "ortho"}


def _scaled(ops: Any, x: Any, count: int, *, inverse: bool, norm: str) -> Any:
    """What a library gives (1 forwards, 1/count back) with the factor that was asked for."""
    if norm not in _SWAPPED:
        raise InputError(f"norm is backward, ortho or forward, got {norm!r}")
    want = 1 / math.sqrt(count) if norm == "ortho" else 1 / count if (norm == "backward") == inverse else 1.0
    factor = want * count if inverse else want
    return x if factor == 1 else ops.multiply(x, factor)


# ------------------------------------------------------------------ complex to complex


def _complex_type(x: Value, /, *, axes: Sequence[int], **_: Any) -> TensorType:
    part_of(x.dtype)
    shape = x.tensor_type.shape
    if shape is not None:
        _nonempty(shape, normalize_axes(axes, len(shape)))
    return x.tensor_type


def _nonempty(shape: Sequence[DimLike], axes: Sequence[int]) -> None:
    for axis in axes:
        if shape[axis] == 0:
            raise ShapeMismatchError(f"a transform takes at least one point, axis {axis} of {list(shape)} has none")


def _fft_vjp(g: Value, y: Value, x: Value, *, axes: list[int], inverse: int, norm: str) -> tuple[Value]:
    return (FFT(g, axes=axes, inverse=int(not inverse), norm=_SWAPPED[norm]),)


@primitive(since=1, domain=OWN, infer=_complex_type, vjp=_fft_vjp, complex=True)
def FFT(ops: Any, X: Any, /, *, axes: list[int], inverse: int = 0, norm: str = "backward") -> Any:
    """Discrete Fourier transform of complex numbers along axes, or its inverse; ``norm`` says where the factor is."""
    transform, count, result = ops.ifft if inverse else ops.fft, 1, X
    for axis in axes:
        result, count = transform(result, None, axis), count * X.shape[axis]
    return _scaled(ops, result, count, inverse=bool(inverse), norm=norm)


# ------------------------------------------------------------------ real numbers and the half that says all


def _weights(count: int, axis: int, rank: int, between: float, like: Value) -> Value:
    """Factors of the half: 1 for what is its own mirror image (the mean, the highest of an even number)."""
    half = np.full(count // 2 + 1, between)
    half[0] = 1
    if count % 2 == 0:
        half[-1] = 1
    return constant(half.reshape([-1 if i == axis else 1 for i in range(rank)]), like)


def _half_type(x: Value, /, *, axis: int = -1, **_: Any) -> TensorType:
    kind, shape = complex_of(x.dtype), x.tensor_type.shape
    if shape is None:
        return TensorType(kind)
    place = normalize_axis(axis, len(shape))
    _nonempty(shape, [place])
    size = shape[place]
    return TensorType(kind, Shape([*shape[:place], None if size is None else size // 2 + 1, *shape[place + 1 :]]))


def _rfft_vjp(g: Value, y: Value, x: Value, *, axis: int, norm: str) -> tuple[Value]:
    place = normalize_axis(axis, x.rank)
    count = static_size(x.shape[place])
    halved = g * _weights(count, place, x.rank, 0.5, g)
    return (IRFFT(halved, axis=place, n=count, norm=_SWAPPED[norm]),)


@primitive(since=1, domain=OWN, infer=_half_type, vjp=_rfft_vjp)
def RFFT(ops: Any, X: Any, /, *, axis: int = -1, norm: str = "backward") -> Any:
    """Discrete Fourier transform of real numbers along an axis: the half that says all."""
    return _scaled(ops, ops.rfft(X, None, axis), X.shape[axis], inverse=False, norm=norm)


def _whole_type(x: Value, /, *, n: int, axis: int = -1, **_: Any) -> TensorType:
    kind, shape = part_of(x.dtype), x.tensor_type.shape
    if n < 1:
        raise InputError(f"a transform gives at least one point, got n={n}")
    if shape is None:
        return TensorType(kind)
    place = normalize_axis(axis, len(shape))
    if isinstance(shape[place], int) and shape[place] != n // 2 + 1:
        raise ShapeMismatchError(f"{n} points follow from {n // 2 + 1} complex numbers, axis {axis} has {shape[place]}")
    return TensorType(kind, Shape([*shape[:place], n, *shape[place + 1 :]]))


def _irfft_vjp(g: Value, y: Value, x: Value, *, n: int, axis: int, norm: str) -> tuple[Value]:
    place = normalize_axis(axis, x.rank)
    half = RFFT(g, axis=place, norm=_SWAPPED[norm])
    return (half * _weights(n, place, x.rank, 2.0, half),)


@primitive(since=1, domain=OWN, infer=_whole_type, vjp=_irfft_vjp, complex=True)
def IRFFT(ops: Any, X: Any, /, *, n: int, axis: int = -1, norm: str = "backward") -> Any:
    """Inverse of RFFT to ``n`` real numbers; imaginary parts of what is its own mirror image do not count."""
    return _scaled(ops, ops.irfft(X, n, axis), n, inverse=True, norm=norm)
