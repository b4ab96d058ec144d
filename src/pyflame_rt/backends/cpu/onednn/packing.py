"""Moving arrays into and out of the layouts that primitives choose."""

from __future__ import annotations

from typing import Any

import numpy as np

from pyflame_rt.backends.cpu.memory.weight_regions import weights_empty
from pyflame_rt.backends.cpu.onednn.memory import MemDesc
from pyflame_rt.backends.cpu.onednn.primitive import execute
from pyflame_rt.backends.cpu.onednn.primitives import reorder

__all__ = ["pack", "pack_into", "unpack"]


def pack(
    array: np.ndarray[Any, Any], target: MemDesc, *, source: MemDesc | None = None
) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The bytes of an array in another layout; ``source`` describes the array where its own strides do not."""
    out = weights_empty(target.size)
    pack_into(array, target, out, source=source)
    return out


def pack_into(
    array: np.ndarray[Any, Any],
    target: MemDesc,
    out: np.ndarray[Any, np.dtype[np.uint8]],
    *,
    source: MemDesc | None = None,
) -> None:
    """Write an array in another layout into memory that is there."""
    described = MemDesc.of(array) if source is None else source
    with reorder(described, target) as primitive:
        execute(primitive, {"src": array, "dst": out})
    if source is None:
        described.close()


def unpack(buffer: np.ndarray[Any, Any], source: MemDesc) -> np.ndarray[Any, Any]:
    """A C-contiguous array from memory laid out as ``source`` says."""
    out = np.empty(source.dims, source.numpy_dtype)
    with MemDesc.of(out) as target, reorder(source, target) as primitive:
        execute(primitive, {"src": buffer, "dst": out})
    return out
