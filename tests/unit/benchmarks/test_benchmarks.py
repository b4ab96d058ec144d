"""The benchmark's models, runtimes, reports and limits, in small."""

import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest

import pyflame_rt

HERE = Path(__file__).resolve().parents[3] / "benchmarks"
sys.path.insert(0, str(HERE))

import limits  # noqa: E402
import report  # noqa: E402
import run  # noqa: E402
import runtimes  # noqa: E402
from zoo import MODELS, QUICK, language, make, vision  # noqa: E402

SMALL = {
    "mlp": vision.mlp,
    "resnet": lambda: vision.resnet("r", (1, 1), bottleneck=True, size=32, width=8),
    "resnet basic": lambda: vision.resnet("r", (1, 1), bottleneck=False, size=32, width=8),
    "mobilenet_v2": lambda: vision.mobilenet_v2(size=32, wide=0.25),
    "mobilenet_v3": lambda: vision.mobilenet_v3(size=32),
    "efficientnet": lambda: vision.efficientnet_b0(size=32),
    "convnext": lambda: vision.convnext(size=32, depths=(1, 1), width=16),
    "unet": lambda: vision.unet(size=16, width=16),
    "vit": lambda: language.vit(size=32, width=24, layers=2, classes=10),
    "encoder": lambda: language.encoder("e", width=32, layers=2, heads=4, words=50, length=16),
    "gpt2": lambda: language.gpt2("g", length=3, past=5, width=32, layers=2, heads=4, words=50),
    "gpt2 prefill": lambda: language.gpt2("g", length=8, past=0, width=32, layers=2, heads=4, words=50),
    "llama": lambda: language.llama("l", length=1, past=6, width=32, layers=2, heads=4, words=50),
    "lstm": lambda: language.lstm(words=50, width=8, hidden=8, length=5),
}


