"""What each pass does and leaves alone, and how the manager runs them."""

import logging

import numpy as np
import pytest

from pyflame_rt import opt
from pyflame_rt.graph import DType, Graph
from pyflame_rt.graph.errors import InputError, ValidationError
from pyflame_rt.ops.core.evaluate import Context, Program
from pyflame_rt.opt import OptLevel, rule
from pyflame_rt.opt.verification import answers, same_bits


def graph_of(nodes, *, inputs=(("x", [2, 3]),), outputs=("y",), constants=None):
    graph = Graph("g")
    for name, shape, *dtype in inputs:
        graph.add_input(name, shape, *dtype)
    for name, array in (constants or {}).items():
        graph.add_initializer(name, np.asarray(array))
    for i, (op, given, made, *attributes) in enumerate(nodes):
        domain, _, kind = op.rpartition("::")
        graph.add_node(f"n{i}", kind, given, made, attributes[0] if attributes else None, domain=domain)
    for name in outputs:
        graph.add_output(name, None)
    return graph


def ops(graph):
    return [node.full_name for node in graph.nodes]


def run(graph, **feed):
    return Program(graph).run([feed.get(info.name) for info in graph.inputs], Context.of("numpy"))


def test_folding_keeps_to_its_limits():
    def fresh():
        nodes = [("Expand", ["c", "s"], ["big"]), ("Add", ["x", "big"], ["y"])]
        return graph_of(nodes, constants={"c": np.float32(1), "s": np.array([2, 3])})

    graph = fresh()
    assert opt.fold_constants(graph).stats.constants_folded == 1
    assert ops(graph) == ["Add"]
    graph = fresh()
    result = opt.fold_constants(graph, opt.ConstantFoldingConfig(max_tensor_bytes=8))
    assert not result.modified
    assert "too large" in result.warnings[0]
    graph = fresh()
    assert not opt.fold_constants(graph, opt.ConstantFoldingConfig(exclude_ops=["Expand"])).modified


def test_expensive_operators_are_folded_on_request():
    def fresh():
        constants = {"a": np.eye(3, dtype=np.float32), "b": np.ones((3, 3), np.float32)}
        return graph_of([("MatMul", ["a", "b"], ["p"]), ("MatMul", ["x", "p"], ["y"])], constants=constants)

    assert not opt.fold_constants(fresh()).modified
    graph = fresh()
    assert opt.fold_constants(graph, opt.ConstantFoldingConfig(fold_expensive_ops=True)).modified
    assert ops(graph) == ["MatMul"]


def test_sizes_are_folded_where_they_are_known():
    nodes = [("Shape", ["x"], ["s"]), ("Reshape", ["x", "s"], ["y"])]
    graph = graph_of(nodes)
    assert not opt.fold_constants(graph, opt.ConstantFoldingConfig(fold_shape_ops=False)).modified
    assert opt.fold_constants(graph).stats.constants_folded == 1
    assert graph.initializers["s"].numpy().tolist() == [2, 3]
    assert not opt.fold_constants(graph_of(nodes, inputs=[("x", ["N", 3])])).modified


def test_an_input_with_a_default_is_no_constant():
    graph = graph_of([("Neg", ["c"], ["y"])], inputs=[("c", [2])], constants={"c": np.ones(2, np.float32)})
    assert not opt.optimize(graph, OptLevel.ALL).modified
    assert "c" in graph.initializers


def test_random_numbers_are_neither_folded_nor_merged():
    draw = ("RandomNormal", [], ["a"], {"shape": [3]})
    graph = graph_of([draw, ("RandomNormal", [], ["b"], {"shape": [3]}), ("Sub", ["a", "b"], ["y"])], inputs=())
    assert not opt.optimize(graph, OptLevel.ALL).modified


def test_dead_code_of_every_kind():
    nodes = [
        ("Identity", ["x"], ["i"]),
        ("Dropout", ["i"], ["d", "mask"]),
        ("Exp", ["x"], ["unused"]),
        ("Relu", ["d"], ["r"]),
        ("Identity", ["r"], ["y"]),
    ]
    graph = graph_of(nodes, constants={"lonely": np.ones(3, np.float32)})
    result = opt.eliminate_dead_code(graph)
    assert ops(graph) == ["Relu"]
    assert graph.nodes[0].outputs == ("y",)
    assert (result.stats.nodes_removed, result.stats.initializers_removed) == (4, 1)
    kept = graph_of(nodes, constants={"lonely": np.ones(3, np.float32)})
    config = opt.DCEConfig(remove_initializers=False, remove_identity=False, remove_dropout=False)
    opt.eliminate_dead_code(kept, config)
    assert ops(kept) == ["Identity", "Dropout", "Relu", "Identity"]
    assert "lonely" in kept.initializers


