"""Importers that other packages declare are found, and scripts that were not opened are not written."""

import pytest

import pyflame_rt
from pyflame_rt.graph.errors import UnsupportedFormatError
from pyflame_rt.importers import registry

LINES = """
import pyflame_rt
from pyflame_rt.importers.base import Importer

class Lines(Importer):
    "A graph with a Relu for each line."

    name, suffixes = "lines", (".lines",)

    def read(self, source, options):
        graph, before = pyflame_rt.Graph("lines"), "x"
        graph.add_input("x", [2])
        with open(source) as file:
            for i, _ in enumerate(file):
                graph.add_node(f"n{i}", "Relu", [before], [before := f"v{i}"])
        graph.add_output(before, [2])
        return graph
"""


@pytest.fixture
def declared(monkeypatch, tmp_path):
    package = tmp_path / "packages"
    (package / "lines-1.0.dist-info").mkdir(parents=True)
    (package / "lines-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: lines\nVersion: 1.0\n")
    (package / "lines-1.0.dist-info" / "entry_points.txt").write_text(
        "[pyflame_rt.importers]\nlines = lines_importer:Lines\n"
    )
    (package / "lines_importer.py").write_text(LINES)
    monkeypatch.syspath_prepend(package)
    monkeypatch.setattr(registry, "_factories", dict(registry._factories))
    monkeypatch.setattr(registry, "_declared", [])


def test_an_importer_of_another_package(declared, tmp_path):
    (tmp_path / "two.lines").write_text("a\nb\n")
    assert "lines" in registry.list_importers()
    session = pyflame_rt.InferenceSession(tmp_path / "two.lines")
    assert session.run(None, {"x": [-1, 2]})[0].tolist() == [0, 2]
    assert registry.import_model(tmp_path / "two.lines").graph.nodes[1].op_type == "Relu"
    assert not registry.is_original()  # so models of files are not kept from another time


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
