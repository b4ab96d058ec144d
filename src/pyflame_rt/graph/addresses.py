"""Where the elements of arrays are."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

__all__ = ["address_of"]


class _Nothing(ctypes.Structure):
    """No bytes: laid over an array, it is where that begins."""


_over: Callable[[Any], Any] = _Nothing.from_buffer
_address = ctypes.addressof


def address_of(array: np.ndarray[Any, Any]) -> int:
    """Where the elements of an array are, by the buffer protocol where that can tell, which is quicker.

    Example:
        >>> import numpy as np
        >>> x = np.zeros(3)
        >>> address_of(x) == x.ctypes.data
        True
    """
    try:
        return _address(_over(array))
    except (TypeError, ValueError):  # read-only, or of an element type that buffers do not have
        return array.ctypes.data
