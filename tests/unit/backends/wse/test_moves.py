"""Data that changes its place: by the host between phases, or not at all."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyflame_rt.graph import Graph
from tests.unit.backends.wse.running import GRIDS, check, feeds_for, graph_of


@pytest.mark.parametrize("grid", GRIDS)
def test_a_computed_matrix_is_turned_between_phases(grid):
    graph = Graph("turn")
    graph.add_input("x", [5, 7])
    graph.add_node("n1", "Exp", ["x"], ["e"])
    graph.add_node("n2", "Transpose", ["e"], ["t"])
    graph.add_node("n3", "Neg", ["t"], ["y"])
    graph.add_output("y", [7, 5])
    assert len(check(graph, grid).phases) == 2


@pytest.mark.parametrize("grid", GRIDS)
def test_dimensions_of_size_one_cost_nothing(grid):
    graph = Graph("squeeze")
    graph.add_input("x", [5, 7])
    graph.add_initializer("axes", np.array([0, 3]))
    graph.add_node("n1", "Exp", ["x"], ["e"])
    graph.add_node("n2", "Unsqueeze", ["e", "axes"], ["u"])
    graph.add_node("n3", "Neg", ["u"], ["y"])
    graph.add_output("y", [1, 5, 7, 1])
    assert len(check(graph, grid).phases) == 1


@pytest.mark.parametrize("grid", GRIDS)
def test_concat_slice_and_reshape(grid):
    graph = Graph("moves")
    graph.add_input("a", [4, 6])
    graph.add_input("b", [4, 6])
    for name, value in {"s": [1], "e": [9], "ax": [1], "st": [2], "shape": [2, -1]}.items():
        graph.add_initializer(name, np.array(value))
    graph.add_node("n0", "Neg", ["a"], ["n"])
    graph.add_node("n1", "Concat", ["n", "b"], ["c"], {"axis": 1})
    graph.add_node("n2", "Slice", ["c", "s", "e", "ax", "st"], ["d"])
    graph.add_node("n3", "Reshape", ["d", "shape"], ["r"])
    graph.add_node("n4", "Exp", ["r"], ["y"])
    graph.add_output("y", [2, 8])
    graph.add_output("d", [4, 4])
    check(graph, grid)


@pytest.mark.parametrize("grid", GRIDS)
def test_attention_of_one_head(grid):
    graph = Graph("attention")
    for name in "qkv":
        graph.add_input(name, [6, 4])
    graph.add_node("n0", "Transpose", ["k"], ["t"])
    graph.add_node("n1", "MatMul", ["q", "t"], ["s"])
    graph.add_node("n2", "Softmax", ["s"], ["p"])
    graph.add_node("n3", "MatMul", ["p", "v"], ["y"])
    graph.add_output("y", [6, 4])
    assert len(check(graph, grid).phases) == 1


@settings(max_examples=25, deadline=None)
@given(
    grid=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    shape=st.lists(st.integers(1, 9), min_size=1, max_size=3),
    small=st.integers(0, 7),
    half=st.booleans(),
    optimize=st.booleans(),
    arch=st.sampled_from(["wse2", "wse3"]),
)
def test_any_shape_on_any_grid(grid, shape, small, half, optimize, arch):
    """Elementwise with broadcasting, a reduction and a second use of both."""
    dtype = np.float16 if half else np.float32
    other = [1 if small >> d & 1 else n for d, n in enumerate(shape)]
    graph = graph_of("Mul", [shape, other], dtype)
    graph.outputs.clear()
    kind = graph.inputs[0].type.dtype
    graph.add_initializer("axis", np.array([-1]))
    graph.add_node("n1", "ReduceMax", ["y", "axis"], ["m"])
    graph.add_node("n2", "Sub", ["y", "m"], ["d"])
    graph.add_node("n3", "Exp", ["d"], ["e"])
    graph.add_output("e", None, kind)
    graph.add_output("m", None, kind)
    check(graph, grid, feeds_for(graph, 5), arch=arch, optimize=optimize)


@settings(max_examples=20, deadline=None)
@given(
    grid=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    sizes=st.tuples(*[st.integers(1, 10)] * 3),
    half=st.booleans(),
    arch=st.sampled_from(["wse2", "wse3"]),
)
def test_any_product_on_any_grid(grid, sizes, half, arch):
    m, k, n = sizes
    graph = graph_of("MatMul", [(m, k), (k, n)], np.float16 if half else np.float32)
    check(graph, grid, feeds_for(graph, 6), arch=arch, loose=1e-2 if half else 1e-5)
