"""Inputs of fused operators and of those in other layouts."""

from __future__ import annotations

from functools import partial

import ml_dtypes
import numpy as np

from tests.generated.draw import Draw, S, Sample, sample
from tests.generated.samples_layers import batch_norm

__all__: list[str] = []

own = partial(sample, domain="pyflame")


def _conv(r: Draw) -> Sample:
    c, m = r.k(1, 5), r.k(1, 5)
    bias = r.f(m) if r.chance() else None
    return S(r.f(r.n(), c, r.n(3, 6), r.n(3, 6)), r.f(m, c, 2, 2), bias, strides=[1, r.k(1, 2)], pads=[0, 1, 0, 1])


@own("FusedConvBN", "FusedConvBNRelu", "FusedConvRelu")
def fused_conv(r: Draw) -> Sample:
    return _conv(r)


@own("ConvNHWC")
def conv_nhwc(r: Draw) -> Sample:
    made = _conv(r)
    made.inputs[0] = made.inputs[0].transpose(0, 2, 3, 1).copy()
    return made


@own("ConvNC4HW4")
def conv_blocked(r: Draw) -> Sample:
    made = _conv(r)
    n, c, h, w = made.inputs[0].shape
    made.inputs[0] = r.f(n, -(-c // 4), h, w, 4)
    made.attributes["channels"] = c
    return made


@own("ToNC4HW4")
def to_blocked(r: Draw) -> Sample:
    return S(r.f(r.n(), r.n(1, 6), r.n(), r.n()))


@own("FromNC4HW4")
def from_blocked(r: Draw) -> Sample:
    return S(r.f(r.n(), 2, r.n(), r.n(), 4), channels=r.k(5, 8))


@own("FMA")
def multiply_add(r: Draw) -> Sample:
    shape = r.dims()
    return S(r.f(*shape), r.f(*shape), r.f(*shape))


@own("FusedAttention")
def attention(r: Draw) -> Sample:
    batch, heads, times, size = r.n(), r.k(1, 3), r.k(1, 2), r.k(1, 5)
    queries, keys = r.n(), r.n(1, 6)
    q, k = r.f(batch, heads * times, queries, size), r.f(batch, heads, keys, size)
    mask = r.f(batch, 1, queries, keys) if r.chance() else None
    return S(q, k, r.f(batch, heads, keys, r.k(1, 5)), mask, scale=0.5, guarded=r.k(0, 1))


@own("FusedRotary")
def rotary(r: Draw) -> Sample:
    length, size = r.n(), 2 * r.k(1, 3)
    shape = (r.n(), r.n(), length, size)
    return S(r.f(*shape), r.f(length, size), r.f(length, size), interleaved=r.k(0, 1))


@own("FusedAddRelu")
def add_relu(r: Draw) -> Sample:
    shape = r.dims()
    return S(r.f(*shape), r.f(*shape))


@own("FusedBNRelu")
def norm_relu(r: Draw) -> Sample:
    return batch_norm(r)


# ---------------------------------------------------------------------- integers, 16-bit floats


@own("Quantize")
def quantize(r: Draw) -> Sample:
    zero = np.asarray(3, np.uint8) if r.chance() else None
    return S(r.f(r.n(), r.n(), r.n()), np.asarray(0.1, np.float32), zero)


@own("Dequantize")
def dequantize(r: Draw) -> Sample:
    shape = (r.n(), r.n(), r.n())
    return S(r.i8(*shape), r.pos(shape[1]), r.i8(shape[1]), axis=1)


def _parameters(scale: float, zero: int) -> tuple[np.ndarray, np.ndarray]:
    return np.asarray(scale, np.float32), np.asarray(zero, np.int8)


@own("QuantizedMatMul")
def quantized_product(r: Draw) -> Sample:
    m, k, n = r.n(), r.k(1, 5), r.k(1, 5)
    bias = r.i(-500, 500, n, dtype=np.int32) if r.chance() else None
    scales = (r.pos(n), np.zeros(n, np.int8)) if r.chance() else _parameters(0.3, 2)
    return S(r.i8(m, k), *_parameters(0.1, -5), r.i8(k, n), *scales, *_parameters(1.7, 4), bias)


@own("QuantizedConv")
def quantized_conv(r: Draw) -> Sample:
    c, m = r.k(1, 4), r.k(1, 4)
    bias = r.i(-500, 500, m, dtype=np.int32) if r.chance() else None
    scales = (r.pos(m), np.zeros(m, np.int8)) if r.chance() else _parameters(0.3, 2)
    x, w = r.i8(r.n(), c, r.n(3, 6), r.n(3, 6)), r.i8(m, c, 2, 2)
    return S(
        x, *_parameters(0.1, -5), w, *scales, *_parameters(1.7, 4), bias, strides=[1, r.k(1, 2)], pads=[0, 1, 0, 1]
    )


@own("QuantizedAdd")
def quantized_add(r: Draw) -> Sample:
    shape = r.dims()
    return S(r.i8(*shape), *_parameters(0.1, -5), r.i8(*shape), *_parameters(0.2, 7), *_parameters(0.3, 1))


@own("CastToFP16", "CastToBF16")
def narrow(r: Draw) -> Sample:
    return S(r.f(*r.dims()))


@own("CastFromFP16")
def widen(r: Draw) -> Sample:
    return S(r.f(*r.dims(), dtype=np.float16))


@own("CastFromBF16")
def widen_brain(r: Draw) -> Sample:
    return S(r.f(*r.dims(), dtype=ml_dtypes.bfloat16))