def test_dropout_in_training_stays():
    nodes = [("Dropout", ["x", "ratio", "training"], ["y"])]
    graph = graph_of(nodes, constants={"ratio": np.float32(0.5), "training": np.array(True)})
    assert not opt.eliminate_dead_code(graph).modified


def test_outputs_that_nobody_reads_go():
    nodes = [("LayerNormalization", ["x", "s"], ["y", "mean", "deviation"])]
    graph = graph_of(nodes, constants={"s": np.ones(3, np.float32)})
    assert opt.eliminate_dead_code(graph).modified
    assert graph.nodes[0].outputs == ("y",)


def test_an_input_given_out_stays_an_identity():
    graph = graph_of([("Identity", ["x"], ["y"])])
    assert not opt.optimize(graph, OptLevel.ALL).modified


def test_equal_nodes_differ_by_attributes():
    def fresh():
        nodes = [
            ("LeakyRelu", ["x"], ["a"], {"alpha": 0.1}),
            ("LeakyRelu", ["x"], ["b"], {"alpha": 0.1}),
            ("LeakyRelu", ["x"], ["c"], {"alpha": 0.2}),
            ("Sum", ["a", "b", "c"], ["y"]),
        ]
        return graph_of(nodes)

    graph = fresh()
    assert opt.eliminate_common_subexpressions(graph).stats.nodes_removed == 1
    assert graph.nodes[-1].inputs == ("a", "a", "c")
    assert not opt.eliminate_common_subexpressions(fresh(), opt.CSEConfig(check_attributes=False)).modified
    assert not opt.eliminate_common_subexpressions(fresh(), opt.CSEConfig(max_comparisons=0)).modified


def test_equal_constants_become_one():
    big = np.arange(5000, dtype=np.float32)
    constants = {"a": big, "b": big.copy(), "c": -big, "z": np.float32(0.0), "m": np.float32(-0.0)}
    nodes = [("Sum", ["x", "a", "b", "c"], ["s"]), ("Sum", ["s", "z", "m"], ["y"])]
    graph = graph_of(nodes, inputs=[("x", [5000])], constants=constants)
    opt.eliminate_common_subexpressions(graph)
    assert sorted(graph.initializers) == ["a", "c", "m", "z"]


FUSIONS = {
    "FusedAddRelu": ([("Add", ["x", "v"], ["a"]), ("Relu", ["a"], ["y"])], "fuse_elementwise_activation"),
    "FMA": ([("Mul", ["x", "v"], ["a"]), ("Add", ["v", "a"], ["y"])], "fuse_elementwise_activation"),
    "Gemm": ([("MatMul", ["x", "m"], ["a"]), ("Add", ["a", "v"], ["y"])], "fuse_matmul_add"),
}


@pytest.mark.parametrize("name", FUSIONS)
def test_fusions_have_a_switch(name):
    nodes, switch = FUSIONS[name]
    constants = {"v": np.ones(3, np.float32), "m": np.eye(3, dtype=np.float32)}
    graph = graph_of(nodes, constants=constants)
    before = run(graph, x=np.ones((2, 3), np.float32))
    assert not opt.fuse_operators(graph, opt.FusionConfig(**{switch: False})).modified
    result = opt.fuse_operators(graph)
    assert result.stats.nodes_fused == 1
    assert ops(graph)[0].rpartition("::")[2] == name
    assert same_bits(before[0], run(graph, x=np.ones((2, 3), np.float32))[0])


def test_fusion_stops_at_outputs_and_other_readers():
    nodes = [("Add", ["x", "v"], ["a"]), ("Relu", ["a"], ["y"])]
    constants = {"v": np.ones(3, np.float32)}
    assert not opt.fuse_operators(graph_of(nodes, outputs=("y", "a"), constants=constants)).modified
    shared = graph_of([*nodes, ("Neg", ["a"], ["z"])], outputs=("y", "z"), constants=constants)
    assert not opt.fuse_operators(shared).modified


