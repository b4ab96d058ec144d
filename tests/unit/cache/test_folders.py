"""Folders that are the user's alone: anything else is never used, whatever is in it."""

import json
import os
import stat
import subprocess
import sys

import numpy as np
import pytest

import pyflame_rt
from pyflame_rt.cache import BinaryCache, CacheConfig, folders
from pyflame_rt.cache.folders import fault_of_folder, make_folder, open_own, private_folder, read_own
from pyflame_rt.cache.store import HEADER, Store, current_store

pytestmark = pytest.mark.skipif(os.name != "posix", reason="owners and modes of POSIX")
as_root = pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root can give files away")
SOMEBODY = 12345


@pytest.fixture
def filled(tmp_path):
    """A store with one entry."""
    store = Store(tmp_path / "parent" / "cache")
    assert store.put("object", "a", b"contents")
    assert store.put_large("weights", "a", memoryview(b"contents" * 100))
    return store


def refused(store):
    again = Store(store.folder)
    found = again.get("object", "a"), again.open_large("weights", "a")
    return found == (None, None) and not again.put("object", "b", b"x")


def test_folders_and_entries_are_made_for_the_user_alone(filled):
    for folder, names, files in os.walk(filled.folder.parent):
        for name in [*names, *files]:
            assert not stat.S_IMODE(os.stat(os.path.join(folder, name)).st_mode) & 0o077
    assert not fault_of_folder(filled.folder)


@pytest.mark.parametrize("mode", [0o770, 0o720, 0o707, 0o702, 0o777, 0o1777])
def test_folders_others_may_write_to_are_not_used(filled, mode):
    for folder in (filled.folder, filled.folder / "object", filled.path("object", "a").parent):
        os.chmod(folder, mode)
        assert Store(filled.folder).get("object", "a") is None
        os.chmod(folder, 0o700)
    os.chmod(filled.folder.parent, mode)
    assert refused(filled) is not bool(mode & 0o1000)  # a parent may be as /tmp is
    os.chmod(filled.folder.parent, 0o700)
    assert Store(filled.folder).get("object", "a") == b"contents"


@as_root
def test_what_belongs_to_somebody_else_is_not_used(filled):
    for path in (filled.folder, filled.folder.parent, filled.folder / "object", filled.path("object", "a")):
        os.chown(path, SOMEBODY, SOMEBODY)
        assert Store(filled.folder).get("object", "a") is None
        os.chown(path, 0, 0)
    os.chown(filled.path("weights", "a"), SOMEBODY, SOMEBODY)
    assert Store(filled.folder).open_large("weights", "a") is None


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_files_others_may_write_to_are_not_used(filled, mode):
    os.chmod(filled.path("object", "a"), mode)
    os.chmod(filled.path("weights", "a"), mode)
    assert Store(filled.folder).get("object", "a") is None
    assert Store(filled.folder).open_large("weights", "a") is None


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes here")
def test_pipes_are_not_waited_for(filled):
    """A pipe in place of an entry held up the session for ever."""
    for kind in ("object", "weights"):
        filled.path(kind, "a").unlink()
        os.mkfifo(filled.path(kind, "a"), 0o600)
    assert filled.get("object", "a") is None
    assert filled.open_large("weights", "a") is None
    assert Store(filled.folder).get("object", "a") is None


def test_links_are_not_followed(filled, tmp_path):
    for kind, path in (("object", filled.path("object", "a")), ("weights", filled.path("weights", "a"))):
        moved = tmp_path / kind
        os.rename(path, moved)
        path.symlink_to(moved)
        assert (filled.get if kind == "object" else filled.open_large)(kind, "a") is None
        path.unlink()
        os.rename(moved, path)
    for folder in (filled.folder, filled.folder / "object", filled.path("object", "a").parent):
        moved = tmp_path / "elsewhere"
        os.rename(folder, moved)
        folder.symlink_to(moved, target_is_directory=True)
        assert Store(filled.folder).get("object", "a") is None
        folder.unlink()
        os.rename(moved, folder)
    assert Store(filled.folder).get("object", "a") == b"contents"


