"""Fourier transforms: axes that exist, at least one point, real numbers where they are meant."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from emberharmony.dtypes import COMPLEX, kind
from emberharmony.guards.axes import plain_axes, plain_axis
from emberharmony.guards.table import GUARDS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from emberharmony.library import Library
    from emberharmony.typing import Array, ArrayLike

__all__: list[str] = []


def _one(name: str) -> Callable[..., Array]:
    def guard(lib: Library, native: Callable[..., Array], x: ArrayLike, n: int | None = None, axis: int = -1) -> Array:
        """Along one axis."""
        x = lib.as_array(x)
        along = plain_axis(axis, len(x.shape))
        if name == "rfft" and kind(lib.dtype(x)) == COMPLEX:
            raise TypeError("rfft is a function of real numbers, received complex ones")
        size = x.shape[along] if n is None else n
        if (2 * (size - 1) if name == "irfft" and n is None else size) < 1:
            raise ValueError(f"{name} needs at least one point, received {size} along axis {axis}")
        return native(_filled(lib, x, [along]), n, along)

    return guard


def _two(name: str) -> Callable[..., Array]:
    def guard(
        lib: Library,
        native: Callable[..., Array],
        x: ArrayLike,
        s: Sequence[int] | None = None,
        axes: Sequence[int] = (-2, -1),
    ) -> Array:
        """Along two axes."""
        x = lib.as_array(x)
        along = plain_axes(tuple(axes), len(x.shape))
        sizes: Any = [x.shape[a] for a in along] if s is None else s
        if len(sizes) != len(along):
            raise ValueError(f"{name}: {len(sizes)} sizes for {len(along)} axes")
        if any(n < 1 for n in sizes):
            raise ValueError(f"{name} needs at least one point, received {tuple(sizes)}")
        return native(_filled(lib, x, along), list(sizes), along)

    return guard


def _filled(lib: Library, x: Array, axes: Sequence[int]) -> Array:
    """One zero along an axis without elements: NumPy would take what happens to be in memory."""
    for axis in axes:
        if x.shape[axis] == 0:
            x = lib.pad(x, [(0, int(i == axis)) for i in range(len(x.shape))])
    return x


GUARDS.update({name: _one(name) for name in ("fft", "ifft", "rfft", "irfft")})
GUARDS.update({name: _two(name) for name in ("fft2", "ifft2")})