def test_a_larger_bias_is_no_gemm():
    graph = graph_of(
        [("MatMul", ["x", "m"], ["a"]), ("Add", ["a", "c"], ["y"])],
        constants={"m": np.ones((3, 1), np.float32), "c": np.ones((2, 5), np.float32)},
    )
    opt.fuse_operators(graph)
    assert ops(graph) == ["MatMul", "Add"]


def test_a_target_nobody_knows_is_refused():
    with pytest.raises(InputError, match="target_backend is 'gpu'"):
        opt.fuse_operators(graph_of([("Neg", ["x"], ["y"])]), opt.FusionConfig(target_backend="gpu"))
    with pytest.raises(InputError, match="target_backend is 'gpu'"):
        opt.optimize_layout(graph_of([("Neg", ["x"], ["y"])]), opt.LayoutConfig(target_backend="gpu"))


@pytest.mark.parametrize("target", ["reference", "wse", "wse3"])
def test_a_target_that_makes_no_difference_is_told(target):
    graph = graph_of([("Neg", ["x"], ["y"])])
    for run, kind in ((opt.fuse_operators, opt.FusionConfig), (opt.optimize_layout, opt.LayoutConfig)):
        (text,) = run(graph, kind(target_backend=target)).warnings
        assert text.startswith(f"{kind.__name__}.target_backend='{target}'")
        assert run(graph, kind()).warnings == []


def image_graph():
    rng = np.random.default_rng(0)
    constants = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in WEIGHTS.items()}
    nodes = [
        ("Conv", ["x", "w1", "b1"], ["a"], {"pads": [1, 1, 1, 1]}),
        ("Relu", ["a"], ["b"]),
        ("Sigmoid", ["b"], ["c"]),
        ("Conv", ["c", "w2"], ["d"], {"strides": [2, 2]}),
        ("Conv", ["c", "w3"], ["e"], {"strides": [2, 2]}),
        ("Add", ["d", "e"], ["y"]),
    ]
    return graph_of(nodes, inputs=[("x", ["N", 3, 7, 7])], constants=constants)


WEIGHTS = {"w1": (5, 3, 3, 3), "b1": (5,), "w2": (6, 5, 3, 3), "w3": (6, 5, 3, 3)}


@pytest.mark.parametrize(("layout", "changes"), [(opt.Layout.NHWC, 2), (opt.Layout.NC4HW4, 2)])
def test_layouts_change_the_graph_and_not_the_answer(layout, changes):
    graph = image_graph()
    x = np.random.default_rng(1).standard_normal((2, 3, 7, 7)).astype(np.float32)
    before = answers(graph, {"x": x})[0]
    untouched = graph.copy()
    opt.optimize_layout(untouched, opt.LayoutConfig(conv_layout=layout, insert_transposes=False))
    assert ops(untouched) == ops(graph)
    plain = graph.copy()
    opt.optimize_layout(plain, opt.LayoutConfig(conv_layout=layout, propagate_layout=False))
    moved = ("Transpose", "pyflame::ToNC4HW4", "pyflame::FromNC4HW4")
    assert sum(op in moved for op in ops(plain)) == 6
    result = opt.optimize_layout(graph, opt.LayoutConfig(conv_layout=layout))
    assert result.modified
    assert sum(op in moved for op in ops(graph)) == changes
    assert ops(graph).count(f"pyflame::Conv{layout.value}") == 3
    for other in (plain, graph):
        assert other.validate() == []
        assert np.array_equal(answers(other, {"x": x})[0], before)
    opt.optimize_layout(graph, opt.LayoutConfig(conv_layout=opt.Layout.NCHW))
    assert np.array_equal(answers(graph, {"x": x})[0], before)
    assert layout is not opt.Layout.NHWC or "pyflame::ConvNHWC" not in ops(graph)


# ---------------------------------------------------------------------- the manager


class Counting(opt.Pass):
    """Counts how often it ran."""

    def __init__(self):
        self.runs = 0

    def run(self, graph):
        self.runs += 1
        return opt.PassResult(modified=self.runs < 3)


class Breaking(opt.Pass):
    """Makes a node read nothing."""

    def run(self, graph):
        graph.nodes[0] = graph.nodes[0].replace(inputs=["nowhere"])
        return opt.PassResult(modified=True)


def test_managers_run_to_a_fixed_point_within_limits():
    graph = graph_of([("Neg", ["x"], ["y"])])
    manager, counting = opt.PassManager(), Counting()
    manager.register_pass(counting)
    assert manager.run(graph).modified
    assert counting.runs == 1
    assert not manager.run_until_fixed_point(graph).warnings
    assert counting.runs == 3
    few = opt.PassManager(opt.PassManagerConfig(max_iterations=2))
    few.register_pass(Counting())
    assert "after 2 rounds" in few.run_until_fixed_point(graph).warnings[0]


