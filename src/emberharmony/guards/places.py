"""Devices: one that a library lacks is passed over with a warning, or refused, alike on all."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from emberharmony.guards.table import guard

if TYPE_CHECKING:
    from collections.abc import Callable

    from emberharmony.library import Library
    from emberharmony.typing import Array, ArrayLike

__all__ = ["to_device"]

_warned: set[tuple[str, str]] = set()


@guard
def to_device(lib: Library, native: Callable[..., Array], x: ArrayLike, device: str, strict: bool = False) -> Array:
    """Move where there is such a device; else stay, with one warning, or refuse."""
    known: list[str] = lib.get_available_devices()
    wanted = str(device)
    if wanted in known or any(k.partition(":")[0] == wanted for k in known):
        return native(lib.as_array(x), wanted, strict)
    message = f"{lib.name} has no device {wanted!r}; available: {', '.join(known)}"
    if strict:
        raise ValueError(message)
    if (lib.name, wanted) not in _warned:
        _warned.add((lib.name, wanted))
        warnings.warn(f"{message}. The array stays where it is.", stacklevel=3)
    return lib.as_array(x)