def test_the_users_own_links_on_the_way_are_followed_and_judged(filled, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(filled.folder.parent, target_is_directory=True)
    assert Store(link / "cache").get("object", "a") == b"contents"
    os.chmod(filled.folder.parent, 0o770)
    assert Store(link / "cache").get("object", "a") is None


@as_root
def test_links_of_somebody_else_are_not_followed(filled, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(filled.folder.parent, target_is_directory=True)
    os.chown(link, SOMEBODY, SOMEBODY, follow_symlinks=False)
    assert "is a link" in fault_of_folder(link / "cache")
    assert Store(link / "cache").get("object", "a") is None


@as_root
def test_a_folder_somebody_else_made_meanwhile_is_not_used(tmp_path):
    store = Store(tmp_path / "cache")
    other = Store(tmp_path / "other")
    other.put("object", "a", b"theirs")
    os.rename(other.folder, store.folder)
    for folder, names, files in os.walk(tmp_path / "cache"):
        for name in [*names, *files, ""]:
            os.chown(os.path.join(folder, name), SOMEBODY, SOMEBODY)
    assert store.get("object", "a") is None
    assert not store.put("object", "b", b"x")


def test_special_files_are_not_opened(tmp_path):
    with pytest.raises(OSError, match="alone"):
        open_own(tmp_path)
    (tmp_path / "file").write_bytes(b"x")
    os.chmod(tmp_path / "file", 0o600)
    assert read_own(tmp_path / "file") == b"x"


def test_a_file_in_the_way_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    assert "not a folder" in fault_of_folder(tmp_path / "file")
    with pytest.raises(OSError, match="file"):
        make_folder(tmp_path / "file" / "below")


SESSION = """
import sys, numpy as np, pyflame_rt
from pyflame_rt.cache.store import current_store
g = pyflame_rt.Graph("g")
g.add_input("x", [4]), g.add_node("n", "Exp", ["x"], ["y"]), g.add_output("y", [4])
for _ in range(2):
    s = pyflame_rt.InferenceSession(g)
    print(s.run(None, {"x": np.zeros(4, np.float32)})[0].tolist())
store = current_store()
store.flush()
print(store.usable, store.folder.is_relative_to(sys.argv[1]), len(store.entries()) > 0, store.folder)
"""


def test_sessions_use_a_private_folder_instead_after_one_warning(tmp_path):
    folder = tmp_path / "shared"
    folder.mkdir()
    os.chmod(folder, 0o777)
    env = os.environ | {"PYFLAME_CACHE_DIR": str(folder)}
    command = [sys.executable, "-c", SESSION, str(folder)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    *answers, last = done.stdout.splitlines()
    assert answers == ["[1.0, 1.0, 1.0, 1.0]"] * 2
    assert last.split()[:3] == ["True", "False", "True"]
    assert done.stderr.count("is not used") == 1
    assert "may be written to by others" in done.stderr
    assert not os.listdir(folder)
    assert not os.path.exists(last.split()[3])  # it went with the process


def test_a_private_folder_is_made_once(monkeypatch, tmp_path):
    monkeypatch.setattr(folders, "_private", [])
    first = private_folder()
    assert first is not None
    assert private_folder() == first
    assert not fault_of_folder(first)


def test_graphs_of_a_program_are_kept_in_a_private_folder_too(tmp_path):
    os.chmod(tmp_path, 0o777)
    cache = BinaryCache(CacheConfig(cache_dir=tmp_path))
    g = pyflame_rt.Graph("g")
    g.add_initializer("w", np.arange(5))
    cache.put("k", g)
    assert not cache.folder.is_relative_to(tmp_path)
    assert cache.get("k").initializers["w"].numpy().tolist() == [0, 1, 2, 3, 4]
    cache.remove("k")
    assert not os.listdir(tmp_path)


DAMAGE = """
import json, sys, numpy as np, pyflame_rt
from pyflame_rt.cache.store import Store, current_store
keys, path = [], Store._path
Store._path = lambda self, kind, key: keys.append((kind, key)) or path(self, kind, key)
x = np.linspace(-1, 1, 2 * 3 * 20 * 20, dtype=np.float32).reshape(2, 3, 20, 20)
s = pyflame_rt.InferenceSession(sys.argv[1])
np.save(sys.argv[2], s.run(None, {"x": x})[0])
current_store().flush()
print(json.dumps(keys))
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model with packed weights, constants and kernels of several kinds, its cache filled."""
    folder = tmp_path_factory.mktemp("damage")
    rng = np.random.default_rng(0)
    g = pyflame_rt.Graph("g")
    g.add_input("x", ["N", 3, 20, 20])
    g.add_initializer("w", rng.standard_normal((32, 3, 3, 3)).astype(np.float32))
    g.add_initializer("v", rng.standard_normal((64, 32, 3, 3)).astype(np.float32))
    g.add_initializer("m", rng.standard_normal((64, 300)).astype(np.float32))
    g.add_initializer("b", rng.standard_normal(300).astype(np.float32))
    g.add_node("c1", "Conv", ["x", "w"], ["a"], {"pads": [1, 1, 1, 1]})
    g.add_node("r", "Relu", ["a"], ["r"])
    g.add_node("c2", "Conv", ["r", "v"], ["d"])
    g.add_node("p", "GlobalAveragePool", ["d"], ["p"])
    g.add_node("f", "Flatten", ["p"], ["f"])
    g.add_node("mm", "MatMul", ["f", "m"], ["q"])
    g.add_node("add", "Add", ["q", "b"], ["s"])
    g.add_node("e", "Erf", ["s"], ["y"])
    g.add_output("y", ["N", 300])
    path = folder / "m.onnx"
    from pyflame_rt.exporters import export_onnx

    export_onnx(g, path)
    os.utime(path, (10**9, 10**9))
    return path, answer_of(path, folder / "cache"), folder / "cache"


KEYS = set()  # kind and key of all entries, as they were asked for


def answer_of(path, cache):
    env = os.environ | {"PYFLAME_CACHE_DIR": str(cache)}
    out = path.with_suffix(".npy")
    command = [sys.executable, "-c", DAMAGE, str(path), str(out)]
    done = subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE, text=True)
    KEYS.update(map(tuple, json.loads(done.stdout)))
    return np.load(out)


def changed(data, place):
    damaged = bytearray(data)
    damaged[place] ^= 1 << (place % 8)
    return bytes(damaged)


def test_a_changed_byte_anywhere_in_any_entry_is_noticed(model):
    """64 places of every entry, the first and last bytes among them: the entry is not used."""
    store = Store(model[2] / "engine")
    seen = {}
    for kind, key in KEYS:
        path, read = store.path(kind, key), store.open_large if kind == "weights" else store.get
        if not path.exists():
            continue
        data = path.read_bytes()
        for place in np.linspace(0, len(data) - 1, 64).astype(int).tolist():
            path.write_bytes(changed(data, place))
            os.chmod(path, 0o600)
            assert read(kind, key) is None, (kind, place)
            assert not path.exists()
        path.write_bytes(data)
        os.chmod(path, 0o600)
        assert read(kind, key) is not None
        seen[kind] = seen.get(kind, 0) + 1
    assert sum(seen.values()) == len(store.entries())
    assert seen.keys() >= {"model", "plan", "weights"}
    assert seen.keys() & {"object", "draft"}


@pytest.mark.parametrize("part", [0.0, 0.99])
def test_answers_are_right_with_every_entry_damaged(model, part):
    path, wanted, cache = model
    for entry in Store(cache / "engine").entries():
        data = entry.path.read_bytes()
        entry.path.write_bytes(changed(data, HEADER + int((len(data) - HEADER) * part)))
        os.chmod(entry.path, 0o600)
    np.testing.assert_array_equal(answer_of(path, cache), wanted)
    assert Store(cache / "engine").entries()


def test_entries_of_the_wrong_kind_or_key_are_not_used(model):
    """Each entry in the place of another of its kind."""
    path, wanted, cache = model
    by_kind: dict[str, list] = {}
    for entry in Store(cache / "engine").entries():
        by_kind.setdefault(entry.path.parts[-3], []).append(entry.path)
    for paths in by_kind.values():
        contents = [p.read_bytes() for p in paths]
        for place, data in zip(paths, contents[1:] + contents[:1], strict=True):
            place.write_bytes(data)
    np.testing.assert_array_equal(answer_of(path, cache), wanted)


def test_the_store_in_use_is_the_one_that_was_judged(tmp_path, monkeypatch):
    monkeypatch.setenv("PYFLAME_CACHE_DIR", str(tmp_path / "own"))
    assert current_store().folder == tmp_path / "own" / "engine"