def test_an_empty_manager_warns():
    assert "no passes are registered" in opt.PassManager().run(graph_of([("Neg", ["x"], ["y"])])).warnings[0]


def test_names_with_and_without_pass():
    manager = opt.PassManager.create_default(OptLevel.ALL)
    assert manager.has_pass("CSE")
    assert manager.has_pass("CSEPass")
    assert not manager.has_pass("Nothing")
    with pytest.raises(InputError, match="Did you mean ConstantFoldingPass"):
        manager.run_pass("ConstantFoldin", graph_of([("Neg", ["x"], ["y"])]))


def test_skip_only_and_levels():
    def fresh():
        return graph_of(
            [("Identity", ["x"], ["i"]), ("Abs", ["i"], ["a"]), ("Abs", ["i"], ["b"]), ("Add", ["a", "b"], ["y"])]
        )

    def left(**settings):
        graph = fresh()
        config = opt.PassManagerConfig(**settings)
        opt.PassManager.create_default(OptLevel.EXTENDED, config).run_until_fixed_point(graph)
        return ops(graph)

    assert left() == ["Abs", "Add"]
    assert left(skip_passes=["CSEPass"]) == ["Abs", "Abs", "Add"]
    assert left(only_passes=["CSE"]) == ["Identity", "Abs", "Add"]
    config = opt.PassManagerConfig(skip_passes=["Nonsense"])
    result = opt.PassManager.create_default(OptLevel.BASIC, config).run(fresh())
    assert "no pass 'Nonsense'" in result.warnings[0]
    levels = {level: len(opt.PassManager.create_default(level).list_passes()) for level in OptLevel}
    assert list(levels.values()) == [0, 3, 5, 6]


def test_a_broken_graph_names_pass_and_node():
    manager = opt.PassManager(opt.PassManagerConfig(validate_after_pass=True))
    manager.register_pass(Breaking())
    with pytest.raises(ValidationError, match="after pass 'Breaking'") as caught:
        manager.run(graph_of([("Neg", ["x"], ["y"])]))
    assert "node 'n0' (Neg) reads 'nowhere'" in caught.value.errors[0]


def test_a_pass_must_give_a_result():
    class Silent(opt.Pass):
        def run(self, graph):
            return None

    manager = opt.PassManager()
    manager.register_pass(Silent())
    with pytest.raises(InputError, match="'Silent' gave NoneType"):
        manager.run(graph_of([("Neg", ["x"], ["y"])]))


def test_time_is_limited(monkeypatch):
    from pyflame_rt.opt import manager as module

    clock = iter(range(0, 1000, 10))
    monkeypatch.setattr(module.time, "perf_counter", lambda: float(next(clock)))
    result = opt.PassManager.create_default(OptLevel.BASIC, opt.PassManagerConfig(timeout_ms=25_000)).run(
        graph_of([("Identity", ["x"], ["i"]), ("Neg", ["i"], ["y"])])
    )
    assert "time was up after 25000 ms" in result.warnings[0]


def test_verbose_says_what_each_pass_did(caplog):
    config = opt.PassManagerConfig(verbose=True)
    with caplog.at_level(logging.INFO, "pyflame_rt"):
        opt.PassManager.create_default(OptLevel.BASIC, config).run(
            graph_of([("Identity", ["x"], ["i"]), ("Neg", ["i"], ["y"])])
        )
    assert any("DeadCodeEliminationPass: 2 -> 1 nodes" in record.getMessage() for record in caplog.records)


def test_passes_register_in_code_and_run_in_sessions():
    from pyflame_rt import InferenceSession
    from pyflame_rt.opt import manager as module

    class Doubling(opt.Pass):
        """Turns Neg into Abs, which nobody else would."""

        def run(self, graph):
            changed = [n.op_type == "Neg" for n in graph.nodes]
            graph.nodes = [n.replace(op_type="Abs") if hit else n for n, hit in zip(graph.nodes, changed, strict=True)]
            return opt.PassResult(modified=any(changed))

    opt.register_pass(Doubling)
    try:
        session = InferenceSession(graph_of([("Neg", ["x"], ["y"])]))
        assert session.run(None, {"x": np.full((2, 3), 2.0, np.float32)})[0].max() == 2.0
    finally:
        del module._registered["Doubling"]


