"""Inputs of decompositions of matrices, of complex numbers, and of functions whose slopes are their own."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.ops.pyflame.stored_blocks import FORMATS
from tests.generated.draw import Draw, S, Sample, sample

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__: list[str] = []

own = partial(sample, domain="pyflame")


def _square(r: Draw, size: int) -> NDArray[Any]:
    """Symmetric, positive definite, with eigenvalues apart."""
    x = r.f(*r.dims(0, 1, 3), size, size)
    return (x @ x.swapaxes(-1, -2) * 0.2 + np.diag(np.arange(1, size + 1))).astype(np.float32)


@own("Cholesky", "SignLogDet", "Eigh")
def positive(r: Draw) -> Sample:
    return S(_square(r, r.n()))


@own("Solve")
def solve(r: Draw) -> Sample:
    a = _square(r, r.n())
    return S(a, r.f(*a.shape[:-1], r.n()))


@own("SVD")
def singular(r: Draw) -> Sample:
    return S(r.f(*r.dims(2, 3)), full=r.k(0, 1), outs=3)


@own("QR")
def factors(r: Draw) -> Sample:
    return S(r.f(*r.dims(2, 3)), complete=r.k(0, 1), outs=2)


@own("PseudoInverse")
def pseudo_inverse(r: Draw) -> Sample:
    return S(_square(r, r.n())[..., : r.n()])


@own("FlatRoot")
def root(r: Draw) -> Sample:
    return S(r.pos(*r.dims()))


@own("HardTanh")
def hard_tanh(r: Draw) -> Sample:
    return S(r.f(*r.dims()), low=-0.5, high=0.75)


@own("BinaryCrossEntropy")
def binary_cross_entropy(r: Draw) -> Sample:
    shape = r.dims()
    return S(abs(r.unit(*shape)), abs(r.unit(*shape)))


def _complex(r: Draw, *shape: int) -> NDArray[Any]:
    return (r.f(*shape) + 1j * r.f(*shape)).astype(np.complex64)


@own("Conj", "ComplexAbs", "ViewAsReal")
def complex_numbers(r: Draw) -> Sample:
    return S(_complex(r, *r.dims()))


@own("ViewAsComplex")
def pairs(r: Draw) -> Sample:
    return S(r.f(*r.dims(), 2))


@own("FFT")
def fourier(r: Draw) -> Sample:
    x = _complex(r, *r.dims(1, 3))
    return S(x, axes=r.axes(x.ndim, 1), inverse=r.k(0, 1), norm=r.pick(("backward", "ortho", "forward")))


@own("RFFT")
def half_fourier(r: Draw) -> Sample:
    return S(r.f(*r.dims(1, 3)), axis=r.pick((0, -1)), norm=r.pick(("backward", "ortho", "forward")))


@own("IRFFT")
def from_half_fourier(r: Draw) -> Sample:
    points = 2 * r.k() + r.k(0, 1)
    return S(_complex(r, *r.dims(0, 2), points // 2 + 1), n=points, norm=r.pick(("backward", "ortho", "forward")))


_STORED = list(FORMATS)


def _blocks(r: Draw, rows: int, groups: int, kind: str) -> NDArray[Any]:
    """Bytes of which any two are a small number of 16 bits, so that scales are finite wherever they lie."""
    return r.i(0, 60, rows, groups * FORMATS[kind].size, dtype=np.uint8)


@own("UnpackBlocks", "StoredNumbers")
def stored(r: Draw) -> Sample:
    kind = r.pick(_STORED)
    return S(_blocks(r, r.n(), r.k(1, 2), kind), format=kind)


@own("StoredScales")
def stored_scales(r: Draw) -> Sample:
    made = stored(r)
    made.outputs = 2
    return made


@own("MatMulStoredBlocks")
def stored_product(r: Draw) -> Sample:
    kind, columns, groups = r.pick(_STORED), r.k(), r.k(1, 2)
    bias = r.f(columns) if r.chance() else None
    return S(r.f(r.n(), groups * FORMATS[kind].weights), _blocks(r, columns, groups, kind), bias, format=kind)
