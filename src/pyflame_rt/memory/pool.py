"""A pool of memory: blocks that were given back are lent again, which is warm memory and needs no page faults.

A block goes back when the last array on it dies, wherever that happens: in another thread, in the middle of a garbage
collection, while any lock is held. So giving back waits for nothing. It notes the block, and books it unless somebody
else is at the books, who then does it.
"""

from __future__ import annotations

import contextlib
import math
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.graph.arguments import expect, expect_whole
from pyflame_rt.graph.errors import BackendError, InputError, MemoryLimitError
from pyflame_rt.graph.locks import new_lock
from pyflame_rt.memory.config import PoolConfig, PoolStats

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Account", "Block", "MemoryPool", "global_pool", "set_global_pool_config"]

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class Account:
    """Bytes of a pool that one user has, a session's outputs for example.

    Attributes:
        used: bytes now.
        peak: bytes at most.

    Example:
        >>> pool, mine = MemoryPool(), Account()
        >>> array = pool.empty((1000,), np.float32, mine)
        >>> mine.used, pool.get_stats().current_usage
        (4096, 4096)
        >>> del array
        >>> mine.used
        0
    """

    __slots__ = ("peak", "used")

    def __init__(self) -> None:
        self.used = self.peak = 0


class _Storage(np.ndarray[Any, Any]):
    """Memory of the system that is lent to one user after the other."""

    pool: MemoryPool
    account: Account | None
    exact: bool  # of a size that nobody else will ask for


class _Loan(np.ndarray[Any, Any]):
    """Stands between an array (and every view of it) and its storage; when it dies, the storage is given back."""

    def __del__(self) -> None:
        storage = self.base
        if type(storage) is _Storage:  # views that NumPy makes of a loan are loans of no storage
            storage.pool._give_back(storage)


class Block:
    """Memory out of a pool, for who asks for bytes. It goes back with :meth:`MemoryPool.deallocate`, or when it dies.

    Example:
        >>> pool = MemoryPool()
        >>> block = pool.allocate(100)
        >>> block.array[:] = 7
        >>> len(block), block.address % 64, int(block.array.sum())
        (100, 0, 700)
    """

    __slots__ = ("_array", "pool")

    def __init__(self, pool: MemoryPool, array: Bytes) -> None:
        self.pool = pool
        self._array: Bytes | None = array

    @property
    def array(self) -> Bytes:
        """The bytes.

        Raises:
            InputError: The block was given back.
        """
        if self._array is None:
            raise InputError("the block was given back to its pool")
        return self._array

    @property
    def address(self) -> int:
        """Where it begins."""
        return int(self.array.ctypes.data)

    def __len__(self) -> int:
        return self.array.nbytes

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.array(self.array, dtype, copy=copy)

    def __repr__(self) -> str:
        return "Block(given back)" if self._array is None else f"Block({len(self)} bytes)"


