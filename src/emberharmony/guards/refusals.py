"""What a library refuses: computed by NumPy where it only lacks the dtype, else an error of the common kinds.

torch has no arithmetic for uint16, uint32 and uint64, and neither torch nor MLX orders complex numbers; NumPy does.
Such a call is a step on the host, counted as one. Any other refusal becomes the error that NumPy would raise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from emberharmony.errors import EmberHarmonyError

if TYPE_CHECKING:
    from collections.abc import Callable

    from emberharmony.library import Library

__all__ = ["careful"]

_RAW = (RuntimeError, ValueError, TypeError, IndexError)


class _Slot:
    """The place of an array among nested arguments."""

    def __init__(self, number: int) -> None:
        self.number = number


def careful(lib: Library, name: str, native: Callable[..., Any]) -> Callable[..., Any]:
    """A library's own function, with its refusals put into common terms."""

    def call(*args: Any, **options: Any) -> Any:
        try:
            return native(*args, **options)
        except EmberHarmonyError:
            raise
        except _RAW as error:
            if lib.is_unsupported(error):
                return _by_numpy(lib, name, args, options)
            found = _translated(name, error)
            if found is None:
                raise
            raise found from error

    return call


def _by_numpy(lib: Library, name: str, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    arrays: list[Any] = []

    def emptied(value: Any) -> Any:
        if lib.is_array(value):
            arrays.append(value)
            return _Slot(len(arrays) - 1)
        if isinstance(value, (list, tuple)):
            return type(value)([emptied(v) for v in value])
        return value

    slots, named = emptied(list(args)), {key: emptied(value) for key, value in options.items()}

    def computed(*hosts: np.ndarray[Any, Any]) -> Any:
        def filled(value: Any) -> Any:
            if isinstance(value, _Slot):
                return hosts[value.number]
            return type(value)([filled(v) for v in value]) if isinstance(value, (list, tuple)) else value

        found = lib.host(name)(*filled(slots), **{key: filled(value) for key, value in named.items()})
        return tuple(found) if isinstance(found, list) else found

    return lib.by_host(name, computed, *arrays) if arrays else lib.from_numpy(computed())


def _translated(name: str, error: Exception) -> Exception | None:
    """The error NumPy would raise; None if it is that already."""
    text = str(error).partition("\n")[0]
    if type(error).__name__ == "_LinAlgError":
        return np.linalg.LinAlgError(f"{name}: {text}")
    if isinstance(error, IndexError):
        wrong_axis = "imension out of range" in text or "Invalid axis" in text
        return np.exceptions.AxisError(f"{name}: {text}") if wrong_axis else None
    if type(error) is RuntimeError:
        return ValueError(f"{name}: {text}")
    return None
