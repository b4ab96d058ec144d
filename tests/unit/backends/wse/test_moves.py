"""Data that changes its place: on the fabric, by the host between phases, or not at all."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyflame_rt.backends.wse.plan.kernels import Slide, Spread
from pyflame_rt.graph import DType, Graph
from tests.unit.backends.wse.running import GRIDS, check, feeds_for, graph_of


def chain(shape, steps, dtype=np.float32):
    """A computed value goes through steps (operator, further inputs, attributes), and is computed with again."""
    graph = Graph("chain")
    kind = DType.of(np.dtype(dtype))
    graph.add_input("x", shape, kind)
    graph.add_node("first", "Neg", ["x"], ["v0"])
    for i, (op, more, attributes) in enumerate(steps):
        names = [f"v{i}"]
        for j, item in enumerate(more):
            names.append(item if isinstance(item, str) else f"c{i}_{j}")
            if not isinstance(item, str):
                graph.add_initializer(names[-1], np.asarray(item))
        graph.add_node(f"n{i}", op, names, [f"v{i + 1}"], attributes)
    graph.add_node("last", "Neg", [f"v{len(steps)}"], ["y"])
    graph.add_output("y", None, kind)
    return graph


_W = np.random.default_rng(0).standard_normal((3, 2, 3, 3)).astype(np.float32)
CHAINS = {
    "transpose": ([5, 7], [("Transpose", [], {})]),
    "reshape": ([4, 6], [("Reshape", [[3, 8]], {})]),
    "slice": ([5, 7], [("Slice", [[1], [6], [1], [2]], {})]),
    "backwards": ([5, 7], [("Slice", [[-1], [-99], [1], [-2]], {})]),
    "pad": ([5, 7], [("Pad", [[1, 0, 2, 3]], {})]),
    "concat": ([5, 7], [("Concat", ["x", "v0"], {"axis": 1})]),
    "heads": ([6, 8], [("Reshape", [[6, 2, 4]], {}), ("Transpose", [], {"perm": [1, 0, 2]})]),
    "pool": ([1, 2, 6, 6], [("MaxPool", [], {"kernel_shape": [2, 2], "strides": [2, 2]})]),
    "pool of pad": ([1, 2, 5, 6], [("Pad", [[0, 0, 1, 0, 0, 0, 0, 1]], {}), ("MaxPool", [], {"kernel_shape": [2, 2]})]),
    "convolution": ([1, 2, 6, 6], [("Conv", [_W], {"pads": [1, 1, 1, 1], "strides": [2, 1]})]),
}


FLAT = [name for name, (shape, _) in CHAINS.items() if len(shape) == 2]


@pytest.mark.parametrize(
    ("name", "grid", "dtype"),
    [
        *itertools.product(CHAINS, [*GRIDS, (3, 2)], [np.float32]),
        *itertools.product(FLAT, [(3, 2)], [np.float16, np.int32]),
    ],
)
def test_computed_values_change_their_place_on_the_fabric(name, grid, dtype):
    shape, steps = CHAINS[name]
    graph = chain(shape, steps, dtype)
    feeds = {"x": np.random.default_rng(1).integers(-9, 9, shape).astype(dtype)}
    arch = "wse2" if sum(grid) % 2 else "wse3"
    plan = check(graph, grid, feeds, arch=arch)
    slides = any(isinstance(k, Slide) for k in plan.kernels)  # over a padded tile, so that nothing goes to the host
    assert len(plan.phases) == (2 if name == "pool of pad" and not slides else 1)
    if grid == (2, 3):
        hosted = check(graph, grid, feeds, optimize=False)
        assert len(hosted.phases) > 1
        assert not any(isinstance(k, Spread) for k in hosted.kernels)


def test_tiles_that_leave_no_room_on_their_way_go_through_the_host():
    graph = chain([24, 24], [("Transpose", [], {})])
    wide = check(graph, (2, 2))
    narrow = check(graph, (2, 2), memory_budget=wide.data_bytes - 4)
    assert [len(p.phases) for p in (wide, narrow)] == [1, 2]
    assert narrow.fold is None


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
