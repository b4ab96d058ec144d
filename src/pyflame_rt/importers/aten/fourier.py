"""Fourier transforms of aten: along axes of sizes cut or filled with zeros, and of overlapping frames."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.graph import DType
from pyflame_rt.graph.errors import InputError, ShapeMismatchError
from pyflame_rt.importers.aten.complex_numbers import to_complex
from pyflame_rt.importers.aten.creation import filled
from pyflame_rt.importers.aten.indexing import index_added
from pyflame_rt.importers.aten.padding import padded
from pyflame_rt.importers.aten.shaping import reshaped, rolled, sliced, swapped, unfolded
from pyflame_rt.importers.aten.table import aten
from pyflame_rt.importers.aten.values import axis, cast, floated, refuse, sizes, static, torch_dtype
from pyflame_rt.ops.core.value import Value, constant
from pyflame_rt.ops.onnx.arithmetic import Abs
from pyflame_rt.ops.onnx.shape import Expand, Squeeze, Unsqueeze
from pyflame_rt.ops.onnx.slicing import Pad
from pyflame_rt.ops.pyflame.complex_numbers import ViewAsReal, conjugated
from pyflame_rt.ops.pyflame.fourier import FFT, IRFFT, RFFT
from pyflame_rt.ops.pyflame.within import Look

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__: list[str] = []

_SWAPPED = {"backward": "forward", "forward": "backward", "ortho": "ortho"}
# Numbers of torch for the factor of a transform: none, 1 over the root of the number of points, 1 over the number.
_FACTORS = ("backward", "ortho", "forward")
_LAST_TWO = (-2, -1)


# ------------------------------------------------------------------ arguments


def _norm(norm: Any) -> str:
    chosen = "backward" if norm is None else norm
    if chosen not in _SWAPPED:
        raise InputError(f"norm is 'backward', 'ortho' or 'forward', got {norm!r}")
    return chosen


def _real(x: Value) -> Value:
    if x.dtype.is_complex:
        raise refuse("a transform of real numbers, given complex ones")
    return floated(x)


def _count(x: Value, along: int, given: Any, what: str = "how many points a transform has") -> int:
    return int(static(sizes(x)[along] if given in (None, -1) else given, what))


def _sized(x: Value, counts: Sequence[int], axes: Sequence[int]) -> Value:
    """Axes cut off, or filled up with zeros, to sizes."""
    for count, along in zip(counts, axes, strict=True):
        have = sizes(x)[along]
        if have == count:
            continue
        have = int(static(have, "the size of a transform"))
        if count < have:
            x = sliced(x, along, 0, count)
        else:
            x = Pad(x, constant([0, count - have], DType.Int64), None, [along])
    return x


def _chosen(x: Value, s: Any, dim: Any) -> tuple[list[int], list[Any]]:
    """The axes of a transform and how many points each gets; None for as many as there are."""
    counts = None if s is None else list(s) if isinstance(s, (list, tuple)) else [s]
    if dim is not None:
        axes = [axis(d, x.rank) for d in (dim if isinstance(dim, (list, tuple)) else [dim])]
    else:
        axes = list(range(x.rank))[0 if counts is None else x.rank - len(counts) :]
    return axes, [None] * len(axes) if counts is None else counts


# ------------------------------------------------------------------ one axis


def _along(x: Value, n: Any, dim: int, norm: Any, inverse: int) -> Value:
    at = axis(dim, x.rank)
    value = to_complex(x) if n is None else _sized(to_complex(x), [_count(x, at, n)], [at])
    return FFT(value, axes=[at], inverse=inverse, norm=_norm(norm))


@aten("fft_fft")
def _fft(x: Value, n: Any = None, dim: int = -1, norm: Any = None) -> Value:
    return _along(x, n, dim, norm, 0)


@aten("fft_ifft")
def _ifft(x: Value, n: Any = None, dim: int = -1, norm: Any = None) -> Value:
    return _along(x, n, dim, norm, 1)


@aten("fft_rfft")
def _rfft(x: Value, n: Any = None, dim: int = -1, norm: Any = None) -> Value:
    at = axis(dim, x.rank)
    value = _real(x) if n is None else _sized(_real(x), [_count(x, at, n)], [at])
    return RFFT(value, axis=at, norm=_norm(norm))


@aten("fft_irfft")
def _irfft(x: Value, n: Any = None, dim: int = -1, norm: Any = None) -> Value:
    at = axis(dim, x.rank)
    count = 2 * (_count(x, at, None) - 1) if n is None else _count(x, at, n)
    return IRFFT(_sized(to_complex(x), [count // 2 + 1], [at]), n=count, axis=at, norm=_norm(norm))


@aten("fft_hfft")
def _hfft(x: Value, n: Any = None, dim: int = -1, norm: Any = None) -> Value:
    return _irfft(conjugated(x), n, dim, _SWAPPED[_norm(norm)])


@aten("fft_ihfft")
def _ihfft(x: Value, n: Any = None, dim: int = -1, norm: Any = None) -> Value:
    return conjugated(_rfft(x, n, dim, _SWAPPED[_norm(norm)]))


# ------------------------------------------------------------------ many axes


def _over(x: Value, s: Any, dim: Any, norm: Any, inverse: int) -> Value:
    value = to_complex(x)
    axes, counts = _chosen(value, s, dim)
    asked = [(c, a) for c, a in zip(counts, axes, strict=True) if c not in (None, -1)]
    value = _sized(value, [int(static(c, "the size of a transform")) for c, _ in asked], [a for _, a in asked])
    return FFT(value, axes=axes, inverse=inverse, norm=_norm(norm)) if axes else value


def _halved(x: Value, s: Any, dim: Any, norm: Any, first: Callable[..., Value], inverse: int) -> Value:
    """Real numbers along the last of some axes, complex ones along the others."""
    value = _real(x)
    axes, counts = _chosen(value, s, dim)
    half = first(value, None if counts[-1] == -1 else counts[-1], axes[-1], norm)
    return _over(half, counts[:-1], axes[:-1], norm, inverse)


def _wholed(x: Value, s: Any, dim: Any, norm: Any, last: Callable[..., Value], inverse: int) -> Value:
    value = to_complex(x)
    axes, counts = _chosen(value, s, dim)
    value = _over(value, counts[:-1], axes[:-1], norm, inverse)
    return last(value, None if counts[-1] == -1 else counts[-1], axes[-1], norm)


def _register(name: str, do: Callable[[Value, Any, Any, Any], Value]) -> None:
    aten(f"fft_{name}n")(lambda x, s=None, dim=None, norm=None: do(x, s, dim, norm))
    aten(f"fft_{name}2")(lambda x, s=None, dim=_LAST_TWO, norm=None: do(x, s, list(dim), norm))


_register("fft", lambda x, s, dim, norm: _over(x, s, dim, norm, 0))
_register("ifft", lambda x, s, dim, norm: _over(x, s, dim, norm, 1))
_register("rfft", lambda x, s, dim, norm: _halved(x, s, dim, norm, _rfft, 0))
_register("irfft", lambda x, s, dim, norm: _wholed(x, s, dim, norm, _irfft, 1))
_register("ihfft", lambda x, s, dim, norm: _halved(x, s, dim, norm, _ihfft, 1))
_register("hfft", lambda x, s, dim, norm: _wholed(x, s, dim, norm, _hfft, 0))


@aten("_fft_r2c")
def _r2c(x: Value, dim: list[int], normalization: int, onesided: bool) -> Value:
    norm, axes = _FACTORS[normalization], [axis(d, x.rank) for d in dim]
    if not onesided:
        return FFT(to_complex(x), axes=axes, norm=norm)
    half = RFFT(_real(x), axis=axes[-1], norm=norm)
    return FFT(half, axes=axes[:-1], norm=norm) if axes[:-1] else half


@aten("_fft_c2c")
def _c2c(x: Value, dim: list[int], normalization: int, forward: bool) -> Value:
    norm = _FACTORS[normalization]
    return FFT(
        x, axes=[axis(d, x.rank) for d in dim], inverse=int(not forward), norm=norm if forward else _SWAPPED[norm]
    )


@aten("_fft_c2r")
def _c2r(x: Value, dim: list[int], normalization: int, last_dim_size: Any) -> Value:
    norm, axes = _SWAPPED[_FACTORS[normalization]], [axis(d, x.rank) for d in dim]
    value = FFT(x, axes=axes[:-1], inverse=1, norm=norm) if axes[:-1] else x
    count = int(static(last_dim_size, "how many points a transform has"))
    return IRFFT(_sized(value, [count // 2 + 1], axes[-1:]), n=count, axis=axes[-1], norm=norm)


# ------------------------------------------------------------------ frequencies


def _shifted(x: Value, dim: Any, share: Callable[[int], int]) -> Value:
    axes = list(range(x.rank)) if dim is None else [axis(d, x.rank) for d in (dim if isinstance(dim, list) else [dim])]
    return rolled(x, [share(_count(x, a, None, "the size of a shifted axis")) for a in axes], axes)


@aten("fft_fftshift")
def _fftshift(x: Value, dim: Any = None) -> Value:
    return _shifted(x, dim, lambda n: n // 2)


@aten("fft_ifftshift")
def _ifftshift(x: Value, dim: Any = None) -> Value:
    return _shifted(x, dim, lambda n: (n + 1) // 2)


def _frequencies(of: Callable[..., Any]) -> Callable[..., Value]:
    def made(n: Any, d: float = 1.0, *, dtype: Any = None, **_: Any) -> Value:
        kind = DType.Float32 if dtype is None else torch_dtype(dtype)
        return constant(of(int(static(n, "the number of frequencies")), d).astype(kind.numpy), kind)

    return made


aten("fft_fftfreq")(_frequencies(np.fft.fftfreq))
aten("fft_rfftfreq")(_frequencies(np.fft.rfftfreq))


# ------------------------------------------------------------------ frames


def _window(window: Value | None, like: Value, size: int, n_fft: int) -> Value:
    """The window with zeros on both sides up to the length of a frame; ones for None."""
    kind = DType.Float64 if like.dtype in (DType.Float64, DType.Complex128) else DType.Float32
    given = constant(np.ones(size), kind) if window is None else window
    before = (n_fft - size) // 2
    return given if size == n_fft else Pad(given, constant([before, n_fft - size - before], DType.Int64), None, [0])


def _spectra(
    x: Value, n_fft: int, hop: Any, length: Any, window: Value | None, centre: bool, mode: str, normalized: bool,
    onesided: Any, as_complex: Any, align: Any = None,
) -> Value:  # fmt: skip
    if align:
        raise refuse("stft with align_to_window")
    size = n_fft if length is None else int(length)
    value = floated(x) if x.rank == 2 else Unsqueeze(floated(x), [0])
    if centre:
        value = Squeeze(padded(Unsqueeze(value, [0]), [n_fft // 2, n_fft // 2], mode), [0])
    weights = _window(window, value, size, n_fft)
    framed = unfolded(value, 1, n_fft, n_fft // 4 if hop is None else int(hop))
    whole = value.dtype.is_complex or weights.dtype.is_complex
    if framed.dtype.is_complex != weights.dtype.is_complex:
        framed, weights = to_complex(framed), to_complex(weights)
    norm = "ortho" if normalized else "backward"
    half = not whole if onesided is None else bool(onesided)
    found = (_rfft if half else _fft)(framed * weights, None, -1, norm)
    turned = swapped(found if x.rank == 2 else Squeeze(found, [0]), -1, -2)
    return turned if as_complex is None or as_complex else ViewAsReal(turned)


@aten("stft")
def _stft(
    x: Value, n_fft: int, hop_length: Any = None, win_length: Any = None, window: Value | None = None,
    normalized: bool = False, onesided: Any = None, return_complex: Any = None, align_to_window: Any = None,
) -> Value:  # fmt: skip
    return _spectra(x, int(n_fft), hop_length, win_length, window, False, "", normalized, onesided, return_complex,
                    align_to_window)  # fmt: skip


@aten("stft.center")
def _stft_centred(
    x: Value, n_fft: int, hop_length: Any = None, win_length: Any = None, window: Value | None = None,
    center: bool = True, pad_mode: str = "reflect", normalized: bool = False, onesided: Any = None,
    return_complex: Any = None, align_to_window: Any = None,
) -> Value:  # fmt: skip
    return _spectra(x, int(n_fft), hop_length, win_length, window, center, pad_mode, normalized, onesided,
                    return_complex, align_to_window)  # fmt: skip


@aten("istft")
def _istft(
    x: Value, n_fft: int, hop_length: Any = None, win_length: Any = None, window: Value | None = None,
    center: bool = True, normalized: bool = False, onesided: Any = None, length: Any = None,
    return_complex: bool = False,
) -> Value:  # fmt: skip
    hop, size = n_fft // 4 if hop_length is None else int(hop_length), n_fft if win_length is None else int(win_length)
    weights = _window(window, x, size, n_fft)
    if weights.dtype.is_complex and not return_complex:
        raise refuse("istft to real numbers with a complex window")
    wanted, given = n_fft if onesided is False else n_fft // 2 + 1, sizes(x)[-2]
    if isinstance(given, int) and given not in ((wanted, n_fft) if onesided is None else (wanted,)):
        raise ShapeMismatchError(f"istft: {wanted} frequencies are needed, got {given}")
    frames = swapped(x if x.rank == 3 else Unsqueeze(x, [0]), -1, -2)
    norm = "ortho" if normalized else "backward"
    parts = _ifft(frames, None, -1, norm) if return_complex else _irfft(frames, n_fft, -1, norm)
    if parts.dtype.is_complex:
        weights = to_complex(weights)
    count = int(static(sizes(parts)[1], "the number of frames"))
    total, start = n_fft + hop * (count - 1), n_fft // 2 if center else 0
    stop = (total - start if center else total) if length is None else start + int(static(length, "a length"))
    if min(stop, total) <= start:
        raise ShapeMismatchError(f"istft: nothing is left of {total} samples between {start} and {stop}")
    signal = _divided(parts * weights, weights * weights, hop, (start, min(stop, total)))
    if stop > total:
        signal = Pad(signal, constant([0, stop - total], DType.Int64), None, [1])
    return signal if x.rank == 3 else Squeeze(signal, [0])


def _divided(parts: Value, squares: Value, hop: int, span: tuple[int, int]) -> Value:
    """Overlapping frames added up, over the squares of the window added up."""
    count, n_fft = (int(static(d, "the sizes of frames")) for d in sizes(parts)[1:])
    total = n_fft + hop * (count - 1)
    places = constant((np.arange(count)[:, None] * hop + np.arange(n_fft)).reshape(-1), DType.Int64)
    batch = sizes(parts)[0]
    rows = reshaped(parts, [batch, count * n_fft])
    signal = index_added(filled([batch, total], 0, parts.dtype), 1, places, rows)
    wide = reshaped(Expand(squares, constant([count, n_fft], DType.Int64)), [1, count * n_fft])
    below = sliced(index_added(filled([1, total], 0, squares.dtype), 1, places, wide), 1, *span)
    if not below.dtype.is_complex:  # torch refuses what is below this, too
        enough = Look(
            cast(Abs(below) > 1e-11, DType.Int64), low=1, what="istft: whether windows overlap enough (1) or not (0)"
        )
        below = below * cast(enough, below.dtype)
    return sliced(signal, 1, *span) / below
