"""Every elementwise primitive, on grids that divide the tensor and on those that do not."""

import numpy as np
import pytest

from pyflame_rt.graph import DType, Graph
from tests.unit.backends.wse.running import GRIDS, check, feeds_for, graph_of, planned

BOTH = (-4.0, 4.0)
UNARY = {
    "Abs": BOTH, "Acos": (-1, 1), "Acosh": (1, 9), "Asin": (-1, 1), "Asinh": BOTH, "Atan": BOTH, "Atanh": (-0.9, 0.9),
    "Ceil": BOTH, "Cos": BOTH, "Cosh": BOTH, "Erf": BOTH, "Exp": BOTH, "Floor": BOTH, "Log": (0.1, 9), "Neg": BOTH,
    "Round": BOTH, "Sigmoid": BOTH, "Sign": BOTH, "Sin": BOTH, "Sinh": BOTH, "Softplus": BOTH, "Sqrt": (0, 9),
    "Tan": (-1, 1), "Tanh": BOTH,
}  # fmt: skip
COMPOSED = [
    "Relu",
    "LeakyRelu",
    "Elu",
    "Selu",
    "Gelu",
    "HardSwish",
    "HardSigmoid",
    "Mish",
    "Softsign",
    "Celu",
    "Reciprocal",
]
BINARY = {
    "Add": BOTH,
    "Sub": BOTH,
    "Mul": BOTH,
    "Div": (0.5, 4),
    "Max": BOTH,
    "Min": BOTH,
    "Pow": (0.5, 2),
    "Mod": (0.5, 9),
}


def grid_for(name):
    """A different grid for each operator, so that all are used."""
    return GRIDS[sum(map(ord, name)) % len(GRIDS)]


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("op", UNARY)
def test_unary(op, dtype):
    graph = graph_of(op, [(5, 7)], dtype)
    check(graph, grid_for(op), feeds_for(graph, 1, *UNARY[op]))


@pytest.mark.parametrize("op", COMPOSED)
def test_activations_composed_of_primitives(op):
    graph = graph_of(op, [(4, 6)])
    check(graph, grid_for(op), feeds_for(graph, 2, 0.2, 4) if op == "Reciprocal" else None)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("op", BINARY)
def test_binary(op, dtype):
    attributes = {"fmod": 1} if op == "Mod" else {}
    graph = graph_of(op, [(5, 7), (5, 7)], dtype, **attributes)
    check(graph, grid_for(op), feeds_for(graph, 3, *BINARY[op]))


@pytest.mark.parametrize("grid", [*GRIDS, (2, 2), (4, 5)])
@pytest.mark.parametrize("optimize", [True, False])
@pytest.mark.parametrize(
    "shapes", [[(5, 7), (7,)], [(5, 7), (5, 1)], [(2, 5, 7), (5, 1)], [(1, 7), (5, 1)], [(5, 7), ()]]
)
def test_broadcasting(shapes, optimize, grid):
    check(graph_of("Sub", shapes), grid, optimize=optimize)


@pytest.mark.parametrize("arch", ["wse2", "wse3"])
@pytest.mark.parametrize("grid", [(1, 1), (1, 4), (4, 1), (2, 3)])
def test_vectors_go_over_all_elements(arch, grid):
    plan = check(graph_of("Mul", [(23,), (23,)]), grid, arch=arch)
    assert plan.buffers[0].tiling.elements == -(-23 // (grid[0] * grid[1]))


def test_comparisons_select():
    graph = Graph("select")
    for name in "ab":
        graph.add_input(name, [4, 5])
    graph.add_node("less", "Less", ["a", "b"], ["c"])
    graph.add_node("not", "Not", ["c"], ["d"])
    graph.add_node("pick", "Where", ["c", "a", "b"], ["y"])
    graph.add_output("y", [4, 5])
    graph.add_output("d", [4, 5], DType.Bool)
    graph.add_output("c", [4, 5], DType.Bool)
    check(graph, (2, 2))


def test_casts_between_float_types():
    graph = graph_of("Cast", [(4, 5)], to=DType.Float16.onnx)
    check(graph, (2, 2))


def test_what_belongs_together_is_one_kernel_in_place():
    graph = Graph("chain")
    graph.add_input("x", [8, 8])
    graph.add_node("n1", "Sigmoid", ["x"], ["s"])
    graph.add_node("n2", "Mul", ["x", "s"], ["m"])
    graph.add_node("n3", "Exp", ["m"], ["y"])
    graph.add_output("y", [8, 8])
    plan = check(graph, (2, 2))
    assert len(plan.kernels) == 1
    plain = check(graph, (2, 2), optimize=False)
    assert len(plain.kernels) == 3
    assert plan.data_bytes < plain.data_bytes


def test_optimize_changes_the_program_and_the_rest_only_the_text():
    graph = graph_of("Relu", [(4, 4)])
    texts = {}
    for name in ("optimize", "generate_debug_info", "emit_comments"):
        for value in (True, False):
            texts[name, value] = planned(graph, (2, 2), **{name: value})[0]["pe_program.csl"]
        assert texts[name, True] != texts[name, False]
    assert "//" not in texts["emit_comments", False]
    assert "@fmaxs" in texts["optimize", True]
    assert "@fmaxs" not in texts["optimize", False]
    assert "debug_stage" in texts["generate_debug_info", True]
    check(graph, (2, 2), generate_debug_info=True)
