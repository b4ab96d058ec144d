"""Constants in packed form: shared between plans, given back, never doubled."""

import gc
import mmap
import os
import threading

import numpy as np
import pytest

import pyflame_rt
from pyflame_rt.backends.cpu.memory import constants as weights
from pyflame_rt.backends.cpu.onednn import MemDesc, library
from pyflame_rt.exporters import export_onnx
from pyflame_rt.graph.pages import forget_pages, map_file, root_of

RNG = np.random.default_rng(3)


def mlp(width=256, layers=2):
    g = pyflame_rt.Graph("mlp")
    g.add_input("x", ["N", width])
    name = "x"
    for i in range(layers):
        g.add_initializer(f"w{i}", RNG.standard_normal((width, width)).astype(np.float32) / width)
        g.add_node(f"mm{i}", "MatMul", [name, f"w{i}"], [f"h{i}"])
        g.add_node(f"act{i}", "Relu", [f"h{i}"], [f"r{i}"])
        name = f"r{i}"
    g.add_output(name, ["N", width])
    return g


def expected(g, x):
    for tensor in g.initializers.values():
        x = np.maximum(x @ tensor.raw(), 0)
    return x


def mapped_array(tmp_path, values):
    path = tmp_path / "data"
    path.write_bytes(values.tobytes())
    return np.frombuffer(map_file(path), values.dtype).reshape(values.shape)


def same(a, b):
    return a.ctypes.data == b.ctypes.data and a.nbytes == b.nbytes


@pytest.mark.skipif(not library.available(), reason="about what oneDNN does")
@pytest.mark.parametrize("size", [32, 128, 512])
def test_what_is_made_is_known_as_long_as_a_view_of_it_lives(size):
    """In small arrays, in regions and in files."""
    array, desc, scope = weight(size), MemDesc((size, size), "f32", "ba"), object()
    with weights.sharing(scope):
        view = weights.pack(array, desc).view(np.float32).reshape(size, size)[3:]
        gc.collect()
        again = weights.pack(array, desc)
    assert again.ctypes.data + 3 * size * 4 == view.ctypes.data


def weight(size):
    return RNG.standard_normal((size, size)).astype(np.float32)


def test_one_file_is_mapped_once_until_it_changes(tmp_path):
    path = tmp_path / "data"
    path.write_bytes(bytes(8192))
    first = map_file(path)
    assert map_file(path) is first
    other = tmp_path / "new"
    other.write_bytes(b"x" * 8192)
    os.replace(other, path)
    assert map_file(path) is not first
    assert first[:1] == b"\0"
    with pytest.raises(OSError, match="missing"):
        map_file(tmp_path / "missing")


def test_the_root_of_an_array_is_who_owns_the_memory(tmp_path):
    array = np.zeros((4, 6), np.float32)
    assert root_of(array[1:, ::2].T) is array
    assert root_of(np.lib.stride_tricks.as_strided(array[1:], (2, 2), (4, 4))) is array
    assert isinstance(root_of(mapped_array(tmp_path, array)[1:].T), mmap.mmap)


def test_given_back_pages_read_the_same(tmp_path):
    values = np.arange(1 << 16, dtype=np.float32)
    array = mapped_array(tmp_path, values)
    assert array.sum() == values.sum()
    forget_pages(array)
    forget_pages(array[5:7])
    np.testing.assert_array_equal(array, values)
    forget_pages(values)
    assert values[-1] == 65535


@pytest.mark.skipif(not library.available(), reason="about what oneDNN does")
def test_packed_weights_of_a_file_are_made_once(tmp_path):
    array = mapped_array(tmp_path, RNG.standard_normal((64, 32)).astype(np.float32))
    desc, other = MemDesc((64, 32), "f32", "AB16b16a"), MemDesc((64, 32), "f32", "ba")
    first = weights.pack(array, desc)
    assert same(weights.pack(array, desc), first)
    assert not same(weights.pack(array, other), first)
    np.testing.assert_array_equal(weights.pack(array, other).view(np.float32).reshape(32, 64), array.T)
    assert not same(weights.pack(array[:, :16], MemDesc((64, 16), "f32", "AB16b16a")), first)


