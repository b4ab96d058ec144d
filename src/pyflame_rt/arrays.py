"""Arrays of NumPy, torch and MLX, told apart and brought to the host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from emberharmony import library
from emberharmony.kinds import array_library

if TYPE_CHECKING:
    import numpy as np

__all__ = ["host_array", "library_of"]


def library_of(value: object) -> str | None:
    """Name of the library that made an array; None when it is none.

    Example:
        >>> library_of(np.zeros(2)), library_of([1])
        ('numpy', None)
    """
    return array_library(value)


def host_array(value: Any) -> np.ndarray[Any, Any] | None:
    """An array of any library as a NumPy array; None when it is no array.

    Example:
        >>> host_array(np.ones(1))
        array([1.])
    """
    owner = array_library(value)
    return None if owner is None else library(owner).to_numpy(value)
