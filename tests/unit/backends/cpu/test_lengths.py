"""Models whose lengths change from run to run, and graphs of thousands of nodes."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

import pyflame_rt
from pyflame_rt.backends.cpu.jit import compiler as jit
from pyflame_rt.backends.cpu.memory import constants as weights
from pyflame_rt.exporters import export_onnx
from tests.tolerances import within
from tests.unit.resting import at_rest

RNG = np.random.default_rng(17)
WIDTH, HEADS = 64, 4


def weight(*shape):
    return (RNG.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)


def encoder(layers, width=WIDTH):
    """A transformer encoder over ["N", "T", width], written as exporters write it."""
    g = pyflame_rt.Graph("encoder")
    g.add_input("x", ["N", "T", width])
    g.add_initializer("split", np.array([0, 0, HEADS, width // HEADS], np.int64))
    g.add_initializer("join", np.array([0, 0, width], np.int64))
    g.add_initializer("scale", np.float32(1 / np.sqrt(width // HEADS)) * np.ones((), np.float32))
    g.add_initializer("one", np.ones(width, np.float32))
    x = "x"
    for i in range(layers):
        x = _layer(g, f"{i}.", x, width)
    g.add_output(x, ["N", "T", width])
    return g


def _layer(g, at, x, width):
    heads = []
    for part in "qkv":
        g.add_initializer(f"{at}w{part}", weight(width, width))
        g.add_node(f"{at}{part}", "MatMul", [x, f"{at}w{part}"], [f"{at}{part}0"])
        g.add_node(f"{at}{part}s", "Reshape", [f"{at}{part}0", "split"], [f"{at}{part}1"])
        perm = [0, 2, 3, 1] if part == "k" else [0, 2, 1, 3]
        g.add_node(f"{at}{part}t", "Transpose", [f"{at}{part}1"], [f"{at}{part}2"], perm=perm)
        heads.append(f"{at}{part}2")
    q, k, v = heads
    g.add_node(f"{at}qk", "MatMul", [q, k], [f"{at}a"])
    g.add_node(f"{at}sc", "Mul", [f"{at}a", "scale"], [f"{at}b"])
    g.add_node(f"{at}sm", "Softmax", [f"{at}b"], [f"{at}c"], axis=-1)
    g.add_node(f"{at}av", "MatMul", [f"{at}c", v], [f"{at}d"])
    g.add_node(f"{at}dt", "Transpose", [f"{at}d"], [f"{at}e"], perm=[0, 2, 1, 3])
    g.add_node(f"{at}dj", "Reshape", [f"{at}e", "join"], [f"{at}f"])
    g.add_node(f"{at}res", "Add", [f"{at}f", x], [f"{at}g"])
    g.add_node(f"{at}ln", "LayerNormalization", [f"{at}g", "one"], [f"{at}h"])
    g.add_initializer(f"{at}w1", weight(width, 2 * width))
    g.add_initializer(f"{at}w2", weight(2 * width, width))
    g.add_node(f"{at}up", "MatMul", [f"{at}h", f"{at}w1"], [f"{at}i"])
    g.add_node(f"{at}act", "Gelu", [f"{at}i"], [f"{at}j"])
    g.add_node(f"{at}down", "MatMul", [f"{at}j", f"{at}w2"], [f"{at}k_"])
    g.add_node(f"{at}res2", "Add", [f"{at}k_", f"{at}h"], [f"{at}y"])
    return f"{at}y"


def unrolled(nodes):
    """A decoder unrolled over steps: a cell of six nodes, over and over, with weights shared by all."""
    g = pyflame_rt.Graph("unrolled")
    g.add_input("x", [1, 32])
    g.add_initializer("w", weight(32, 32))
    g.add_initializer("b", weight(32))
    state = "x"
    for i in range(nodes // 6):
        g.add_node(f"mm{i}", "MatMul", [state, "w"], [f"a{i}"])
        g.add_node(f"add{i}", "Add", [f"a{i}", "b"], [f"b{i}"])
        g.add_node(f"gate{i}", "Sigmoid", [f"b{i}"], [f"c{i}"])
        g.add_node(f"tanh{i}", "Tanh", [f"a{i}"], [f"d{i}"])
        g.add_node(f"mul{i}", "Mul", [f"c{i}", f"d{i}"], [f"e{i}"])
        g.add_node(f"mix{i}", "Add", [f"e{i}", "x"], [f"s{i}"])
        state = f"s{i}"
    g.add_output(state, [1, 32])
    return g


def aged(graph, path):
    export_onnx(graph, path)
    then = path.stat().st_mtime_ns - 60 * 10**9
    os.utime(path, ns=(then, then))
    return path


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_new_length_compiles_and_packs_nothing(tmp_path, monkeypatch):
    session = pyflame_rt.InferenceSession(aged(encoder(2), tmp_path / "m.onnx"))
    reference = pyflame_rt.InferenceSession(tmp_path / "m.onnx", providers=["ReferenceExecutionProvider"])
    for length in (16, 40):
        session.run(None, {"x": RNG.standard_normal((1, length, WIDTH)).astype(np.float32)})
    at_rest()
    made, compiled = len(weights._made), []
    original = jit.object_code
    monkeypatch.setattr(jit, "object_code", lambda ir, *level: compiled.append(ir) or original(ir, *level))
    for length in (17, 23, 32, 39):
        x = RNG.standard_normal((1, length, WIDTH)).astype(np.float32)
        got = session.run(None, {"x": x})[0]
        np.testing.assert_allclose(got, reference.run(None, {"x": x})[0], **within("rounded"))
    assert compiled == []
    assert len(weights._made) == made


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="needs Linux")
@pytest.mark.parametrize("runs", [250, pytest.param(1000, marks=pytest.mark.slow)])
def test_random_lengths_do_not_grow_memory(tmp_path, runs):
    session = pyflame_rt.InferenceSession(aged(encoder(3), tmp_path / "m.onnx"))
    lengths = np.random.default_rng(0).integers(1, 97, runs)
    early = 0
    for i, length in enumerate(lengths):
        session.run(None, {"x": np.ones((1, int(length), WIDTH), np.float32)})
        if i == 49:
            at_rest()
            early = resident()
    at_rest()
    assert resident() <= 1.1 * early
    assert session.memory_stats()["plans"] <= pyflame_rt.SessionOptions().plan_cache_size


LOAD = """
import json, sys, time
import numpy as np, pyflame_rt
from pyflame_rt.backends.cpu.jit import compiler as jit
from pyflame_rt.backends.cpu.run import plan
made = []
for module, name in ((jit, "object_code"), (plan, "specialise")):
    def count(*a, _f=getattr(module, name), _n=name, **k):
        made.append(_n)
        return _f(*a, **k)
    setattr(module, name, count)