class MemoryPool:
    """Memory for repeated use.

    Args:
        config: sizes and limits.

    Example:
        >>> pool = MemoryPool(PoolConfig(memory_limit=1 << 20))
        >>> first = pool.allocate(256)
        >>> pool.deallocate(first)
        >>> second = pool.allocate(250)
        >>> stats = pool.get_stats()
        >>> stats.hits, stats.misses, stats.hit_rate(), stats.current_usage, stats.peak_usage
        (1, 1, 0.5, 256, 256)
    """

    def __init__(self, config: PoolConfig | None = None) -> None:
        chosen = PoolConfig() if config is None else config
        expect(chosen, PoolConfig, "the config of a MemoryPool")
        self.config = chosen.checked()
        self._lock = new_lock() if self.config.thread_safe else None
        self._free: dict[int, list[_Storage]] = {}  # by size, those last that were used last
        self._returned: deque[tuple[int, _Storage | None, Account | None]] = deque()  # not booked yet
        self._used = self._peak = self._cached = 0
        self._hits = self._misses = self._releases = self._failures = 0
        self._begin()

    def _begin(self) -> None:
        size = self.config.initial_pool_size
        if size:
            self._keep(self._from_system(size))

    # ------------------------------------------------------------------ blocks

    def allocate(self, size: int) -> Block:
        """A block of so many bytes.

        Raises:
            MemoryLimitError: The pool may not hold so much.
        """
        return self.allocate_aligned(size, self.config.alignment)

    def allocate_aligned(self, size: int, alignment: int) -> Block:
        """A block whose address is a multiple of ``alignment``."""
        size, alignment = expect_whole(size, "size"), expect_whole(alignment, "alignment")
        if alignment < 1 or alignment & (alignment - 1):
            raise InputError(f"an alignment is a power of two, got {alignment}")
        if size < 0:
            raise InputError(f"a block cannot have {size} bytes")
        spare = alignment if alignment > self.config.alignment else 0
        loan = self.lend(size + spare)
        begin = -loan.ctypes.data % alignment
        return Block(self, loan[begin : begin + size])

    def deallocate(self, block: Block) -> None:
        """Give a block back; arrays that were made of it keep its memory until they die.

        Raises:
            InputError: It was given back before, or is another pool's.
        """
        if not isinstance(block, Block) or block.pool is not self:
            raise InputError("the block is not of this pool")
        _ = block.array
        block._array = None

    # ------------------------------------------------------------------ arrays

    def empty(
        self, shape: int | Sequence[int], dtype: Any = np.float32, account: Account | None = None
    ) -> np.ndarray[Any, Any]:
        """An array nobody else has, its contents undefined; its memory goes back when it and all its views have died.

        Example:
            >>> MemoryPool().empty((2, 3)).shape
            (2, 3)
        """
        sizes = tuple(map(int, shape)) if isinstance(shape, Iterable) else (expect_whole(shape, "shape"),)
        kind = np.dtype(dtype)
        if kind.hasobject:  # references to Python objects are Python's: borrowed bytes would be followed as such
            return np.empty(sizes, kind)
        return np.ndarray(sizes, kind, self.lend(math.prod(sizes) * kind.itemsize, account))

    def lend(self, size: int, account: Account | None = None, *, exact: bool = False) -> Bytes:
        """At least so many bytes, as an array that stands for the loan.

        Args:
            size: how many.
            account: whose they are.
            exact: do not round the size up to a class, and do not keep the block for later: for what lives long.
        """
        room = size + -size % self.config.alignment if exact else self.config.room(size)
        with self._books():
            self._book()
            kept = None if exact else self._free.get(room)
            if kept:
                storage = kept.pop()
                self._free[room] = self._free.pop(room)
                self._cached -= room
                self._hits += 1
            else:
                storage = self._from_system(room)
                self._misses += 1
            self._charge(room, account)
        storage.account, storage.exact = account, exact
        return storage.view(_Loan)

    def _charge(self, size: int, account: Account | None) -> None:
        self._used += size
        if self.config.track_stats and self._used > self._peak:
            self._peak = self._used
        if account is not None:
            account.used += size
            account.peak = max(account.peak, account.used)

    def charge(self, size: int, account: Account | None = None) -> None:
        """Count memory that comes from elsewhere, until :meth:`discharge`.

        Raises:
            MemoryLimitError: The pool may not hold so much.
        """
        with self._books():
            self._book()
            self._make_room(size)
            self._charge(size, account)

    def discharge(self, size: int, account: Account | None = None) -> None:
        """Take :meth:`charge` back; may be called from anywhere."""
        self._returned.append((size, None, account))
        self._try_to_book()

    # ------------------------------------------------------------------ books

    def _books(self) -> Any:
        return contextlib.nullcontext() if self._lock is None else self._lock

    def _give_back(self, storage: _Storage) -> None:
        """Called when a loan dies: wherever that is, nothing is waited for."""
        self._returned.append((storage.nbytes, storage, storage.account))
        self._try_to_book()

    def _try_to_book(self) -> None:
        if self._lock is None:
            self._book()
        elif self._lock.acquire(blocking=False):
            try:
                self._book()
            finally:
                self._lock.release()

    def _book(self) -> None:
        while self._returned:
            try:
                size, storage, account = self._returned.popleft()
            except IndexError:
                return
            self._used -= size
            if account is not None:
                account.used -= size
            if storage is not None:
                storage.account = None
                self._keep(storage)

    def _keep(self, storage: _Storage) -> None:
        """Keep a block for later, when there is room for it."""
        size, most = storage.nbytes, self._most_cached()
        kept = self._free.pop(size, [])
        self._free[size] = kept
        if storage.exact or size > most or len(kept) >= self.config.max_blocks_per_class:
            self._releases += 1
            return
        while self._cached + size > most:
            self._drop_oldest()
        kept.append(storage)
        self._cached += size

    def _drop_oldest(self) -> None:
        """Give the system a block of the size that was not used for longest."""
        oldest = next(size for size, kept in self._free.items() if kept)
        self._free[oldest].pop()
        self._cached -= oldest
        self._releases += 1

    def _most_cached(self) -> int:
        return max(self.config.max_cached_bytes, self.config.initial_pool_size)

    def _from_system(self, size: int) -> _Storage:
        self._make_room(size)
        spare = self.config.alignment
        try:
            whole = np.ndarray.__new__(np.ndarray, (size + spare,), np.uint8)
        except (MemoryError, ValueError) as error:
            self._failures += 1
            raise BackendError(f"{size} bytes cannot be allocated") from error
        begin = -whole.ctypes.data % spare
        storage = whole[begin : begin + size].view(_Storage)
        storage.pool, storage.account, storage.exact = self, None, False
        return storage

    def _make_room(self, size: int) -> None:
        most = self.config.most()
        if not most:
            return
        if self._used + self._cached + size > most:
            self._drop_cached()
        if self._used + size > most:
            self._failures += 1
            raise MemoryLimitError(
                f"{size} bytes more than {self._used} in use are not allowed: memory_limit is {most}"
            )

    def _drop_cached(self) -> None:
        self._releases += sum(map(len, self._free.values()))
        self._free.clear()
        self._cached = 0

    # ------------------------------------------------------------------ about it

    def get_stats(self) -> PoolStats:
        """What is in use, what is kept, and how often which helped."""
        with self._books():
            self._book()
            counted = self.config.track_stats
            return PoolStats(
                current_usage=self._used,
                peak_usage=self._peak,
                cached_bytes=self._cached,
                allocations=self._hits + self._misses if counted else 0,
                hits=self._hits if counted else 0,
                misses=self._misses if counted else 0,
                releases=self._releases if counted else 0,
                failures=self._failures,
            )

    @property
    def stats(self) -> PoolStats:
        """The same as :meth:`get_stats`."""
        return self.get_stats()

    def trim(self) -> int:
        """Give what is kept for later back to the system; how many bytes."""
        with self._books():
            self._book()
            size = self._cached
            self._drop_cached()
            return size

    def configure(self, config: PoolConfig) -> None:
        """Use other settings from now on; what is kept for later is given back to the system.

        Raises:
            InputError: The settings are not valid, or allow less than is in use.
        """
        config.checked()
        self.trim()
        with self._books():
            if config.most() and self._used > config.most():
                raise InputError(
                    f"{self._used} bytes are in use, which is more than memory_limit={config.most()} allows"
                )
            self.config = config
            self._begin()

    def __repr__(self) -> str:
        return f"MemoryPool({self._used} bytes in use, {self._cached} kept)"


_GLOBAL = MemoryPool()


def global_pool() -> MemoryPool:
    """The pool that the engine draws from: its arenas, packed weights, and the larger outputs of runs.

    Example:
        >>> global_pool() is global_pool()
        True
    """
    return _GLOBAL


def set_global_pool_config(config: PoolConfig) -> None:
    """Change the settings of :func:`global_pool`: a ``memory_limit`` is one of the whole process then.

    Raises:
        InputError: The settings are not valid, or allow less than is in use.
    """
    expect(config, PoolConfig, "the config of the pool")
    _GLOBAL.configure(config)
