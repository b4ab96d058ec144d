import os
import threading
import time
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

import pyflame_rt
from pyflame_rt.cache import BinaryCache, CacheConfig, CacheKey, binary, global_cache, set_global_cache_config, store
from pyflame_rt.graph import Graph, Tensor
from pyflame_rt.graph.errors import InputError, ModelNotFoundError


def model(name="g", size=1000, factor=2.0):
    graph = Graph(name)
    graph.add_input("x", [size])
    graph.add_output("y", [size])
    graph.initializers["w"] = Tensor(np.full(size, factor, np.float32))
    graph.add_node("n", "Mul", ["x", "w"], ["y"])
    return graph


@pytest.fixture
def cache(tmp_path):
    return BinaryCache(CacheConfig(cache_dir=tmp_path))


@pytest.fixture
def settings_restored():
    yield
    binary._global.clear()
    store.set_default_folder(None)


def test_the_documented_program(tmp_path, settings_restored):
    config = pyflame_rt.cache.CacheConfig()
    config.cache_dir = Path(tmp_path)
    config.max_size_bytes = 1024 * 1024 * 1024
    config.use_mmap = True
    cache = pyflame_rt.cache.BinaryCache(config)
    assert (cache.entry_count(), cache.total_size(), cache.list_entries()) == (0, 0, [])
    cache.put("one", model())
    assert [cache.get_info(key).is_valid for key in cache.list_entries()] == [True]
    assert cache.total_size() == cache.get_info("one").size_bytes > 4000
    cache.clear()
    assert cache.entry_count() == 0
    pyflame_rt.cache.set_global_cache_config(config)
    assert global_cache().config is config


@pytest.mark.parametrize("mapped", [True, False])
def test_what_was_put_comes_back(tmp_path, mapped):
    cache = BinaryCache(CacheConfig(cache_dir=tmp_path, use_mmap=mapped))
    assert cache.get("k") is None
    assert not cache.has("k")
    cache.put("k", model())
    found = cache.get("k")
    assert found.fingerprint(weights=True) == model().fingerprint(weights=True)
    cache.put("k", model(factor=3.0))
    session = pyflame_rt.InferenceSession(cache.get("k"))
    assert session.run(None, {"x": np.ones(1000, np.float32)})[0][0] == 3


def test_keys_follow_file_and_options(tmp_path):
    path = tmp_path / "m.pfm"
    pyflame_rt.save_model(model(), path)
    plain = CacheKey.compute(path)
    assert CacheKey.compute(path) == plain
    options = pyflame_rt.SessionOptions()
    assert CacheKey.compute(path, options) == CacheKey.compute(path, pyflame_rt.SessionOptions()) != plain
    options.num_threads = 3
    assert CacheKey.compute(path, options) != CacheKey.compute(path, pyflame_rt.SessionOptions())
    pyflame_rt.save_model(model(factor=4.0), path)
    assert CacheKey.compute(path) != plain
    with pytest.raises(ModelNotFoundError):
        CacheKey.compute(tmp_path / "none.pfm")


def test_get_or_compile_makes_once(cache, tmp_path):
    path, calls = tmp_path / "m.pfm", []
    pyflame_rt.save_model(model(), path)

    def make():
        calls.append(1)
        return model("made")

    assert [cache.get_or_compile(path, None, make).name for _ in range(3)] == ["made"] * 3
    assert len(calls) == 1
    assert cache.get_info(cache.list_entries()[0]).model_path == str(path)


