"""The store of compiled things: found by key, never trusted blindly, bounded, shared by processes."""

import array
import os
import shutil
import subprocess
import sys
import time

import pytest

from pyflame_rt.cache.store import HEADER, Store, current_store, default_folder, use_store
from pyflame_rt.graph.errors import InputError


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "cache")


def test_contents_come_back_under_their_key_alone(store):
    assert store.get("object", "a") is None
    assert store.put("object", "a", b"first")
    assert store.put("object", "b", b"second")
    assert (store.get("object", "a"), store.get("object", "b")) == (b"first", b"second")
    assert store.get("plan", "a") is None
    assert store.put("object", "a", b"newer")
    assert Store(store.folder).get("object", "a") == b"newer"
    assert len(store.entries()) == 2


@pytest.mark.parametrize("size", [0, 1, HEADER - 1, HEADER, HEADER + 3])
def test_truncated_entries_are_ignored_and_deleted(store, size):
    store.put("object", "a", b"contents")
    path = store.path("object", "a")
    path.write_bytes(path.read_bytes()[:size])
    assert store.get("object", "a") is None
    assert not path.exists()
    assert store.put("object", "a", b"again")
    assert store.get("object", "a") == b"again"


@pytest.mark.parametrize("position", [0, 9, 20, 50, HEADER, HEADER + 5])
def test_any_changed_byte_is_noticed(store, position):
    store.put("object", "a", b"contents")
    path = store.path("object", "a")
    data = bytearray(path.read_bytes())
    data[position] ^= 0x40
    path.write_bytes(data)
    assert store.get("object", "a") is None


def test_an_entry_moved_to_another_key_is_not_taken_for_it(store):
    store.put("object", "a", b"contents of a")
    other = store.path("object", "b")
    other.parent.mkdir(parents=True, exist_ok=True)
    os.replace(store.path("object", "a"), other)
    assert store.get("object", "b") is None


def test_the_entries_used_longest_ago_go_first(tmp_path):
    store = Store(tmp_path / "cache", max_bytes=10 * (HEADER + 1000))
    for i in range(10):
        store.put("object", str(i), bytes(1000))
        os.utime(store.path("object", str(i)), (1_000_000 + i, 1_000_000 + i))
    assert store.get("object", "0") is not None  # now the latest
    store.put("object", "more", bytes(1000))
    left = {str(i) for i in range(10) if store.path("object", str(i)).exists()}
    assert "0" in left
    assert "1" not in left
    assert store.get("object", "more") is not None
    assert store.total_size() <= store.max_bytes


def kept(store, key, data):
    assert store.put_large("weights", key, memoryview(data))


def test_reading_sets_the_time_of_use_but_not_of_writing(store):
    kept(store, "a", b"abcdef")
    path = store.path("weights", "a")
    written = path.stat().st_mtime_ns
    os.utime(path, ns=(10**18, written))
    contents = store.open_large("weights", "a")
    assert contents is not None
    assert contents.tobytes() == b"abcdef"
    assert path.stat().st_atime > time.time() - 60
    assert path.stat().st_mtime_ns == written
    assert store.open_large("weights", "b") is None