@pytest.mark.skipif(not library.available(), reason="about what oneDNN does")
def test_arrays_in_memory_are_shared_inside_a_session_only():
    array = RNG.standard_normal((64, 32)).astype(np.float32)
    desc = MemDesc((64, 32), "f32", "ba")
    assert not same(weights.pack(array, desc), weights.pack(array, desc))
    one, two = object(), object()
    with weights.sharing(one):
        first = weights.pack(array, desc)
        assert same(weights.pack(array, desc), first)
    with weights.sharing(two):
        assert not same(weights.pack(array, desc), first)


@pytest.mark.skipif(not library.available(), reason="about what oneDNN does")
def test_memory_that_is_used_again_is_not_taken_for_what_it_was():
    desc, scope = MemDesc((32, 32), "f32", "ba"), object()
    kept = []
    with weights.sharing(scope):
        for value in range(20):
            array = np.full((32, 32), value, np.float32)
            packed = weights.pack(array, desc)
            assert packed.view(np.float32)[0] == value
            kept.append(packed)
            del array
            gc.collect()


def test_a_changed_weight_counts_in_the_next_session():
    g, x = mlp(), RNG.standard_normal((8, 256)).astype(np.float32)
    first = pyflame_rt.InferenceSession(g)
    np.testing.assert_allclose(first.run(None, {"x": x})[0], expected(g, x), rtol=1e-3, atol=1e-5)
    g.initializers["w0"].raw()[...] *= 2
    second = pyflame_rt.InferenceSession(g)
    np.testing.assert_allclose(second.run(None, {"x": x})[0], expected(g, x), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("names", [("a",), ("ab",), ("abc",), ("abcd",)])
def test_weights_at_any_address_of_a_file_give_the_same(tmp_path, names):
    """Exporters do not align what they write; the length of a name shifts it."""
    g = mlp(64, 1)
    g.name = names[0]
    path = tmp_path / "m.onnx"
    g.add_initializer("pad", np.zeros(20_000, np.uint8))
    export_onnx(g, path)
    session = pyflame_rt.InferenceSession(path)
    for rows in (1, 3, 17):
        x = RNG.standard_normal((rows, 64)).astype(np.float32)
        wanted = np.maximum(x @ g.initializers["w0"].raw(), 0)
        np.testing.assert_allclose(session.run(None, {"x": x})[0], wanted, rtol=1e-3, atol=1e-5)


def test_plans_and_sessions_of_a_file_share_packed_weights(tmp_path):
    path = tmp_path / "m.onnx"
    g = mlp()
    export_onnx(g, path)
    made = len(weights._made)
    sessions = [pyflame_rt.InferenceSession(path) for _ in range(2)]
    for session in sessions:
        for rows in (8, 9, 200):
            x = RNG.standard_normal((rows, 256)).astype(np.float32)
            np.testing.assert_allclose(session.run(None, {"x": x})[0], expected(g, x), rtol=1e-3, atol=1e-5)
    assert len(weights._made) - made <= 2 * 2  # two layers, and few rows may want another layout than many


def test_packing_beside_is_complete_at_the_end():
    source, began, gate = np.arange(8, dtype=np.float32), threading.Event(), threading.Event()
    scope = object()

    def fill(out):
        began.set()
        assert gate.wait(120)
        out.view(np.float32)[:] = source * 2

    with weights.sharing(scope):
        with weights.packing_beside():
            first = weights.derived(source, ("twice",), source.nbytes, fill)
            again = weights.derived(source, ("twice",), source.nbytes, fill)
            assert first.ctypes.data == again.ctypes.data
            threading.Timer(0.05, gate.set).start()
        np.testing.assert_array_equal(first.view(np.float32), source * 2)
        assert not weights._filling


def test_a_fault_in_packing_is_raised_and_nothing_half_done_is_shared():
    source, scope = np.arange(8, dtype=np.float32), object()

    def fail(out):
        raise MemoryError("no room")

    with weights.sharing(scope):
        with pytest.raises(MemoryError, match="no room"), weights.packing_beside():
            weights.derived(source, ("never",), source.nbytes, fail)
        whole = weights.derived(source, ("never",), source.nbytes, lambda out: np.copyto(out, source.view(np.uint8)))
        np.testing.assert_array_equal(whole.view(np.float32), source)

    def plan():
        with weights.packing_beside():
            weights.derived(source, ("other",), source.nbytes, fail)
            raise ValueError("the plan is what fails")

    with pytest.raises(ValueError, match="the plan"):
        plan()
    assert not weights._filling
