"""Discrete Fourier transforms with torch's arguments; sizes are cut or filled with zeros before the transform."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame.dtypes import DType, get_default_dtype, to_dtype
from pyflame.ops import complex_numbers as cn
from pyflame.ops import shaping as sh
from pyflame.ops.core import WrongTypeError, as_tensor, axis_of, call, cast
from pyflame.ops.creation import tensor
from pyflame_rt.graph.errors import ShapeMismatchError
from pyflame_rt.graph.named_arguments import names_arguments
from pyflame_rt.ops.pyflame.fourier import FFT, IRFFT, RFFT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyflame.tensors import Tensor

__all__ = [
    "fft", "fft2", "fftfreq", "fftn", "fftshift", "hfft", "hfft2", "hfftn", "ifft", "ifft2", "ifftn", "ifftshift",
    "ihfft", "ihfft2", "ihfftn", "irfft", "irfft2", "irfftn", "rfft", "rfft2", "rfftfreq", "rfftn",
]  # fmt: skip

_SWAPPED = {"backward": "forward", "forward": "backward", "ortho": "ortho"}
_LAST_TWO = (-2, -1)


# ------------------------------------------------------------------ arguments


def _norm(norm: str | None) -> str:
    chosen = "backward" if norm is None else norm
    if chosen not in _SWAPPED:
        raise ValueError(f"norm is 'backward', 'ortho' or 'forward', got {norm!r}")
    return chosen


def _numbers(name: str, input: Any) -> Tensor:
    """The tensor in a type that transforms are computed in: integers become floating point."""
    x = as_tensor(input)
    if x.dtype in (DType.float16, DType.bfloat16):
        raise WrongTypeError(f"fft.{name} takes float32, float64 or complex numbers, got {x.dtype.name}; use x.float()")
    return x if x.dtype.is_inexact else cast(x, get_default_dtype())


def _complex(name: str, input: Any) -> Tensor:
    x = _numbers(name, input)
    return cast(x, x.dtype.to_complex())


def _real(name: str, input: Any) -> Tensor:
    x = _numbers(name, input)
    if x.dtype.is_complex:
        raise WrongTypeError(f"fft.{name} takes real numbers, got {x.dtype.name}; use fft.fft, or take x.real")
    return x


def _axis(name: str, dim: int, x: Tensor) -> int:
    if not x.ndim:
        raise ShapeMismatchError(f"fft.{name} takes a tensor with dimensions, got {x.shape}")
    return axis_of(dim, x.ndim)


def _points(name: str, count: int) -> int:
    if count < 1:
        raise ValueError(f"fft.{name}: a transform has at least one point, got {count}")
    return count


def _sized(x: Tensor, sizes: Sequence[int], axes: Sequence[int]) -> Tensor:
    """Dimensions cut off, or filled up with zeros, to sizes."""
    amounts = [0] * (2 * x.ndim)
    for size, axis in zip(sizes, axes, strict=True):
        amounts[2 * (x.ndim - 1 - axis) + 1] = max(0, size - x.shape[axis])
        if size < x.shape[axis]:
            x = sh.narrow(x, axis, 0, size)
    return sh.pad(x, amounts) if any(amounts) else x


def _dims(name: str, x: Tensor, s: Any, dim: Any) -> tuple[list[int], list[int]]:
    """Dimensions and how many points each gets; -1 leaves a size as it is."""
    sizes = None if s is None else [s] if isinstance(s, int) else list(s)
    if dim is not None:
        axes = [axis_of(d, x.ndim) for d in ([dim] if isinstance(dim, int) else dim)]
    else:
        count = x.ndim if sizes is None else len(sizes)
        if count > x.ndim:
            raise ShapeMismatchError(f"fft.{name}: {count} sizes for a tensor with {x.ndim} dimensions")
        axes = list(range(x.ndim - count, x.ndim))
    if len(set(axes)) != len(axes):
        raise ShapeMismatchError(f"fft.{name}: dim {dim} names one dimension twice")
    if sizes is not None and len(sizes) != len(axes):
        raise ShapeMismatchError(f"fft.{name}: {len(sizes)} sizes for {len(axes)} dimensions")
    have = [x.shape[a] for a in axes]
    return axes, have if sizes is None else [h if n == -1 else int(n) for n, h in zip(sizes, have, strict=True)]


def _some(name: str, axes: list[int]) -> None:
    if not axes:
        raise ShapeMismatchError(f"fft.{name} transforms at least one dimension, dim names none")


# ------------------------------------------------------------------ one dimension


def _along(name: str, x: Tensor, n: int | None, dim: int, norm: str | None, *, inverse: int) -> Tensor:
    axis = _axis(name, dim, x)
    count = _points(name, x.shape[axis] if n is None else n)
    return call(FFT, _sized(x, [count], [axis]), axes=(axis,), inverse=inverse, norm=_norm(norm))


@names_arguments
def fft(input: Any, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """The discrete Fourier transform along a dimension.

    Args:
        input: Real or complex numbers.
        n: How many points are transformed: the dimension is cut, or filled up with zeros; its size for None.
        dim: The dimension.
        norm: Where the factor 1/n is: "backward" (None) in the inverse, "forward" here, "ortho" its root in both.

    Example:
        >>> import pyflame as pf
        >>> pf.fft.fft(pf.tensor([1.0, 0.0, 0.0, 0.0])).tolist()
        [(1+0j), (1+0j), (1+0j), (1+0j)]
    """
    return _along("fft", _complex("fft", input), n, dim, norm, inverse=0)


@names_arguments
def ifft(input: Any, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """The inverse of `fft`.

    Example:
        >>> import pyflame as pf
        >>> pf.fft.ifft(pf.fft.fft(pf.tensor([1.0, 2.0]))).real.tolist()
        [1.0, 2.0]
    """
    return _along("ifft", _complex("ifft", input), n, dim, norm, inverse=1)


@names_arguments
def rfft(input: Any, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """`fft` of real numbers: the first half, which says all.

    Example:
        >>> import pyflame as pf
        >>> pf.fft.rfft(pf.tensor([1.0, 2.0, 3.0, 4.0])).tolist()
        [(10+0j), (-2+2j), (-2+0j)]
    """
    x = _real("rfft", input)
    axis = _axis("rfft", dim, x)
    count = _points("rfft", x.shape[axis] if n is None else n)
    return call(RFFT, _sized(x, [count], [axis]), axis=axis, norm=_norm(norm))


@names_arguments
def irfft(input: Any, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """The inverse of `rfft`: ``n`` real numbers, an even number unless told otherwise.

    Example:
        >>> import pyflame as pf
        >>> pf.fft.irfft(pf.fft.rfft(pf.tensor([1.0, 2.0, 3.0])), n=3).numpy().round(5).tolist()
        [1.0, 2.0, 3.0]
    """
    return _whole("irfft", _complex("irfft", input), n, dim, _norm(norm))


def _whole(name: str, x: Tensor, n: int | None, dim: int, norm: str) -> Tensor:
    axis = _axis(name, dim, x)
    count = _points(name, 2 * (x.shape[axis] - 1) if n is None else n)
    return call(IRFFT, _sized(x, [count // 2 + 1], [axis]), n=count, axis=axis, norm=norm)


@names_arguments
def hfft(input: Any, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """`fft` of a signal of which one half is given, the other being its mirrored conjugate: real numbers.

    Example:
        >>> import pyflame as pf
        >>> pf.fft.hfft(pf.tensor([1.0, 1.0])).tolist()
        [2.0, 0.0]
    """
    return _whole("hfft", cn.conj(_complex("hfft", input)), n, dim, _SWAPPED[_norm(norm)])


@names_arguments
def ihfft(input: Any, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """The inverse of `hfft`.

    Example:
        >>> import pyflame as pf
        >>> pf.fft.ihfft(pf.tensor([2.0, 0.0])).real.tolist()
        [1.0, 1.0]
    """
    return cn.conj(rfft(_real("ihfft", input), n, dim, _SWAPPED[_norm(norm)]))


# ------------------------------------------------------------------ many dimensions


def _over(name: str, input: Any, s: Any, dim: Any, norm: str | None, *, inverse: int) -> Tensor:
    x = _complex(name, input)
    axes, sizes = _dims(name, x, s, dim)
    for size in sizes:
        _points(name, size)
    chosen = _norm(norm)
    return call(FFT, _sized(x, sizes, axes), axes=tuple(axes), inverse=inverse, norm=chosen) if axes else x


@names_arguments
def fftn(input: Any, s: Any = None, dim: Any = None, norm: str | None = None) -> Tensor:
    """`fft` along dimensions, all when neither ``dim`` nor ``s`` says which.

    Example:
        >>> import pyflame as pf
        >>> pf.fft.fftn(pf.ones(2, 2)).real.tolist()
        [[4.0, 0.0], [0.0, 0.0]]
    """
    return _over("fftn", input, s, dim, norm, inverse=0)


@names_arguments
def ifftn(input: Any, s: Any = None, dim: Any = None, norm: str | None = None) -> Tensor:
    """The inverse of `fftn`."""
    return _over("ifftn", input, s, dim, norm, inverse=1)


@names_arguments
def rfftn(input: Any, s: Any = None, dim: Any = None, norm: str | None = None) -> Tensor:
    """`fftn` of real numbers: half of the last dimension, which says all.

    Example:
        >>> import pyflame as pf
        >>> pf.fft.rfftn(pf.ones(2, 4)).shape
        [2, 3]
    """
    x = _real("rfftn", input)
    axes, sizes = _dims("rfftn", x, s, dim)
    _some("rfftn", axes)
    half = rfft(_sized(x, [_points("rfftn", n) for n in sizes], axes), None, axes[-1], norm)
    return _over("rfftn", half, None, axes[:-1], norm, inverse=0)


@names_arguments
def irfftn(input: Any, s: Any = None, dim: Any = None, norm: str | None = None) -> Tensor:
    """The inverse of `rfftn`; the last of ``s`` is how many real numbers it gives."""
    return _whole_of_many("irfftn", input, s, dim, norm, inverse=1)


@names_arguments
def hfftn(input: Any, s: Any = None, dim: Any = None, norm: str | None = None) -> Tensor:
    """`hfft` along the last of some dimensions, `fft` along the others."""
    return _whole_of_many("hfftn", input, s, dim, norm, inverse=0)


def _whole_of_many(name: str, input: Any, s: Any, dim: Any, norm: str | None, *, inverse: int) -> Tensor:
    x = _complex(name, input)
    axes, sizes = _dims(name, x, s, dim)
    _some(name, axes)
    given = None if s is None else s if isinstance(s, int) else list(s)[-1]
    last = 2 * (x.shape[axes[-1]] - 1) if given in (None, -1) else sizes[-1]
    _points(name, last)
    x = _sized(x, [*[_points(name, n) for n in sizes[:-1]], last // 2 + 1], axes)
    x = _over(name, x, None, axes[:-1], norm, inverse=inverse)
    return (irfft if inverse else hfft)(x, last, axes[-1], norm)


@names_arguments
def ihfftn(input: Any, s: Any = None, dim: Any = None, norm: str | None = None) -> Tensor:
    """The inverse of `hfftn`."""
    x = _real("ihfftn", input)
    axes, sizes = _dims("ihfftn", x, s, dim)
    _some("ihfftn", axes)
    half = ihfft(_sized(x, [_points("ihfftn", n) for n in sizes], axes), None, axes[-1], norm)
    return _over("ihfftn", half, None, axes[:-1], norm, inverse=1)


@names_arguments
def fft2(input: Any, s: Any = None, dim: Any = _LAST_TWO, norm: str | None = None) -> Tensor:
    """`fftn` along two dimensions."""
    return fftn(input, s, dim, norm)


@names_arguments
def ifft2(input: Any, s: Any = None, dim: Any = _LAST_TWO, norm: str | None = None) -> Tensor:
    """`ifftn` along two dimensions."""
    return ifftn(input, s, dim, norm)


@names_arguments
def rfft2(input: Any, s: Any = None, dim: Any = _LAST_TWO, norm: str | None = None) -> Tensor:
    """`rfftn` along two dimensions."""
    return rfftn(input, s, dim, norm)


@names_arguments
def irfft2(input: Any, s: Any = None, dim: Any = _LAST_TWO, norm: str | None = None) -> Tensor:
    """`irfftn` along two dimensions."""
    return irfftn(input, s, dim, norm)


@names_arguments
def hfft2(input: Any, s: Any = None, dim: Any = _LAST_TWO, norm: str | None = None) -> Tensor:
    """`hfftn` along two dimensions."""
    return hfftn(input, s, dim, norm)


@names_arguments
def ihfft2(input: Any, s: Any = None, dim: Any = _LAST_TWO, norm: str | None = None) -> Tensor:
    """`ihfftn` along two dimensions."""
    return ihfftn(input, s, dim, norm)


# ------------------------------------------------------------------ frequencies


def _frequencies(counts: np.ndarray[Any, Any], n: int, d: float, settings: dict[str, Any]) -> Tensor:
    dtype = settings.pop("dtype", None)
    kind = get_default_dtype() if dtype is None else to_dtype(dtype)
    if not kind.is_inexact:
        raise WrongTypeError(f"frequencies are floating point, got {kind.name}")
    # In the type itself, as torch does: counts times one factor.
    return tensor(counts.astype(kind.numpy) * kind.numpy.type(1.0 / (n * d)), dtype=kind, **settings)


@names_arguments
def fftfreq(n: int, d: float = 1.0, **settings: Any) -> Tensor:
    """The frequencies that `fft` of ``n`` points gives, ``d`` apart: 0, the positive ones, the negative ones.

    Example:
        >>> import pyflame as pf
        >>> pf.fft.fftfreq(4).tolist()
        [0.0, 0.25, -0.5, -0.25]
    """
    counts = np.arange(_points("fftfreq", n))
    return _frequencies(np.where(counts >= (n + 1) // 2, counts - n, counts), n, d, settings)


@names_arguments
def rfftfreq(n: int, d: float = 1.0, **settings: Any) -> Tensor:
    """The frequencies that `rfft` of ``n`` points gives.

    Example:
        >>> import pyflame as pf
        >>> pf.fft.rfftfreq(4).tolist()
        [0.0, 0.25, 0.5]
    """
    return _frequencies(np.arange(_points("rfftfreq", n) // 2 + 1), n, d, settings)


def _turned(input: Any, dim: Any, *, back: bool) -> Tensor:
    x = as_tensor(input)
    axes = (
        list(range(x.ndim)) if dim is None else [axis_of(d, x.ndim) for d in ([dim] if isinstance(dim, int) else dim)]
    )
    if not axes:
        return x
    return sh.roll(x, [(x.shape[a] + back) // 2 for a in axes], axes)


@names_arguments
def fftshift(input: Any, dim: Any = None) -> Tensor:
    """Frequency 0 moved to the middle.

    Example:
        >>> import pyflame as pf
        >>> pf.fft.fftshift(pf.fft.fftfreq(4)).tolist()
        [-0.5, -0.25, 0.0, 0.25]
    """
    return _turned(input, dim, back=False)


@names_arguments
def ifftshift(input: Any, dim: Any = None) -> Tensor:
    """The inverse of `fftshift`."""
    return _turned(input, dim, back=True)
