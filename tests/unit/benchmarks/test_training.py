"""The training benchmark, in small."""

import importlib.util
import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parents[3] / "benchmarks" / "training"


@pytest.fixture(scope="module")
def runner():
    sys.path.insert(0, str(HERE))
    spec = importlib.util.spec_from_file_location("training_run", HERE / "run.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_quick_run_writes_its_reports(tmp_path):
    pytest.importorskip("torch")
    command = [sys.executable, str(HERE / "run.py"), "--quick", "--filter", "mlp", "--ways", "pyflame,torch"]
    done = subprocess.run([*command, "--out", str(tmp_path)], capture_output=True, text=True, check=True, timeout=280)
    assert "geometric mean" in done.stdout
    rows = json.loads((tmp_path / "results.json").read_text())["results"]["mlp"]
    assert rows["pyflame"]["median"] > 0
    assert rows["torch"]["peak_mb"] > 0
    assert "| mlp |" in (tmp_path / "results.md").read_text()
    ET.fromstring((tmp_path / "results.svg").read_text())


def test_without_a_compiler_compiled_torch_is_left_out_with_a_line(runner, monkeypatch):
    monkeypatch.setattr(runner.shutil, "which", lambda _: None)
    monkeypatch.setattr(runner.importlib.util, "find_spec", lambda _: object())
    names, reasons = runner.usable("")
    assert names == ["pyflame", "torch"]
    assert "C++ compiler" in reasons[0]


def test_unknown_names_are_refused(runner):
    with pytest.raises(runner.typer.BadParameter, match="jax"):
        runner.usable("pyflame,jax")


def test_figures_that_are_missing_are_dashes(runner):
    rows = {"pyflame": {"median": 0.002, "first": 1.0, "peak_mb": 30.0}, "torch": {"error": "no memory"}}
    assert runner.cells("mlp", rows, ["pyflame", "torch"])[1:4] == ["2.00", "-", "-"]
    assert runner.remarks({"mlp": rows}) == ["mlp: torch failed: no memory"]
