"""Kernels for the steps of recurrent layers, both ways: odd sizes, directions, types, thread counts."""

import numpy as np
import pytest

import pyflame_rt
from pyflame_rt.graph import DType, Graph
from pyflame_rt.ops import infer_types

RNG = np.random.default_rng(29)
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
FORWARD = {"LSTM": 5, "GRU": 3, "RNN": 2}
SIZES = [(1, 1, 1), (4, 1, 16), (3, 13, 8), (5, 7, 33), (2, 20, 40)]


def graph_of(name, arrays, outputs, kind, **attributes):
    """One node; None leaves an input out."""
    g = Graph("g")
    for i, array in enumerate(arrays):
        if array is not None:
            g.add_input(f"x{i}", array.shape, kind)
    names = ["" if a is None else f"x{i}" for i, a in enumerate(arrays)]
    results = [f"o{k}" for k in range(outputs)]
    g.add_node("steps", name, names, results, attributes, domain="pyflame")
    infer_types(g)
    for result in results:
        g.add_output(result, g.types[result].shape, kind)
    return g, {f"x{i}": a for i, a in enumerate(arrays) if a is not None}


def both(graph, feeds, **options):
    native = pyflame_rt.InferenceSession(graph, pyflame_rt.SessionOptions(**options))
    oracle = pyflame_rt.InferenceSession(graph, providers=["ReferenceExecutionProvider"])
    results = native.run(None, feeds), oracle.run(None, feeds)
    explained = native.explain()
    assert explained.host_step_count == 0
    assert any("Steps" in work.label for work in explained.by_kind())
    return results


def draw(dtype, *shape):
    return (RNG.standard_normal(shape) * 0.5).astype(dtype)


def arrays_of(op, sizes, directions, dtype):
    steps, batch, hidden = sizes
    gates, state = GATES[op], (directions, batch, hidden)
    made = [draw(dtype, steps, batch, directions * gates * hidden), draw(dtype, directions, gates * hidden, hidden)]
    made += [draw(dtype, directions, hidden)] if op == "GRU" else []
    return made + [draw(dtype, *state) for _ in range(2 if op == "LSTM" else 1)]


def kept(op, given, made):
    """What a gradient reads of the inputs and outputs of its steps."""
    if op == "LSTM":
        return [given[3], made[3], made[4]]
    return [given[-1], made[0], made[2]] if op == "GRU" else [made[0]]


def tolerance(dtype):
    return {"rtol": 1e-11, "atol": 1e-12} if dtype is np.float64 else {"rtol": 1e-4, "atol": 4e-6}


@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_steps_forwards_and_back(op, direction, dtype):
    directions, kind = 2 if direction == "bidirectional" else 1, DType.of(np.dtype(dtype))
    for sizes in SIZES:
        steps, batch, hidden = sizes
        given = arrays_of(op, sizes, directions, dtype)
        g, feeds = graph_of(f"{op}Steps", given, FORWARD[op], kind, direction=direction)
        got, want = both(g, feeds)
        for mine, theirs in zip(got, want, strict=True):
            np.testing.assert_allclose(mine, theirs, **tolerance(dtype))
        dy = draw(dtype, steps, batch, directions * hidden)
        last = [draw(dtype, directions, batch, hidden) for _ in range(2 if op == "LSTM" else 1)]
        before = [given[1], *kept(op, given, want)]
        for gradients in ([dy, *last], [dy], [None, *last]):
            outputs = 2 if op == "RNN" else 3
            g, feeds = graph_of(f"{op}StepsGrad", [*before, *gradients], outputs, kind, direction=direction)
            for mine, theirs in zip(*both(g, feeds), strict=True):
                np.testing.assert_allclose(mine, theirs, **tolerance(dtype))


@pytest.mark.parametrize("op", GATES)
def test_no_address_outside_the_operands(op):
    given = arrays_of(op, (3, 7, 19), 2, np.float32)
    g, feeds = graph_of(f"{op}Steps", given, FORWARD[op], DType.Float32, direction="bidirectional")
    got, want = both(g, feeds, checked=True)
    for mine, theirs in zip(got, want, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=2e-6)
    before = [given[1], *kept(op, given, want), draw(np.float32, *want[0].shape)]
    g, feeds = graph_of(f"{op}StepsGrad", before, 2 if op == "RNN" else 3, DType.Float32, direction="bidirectional")
    both(g, feeds, checked=True)


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("checked", [False, True])
def test_steps_whose_reset_comes_first(direction, dtype, checked):
    directions, kind = 2 if direction == "bidirectional" else 1, DType.of(np.dtype(dtype))
    for sizes in SIZES:
        gates, recurrent, _, first = arrays_of("GRU", sizes, directions, dtype)
        g, feeds = graph_of("GRUResetSteps", [gates, recurrent, first], 2, kind, direction=direction)
        for mine, theirs in zip(*both(g, feeds, checked=checked), strict=True):
            np.testing.assert_allclose(mine, theirs, **tolerance(dtype))


def test_threads_do_not_change_a_bit():
    given = arrays_of("LSTM", (6, 21, 24), 2, np.float32)
    g, feeds = graph_of("LSTMSteps", given, 5, DType.Float32, direction="bidirectional")
    results = [both(g, feeds, num_threads=threads)[0] for threads in (1, 2, 4)]
    for other in results[1:]:
        for mine, theirs in zip(results[0], other, strict=True):
            np.testing.assert_array_equal(mine, theirs)


def test_layers_with_weights_from_outside_need_no_host_step():
    g = Graph("g")
    shapes = {"x": (5, 3, 6), "w": (2, 40, 6), "r": (2, 40, 10), "b": (2, 80)}
    for name, shape in shapes.items():
        g.add_input(name, shape, DType.Float32)
    g.add_node("n", "LSTM", list(shapes), ["y", "h", "c"], {"direction": "bidirectional", "hidden_size": 10})
    infer_types(g)
    for name in ("y", "h", "c"):
        g.add_output(name, g.types[name].shape, DType.Float32)
    got, want = both(g, {name: draw(np.float32, *shape) for name, shape in shapes.items()})
    for mine, theirs in zip(got, want, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize("dtype", [DType.Float16, DType.BFloat16])
def test_narrow_types_run_by_their_body(dtype):
    given = [a.astype(dtype.numpy) for a in arrays_of("RNN", (2, 3, 4), 1, np.float32)]
    g, feeds = graph_of("RNNSteps", given, 2, dtype)
    native = pyflame_rt.InferenceSession(g).run(None, feeds)
    oracle = pyflame_rt.InferenceSession(g, providers=["ReferenceExecutionProvider"]).run(None, feeds)
    for mine, theirs in zip(native, oracle, strict=True):
        np.testing.assert_allclose(mine.astype(np.float32), theirs.astype(np.float32), rtol=3e-2, atol=1e-2)
