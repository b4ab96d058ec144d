"""Shapes and array data in .pfm files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.format.limits import MAX_DIM, MAX_ELEMENTS
from pyflame_rt.graph import DType, Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyflame_rt.format.cursor import Cursor

__all__ = ["array_bytes", "checked_count", "view_array"]


def checked_count(cursor: Cursor, dims: Sequence[int], what: str) -> int:
    """Number of elements of a shape within the limits."""
    total = 1
    for d in dims:
        if not 0 <= d <= MAX_DIM:
            raise cursor.fail(f"{what} has a dimension of {d}")
        total *= d
    if total > MAX_ELEMENTS:
        raise cursor.fail(f"{what} has {total} elements, at most {MAX_ELEMENTS} are allowed")
    return total


def view_array(cursor: Cursor, data: memoryview, dtype: DType, dims: Sequence[int], what: str) -> Tensor:
    """A tensor on the file's own memory."""
    count = checked_count(cursor, dims, what)
    if len(data) != count * dtype.itemsize:
        raise cursor.fail(f"{what} has {len(data)} bytes for {count} elements of {dtype.label}")
    array = np.frombuffer(data, dtype=dtype.numpy, count=count).reshape(tuple(dims))
    if dtype is DType.Bool and count and int(array.view(np.uint8).max()) > 1:
        raise cursor.fail(f"{what} is bool and holds something else than 0 and 1")
    return Tensor(array)


def array_bytes(tensor: Tensor) -> Any:
    """The data of a tensor as a contiguous buffer."""
    array = np.ascontiguousarray(tensor.raw())
    return array.reshape(-1).view(np.uint8).data if array.size else b""
