"""Pools of things of one kind: blocks of one size, arrays of one shape."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.graph.errors import InputError
from pyflame_rt.graph.named_arguments import names_arguments
from pyflame_rt.memory.config import PoolConfig
from pyflame_rt.memory.pool import Block, MemoryPool, global_pool

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyflame_rt.memory.config import PoolStats

__all__ = ["BlockPool", "BufferCache"]


class BlockPool:
    """Blocks of one size.

    Args:
        block_size: bytes of each.
        max_blocks: how many there may be.

    Example:
        >>> pool = BlockPool(4096, 2)
        >>> first, second = pool.allocate(), pool.allocate()
        >>> pool.deallocate(first)
        >>> len(pool.allocate()), pool.get_stats().hits
        (4096, 1)
    """

    @names_arguments
    def __init__(self, block_size: int, max_blocks: int) -> None:
        if block_size < 1 or max_blocks < 1:
            raise InputError(f"a pool needs blocks with bytes, got {max_blocks} of {block_size} bytes")
        room = block_size + -block_size % 64
        self.block_size = block_size
        config = PoolConfig(
            memory_limit=room * max_blocks,
            size_classes=[room],
            max_blocks_per_class=max_blocks,
            max_cached_bytes=room * max_blocks,
        )
        self._pool = MemoryPool(config)

    def allocate(self) -> Block:
        """A block.

        Raises:
            MemoryLimitError: All are in use.
        """
        return self._pool.allocate(self.block_size)

    def deallocate(self, block: Block) -> None:
        """Give a block back."""
        self._pool.deallocate(block)

    def get_stats(self) -> PoolStats:
        """What is in use, and what is kept."""
        return self._pool.get_stats()


class BufferCache:
    """Arrays for repeated use, by shape and element type.

    Args:
        pool: where memory comes from; the global pool unless given.

    Example:
        >>> cache = BufferCache()
        >>> first = cache.get((2, 3), np.float32)
        >>> cache.put(first)
        >>> cache.get((2, 3), np.float32) is first
        True
    """

    def __init__(self, pool: MemoryPool | None = None) -> None:
        self._pool = global_pool() if pool is None else pool
        self._arrays: dict[tuple[Any, ...], list[np.ndarray[Any, Any]]] = {}

    def get(self, shape: Sequence[int], dtype: Any = np.float32) -> np.ndarray[Any, Any]:
        """An array that was put back, or a new one; its contents are undefined."""
        key = (tuple(shape), np.dtype(dtype))
        try:
            return self._arrays[key].pop()
        except LookupError:
            return self._pool.empty(*key)

    def put(self, array: np.ndarray[Any, Any]) -> None:
        """Keep an array that nobody uses any more."""
        if not array.flags.c_contiguous or not array.flags.writeable:
            raise InputError("only arrays that are whole and writeable can be used again")
        self._arrays.setdefault((array.shape, array.dtype), []).append(array)

    def clear(self) -> None:
        """Forget all arrays."""
        self._arrays.clear()
