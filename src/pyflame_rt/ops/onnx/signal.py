"""Fourier transforms, windows and mel filters."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.graph import DType, Node, Shape, TensorType
from pyflame_rt.graph.errors import InputError, ShapeMismatchError
from pyflame_rt.ops.core.guards import Within, at_most, count_of, has_rank, length_of, same_size, size_at
from pyflame_rt.ops.core.registry import operator, primitive
from pyflame_rt.ops.core.size_arithmetic import known_ints
from pyflame_rt.ops.core.type_rules import normalize_axis, static_size
from pyflame_rt.ops.core.upgrade import Upgrade, upgrade
from pyflame_rt.ops.core.value import Value, constant
from pyflame_rt.ops.onnx.cast import Cast
from pyflame_rt.ops.onnx.creation import Range
from pyflame_rt.ops.onnx.index import Gather
from pyflame_rt.ops.onnx.math import Cos
from pyflame_rt.ops.onnx.shape import Reshape, Unsqueeze

if TYPE_CHECKING:
    from collections.abc import Iterator

# ---------------------------------------------------------------------- DFT


def _transformed_type(
    input: Value, dft_length: Value | None = None, axis: Value | None = None, /, *, inverse: int = 0, onesided: int = 0
) -> TensorType:
    kind = input.tensor_type
    if kind.shape is None:
        return kind
    parts = 1 if inverse and onesided else 2
    dims = [*kind.shape[:-1], parts]
    if axis is not None and axis.known is None:
        return TensorType(kind.dtype, Shape([*[None] * (len(dims) - 1), parts]))
    place = _signal_axis(-2 if axis is None else axis.ints()[0], len(dims))
    if dft_length is not None:
        length = dft_length.ints()[0] if dft_length.known is not None else None
    else:
        length = dims[place]
        if inverse and onesided and length is not None:
            length = 2 * (length - 1)
    dims[place] = length // 2 + 1 if onesided and not inverse and length is not None else length
    return TensorType(kind.dtype, Shape(dims))


def _signal_axis(axis: int, rank: int) -> int:
    place = normalize_axis(axis, rank)
    if place == rank - 1:
        raise ShapeMismatchError(f"axis {axis} holds the parts of complex numbers, not a signal")
    return place


@primitive(since=20, infer=_transformed_type, types="T1:float T2 int64 > T1", known=(1, 2))
def DFT(
    ops: Any, input: Any, dft_length: Any = None, axis: Any = None, /, *, inverse: int = 0, onesided: int = 0
) -> Any:
    """Discrete Fourier transform along one axis; the last axis holds real and imaginary parts."""
    place = _signal_axis(-2 if axis is None else int(ops.to_numpy(axis).item()), len(input.shape))
    length = None if dft_length is None else int(ops.to_numpy(dft_length).item())
    parts, dtype = input.shape[-1], ops.dtype(input)
    if onesided and parts != (2 if inverse else 1):
        raise InputError(f"a onesided {'inverse ' if inverse else ''}transform does not take {parts} parts")
    exact = dtype if dtype == DType.Float64.numpy else DType.Float32.numpy
    wide = ops.cast(input, exact)
    signal = wide[..., 0] if parts == 1 else _complex(ops, wide)
    if onesided:
        result = ops.irfft(signal, length, place) if inverse else ops.rfft(signal, length, place)
    else:
        result = ops.ifft(signal, length, place) if inverse else ops.fft(signal, length, place)
    if onesided and inverse:
        return ops.cast(ops.expand_dims(result, -1), dtype)
    return ops.cast(ops.stack([ops.real(result), ops.imag(result)], axis=-1), dtype)


def _complex(ops: Any, pairs: Any) -> Any:
    """Complex numbers from pairs of parts on the last axis."""
    kind = DType.Complex128 if ops.dtype(pairs) == DType.Float64.numpy else DType.Complex64
    real, imag = (ops.cast(pairs[..., i], kind.numpy) for i in (0, 1))
    return ops.add(real, ops.multiply(imag, ops.full((), 1j, dtype=kind.numpy)))


@upgrade("DFT", to=20)
def transform_axis_became_an_input(node: Node, up: Upgrade) -> Node:
    """Version 17 named the axis in an attribute; its default was 1."""
    attributes = dict(node.attributes)
    axis = up.constant(attributes.pop("axis", 1), np.int64, "axis")
    data, *rest = node.inputs
    return node.replace(inputs=[data, rest[0] if rest else "", axis], attributes=attributes)


# ---------------------------------------------------------------------- STFT


def _spectra_type(
    signal: Value,
    frame_step: Value,
    window: Value | None = None,
    frame_length: Value | None = None,
    /,
    *,
    onesided: int = 1,
) -> TensorType:
    kind = signal.tensor_type
    if kind.shape is None:
        return TensorType(kind.dtype)
    batch, samples = kind.shape[0], kind.shape[1]
    length: Any = samples
    if frame_length is not None:
        length = frame_length.ints()[0] if frame_length.known is not None else None
    elif window is not None:
        length = None if window.tensor_type.shape is None else window.shape[0]
    frames = None
    if frame_step.known is not None and samples is not None and length is not None:
        frames = (samples - length) // frame_step.ints()[0] + 1
    bins = length // 2 + 1 if onesided and length is not None else length
    return TensorType(kind.dtype, Shape([batch, frames, bins, 2]))


def _spectra_needs(
    signal: Value,
    frame_step: Value,
    window: Value | None = None,
    frame_length: Value | None = None,
    /,
    *,
    onesided: int,
) -> Iterator[Within]:
    has_rank("signal", signal, 2, 3)
    parts = size_at(signal, 2)
    if isinstance(parts, int) and parts not in ((1,) if onesided else (1, 2)):
        raise ShapeMismatchError(f"signal has {parts} parts, but must have 1{'' if onesided else ' or 2'}")
    has_rank("window", window, 1)
    for name, one in (("frame_step", frame_step), ("frame_length", frame_length)):
        same_size(f"the length of {name}", length_of(one), 1, "one number")
    yield Within("frame_step", frame_step, 1)
    samples, length = size_at(signal, 1), length_of(window) if window is not None else None
    if frame_length is not None:
        yield Within("frame_length", frame_length, 1, samples)
        known = known_ints(frame_length)
        same_size("the length of window", length, known[0] if known else None, "that of a frame")
    else:
        at_most("a frame", length, samples, "the length of the signal")


@operator(since=17, infer=_spectra_type, requires=_spectra_needs, types="T1:float T2 T1 T2 > T1", known=(1, 3))
def STFT(
    signal: Value,
    frame_step: Value,
    window: Value | None = None,
    frame_length: Value | None = None,
    /,
    *,
    onesided: int = 1,
) -> Value:
    """Spectra of overlapping, windowed frames of a signal."""
    if signal.rank == 2:  # exporters leave the axis of the parts out where these are real
        signal = Unsqueeze(signal, [2])
    samples, step = static_size(signal.shape[1]), frame_step.ints()[0]
    if frame_length is not None:
        length = frame_length.ints()[0]
    else:
        length = samples if window is None else static_size(window.shape[0])
    starts = np.arange(0, samples - length + 1, step)
    frames = Gather(signal, starts[:, None] + np.arange(length), axis=1)
    if window is not None:
        frames = frames * Reshape(window, [1, 1, -1, 1])
    return DFT(frames, None, constant(-2), onesided=onesided)


# ---------------------------------------------------------------------- windows


def _window(size: Value, coefficients: tuple[float, ...], periodic: int, output_datatype: int) -> Value:
    """A sum of cosines over the window; periodic ones leave out the last point of the period."""
    target = DType.from_onnx(output_datatype)
    exact = DType.Float64 if target is DType.Float64 else DType.Float32
    count = Reshape(Cast(size, to=DType.Int64), [])
    n = Cast(Range(constant(0, count), count, constant(1, count)), to=exact)
    period = Cast(count if periodic else count - 1, to=exact)
    angle = n * (2 * math.pi) / period
    total = None
    for k, c in enumerate(coefficients):
        part = Cos(angle * float(k)) * c if k else n * 0.0 + c
        total = part if total is None else total + part
    assert total is not None
    return Cast(total, to=target)


def _window_needs(size: Value, /, **_: Any) -> Iterator[Within]:
    same_size("the number of elements of size", count_of(size), 1, "one number")
    yield Within("size", size, 0)


@operator(since=17, requires=_window_needs, known=(0,))
def HannWindow(size: Value, /, *, output_datatype: int = 1, periodic: int = 1) -> Value:
    """Raised cosine, zero at the ends."""
    return _window(size, (0.5, -0.5), periodic, output_datatype)


@operator(since=17, requires=_window_needs, known=(0,))
def HammingWindow(size: Value, /, *, output_datatype: int = 1, periodic: int = 1) -> Value:
    """Raised cosine on a pedestal (25/46 and 21/46)."""
    return _window(size, (25 / 46, -21 / 46), periodic, output_datatype)


@operator(since=17, requires=_window_needs, known=(0,))
def BlackmanWindow(size: Value, /, *, output_datatype: int = 1, periodic: int = 1) -> Value:
    """Three-term window."""
    return _window(size, (0.42, -0.5, 0.08), periodic, output_datatype)


# ---------------------------------------------------------------------- MelWeightMatrix


# No filter reaches further: beyond lies what overflows, and what is not a number.
MOST_HERTZ = 1 << 40


def _mel_type(num_mel_bins: Value, dft_length: Value, *_: Value | None, output_datatype: int = 1) -> TensorType:
    bins = dft_length.ints()[0] // 2 + 1 if dft_length.known is not None else None
    mels = num_mel_bins.ints()[0] if num_mel_bins.known is not None else None
    return TensorType(DType.from_onnx(output_datatype), Shape([bins, mels]))


def _mel_needs(
    num_mel_bins: Value,
    dft_length: Value,
    sample_rate: Value,
    lower_edge_hertz: Value,
    upper_edge_hertz: Value,
    /,
    **_: Any,
) -> Iterator[Within]:
    named = {"num_mel_bins": num_mel_bins, "dft_length": dft_length, "sample_rate": sample_rate}
    edges = {"lower_edge_hertz": lower_edge_hertz, "upper_edge_hertz": upper_edge_hertz}
    for name, value in (named | edges).items():
        same_size(f"the number of elements of {name}", count_of(value), 1, "one number")
    for name, value in named.items():
        yield Within(name, value, 0 if name == "num_mel_bins" else 1)
    for name, value in edges.items():
        yield Within(name, value, 0, MOST_HERTZ)


@primitive(
    since=17, infer=_mel_type, requires=_mel_needs, host=True, types="T1 T1 T1 T2:float T2 > T3", known=(0, 1, 2, 3, 4)
)
def MelWeightMatrix(
    ops: Any,
    num_mel_bins: Any,
    dft_length: Any,
    sample_rate: Any,
    lower_edge_hertz: Any,
    upper_edge_hertz: Any,
    /,
    *,
    output_datatype: int = 1,
) -> Any:
    """Triangular filters, evenly spaced on the mel scale, for the bins of a spectrum."""
    mels, length, rate = (int(v.item()) for v in (num_mel_bins, dft_length, sample_rate))
    low, high = (2595 * math.log1p(float(v.item()) / 700) / math.log(10) for v in (lower_edge_hertz, upper_edge_hertz))
    # The step counts mels + 2 points, as ONNX's text does, not the mels + 1 gaps between them.
    points = low + np.arange(mels + 2) * (high - low) / (mels + 2)
    edges = ((length + 1) * 700 * np.expm1(points / 2595 * math.log(10)) // rate).astype(np.int64)
    bins = np.arange(length // 2 + 1)[:, None]
    left, centre, right = edges[:-2], edges[1:-1], edges[2:]
    with np.errstate(divide="ignore", invalid="ignore"):
        rising = np.where(bins <= centre, (bins - left) / (centre - left), np.inf)
        falling = np.where(bins >= centre, (right - bins) / (right - centre), np.inf)
    weights = np.clip(np.fmin(rising, falling), 0.0, 1.0)
    weights = np.where((bins < left) | (bins > right), 0.0, weights)
    weights = np.where(bins == centre, 1.0, weights)
    return weights.astype(DType.from_onnx(output_datatype).numpy)
