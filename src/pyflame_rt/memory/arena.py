"""Arenas: memory that is handed out in a row and taken back all at once."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.graph.arguments import expect, expect_whole
from pyflame_rt.graph.errors import InputError, MemoryLimitError
from pyflame_rt.graph.named_arguments import names_arguments
from pyflame_rt.memory.pool import Block, MemoryPool, global_pool

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["Arena", "ScopedArena"]

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class Arena:
    """A row of bytes for what is thrown away together. Not for several threads at once.

    Args:
        size: how many bytes.
        pool: where they come from; the global pool unless given.
        alignment: of what is handed out, a power of two.

    Example:
        >>> arena = Arena(1024)
        >>> first, second = arena.allocate(100), arena.allocate(200)
        >>> arena.used(), arena.remaining(), second.nbytes
        (384, 640, 200)
        >>> arena.reset()
        >>> arena.used()
        0
    """

    @names_arguments
    def __init__(self, size: int, pool: MemoryPool | None = None, *, alignment: int = 64) -> None:
        if expect_whole(size, "size") < 1:
            raise InputError(f"an arena needs at least one byte, got {size}")
        self._alignment = alignment
        self._block: Block = (global_pool() if pool is None else pool).allocate_aligned(size, alignment)
        self._used = 0

    def allocate(self, size: int) -> Bytes:
        """The next bytes; they are somebody else's after :meth:`reset`.

        Raises:
            MemoryLimitError: There are not so many left.
        """
        size = expect_whole(size, "size")
        taken = size + -size % self._alignment
        if size < 0 or self._used + size > self.capacity():
            raise MemoryLimitError(f"{size} bytes do not fit: {self.remaining()} of {self.capacity()} are left")
        begin, self._used = self._used, min(self._used + taken, self.capacity())
        return self._block.array[begin : begin + size]

    def empty(self, shape: int | tuple[int, ...], dtype: Any = np.float32) -> np.ndarray[Any, Any]:
        """An array in the next bytes, its contents undefined."""
        kind = np.dtype(dtype)
        sizes = shape if isinstance(shape, tuple) else (expect_whole(shape, "shape"),)
        return self.allocate(math.prod(map(int, sizes)) * kind.itemsize).view(kind).reshape(sizes)

    def capacity(self) -> int:
        """Bytes altogether."""
        return len(self._block)

    def used(self) -> int:
        """Bytes handed out, with what alignment takes."""
        return self._used

    def remaining(self) -> int:
        """Bytes left."""
        return self.capacity() - self._used

    def reset(self, to: int = 0) -> None:
        """Take everything back that was handed out since :meth:`used` was ``to``."""
        if not 0 <= to <= self._used:
            raise InputError(f"an arena with {self._used} bytes in use cannot go back to {to}")
        self._used = to

    def __repr__(self) -> str:
        return f"Arena({self._used} of {self.capacity()} bytes in use)"


class ScopedArena:
    """A part of an arena's life: at its end the arena is as it was before.

    Example:
        >>> arena = Arena(1024)
        >>> with ScopedArena(arena) as scope:
        ...     temporary = scope.allocate(512)
        ...     arena.used()
        512
        >>> arena.used()
        0
    """

    def __init__(self, arena: Arena) -> None:
        expect(arena, Arena, "the arena of a scope")
        self.arena = arena
        self._before = arena.used()

    def allocate(self, size: int) -> Bytes:
        """The arena's next bytes."""
        return self.arena.allocate(size)

    def empty(self, shape: int | tuple[int, ...], dtype: Any = np.float32) -> np.ndarray[Any, Any]:
        """An array in the arena's next bytes."""
        return self.arena.empty(shape, dtype)

    def __enter__(self) -> ScopedArena:
        self._before = self.arena.used()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.arena.reset(self._before)
