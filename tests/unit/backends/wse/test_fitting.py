"""Memory: code and stack count, programs run in passes, and what still does not fit is refused with numbers."""

import numpy as np
import pytest

from pyflame_rt import InferenceSession
from pyflame_rt.backends.wse import CodeGenOptions, CSLCodeGenerator
from pyflame_rt.backends.wse.emit.package import package
from pyflame_rt.backends.wse.generator import reference
from pyflame_rt.backends.wse.plan.fitting import make_plan
from pyflame_rt.backends.wse.plan.footprint import MEMORY, measure, surely_fits
from pyflame_rt.backends.wse.plan.host_passes import families, folded
from pyflame_rt.backends.wse.plan.lowering import lower, opened
from pyflame_rt.backends.wse.plan.memory import plan_memory
from pyflame_rt.backends.wse.plan.op_support import KNOWN
from pyflame_rt.backends.wse.plan.primitives import flatten
from pyflame_rt.backends.wse.plan.tiling import Grid
from pyflame_rt.backends.wse.simulate import compile_sources, simulate
from pyflame_rt.demo import model_path
from pyflame_rt.graph import Graph
from pyflame_rt.graph.errors import InputError, MemoryLimitError
from tests.unit.backends.wse.running import LOOSE, check, feeds_for, graph_of, planned
from tests.unit.backends.wse.table import CASES


@pytest.mark.parametrize(
    "case",
    [pytest.param(c, marks=[pytest.mark.slow] if i % 5 else [], id=f"{c.name}-{i}") for i, c in enumerate(CASES)],
)
def test_every_family_of_dimensions_can_be_cut(case):
    """Whatever the analysis calls independent is: passes give what the whole gives."""
    graph = case.graph(case.types[0])
    feeds = case.feeds(graph, 4)
    want = reference(graph, feeds)
    flat = opened(flatten(graph, KNOWN))
    options = CodeGenOptions(fabric_width=2, fabric_height=2, target="wse3")
    for family in families(flat):
        part, fold = folded(flat, family, min(family.size, 3))
        plan = plan_memory(lower(part, Grid(2, 2)))
        plan.fold = fold
        assert fold.passes > 1
        got = simulate(*package(plan, options), {**plan.constants, **feeds})
        for name, array in want.items():
            bound = LOOSE.get(array.dtype, 0.0) * case.scale
            assert got[name].shape == array.shape
            np.testing.assert_allclose(got[name].astype(float), array.astype(float), rtol=bound, atol=bound)


def test_elements_that_meet_are_not_cut():
    def sizes(op, shapes, **rest):
        return sorted(f.size for f in families(opened(flatten(graph_of(op, shapes, **rest), KNOWN))))

    assert sizes("Softmax", [(5, 7)]) == [5]
    assert sizes("MatMul", [(5, 7), (7, 6)]) == [5, 6]
    assert sizes("Transpose", [(5, 7)]) == [5, 7]
    assert sizes("Flatten", [(3, 4, 5)]) == [3, 4]
    assert sizes("Conv", [(2, 3, 8, 8), (4, 3, 3, 3)]) == [2, 4]
    graph = Graph("gram")
    graph.add_input("x", [5, 7])
    graph.add_node("t", "Transpose", ["x"], ["xt"])
    graph.add_node("p", "MatMul", ["x", "xt"], ["y"])
    graph.add_output("y", [5, 5])
    assert families(opened(flatten(graph, KNOWN))) == []


@pytest.mark.parametrize(("grid", "budget"), [((1, 1), 3000), ((2, 3), 1200)])
def test_a_product_too_large_runs_in_passes(grid, budget):
    plan = check(graph_of("MatMul", [(40, 24), (24, 20)]), grid, memory_budget=budget)
    assert plan.fold is not None
    assert plan.data_bytes <= budget
    assert plan.fold.passes > 1
    assert plan.inputs["a"][1] == (40, 24)


def test_layers_run_in_the_fewest_passes():
    graph = Graph("layers")
    graph.add_input("x", [30, 12])
    rng = np.random.default_rng(0)
    for i in range(2):
        graph.add_initializer(f"w{i}", rng.standard_normal((12, 12)).astype(np.float32))
        graph.add_node(f"fc{i}", "MatMul", [f"r{i}" if i else "x", f"w{i}"], [f"s{i}"])
        graph.add_node(f"act{i}", "Relu", [f"s{i}"], [f"r{i + 1}"])
    graph.add_output("r2", [30, 12])
    plan = check(graph, (1, 1), feeds_for(graph, 2), loose=1e-4, memory_budget=2400)
    assert plan.fold is not None
    more = CodeGenOptions(
        fabric_width=1, fabric_height=1, memory_budget=2400, max_passes=plan.fold.passes - 1, target="wse3"
    )
    with pytest.raises(MemoryLimitError):
        make_plan(flatten(graph, KNOWN), more)