def test_warmup_reads_every_model(cache, tmp_path):
    paths = [tmp_path / f"{name}.pfm" for name in "abc"]
    for path in paths:
        pyflame_rt.save_model(model(path.stem), path)
    keys = cache.warmup(paths)
    assert [cache.get(key).name for key in keys] == ["a", "b", "c"]


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("damage", ["shorter", "other", "no file", "header", "same size"])
def test_damaged_entries_are_not_used(cache, damage, compress):
    cache.config.compress = compress
    cache.put("k", model())
    info = cache.get_info("k")
    data = info.cache_path.read_bytes()
    match damage:
        case "shorter":
            info.cache_path.write_bytes(data[:-100])
        case "other":
            info.cache_path.write_bytes(b"x" * len(data))
        case "same size":
            info.cache_path.write_bytes(data[: len(data) // 2] + bytes(len(data) - len(data) // 2))
        case "no file":
            info.cache_path.unlink()
        case "header":
            info.cache_path.with_suffix(".json").write_text("[")
    assert cache.get("k") is None
    assert not cache.get_info("k").is_valid
    cache.put("k", model())
    assert cache.has("k")


def test_compressed_entries_take_less_room(tmp_path):
    plain, small = (BinaryCache(CacheConfig(cache_dir=tmp_path / str(c), compress=c)) for c in (False, True))
    for cache in (plain, small):
        cache.put("k", model(size=100_000))
        assert cache.get("k").fingerprint(weights=True) == model(size=100_000).fingerprint(weights=True)
    assert small.total_size() < plain.total_size() / 20
    session = pyflame_rt.InferenceSession(small.get("k"))
    assert session.run(None, {"x": np.ones(100_000, np.float32)})[0][-1] == 2


def test_either_kind_of_entry_is_read_and_replaced(tmp_path):
    cache = BinaryCache(CacheConfig(cache_dir=tmp_path))
    for number, compress in enumerate([False, True, False]):
        cache.config.compress = compress
        cache.put("k", model(factor=float(number)))
        for reader in (True, False):
            other = BinaryCache(CacheConfig(cache_dir=tmp_path, compress=reader))
            assert other.get("k").initializers["w"].raw()[0] == number
        assert (cache.entry_count(), len(list(cache.folder.iterdir()))) == (1, 2)
    assert cache.remove("k")
    assert not list(cache.folder.iterdir())


def test_entries_of_another_version_are_not_used(tmp_path):
    first, second = (BinaryCache(CacheConfig(cache_dir=tmp_path, version=v)) for v in ("app-1", "app-2"))
    first.put("k", model())
    assert first.get_info("k").version == "app-1"
    assert first.get("k") is not None
    assert second.get("k") is None
    assert not second.get_info("k").is_valid
    second.put("k", model(factor=3.0))
    assert first.get("k") is None
    assert BinaryCache(CacheConfig(cache_dir=tmp_path)).get("k") is None
    assert CacheConfig().version == pyflame_rt.__version__


def test_locks_are_taken_where_threads_share_the_cache(tmp_path):
    cache, alone = (BinaryCache(CacheConfig(cache_dir=tmp_path, thread_safe=safe)) for safe in (True, False))
    waited = []
    for held, shared in ((cache, True), (alone, False)):
        with held._lock:
            worker = threading.Thread(target=held.put, args=("k", model()), daemon=True)
            worker.start()
            worker.join(0.5 if shared else 120)
            waited.append(worker.is_alive())
        worker.join(120)
        assert held.has("k")
    assert waited == [True, False]


def test_limits_drop_what_was_used_longest_ago(tmp_path):
    cache = BinaryCache(CacheConfig(cache_dir=tmp_path, max_entries=2))
    now = time.time_ns()
    for age, key in enumerate("cba"):
        cache.put(key, model())
        if key != "a":
            os.utime(cache.get_info(key).cache_path, ns=(now - (9 - age) * 10**9, now - (9 - age) * 10**9))
            cache.config.max_entries = 9
    cache.config.max_entries = 2
    cache.get("c")
    cache.put("d", model())
    assert set(cache.list_entries()) == {"c", "d"}
    assert "d" in cache.list_entries()
    small = BinaryCache(CacheConfig(cache_dir=tmp_path, max_size_bytes=6000))
    small.put("e", model())
    assert small.list_entries() == ["e"]


def test_entries_grow_too_old(tmp_path):
    cache = BinaryCache(CacheConfig(cache_dir=tmp_path, ttl=60))
    cache.put("k", model())
    assert cache.has("k")
    past = time.time_ns() - 120 * 10**9
    os.utime(cache.get_info("k").cache_path, ns=(past, past))
    assert not cache.has("k")


@pytest.mark.parametrize("key", ["", "../x", "a/b", "a" * 200, "a.b"])
def test_keys_that_are_no_file_names_are_refused(cache, key):
    with pytest.raises(InputError, match="key"):
        cache.put(key, model())


def test_an_entry_nobody_made(cache):
    with pytest.raises(InputError, match="no entry"):
        cache.get_info("nothing")
    assert not cache.remove("nothing")


def test_many_threads(cache):
    faults = []

    def work(number):
        for _ in range(5):
            cache.put("k", model(factor=number))
            found = cache.get("k")
            if found is not None and found.initializers["w"].raw()[0] not in range(4):
                faults.append(number)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults
    assert cache.has("k")


def test_sessions_use_the_global_folder(tmp_path, monkeypatch, settings_restored):
    monkeypatch.delenv("PYFLAME_CACHE_DIR", raising=False)
    set_global_cache_config(CacheConfig(cache_dir=tmp_path))
    assert store.default_folder() == tmp_path
    monkeypatch.setenv("PYFLAME_CACHE_DIR", str(tmp_path / "other"))
    assert store.default_folder() == tmp_path / "other"


def test_the_newest_entry_keeps_to_the_limits_too(tmp_path):
    cache = BinaryCache(CacheConfig(cache_dir=tmp_path, max_size_bytes=2000))
    assert cache.put("small", model(size=100))
    assert not cache.put("large", model(size=10_000))
    assert cache.total_size() <= 2000
    assert cache.get("large") is None
    assert cache.get_or_compile(__file__, None, lambda: model(size=10_000)).initializers["w"].num_elements == 10_000
    assert cache.total_size() <= 2000


def test_time_to_live_is_seconds_or_a_timedelta(tmp_path):
    for ttl in (60.0, timedelta(minutes=1)):
        cache = BinaryCache(CacheConfig(cache_dir=tmp_path, ttl=ttl))
        cache.put("k", model())
        assert cache.has("k")
        path = cache.get_info("k").cache_path
        os.utime(path, (time.time() - 61, time.time() - 61))
        assert not cache.has("k")
        cache.put("other", model())
        assert cache.list_entries() == ["other"]  # what is too old goes when there is something new
        assert cache.get_stats().evictions == 1


def test_statistics(cache):
    assert (cache.get_stats().hits, cache.get_stats().hit_rate()) == (0, 0.0)
    cache.get("k")
    cache.put("k", model())
    cache.get("k")
    cache.get("k")
    cache.has("k")
    assert cache.get_info("k").is_valid
    stats = cache.get_stats()
    assert (stats.hits, stats.misses, stats.evictions, stats.entries) == (2, 1, 0, 1)
    assert stats.hit_rate() == 2 / 3
    assert stats.total_size == cache.total_size()
