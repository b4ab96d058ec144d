"""The specialiser, and each rule that needs numbers for sizes."""

import numpy as np
import pytest

from pyflame_rt import InferenceSession, opt
from pyflame_rt.graph import DType, Graph
from pyflame_rt.opt.rules.attention_steps import attention_steps
from pyflame_rt.opt.rules.exact_integers import exact_float_product
from pyflame_rt.opt.rules.gather_matmul import gather_matmul
from pyflame_rt.opt.rules.quantized_products import quantized_products
from pyflame_rt.opt.rules.slices import split_as_slices
from pyflame_rt.opt.specialize import MAX_INPUTS, BackendTarget, _without_unread, specialize

FLOAT = DType.Float32


def graph_of(nodes, outputs=("y",), **constants):
    graph = Graph("g")
    made = {o for _, _, out, _ in nodes for o in out}
    names = {n for _, inputs, _, _ in nodes for n in inputs if n} - made - constants.keys()
    for name in sorted(names):
        graph.add_input(name, None)
    for name, array in constants.items():
        graph.add_initializer(name, np.asarray(array))
    for i, (op, inputs, out, attributes) in enumerate(nodes):
        domain, _, kind = op.rpartition("::")
        graph.add_node(f"n{i}", kind, inputs, out, attributes, domain=domain)
    for name in outputs:
        graph.add_output(name, None)
    return graph


def made_of(graph, feeds, *rules, whole=()):
    target = BackendTarget(lambda _node, op, *_: op.full_name in whole, looks={"Gather"}, rules=rules)
    return specialize(graph, feeds, target, [info.name for info in graph.outputs])


def ops(made):
    return [step.op.full_name for step in made.steps]


def test_composites_open_unless_the_target_takes_them():
    graph = graph_of([("HardSwish", ["x"], ["y"], {})])
    feeds = {"x": (FLOAT, (2, 3))}
    assert ops(made_of(graph, feeds, whole={"HardSwish"})) == ["HardSwish"]
    assert "HardSwish" not in ops(made_of(graph, feeds))
    assert "Mul" in ops(made_of(graph, feeds))


def test_what_depends_on_sizes_and_weights_alone_is_computed():
    nodes = [("Shape", ["x"], ["s"], {}), ("Add", ["s", "one"], ["t"], {}), ("Expand", ["x", "t"], ["y"], {})]
    made = made_of(graph_of(nodes, one=np.int64([0, 0])), {"x": (FLOAT, (2, 3))})
    assert ops(made) == ["Expand"]
    assert made.constants["t"].tolist() == [2, 3]


def test_a_size_that_only_the_run_will_tell_blocks_what_follows():
    nodes = [("NonZero", ["x"], ["i"], {}), ("Neg", ["i"], ["y"], {})]
    made = made_of(graph_of(nodes), {"x": (FLOAT, (2, 3))})
    assert [b.step.op.name for b in made.blockers] == ["NonZero"]
    assert [node.op_type for node, _ in made.deferred] == ["NonZero", "Neg"]


def test_only_declared_operators_are_their_input():
    graph = graph_of([("pyflame::After", ["x", "z"], ["a"], {}), ("Neg", ["a"], ["y"], {})])
    feeds = {"x": (FLOAT, (2,)), "z": (FLOAT, (2,))}
    handed = BackendTarget(lambda *_: False, hands_on=("pyflame::After",))
    assert ops(specialize(graph, feeds, handed, ["y"])) == ["Neg"]
    assert ops(made_of(graph, feeds)) == ["pyflame::After", "Neg"]


def test_products_of_bytes_become_exact_products_of_floats():
    weights = np.full((4, 2), 3, np.int8)
    graph = graph_of([("MatMulInteger", ["x", "w"], ["y"], {})], w=weights)
    feeds = {"x": (DType.UInt8, (5, 4))}
    made = made_of(graph, feeds, exact_float_product)
    assert ops(made) == ["Cast", "MatMul", "Cast"]
    assert len(made.exact) == 1
    assert ops(made_of(graph, feeds, exact_float_product, whole={"MatMulInteger"})) == ["MatMulInteger"]


def test_sums_that_float32_cannot_hold_stay_as_they_are():
    graph = graph_of([("MatMulInteger", ["x", "w"], ["y"], {})], w=np.full((2048, 2), 127, np.int8))
    made = made_of(graph, {"x": (DType.UInt8, (5, 2048))}, exact_float_product)
    assert made.exact == set()


