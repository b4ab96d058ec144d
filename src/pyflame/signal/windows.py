"""Windows: weights that let a piece of a signal begin and end at nothing, by their closed formulas."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame.dtypes import get_default_dtype, to_dtype
from pyflame.ops.creation import tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyflame.tensors import Tensor

__all__ = [
    "bartlett",
    "blackman",
    "cosine",
    "exponential",
    "gaussian",
    "general_cosine",
    "general_hamming",
    "hamming",
    "hann",
    "kaiser",
    "nuttall",
]

Array = np.ndarray[Any, Any]


def _window(formula: Callable[[Array, int], Array], M: int, sym: bool, settings: dict[str, Any]) -> Tensor:
    """A formula of the places 0 to M - 1 and the last place of a whole window; a periodic one is cut before its end."""
    dtype = settings.pop("dtype", None)
    kind = get_default_dtype() if dtype is None else to_dtype(dtype)
    if not kind.is_floating_point:
        raise TypeError(f"windows are floating point, got {kind}")
    if M < 0:
        raise ValueError(f"a window has at least 0 weights, got M={M}")
    last = M - 1 if sym else M
    values = np.ones(M) if M <= 1 else formula(np.arange(M, dtype=np.float64), last)
    return tensor(values.astype(kind.numpy), dtype=kind, **settings)


def general_cosine(M: int, *, a: Sequence[float], sym: bool = True, **settings: Any) -> Tensor:
    """A sum of cosines with the weights ``a``, of turning signs.

    Example:
        >>> import pyflame as pf
        >>> pf.signal.windows.general_cosine(3, a=[0.5, 0.5]).numpy().round(4).tolist()
        [0.0, 1.0, 0.0]
    """
    if not len(a):
        raise ValueError("general_cosine: a holds at least one weight")

    def formula(n: Array, last: int) -> Array:
        return sum((-1) ** k * w * np.cos(2 * math.pi * k * n / last) for k, w in enumerate(a))  # type: ignore[return-value]

    return _window(formula, M, sym, settings)


def general_hamming(M: int, *, alpha: float = 0.54, sym: bool = True, **settings: Any) -> Tensor:
    """``alpha - (1 - alpha) * cos``."""
    return general_cosine(M, a=[alpha, 1 - alpha], sym=sym, **settings)


def hamming(M: int, *, sym: bool = True, **settings: Any) -> Tensor:
    """The window of Hamming.

    Example:
        >>> import pyflame as pf
        >>> [round(v, 4) for v in pf.signal.windows.hamming(3).tolist()]
        [0.08, 1.0, 0.08]
    """
    return general_hamming(M, sym=sym, **settings)


def hann(M: int, *, sym: bool = True, **settings: Any) -> Tensor:
    """A raised cosine.

    Example:
        >>> import pyflame as pf
        >>> pf.signal.windows.hann(4, sym=False).numpy().round(4).tolist()
        [0.0, 0.5, 1.0, 0.5]
    """
    return general_hamming(M, alpha=0.5, sym=sym, **settings)


def blackman(M: int, *, sym: bool = True, **settings: Any) -> Tensor:
    """The window of Blackman."""
    return general_cosine(M, a=[0.42, 0.5, 0.08], sym=sym, **settings)


def nuttall(M: int, *, sym: bool = True, **settings: Any) -> Tensor:
    """The window of Nuttall, of four terms."""
    return general_cosine(M, a=[0.3635819, 0.4891775, 0.1365995, 0.0106411], sym=sym, **settings)


def bartlett(M: int, *, sym: bool = True, **settings: Any) -> Tensor:
    """A triangle that begins and ends at 0."""
    return _window(lambda n, last: 1 - np.abs(2 * n / last - 1), M, sym, settings)


def cosine(M: int, *, sym: bool = True, **settings: Any) -> Tensor:
    """Half a wave."""
    return _window(lambda n, last: np.sin((n + 0.5) * math.pi / (last + 1)), M, sym, settings)


def exponential(M: int, *, center: float | None = None, tau: float = 1.0, sym: bool = True, **settings: Any) -> Tensor:
    """``exp(-|n - center| / tau)``."""
    if tau <= 0:
        raise ValueError(f"exponential: tau is above 0, got {tau}")
    if sym and center is not None:
        raise ValueError("exponential: a symmetric window has its centre in the middle; leave center out")
    return _window(
        lambda n, last: np.exp(-np.abs(n - (last / 2 if center is None else center)) / tau), M, sym, settings
    )


def gaussian(M: int, *, std: float = 1.0, sym: bool = True, **settings: Any) -> Tensor:
    """The bell curve of a standard deviation."""
    if std <= 0:
        raise ValueError(f"gaussian: std is above 0, got {std}")
    return _window(lambda n, last: np.exp(-(((n - last / 2) / std) ** 2) / 2), M, sym, settings)


def kaiser(M: int, *, beta: float = 12.0, sym: bool = True, **settings: Any) -> Tensor:
    """The window of Kaiser, by the Bessel function i0."""
    if beta < 0:
        raise ValueError(f"kaiser: beta must not be negative, got {beta}")

    def formula(n: Array, last: int) -> Array:
        inside = np.maximum(1 - (2 * n / last - 1) ** 2, 0.0)
        return np.i0(beta * np.sqrt(inside)) / np.i0(beta)

    return _window(formula, M, sym, settings)


def hann_window(window_length: int, periodic: bool = True, **settings: Any) -> Tensor:
    """A raised cosine, periodic unless told otherwise, as spectra want it."""
    return hann(window_length, sym=not periodic, **settings)


def hamming_window(
    window_length: int, periodic: bool = True, alpha: float = 0.54, beta: float = 0.46, **settings: Any
) -> Tensor:
    """``alpha - beta * cos``, periodic unless told otherwise."""
    return general_cosine(window_length, a=[alpha, beta], sym=not periodic, **settings)


def blackman_window(window_length: int, periodic: bool = True, **settings: Any) -> Tensor:
    """The window of Blackman, periodic unless told otherwise."""
    return blackman(window_length, sym=not periodic, **settings)


def bartlett_window(window_length: int, periodic: bool = True, **settings: Any) -> Tensor:
    """A triangle, periodic unless told otherwise."""
    return bartlett(window_length, sym=not periodic, **settings)


def kaiser_window(window_length: int, periodic: bool = True, beta: float = 12.0, **settings: Any) -> Tensor:
    """The window of Kaiser, periodic unless told otherwise."""
    return kaiser(window_length, beta=beta, sym=not periodic, **settings)
