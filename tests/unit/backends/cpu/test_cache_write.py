"""TensorScatter: new tokens in a cache, copied or in place."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pyflame_rt
from pyflame_rt import DType, Graph


def graph(dtype: str, heads: int, width: int, *, turned: bool) -> Graph:
    """The new tokens may come with heads and places turned, as products give them; the cache is read afterwards."""
    made, kind = Graph("cache"), DType.of(dtype)
    made.add_input("cache", ["b", heads, "room", width], kind)
    made.add_input("new", ["b", "n", heads, width] if turned else ["b", heads, "n", width], kind)
    made.add_input("starts", ["b"], DType.Int64)
    if turned:
        made.add_node("turn", "Transpose", ["new"], ["update"], attrs={"perm": [0, 2, 1, 3]})
    made.add_node("write", "TensorScatter", ["cache", "update" if turned else "new", "starts"], ["written"])
    made.add_node("read", "ReduceMax", ["written"], ["most"])
    made.add_output("written", ["b", heads, "room", width], kind)
    made.add_output("most", [1, 1, 1, 1], kind)
    return made


def wanted(cache, new, starts):
    out = cache.copy()
    for b, start in enumerate(starts):
        out[b, :, start : start + new.shape[2]] = new[b]
    return out


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from(["float32", "float16", "int8", "int64"]),
    st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 20), st.integers(1, 9), st.integers(1, 20)),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_new_tokens_are_written_where_they_belong(dtype, sizes, turned, random):
    batch, heads, room, width, new = sizes
    new = min(new, room)
    rng = np.random.default_rng(random.getrandbits(32))
    cache = rng.integers(-100, 100, (batch, heads, room, width)).astype(dtype)
    fresh = rng.integers(-100, 100, (batch, heads, new, width)).astype(dtype)
    starts = rng.integers(0, room - new + 1, batch)
    session = pyflame_rt.InferenceSession(graph(dtype, heads, width, turned=turned))
    given = np.ascontiguousarray(fresh.swapaxes(1, 2)) if turned else fresh
    before = cache.copy()
    written, most = session.run(None, {"cache": cache, "new": given, "starts": starts})
    np.testing.assert_array_equal(written, wanted(before, fresh, starts))
    np.testing.assert_array_equal(cache, before)
    assert most.item() == written.max()


def test_a_cache_that_is_handed_over_is_written_in_place():
    session = pyflame_rt.InferenceSession(graph("float32", 2, 4, turned=True))
    engine = session._compile(overrides=False).executable
    engine.donate([("cache", 0)])
    rng = np.random.default_rng(0)
    for room in (8, 16, 24, 32):
        cache = rng.standard_normal((3, 2, room, 4)).astype(np.float32)
        new = rng.standard_normal((3, 2, 2, 4)).astype(np.float32)
        feed = {"cache": cache, "new": new.swapaxes(1, 2).copy(), "starts": np.array([0, 3, room - 2])}
        right = wanted(cache, new, feed["starts"])
        np.testing.assert_array_equal(session.run(None, feed)[0], right)
        assert engine.donated == {0: engine.fast_path.order.index("cache")}
        results = engine.fast_path(feed, None, {0: cache})
        assert results[0] is cache
        np.testing.assert_array_equal(cache, right)
        assert results[1].item() == right.max()


def test_a_cache_that_is_read_besides_is_not_written_in_place():
    made = graph("float32", 2, 4, turned=False)
    made.add_node("later", "Sub", ["written", "cache"], ["change"])
    made.add_output("change", ["b", 2, "room", 4])
    session = pyflame_rt.InferenceSession(made)
    engine = session._compile(overrides=False).executable
    engine.donate([("cache", 0)])
    feed = {"cache": np.ones((1, 2, 8, 4), np.float32), "new": np.zeros((1, 2, 1, 4), np.float32)}
    change = session.run(["change"], feed | {"starts": np.array([5])})[0]
    session.run(None, feed | {"starts": np.array([5])})
    assert engine.donated == {}
    assert change.sum() == -8


@pytest.mark.parametrize("start", [-1, 7, 2**40])
def test_starts_out_of_range_are_named(start):
    session = pyflame_rt.InferenceSession(graph("float32", 2, 4, turned=False))
    feed = {"cache": np.ones((2, 2, 8, 4), np.float32), "new": np.zeros((2, 2, 2, 4), np.float32)}
    with pytest.raises(pyflame_rt.InputError, match=f"write_indices is {start} at"):
        session.run(None, feed | {"starts": np.array([0, start])})
