"""Importers that other packages declare are found, and scripts that were not opened are not written."""

import importlib.metadata

import pytest

import pyflame_rt
from pyflame_rt.graph.errors import UnsupportedFormatError
from pyflame_rt.importers import registry
from pyflame_rt.importers.base import Importer


class Lines(Importer):
    """A graph with a Relu for each line."""

    name, suffixes = "lines", (".lines",)

    def read(self, source, options):
        graph, before = pyflame_rt.Graph("lines"), "x"
        graph.add_input("x", [2])
        with open(source) as file:
            for i, _ in enumerate(file):
                graph.add_node(f"n{i}", "Relu", [before], [before := f"v{i}"])
        graph.add_output(before, [2])
        return graph


@pytest.fixture
def declared(monkeypatch):
    entry = importlib.metadata.EntryPoint("lines", f"{__name__}:Lines", "pyflame_rt.importers")
    monkeypatch.setattr(entry.__class__, "load", lambda self: Lines)
    monkeypatch.setattr(registry, "_factories", dict(registry._factories))
    monkeypatch.setattr(registry, "_declared", [])
    real = importlib.metadata.entry_points
    monkeypatch.setattr(
        importlib.metadata, "entry_points", lambda **k: [entry] if k.get("group") == entry.group else real(**k)
    )


def test_an_importer_of_another_package(declared, tmp_path):
    (tmp_path / "two.lines").write_text("a\nb\n")
    assert "lines" in registry.list_importers()
    session = pyflame_rt.InferenceSession(tmp_path / "two.lines")
    assert session.run(None, {"x": [-1, 2]})[0].tolist() == [0, 2]
    assert registry.import_model(tmp_path / "two.lines").graph.nodes[1].op_type == "Relu"


def test_scripts_that_were_not_opened_are_not_written(tmp_path):
    graph = pyflame_rt.Graph("scripted")
    graph.add_input("x", [2])
    graph.add_node("script", "Script", ["x"], ["y"], domain="torch")
    graph.add_output("y", [2])
    for write in (
        lambda: pyflame_rt.save_model(graph, tmp_path / "a.pfm"),
        lambda: pyflame_rt.export_onnx(graph, tmp_path / "a.onnx"),
    ):
        with pytest.raises(UnsupportedFormatError, match="'scripted' is a script whose graph depends on the shapes"):
            write()
    assert not list(tmp_path.iterdir())
