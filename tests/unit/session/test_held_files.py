"""Model files that others truncate, overwrite or delete while a session is open: answers stay what they were."""

import gc
import os
import subprocess
import sys

import numpy as np
import pytest

import pyflame_rt
from pyflame_rt.cache.sources import keep_copies
from pyflame_rt.cache.store import current_store
from pyflame_rt.exporters import export_onnx
from pyflame_rt.format import load_model, save_model
from pyflame_rt.graph import pages
from pyflame_rt.graph.errors import InvalidModelError
from pyflame_rt.graph.pages import forget_pages, hold_file, immutable_files, map_file, root_of

SIZE = 300_000  # of the weights, several pages beyond what is read at once
SCRIPT = """
import os, sys, numpy as np, pyflame_rt
path, victim, harm, moment, cache = sys.argv[1:]

def spoil():
    if harm == "truncate":
        os.truncate(victim, 4096)
    elif harm == "empty":
        os.truncate(victim, 0)
    elif harm == "overwrite":
        with open(victim, "r+b") as file:
            file.write(b"\\xff" * os.path.getsize(victim))
    else:
        os.unlink(victim)

feeds = {"i": np.arange(4), "x": np.ones((3, 500), np.float32)}
session = pyflame_rt.InferenceSession(path)
first = session.run(None, feeds) if moment != "before" else None
if moment == "settled":
    from pyflame_rt.cache.store import current_store
    current_store().flush()
spoil()
second = session.run(None, feeds)
other = session.run(None, {"i": np.arange(7), "x": np.ones((5, 500), np.float32)})
print(float(second[0].sum()), float(second[1].sum()), float(other[0].sum()), float(other[1].sum()))
if first is not None:
    assert all(np.array_equal(a, b) for a, b in zip(first, second))
"""


