"""Products: block by block over rows and columns or from neighbour to neighbour, or by adding up parts of K."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyflame_rt.backends.wse import CodeGenOptions
from pyflame_rt.backends.wse.plan.kernels import MatMul
from pyflame_rt.backends.wse.plan.predict import predict_scale
from pyflame_rt.graph import DType, Graph
from pyflame_rt.graph.errors import InputError
from tests.unit.backends.wse.running import GRIDS, check, feeds_for, graph_of, planned


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
    plan = check(linear(6, 9, 5, dtype), grid)
    assert [type(k).__name__ for k in plan.kernels] == ["MatMul", "MapKernel"]
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
    plan = check(graph_of("MatMul", shapes, dtype), grid)
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
    plan = check(graph, (2, 3))
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
    plan = check(graph, grid, feeds_for(graph, 1))
    assert len(plan.phases) == 1


# --- from neighbour to neighbour --------------------------------------------------------------------------------------

RINGS = [(1, 2), (1, 5), (4, 1), (2, 2), (3, 3), (4, 4)]


@pytest.mark.parametrize(("dtype", "arch"), [(np.float32, "wse2"), (np.float16, "wse3")])
@pytest.mark.parametrize("grid", RINGS)
@pytest.mark.parametrize("shapes", [[(5, 7), (7, 6)], [(3, 4, 5), (3, 5, 6)], [(4, 5), (2, 5, 6)]])
def test_blocks_go_round(shapes, grid, dtype, arch):
    plan = check(graph_of("MatMul", shapes, dtype), grid, arch=arch, products="shift")
    (kernel,) = plan.kernels
    assert kernel.how == "shift"
    assert not kernel.keep_a
    assert not kernel.keep_b


@pytest.mark.parametrize(("dtype", "arch"), [(np.float32, "wse2"), (np.float16, "wse3")])
@pytest.mark.parametrize("grid", RINGS)
def test_operands_that_are_needed_again_stay(grid, dtype, arch):
    graph = Graph("again")
    for name in "ab":
        graph.add_input(name, (7, 7), DType.of(np.dtype(dtype)))
    graph.add_node("one", "MatMul", ["a", "b"], ["p"])
    graph.add_node("two", "MatMul", ["p", "a"], ["q"])
    graph.add_node("three", "Sub", ["q", "b"], ["y"])
    graph.add_output("y", (7, 7), DType.of(np.dtype(dtype)))
    plan = check(graph, grid, arch=arch, products="shift")
    assert [(k.keep_a, k.keep_b) for k in plan.kernels[:2]] == [(True, True), (False, False)]
    assert len(plan.phases) == 1


@settings(max_examples=15, deadline=None)
@given(
    sizes=st.tuples(*[st.integers(2, 14)] * 3),
    batch=st.sampled_from([(), (1,), (3,)]),
    shared=st.booleans(),
    grid=st.sampled_from([*RINGS, (6, 6), (1, 7)]),
    dtype=st.sampled_from([np.float32, np.float16]),
    arch=st.sampled_from(["wse2", "wse3"]),
)
def test_any_product_by_neighbours(sizes, batch, shared, grid, dtype, arch):
    m, k, n = sizes
    shapes = [(*batch, m, k), (k, n) if shared else (*batch, k, n)]
    check(graph_of("MatMul", shapes, dtype), grid, arch=arch, products="shift")


def test_a_product_with_itself_is_broadcast():
    plan = check(_square(), (2, 2), products="shift")
    assert plan.kernels[0].how == "summa"


def _square():
    graph = Graph("square")
    graph.add_input("a", (6, 6))
    graph.add_node("one", "MatMul", ["a", "a"], ["y"])
    graph.add_output("y", (6, 6))
    return graph


def test_grids_that_have_no_rings():
    with pytest.raises(InputError, match=r"as many rows.*2 x 3"):
        planned(graph_of("MatMul", [(6, 6), (6, 6)]), (2, 3), products="shift")
    assert planned(graph_of("MatMul", [(6, 6), (6, 6)]), (2, 3))[2].kernels[0].how == "summa"
    with pytest.raises(InputError, match="products must be one of"):
        CodeGenOptions(products="cannon").check()


@pytest.mark.parametrize(("grid", "size"), [((2, 2), 24), ((4, 4), 8), ((8, 8), 8), ((8, 8), 40), ((1, 6), 24)])
@pytest.mark.parametrize("again", [False, True])
def test_the_cheaper_way_is_taken(grid, size, again):
    """Within a twentieth, which is what the formulas are good for."""
    graph = graph_of("MatMul", [(size, size), (size, size)])
    if again:
        graph.outputs.clear()
        graph.add_node("more", "Sub", ["y", "a"], ["z"])
        graph.add_output("z", None)
    took = {}
    for products in ("auto", "broadcast", "shift"):
        (found,) = predict_scale(graph, [grid], simulate_up_to=0, products=products).grids
        took[products] = found.cycles
    assert took["auto"] <= 1.05 * min(took.values())
    assert took["auto"] in (took["broadcast"], took["shift"])


def test_what_leaves_no_room_for_rings_is_broadcast():
    graph = graph_of("MatMul", [(8, 24, 24), (8, 24, 24)])
    roomy = planned(graph, (2, 2))[2]
    assert roomy.kernels[0].how == "shift"
    plan = planned(graph, (2, 2), memory_budget=roomy.data_bytes - 4, max_passes=1)[2]
    assert plan.kernels[0].how == "summa"
