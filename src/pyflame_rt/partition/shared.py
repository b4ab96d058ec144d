"""Arrays in shared memory: written once, read in place by every process that is told where they are."""

from __future__ import annotations

from multiprocessing.shared_memory import SharedMemory
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Attached", "SharedArray", "SharedPool", "unlink_all"]

_SMALL = 2048  # bytes that are sent along with the message instead
_LEAST = 4096


class SharedArray(NamedTuple):
    """Where an array is."""

    block: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


class SharedPool:
    """Blocks of shared memory that one process writes into; a block that was given back is used again.

    Args:
        prefix: of the names of its blocks, which are numbered.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._blocks: dict[str, SharedMemory] = {}
        self._free: dict[int, list[str]] = {}

    def put(self, value: Any) -> Any:
        """Where an array was put; other values, and small arrays, as they are."""
        if not isinstance(value, np.ndarray) or value.dtype.hasobject or value.nbytes < _SMALL:
            return value
        size = max(_LEAST, 1 << (value.nbytes - 1).bit_length())
        free = self._free.get(size)
        name = free.pop() if free else self._make(size)
        np.copyto(np.ndarray(value.shape, value.dtype, self._blocks[name].buf), value)
        return SharedArray(name, value.shape, value.dtype)

    def _make(self, size: int) -> str:
        name = f"{self._prefix}{len(self._blocks)}"
        self._blocks[name] = SharedMemory(name, create=True, size=size)
        return name

    def give_back(self, names: Iterable[str]) -> None:
        """Blocks nobody reads any more."""
        for name in names:
            block = self._blocks.get(name)
            if block is not None:
                self._free.setdefault(max(_LEAST, 1 << (block.size - 1).bit_length()), []).append(name)

    def close(self) -> None:
        """Let go of the memory, which lives until it is unlinked."""
        for block in self._blocks.values():
            block.close()
        self._blocks, self._free = {}, {}


class Attached:
    """Blocks of other processes that this one reads."""

    def __init__(self) -> None:
        self._blocks: dict[str, SharedMemory] = {}

    def view(self, place: SharedArray) -> np.ndarray[Any, Any]:
        """The array itself, to be read."""
        block = self._blocks.get(place.block)
        if block is None:
            block = self._blocks[place.block] = SharedMemory(place.block)
        array = np.ndarray(place.shape, place.dtype, block.buf)
        array.flags.writeable = False
        return array

    def close(self) -> None:
        """Let go of all of them; views must be gone."""
        for block in self._blocks.values():
            block.close()
        self._blocks = {}


def unlink_all(prefix: str) -> None:
    """Remove the blocks of a pool whose process has ended."""
    number = 0
    while True:
        try:
            block = SharedMemory(f"{prefix}{number}")
        except FileNotFoundError:
            return
        block.close()
        block.unlink()
        number += 1
