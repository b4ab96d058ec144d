"""The engine draws from the pool: its statistics, a session's and the limit speak of the same bytes."""

import gc
import json
import subprocess
import sys

import numpy as np
import pytest

import pyflame_rt
from pyflame_rt import Graph, InferenceSession, SessionOptions
from pyflame_rt.memory import global_pool


def network(width: int = 256) -> Graph:
    """Two products: weights to pack, values between, a result."""
    graph = Graph("network")
    rng = np.random.default_rng(0)
    graph.add_input("x", ["N", width])
    for name in ("a", "b"):
        graph.add_initializer(name, rng.standard_normal((width, width)).astype(np.float32) / 16)
    graph.add_node("first", "MatMul", ["x", "a"], ["h"])
    graph.add_node("act", "Softmax", ["h"], ["s"])
    graph.add_node("second", "MatMul", ["s", "b"], ["y"])
    graph.add_output("y", ["N", width])
    return graph


def rows(count: int, width: int = 256) -> dict[str, np.ndarray]:
    return {"x": np.ones((count, width), np.float32)}


def test_a_process_with_one_session_has_its_bytes_and_no_others():
    script = f"""
import gc, json, sys
sys.path.insert(0, {str(__file__).rsplit("/tests/", 1)[0]!r})
from pyflame_rt import InferenceSession
from pyflame_rt.memory import global_pool
from tests.unit.memory.test_engine import network, rows
session = InferenceSession(network())
result = session.run(None, rows(1000))
gc.collect()
with_result = session.memory_stats(), global_pool().get_stats().current_usage
del result
gc.collect()
without = session.memory_stats(), global_pool().get_stats().current_usage
session.close()
gc.collect()
print(json.dumps([with_result, without, global_pool().get_stats().current_usage]))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=250)
    (stats, used), (later, less), closed = json.loads(done.stdout.splitlines()[-1])
    assert stats["output_bytes"] >= 1000 * 256 * 4
    assert stats["arenas"] > 0
    assert stats["packed_bytes"] >= 2 * 256 * 256 * 4
    assert used == stats["arenas"] + stats["output_bytes"] + stats["packed_bytes"]
    assert later["output_bytes"] == 0
    assert less == later["arenas"] + later["packed_bytes"] == used - stats["output_bytes"]
    assert closed <= stats["packed_bytes"]


def test_steady_state_takes_nothing_from_the_system():
    session = InferenceSession(network())
    for _ in range(4):
        session.run(None, rows(600))
    before = global_pool().get_stats()
    for _ in range(50):
        session.run(None, rows(600))
    after = global_pool().get_stats()
    assert after.system_allocations == before.system_allocations
    assert after.hits >= before.hits + 50
    assert after.current_usage == before.current_usage


def test_results_that_are_kept_are_counted_and_given_back():
    session = InferenceSession(network())
    session.run(None, rows(600))
    gc.collect()
    base = session.memory_stats()["output_bytes"]
    kept = [session.run(None, rows(600))[0] for _ in range(3)]
    assert session.memory_stats()["output_bytes"] - base == 3 * 600 * 256 * 4 + 3 * (655360 - 614400)
    part = kept[1][5:6]
    kept.clear()
    assert session.memory_stats()["output_bytes"] - base == 655360
    del part
    assert session.memory_stats()["output_bytes"] == base


def test_many_shapes_end_with_the_memory_of_few():
    session = InferenceSession(network(64), SessionOptions(plan_cache_size=4))
    for count in range(1, 41):
        session.run(None, rows(count, 64))
    gc.collect()
    early = global_pool().get_stats()
    for _ in range(2):
        for count in range(1, 41):
            session.run(None, rows(count, 64))
    gc.collect()
    late = global_pool().get_stats()
    assert late.current_usage <= 1.05 * early.current_usage
    assert session.memory_stats()["plans"] <= 4


def test_a_limit_counts_what_the_pool_counts():
    free = InferenceSession(network())
    free.run(None, rows(600))
    gc.collect()
    held = free.memory_stats()
    kept = free.run(None, rows(600))
    need = held["arenas"] + held["packed_bytes"] + free.memory_stats()["output_bytes"] - held["output_bytes"]
    del kept
    limited = InferenceSession(network(), SessionOptions(memory_limit=int(need * 1.02)))
    assert limited.run(None, rows(600))[0].shape == (600, 256)
    tight = InferenceSession(network(), SessionOptions(memory_limit=int(need * 0.98)))
    with pytest.raises(pyflame_rt.MemoryLimitError, match="memory_limit allows"):
        tight.run(None, rows(600))
