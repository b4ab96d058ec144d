"""Short-time Fourier transforms: spectra of overlapping, windowed frames, and the signal they came from."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame.dtypes import DType
from pyflame.lazy import modes
from pyflame.ops import arithmetic as ar
from pyflame.ops import complex_numbers as cn
from pyflame.ops import fourier as fo
from pyflame.ops import gathering as ga
from pyflame.ops import placing as pl
from pyflame.ops import shaping as sh
from pyflame.ops.core import WrongTypeError, as_tensor, call, cast, const, wrap
from pyflame.ops.creation import ones, zeros
from pyflame_rt.graph.errors import ShapeMismatchError
from pyflame_rt.ops.pyflame.within import Look

if TYPE_CHECKING:
    from pyflame.tensors import Tensor

__all__ = ["istft", "stft"]

_LOWEST = 1e-11  # below it what overlaps is nothing, as torch has it


def _frames(name: str, n_fft: int, hop: int | None, length: int | None) -> tuple[int, int]:
    """How far frames are apart, and how long the window is."""
    step, size = n_fft // 4 if hop is None else hop, n_fft if length is None else length
    if n_fft < 1 or step < 1 or not 0 < size <= n_fft:
        raise ValueError(
            f"{name}: n_fft and hop_length must be above 0, win_length from 1 to n_fft, "
            f"got n_fft={n_fft}, hop_length={step}, win_length={size}"
        )
    return step, size


def _centred(name: str, window: Any, kind: DType, size: int, n_fft: int) -> Tensor:
    """The window with zeros on both sides up to the length of a frame; ones for None."""
    given = ones(size, dtype=kind) if window is None else as_tensor(window)
    if list(given.shape) != [size]:
        raise ShapeMismatchError(f"{name}: a window of {size} weights (win_length) is needed, got shape {given.shape}")
    before = (n_fft - size) // 2
    return sh.pad(given, [before, n_fft - size - before]) if size < n_fft else given


def _padded(x: Tensor, amount: int, mode: str) -> Tensor:
    return sh.squeeze(sh.pad(sh.unsqueeze(x, 0), [amount, amount], mode=mode), 0)


def stft(
    input: Any,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Any = None,
    center: bool = True,
    pad_mode: str = "reflect",
    normalized: bool = False,
    onesided: bool | None = None,
    return_complex: bool | None = None,
) -> Tensor:
    """Spectra of overlapping frames of a signal, or of a batch of signals: frequencies by frames.

    Args:
        input: The signal, ``[time]`` or ``[batch, time]``.
        n_fft: The length of a frame.
        hop_length: How far frames are apart; a quarter of a frame for None.
        win_length: The length of the window, which stands in the middle of a frame; ``n_fft`` for None.
        window: Weights; all 1 for None.
        center: Let frames have their middle at their time: the signal goes on at both ends.
        pad_mode: How it goes on; see `pf.nn.functional.pad`.
        normalized: Divide by the root of ``n_fft``.
        onesided: Only the half that says all; for None where signal and window are real.
        return_complex: True, or False for real and imaginary part as a last dimension; may be left out where the signal
            or the window is complex.

    Example:
        >>> import pyflame as pf
        >>> pf.stft(pf.ones(16), 4, window=pf.hann_window(4), return_complex=True).shape
        [3, 17]
    """
    x = fo._numbers("stft", input)
    if x.ndim not in (1, 2):
        raise ShapeMismatchError(f"stft takes [time] or [batch, time], got shape {x.shape}")
    hop, size = _frames("stft", n_fft, hop_length, win_length)
    weights = _centred("stft", window, x.dtype.to_real(), size, n_fft)
    whole = x.dtype.is_complex or weights.dtype.is_complex
    if return_complex is None and not whole:
        raise ValueError("stft: say return_complex=True (or False, for parts as a last dimension) for a real signal")
    if onesided and whole:
        raise ValueError("stft: spectra of complex numbers have no half that says all; leave onesided=True out")
    batch = x if x.ndim == 2 else sh.unsqueeze(x, 0)
    batch = _padded(batch, n_fft // 2, pad_mode) if center else batch
    if n_fft > batch.shape[-1]:
        raise ShapeMismatchError(f"stft: frames of {n_fft} do not fit a signal of {batch.shape[-1]}")
    framed = ar.mul(pl.unfold(batch, 1, n_fft, hop), weights)
    norm = "ortho" if normalized else "backward"
    half = (onesided is None and not whole) or bool(onesided)
    spectra = (fo.rfft if half else fo.fft)(framed, dim=-1, norm=norm)
    spectra = sh.transpose(spectra if x.ndim == 2 else sh.squeeze(spectra, 0), -1, -2)
    return spectra if return_complex is None or return_complex else cn.view_as_real(spectra)


def istft(
    input: Any,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Any = None,
    center: bool = True,
    normalized: bool = False,
    onesided: bool | None = None,
    length: int | None = None,
    return_complex: bool = False,
) -> Tensor:
    """The signal whose `stft` comes nearest to some spectra: frames are added up, over the squares of the window.

    Args:
        input: Complex spectra, ``[frequency, frame]`` or ``[batch, frequency, frame]``.
        n_fft: The length of a frame.
        hop_length: As for `stft`.
        win_length: As for `stft`.
        window: As for `stft`.
        center: As for `stft`.
        normalized: As for `stft`.
        onesided: Whether the spectra are halves; for None, whether there are fewer frequencies than ``n_fft``.
        length: How many samples are wanted; what frames do not reach is 0, with a warning.
        return_complex: The signal is complex.

    Example:
        >>> import pyflame as pf
        >>> x, window = pf.arange(16.0), pf.hann_window(8)
        >>> spectra = pf.stft(x, 8, window=window, return_complex=True)
        >>> pf.allclose(pf.istft(spectra, 8, window=window), x, atol=1e-5)
        True
    """
    x = as_tensor(input)
    if not x.dtype.is_complex:
        raise WrongTypeError(f"istft takes complex spectra, got {x.dtype.name}; use pf.view_as_complex on parts")
    if x.ndim not in (2, 3) or not x.numel:
        raise ShapeMismatchError(f"istft takes [frequency, frame] or [batch, frequency, frame], got shape {x.shape}")
    hop, size = _frames("istft", n_fft, hop_length, win_length)
    half = x.shape[-2] != n_fft if onesided is None else onesided
    if x.shape[-2] != (n_fft // 2 + 1 if half else n_fft):
        raise ShapeMismatchError(
            f"istft: {n_fft // 2 + 1 if half else n_fft} frequencies are needed, got shape {x.shape}"
        )
    weights = _centred("istft", window, x.dtype.to_real(), size, n_fft)
    if (half and return_complex) or (weights.dtype.is_complex and not return_complex):
        raise ValueError("istft: return_complex=True goes with complex windows, and with onesided=False")
    frames = sh.transpose(x if x.ndim == 3 else sh.unsqueeze(x, 0), -1, -2)
    norm = "ortho" if normalized else "backward"
    # Of whole spectra that give real numbers the first half counts, as in torch.
    parts = fo.ifft(frames, norm=norm) if return_complex else fo.irfft(frames, n_fft, norm=norm)
    signal = _divided(ar.mul(parts, weights), weights, hop, n_fft // 2 if center else 0, center, length)
    return signal if x.ndim == 3 else sh.squeeze(signal, 0)


def _divided(parts: Tensor, weights: Tensor, hop: int, start: int, center: bool, length: int | None) -> Tensor:
    """Overlapping frames added up, over the squares of the window added up."""
    count, n_fft = parts.shape[1], parts.shape[2]
    total = n_fft + hop * (count - 1)
    stop = total - start if length is None and center else total if length is None else start + length
    reached = min(stop, total)
    if reached <= start:
        raise ShapeMismatchError(f"istft: nothing is left of {total} samples between {start} and {stop}")
    places = (np.arange(count)[:, None] * hop + np.arange(n_fft)).reshape(-1)
    signal = _added(sh.reshape(parts, (parts.shape[0], -1)), places, total)
    squares = sh.reshape(sh.broadcast_to(ar.mul(weights, weights), (count, n_fft)), (1, -1))
    below = sh.narrow(_added(squares, places, total), 1, start, reached - start)
    signal = ar.div(sh.narrow(signal, 1, start, reached - start), _above_zero(below))
    if stop <= total:
        return signal
    warnings.warn(f"istft: frames reach {reached - start} of {length} samples; the rest is 0", stacklevel=3)
    return sh.pad(signal, [0, stop - total])


def _added(rows: Tensor, places: np.ndarray[Any, Any], total: int) -> Tensor:
    start = zeros(rows.shape[0], total, dtype=rows.dtype)
    return ga.index_add(start, 1, wrap(const(places)), rows)


def _above_zero(below: Tensor) -> Tensor:
    """What is divided by, refused where it is nothing: at once if its numbers can be known, else when it runs."""
    size = ar.abs(below.detach())
    if modes.tracer is None:
        least = float(size.min())
        if least <= _LOWEST:
            raise ValueError(
                f"istft: the squares of the window add up to {least:.3g} somewhere, so the signal does not follow "
                "from its frames; use a window without zeros inside, or a smaller hop_length"
            )
        return below
    enough = cast(ar.gt(size, _LOWEST), DType.int64)
    seen = call(Look, enough, low=1, what="istft: whether windows overlap enough (1) or not (0)")
    return ar.mul(below, cast(seen, below.dtype))
