"""Conversions between host arrays and the 32-bit words of copies (``cerebras.sdk.sdk_utils``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from wsesim.fabric.errors import HostError

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["calculate_cycles", "input_array_to_u32", "memcpy_view"]


def memcpy_view(arr: NDArray[Any], datatype: Any) -> NDArray[Any]:
    """A view of 32-bit words as elements of another type; 16-bit elements lie in the low halves.

    >>> memcpy_view(np.array([1, 0x10002], np.uint32), np.dtype(np.int16)).tolist()
    [1, 2]
    """
    dtype = np.dtype(datatype)
    if arr.dtype.itemsize != 4 or dtype.itemsize not in (2, 4):
        raise HostError(f"memcpy_view goes from 32-bit words to 16- or 32-bit elements, not {arr.dtype} to {dtype}")
    return arr.view(dtype) if dtype.itemsize == 4 else arr.view(dtype)[..., ::2]


def input_array_to_u32(np_arr: NDArray[Any], sentinel: int | None, fast_dim_sz: int) -> NDArray[np.uint32]:
    """Elements as 32-bit words; with a sentinel, the high half of a 16-bit element is its index in the fast dimension.

    >>> input_array_to_u32(np.array([7, 8], np.int16), 1, 2).tolist()
    [7, 65544]
    """
    flat = np.ascontiguousarray(np_arr).reshape(-1)
    if flat.dtype.itemsize == 4:
        return flat.view(np.uint32)
    if flat.dtype.itemsize != 2:
        raise HostError(f"input_array_to_u32 takes 16- or 32-bit elements, not {flat.dtype}")
    words = flat.view(np.uint16).astype(np.uint32)
    if sentinel:
        words |= (np.arange(len(words), dtype=np.uint32) % np.uint32(fast_dim_sz)) << np.uint32(16)
    return words


def calculate_cycles(timestamp_buf: NDArray[Any]) -> int:
    """Cycles between two 48-bit timestamps that lie one after the other in six 16-bit words.

    >>> calculate_cycles(np.array([1, 0, 0, 5, 1, 0], np.uint16))
    65540
    """
    words = [int(w) for w in np.ascontiguousarray(timestamp_buf).reshape(-1).view(np.uint16)[:6]]
    start, end = (words[i] | words[i + 1] << 16 | words[i + 2] << 32 for i in (0, 3))
    return end - start
