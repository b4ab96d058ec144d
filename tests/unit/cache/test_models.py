"""Models kept as imported: found by the state of their file, checked, never stale."""

import os
import pickle
import subprocess
import sys

import numpy as np
import pytest

import pyflame_rt
from pyflame_rt.cache.encoding import Codec, DecodeError
from pyflame_rt.cache.models import KeptGraph, kept_model, model_key
from pyflame_rt.cache.places import MAKERS, makers_beside, place_of
from pyflame_rt.cache.store import HEADER, current_store, use_store
from pyflame_rt.exporters import export_onnx
from pyflame_rt.format import save_model
from pyflame_rt.graph.pages import file_of, map_file
from pyflame_rt.loading import load_graph

RNG = np.random.default_rng(5)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("PYFLAME_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path


def scaled(factor, size=40_000):
    g = pyflame_rt.Graph("scaled")
    g.add_input("x", ["N", size])
    g.add_initializer("w", np.full(size, factor, np.float32))
    g.add_node("mul", "Mul", ["x", "w"], ["y"])
    g.add_output("y", ["N", size])
    return g


def settled(path, age=60):
    """Make a file look as if nobody had written to it for a while."""
    found = path.stat()
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns - age * 10**9))


def answer(path, size=40_000, **options):
    session = pyflame_rt.InferenceSession(path, **options)
    return float(session.run(None, {"x": np.ones((1, size), np.float32)})[0][0, 0])


def kept(kind="model"):
    store = current_store()
    store.flush()
    return [e for e in store.entries() if e.path.parts[-3] == kind]


@pytest.mark.parametrize("suffix", [".onnx", ".pfm"])
def test_a_model_is_imported_once(folder, suffix):
    path = folder / f"m{suffix}"
    (export_onnx if suffix == ".onnx" else save_model)(scaled(3), path)
    settled(path)
    assert answer(path) == 3
    assert len(kept()) == 1

    graph = kept_model(model_key(path))
    assert graph.origin is not None
    assert graph.origin.checked
    assert file_of(graph.initializers["w"].stored()) is not None  # in the file, not in the entry
    assert sum(e.size_bytes for e in kept()) < 20_000
    assert answer(path) == 3


def test_a_warm_load_does_not_read_the_file_again(folder):
    path = folder / "m.onnx"
    export_onnx(scaled(3), path)
    settled(path)
    code = (
        "import sys, numpy as np, pyflame_rt\n"
        "s = pyflame_rt.InferenceSession(sys.argv[1])\n"
        "y = s.run(None, {'x': np.ones((2, 40000), np.float32)})[0]\n"
        "print(float(y.sum()), 'onnx' in sys.modules, 'pyflame_rt.importers.onnx_wire' in sys.modules)"
    )
    command = [sys.executable, "-c", code, str(path)]
    outputs = [subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(2)]
    assert [line.split() for line in outputs] == [["240000.0", "False", "True"], ["240000.0", "False", "False"]]


def test_a_file_that_was_written_to_is_read_again(folder):
    path = folder / "m.onnx"
    for turn, factor in enumerate((3, 4)):
        export_onnx(scaled(factor), path)
        settled(path, 60 - turn)
        assert answer(path) == factor
        assert answer(path) == factor
    assert len(kept()) == 2


def test_a_file_written_just_now_is_not_kept(folder):
    path = folder / "m.onnx"
    for factor in (3, 4, 5):
        export_onnx(scaled(factor), path)
        assert answer(path) == factor
    assert kept() == kept("weights") == []


def test_data_beside_the_model_counts(folder):
    path = folder / "m.onnx"
    export_onnx(scaled(3), path, external_data=True)
    data = folder / "m.onnx.data"
    for file in (path, data):
        settled(file)
    assert answer(path) == answer(path) == 3
    assert len(kept()) == 1
    data.write_bytes(np.full(40_000, 7, np.float32).tobytes())
    settled(data, 50)
    assert answer(path) == 7
    data.unlink()
    with pytest.raises(pyflame_rt.InvalidModelError, match="no data file"):
        answer(path)


def test_options_that_change_the_model_are_not_mixed_up(folder):
    path = folder / "m.onnx"
    export_onnx(scaled(3), path)
    settled(path)
    assert answer(path) == 3
    options = pyflame_rt.SessionOptions()
    options.add_initializer("w", np.full(40_000, 9, np.float32))
    assert answer(path, options=options) == 9
    assert answer(path) == 3


def test_a_session_may_have_a_folder_of_its_own(folder):
    path = folder / "m.onnx"
    export_onnx(scaled(3), path)
    settled(path)
    options = pyflame_rt.SessionOptions(cache=folder / "mine")
    assert answer(path, options=options) == 3
    assert kept() == []
    with use_store(folder / "mine"):
        assert len(kept()) == 1
    assert answer(path, options=options) == 3


def test_damaged_entries_are_made_anew(folder):
    path = folder / "m.onnx"
    export_onnx(scaled(3), path)
    settled(path)
    assert answer(path) == 3
    (entry,) = kept()
    data = bytearray(entry.path.read_bytes())
    data[HEADER + 30] ^= 1
    entry.path.write_bytes(data)
    assert answer(path) == 3
    assert len(kept()) == 1
    assert answer(path) == 3


