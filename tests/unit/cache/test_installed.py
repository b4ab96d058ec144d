"""Entry points of ours that installed packages declare are found as importlib.metadata finds them."""

import importlib.metadata
import os
import subprocess
import sys
import zipfile

import pytest

from pyflame_rt.cache.installed import is_declared

GROUP = "pyflame_rt.passes"


@pytest.fixture
def packages(tmp_path, monkeypatch):
    folder = tmp_path / "packages"
    folder.mkdir()
    monkeypatch.setattr(sys, "path", [*sys.path, str(folder)])
    return folder


def install(folder, name, text, inner=""):
    info = folder / name / inner
    info.mkdir(parents=True)
    (info / "entry_points.txt").write_text(text)


def settle(folder, seconds):
    """As if the folder had been left alone since."""
    os.utime(folder, ns=(0, os.stat(folder).st_mtime_ns - seconds * 10**9))


@pytest.mark.parametrize(("name", "inner"), [("a-1.dist-info", ""), ("a.egg-info", ""), ("a-1.egg", "EGG-INFO")])
def test_packages_of_every_kind(packages, name, inner):
    assert not is_declared(GROUP)
    install(packages, name, "[console_scripts]\na = b\n\n[pyflame_rt.passes]\nmine = a:Pass\n", inner)
    assert is_declared(GROUP)
    assert not is_declared("pyflame_rt.importers")


def test_installing_and_removing_is_seen_beside_what_was_kept(packages):
    install(packages, "plain-1.dist-info", "[console_scripts]\na = b\n")
    settle(packages, 100)
    assert not is_declared(GROUP)
    install(packages, "a-1.dist-info", "[pyflame_rt.passes]\nmine = a:Pass\n")
    settle(packages, 50)
    assert is_declared(GROUP)
    assert is_declared(GROUP)  # as kept
    os.rename(packages / "a-1.dist-info", packages / "gone")
    settle(packages, 20)
    assert not is_declared(GROUP)


def test_what_only_importlib_can_read_is_left_to_it(packages, tmp_path, monkeypatch):
    with zipfile.ZipFile(tmp_path / "archive.zip", "w") as archive:
        archive.writestr("a-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: a\nVersion: 1\n")
        archive.writestr("a-1.dist-info/entry_points.txt", "[pyflame_rt.passes]\nmine = a:Pass\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "archive.zip")])
    assert is_declared(GROUP)
    assert [point.name for point in importlib.metadata.entry_points(group=GROUP)] == ["mine"]


def test_finders_of_others_are_asked(monkeypatch):
    class Finder:
        def find_spec(self, *_):
            return None

        def find_distributions(self, *_):
            return []

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder()])
    assert is_declared(GROUP)


def test_a_list_rewritten_in_place_is_seen_by_the_next_process(packages):
    """As an editable package's is: the folder that holds it stays as it was."""
    install(packages, "a.egg-info", "[console_scripts]\na = b\n")
    settle(packages, 100)
    code = f"""
import sys
sys.path.append({str(packages)!r})
from pyflame_rt.cache.installed import is_declared
print(is_declared({GROUP!r}))
"""

    def asked():
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()

    assert asked() == "False"
    (packages / "a.egg-info" / "entry_points.txt").write_text("[pyflame_rt.passes]\nmine = a:Pass\n")
    settle(packages, 0)
    assert asked() == "True"


def test_an_egg_that_is_itself_on_the_path(tmp_path, monkeypatch):
    install(tmp_path, "a-1.egg", "[pyflame_rt.passes]\nmine = a:Pass\n", "EGG-INFO")
    (tmp_path / "a-1.egg" / "EGG-INFO" / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: a\nVersion: 1\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "a-1.egg")])
    assert is_declared(GROUP)
    assert [point.name for point in importlib.metadata.entry_points(group=GROUP)] == ["mine"]


def test_odd_paths_and_lists_declare_nothing(packages, monkeypatch):
    info = packages / "a-1.dist-info"
    info.mkdir()
    (info / "entry_points.txt").write_bytes(b"[pyflame_rt.\xff]\na = b\n")
    monkeypatch.setattr(sys, "path", [*sys.path, None, 3, "a\0b", packages / "nowhere"])
    assert not is_declared(GROUP)


def test_the_current_folder_may_be_gone(tmp_path, monkeypatch):
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    assert not is_declared(GROUP)