def test_code_and_stack_are_in_the_manifest_and_count():
    graph = graph_of("Softmax", [(40, 40)])
    made = CSLCodeGenerator().generate_source(graph, CodeGenOptions(fabric_width=2, fabric_height=2))
    assert "of 49152 bytes" in made["README.md"]
    options = CodeGenOptions(fabric_width=3, fabric_height=2, target="wse3")
    plan = make_plan(flatten(graph, KNOWN), options)
    counted = measure(plan, options)
    sources, manifest = package(plan, options)
    memory = compile_sources(sources, manifest, "wse3").programs[0].memory
    assert (counted.code, counted.stack, counted.reserve) == (memory.code, memory.stack, memory.reserve)
    assert plan.data_bytes <= counted.data == memory.data


@pytest.mark.parametrize("op", ["Attention", "MatMul", "LayerNormalization", "BatchNormalization", "Mish", "Conv"])
def test_the_bound_on_code_is_one(op):
    case = next(c for c in CASES if c.op == op)
    options = CodeGenOptions(fabric_width=2, fabric_height=3, optimize=False)
    plan = make_plan(flatten(case.graph("float16"), KNOWN), options)
    assert surely_fits(plan)
    plan.slots["all_the_rest"] = ("f32", (MEMORY - plan.data_bytes - measure(plan, options).code) // 4)
    assert not surely_fits(plan)


def test_data_that_leaves_no_room_for_code_gets_a_larger_grid():
    graph = graph_of("Softmax", [(76, 76)])
    tight = {"memory_budget": 48 * 1024, "max_passes": 1}
    with pytest.raises(MemoryLimitError, match=r"needs \d+ bytes \(data .*code about \d+.*smallest square.*is 2 x 2"):
        planned(graph, (1, 1), **tight)
    assert planned(graph, **tight)[1]["grid"] == {"rows": 2, "cols": 2}


def test_the_trained_digits_model_fits_a_small_grid():
    wafer = InferenceSession(model_path(), providers=[("WSEExecutionProvider", {"rows": 3, "cols": 3})])
    name = wafer.get_inputs()[0].name
    shape = [int(d) for d in wafer.get_inputs()[0].shape[1:]]
    images = np.random.default_rng(0).random((10, *shape), np.float32)
    want = InferenceSession(model_path()).run(["probabilities"], {name: images})[0]
    np.testing.assert_allclose(wafer.run(["probabilities"], {name: images})[0], want, rtol=1e-3, atol=1e-5)


def test_passes_are_checked():
    with pytest.raises(InputError, match="max_passes"):
        CSLCodeGenerator().generate_source(graph_of("Relu", [(4,)]), CodeGenOptions(max_passes=0))


@pytest.mark.parametrize("size", [78, 80, 82])
def test_code_of_rings_counts(size):
    """Data and code of blocks that go round are just too much for a PE, or just not: then they are broadcast."""
    plan = planned(graph_of("MatMul", [(size, size), (size, size)]), (2, 2), target="wse3", max_passes=1)[2]
    assert measure(plan, CodeGenOptions(target="wse3")).total <= MEMORY
    assert (plan.kernels[0].how == "shift") == (size == 78)


@pytest.mark.parametrize(("products", "shape"), [("shift", (4, 4)), ("broadcast", (4, 4)), ("auto", (1, 2, 8, 8))])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_what_surely_fits_is_an_upper_bound(products, shape, dtype):
    window = len(shape) == 4
    graph = (
        graph_of("Conv", [shape, (2, 2, 3, 3)], dtype, pads=[1] * 4)
        if window
        else graph_of("MatMul", [shape] * 2, dtype)
    )
    plan = planned(graph, (2, 2), products=products)[2]
    counted = measure(plan, CodeGenOptions())
    spare = MEMORY - counted.total
    plan.scratch["more"] = ("u32", spare // 4 + 1)  # so much that it does not fit
    assert not surely_fits(plan)
