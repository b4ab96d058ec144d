"""A language model in four bits; calibration with more data than memory holds."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import pyflame as pf
import pyflame_rt
from pyflame import nn
from pyflame.exporting import evaluation_graph
from pyflame.models import GPT2, GPT2Config
from pyflame_rt.quantization import quantize_weights

LENGTH = 32


def windows(codes, starts):
    made = np.stack([codes[at : at + LENGTH + 1] for at in starts]).astype(np.int64)
    return np.ascontiguousarray(made[:, :-1]), np.ascontiguousarray(made[:, 1:])


def perplexity(graph, tokens, following):
    scores = pyflame_rt.InferenceSession(graph).run(None, {"input": tokens})[0].astype(np.float64)
    scores -= scores.max(-1, keepdims=True)
    logs = scores - np.log(np.exp(scores).sum(-1, keepdims=True))
    return float(np.exp(-np.take_along_axis(logs, following[..., None], -1).mean()))


def test_a_language_model_in_four_bits():
    """Letters of the license, of which the last tenth is held back."""
    text = (Path(__file__).resolve().parents[3] / "LICENSE").read_text("utf-8")
    letters = sorted(set(text))
    codes = np.array([letters.index(letter) for letter in text])
    pf.manual_seed(0)
    config = GPT2Config(len(letters), n_positions=LENGTH, n_embd=64, n_layer=2, n_head=4, dropout=0.0)
    model, loss_of = GPT2(config), nn.CrossEntropyLoss()
    optimizer = pf.optim.Adam(model.parameters(), lr=3e-3)

    @pf.compile
    def step(x, y):
        optimizer.zero_grad()
        loss = loss_of(model(x).reshape([-1, len(letters)]), y.reshape([-1]))
        loss.backward()
        optimizer.step()
        return loss

    rng, cut = np.random.default_rng(0), len(codes) * 9 // 10
    for _ in range(200):
        step(*map(pf.from_numpy, windows(codes, rng.integers(0, cut - LENGTH, 16))))
    held = windows(codes, range(cut, len(codes) - LENGTH - 1, LENGTH))
    graph = evaluation_graph(model, (pf.from_numpy(held[0]),))
    real = perplexity(graph, *held)
    assert real < 0.4 * len(letters)  # it learned something
    seen = windows(codes, rng.integers(0, cut - LENGTH, len(held[0])))
    for level in (4, 1):  # rows in bytes, which is the default, and as floats
        small = quantize_weights(graph, bits=4, data=[{"input": seen[0]}], accuracy_level=level)
        products = [n for n in small.quantized_graph.nodes if n.op_type == "MatMulNBits"]
        assert [n.attributes["accuracy_level"] for n in products] == [level] * 9
        ratio = perplexity(small.quantized_graph, *held) / real
        print(f"level {level}: perplexity {ratio:.4f} of {real:.2f}")  # noqa: T201
        assert ratio <= 1.03


CALIBRATION = """
import pathlib
import resource
import numpy as np
from pyflame_rt.graph import Graph
from pyflame_rt.quantization import CalibrationMethod, Calibrator, QuantConfig

rng, graph = np.random.default_rng(0), Graph("g")
graph.add_input("x", ["N", 3, 224, 224])
graph.add_initializer("w", rng.standard_normal((8, 3, 4, 4)).astype(np.float32))
graph.add_initializer("v", rng.standard_normal((8, 8, 1, 1)).astype(np.float32))
graph.add_node("c", "Conv", ["x", "w"], ["y"], strides=[4, 4])
graph.add_node("r", "Relu", ["y"], ["z"])
graph.add_node("d", "Conv", ["z", "v"], ["o"])
graph.add_output("o", None)
config = QuantConfig.static_int8()
config.calibration_method = CalibrationMethod.Entropy
shape = (16, 3, 224, 224)
calibrator = Calibrator(graph, config)
calibrator.calibrate(lambda: {"x": rng.standard_normal(shape, np.float32)}, int(10e9 // (4 * np.prod(shape))))
# What the parent held before it became this program counts in getrusage, but not here.
status = pathlib.Path("/proc/self/status")
lines = status.read_text().splitlines() if status.exists() else []
peak = [int(line.split()[1]) for line in lines if line.startswith("VmHWM")]
print(*peak or [resource.getrusage(resource.RUSAGE_SELF).ru_maxrss])
"""


@pytest.mark.slow
def test_ten_gigabytes_of_data_stay_under_half_a_gigabyte():
    ended = subprocess.run([sys.executable, "-c", CALIBRATION], capture_output=True, text=True, check=True)
    unit = 1 if sys.platform == "darwin" else 1024
    assert int(ended.stdout) * unit < 500e6