def test_what_is_no_graph_is_refused(folder):
    path = folder / "m.pfm"
    save_model(scaled(2), path)
    settled(path)
    assert answer(path) == 2
    key = model_key(path)
    for data in (pickle.dumps(subprocess.Popen), b"\x80\x05garbage", Codec([]).encode({"a": [1]}), b""):
        current_store().put("model", key, data)
        assert answer(path) == 2


def test_arrays_in_a_file_are_written_as_their_place(folder):
    path = folder / "data"
    values = RNG.standard_normal((100, 50)).astype(np.float32)
    path.write_bytes(b"abc" + values.tobytes())
    array = np.frombuffer(map_file(path), np.float32, offset=3).reshape(100, 50)
    codec, store = Codec([]), current_store()
    given = {"a": array, "t": array.T, "small": np.arange(3), "own": values[:3].copy()}
    data = codec.encode(given, lambda array: place_of(array, store))
    assert len(data) < 2000
    again = codec.decode(data, MAKERS)
    np.testing.assert_array_equal(again["a"], values)
    np.testing.assert_array_equal(again["t"], values.T)
    np.testing.assert_array_equal(again["own"], values[:3])
    assert not again["a"].flags.writeable
    path.write_bytes(b"abcd")
    with pytest.raises(DecodeError, match="has changed"):
        codec.decode(data, MAKERS)


@pytest.mark.parametrize("damaged", [False, True])
def test_large_arrays_are_verified_by_what_is_handed_on(folder, damaged):
    """A plan is read while its weights are verified: damage is told by that work, before the plan is used."""
    store, values = current_store(), np.arange(200_000, dtype=np.float32)
    assert store.put_large("weights", "large", values.view(np.uint8).data)
    data = Codec([]).encode(store.open_large("weights", "large").view(np.float32), lambda array: place_of(array, store))
    path = store.path("weights", "large")
    if damaged:
        kept = bytearray(path.read_bytes())
        kept[HEADER + 500_000] ^= 1
        path.unlink()
        path.write_bytes(kept)
        path.chmod(0o600)
    work = []
    again = Codec([]).decode(data, makers_beside(work.append))
    assert len(work) == 1
    if damaged:
        with pytest.raises(DecodeError, match="is damaged"):
            work[0]()
        assert not path.exists()
    else:
        work[0]()
        np.testing.assert_array_equal(again, values)


def warm(path):
    """A session on a file that was loaded, and run, before."""
    export_onnx(scaled(3), path)
    settled(path)
    assert answer(path) == 3
    current_store().flush()
    session = pyflame_rt.InferenceSession(path)
    assert isinstance(session._graph, KeptGraph)
    return session


def test_a_warm_start_reads_no_nodes(folder):
    session = warm(folder / "m.onnx")
    assert float(session.run(None, {"x": np.ones((1, 40_000), np.float32)})[0][0, 0]) == 3
    assert not session._graph.is_made
    assert [i.name for i in session.get_inputs()] == ["x"]
    assert [n.op_type for n in session.graph().nodes] == ["Mul"]
    assert float(session.get_initializer("w").numpy()[0]) == 3


@pytest.mark.parametrize("change", ["truncated", "written", "gone"])
def test_nodes_that_nobody_read_yet_outlive_the_file(folder, change):
    path = folder / "m.onnx"
    session = warm(path)
    if change == "truncated":
        os.truncate(path, 100)
    elif change == "written":
        path.write_bytes(b"\1" * path.stat().st_size)
    else:
        path.unlink()
    assert not session._graph.is_made
    assert float(session.get_initializer("w").numpy().sum()) == 3 * 40_000
    for rows in (1, 2):  # with the plan that was kept, and with one to be made
        y = session.run(None, {"x": np.ones((rows, 40_000), np.float32)})[0]
        assert float(y.sum()) == rows * 3 * 40_000


def test_who_loads_a_graph_may_change_it(folder):
    path = folder / "m.onnx"
    warm(path).close()
    graph, _ = load_graph(path)
    assert type(graph) is pyflame_rt.Graph
    graph.nodes = []
    assert len(load_graph(path)[0].nodes) == 1
    options = pyflame_rt.SessionOptions()
    options.add_free_dimension_override_by_name("N", 4)
    assert pyflame_rt.InferenceSession(path, options).get_inputs()[0].shape == [4, 40_000]


def test_defaults_of_inputs_are_known_at_once(folder):
    path, g = folder / "m.onnx", scaled(5)
    g.add_input("w", [40_000])
    export_onnx(g, path)
    settled(path)
    for _ in range(2):
        session = pyflame_rt.InferenceSession(path)
        assert [i.name for i in session.get_inputs()] == ["x"]
        assert [i.name for i in session.get_overridable_initializers()] == ["w"]
        assert float(session.run(None, {"x": np.ones((1, 40_000), np.float32)})[0][0, 0]) == 5
        current_store().flush()


def test_nodes_that_are_damaged_are_said_to_be(folder, monkeypatch):
    session = warm(folder / "m.onnx")
    monkeypatch.setattr("pyflame_rt.cache.models.held_makers", lambda contents: {})
    with pytest.raises(pyflame_rt.InvalidModelError, match=r"model 'scaled' whole: .* load it again"):
        session.graph()
    assert not kept()
