"""Indices out of range are refused on every library before any memory is touched."""

import numpy as np
import pytest

from emberharmony import EmberTensor, library

FAR = [2**31, 2**40, -(2**40), 100_000, 3, -4]
READS = {
    "take": lambda lib, x, i: lib.take(x, i, 1),
    "take flat": lambda lib, x, i: lib.take(lib.reshape(x[0], (3,)), i),
    "gather": lambda lib, x, i: lib.gather(x, i, axis=-1),
    "take_along_axis": lambda lib, x, i: lib.take_along_axis(x, lib.reshape(i, (1, 1)), 1),
    "gather_nd": lambda lib, x, i: lib.gather_nd(x, lib.stack([lib.zeros((1,), "int64"), i], -1)),
}
WRITES = {
    "index_put": lambda lib, x, i, mode: lib.index_put(lib.transpose(x), i, lib.ones((1, 2)), mode),
    "scatter_nd": lambda lib, x, i, mode: lib.scatter_nd(
        x, lib.stack([lib.zeros((1,), "int64"), i], -1), lib.ones((1,)), mode
    ),
    "put_along_axis": lambda lib, x, i, mode: lib.put_along_axis(x, lib.reshape(i, (1, 1)), lib.ones((1, 1)), 1, mode),
}


@pytest.mark.parametrize("index", FAR)
@pytest.mark.parametrize("read", READS)
def test_reads_are_refused(read, index, lib):
    with pytest.raises(IndexError, match=f"index {index} is out of range for an axis of size 3"):
        READS[read](lib, lib.zeros((2, 3)), lib.as_array([index]))


@pytest.mark.parametrize("index", FAR)
@pytest.mark.parametrize("mode", [None, "add", "mul", "max", "min"])
@pytest.mark.parametrize("write", WRITES)
def test_writes_are_refused(write, mode, index, lib):
    with pytest.raises(IndexError, match=f"index {index} is out of range for an axis of size 3"):
        WRITES[write](lib, lib.zeros((2, 3)), lib.as_array([index]), mode)


def test_hundreds_of_refused_writes_leave_memory_alone(lib):
    x = lib.zeros((4,))
    for n in range(300):
        with pytest.raises(IndexError):
            lib.index_put(x, lib.as_array([4 + n * 97]), lib.ones((1,)))
    assert lib.to_numpy(x).tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("index", [-3, -1, 2])
def test_negative_indices_count_from_the_end(index, lib):
    x = np.arange(6.0, dtype=np.float32).reshape(2, 3)
    for read in READS.values():
        got = lib.to_numpy(read(lib, lib.from_numpy(x), lib.as_array([index])))
        assert got.ravel()[0] == x[0, index]
    for write in WRITES.values():
        got = lib.to_numpy(write(lib, lib.from_numpy(x), lib.as_array([index]), "add"))
        assert (got if got.shape == x.shape else got.T)[0, index] == x[0, index] + 1


def test_an_empty_axis_has_no_index(lib):
    for index in (0, -1):
        with pytest.raises(IndexError, match="size 0"):
            lib.take(lib.zeros((0,)), lib.as_array([index]))
    assert tuple(lib.take(lib.zeros((0,)), lib.zeros((0,), "int64")).shape) == (0,)


def test_indices_are_integers(lib):
    x = lib.zeros((3,))
    for op, rest in (("take", ()), ("index_put", (x,))):
        with pytest.raises(TypeError, match="integers"):
            getattr(lib, op)(x, lib.zeros((3,)), *rest)


def test_index_tuples_longer_than_the_rank_are_refused(lib):
    with pytest.raises(ValueError, match="index tuples of 2"):
        lib.gather_nd(lib.zeros((3,)), lib.zeros((1, 2), "int64"))
    with pytest.raises(ValueError, match="index tuples of 2"):
        lib.scatter_nd(lib.zeros((3,)), lib.zeros((1, 2), "int64"), lib.zeros((1,)))


def test_bincount_takes_no_negative_numbers(lib):
    with pytest.raises(ValueError, match="-2"):
        lib.bincount(lib.as_array([1, -2]))


@pytest.mark.parametrize("key", [3, -4, (0, 5), (slice(None), 7), np.array([9]), ([0], [8]), (..., 6)])
def test_tensors_are_indexed_safely(key, lib):
    x = EmberTensor(lib.zeros((2, 3) if isinstance(key, tuple) else (3,)))
    with pytest.raises(IndexError, match="out of range"):
        x[key]


@pytest.mark.parametrize(
    "key", [1, -1, (0, 2), (slice(None), -1), np.array([1, -2]), ([0, 1], [2, -1]), (..., 1), None, slice(1, 9), ()]
)
def test_tensors_are_indexed_as_numpy_arrays_are(key, lib):
    x = np.arange(6.0, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(EmberTensor(lib.from_numpy(x))[key].numpy(), x[key])


def test_tensors_are_indexed_by_masks(lib):
    x = np.arange(6.0, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(EmberTensor(lib.from_numpy(x))[EmberTensor(lib.from_numpy(x)) > 2].numpy(), x[x > 2])
    with pytest.raises(IndexError, match="mask"):
        EmberTensor(lib.from_numpy(x))[lib.from_numpy(np.ones(5, bool))]


def test_indices_nobody_can_look_at_are_limited():
    mx = pytest.importorskip("mlx.core")
    lib = library("mlx")
    x = lib.arange(4)
    read = mx.compile(lambda i: lib.take(x, i))
    assert read(mx.array([1, 9, -1, -9])).tolist() == [1, 3, 3, 0]
    write = mx.compile(lambda i: lib.index_put(x, i, lib.as_array([7]), "add"))
    assert write(mx.array([50])).tolist() == [0, 1, 2, 10]


def test_constants_as_indices_leave_mlx_lazy(monkeypatch):
    mx = pytest.importorskip("mlx.core")
    lib = library("mlx")
    x = lib.zeros((2, 3))
    monkeypatch.setattr(mx, "eval", lambda *_: pytest.fail("evaluated"))
    assert lib.take(x, np.array([1]), 0).shape == (1, 3)
    for op in ("flip", "unstack", "diagonal"):
        getattr(lib, op)(x)
    lib.roll(x, 1, 0)
    lib.repeat(x, 2, 0)
    lib.pad(x, 1, "edge")
