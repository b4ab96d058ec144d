"""Products: block by block over rows and columns, or by adding up parts of K."""

import itertools

import numpy as np
import pytest

from pyflame_rt.backends.wse.kernels import MatMul
from pyflame_rt.graph import Graph
from tests.unit.backends.wse.running import GRIDS, check, feeds_for, graph_of


def linear(rows, inner, cols, dtype=np.float32, *, trans=False):
    graph = graph_of(
        "Gemm", [(rows, inner), (cols, inner) if trans else (inner, cols), (cols,)], dtype, transB=int(trans)
    )
    graph.outputs.clear()
    graph.add_node("act", "Relu", ["y"], ["z"])
    graph.add_output("z", None, graph.inputs[0].type.dtype)
    return graph


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("grid", [*GRIDS, (2, 2), (4, 4), (3, 2)])
def test_a_linear_layer_stays_on_its_elements(grid, dtype):
    plan = check(linear(6, 9, 5, dtype), grid, loose=1e-2 if dtype == np.float16 else None)
    assert [type(k).__name__ for k in plan.kernels] == ["MatMul", "Map"]
    assert plan.kernels[0].out.slot == plan.kernels[1].out.slot
    assert len(plan.phases) == 1


@pytest.mark.parametrize("arch", ["wse2", "wse3"])
@pytest.mark.parametrize("grid", [(1, 1), (2, 2), (2, 3)])
def test_both_machines(grid, arch):
    check(linear(4, 8, 6), grid, arch=arch)


@pytest.mark.parametrize("grid", GRIDS)
def test_the_host_turns_a_transposed_weight(grid):
    plan = check(linear(4, 6, 5, trans=True), grid)
    assert len(plan.phases) == 1


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("grid", [*GRIDS, (2, 2)])
@pytest.mark.parametrize("shapes", [[(7,), (7, 5)], [(5, 7), (7,)], [(7,), (7,)], [(1, 7), (7, 5)], [(5, 7), (7, 1)]])
def test_vectors_are_multiplied_without_sending_the_matrix(shapes, grid, dtype):
    plan = check(graph_of("MatMul", shapes, dtype), grid, loose=1e-2 if dtype == np.float16 else None)
    assert plan.kernels[0].how == "reduce"


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("shapes", [[(3, 4, 5), (3, 5, 6)], [(3, 4, 5), (5, 6)], [(4, 5), (2, 3, 5, 6)]])
def test_batches(shapes, grid):
    check(graph_of("MatMul", shapes), grid)


def test_layers_of_a_row_follow_each_other_without_the_host():
    """The result of one product lies as the next one needs it: the axes take turns."""
    graph = Graph("mlp")
    graph.add_input("x", [1, 12])
    sizes = [12, 9, 7, 4]
    rng = np.random.default_rng(0)
    name = "x"
    for i, (a, b) in enumerate(itertools.pairwise(sizes)):
        graph.add_initializer(f"w{i}", rng.standard_normal((a, b)).astype(np.float32))
        graph.add_initializer(f"b{i}", rng.standard_normal(b).astype(np.float32))
        graph.add_node(f"fc{i}", "Gemm", [name, f"w{i}", f"b{i}"], [f"s{i}"])
        graph.add_node(f"act{i}", "Relu", [f"s{i}"], [f"r{i}"])
        name = f"r{i}"
    graph.add_output(name, [1, 4])
    plan = check(graph, (2, 3), loose=1e-4)
    assert len(plan.phases) == 1
    assert [k.k_axis for k in plan.kernels if isinstance(k, MatMul)] == ["y", "x", "y"]


@pytest.mark.parametrize("grid", [(1, 1), (2, 2), (2, 3)])
def test_products_follow_each_other(grid):
    graph = Graph("two")
    for name, shape in (("x", (6, 5)), ("v", (5, 7)), ("w", (7, 4))):
        graph.add_input(name, shape)
    graph.add_node("one", "MatMul", ["x", "v"], ["s"])
    graph.add_node("act", "Tanh", ["s"], ["t"])
    graph.add_node("two", "MatMul", ["t", "w"], ["y"])
    graph.add_output("y", [6, 4])
    plan = check(graph, grid, feeds_for(graph, 1), loose=1e-4)
    assert len(plan.phases) == 1