@pytest.mark.parametrize("size", [1, 5000, 1 << 20])
def test_large_entries_that_were_not_written_whole_are_not_mapped(store, size):
    data = bytes(range(1, 251)) * (size // 250 + 1)
    kept(store, "a", data)
    path = store.path("weights", "a")
    whole = path.read_bytes()
    for damaged in (whole[:-1], whole[:HEADER], b"", whole[:HEADER] + bytes(len(data)), bytes(len(whole))):
        path.write_bytes(damaged)
        assert store.open_large("weights", "a") is None
        assert not path.exists() or not damaged
    kept(store, "a", data)
    assert store.open_large("weights", "a").tobytes() == data


def test_a_large_entry_the_disk_has_no_room_for_leaves_nothing(store, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    assert not store.put_large("weights", "a", memoryview(bytes(100)))
    monkeypatch.undo()
    assert store.open_large("weights", "a") is None
    assert list(store._files()) == []


def test_one_large_entry_must_not_fill_the_store(store):
    assert not Store(store.folder, 1000).put_large("weights", "a", memoryview(bytes(500)))
    assert list(store._files()) == []


def test_large_entries_of_any_type_are_their_bytes(store):
    values = array.array("f", [1.5, -2.0])
    assert store.put_large("weights", "a", memoryview(values))
    assert store.open_large("weights", "a").tobytes() == values.tobytes()


def test_parts_of_a_dead_process_are_swept_away(store):
    store.put("object", "a", b"x")
    old, fresh = (store.path("object", "a").parent / name for name in ("old.part", "fresh.part"))
    for path in (old, fresh):
        path.write_bytes(b"half")
    os.utime(old, (1_000_000, 1_000_000))
    Store(store.folder).put("object", "b", b"y")
    assert not old.exists()
    assert fresh.exists()
    assert len(store.entries()) == 2


def test_a_folder_that_cannot_be_made_disables_writing(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    store = Store(blocked / "cache")
    assert not store.put("object", "a", b"x")
    assert store.get("object", "a") is None
    assert not store.writable
    store.later("object", "a", b"x")
    store.flush()


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_read(store):
    store.put("object", "a", b"x")
    os.chmod(store.folder, 0o500)
    try:
        again = Store(store.folder)
        assert again.get("object", "a") == b"x"
        assert not again.put("other", "b", b"x")
    finally:
        os.chmod(store.folder, 0o700)


def test_a_failing_write_leaves_nothing_behind(store, monkeypatch):
    store.put("object", "a", b"x")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    assert not store.put("object", "b", b"y")
    monkeypatch.undo()
    assert [e.path.name for e in store._files()] == [store.path("object", "a").name]
    assert store.writable


@pytest.mark.skipif(os.name != "posix", reason="modes of POSIX")
def test_a_folder_everybody_may_write_to_is_not_used(store, caplog):
    store.put("object", "a", b"x")
    os.chmod(store.folder, 0o777)
    again = Store(store.folder)
    assert again.get("object", "a") is None
    assert not again.put("object", "a", b"y")
    assert "may be written to by others" in caplog.text


def test_settings_come_from_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("PYFLAME_CACHE_DIR", str(tmp_path / "here"))
    assert default_folder() == tmp_path / "here"
    assert current_store().folder.is_relative_to(tmp_path / "here")
    monkeypatch.setenv("PYFLAME_CACHE_SIZE", "3M")
    assert current_store().max_bytes == 3 << 20
    monkeypatch.setenv("PYFLAME_CACHE_SIZE", "lots")
    with pytest.raises(InputError, match="500M or 2G"):
        current_store()
    monkeypatch.setenv("PYFLAME_CACHE", "0")
    assert not current_store().put("object", "a", b"x")
    with use_store(tmp_path / "there"):
        assert current_store().folder.is_relative_to(tmp_path / "there")


def test_without_settings_the_users_folder_is_taken(tmp_path, monkeypatch):
    monkeypatch.delenv("PYFLAME_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path))
    if sys.platform != "darwin":
        assert default_folder() == tmp_path / "pyflame"


def test_a_folder_deleted_while_an_entry_is_written_is_made_anew(store, monkeypatch):
    import tempfile

    original, deleted = tempfile.mkstemp, []

    def late(suffix, dir):  # noqa: A002 - as it is called
        if not deleted:
            deleted.append(shutil.rmtree(store.folder))
        return original(suffix, dir=dir)

    monkeypatch.setattr(tempfile, "mkstemp", late)
    assert not store.put("object", "a", b"x")
    assert store.put("object", "a", b"x")
    assert store.get("object", "a") == b"x"


def test_jobs_in_the_background_are_all_done(store):
    for i in range(50):
        store.later("object", str(i), bytes([i]))
    store.writer.submit(lambda: 1 / 0)
    store.later("object", "last", b"z")
    store.flush()
    assert [store.get("object", str(i)) for i in range(50)] == [bytes([i]) for i in range(50)]
    assert store.get("object", "last") == b"z"
    assert store.writer._thread is None or not store.writer._thread.is_alive()


WRITER = """
import sys
from pyflame_rt.cache.store import Store
store, other = Store(sys.argv[1], 200_000), Store(sys.argv[1], 200_000)
bad = 0
for turn in range(150):
    for k in range(5):
        data = bytes([k]) * (1000 * (k + 1))
        store.put("object", str(k), data)
        found = other.get("object", str(k))
        bad += found is not None and found != data
    store.put("object", f"{turn} {sys.argv[2]}", bytes(5000))
print(bad)
"""


def test_two_processes_write_and_evict_at_once(tmp_path):
    env = os.environ | {"PYFLAME_LAZY_IMPORT": "1"}
    command = [sys.executable, "-c", WRITER, str(tmp_path / "cache")]
    running = [subprocess.Popen([*command, str(i)], stdout=subprocess.PIPE, text=True, env=env) for i in range(2)]
    assert [p.communicate(timeout=250)[0].strip() for p in running] == ["0", "0"]
    assert all(p.returncode == 0 for p in running)
    store = Store(tmp_path / "cache", 200_000)
    store.put("object", "end", b"")
    assert store.total_size() <= 220_000


@pytest.mark.parametrize("moment", ["before", "meanwhile", "after"])
def test_an_entry_does_not_come_back_after_a_better_one(store, monkeypatch, moment):
    """What is written in the background may be out of date by then, or become so while it is written."""
    original = Store.put

    def better() -> None:
        original(store, "object", "a", b"full")
        store.discard("draft", "a")

    def slow(self, kind, key, data):
        done = original(self, kind, key, data)
        if moment == "meanwhile":
            better()
        return done

    monkeypatch.setattr(Store, "put", slow)
    if moment == "before":
        better()
    store.later("draft", "a", b"quick", unless="object")
    store.flush()
    if moment == "after":
        assert store.get("draft", "a") == b"quick"
        better()
    assert store.get("draft", "a") is None
    assert store.get("object", "a") == b"full"


def test_a_relative_folder_stays_where_it_was_named(tmp_path, monkeypatch):
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    monkeypatch.chdir(here)
    store = Store("cache")
    monkeypatch.chdir(there)
    assert store.put("example", "key", b"contents")
    assert (here / "cache").is_dir()
    assert not list(there.iterdir())
