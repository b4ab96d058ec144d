"""Numbers at the edge: equal to the CPU's, or refused."""

import numpy as np
import pytest

from pyflame_rt import InferenceSession
from pyflame_rt.graph import DType, Graph
from pyflame_rt.graph.errors import BackendError
from tests.unit.backends.wse.table import ELEMENTWISE, FLOATS

GRIDS = [(1, 1), (2, 3)]
HARD = np.array([1e10, -1e10, 3e9, -2147483648.0, 40000.0, 2.5, -2.5, -0.0, np.nan, np.inf, -np.inf], np.float32)


def both(graph, feeds, grid):
    wafer = InferenceSession(graph, providers=[("WSEExecutionProvider", {"rows": grid[0], "cols": grid[1]})])
    cpu = InferenceSession(graph, providers=["CPUExecutionProvider"])
    return wafer, cpu.run(None, feeds)


def one(op, given, result, **attributes):
    graph = Graph(op)
    graph.add_input("x", list(given.shape), DType.of(given.dtype))
    graph.add_node("n", op, ["x"], ["y"], attributes)
    graph.add_output("y", list(given.shape), result)
    return graph


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_the_sign_of_nan_is_nan(grid, dtype):
    x = np.array([[1.5, np.nan, -2, 0, np.inf, -np.inf, -0.0]], dtype)
    wafer, want = both(one("Sign", x, DType.of(x.dtype)), {"x": x}, grid)
    np.testing.assert_array_equal(wafer.run(None, {"x": x})[0], want[0])


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("to", [DType.Int32, DType.Int16, DType.Bool])
def test_casts_of_numbers_that_do_not_fit_are_the_cpus(grid, to):
    x = HARD[None]
    wafer, want = both(one("Cast", x, to, to=to.onnx), {"x": x}, grid)
    np.testing.assert_array_equal(wafer.run(None, {"x": x})[0], want[0])


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("value", [1e10, -1e10, np.nan, np.inf])
def test_casts_to_int64_beyond_32_bits_are_refused(grid, value):
    x = np.array([[1.5, -3.0, 2e9, 7.0, 1.0]], np.float32)
    wafer, want = both(one("Cast", x, DType.Int64, to=DType.Int64.onnx), {"x": x}, grid)
    np.testing.assert_array_equal(wafer.run(None, {"x": x})[0], want[0])
    x[0, 3] = value
    with pytest.raises(BackendError, match="32 bits"):
        wafer.run(None, {"x": x})


def test_what_lies_beyond_the_tensor_is_not_looked_at():
    """Five columns on three PEs leave a sixth, where the logarithm of nothing is minus infinity."""
    graph = Graph("padded")
    graph.add_input("x", [1, 5])
    graph.add_node("log", "Log", ["x"], ["l"])
    graph.add_node("cast", "Cast", ["l"], ["y"], {"to": DType.Int64.onnx})
    graph.add_output("y", [1, 5], DType.Int64)
    x = np.array([[1, 3, 9, 27, 81]], np.float32)
    wafer, want = both(graph, {"x": x}, (1, 3))
    np.testing.assert_array_equal(wafer.run(None, {"x": x})[0], want[0])


def picking(op):
    graph = Graph(op)
    graph.add_input("x", [5, 4])
    graph.add_input("i", [3], DType.Int64)
    graph.add_initializer("one", np.array([1]))
    graph.add_node("add", "Add", ["i", "one"], ["j"])  # the PEs compute it
    if op == "Gather":
        graph.add_node("pick", op, ["x", "j"], ["y"], {"axis": 0})
        graph.add_output("y", [3, 4])
    else:
        graph.add_initializer("new", np.ones((3, 4), np.float32))
        graph.add_initializer("shape", np.array([3, 1]))
        graph.add_node("rows", "Reshape", ["j", "shape"], ["k"])
        graph.add_node("put", op, ["x", "k", "new"], ["y"])
        graph.add_output("y", [5, 4])
    return graph


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("op", ["Gather", "ScatterND"])
def test_computed_indices_outside_are_refused(grid, op):
    x = np.arange(20, dtype=np.float32).reshape(5, 4)
    good = {"x": x, "i": np.array([3, -3, 0])}
    wafer, want = both(picking(op), good, grid)
    np.testing.assert_array_equal(wafer.run(None, good)[0], want[0])
    for wrong in (4, -7):
        with pytest.raises(BackendError, match="an index is outside"):
            wafer.run(None, {"x": x, "i": np.array([0, wrong, 1])})


@pytest.mark.parametrize("grid", [(1, 4), (4, 1), (2, 2)])
@pytest.mark.parametrize("op", ["AveragePool", "MaxPool", "LpPool"])
@pytest.mark.parametrize("sizes", [(1, 2, 7, 9), (1, 1, 1, 4), (1, 3, 11)])
def test_pools_that_round_up(grid, op, sizes):
    graph = Graph("pool")
    graph.add_input("x", list(sizes))
    space = len(sizes) - 2
    window = [min(3, n) for n in sizes[2:]]
    attributes = {"kernel_shape": window, "strides": [2] * space, "ceil_mode": 1}
    graph.add_node("p", op, ["x"], ["y"], attributes)
    graph.add_output("y", None)
    x = np.random.default_rng(0).standard_normal(sizes).astype(np.float32)
    wafer, want = both(graph, {"x": x}, grid)
    np.testing.assert_allclose(wafer.run(None, {"x": x})[0], want[0], rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("grid", [(4, 1), (1, 4)])
@pytest.mark.parametrize(("sizes", "window", "pad"), [((1, 2, 6, 7), 1, 0), ((1, 1, 3, 8), 2, 1)])
def test_pools_whose_last_window_would_begin_beyond_the_end(grid, sizes, window, pad):
    graph = Graph("pool")
    graph.add_input("x", list(sizes))
    attributes = {"kernel_shape": [window] * 2, "strides": [3, 3], "ceil_mode": 1, "pads": [pad] * 4}
    graph.add_node("p", "AveragePool", ["x"], ["y"], attributes)
    graph.add_output("y", None)
    x = np.random.default_rng(0).standard_normal(sizes).astype(np.float32)
    wafer, want = both(graph, {"x": x}, grid)
    np.testing.assert_allclose(wafer.run(None, {"x": x})[0], want[0], rtol=2e-5, atol=2e-5)


SPECIAL = np.array([[np.nan, np.inf, -np.inf, 0.0, -0.0, 1.5, -2.5, 1e10, -1e10, 65504, 3e38, 1e-30]], np.float32)
OPS = sorted(
    {case.name for case in ELEMENTWISE if case.shapes == ((5, 7),) and case.types == FLOATS and not case.fixed}
)


@pytest.mark.parametrize("op", [*OPS, "Softmax", "LogSoftmax", "ReduceMax", "ReduceMin", "ReduceSum"])
def test_infinities_and_nothing_go_through_as_on_the_cpu(op):
    case = next((case for case in ELEMENTWISE if case.name == op), None)
    kind = DType.of(np.dtype(case.result)) if case is not None and case.result else DType.Float32
    for x in (SPECIAL, SPECIAL[:, 1:], SPECIAL[:, 3:]):
        sized = Graph(op)
        sized.add_input("x", x.shape)
        sized.add_node("n", op, ["x"], ["y"], case.attributes if case is not None else {})
        sized.add_output("y", None, kind)
        wafer, want = both(sized, {"x": x}, (1, 3))
        np.testing.assert_allclose(wafer.run(None, {"x": x})[0], want[0], rtol=2e-5, atol=2e-5)