def quantized(op):
    one, point = np.float32(0.5), np.uint8(3)
    nodes = [
        ("DequantizeLinear", ["x", "s", "z"], ["a"], {}),
        ("DequantizeLinear", ["w", "t", "p"], ["b"], {}),
        (op, ["a", "b"], ["c"], {}),
        ("QuantizeLinear", ["c", "s", "z"], ["y"], {}),
    ]
    return graph_of(nodes, s=one, z=point, t=np.float32(0.25), p=np.int8(0), w=np.ones((4, 2), np.int8))


def test_products_of_dequantized_numbers_become_products_of_integers():
    feeds = {"x": (DType.UInt8, (5, 4))}
    whole = {"MatMulInteger", "Clip", "DequantizeLinear", "QuantizeLinear"}
    assert ops(made_of(quantized("MatMul"), feeds, quantized_products, whole=whole))[0] == "MatMulInteger"
    assert "MatMulInteger" not in ops(made_of(quantized("MatMul"), feeds, whole=whole))


def test_a_table_smaller_than_what_is_taken_from_it_is_multiplied():
    nodes = [("Gather", ["table", "i"], ["rows"], {}), ("MatMul", ["rows", "w"], ["y"], {})]
    feeds = {"table": (FLOAT, (4, 64)), "w": (FLOAT, (64, 8)), "i": (DType.Int64, (100,))}
    assert ops(made_of(graph_of(nodes), feeds, gather_matmul)) == ["MatMul", "Gather"]
    few = feeds | {"i": (DType.Int64, (3,))}
    assert ops(made_of(graph_of(nodes), few, gather_matmul)) == ["Gather", "MatMul"]


def test_attention_is_noted_where_the_target_has_a_kernel_for_it():
    nodes = [("MatMul", ["q", "k"], ["s"], {}), ("Softmax", ["s"], ["p"], {}), ("MatMul", ["p", "v"], ["y"], {})]
    feeds = {"q": (FLOAT, (2, 5, 4)), "k": (FLOAT, (2, 4, 6)), "v": (FLOAT, (2, 6, 3))}
    made = made_of(graph_of(nodes), feeds, attention_steps, whole={"Softmax"})
    (found,) = made.attentions
    assert (found.q, found.k, found.v, found.out) == ("q", "k", "v", "y")
    assert [id(step) for step in found.steps] == [id(step) for step in made.steps]
    assert made_of(graph_of(nodes), feeds, whole={"Softmax"}).attentions == []
    assert made_of(graph_of(nodes, ["y", "p"]), feeds, attention_steps, whole={"Softmax"}).attentions == []


def test_parts_of_a_split_become_slices():
    nodes = [
        ("Split", ["x"], ["a", "", "b"], {"axis": 1, "num_outputs": 3}),
        ("Concat", ["b", "a"], ["y"], {"axis": 1}),
    ]
    made = made_of(graph_of(nodes), {"x": (FLOAT, (2, 8))}, split_as_slices)
    assert ops(made) == ["Slice", "Slice", "Concat"]
    bounds = [[made.constants[n].item() for n in step.node.inputs[1:]] for step in made.steps[:2]]
    assert bounds == [[0, 3, 1], [6, 8, 1]]


def test_statistics_are_left_out_of_onnx_s_normalisation_alone():
    for domain, count in (("", 1), ("example", 3)):
        nodes = [(f"{domain}::LayerNormalization".removeprefix("::"), ["x", "w"], ["y", "mean", "scale"], {})]
        graph = graph_of(nodes, w=np.ones(3, np.float32))
        assert len(_without_unread(graph.nodes[0], {"y"}).outputs) == count


@pytest.mark.parametrize("rule", [r for r in opt.all_rules() if r.stage != "load"], ids=lambda r: r.name)
def test_rules_of_the_specialised_graph_are_declared_whole(rule):
    assert rule.about.endswith(".")
    assert rule.stage in ("first", "node", "last")
    assert bool(rule.ops) == (rule.stage == "node")
    assert rule.family == "specialize"


@pytest.mark.parametrize("name", ["Sum", "Mean", "Max", "Min", "Concat"])
def test_more_inputs_than_a_plan_is_made_for(name):
    """A node with very many inputs runs as it is: planning each of them would take longer than the sum itself."""
    attributes = {"axis": 0} if name == "Concat" else {}
    graph = Graph("many")
    graph.add_input("x", [3])
    graph.add_node("n", name, ["x"] * (MAX_INPUTS + 1), ["y"], attributes)
    graph.add_output("y", ["k"])
    session = InferenceSession(graph)
    x = np.asarray([1.0, -2.0, 0.5], np.float32)
    (found,) = session.run(None, {"x": x})
    wanted = {"Sum": x * (MAX_INPUTS + 1), "Concat": np.tile(x, MAX_INPUTS + 1)}.get(name, x)
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
    assert f"{MAX_INPUTS + 1:,} inputs" in str(session.explain())
