"""Inputs of fused operators and of those in other layouts."""

from __future__ import annotations

from functools import partial

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


@own("FusedAddRelu")
def add_relu(r: Draw) -> Sample:
    shape = r.dims()
    return S(r.f(*shape), r.f(*shape))


@own("FusedBNRelu")
def norm_relu(r: Draw) -> Sample:
    return batch_norm(r)