def test_bodies_are_optimised_too():
    then = graph_of([("Identity", ["x"], ["i"]), ("Neg", ["i"], ["y"])])
    other = graph_of([("Exp", ["x"], ["y"])])
    graph = Graph("g")
    graph.add_input("c", [], DType.Bool)
    graph.add_input("x", [2, 3])
    graph.add_node("if", "If", ["c", "x"], ["y"], {"then_branch": then, "else_branch": other, "captured": 1})
    graph.add_output("y", [2, 3])
    assert opt.optimize(graph, OptLevel.BASIC).modified
    assert ops(graph.nodes[0].attributes["then_branch"]) == ["Neg"]
    assert ops(then) == ["Identity", "Neg"], "the graph it came from is another's"


def test_constant_branches_are_taken():
    then = graph_of([("Neg", ["x"], ["y"])])
    other = graph_of([("Exp", ["x"], ["y"])])
    graph = Graph("g")
    graph.add_initializer("c", np.array(True))
    graph.add_input("x", [2, 3])
    graph.add_node("if", "If", ["c", "x"], ["y"], {"then_branch": then, "else_branch": other, "captured": 1})
    graph.add_output("y", [2, 3])
    opt.optimize(graph, OptLevel.BASIC)
    assert ops(graph) == ["Neg"]


def test_patterns_say_what_is_wrong_with_them():
    pattern = opt.Pattern()
    matcher = opt.PatternMatcher()
    graph = graph_of([("Mul", ["x", "x"], ["a"]), ("Add", ["a", "x"], ["y"])])
    with pytest.raises(InputError, match="no nodes"):
        matcher.find_all(graph, pattern)
    pattern.add_node(opt.PatternNode.op("Mul", "mul"))
    pattern.add_node(opt.PatternNode.any("last"))
    with pytest.raises(InputError, match="already"):
        pattern.add_node(opt.PatternNode.op("Add", "mul"))
    with pytest.raises(InputError, match="no node 'sum'"):
        pattern.set_root("sum")
    pattern.set_root("last")
    with pytest.raises(InputError, match="no edges lead from 'mul'"):
        matcher.find_all(graph, pattern)
    pattern.add_edge(opt.PatternEdge.output_to_input("mul", "last", 0))
    (match,) = matcher.find_all(graph, pattern)
    assert match.get_node("last").op_type == "Add"
    assert match.is_single_consumer("mul")


def test_a_bias_of_the_last_axis_keeps_transposes_around_it():
    """FastGelu's bias has one number for each place of the last axis, whichever that is."""
    turn = {"perm": [0, 2, 1]}
    nodes = [
        ("Transpose", ["x"], ["a"], turn),
        ("com.microsoft::FastGelu", ["a", "b"], ["c"]),
        ("Transpose", ["c"], ["y"], turn),
    ]
    bias = np.arange(7, dtype=np.float32)
    graph = graph_of(nodes, inputs=[("x", [3, 7, 5])], constants={"b": bias})
    x = np.random.default_rng(0).standard_normal((3, 7, 5)).astype(np.float32)
    (want,) = run(graph, x=x)
    opt.optimize(graph)
    np.testing.assert_allclose(run(graph, x=x)[0], want, rtol=1e-6)


def test_a_constant_that_all_read_does_not_bring_all_back(monkeypatch):
    """Work grows with the nodes, also where each rewrite takes out a reader of what every node reads."""

    def tries(count):
        nodes = []
        for i in range(count):
            nodes += [("Slice", [f"x{i}", "zero", "all", "axis"], [f"s{i}"]), ("Neg", [f"s{i}"], [f"n{i}"])]
            nodes += [("Slice", [f"n{i}", "zero", "one", "axis"], [f"y{i}"])]
        sizes = {"zero": np.int64([0]), "all": np.int64([2**62]), "one": np.int64([1]), "axis": np.int64([1])}
        inputs = [(f"x{i}", [2, 3]) for i in range(count)]
        graph = graph_of(nodes, inputs=inputs, outputs=[f"y{i}" for i in range(count)], constants=sizes)
        looked = []
        with monkeypatch.context() as patch:
            patch.setattr(rule, "_try", lambda *given: looked.append(given) or attempt(*given))
            opt.simplify(graph)
        assert sorted(ops(graph)) == ["Neg"] * count + ["Slice"] * count
        return len(looked)

    attempt = rule._try
    assert tries(40) < 2.5 * tries(20)