def graph():
    """Weights that are packed, and weights that are read where they lie."""
    g = pyflame_rt.Graph("g")
    g.add_input("i", ["N"], pyflame_rt.DType.Int64)
    g.add_input("x", ["M", 500])
    g.add_initializer("table", np.arange(SIZE, dtype=np.float32).reshape(-1, 50) % 97)
    g.add_initializer("w", (np.arange(SIZE, dtype=np.float32).reshape(500, -1) % 89) / 8)
    g.add_node("g", "Gather", ["table", "i"], ["rows"])
    g.add_node("m", "MatMul", ["x", "w"], ["y"])
    g.add_output("rows", ["N", 50])
    g.add_output("y", ["M", SIZE // 500])
    return g


def wanted():
    g = graph()
    table, w = g.initializers["table"].numpy(), g.initializers["w"].numpy()
    ones = [table[:4].sum(), 3 * w.sum(), table[:7].sum(), 5 * w.sum()]
    return [float(value) for value in ones]


def written(folder, form):
    path = folder / ("m.pfm" if form == "pfm" else "m.onnx")
    if form == "pfm":
        save_model(graph(), path)
    else:
        export_onnx(graph(), path, external_data=form == "external")
    return path, folder / "m.onnx.data" if form == "external" else path


@pytest.mark.parametrize("moment", ["before", "after", "settled"])
@pytest.mark.parametrize("form", ["onnx", "external", "pfm"])
def test_a_file_truncated_while_a_session_is_open_changes_nothing(tmp_path, form, moment):
    """Before the first run, after it, and when the weights lie in our own copy."""
    path, victim = written(tmp_path, form)
    if moment == "settled":
        for file in (path, victim):
            os.utime(file, (10**9, 10**9))
    env = os.environ | {"PYFLAME_CACHE_DIR": str(tmp_path / "cache")}
    command = [sys.executable, "-c", SCRIPT, str(path), str(victim), "truncate", moment, str(tmp_path)]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, (done.returncode, done.stderr)
    np.testing.assert_allclose([float(n) for n in done.stdout.split()], wanted(), rtol=1e-5)


@pytest.mark.parametrize("harm", ["empty", "overwrite", "unlink"])
@pytest.mark.parametrize("form", ["onnx", "external", "pfm"])
def test_files_harmed_otherwise_change_nothing(tmp_path, monkeypatch, form, harm):
    monkeypatch.setenv("PYFLAME_CACHE_DIR", str(tmp_path / "cache"))
    path, victim = written(tmp_path, form)
    session = pyflame_rt.InferenceSession(path)
    if harm == "empty":
        os.truncate(victim, 0)
    elif harm == "overwrite":
        size = victim.stat().st_size
        with victim.open("r+b") as file:
            file.write(b"\xff" * size)
    else:
        victim.unlink()
    first = session.run(None, {"i": np.arange(4), "x": np.ones((3, 500), np.float32)})
    other = session.run(None, {"i": np.arange(7), "x": np.ones((5, 500), np.float32)})
    sums = [float(value.sum(dtype=np.float64)) for value in (*first, *other)]
    np.testing.assert_allclose(sums, wanted(), rtol=1e-5)


def test_warm_starts_read_our_own_copy(tmp_path, monkeypatch):
    monkeypatch.setenv("PYFLAME_CACHE_DIR", str(tmp_path / "cache"))
    path, _ = written(tmp_path, "onnx")
    os.utime(path, (10**9, 10**9))
    feeds = {"i": np.arange(4), "x": np.ones((3, 500), np.float32)}
    pyflame_rt.InferenceSession(path).run(None, feeds)
    current_store().flush()
    assert any(e.path.parts[-3] == "source" for e in current_store().entries())
    monkeypatch.setattr(pages, "_read", lambda *_: pytest.fail("read again"))
    session = pyflame_rt.InferenceSession(path)
    os.truncate(path, 100)
    np.testing.assert_allclose(session.run(None, feeds)[1].sum(), wanted()[1], rtol=1e-5)


def test_a_damaged_copy_is_made_good_from_the_file(tmp_path, monkeypatch):
    monkeypatch.setenv("PYFLAME_CACHE_DIR", str(tmp_path / "cache"))
    path, _ = written(tmp_path, "onnx")
    os.utime(path, (10**9, 10**9))
    pyflame_rt.InferenceSession(path)
    current_store().flush()
    gc.collect()  # the session, whose memory is the copy's now
    (entry,) = [e for e in current_store().entries() if e.path.parts[-3] == "source"]
    data = bytearray(entry.path.read_bytes())
    data[len(data) // 4] ^= 1
    data[len(data) // 4 * 3] ^= 1
    entry.path.write_bytes(data)
    os.chmod(entry.path, 0o600)
    graph_again = pyflame_rt.InferenceSession(path)._graph
    for name, tensor in graph().initializers.items():
        np.testing.assert_array_equal(graph_again.initializers[name].numpy(), tensor.numpy())


def test_memory_of_what_was_read_is_given_up_for_our_copy(tmp_path, monkeypatch):
    monkeypatch.setenv("PYFLAME_CACHE_DIR", str(tmp_path / "cache"))
    values = np.arange(1_000_000, dtype=np.float32)
    path = tmp_path / "data"
    path.write_bytes(values.tobytes())
    array = np.frombuffer(hold_file(path), np.float32)
    assert not array.flags.writeable
    assert pages.only_in_memory(array) is not None
    forget_pages(array)  # it is nowhere else
    np.testing.assert_array_equal(array, values)
    if sys.platform != "linux":
        return
    keep_copies([array], lambda _: True)
    current_store().flush()
    assert pages.only_in_memory(array) is None
    np.testing.assert_array_equal(array, values)
    forget_pages(array)
    os.truncate(path, 0)
    np.testing.assert_array_equal(array, values)


def test_files_declared_immutable_are_mapped(tmp_path):
    path, _ = written(tmp_path, "pfm")
    with immutable_files():
        mapped = load_model(path)
    assert root_of(mapped.initializers["w"].raw()) is map_file(path)
    session = pyflame_rt.InferenceSession(path, pyflame_rt.SessionOptions(immutable_model=True))
    assert root_of(session._graph.initializers["w"].raw()) is map_file(path)
    held = load_model(path).initializers["w"].raw()
    assert root_of(held) is not map_file(path)
    assert root_of(load_model(path).initializers["w"].raw()) is root_of(held)  # once for all who read it


def test_a_file_that_is_being_written_to_says_so(tmp_path, monkeypatch):
    path = tmp_path / "data"
    path.write_bytes(bytes(100_000))
    read, turns = pages._read, []

    def slow(file, size):
        turns.append(1)
        os.utime(path, (10**9, 10**9 + len(turns)))
        return read(file, size)

    monkeypatch.setattr(pages, "_read", slow)
    with pytest.raises(InvalidModelError, match="was written to while it was read"):
        hold_file(path)
    assert len(turns) > 1


def test_large_files_are_read_in_two_parts(tmp_path, monkeypatch):
    data = np.random.default_rng(0).integers(0, 256, 9_000_001, np.uint8).tobytes()
    path = tmp_path / "large"
    path.write_bytes(data)
    assert bytes(hold_file(path)) == data
    with open(path, "rb", buffering=0) as file:
        assert pages._read(file, len(data) + 1) is None  # it ends early
        assert pages._read(file, 2 * len(data)) is None  # before the second part
    real = os.preadv

    def failing(number, buffers, offset):
        if offset:
            raise OSError("unreadable")
        return real(number, buffers, offset)

    monkeypatch.setattr(os, "preadv", failing)
    with open(path, "rb", buffering=0) as file, pytest.raises(OSError, match="unreadable"):
        pages._read(file, len(data))
