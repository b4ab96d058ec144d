"""Fourier transforms."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from emberharmony.dtypes import compute_dtype, float_for
from emberharmony.library import Library
from emberharmony.registry import op
from emberharmony.typing import Array, ArrayLike


def _on_host(lib: Library, function: Any, x: ArrayLike, *options: Any) -> Array:
    x = lib.as_array(x)
    wide = lib.cast(x, compute_dtype(float_for(lib.dtype(x))))
    return lib.by_host(function.__name__, lambda v: function(v, *options), wide)


@op
def fft(lib: Library, x: ArrayLike, n: int | None = None, axis: int = -1) -> Array:
    """Discrete Fourier transform.

    >>> ops.fft(np.ones(2))
    array([2.+0.j, 0.+0.j])
    """
    return _on_host(lib, np.fft.fft, x, n, axis)


@op
def ifft(lib: Library, x: ArrayLike, n: int | None = None, axis: int = -1) -> Array:
    """Inverse of `fft`.

    >>> ops.ifft(np.array([2.0, 0.0]))
    array([1.+0.j, 1.+0.j])
    """
    return _on_host(lib, np.fft.ifft, x, n, axis)


@op
def rfft(lib: Library, x: ArrayLike, n: int | None = None, axis: int = -1) -> Array:
    """Discrete Fourier transform of real numbers: the half that says all.

    >>> ops.rfft(np.ones(2))
    array([2.+0.j, 0.+0.j])
    """
    return _on_host(lib, np.fft.rfft, x, n, axis)


@op
def irfft(lib: Library, x: ArrayLike, n: int | None = None, axis: int = -1) -> Array:
    """Inverse of `rfft`.

    >>> ops.irfft(np.array([2.0, 0.0]))
    array([1., 1.])
    """
    return _on_host(lib, np.fft.irfft, x, n, axis)


@op
def fft2(lib: Library, x: ArrayLike, s: Sequence[int] | None = None, axes: Sequence[int] = (-2, -1)) -> Array:
    """Discrete Fourier transform over two axes.

    >>> ops.fft2(np.ones((1, 2)))
    array([[2.+0.j, 0.+0.j]])
    """
    return _on_host(lib, np.fft.fft2, x, s, axes)


@op
def ifft2(lib: Library, x: ArrayLike, s: Sequence[int] | None = None, axes: Sequence[int] = (-2, -1)) -> Array:
    """Inverse of `fft2`.

    >>> ops.ifft2(np.array([[2.0, 0.0]]))
    array([[1.+0.j, 1.+0.j]])
    """
    return _on_host(lib, np.fft.ifft2, x, s, axes)
