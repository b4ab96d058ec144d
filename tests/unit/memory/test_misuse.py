"""Sizes, places and settings of another kind than memory and caches take are refused, and change nothing."""

from datetime import timedelta

import numpy as np
import pytest

from pyflame_rt.cache import BinaryCache, CacheConfig, LazyTensor, MappedFile, MMapAdvice
from pyflame_rt.graph import DType
from pyflame_rt.graph.errors import InputError
from pyflame_rt.memory import Arena, MemoryPool, ScopedArena, set_global_pool_config

NAN = float("nan")


@pytest.mark.parametrize("size", [1.5, "a", None, [1]])
def test_sizes_are_whole(size):
    pool, arena = MemoryPool(), Arena(1024)
    for use in (
        pool.allocate,
        lambda n: pool.allocate_aligned(n, 64),
        lambda n: pool.allocate_aligned(64, n),
        Arena,
        arena.allocate,
        ScopedArena(arena).allocate,
    ):
        with pytest.raises(TypeError, match="must be a whole number"):
            use(size)
    assert (pool.get_stats().current_usage, arena.used()) == (0, 0)


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.uint8])
def test_sizes_of_numpy_are_sizes(kind):
    pool = MemoryPool()
    block, aligned = pool.allocate(kind(100)), pool.allocate_aligned(kind(100), kind(128))
    assert (len(block), len(aligned), pool.empty(kind(5)).shape, pool.empty((kind(2), 3)).shape) == (
        100, 100, (5,), (2, 3),
    )  # fmt: skip
    arena = Arena(kind(200))
    assert (arena.allocate(kind(10)).nbytes, arena.empty(kind(4)).shape, arena.used()) == (10, (4,), 128)


def test_sizes_that_overflow_are_too_large():
    with pytest.raises(MemoryError):
        Arena(1024).empty((1 << 33, 1 << 33))


def test_arenas_and_settings_are_of_their_kind():
    for use in (lambda: ScopedArena(None), lambda: set_global_pool_config(None), lambda: BinaryCache({})):
        with pytest.raises(TypeError, match="must be of type"):
            use()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("max_size_bytes", v) for v in (-1, 1.5, "a", None)),
        *(("max_entries", v) for v in (-1, 1.5, "a", None)),
        *(("ttl", v) for v in (-1, NAN, "a", None, timedelta(seconds=-1))),
        *(("cache_dir", v) for v in (None, 5, "\0")),
    ],
)
def test_caches_check_their_settings(name, value, tmp_path):
    config = CacheConfig(cache_dir=tmp_path)
    setattr(config, name, value)
    with pytest.raises(InputError, match=name):
        BinaryCache(config)


def test_files_are_asked_for_what_there_is(tmp_path):
    (tmp_path / "bytes").write_bytes(bytes(64))
    file = MappedFile.open(tmp_path / "bytes")
    for advice in ("Sequential", None, 3):
        with pytest.raises(TypeError, match="advice must be of type MMapAdvice"):
            file.advise(advice)
    assert file.advise(MMapAdvice.Sequential)
    for place, dtype in ((0, "float32"), (0, None), (1.5, DType.Float32)):
        with pytest.raises(TypeError, match="must be"):
            LazyTensor(file, place, (4,), dtype)
    with pytest.raises(TypeError, match="must be of type MappedFile"):
        LazyTensor(tmp_path / "bytes", 0, (4,), DType.Float32)
