"""Pools and arenas on their own."""

import gc
import random
import threading

import numpy as np
import pytest

from pyflame_rt import InputError, MemoryLimitError
from pyflame_rt.memory import (
    Account,
    Arena,
    BlockPool,
    BufferCache,
    MemoryPool,
    PoolConfig,
    ScopedArena,
    global_pool,
    set_global_pool_config,
)


def test_blocks_are_used_again():
    pool = MemoryPool(PoolConfig(size_classes=[64, 128, 256, 512, 1024]))
    block, aligned = pool.allocate(256), pool.allocate_aligned(1024, 64)
    assert pool.get_stats().current_usage == 1280
    address = block.address
    pool.deallocate(block)
    pool.deallocate(aligned)
    assert (pool.stats.current_usage, pool.stats.cached_bytes) == (0, 1280)
    again = pool.allocate(200)
    assert again.address == address
    assert len(again) == 200
    stats = pool.get_stats()
    assert (stats.hits, stats.misses, stats.hit_rate(), stats.peak_usage) == (1, 2, 1 / 3, 1280)


def test_an_unused_pool():
    stats = MemoryPool().get_stats()
    assert (stats.hit_rate(), stats.peak_usage, stats.current_usage, stats.system_allocations) == (0.0, 0, 0, 0)


@pytest.mark.parametrize("alignment", [1, 8, 64, 4096])
def test_alignment(alignment):
    pool = MemoryPool(PoolConfig(alignment=alignment))
    assert all(pool.allocate(size).address % alignment == 0 for size in (1, 100, 5000))
    assert pool.allocate_aligned(10, 8192).address % 8192 == 0
    with pytest.raises(InputError, match="power of two"):
        pool.allocate_aligned(10, 3)


def test_memory_goes_back_when_the_last_view_dies():
    pool = MemoryPool()
    array = pool.empty((100, 100))
    view = array[10:20].T
    array[...] = 1
    del array
    assert pool.get_stats().current_usage > 0
    assert view.sum() == 1000
    del view
    assert pool.get_stats().current_usage == 0
    assert pool.empty((0, 3)).shape == (0, 3)
    assert pool.empty(7, np.int8).shape == (7,)


def test_blocks_that_were_given_back():
    pool = MemoryPool()
    block = pool.allocate(10)
    kept = block.array
    pool.deallocate(block)
    kept[:] = 3  # still this view's own
    assert pool.get_stats().current_usage > 0
    with pytest.raises(InputError, match="given back"):
        _ = block.array
    with pytest.raises(InputError, match="given back"):
        pool.deallocate(block)
    with pytest.raises(InputError, match="not of this pool"):
        pool.deallocate(MemoryPool().allocate(1))
    del kept
    assert pool.get_stats().current_usage == 0
    assert np.asarray(pool.allocate(4)).shape == (4,)


def test_the_limit_holds():
    pool = MemoryPool(PoolConfig(memory_limit=10_000))
    first = pool.allocate(4096)
    pool.deallocate(first)
    assert pool.get_stats().cached_bytes == 4096
    large = pool.allocate(8192)  # what is kept makes room
    assert pool.get_stats().reserved_bytes == 8192
    with pytest.raises(MemoryLimitError, match="memory_limit is 10000"):
        pool.allocate(2048)
    assert pool.get_stats().failures == 1
    pool.deallocate(large)
    assert len(pool.allocate(2048)) == 2048


def test_a_pool_that_does_not_grow():
    pool = MemoryPool(PoolConfig(initial_pool_size=1 << 20, auto_grow=False))
    assert pool.get_stats().cached_bytes == 1 << 20
    block = pool.allocate(1 << 20)
    assert (pool.get_stats().hits, pool.get_stats().misses) == (1, 0)
    with pytest.raises(MemoryLimitError):
        pool.allocate(1)
    pool.deallocate(block)


def test_what_is_kept_is_limited():
    pool = MemoryPool(PoolConfig(max_blocks_per_class=2, max_cached_bytes=10_000))
    blocks = [pool.allocate(1024) for _ in range(5)] + [pool.allocate(16384)]
    for block in blocks:
        pool.deallocate(block)
    stats = pool.get_stats()
    assert (stats.cached_bytes, stats.releases, stats.current_usage) == (2048, 4, 0)
    assert pool.trim() == 2048
    assert pool.get_stats().reserved_bytes == 0


def test_what_was_not_used_for_long_makes_room():
    """A program that was done with large blocks took every later one from the system."""
    pool = MemoryPool(PoolConfig(max_cached_bytes=10_000))
    pool.deallocate(pool.allocate(8192))
    pool.deallocate(pool.allocate(1024))
    for _ in range(3):
        pool.deallocate(pool.allocate(1024))
        pool.deallocate(pool.allocate(4096))
    stats = pool.get_stats()
    assert (stats.misses, stats.cached_bytes, stats.releases) == (3, 1024 + 4096, 1)