begin = time.thread_time()
session = pyflame_rt.InferenceSession(sys.argv[1])
y = session.run(None, {"x": np.ones((1, 32), np.float32)})[0]
print(json.dumps([time.thread_time() - begin, float(np.abs(y).sum()), made]))
"""


def _unrolled_by_numpy(graph):
    w, b = (graph.initializers[name].raw().astype(np.float64) for name in ("w", "b"))
    state = np.ones((1, 32))
    for _ in range(len(graph.nodes) // 6):
        a = state @ w
        state = np.tanh(a) / (1 + np.exp(-(a + b))) + 1
    return float(np.abs(state).sum())


@pytest.mark.usefixtures("unchecked")
def test_six_thousand_nodes_are_planned_and_compiled_once(tmp_path, monkeypatch):
    """The second process takes a second, as `benchmarks` measures; here, a fraction of the first's work."""
    monkeypatch.setenv("PYFLAME_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PYFLAME_QUICK_START", "0")  # else the full form may be made while we count
    graph = unrolled(6000)
    path = aged(graph, tmp_path / "m.onnx")
    command = [sys.executable, "-c", LOAD, str(path)]
    cold, *warm = (
        json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout) for _ in range(3)
    )
    assert {total for _, total, _ in warm} == {cold[1]}
    assert cold[1] == pytest.approx(_unrolled_by_numpy(graph), rel=1e-3)
    assert set(cold[2]) == {"object_code", "specialise"}
    assert [made for _, _, made in warm] == [[], []]
    assert min(seconds for seconds, _, _ in warm) < 0.5 * cold[0]


def test_statistics_that_nobody_reads_cost_nothing():
    g = pyflame_rt.Graph("norm")
    g.add_input("x", ["N", 8])
    g.add_initializer("one", np.ones(8, np.float32))
    g.add_node("norm", "LayerNormalization", ["x", "one"], ["y", "mean", "spread"])
    g.add_output("y", ["N", 8])
    x = RNG.standard_normal((3, 8)).astype(np.float32)
    with pyflame_rt.InferenceSession(g) as session:
        (y,) = session.run(None, {"x": x})
        assert [row.op_type for row in session.explain().rows] == ["LayerNormalization"]
        (_, mean) = session.run(None, {"x": x}, taps=["mean"])
    centred = x - x.mean(1, keepdims=True)
    np.testing.assert_allclose(y, centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5), **within("elements"))
    np.testing.assert_allclose(mean, x.mean(1, keepdims=True), **within("elements"))