@pytest.mark.parametrize("name", SMALL)
def test_models_are_the_same_everywhere(name, tmp_path):
    ort = pytest.importorskip("onnxruntime")
    torch = pytest.importorskip("torch")
    from twin import Twin

    built = SMALL[name]()
    path = built.save(tmp_path)
    wanted = ort.InferenceSession(str(path)).run(None, built.feeds)
    ours = pyflame_rt.InferenceSession(str(path)).run(None, built.feeds)
    twin = Twin(path)
    with torch.inference_mode():
        theirs = twin(*(torch.from_numpy(built.feeds[n]) for n in twin.inputs))
    assert any(np.abs(w).max(initial=0) > 1e-3 for w in wanted)
    for w, a, b in zip(wanted, ours, theirs, strict=True):
        np.testing.assert_allclose(a, w, rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(b.numpy(), w, rtol=1e-3, atol=1e-4)


def test_models_are_made_once_and_found_by_name(tmp_path):
    (path,) = make(tmp_path, "^mlp$")
    written = path.stat().st_mtime_ns
    assert make(tmp_path, "mlp", quick=True) == [path]
    assert path.stat().st_mtime_ns == written
    assert set(QUICK) <= set(MODELS)
    assert {path.name for path in tmp_path.iterdir()} == {"mlp.onnx", "mlp.npz"}


@pytest.mark.parametrize("runtime", ["pyflame", "onnxruntime", "openvino", "torch"])
def test_a_runtime_is_measured_in_its_own_process(runtime, tmp_path, monkeypatch):
    if runtime not in runtimes.installed():
        pytest.skip(f"{runtime} is not installed")
    monkeypatch.setenv("PYFLAME_CACHE_DIR", str(tmp_path))
    row = run.one_round(vision.mlp().save(tmp_path), runtime, 1, 0.01)
    assert row["median"] > 0
    assert row["first"] > row["median"]
    assert row["peak_mb"] >= 0
    if runtime == "pyflame":
        assert row["flops"] >= 2 * (784 * 256 + 256 * 10)
        assert 0 < row["of_peak"] < 2


def test_failures_are_told_not_raised(tmp_path):
    (tmp_path / "broken.onnx").write_bytes(b"no model")
    row = run.one_round(tmp_path / "broken.onnx", "pyflame", 1, 0.01)
    assert "median" not in row
    assert row["error"]
    assert run.together([row, row]) == row
    assert run.together([row, {"median": 1.0}, {"median": 3.0}, {"median": 2.0}])["median"] == 2.0


def test_models_of_others_without_inputs_beside_them(tmp_path):
    built = vision.mlp()
    path = built.save(tmp_path)
    path.with_suffix(".npz").unlink()
    assert run.models_of([tmp_path], "mlp", tmp_path, quick=False) == [path]
    assert run.models_of([tmp_path], "other", tmp_path, quick=False) == []
    assert runtimes.prepare("pyflame", path, 1)()[0].shape == (1, 10)


ROWS = {
    "a": {
        "pyflame": {"median": 0.001, "first": 0.1, "peak_mb": 10.0, "of_peak": 0.5, "sums": [[10.0, 1.0]]},
        "onnxruntime": {"median": 0.002, "first": 0.2, "peak_mb": 20.0, "sums": [[10.001, 1.0]]},
        "torch": {"median": 0.02, "first": 0.3, "peak_mb": 30.0, "sums": [[11.0, 1.0]]},
    },
    "b <&>": {
        "pyflame": {"median": 0.008, "first": 0.1, "peak_mb": 1.0},
        "onnxruntime": {"error": "no"},
        "torch": {"median": 0.004},
    },
}


def test_reports(tmp_path):
    names = ["pyflame", "onnxruntime", "torch"]
    assert report.ratio(ROWS["a"]) == 0.5
    assert report.ratio(ROWS["b <&>"]) == 2.0
    assert report.geometric_mean(ROWS) == pytest.approx(1.0)
    assert report.disagreement(ROWS["a"]) == "torch"
    text = report.markdown(ROWS, names, {"threads": 2})
    assert "| a | 1.000 | 2.000 | 20.000 | 0.50 | 100 / 200 / 300 | 10 / 20 / 30 | 50 % |" in text
    assert "onnxruntime failed: no" in text
    assert "outputs differ: torch" in text
    assert report.table(ROWS, names).row_count == 2
    root = ET.fromstring(report.chart(ROWS, names))
    bars = [e for e in root.iter("{http://www.w3.org/2000/svg}rect") if e.get("height") == "9"]
    assert len(bars) == 5


def test_the_whole_command(tmp_path):
    vision.mlp().save(tmp_path)
    options = [
        "--quick",
        "--threads",
        "1",
        "--seconds",
        "0.01",
        "--runtimes",
        "pyflame",
        "--out",
        str(tmp_path / "out"),
    ]
    done = subprocess.run(
        [sys.executable, str(HERE / "run.py"), str(tmp_path), *options], capture_output=True, text=True, timeout=250
    )
    assert done.returncode == 0, done.stderr
    assert "mlp" in done.stdout
    document = json.loads((tmp_path / "out" / "results.json").read_text())
    assert document["results"]["mlp"]["pyflame"]["median"] > 0
    assert {p.suffix for p in (tmp_path / "out").iterdir()} == {".md", ".json", ".svg"}


def test_a_short_soak():
    result = limits.soak(1.5, callers=8, largest=6)
    assert result["runs"] >= 8 * limits.LEAST
    assert result["wrong"] == 0
    assert result["handles_left"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["one core", "neighbour", "fork", "crowd"])
def test_limits_are_kept(kind):
    """Timings: one more try when the machine was disturbed."""
    for last in (False, True):
        late = [row for row in limits.figures(f"^{kind}", 0.5, 1.0) if row[1] > row[2]]
        if not late or last:
            break
    assert not late


@pytest.mark.slow
def test_a_long_soak():
    result = limits.soak(60.0)
    assert result["wrong"] == result["handles_left"] == 0
    assert result["grown_percent"] < 10


def test_the_checks_of_production_run():
    """On small models; that bounds of time hold is for a quiet machine to say."""
    import production

    results = [r for name in ("answers", "pool") for r in production.CHECKS[name](True, 4)]
    assert [str(r) for r in results if not r.kept] == []
    figures = list(production.check_batcher(production.minilm, True, 4))
    assert [r.name.split(": ")[1][:3] for r in figures] == ["thr", "Jai", "p50", "p99"]
    assert all(r.figure > 0 for r in figures)


def test_the_checks_of_generation_run(tmp_path):
    """On small models; that bounds of time hold is for a quiet machine to say."""
    import generation

    setting = generation.Setting(tmp_path, 1, tmp_path / "nothing here", True)
    setting.gpt2()
    figures = [r for name in ("onnxruntime", "lengths", "beginnings") for r in generation.CHECKS[name](setting)]
    assert all(r.figure > 0 for r in figures)
    assert [r.name.split(":")[0] for r in figures] == ["gpt2", "gpt2", "llama", "gpt2", "llama"]
    answers = list(generation.check_tokens(setting))
    assert [str(r) for r in answers if not r.kept] == []


def test_other_runtimes_that_do_not_run_are_left_out_with_a_line(tmp_path, capsys):
    import generation

    setting = generation.Setting(tmp_path, 1, None, True)
    assert setting.peer_rates("llama", tmp_path / "lost.gguf") == []
    assert "left out: llama: " in capsys.readouterr().out