def test_accounts():
    pool, mine, other = MemoryPool(), Account(), Account()
    arrays = [pool.empty(1024, np.uint8, account) for account in (mine, mine, other)]
    pool.charge(100, other)
    assert (mine.used, other.used, pool.get_stats().current_usage) == (2048, 1124, 3172)
    arrays.clear()
    pool.discharge(100, other)
    assert (mine.used, other.used, mine.peak, pool.get_stats().current_usage) == (0, 0, 2048, 0)


def test_settings_are_checked():
    bad = PoolConfig(memory_limit=-1, alignment=3, size_classes=[0], auto_grow=False)
    assert len(bad.validate()) == 4
    with pytest.raises(InputError, match="alignment must be a power of two, got 3"):
        MemoryPool(bad)
    quiet = MemoryPool(PoolConfig(track_stats=False, thread_safe=False))
    quiet.deallocate(quiet.allocate(1000))
    stats = quiet.get_stats()
    assert (stats.allocations, stats.peak_usage, stats.cached_bytes, stats.current_usage) == (0, 0, 1024, 0)


def test_the_global_pool_takes_settings():
    pool = global_pool()
    before = pool.config
    try:
        used = pool.get_stats().current_usage
        set_global_pool_config(PoolConfig(memory_limit=used + (1 << 20)))
        assert global_pool() is pool
        with pytest.raises(MemoryLimitError):
            pool.allocate(2 << 20)
        block = pool.allocate(1 << 19)
        with pytest.raises(InputError, match="in use, which is more than memory_limit=1 allows"):
            set_global_pool_config(PoolConfig(memory_limit=1))
        pool.deallocate(block)
    finally:
        set_global_pool_config(before)


def test_threads_that_take_and_drop_in_each_others_places():
    """Blocks die in any thread, also in garbage collections: the books are right, and memory is never shared."""
    pool = MemoryPool()
    shared: list = [None] * 50
    problems: list = []

    def work(seed):
        rng = random.Random(seed)
        for step in range(2000):
            size = rng.choice([10, 100, 1000, 5000])
            array = pool.empty(size, np.int64)
            array[:] = seed * 1_000_000 + step
            if rng.random() < 0.1:
                cycle: list = [array]
                cycle.append(cycle)
                del cycle
            old = shared[at := rng.randrange(50)]
            if old is not None and old.min() != old.max():
                problems.append(old)
            shared[at] = array
            del old, array

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems
    shared.clear()
    gc.collect()
    stats = pool.get_stats()
    assert stats.current_usage == 0
    assert stats.allocations == 8000
    assert stats.hit_rate() > 0.5


def test_arenas():
    arena = Arena(1024)
    parts = [arena.allocate(size) for size in (100, 200, 300)]
    assert [part.nbytes for part in parts] == [100, 200, 300]
    assert all(part.ctypes.data % 64 == 0 for part in parts)
    assert arena.used() >= 600
    parts[0][:] = 1
    assert not np.shares_memory(parts[0], parts[1])
    with pytest.raises(MemoryLimitError, match="do not fit"):
        arena.allocate(1000)
    arena.reset()
    assert (arena.used(), arena.remaining(), arena.capacity()) == (0, 1024, 1024)
    whole = arena.allocate(1024)
    assert arena.remaining() == 0
    assert np.shares_memory(whole, parts[0])
    with pytest.raises(InputError):
        Arena(0)


def test_scopes_restore_an_arena():
    arena = Arena(4096)
    arena.allocate(100)
    before = arena.used()
    with ScopedArena(arena) as scope:
        array = scope.empty((4, 8))
        array[...] = 2
        with ScopedArena(arena) as inner:
            inner.allocate(512)
        assert arena.used() == before + 128
    assert arena.used() == before
    with pytest.raises(MemoryLimitError), ScopedArena(arena) as scope:
        scope.empty((9999, scope.allocate(1).nbytes))
    assert arena.used() == before
    with pytest.raises(InputError, match="cannot go back"):
        arena.reset(10_000)


def test_pools_of_one_kind():
    blocks = BlockPool(1000, 2)
    first = blocks.allocate()
    second = blocks.allocate()
    assert (len(first), len(second)) == (1000, 1000)
    with pytest.raises(MemoryLimitError):
        blocks.allocate()
    blocks.deallocate(first)
    assert blocks.allocate() is not None
    with pytest.raises(InputError):
        BlockPool(0, 1)
    cache = BufferCache(MemoryPool())
    array = cache.get([3, 4], np.int32)
    cache.put(array)
    assert cache.get((3, 4), np.float32) is not array
    assert cache.get((3, 4), "int32") is array
    with pytest.raises(InputError, match="whole and writeable"):
        cache.put(array[:, ::2])
    cache.clear()
